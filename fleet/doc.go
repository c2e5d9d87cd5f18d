// Package fleet says where a cluster's nodes run and controls them there.
//
// An [Inventory] names the three nodes and the client's host; [Load] reads it
// from .env, and without that file it is three nodes on loopback addresses of
// this host. [Open] gives a [Fleet]: one product's nodes and the verbs over
// them: start, stop, status, signal, logs, wait, exec, push, pull, and the run
// of a client. Each verb runs on all selected nodes in parallel, keeps what the
// others gave when one fails, and names the node that failed ([NodeError]).
//
// # On one host
//
// Everything about a run lies in one run directory, by node N (client for what
// runs beside the load generator):
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
// # Over ssh
//
// With TRANSPORT=ssh the same code does the same work, on the other hosts: each
// call runs REMOTE_DIR/bin/fleet there as an agent ([Agent]), with the system's
// ssh. One line of JSON on its stdin is the call; what comes back are lines of
// JSON, output and at last the result, so that errors keep their types and an
// exit status is never mistaken for one of ssh. The stream to the agent stays
// open while it works: signals go along it, and its end, for whatever reason,
// ends the work. A load generator that loses its caller thus stops its load and
// writes its record, which a later pull brings.
//
// Push is how the agent comes to a host, and needs a POSIX shell, uname,
// sha256sum and gzip there. Nothing else is installed.
//
//	REMOTE_DIR/bin       what was pushed; other files lie as below the root here
//	REMOTE_DIR/run       run directories, as on one host
//	REMOTE_DIR/results   records, until they are pulled
//
// Connections are shared between commands for a minute (ControlPersist), over
// sockets in a directory of this user alone. Host keys are taken at the first
// contact and kept in run/ssh_known_hosts; a changed one is refused.
//
// # In network namespaces
//
// With TOPOLOGY=netns the hosts are network namespaces of this host ([Netns]).
// Nodes and client are started in theirs; all else is as on one host. The delay
// between zones is the kernel's (netem) or a process's ([DelayRouter]): good for
// the shape of a result, not for its last percentiles.
package fleet
