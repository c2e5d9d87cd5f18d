#include "options.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <ostream>
#include <sstream>
#include <thread>

#include <braft/raft.h>
#include <bthread/types.h>
#include <bvar/variable.h>
#include <gflags/gflags.h>

DEFINE_int32(id, 0, "this node's number, from 1");
DEFINE_string(addr, "", "this node's own IPv4 address; nothing else is listened on");
DEFINE_int32(port, 8300, "port for clients, for the other nodes and for brpc's pages");
DEFINE_string(peers, "", "all nodes in the order of their numbers, as ip:port,ip:port,...");
DEFINE_string(data, "", "directory of the log, the votes and the snapshots");
DEFINE_bool(keep, false,
            "go on from what the directory holds, and leave it; without it the directory is "
            "emptied at the start and removed at the end");
DEFINE_bool(sync, false, "sync the log, the votes and the snapshots to disk");
DEFINE_string(group, "Atomic", "name of the Raft group");
DEFINE_int32(election_timeout_ms, 2000,
             "a follower that hears nothing for so long calls an election");
DEFINE_int32(snapshot_interval, 10, "seconds between snapshots, which cut the log; 0 for none");
DEFINE_int32(pipeline, 4, "append requests on their way to one follower at a time");
DEFINE_int32(max_entries_size, 1024, "entries in one append request, at most");
DEFINE_int32(apply_batch, 32, "requests that are put into the log in one go, at most");
DEFINE_bool(append_entries_cache, true,
            "a follower keeps an append request that came before its turn");
DEFINE_int32(threads, 0, "worker threads of brpc; 0 is one a core, and 9 at least");

namespace raftrig {
namespace {

// Own flags, in the order in which -help lists them.
constexpr const char* kOwnFlags[] = {
    "id",   "addr",  "port",    "peers", "data", "keep", "sync", "group", "election_timeout_ms",
    "snapshot_interval", "pipeline", "max_entries_size", "apply_batch", "append_entries_cache",
    "threads",
};

struct Range {
  const char* flag;
  int value, low, high;
};

[[noreturn]] void Usage(const std::string& message) {
  throw UsageError(message + " (-help lists the flags)");
}

template <typename T>
void SetUpstream(const char* flag, T value) {
  std::ostringstream text;
  text << std::boolalpha << value;
  if (gflags::SetCommandLineOption(flag, text.str().c_str()).empty()) {
    throw std::runtime_error(std::string("this brpc or braft takes no -") + flag + "=" +
                             text.str() + ": use a version that the README names");
  }
}

void Help(std::ostream& out) {
  out << "usage: braft-server -id N -addr IP -peers IP:PORT,... -data DIR [flags]\n";
  for (const char* name : kOwnFlags) {
    const auto info = gflags::GetCommandLineFlagInfoOrDie(name);
    out << "  -" << name << " (" << info.type;
    if (!info.default_value.empty()) out << ", " << info.default_value;
    out << ")\n        " << info.description << "\n";
  }
  out << "  -version\n        print the version of the libraries and exit\n"
         "Flags of brpc and braft are taken as well, as -raft_leader_batch=512.\n";
}

// SetFlags walks over -name value, -name=value and, for a bool, -name. It
// returns false when the flag was help or version.
bool SetFlags(int argc, char** argv, std::ostream& out) {
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i];
    if (name.size() < 2 || name[0] != '-') Usage("unexpected argument \"" + name + "\"");
    name.erase(0, name[1] == '-' ? 2 : 1);
    const size_t equals = name.find('=');
    const bool inline_value = equals != std::string::npos;
    std::string value = inline_value ? name.substr(equals + 1) : "";
    if (inline_value) name.erase(equals);
    std::replace(name.begin(), name.end(), '-', '_');

    if (name == "help" || name == "h") {
      Help(out);
      return false;
    }
    if (name == "version") {
      out << Version() << "\n";
      return false;
    }
    gflags::CommandLineFlagInfo info;
    if (!gflags::GetCommandLineFlagInfo(name.c_str(), &info)) Usage("there is no flag -" + name);
    if (!inline_value) {
      if (info.type == "bool") {
        value = "true";
      } else if (++i < argc) {
        value = argv[i];
      } else {
        Usage("-" + name + " wants a value");
      }
    }
    if (gflags::SetCommandLineOption(name.c_str(), value.c_str()).empty()) {
      Usage("-" + name + " \"" + value + "\": not a value of type " + info.type);
    }
  }
  return true;
}

butil::EndPoint ParseEndPoint(const std::string& text) {
  butil::EndPoint point;
  if (butil::str2endpoint(text.c_str(), &point) != 0 || point.ip == butil::IP_ANY ||
      point.port < 1 || butil::endpoint2str(point).c_str() != text) {
    Usage("-peers \"" + text + "\": wants an IPv4 address and a port, as 10.0.0.1:8300");
  }
  return point;
}

std::vector<butil::EndPoint> ParsePeers(const std::string& text) {
  if (text.empty()) Usage("-peers is missing: all nodes in their order, as ip:port,ip:port,...");
  std::vector<butil::EndPoint> peers;
  std::istringstream in(text + ",");
  for (std::string entry; std::getline(in, entry, ',');) {
    const butil::EndPoint peer = ParseEndPoint(entry);
    if (std::find(peers.begin(), peers.end(), peer) != peers.end()) {
      Usage("-peers: " + entry + " is there twice");
    }
    peers.push_back(peer);
  }
  return peers;
}

