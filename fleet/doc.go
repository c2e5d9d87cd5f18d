// Package fleet says where a cluster's nodes run and controls them there.
//
// An [Inventory] names the three nodes and the client's host; [Load] reads it
// from .env, and without that file it is three nodes on loopback addresses of
// this host. [Open] gives a [Fleet]: one product's nodes and the verbs over
// them: start, stop, status, signal, logs, wait. Each verb runs on all
// selected nodes in parallel, keeps what the others gave when one fails, and
// names the node that failed ([NodeError]).
//
// # On this host
//
// Everything about a run lies in one run directory, by node N:
//
//	nodeN.pid    who was started: pid, start time, boot, command (JSON)
//	nodeN.log    what it wrote to stdout and stderr; nodeN.log.1 is the run before
//	nodeN.lock   held (flock) during start and stop
//	nodeN/       its working directory and {dir}
//
// A pid alone does not name a process, for the kernel uses it again. The pid
// file holds the start time and the boot too; a process is signalled through a
// pidfd that was opened first and compared after, so that a stranger who
// inherited the pid is never touched. The end of a process is an event on that
// pidfd, also for a process that this one did not start.
//
// A node is the leader of a session of its own. Signals go to its process
// group, and stop ends the whole session, so a server's children go with it. A
// descendant that calls setsid itself escapes.
//
// # Other transports
//
// The verbs reach a node through the transport interface, chosen by the
// inventory's TRANSPORT. Here it is local, the only one: ssh is refused.
package fleet
