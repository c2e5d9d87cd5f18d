package fleet

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// WriteEnv replaces an inventory file at once by one of this text, which has to
// be one.
func WriteEnv(path, text string) error {
	if _, err := parseInventory(path, []byte(text)); err != nil {
		return err
	}
	return replaceFile(path, 0o644, func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	})
}

// SetEnv sets a key of an inventory file, which it creates where there is none,
// and leaves all other lines as they are. The file is replaced at once.
func SetEnv(path, key, value string) error {
	line := key + "=" + value
	if k, v, err := parseLine(line); err != nil || k != key || v != value {
		return fmt.Errorf("%s: %q is no value that the file could hold", path, shorten(value))
	}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(text) > maxEnvBytes {
		return fmt.Errorf("%s: longer than %d bytes: not an inventory", path, maxEnvBytes)
	}
	return replaceFile(path, 0o644, func(w io.Writer) error {
		_, err := io.WriteString(w, setLine(string(text), key, line))
		return err
	})
}

// setLine puts the line where the key is set, or at the end.
func setLine(text, key, line string) string {
	var b strings.Builder
	set := false
	for l := range bytes.Lines([]byte(text)) {
		if k, _, err := parseLine(strings.TrimSuffix(string(l), "\n")); err == nil && k == key {
			if !set {
				b.WriteString(line + "\n")
			}
			set = true
			continue
		}
		b.Write(l)
	}
	if !set {
		if text != "" && !strings.HasSuffix(text, "\n") {
			b.WriteByte('\n')
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}
