#ifndef RAFTRIG_BRAFT_OPTIONS_H_
#define RAFTRIG_BRAFT_OPTIONS_H_

#include <iosfwd>
#include <stdexcept>
#include <string>
#include <vector>

#include <butil/endpoint.h>

namespace raftrig {

// UsageError is an error in the command line.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Options is what the command line says, checked.
struct Options {
  int id = 0;
  butil::EndPoint address;             // this node's own
  std::vector<butil::EndPoint> peers;  // all nodes, in the order of their numbers
  std::string data;                    // directory
  bool keep = false;
  bool sync = false;
  std::string group;
  int election_timeout_ms = 0;
  int snapshot_interval_s = 0;

  // PeersText is all nodes as ip:port,...
  std::string PeersText() const;
};

// ParseOptions reads the command line and sets the flags of brpc and braft. It
// throws a UsageError. False means that a flag has been answered on out (help,
// version) and nothing is to be run.
bool ParseOptions(int argc, char** argv, std::ostream& out, Options* options);

// Version names braft and brpc and their versions, as far as these tell.
std::string Version();

}  // namespace raftrig

#endif  // RAFTRIG_BRAFT_OPTIONS_H_
