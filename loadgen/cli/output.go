package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"raftrig/loadgen"
	"raftrig/record"
)

// partialSuffix ends the name of the record of a run that is under way. One
// that stays is what a crash has left.
const partialSuffix = ".partial.json"

// output is where a run's files go. Opening it writes to each of them, so that
// a folder that cannot be written or a full disk is found before the load.
type output struct {
	dir     string
	partial string
	prefix  string // of the HDR files
	hlog    *os.File
	log     *record.HLog
	err     error // first failure while the run was under way
}

func openOutput(k *knobs, base record.Run) (*output, error) {
	o := &output{dir: k.out, prefix: k.hdrOut}
	if err := os.MkdirAll(k.out, 0o755); err != nil {
		return nil, fmt.Errorf("-out: %w", err)
	}
	base.Knobs.Mode, base.Knobs.Rate, base.Knobs.Threads = k.Mode.String(), k.Rate, k.Threads
	base.Verdict.Reasons = []record.Reason{{Code: "interrupted", Text: "the client ended before anything was recorded"}}
	o.partial = filepath.Join(k.out, record.FileName(&base)+partialSuffix)
	if err := record.Write(o.partial, &base); err != nil {
		return nil, fmt.Errorf("-out: %w: free some room or choose another folder", err)
	}
	if o.prefix == "" {
		return o, nil
	}
	var err error
	if dir := filepath.Dir(o.prefix); dir != "." {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		o.hlog, err = os.Create(o.prefix + ".hlog")
	}
	if err == nil {
		o.log, err = record.NewHLog(o.hlog, time.Now(), "latency from the scheduled instant or the send; service from the send; lag from scheduled to sent")
	}
	if err != nil {
		o.close()
		return nil, fmt.Errorf("-hdr-out: %w: free some room or choose another prefix", err)
	}
	return o, nil
}

// interval adds a stretch of the measured window to the interval log.
func (o *output) interval(from, to time.Time, h loadgen.Histograms) {
	if o.log == nil || o.err != nil {
		return
	}
	for _, x := range []struct {
		tag string
		h   *loadgen.Histogram
	}{{"latency", h.Latency}, {"service", h.Service}, {"lag", h.Lag}} {
		if o.err == nil {
			o.err = o.log.Write(x.tag, from, to, x.h)
		}
	}
}

// checkpoint replaces the partial record. A failure is told at the end; the
// run goes on.
func (o *output) checkpoint(run *record.Run) {
	if err := record.Write(o.partial, run); err != nil && o.err == nil {
		o.err = err
	}
}

// finish writes the record, its benchmark line and the HDR files. When the
// folder does not take the record, the temporary folder gets it. where is the
// record's path, empty when nothing took it; err is the first failure.
func (o *output) finish(run *record.Run, res *loadgen.Result) (where string, err error) {
	err = o.err
	first := func(e error) {
		if err == nil {
			err = e
		}
	}
	where, e := record.Create(o.dir, run)
	if e != nil {
		first(e)
		where, e = record.Create(os.TempDir(), run)
		if e == nil {
			err = fmt.Errorf("%w; the record is %s", err, where)
		} else {
			where = ""
		}
	}
	if where != "" {
		first(writeFile(strings.TrimSuffix(where, ".json")+".bench", func(w io.Writer) error {
			return record.WriteBench(w, run)
		}))
	}
	if o.prefix != "" {
		first(writeFile(o.prefix+".hgrm", func(w io.Writer) error {
			return record.WriteHGRM(w, res.Latency, run.Latency.Beyond, int64(run.Latency.BeyondUS*1e3))
		}))
		first(o.hlog.Close())
		o.hlog = nil
	}
	return where, err
}

// close removes the partial record: a finished run has its record, and one
// that did not start has nothing to keep.
func (o *output) close() {
	if o.hlog != nil {
		o.hlog.Close()
	}
	os.Remove(o.partial)
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
