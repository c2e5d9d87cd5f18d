package dragonboat

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"raftrig/gateway/serve"
)

func TestMemoryDir(t *testing.T) {
	cfg := Config{Config: serve.Config{ID: 2, Peers: map[int]string{1: "h:1", 2: "[::1]:8421"}}, MemoryDir: inMemory(t)}
	path := filepath.Join(cfg.MemoryDir, "raftrig-dragonboat-2-___1__8421")
	left := filepath.Join(path, "left", "behind")
	os.MkdirAll(left, 0o700)
	d, err := openDir(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); d.Path != path || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in %s, what was left behind: %v", d.Path, err)
	}
	os.MkdirAll(d.library(), 0o700)
	if _, err := openDir(cfg); err == nil || !strings.Contains(err.Error(), path+" is in use by another process") {
		t.Errorf("a second one: %v", err)
	}
	if _, err := os.Stat(d.library()); err != nil {
		t.Error("a second one has removed the first one's")
	}
	if err := d.close(); err != nil {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(cfg.MemoryDir); len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestMemoryDirRefused(t *testing.T) {
	for dir, want := range map[string]string{
		"/proc":                            "-shm /proc: not on a tmpfs",
		filepath.Join(inMemory(t), "none"): "none: no such directory",
	} {
		cfg := Config{Config: serve.Config{ID: 1, Peers: map[int]string{1: "h:1"}}, MemoryDir: dir}
		if _, err := openDir(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", dir, err, want)
		}
	}
	small := smallTmpfs(t, 200<<20)
	cfg := Config{Config: serve.Config{ID: 1, Peers: map[int]string{1: "h:1"}}, MemoryDir: small}
	if _, err := openDir(cfg); err == nil || !strings.Contains(err.Error(), "200 MiB are free, a node in memory takes 256 at least") {
		t.Errorf("a small one: %v", err)
	}
}
