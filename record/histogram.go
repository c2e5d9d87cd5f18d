package record

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// ranks are the percentiles of every distribution, in thousandths of a
// percent: integers, so that a rank is computed without rounding.
var ranks = [...]int64{50_000, 75_000, 90_000, 95_000, 99_000, 99_900, 99_990, 99_999, 100_000}

// Bounds of a histogram that Decode takes. The rig's own has 3 digits and ends
// at minutes; these leave room and keep a hostile record to a few megabytes.
const (
	maxEncodedBytes = 8 << 20
	maxDigits       = 4
	maxLowestNS     = 1_000_000
	maxHighestNS    = 1 << 55 // 417 days
)

// NewDistribution makes the distribution of h, whose values are nanoseconds.
//
// exactMaxNS is the largest value recorded; the histogram knows it to its
// resolution only. 0, or less than the histogram's own maximum, means that it
// is not known. beyond is how many requests have no value and rank above all
// that have; each took at least beyondNS, or the largest value recorded where
// that is more, so that percentiles never fall as the rank rises. A negative
// beyond is a programmer's error.
//
// Percentile p is the value at rank ceil(p/100 * (count+beyond)), the nearest
// rank from above, as HdrHistogram's Java implementation counts it; the value
// is the highest of its bucket, but never above exactMaxNS. With neither values
// nor requests beyond there are no percentiles.
func NewDistribution(h *hdrhistogram.Histogram, exactMaxNS, beyond, beyondNS int64) Distribution {
	if beyond < 0 {
		panic(fmt.Sprintf("record: %d requests beyond the recorded", beyond))
	}
	encoded, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		panic("record: encoding to memory: " + err.Error())
	}
	d := Distribution{Count: h.TotalCount(), Beyond: beyond, Percentiles: []Percentile{}, Histogram: string(encoded)}
	maxNS := h.Max()
	if exactMaxNS > maxNS || h.ValuesAreEquivalent(exactMaxNS, maxNS) {
		maxNS = exactMaxNS
	}
	if d.Count == 0 {
		maxNS = 0
	}
	// The mean is of bucket middles; the middle of the last bucket may lie above
	// the exact maximum.
	d.MeanUS = min(h.Mean(), float64(maxNS)) / 1e3
	d.MaxUS = micros(maxNS)
	if beyond > 0 {
		d.BeyondUS = micros(max(beyondNS, maxNS))
	}
	total := uint64(d.Count) + uint64(beyond)
	if total == 0 {
		return d
	}
	targets := make([]int64, 0, len(ranks))
	for _, r := range ranks {
		targets = append(targets, ceilRank(r, total))
	}
	values := valuesAtRanks(h, targets)
	for i, r := range ranks {
		p := Percentile{Rank: float64(r) / 1e3}
		switch rank := targets[i]; {
		case rank > d.Count:
			p.US, p.AtLeast = d.BeyondUS, true
		case rank == d.Count:
			p.US = d.MaxUS
		default:
			p.US = micros(min(values[i], maxNS))
		}
		d.Percentiles = append(d.Percentiles, p)
	}
	return d
}

// ceilRank is ceil(thousandths/100000 * total), in 128 bits.
func ceilRank(thousandths int64, total uint64) int64 {
	hi, lo := bits.Mul64(uint64(thousandths), total)
	lo, carry := bits.Add64(lo, 99_999, 0)
	rank, _ := bits.Div64(hi+carry, lo, 100_000)
	return int64(rank)
}

// valuesAtRanks returns the value at each of the ranks (from 1, ascending). It
// counts by itself: ValueAtPercentile takes a float and rounds the rank to the
// nearest, which yields the value below the one that covers the percentile.
// Ranks above the count have no value and end the list.
func valuesAtRanks(h *hdrhistogram.Histogram, ascending []int64) []int64 {
	values := make([]int64, 0, len(ascending))
	var seen int64
	for _, bar := range h.Distribution() {
		seen += bar.Count
		for len(values) < len(ascending) && ascending[len(values)] <= seen {
			values = append(values, bar.To)
		}
	}
	return values
}

func micros(ns int64) float64 { return float64(ns) / 1e3 }

// nanos is the inverse of micros for values that a distribution may hold.
func nanos(us float64) (int64, error) {
	if !(us >= 0 && us <= maxHighestNS/1e3) {
		return 0, fmt.Errorf("%g us is out of range", us)
	}
	return int64(math.Round(us * 1e3)), nil
}

// At returns the percentile of the given rank in percent, one of 50, 75, 90,
// 95, 99, 99.9, 99.99, 99.999 and 100. It is false when the distribution does
// not hold it, as an empty one does not.
func (d Distribution) At(rank float64) (Percentile, bool) {
	for _, p := range d.Percentiles {
		if p.Rank == rank {
			return p, true
		}
	}
	return Percentile{}, false
}

