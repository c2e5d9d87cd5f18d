#ifndef RAFTRIG_BRAFT_MACHINE_H_
#define RAFTRIG_BRAFT_MACHINE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <braft/raft.h>
#include <braft/storage.h>

#include "state.h"

namespace raftrig {

// Pending is a command that this node proposed, until it is answered. braft
// runs it once: after OnApplied when the command was applied here, else with a
// status that says why not.
class Pending : public braft::Closure {
 public:
  explicit Pending(const Command& command) : command_(command) {}

  const Command& command() const { return command_; }
  const Result& result() const { return result_; }
  void set_result(const Result& result) { result_ = result; }

  // Run answers the client and deletes this.
  void Run() override = 0;

 private:
  const Command command_;
  Result result_;
};

// NeverAppended says whether a command that failed with this status has not
// entered the log, so that it is certainly not applied.
bool NeverAppended(const butil::Status& status);

// Machine is the state machine that braft drives. braft calls the on_ methods
// one at a time.
class Machine : public braft::StateMachine {
 public:
  // fatal is called once when the node has failed and takes no part any more.
  // With sync a snapshot is on the disk when braft hears that it is saved.
  Machine(bool sync, std::function<void(const std::string&)> fatal);

  // LeaderTerm is the term in which this node leads and takes requests, or -1.
  int64_t LeaderTerm() const { return leader_term_.load(std::memory_order_acquire); }

  // View is the state machine at one moment.
  struct View {
    int64_t applied = 0;  // index of the last entry that it holds
    uint64_t count = 0;
    uint64_t digest = State().Digest();
  };
  View Look() const;

  void on_apply(braft::Iterator& iter) override;
  void on_snapshot_save(braft::SnapshotWriter* writer, braft::Closure* done) override;
  int on_snapshot_load(braft::SnapshotReader* reader) override;
  void on_leader_start(int64_t term) override;
  void on_leader_stop(const butil::Status& status) override;
  void on_error(const braft::Error& error) override;
  void on_configuration_committed(const braft::Configuration& conf, int64_t index) override;

 private:
  void Publish(int64_t applied);

  const bool sync_;
  const std::function<void(const std::string&)> fatal_;
  std::atomic<int64_t> leader_term_{-1};
  State state_;
  std::vector<Pending*> answers_;  // of the batch that is being applied

  mutable std::mutex mutex_;
  View view_;
};

}  // namespace raftrig

#endif  // RAFTRIG_BRAFT_MACHINE_H_
