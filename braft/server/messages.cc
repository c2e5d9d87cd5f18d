#include "messages.h"

#include <memory>

#include <butil/object_pool.h>
#include <google/protobuf/message.h>
#include <google/protobuf/service.h>

namespace raftrig {
namespace {

class Messages : public brpc::RpcPBMessages {
 public:
  google::protobuf::Message* Request() override { return request.get(); }
  google::protobuf::Message* Response() override {
    answered = true;
    return response.get();
  }

  std::unique_ptr<google::protobuf::Message> request, response;
  // Whoever answers a call asks for the response, and gives back afterwards.
  bool answered = false;
};

}  // namespace

brpc::RpcPBMessages* MessageFactory::Get(const google::protobuf::Service& service,
                                         const google::protobuf::MethodDescriptor& method) {
  Messages* m = butil::get_object<Messages>();
  m->request.reset(service.GetRequestPrototype(&method).New());
  m->response.reset(service.GetResponsePrototype(&method).New());
  m->answered = false;
  return m;
}

void MessageFactory::Return(brpc::RpcPBMessages* messages) {
  Messages* m = static_cast<Messages*>(messages);
  if (!m->answered) return;  // the answer is still to come, and with it the second time
  m->request.reset();
  m->response.reset();
  butil::return_object(m);
}

}  // namespace raftrig