// Decode returns the histogram, values in nanoseconds. The text may come from
// anywhere: its size and the memory it asks for are bounded, and a histogram
// that does not hold Count values is refused.
func (d Distribution) Decode() (*hdrhistogram.Histogram, error) {
	if len(d.Histogram) > maxEncodedBytes {
		return nil, fmt.Errorf("histogram: %d bytes, at most %d are read", len(d.Histogram), maxEncodedBytes)
	}
	if err := checkGeometry(d.Histogram); err != nil {
		return nil, fmt.Errorf("histogram: %w", err)
	}
	h, err := hdrhistogram.Decode([]byte(d.Histogram))
	if err != nil {
		return nil, fmt.Errorf("histogram: %w", err)
	}
	if h.TotalCount() != d.Count {
		return nil, fmt.Errorf("histogram: holds %d values, count says %d", h.TotalCount(), d.Count)
	}
	return h, nil
}

// checkGeometry reads the header that says how many buckets the histogram has:
// hdrhistogram.Decode allocates what it asks for, up to 48 MB.
func checkGeometry(encoded string) error {
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return fmt.Errorf("not base64: %w", err)
	}
	if len(raw) < 8 {
		return errors.New("cut off")
	}
	// Cookie and length come first; Decode checks them.
	z, err := zlib.NewReader(bytes.NewReader(raw[8:]))
	if err != nil {
		return fmt.Errorf("not compressed: %w", err)
	}
	defer z.Close()
	var header struct {
		Cookie, PayloadBytes, Offset, Digits int32
		Lowest, Highest                      int64
		Ratio                                float64
	}
	if err := binary.Read(z, binary.BigEndian, &header); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return errors.New("header cut off")
		}
		return fmt.Errorf("header: %w", err)
	}
	if header.Digits < 0 || header.Digits > maxDigits || header.Lowest < 0 || header.Lowest > maxLowestNS ||
		header.Highest < 1 || header.Highest > maxHighestNS {
		return fmt.Errorf("range %d to %d ns at %d digits, at most %d to %d ns at %d digits are read",
			header.Lowest, header.Highest, header.Digits, maxLowestNS, int64(maxHighestNS), maxDigits)
	}
	return nil
}

// Merge makes one distribution of several, of clients that ran together or of
// repeated runs. Percentiles come from the merged histogram, never from
// percentiles. BeyondUS is the smallest of the parts that have requests beyond:
// of their union no more is certain.
func Merge(parts ...Distribution) (Distribution, error) {
	if len(parts) == 0 {
		return Distribution{}, errors.New("merge: no distributions")
	}
	var (
		histograms      []*hdrhistogram.Histogram
		lowest, highest int64 = math.MaxInt64, 0
		digits          int64
		maxNS, beyond   int64
		beyondNS        int64 = math.MaxInt64
	)
	for i, d := range parts {
		h, err := d.Decode()
		if err != nil {
			return Distribution{}, fmt.Errorf("merge: distribution %d: %w", i+1, err)
		}
		histograms = append(histograms, h)
		lowest, highest = min(lowest, h.LowestTrackableValue()), max(highest, h.HighestTrackableValue())
		digits = max(digits, h.SignificantFigures())
		ns, err := nanos(d.MaxUS)
		if err != nil {
			return Distribution{}, fmt.Errorf("merge: distribution %d: max_us: %w", i+1, err)
		}
		maxNS = max(maxNS, ns)
		if d.Beyond == 0 {
			continue
		}
		if ns, err = nanos(d.BeyondUS); err != nil {
			return Distribution{}, fmt.Errorf("merge: distribution %d: beyond_us: %w", i+1, err)
		}
		if d.Beyond < 0 || d.Beyond > math.MaxInt64-beyond {
			return Distribution{}, fmt.Errorf("merge: distribution %d: beyond %d is out of range", i+1, d.Beyond)
		}
		beyond += d.Beyond
		beyondNS = min(beyondNS, ns)
	}
	// The widest range and the finest digits of the parts: nothing is lost.
	sum := hdrhistogram.New(lowest, highest, int(digits))
	for i, h := range histograms {
		if dropped := sum.Merge(h); dropped != 0 {
			return Distribution{}, fmt.Errorf("merge: distribution %d: %d values do not fit", i+1, dropped)
		}
	}
	if sum.TotalCount() > math.MaxInt64-beyond {
		return Distribution{}, errors.New("merge: counts are out of range")
	}
	return NewDistribution(sum, maxNS, beyond, beyondNS), nil
}
