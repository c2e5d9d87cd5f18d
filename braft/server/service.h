#ifndef RAFTRIG_BRAFT_SERVICE_H_
#define RAFTRIG_BRAFT_SERVICE_H_

#include <string>

#include <braft/raft.h>

#include "atomic.pb.h"
#include "machine.h"
#include "options.h"
#include "status.pb.h"

namespace raftrig {

// kOutcomeUnknown is the error code of a request that was in the log of a
// leader which then lost its office or failed: it may have been applied, or
// still be. Every other error comes from brpc, before the request reached the
// log.
constexpr int kOutcomeUnknown = 20001;

// AtomicServiceImpl puts requests into the log and answers when they are
// applied. A node that does not lead redirects.
class AtomicServiceImpl : public example::AtomicService {
 public:
  // node and machine have to outlive the last answer.
  AtomicServiceImpl(braft::Node* node, Machine* machine) : node_(node), machine_(machine) {}

  void get(google::protobuf::RpcController* controller, const example::GetRequest* request,
           example::AtomicResponse* response, google::protobuf::Closure* done) override;
  void exchange(google::protobuf::RpcController* controller,
                const example::ExchangeRequest* request, example::AtomicResponse* response,
                google::protobuf::Closure* done) override;
  void compare_exchange(google::protobuf::RpcController* controller,
                        const example::CompareExchangeRequest* request,
                        example::AtomicResponse* response,
                        google::protobuf::Closure* done) override;

 private:
  void Propose(const Command& command, google::protobuf::RpcController* controller,
               example::AtomicResponse* response, google::protobuf::Closure* done);

  braft::Node* const node_;
  Machine* const machine_;
};

// StatusServiceImpl says what this node is doing.
class StatusServiceImpl : public StatusService {
 public:
  // log is where the log is kept.
  StatusServiceImpl(const Options& options, const std::string& log, braft::Node* node,
                    const Machine* machine)
      : options_(options), log_(log), node_(node), machine_(machine) {}

  void status(google::protobuf::RpcController* controller, const StatusRequest* request,
              StatusReply* reply, google::protobuf::Closure* done) override;

 private:
  const Options options_;
  const std::string log_;
  braft::Node* const node_;
  const Machine* const machine_;
};

}  // namespace raftrig

#endif  // RAFTRIG_BRAFT_SERVICE_H_
