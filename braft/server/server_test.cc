// The parts of the server that need no cluster. Prints what fails, and exits 1.

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "machine.h"
#include "messages.h"
#include "state.h"
#include "status.pb.h"

namespace raftrig {
namespace {

int failures = 0;

#define EXPECT(condition)                                               \
  do {                                                                  \
    if (!(condition)) {                                                 \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                       \
    }                                                                   \
  } while (false)

Command Get(int64_t id) { return {Command::kGet, id, 0, 0}; }
Command Exchange(int64_t id, int64_t value) { return {Command::kExchange, id, 0, value}; }
Command Cas(int64_t id, int64_t expected, int64_t value) {
  return {Command::kCompareExchange, id, expected, value};
}

bool Is(const Result& r, bool success, int64_t old_value, int64_t new_value) {
  return r.success == success && r.old_value == old_value && r.new_value == new_value;
}

// Few keys and values, so that keys meet and go back to 0.
std::vector<Command> RandomCommands(size_t n) {
  std::mt19937_64 random(1);
  std::vector<Command> commands(n);
  for (Command& c : commands) {
    c.op = static_cast<Command::Op>(1 + random() % 3);
    c.id = static_cast<int64_t>(random() % 20) - 10;
    c.expected = static_cast<int64_t>(random() % 3) - 1;
    c.value = static_cast<int64_t>(random() % 3) - 1;
  }
  return commands;
}

void TestApply() {
  State s;
  EXPECT(Is(s.Apply(Get(7)), true, 0, 0));
  EXPECT(Is(s.Apply(Cas(7, 0, 1)), true, 0, 1));
  EXPECT(Is(s.Apply(Cas(7, 5, 9)), false, 1, 1));
  EXPECT(Is(s.Apply(Exchange(7, INT64_MIN)), true, 1, INT64_MIN));
  EXPECT(Is(s.Apply(Get(7)), true, INT64_MIN, INT64_MIN));
  EXPECT(Is(s.Apply(Cas(-1, 3, 4)), false, 0, 0));
  EXPECT(s.Count() == 6);
}

void TestAgainstModel() {
  State s;
  std::map<int64_t, int64_t> model;
  for (const Command& c : RandomCommands(5000)) {
    const int64_t old_value = model[c.id];
    const bool hit = c.op != Command::kCompareExchange || old_value == c.expected;
    if (c.op != Command::kGet && hit) model[c.id] = c.value;
    EXPECT(Is(s.Apply(c), hit, old_value, model[c.id]));
  }
}

void TestDigest() {
  const auto digest = [](const std::vector<Command>& commands) {
    State s;
    for (const Command& c : commands) s.Apply(c);
    return s.Digest();
  };
  const std::vector<Command> commands = RandomCommands(200);
  const uint64_t all = digest(commands);
  EXPECT(digest(commands) == all);
  for (size_t i = 0; i < commands.size(); ++i) {
    std::vector<Command> other = commands;
    other[i].expected += 10;  // what it does is often the same
    EXPECT(digest(other) != all);
    other.erase(other.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT(digest(other) != all);
  }
  // Counters alone: the same history on another state.
  State a, b;
  b.Apply(Exchange(1, 1));
  EXPECT(a.Restore(Encode({1, 2, {{1, 3}}})) && b.Restore(Encode({1, 2, {{1, 4}}})));
  EXPECT(a.Digest() != b.Digest());
  EXPECT(a.Restore(Encode({1, 2, {{1, 3}, {5, 0}}})) && b.Restore(Encode({1, 2, {{1, 3}}})));
  EXPECT(a.Digest() == b.Digest());
  EXPECT(a.Restore(Encode({1, 2, {{1, 3}, {5, 6}}})));
  EXPECT(b.Restore(Encode({1, 2, {{5, 6}, {1, 3}}})));
  EXPECT(a.Digest() == b.Digest());
}

void TestSnapshot() {
  State s;
  for (const Command& c : RandomCommands(1000)) s.Apply(c);
  const std::string bytes = Encode(s.Snapshot());
  State copy;
  copy.Apply(Exchange(99, 99));
  EXPECT(copy.Restore(bytes));
  // Restore adds the digest up afresh, Apply has kept it as it went.
  EXPECT(copy.Digest() == s.Digest() && copy.Count() == s.Count());
  for (const Command& c : RandomCommands(100)) {
    const Result a = s.Apply(c), b = copy.Apply(c);
    EXPECT(Is(a, b.success, b.old_value, b.new_value));
  }
  EXPECT(copy.Digest() == s.Digest());

  const uint64_t before = copy.Digest();
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT(!copy.Restore(damaged));
    EXPECT(!copy.Restore(bytes.substr(0, i)));
  }
  EXPECT(!copy.Restore(bytes + std::string(16, '\0')));
  EXPECT(copy.Digest() == before);
  EXPECT(copy.Restore(Encode(State().Snapshot())) && copy.Digest() == State().Digest());
}

void TestCommandCodec() {
  for (const Command& c : {Get(-3), Exchange(INT64_MIN, INT64_MAX), Cas(1, -1, 258)}) {
    char bytes[kCommandSize];
    EncodeCommand(c, bytes);
    Command d;
    EXPECT(DecodeCommand(bytes, sizeof(bytes), &d));
    EXPECT(d.op == c.op && d.id == c.id && d.expected == c.expected && d.value == c.value);
    EXPECT(!DecodeCommand(bytes, sizeof(bytes) - 1, &d));
    for (int op : {0, 4, 255}) {
      bytes[0] = static_cast<char>(op);
      EXPECT(!DecodeCommand(bytes, sizeof(bytes), &d));
    }
  }
}

void TestNeverAppended() {
  const auto status = [](int code, const char* text) { return butil::Status(code, "%s", text); };
  EXPECT(NeverAppended(status(EPERM, "is not leader")));
  EXPECT(NeverAppended(status(EPERM, "expected_term=3 doesn't match current_term=4")));
  EXPECT(NeverAppended(status(EPERM, "Node is down")));
  EXPECT(NeverAppended(status(EBUSY, "is transferring leadership")));
  EXPECT(NeverAppended(status(braft::EREADONLY, "readonly mode reject new user logs")));
  EXPECT(!NeverAppended(status(EPERM, "leader stepped down")));
  EXPECT(!NeverAppended(status(EPERM, "")));
  EXPECT(!NeverAppended(status(braft::ESTATEMACHINE, "is not leader")));
}

class Service : public StatusService {};

void TestMessages() {
  MessageFactory factory;
  Service service;
  const auto& method = *service.GetDescriptor()->method(0);
  // A request that does not parse: given back, answered, given back again.
  brpc::RpcPBMessages* broken = factory.Get(service, method);
  factory.Return(broken);
  EXPECT(broken->Response() != nullptr);
  factory.Return(broken);
  brpc::RpcPBMessages* a = factory.Get(service, method);
  brpc::RpcPBMessages* b = factory.Get(service, method);
  EXPECT(a != b);
  EXPECT(a->Response() != b->Response() && a->Request() != b->Request());
  factory.Return(a);
  factory.Return(b);
}

}  // namespace
}  // namespace raftrig

int main() {
  raftrig::TestApply();
  raftrig::TestAgainstModel();
  raftrig::TestDigest();
  raftrig::TestSnapshot();
  raftrig::TestCommandCodec();
  raftrig::TestNeverAppended();
  raftrig::TestMessages();
  if (raftrig::failures == 0) std::puts("ok: braft/server");
  return raftrig::failures == 0 ? 0 : 1;
}
