#ifndef RAFTRIG_BRAFT_STATE_H_
#define RAFTRIG_BRAFT_STATE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace raftrig {

// Command is one request, an entry of the log.
struct Command {
  enum Op : uint8_t { kGet = 1, kExchange = 2, kCompareExchange = 3 };
  Op op = kGet;
  int64_t id = 0;
  int64_t expected = 0;  // kCompareExchange
  int64_t value = 0;     // kExchange, kCompareExchange
};

// kCommandSize is the length of every encoded command in bytes: op, id,
// expected, value; the integers are little-endian.
constexpr size_t kCommandSize = 1 + 3 * 8;

void EncodeCommand(const Command& command, char* out);

// DecodeCommand returns false when the bytes are no command.
bool DecodeCommand(const char* bytes, size_t size, Command* command);

// Result is what a command did. new_value is what the key holds now.
struct Result {
  bool success = false;
  int64_t old_value = 0;
  int64_t new_value = 0;
};

// State is the replicated state: counters by id, where an absent one reads as
// 0, and a history. The history counts the commands and chains a hash of
// them, so that a command which was left out, doubled or moved shows even when
// the counters are the same afterwards.
class State {
 public:
  Result Apply(const Command& command);

  // Count is how many commands were applied since the cluster began: also
  // reads, and exchanges that found another value.
  uint64_t Count() const { return count_; }

  // Digest is of counters and history: equal states have equal digests. It
  // does not depend on the order of the map, and costs O(1).
  uint64_t Digest() const;

  // Copy is the state at one moment, to be written elsewhere.
  struct Copy {
    uint64_t count;
    uint64_t history;
    std::vector<std::pair<int64_t, int64_t>> counters;
  };
  Copy Snapshot() const;

  // Restore replaces the state with what Encode made of a copy. On false the
  // bytes are damaged, and the state is as before.
  bool Restore(const std::string& bytes);

 private:
  void Set(int64_t* counter, int64_t id, int64_t value);

  std::unordered_map<int64_t, int64_t> counters_;
  uint64_t count_ = 0;
  uint64_t history_ = 0;
  uint64_t sum_ = 0;  // over the counters, each one's hash less that of its 0
};

std::string Encode(const State::Copy& copy);

}  // namespace raftrig

#endif  // RAFTRIG_BRAFT_STATE_H_
