// Package zone judges a ladder: where a product is comfortable, where it ends
// being so, and why.
//
// A rate passes when all three hold (Limits):
//
//   - throughput is sustained: achieved is at least 0.99 of offered,
//   - the load was placed: the rig dropped less than 0.001 of the offered,
//   - the tail is attached to the median: p99 is at most 3 x p50.
//
// The comfort zone is contiguous from the lowest rate; its upper end is the
// edge. A rate beyond the edge may pass again, since p50 grows toward p99 in
// overload; that does not count. A rate with several runs is judged by the
// median of each figure. At one run a rate an excursion cannot be told from a
// fault of the moment: a rate with a single run that fails while both its
// neighbours pass is noise. With repeats it is not.
//
// Floor is the lowest p50 in the zone. Maximum sustained is the largest rate
// achieved anywhere on the ladder.
//
// The knee is the lowest rate at which one of three signals appears. All three
// are looked for above the edge, since below it the system keeps up by
// definition, and none has a constant of its own:
//
//   - p50: from the edge to this rate, p50 has grown by a larger factor than
//     the load has. Latency in proportion to load is what a longer queue of
//     batches costs; more than that is a backlog.
//   - tail: the same of p99.
//   - throughput: from this rate on, to the top of the ladder, achieved stays
//     below the limit. A rate that falls short once and recovers is no signal.
//
// Only a ladder that leaves the zone has a knee.
package zone
