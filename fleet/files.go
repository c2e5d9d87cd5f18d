package fleet

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// maxFiles bounds what one pull or push looks at.
const maxFiles = 10000

// agentFile is the program that does the work on the other hosts.
const agentFile = "bin/fleet"

// fileInfo is a file that could be pulled.
type fileInfo struct {
	Path string `json:"path"`
	Sum  string `json:"sum"` // SHA-256
}

// within gives where a path lies that counts from the root.
func within(root, p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(root, p)
}

func sumOf(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// listFiles gives the regular files that were written since then: those below a
// path that is a folder, and those whose names begin with another path. What
// does not exist has none.
func listFiles(root string, paths []string, since time.Time) ([]fileInfo, error) {
	var found []fileInfo
	add := func(p string) error {
		info, err := os.Lstat(within(root, p))
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it was temporary
		}
		if err != nil || !info.Mode().IsRegular() || info.ModTime().Before(since) {
			return err
		}
		sum, err := sumOf(within(root, p))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if len(found) == maxFiles {
			return fmt.Errorf("more than %d files in %v: pull fewer at a time", maxFiles, paths)
		}
		found = append(found, fileInfo{p, sum})
		return err
	}
	for _, p := range paths {
		p = path.Clean(p)
		info, err := os.Stat(within(root, p))
		if err == nil && info.IsDir() {
			err = filepath.WalkDir(within(root, p), func(file string, d fs.DirEntry, err error) error {
				if err != nil || !d.Type().IsRegular() {
					return err
				}
				rel, err := filepath.Rel(within(root, p), file)
				if err != nil {
					return err
				}
				return add(path.Join(p, filepath.ToSlash(rel)))
			})
			if err != nil {
				return nil, err
			}
			continue
		}
		names, err := readDirNames(within(root, path.Dir(p)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, name := range names {
			if strings.HasPrefix(name, path.Base(p)) {
				if err := add(path.Join(path.Dir(p), name)); err != nil {
					return nil, err
				}
			}
		}
	}
	return found, nil
}

func copyFile(root, p string, w io.Writer) error {
	f, err := os.Open(within(root, p))
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// asked says whether a path that the other side names is one of those that it
// was asked for, so that it cannot have others written.
func asked(paths []string, p string) bool {
	if p != path.Clean(p) || strings.ContainsAny(p, "\x00") {
		return false
	}
	for _, want := range paths {
		want = path.Clean(want)
		if rest, ok := strings.CutPrefix(p, want); ok && want != ".." && !strings.HasPrefix(want, "../") {
			if rest == "" || rest[0] == '/' || !strings.Contains(rest, "/") {
				return true
			}
		}
	}
	return false
}

func (r *remote) pull(ctx context.Context, n Node, paths []string, since time.Time) ([]string, error) {
	rep, err := r.call(ctx, n, request{Verb: "list", Paths: paths, Since: since}, task{})
	if err != nil {
		return nil, err
	}
	var got []string
	for _, f := range rep.Files {
		if !asked(paths, f.Path) {
			return got, fmt.Errorf("it offers %q, which was not asked for", shorten(f.Path))
		}
		file := within(r.root, f.Path)
		if sum, err := sumOf(file); err == nil && sum == f.Sum {
			continue
		}
		if err := r.get(ctx, n, f, file); err != nil {
			return got, fmt.Errorf("%s: %w", f.Path, err)
		}
		got = append(got, f.Path)
	}
	return got, nil
}

// get brings one file, whole or not at all.
func (r *remote) get(ctx context.Context, n Node, f fileInfo, file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return replaceFile(file, 0o644, func(w io.Writer) error {
		h := sha256.New()
		_, err := r.call(ctx, n, request{Verb: "get", Paths: []string{f.Path}}, task{stdout: io.MultiWriter(w, h)})
		if err == nil && hex.EncodeToString(h.Sum(nil)) != f.Sum {
			err = errors.New("it was written to meanwhile: pull again (fleet pull)")
		}
		return err
	})
}

// replaceFile makes a file appear with its whole content, or leaves what was
// there.
func replaceFile(file string, mode fs.FileMode, write func(io.Writer) error) error {
	tmp, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	err = write(tmp)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		os.Remove(tmp.Name())
	}
	return err
}

// pushFile is a file of this host that the others are to have.
type pushFile struct {
	rel, file, sum string
	mode           fs.FileMode
	machine        string // for which it is built; empty for any
}

// machines are the names that uname -m has for those of an ELF file.
var machines = map[elf.Machine]string{elf.EM_X86_64: "x86_64", elf.EM_AARCH64: "aarch64"}

func machineOf(file string) string {
	f, err := elf.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	return machines[f.Machine]
}

func (r *remote) pushFiles(names []string) ([]pushFile, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var files []pushFile
	add := func(rel, file string) error {
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		if len(files) == maxFiles {
			return fmt.Errorf("more than %d files to push", maxFiles)
		}
		f := pushFile{rel: filepath.ToSlash(rel), file: file, mode: 0o644, machine: machineOf(file)}
		if info.Mode()&0o111 != 0 {
			f.mode = 0o755
		}
		f.sum, err = sumOf(file)
		files = append(files, f)
		return err
	}
	if err := add(agentFile, exe); err != nil {
		return nil, err
	}
	for _, name := range names {
		rel, err := filepath.Rel(r.root, within(r.root, name))
		if err != nil || !filepath.IsLocal(rel) || rel == "." {
			return nil, fmt.Errorf("push %s: not below %s: only what lies there has its place on the other hosts", name, r.root)
		}
		if rel == agentFile {
			continue
		}
		err = filepath.WalkDir(filepath.Join(r.root, rel), func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			rel, err := filepath.Rel(r.root, file)
			if err != nil {
				return err
			}
			return add(rel, file)
		})
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("push %s: no such file: make build", name)
		}
		if err != nil {
			return nil, fmt.Errorf("push: %w", err)
		}
	}
	return files, nil
}

