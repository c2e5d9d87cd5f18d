#ifndef RAFTRIG_BRAFT_DATADIR_H_
#define RAFTRIG_BRAFT_DATADIR_H_

#include <string>

namespace raftrig {

// DataDir is a node's directory, locked for as long as this lives:
//
//   lock       flock of the process that uses it
//   identity   whose data it is
//   log, raft_meta, snapshot   braft's
class DataDir {
 public:
  // Makes the directory if it is not there, locks it, ties it to its owner
  // (one line of text) and, without keep, empties it of an earlier run. It
  // throws std::runtime_error, among others for a directory that another
  // process uses, that holds what is kept for another owner, or that holds
  // something else.
  DataDir(const std::string& path, const std::string& owner, bool keep);
  ~DataDir();
  DataDir(const DataDir&) = delete;
  DataDir& operator=(const DataDir&) = delete;

  // Remove removes what the node has left, and the directory.
  void Remove();

  // Kind says where the log is kept and whether it is synced to disk.
  std::string Kind(bool sync) const;

 private:
  void Claim(const std::string& owner, bool keep);

  const std::string path_;
  int lock_ = -1;
};

}  // namespace raftrig

#endif  // RAFTRIG_BRAFT_DATADIR_H_
