#include "machine.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include <braft/util.h>
#include <brpc/closure_guard.h>
#include <bthread/bthread.h>

#include "files.h"

namespace raftrig {
namespace {

// kSnapshotFile is the one file of a snapshot.
constexpr char kSnapshotFile[] = "counters";

struct SaveTask {
  State::Copy copy;
  bool sync;
  braft::SnapshotWriter* writer;
  braft::Closure* done;
};

void* Save(void* arg) {
  std::unique_ptr<SaveTask> task(static_cast<SaveTask*>(arg));
  brpc::ClosureGuard done_guard(task->done);
  const std::string path = task->writer->get_path() + "/" + kSnapshotFile;
  if (!WriteFile(path, Encode(task->copy), task->sync)) {
    task->done->status().set_error(errno, "write %s: %s", path.c_str(), strerror(errno));
  } else if (task->writer->add_file(kSnapshotFile) != 0) {
    task->done->status().set_error(EIO, "%s was not taken into the snapshot", path.c_str());
  }
  return nullptr;
}

void* Answer(void* arg) {
  std::unique_ptr<std::vector<Pending*>> answers(static_cast<std::vector<Pending*>*>(arg));
  for (Pending* p : *answers) p->Run();
  return nullptr;
}

}  // namespace

bool NeverAppended(const butil::Status& status) {
  // braft uses EPERM both for what it rejects and for what was in the log of a
  // leader that stepped down; only the text tells them apart. So these texts
  // are taken as rejections, and any other one as an open outcome.
  switch (status.error_code()) {
    case EBUSY:             // is transferring leadership
    case braft::EREADONLY:  // readonly mode
      return true;
    case EPERM:
      for (const char* text : {"is not leader", "expected_term=", "Node is down"}) {
        if (strncmp(status.error_cstr(), text, strlen(text)) == 0) return true;
      }
  }
  return false;
}

Machine::Machine(bool sync, std::function<void(const std::string&)> fatal)
    : sync_(sync), fatal_(std::move(fatal)) {}

Machine::View Machine::Look() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return view_;
}

void Machine::Publish(int64_t applied) {
  const uint64_t digest = state_.Digest();
  std::lock_guard<std::mutex> lock(mutex_);
  view_ = {applied, state_.Count(), digest};
}

void Machine::on_apply(braft::Iterator& iter) {
  int64_t applied = 0;
  for (; iter.valid(); iter.next()) {
    // This node's own commands need no decoding.
    Pending* pending = static_cast<Pending*>(iter.done());
    Command command;
    if (pending != nullptr) {
      command = pending->command();
    } else {
      char bytes[kCommandSize];
      if (iter.data().copy_to(bytes, sizeof(bytes)) != iter.data().size() ||
          !DecodeCommand(bytes, iter.data().size(), &command)) {
        const butil::Status status(EINVAL, "an entry of another program, or a damaged one");
        iter.set_error_and_rollback(1, &status);
        break;
      }
    }
    const Result result = state_.Apply(command);
    applied = iter.index();
    if (pending != nullptr) {
      pending->set_result(result);
      answers_.push_back(pending);
    }
  }
  if (applied != 0) Publish(applied);

  // What has been acknowledged has to be in the status: answer after Publish.
  // A write to a socket may take its time, so another bthread does it.
  if (answers_.empty()) return;
  auto* answers = new std::vector<Pending*>(std::move(answers_));
  answers_.clear();
  answers_.reserve(answers->size());
  bthread_t tid;
  if (bthread_start_background(&tid, nullptr, Answer, answers) != 0) Answer(answers);
}

void Machine::on_snapshot_save(braft::SnapshotWriter* writer, braft::Closure* done) {
  auto* task = new SaveTask{state_.Snapshot(), sync_, writer, done};
  bthread_t tid;
  if (bthread_start_background(&tid, nullptr, Save, task) != 0) Save(task);
}

int Machine::on_snapshot_load(braft::SnapshotReader* reader) {
  braft::SnapshotMeta meta;
  if (reader->load_meta(&meta) != 0) return EIO;
  std::ifstream file(reader->get_path() + "/" + kSnapshotFile, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  if (!file.good() && !file.eof()) return EIO;
  if (!state_.Restore(bytes)) return EINVAL;
  Publish(meta.last_included_index());
  return 0;
}

void Machine::on_leader_start(int64_t term) { leader_term_.store(term, std::memory_order_release); }

void Machine::on_leader_stop(const butil::Status&) {
  leader_term_.store(-1, std::memory_order_release);
}

void Machine::on_error(const braft::Error& error) {
  leader_term_.store(-1, std::memory_order_release);
  fatal_(std::string(braft::errortype2str(error.type())) + ": " + error.status().error_str());
}

void Machine::on_configuration_committed(const braft::Configuration&, int64_t index) {
  Publish(index);
}

}  // namespace raftrig
