package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// maxRecordBytes bounds what Read takes. An hour's record is about 2 MB.
const maxRecordBytes = 64 << 20

// Write writes the record to path: all of it or, on an error, nothing, an
// older file being left as it was. It is on the disk when Write returns.
func Write(path string, r *Run) error {
	return writeRecord(path, r, os.Rename)
}

// Create writes the record into dir, which it makes if need be, as
// FileName(r).json, or with -2, -3 behind the name when other runs started in
// the same second. It never replaces a file. It returns the path.
func Create(dir string, r *Run) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("write record: %w", err)
	}
	for n := 1; ; n++ {
		name := FileName(r)
		if n > 1 {
			name += "-" + strconv.Itoa(n)
		}
		path := filepath.Join(dir, name+".json")
		err := writeRecord(path, r, renameNew)
		if errors.Is(err, fs.ErrExist) && n < 1000 {
			continue
		}
		if err != nil {
			return "", err
		}
		return path, nil
	}
}

// renameNew is a rename that fails where the name is taken: it takes the name
// with an empty file first. (A hard link would do it in one step, on the
// filesystems that have them.)
func renameNew(temp, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	f.Close()
	if err := os.Rename(temp, path); err != nil {
		os.Remove(path)
		return err
	}
	return nil
}

// FileName is the name that the files of a run share, without an extension:
// start in UTC, mode, and the rate or the number of threads.
func FileName(r *Run) string {
	mode, target := "open", r.Knobs.Rate
	if r.Knobs.Mode == "closed" {
		mode, target = "closed", int64(r.Knobs.Threads)
	}
	return fmt.Sprintf("%s-%s-%d", r.Started.UTC().Format("20060102T150405"), mode, target)
}

func writeRecord(path string, r *Run, publish func(temp, path string) error) error {
	data, err := encode(r)
	if err == nil {
		err = writeAtomic(path, publish, func(w io.Writer) error {
			_, err := w.Write(data)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("write record %s: %w", path, err)
	}
	return nil
}

func encode(r *Run) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b) // ends with a newline
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false) // keeps >= readable
	err := e.Encode(r)
	return b.Bytes(), err
}

// WriteFile writes data to path: all of it or, on an error, nothing, an older
// file being left as it was. It is on the disk when WriteFile returns.
func WriteFile(path string, data []byte) error {
	return writeAtomic(path, os.Rename, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// writeAtomic writes a temporary file beside path, syncs it, and lets publish
// give it its name. The temporary file is gone when it returns.
func writeAtomic(path string, publish func(temp, path string) error, write func(io.Writer) error) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := publish(f.Name(), path); err != nil {
		return err
	}
	// The name is durable once its directory is. Some filesystems cannot sync
	// a directory; the record is whole there all the same.
	if d, err := os.Open(dir); err == nil {
		d.Sync()
		d.Close()
	}
	return nil
}

// Read reads a record. An error names the file and what is wrong with it.
func Read(path string) (*Run, error) {
	r, err := read(path)
	if err != nil {
		var pathErr *fs.PathError
		if errors.As(err, &pathErr) {
			return nil, fmt.Errorf("read record: %w", err) // names the file
		}
		return nil, fmt.Errorf("read record %s: %w", path, err)
	}
	return r, nil
}

func read(path string) (*Run, error) {
	// Stat comes first: opening a pipe would wait for its writer.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRecordBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxRecordBytes {
		return nil, fmt.Errorf("larger than %d MB, the most that is read", maxRecordBytes>>20)
	}
	return decode(data)
}

// decode is Read without the file.
func decode(data []byte) (*Run, error) {
	var head struct {
		Schema  *int    `json:"schema"`
		Product *string `json:"product"`
	}
	// A Decoder, unlike Unmarshal, tells a document cut off from a wrong one.
	err := json.NewDecoder(bytes.NewReader(data)).Decode(&head)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("cut off after %d bytes", len(data))
	}
	if err != nil {
		return nil, fmt.Errorf("not a run record: %v", err)
	}
	switch {
	case head.Schema == nil || head.Product == nil:
		return nil, errors.New("not a run record: it has no schema or no product")
	case *head.Schema < 1:
		return nil, fmt.Errorf("schema %d is unknown, schemas count from 1", *head.Schema)
	case *head.Schema > Schema:
		return nil, fmt.Errorf("schema %d is newer than %d, the newest this raftrig reads: use a newer raftrig", *head.Schema, Schema)
	}
	r := new(Run)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("not a run record: %v", err)
	}
	return r, nil
}

// Print writes the record as it would be written to a file.
func Print(w io.Writer, r *Run) error {
	data, err := encode(r)
	if err == nil {
		_, err = w.Write(data)
	}
	return err
}
