#include "state.h"

namespace raftrig {
namespace {

// A snapshot is this, then count, history, the number of counters, the
// counters, and the checksum of all words before it; words are little-endian.
constexpr char kMagic[] = "raftrig-braft-1\n";
constexpr size_t kMagicSize = sizeof(kMagic) - 1;
constexpr size_t kWord = 8;

// Mix is the finalizer of splitmix64 (Steele, Lea, Flood: Fast Splittable
// Pseudorandom Number Generators, 2014).
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t HashCounter(int64_t id, int64_t value) {
  return Mix(Mix(static_cast<uint64_t>(id)) ^ static_cast<uint64_t>(value));
}

uint64_t HashCommand(const Command& c) {
  uint64_t h = Mix(c.op);
  h = Mix(h ^ static_cast<uint64_t>(c.id));
  h = Mix(h ^ static_cast<uint64_t>(c.expected));
  return Mix(h ^ static_cast<uint64_t>(c.value));
}

void PutWord(uint64_t word, char* out) {
  for (size_t i = 0; i < kWord; ++i) out[i] = static_cast<char>(word >> (8 * i));
}

uint64_t GetWord(const char* bytes) {
  uint64_t word = 0;
  for (size_t i = 0; i < kWord; ++i) {
    word |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return word;
}

}  // namespace

void EncodeCommand(const Command& command, char* out) {
  out[0] = static_cast<char>(command.op);
  PutWord(static_cast<uint64_t>(command.id), out + 1);
  PutWord(static_cast<uint64_t>(command.expected), out + 1 + kWord);
  PutWord(static_cast<uint64_t>(command.value), out + 1 + 2 * kWord);
}

bool DecodeCommand(const char* bytes, size_t size, Command* command) {
  if (size != kCommandSize) return false;
  if (bytes[0] < Command::kGet || bytes[0] > Command::kCompareExchange) return false;
  command->op = static_cast<Command::Op>(bytes[0]);
  command->id = static_cast<int64_t>(GetWord(bytes + 1));
  command->expected = static_cast<int64_t>(GetWord(bytes + 1 + kWord));
  command->value = static_cast<int64_t>(GetWord(bytes + 1 + 2 * kWord));
  return true;
}

void State::Set(int64_t* counter, int64_t id, int64_t value) {
  // A counter that holds 0 adds nothing, as one that is absent.
  sum_ += HashCounter(id, value) - HashCounter(id, *counter);
  *counter = value;
}

Result State::Apply(const Command& command) {
  ++count_;
  history_ = Mix(history_ ^ HashCommand(command));

  Result result;
  const bool writes = command.op != Command::kGet;
  auto it = writes ? counters_.try_emplace(command.id, 0).first : counters_.find(command.id);
  result.old_value = it == counters_.end() ? 0 : it->second;
  result.success = command.op != Command::kCompareExchange || result.old_value == command.expected;
  result.new_value = result.old_value;
  if (writes && result.success) {
    result.new_value = command.value;
    Set(&it->second, command.id, command.value);
  }
  return result;
}

uint64_t State::Digest() const { return Mix(sum_ ^ Mix(history_ ^ Mix(count_))); }

State::Copy State::Snapshot() const {
  return {count_, history_, {counters_.begin(), counters_.end()}};
}

std::string Encode(const State::Copy& copy) {
  std::string bytes(kMagic, kMagicSize);
  bytes.reserve(kMagicSize + kWord * (4 + 2 * copy.counters.size()));
  uint64_t checksum = 0;
  const auto put = [&](uint64_t word) {
    char buffer[kWord];
    PutWord(word, buffer);
    bytes.append(buffer, kWord);
    checksum = Mix(checksum ^ word);
  };
  put(copy.count);
  put(copy.history);
  put(copy.counters.size());
  for (const auto& [id, value] : copy.counters) {
    put(static_cast<uint64_t>(id));
    put(static_cast<uint64_t>(value));
  }
  put(checksum);
  return bytes;
}

bool State::Restore(const std::string& bytes) {
  constexpr size_t kLeast = kMagicSize + 4 * kWord;
  if (bytes.size() < kLeast || (bytes.size() - kLeast) % (2 * kWord) != 0) return false;
  if (bytes.compare(0, kMagicSize, kMagic) != 0) return false;

  uint64_t checksum = 0;
  const char* next = bytes.data() + kMagicSize;
  const auto get = [&] {
    const uint64_t word = GetWord(next);
    next += kWord;
    checksum = Mix(checksum ^ word);
    return word;
  };
  State state;
  state.count_ = get();
  state.history_ = get();
  const uint64_t n = get();
  if (n != (bytes.size() - kLeast) / (2 * kWord)) return false;
  state.counters_.reserve(n);
  for (uint64_t i = 0; i < n; ++i) {
    const int64_t id = static_cast<int64_t>(get());
    const int64_t value = static_cast<int64_t>(get());
    state.Set(&state.counters_[id], id, value);
  }
  if (GetWord(next) != checksum) return false;
  *this = std::move(state);
  return true;
}

}  // namespace raftrig
