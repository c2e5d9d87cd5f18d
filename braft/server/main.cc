// Command braft-server is one node of a group of atomic counters replicated by
// braft. README.md says how it behaves.

#include <cerrno>
#include <csignal>
#include <cstring>
#include <iostream>
#include <mutex>
#include <semaphore.h>
#include <stdexcept>
#include <string>
#include <sys/socket.h>

#include <braft/raft.h>
#include <braft/util.h>
#include <brpc/server.h>
#include <butil/fd_guard.h>
#include <gflags/gflags.h>

#include "datadir.h"
#include "machine.h"
#include "messages.h"
#include "options.h"
#include "service.h"

namespace raftrig {
namespace {

// kMaxPending bounds the requests that are not yet answered; brpc rejects more
// (ELIMIT), before they reach the log.
constexpr int kMaxPending = 1 << 17;

constexpr char kStatusPath[] = "/raftrig/status => status";

// StopEvent is what main waits for: a signal, or the failure of the node. Some
// threads of the libraries are older than main, so signals cannot be blocked in
// all threads and waited for in one.
class StopEvent {
 public:
  StopEvent() {
    if (sem_init(&sem_, 0, 0) != 0) throw std::runtime_error("no semaphore");
    struct sigaction action = {};
    action.sa_handler = [](int) { sem_post(&sem_); };
    action.sa_flags = SA_RESTART | SA_RESETHAND;  // a second signal kills
    for (int s : {SIGTERM, SIGINT}) sigaction(s, &action, nullptr);
  }

  // Fail stops the server with a reason; the first one counts.
  void Fail(const std::string& reason) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (failure_.empty()) failure_ = reason;
    }
    sem_post(&sem_);
  }

  // Wait returns the reason, which is empty after a signal.
  std::string Wait() {
    while (sem_wait(&sem_) != 0 && errno == EINTR) {
    }
    std::lock_guard<std::mutex> lock(mutex_);
    return failure_;
  }

 private:
  static inline sem_t sem_;
  std::mutex mutex_;
  std::string failure_;
};

// CheckListen throws when nobody can listen on the address. brpc, which
// listens by itself, would say so in several lines.
void CheckListen(const butil::EndPoint& address) {
  butil::fd_guard fd(butil::tcp_listen(address));
  if (fd >= 0) return;
  std::string why = strerror(errno);
  switch (errno) {
    case EADDRINUSE:
      why = "address already in use: stop what uses it, or choose another -port";
      break;
    case EADDRNOTAVAIL:
      why = "not an address of this host: -addr is where this node runs";
      break;
    case EACCES:
      why = "permission denied: choose a -port above 1023";
      break;
  }
  throw std::runtime_error(std::string("listen ") + butil::endpoint2str(address).c_str() + ": " +
                           why);
}

braft::NodeOptions NodeOptions(const Options& o, Machine* machine) {
  braft::NodeOptions n;
  for (const butil::EndPoint& peer : o.peers) n.initial_conf.add_peer(braft::PeerId(peer));
  n.election_timeout_ms = o.election_timeout_ms;
  n.snapshot_interval_s = o.snapshot_interval_s;
  n.fsm = machine;
  n.node_owns_fsm = false;
  n.log_uri = "local://" + o.data + "/log";
  n.raft_meta_uri = "local://" + o.data + "/raft_meta";
  n.snapshot_uri = "local://" + o.data + "/snapshot";
  return n;
}

// Serve runs the node until a signal ends it. It throws std::runtime_error.
void Serve(const Options& o) {
  StopEvent stop;
  CheckListen(o.address);
  const std::string address = butil::endpoint2str(o.address).c_str();
  const std::string owner =
      "node " + std::to_string(o.id) + " of " + o.PeersText() + ", group " + o.group;
  DataDir dir(o.data, owner, o.keep);

  Machine machine(o.sync, [&stop](const std::string& why) {
    stop.Fail("the node has failed: " + why);
  });
  braft::Node node(o.group, braft::PeerId(o.address));
  AtomicServiceImpl atomic(&node, &machine);
  StatusServiceImpl status(o, dir.Kind(o.sync), &node, &machine);
  brpc::Server server;
  if (server.AddService(&atomic, brpc::SERVER_DOESNT_OWN_SERVICE) != 0 ||
      server.AddService(&status, brpc::SERVER_DOESNT_OWN_SERVICE, kStatusPath) != 0 ||
      braft::add_service(&server, o.address) != 0) {
    throw std::runtime_error("brpc does not take the services; the lines before this one say why");
  }
  for (const char* method : {"get", "exchange", "compare_exchange"}) {
    server.MaxConcurrencyOf(&atomic, method) = kMaxPending;
  }

  // The node comes first, for a request must not meet it before init has made
  // its parts. What peers send in between is refused, and they try again.
  brpc::ServerOptions server_options;
  server_options.rpc_pb_message_factory = new MessageFactory;  // the server deletes it
  std::string failure;
  const std::string see = "; the lines before this one say why";
  if (node.init(NodeOptions(o, &machine)) != 0) {
    failure = "braft does not start in " + o.data + see;
  } else if (server.Start(o.address, &server_options) != 0) {
    failure = "brpc does not start on " + address + see;
  } else {
    std::cout << "braft node " << o.id << " ready on " << address << ", " << Version() << ", log "
              << dir.Kind(o.sync) << std::endl;
    failure = stop.Wait();
  }
  node.shutdown(nullptr);
  node.join();
  server.Stop(0);
  server.Join();
  if (!failure.empty()) throw std::runtime_error(failure);
  if (!o.keep) dir.Remove();
}

int Main(int argc, char** argv) {
  try {
    // At level warning braft writes a line for every append request that comes
    // out of order, some thousands a second.
    logging::SetMinLogLevel(logging::BLOG_ERROR);
    // A node that was away is found again within a second, not three.
    gflags::SetCommandLineOption("health_check_interval", "1");
    // The largest frames are append requests, of 0.5 MiB.
    gflags::SetCommandLineOption("max_body_size", "8388608");
    Options options;
    if (ParseOptions(argc, argv, std::cout, &options)) Serve(options);
    return 0;
  } catch (const UsageError& e) {
    std::cerr << "braft-server: " << e.what() << std::endl;
    return 2;
  } catch (const std::exception& e) {
    std::cerr << "braft-server: " << e.what() << std::endl;
    return 1;
  }
}

}  // namespace
}  // namespace raftrig

int main(int argc, char** argv) { return raftrig::Main(argc, argv); }
