// Package openraft is the Go side of a cluster of openraft servers (see
// server/): the client of the rig, and the step that makes a cluster of nodes
// that have been started.
//
// The servers speak HTTP/1.1, which carries one request at a time on a
// connection: as many connections are needed as requests are outstanding. So
// each of a lane's ids has a connection of its own, opened ahead and kept, and
// there is no pool to look through. A request costs a send and a receive, and
// its share of one epoll_wait for all connections; nothing is allocated and no
// goroutine stands between a socket and the lane.
//
// # How a request ends
//
//   - {"Ok": ...}: OK.
//   - {"Err": {"APIError": {"ForwardToLeader": ...}}}: not applied. It is sent
//     to the leader, three sends in all, and the time that takes is the
//     request's; then Failed.
//   - {"Err": {"NoQuorum": ...}}: the node leads, and no majority answers it;
//     not applied, Failed. So are status 4xx, and 503 for a connection that the
//     node did not take.
//   - {"Err": {"Unknown": ...}} and any other answer: perhaps applied; Unknown.
//   - The connection is lost: Unknown, unless the request had not left in
//     full; then it is sent again like one that was redirected.
//   - Nobody leads for 1 s: Failed, for requests that wait to be sent again.
//   - Another node leads and the old leader does not answer for 1 s: its
//     connections are closed, so Unknown. Not sooner, because an old leader
//     that is alive knows more than we do.
//
// Nothing is sent twice that may have been applied.
//
// # Who leads
//
// A node leads when it says so of itself in GET /metrics; of several, the one
// with the highest term. All nodes are asked at once, each with a deadline:
// at the beginning, when a connection to the leader is lost, when an answer of
// it is no acknowledgement, when it has been silent for a second with requests
// outstanding, and every 50 ms while none is known. A redirection to a node is
// followed at once, and confirmed by asking. While a leader is known and
// answers, nobody is asked: a run is not disturbed.
package openraft
