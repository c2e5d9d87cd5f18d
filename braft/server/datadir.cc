#include "datadir.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <linux/magic.h>
#include <stdexcept>
#include <sys/file.h>
#include <sys/statfs.h>
#include <system_error>
#include <unistd.h>

#include "files.h"

namespace raftrig {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBraftDirs[] = {"log", "raft_meta", "snapshot"};

// The log between two snapshots, and two of these are kept, takes some 60 bytes
// an entry; with less room than this a run at full speed would soon end.
constexpr uint64_t kLeastFree = 256 << 20;

std::runtime_error Failure(const std::string& path, const std::string& message) {
  return std::runtime_error("data directory " + path + ": " + message);
}

std::string Errno() { return std::strerror(errno); }

void RemoveBraftDirs(const std::string& path) {
  for (const char* name : kBraftDirs) fs::remove_all(fs::path(path) / name);
}

}  // namespace

DataDir::DataDir(const std::string& path, const std::string& owner, bool keep) : path_(path) {
  std::error_code error;
  const bool fresh = !fs::exists(path_, error);
  fs::create_directories(path_, error);
  if (error) throw Failure(path_, error.message());
  if (fresh) fs::permissions(path_, fs::perms::owner_all, error);

  lock_ = open((path_ + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0) throw Failure(path_, Errno());
  try {
    if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      throw Failure(path_, errno == EWOULDBLOCK ? "in use by another process: stop it, or choose "
                                                  "another -data"
                                                : Errno());
    }
    Claim(owner, keep);
    struct statfs stat;
    if (statfs(path_.c_str(), &stat) != 0) throw Failure(path_, Errno());
    const uint64_t free = uint64_t{stat.f_bavail} * static_cast<uint64_t>(stat.f_bsize);
    if (free < kLeastFree) {
      throw Failure(path_, std::to_string(free >> 20) + " MiB free, a log needs " +
                               std::to_string(kLeastFree >> 20) +
                               ": make room, or choose another -data");
    }
  } catch (const fs::filesystem_error& e) {
    close(lock_);
    throw Failure(path_, e.code().message());
  } catch (...) {
    close(lock_);
    throw;
  }
}

DataDir::~DataDir() { close(lock_); }

void DataDir::Claim(const std::string& owner, bool keep) {
  const std::string identity = path_ + "/identity";
  std::ifstream file(identity);
  std::string kept, was;  // first line "kept" or "disposable", second line the owner
  if (std::getline(file, kept) && std::getline(file, was)) {
    if (keep && was != owner) {
      throw Failure(path_, "belongs to " + was + ", this is " + owner +
                               ": choose another directory, or remove this one");
    }
    if (!keep && kept == "kept") {
      throw Failure(path_, "holds the log that is kept for " + was +
                               ": start with -keep, or remove it");
    }
    if (keep && kept != "kept") {
      throw Failure(path_, "holds what a run without -keep has left: remove it");
    }
  } else {
    for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
      if (entry.path().filename() != "lock" && entry.path().filename() != "identity") {
        throw Failure(path_, "holds " + entry.path().filename().string() +
                                 " and no identity of a node: choose a directory of its own");
      }
    }
  }
  file.close();
  if (!keep) RemoveBraftDirs(path_);
  if (was == owner) return;
  if (!WriteFile(identity + ".new", (keep ? "kept\n" : "disposable\n") + owner + "\n", keep) ||
      rename((identity + ".new").c_str(), identity.c_str()) != 0) {
    throw Failure(path_, Errno());
  }
}

void DataDir::Remove() {
  std::error_code ignored;  // the node has done its work; what stays is wiped at the next start
  for (const char* name : kBraftDirs) fs::remove_all(fs::path(path_) / name, ignored);
  fs::remove(path_ + "/identity", ignored);
  fs::remove(path_ + "/lock", ignored);
  fs::remove(path_, ignored);
}

std::string DataDir::Kind(bool sync) const {
  struct statfs stat;
  if (statfs(path_.c_str(), &stat) == 0 &&
      (stat.f_type == TMPFS_MAGIC || stat.f_type == RAMFS_MAGIC)) {
    return "in memory (tmpfs)";
  }
  return sync ? "on disk, fsync" : "on disk, not synced";
}

}  // namespace raftrig
