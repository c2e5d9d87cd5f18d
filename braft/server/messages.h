#ifndef RAFTRIG_BRAFT_MESSAGES_H_
#define RAFTRIG_BRAFT_MESSAGES_H_

#include <brpc/rpc_pb_message_factory.h>

namespace raftrig {

// MessageFactory makes the messages of a call, as brpc's own factory does. brpc
// 1.11.0 gives those of a request that it cannot parse back twice
// (apache/brpc#2924); its own factory then hands one pair to two later calls,
// whose replies get mixed. This one takes them once.
class MessageFactory : public brpc::RpcPBMessageFactory {
 public:
  brpc::RpcPBMessages* Get(const google::protobuf::Service& service,
                           const google::protobuf::MethodDescriptor& method) override;
  void Return(brpc::RpcPBMessages* messages) override;
};

}  // namespace raftrig

#endif  // RAFTRIG_BRAFT_MESSAGES_H_