bool HasSpace(const std::string& text) {
  return std::any_of(text.begin(), text.end(), [](unsigned char c) { return std::isspace(c); });
}

std::string Exposed(const char* variable) {
  const std::string text = bvar::Variable::describe_exposed(variable);
  return text == "undefined" ? "" : text;
}

}  // namespace

std::string Options::PeersText() const {
  std::string text;
  for (const butil::EndPoint& peer : peers) {
    if (!text.empty()) text += ",";
    text += butil::endpoint2str(peer).c_str();
  }
  return text;
}

std::string Version() {
  // BRAFT_VERSION and BRPC_VERSION come from the build; braft itself knows
  // only the commit that it was built from.
  const std::string revision = Exposed("raft_revision");
  std::string version = BRAFT_VERSION;
  if (version.empty()) version = revision;
  if (version.empty()) version = "(version unknown)";
  version = "braft " + version;
  if (*BRPC_VERSION != '\0') version += std::string(" (brpc ") + BRPC_VERSION + ")";
  return version;
}

bool ParseOptions(int argc, char** argv, std::ostream& out, Options* options) {
  if (!SetFlags(argc, argv, out)) return false;
  constexpr int kMillion = 1000 * 1000;
  for (const Range& r : {
           Range{"port", FLAGS_port, 1, 65535},
           Range{"election_timeout_ms", FLAGS_election_timeout_ms, 100, kMillion},
           Range{"snapshot_interval", FLAGS_snapshot_interval, 0, kMillion},
           Range{"pipeline", FLAGS_pipeline, 1, 1024},
           Range{"max_entries_size", FLAGS_max_entries_size, 1, kMillion},
           Range{"apply_batch", FLAGS_apply_batch, 1, kMillion},
       }) {
    if (r.value < r.low || r.value > r.high) {
      Usage("-" + std::string(r.flag) + " " + std::to_string(r.value) + ": wants " +
            std::to_string(r.low) + " to " + std::to_string(r.high));
    }
  }
  if (FLAGS_threads != 0 && (FLAGS_threads < BTHREAD_MIN_CONCURRENCY ||
                             FLAGS_threads > BTHREAD_MAX_CONCURRENCY)) {
    Usage("-threads " + std::to_string(FLAGS_threads) + ": wants 0, or " +
          std::to_string(BTHREAD_MIN_CONCURRENCY) + " to " +
          std::to_string(BTHREAD_MAX_CONCURRENCY));
  }
  if (FLAGS_addr.empty()) Usage("-addr is missing: this node's own IPv4 address");
  if (FLAGS_data.empty()) Usage("-data is missing: a directory for the log");
  if (FLAGS_data[0] != '/') Usage("-data " + FLAGS_data + ": wants an absolute path");
  // The library drops the spaces of a path.
  if (HasSpace(FLAGS_data)) Usage("-data \"" + FLAGS_data + "\": the path may hold no spaces");
  if (FLAGS_group.empty() || HasSpace(FLAGS_group)) {
    Usage("-group \"" + FLAGS_group + "\": wants a name without spaces");
  }

  Options& o = *options;
  o.peers = ParsePeers(FLAGS_peers);
  o.id = FLAGS_id;
  if (o.id < 1 || o.id > static_cast<int>(o.peers.size())) {
    Usage("-id " + std::to_string(o.id) + ": -peers has nodes 1 to " +
          std::to_string(o.peers.size()));
  }
  o.address = o.peers[o.id - 1];
  const std::string own = FLAGS_addr + ":" + std::to_string(FLAGS_port);
  if (own != butil::endpoint2str(o.address).c_str()) {
    Usage("-addr " + FLAGS_addr + " -port " + std::to_string(FLAGS_port) + ": -peers has node " +
          std::to_string(o.id) + " on " + butil::endpoint2str(o.address).c_str());
  }
  o.data = FLAGS_data;
  o.keep = FLAGS_keep;
  o.sync = FLAGS_sync;
  o.group = FLAGS_group;
  o.election_timeout_ms = FLAGS_election_timeout_ms;
  o.snapshot_interval_s = FLAGS_snapshot_interval;

  // braft's node has a lock of the kind that blocks its thread, and may hold it
  // while its bthread waits. When everybody who wants the lock then has a worker
  // and the holder none, nothing moves any more: seen at every second transfer
  // with 4 workers. Upstream's number has room.
  constexpr int kLeastWorkers = 9;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  SetUpstream("bthread_concurrency",
              FLAGS_threads != 0 ? FLAGS_threads : std::max(cores, kLeastWorkers));
  SetUpstream("raft_sync", FLAGS_sync);
  SetUpstream("raft_max_parallel_append_entries_rpc_num", FLAGS_pipeline);
  SetUpstream("raft_max_entries_size", FLAGS_max_entries_size);
  SetUpstream("raft_apply_batch", FLAGS_apply_batch);
  SetUpstream("raft_enable_append_entries_cache", FLAGS_append_entries_cache);
  return true;
}

}  // namespace raftrig
