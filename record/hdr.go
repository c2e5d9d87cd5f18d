package record

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// ticksPerHalfDistance is how many rows a percentile distribution has for each
// halving of the distance to 100 %; the public tools' default.
const ticksPerHalfDistance = 5

// WriteHGRM writes h as a percentile distribution in HdrHistogram's text
// format, for its plotters: h's values are nanoseconds, the rows' microseconds.
//
// beyond requests without a value rank above all others, as in NewDistribution:
// their rows carry beyondNS (or the largest value where that is more) and are
// lower bounds, which a comment at the end says.
//
// hdrhistogram-go's PercentilesPrint is not used: it prints six digits of the
// percentile, so all rows from 99.99995 % on read 1.000000, and it knows
// nothing of requests beyond.
func WriteHGRM(w io.Writer, h *hdrhistogram.Histogram, beyond, beyondNS int64) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "%12s %14s %10s %14s\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)")

	bars := h.Distribution()
	maxNS := h.Max()
	if beyond > 0 {
		maxNS = max(maxNS, beyondNS)
		bars = append(bars, hdrhistogram.Bar{To: maxNS, Count: beyond})
	}
	total := h.TotalCount() + beyond
	var seen int64
	var level float64 // the next row's percentile
	for _, bar := range bars {
		if bar.Count == 0 {
			continue
		}
		seen += bar.Count
		for level < 100 && level <= 100*float64(seen)/float64(total) {
			fmt.Fprintf(out, "%12.3f %2.12f %10d %14.2f\n", micros(bar.To), level/100, seen, 1/(1-level/100))
			halvings := math.Trunc(math.Log(100/(100-level))/math.Log(2)) + 1
			level += 100 / (ticksPerHalfDistance * math.Exp2(halvings))
			if seen == total { // one row of the last bucket, then its end
				break
			}
		}
	}
	if total > 0 {
		// The last row has no fourth column: it is infinite.
		fmt.Fprintf(out, "%12.3f %2.12f %10d\n", micros(maxNS), 1.0, total)
	}

	buckets, subBuckets := bucketCounts(h)
	fmt.Fprintf(out, "#[Mean    = %12.3f, StdDeviation   = %12.3f]\n", h.Mean()/1e3, h.StdDev()/1e3)
	fmt.Fprintf(out, "#[Max     = %12.3f, Total count    = %12d]\n", micros(maxNS), total)
	fmt.Fprintf(out, "#[Buckets = %12d, SubBuckets     = %12d]\n", buckets, subBuckets)
	if beyond > 0 {
		fmt.Fprintf(out, "# %d of these were not answered: rows above TotalCount %d are lower bounds, mean and deviation leave them out\n", beyond, h.TotalCount())
	}
	return out.Flush()
}

// bucketCounts is the geometry that the footer tells and hdrhistogram-go keeps
// to itself: sub-buckets resolve 2*10^digits, each bucket doubles the range.
func bucketCounts(h *hdrhistogram.Histogram) (buckets, subBuckets int64) {
	subBuckets = 2
	for float64(subBuckets) < 2*math.Pow10(int(h.SignificantFigures())) {
		subBuckets *= 2
	}
	unit := int64(math.Log2(float64(max(1, h.LowestTrackableValue()))))
	buckets = 1
	for covered := subBuckets << unit; covered <= h.HighestTrackableValue(); covered <<= 1 {
		buckets++
		if covered > math.MaxInt64/2 {
			break
		}
	}
	return buckets, subBuckets
}

// HLog writes interval histograms in HdrHistogram's log format 1.3. Interval
// times are seconds since the log's base time, which is its start time; values
// are nanoseconds, the column of maxima milliseconds. The rig's tags are
// latency, service and lag: HistogramLogProcessor shows one of them by -tag.
//
// hdrhistogram-go's HistogramLogWriter is not used: it cuts the start time and
// the base time to whole seconds, so that the intervals of a log with a base
// time lie up to a second off, and it lets a tag begin or end with a comma or
// a space, which no reader can take apart again.
type HLog struct {
	w       io.Writer
	started time.Time
}

// NewHLog starts a log: comment (any number of lines), start and base time,
// legend. Times are kept to the millisecond, as the format has it.
func NewHLog(w io.Writer, started time.Time, comment string) (*HLog, error) {
	started = time.UnixMilli(started.UnixMilli()).UTC()
	var b strings.Builder
	for line := range strings.Lines(comment) {
		// The space keeps a comment from reading as "#[StartTime:".
		fmt.Fprintf(&b, "# %s\n", strings.TrimRight(line, "\r\n"))
	}
	seconds := float64(started.UnixMilli()) / 1e3
	b.WriteString("#[Histogram log format version 1.3]\n")
	fmt.Fprintf(&b, "#[StartTime: %.3f (seconds since epoch), %s]\n", seconds, started.Format("2006-01-02T15:04:05.000Z07:00"))
	fmt.Fprintf(&b, "#[BaseTime: %.3f (seconds since epoch)]\n", seconds)
	b.WriteString("\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n")
	if _, err := io.WriteString(w, b.String()); err != nil {
		return nil, fmt.Errorf("histogram log: %w", err)
	}
	return &HLog{w: w, started: started}, nil
}

// Write adds one interval. The tag may be empty, and holds no comma and no
// white space.
func (l *HLog) Write(tag string, start, end time.Time, h *hdrhistogram.Histogram) error {
	if strings.ContainsAny(tag, ", \t\r\n") {
		return fmt.Errorf("histogram log: tag %q holds a comma or white space", tag)
	}
	if end.Before(start) {
		return fmt.Errorf("histogram log: interval ends %v before it starts", start.Sub(end))
	}
	encoded, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return fmt.Errorf("histogram log: %w", err)
	}
	if tag != "" {
		tag = "Tag=" + tag + ","
	}
	// One write a line: a full disk cuts at most the last.
	_, err = fmt.Fprintf(l.w, "%s%.3f,%.3f,%.3f,%s\n", tag,
		start.Sub(l.started).Seconds(), end.Sub(start).Seconds(), float64(h.Max())/1e6, encoded)
	if err != nil {
		return fmt.Errorf("histogram log: %w", err)
	}
	return nil
}
