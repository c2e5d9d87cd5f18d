// Package braft is the client of a group of braft's replicated counters.
//
// It speaks baidu_std, brpc's own protocol, on sockets that the lane polls
// (package sock): requests of an instant leave in one write, replies come in
// any order and are matched by their correlation id, and nothing is allocated
// on the path of a request.
//
// # Chains
//
// A request is a compare_exchange: "if the counter holds E, let it hold N". A
// slot of the lane has a counter of its own and sends one request at a time, so
// its requests form a chain in which each expects the value that the one before
// has set. The reply says what the counter held. That checks the group in
// passing: a counter that has lost an acknowledged value, or taken one twice,
// breaks its chain, and the run fails.
//
// The counters of a client begin at a random number, so that every client
// starts with counters that nobody has touched and that therefore hold 0. To
// read the counters instead would add requests that the load does not have.
// What this costs is memory of the servers, one counter for each slot and run.
//
// After a request of unknown end its counter holds the old value or the one
// that was on its way. The next request expects the old one. If the reply says
// that it found a value which was on its way, that is an answer like any other:
// the group has replicated the request and carried it out, and has told the
// truth. It counts as OK, and the chain goes on from that value. A value is
// never tried twice, so one that arrives late finds another and does nothing.
package braft