// push sends bin/fleet and the files, each only where the host has another or
// none. It needs no agent there: this is how the agent comes to it.
func (r *remote) push(ctx context.Context, n Node, names []string) ([]string, error) {
	files, err := r.pushFiles(names)
	if err != nil {
		return nil, err
	}
	rels := make([]string, len(files))
	for i, f := range files {
		rels[i] = f.rel
	}
	dir := shellWords(r.inv.RemoteDir)
	out, err := r.shell(ctx, n, fmt.Sprintf("uname -m && mkdir -p %s && cd %s && { sha256sum %s 2>/dev/null; true; }", dir, dir, shellWords(rels...)), nil)
	if err != nil {
		return nil, err
	}
	machine, sums := parseSums(string(out))
	var sent []string
	for _, f := range files {
		if f.machine != "" && f.machine != machine {
			return sent, fmt.Errorf("it is %s, and %s is built for %s: build on a machine like it", machine, f.rel, f.machine)
		}
		if sums[f.rel] == f.sum {
			continue
		}
		if err := r.put(ctx, n, f); err != nil {
			return sent, fmt.Errorf("push %s: %w", f.rel, err)
		}
		sent = append(sent, f.rel)
	}
	return sent, nil
}

// parseSums reads what a host says of itself and of its files: a line of uname
// -m, then those of sha256sum. Noise of a login script before it is skipped.
func parseSums(out string) (machine string, sums map[string]string) {
	sums = make(map[string]string)
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		sum, file, ok := strings.Cut(line, "  ")
		if ok && len(sum) == 2*sha256.Size {
			sums[file] = sum
		} else if len(sums) == 0 {
			machine = line
		}
	}
	return machine, sums
}

// put replaces one file there, also one that is in use.
func (r *remote) put(ctx context.Context, n Node, f pushFile) error {
	src, err := os.Open(f.file)
	if err != nil {
		return err
	}
	defer src.Close()
	packed, unpacked := io.Pipe()
	go func() {
		z, _ := gzip.NewWriterLevel(unpacked, gzip.BestSpeed)
		_, err := io.Copy(z, src)
		unpacked.CloseWithError(errors.Join(err, z.Close()))
	}()
	defer packed.Close()
	line := fmt.Sprintf("cd %s && mkdir -p %s && t=%s.$$ && if gzip -dc >\"$t\" && chmod %o \"$t\" && mv -f \"$t\" %s; then :; else rm -f \"$t\"; exit 1; fi",
		shellWords(r.inv.RemoteDir), shellWords(path.Dir(f.rel)), shellWords(f.rel), f.mode, shellWords(f.rel))
	_, err = r.shell(ctx, n, line, packed)
	return err
}
