#include "service.h"

#include <algorithm>
#include <cinttypes>
#include <memory>

#include <brpc/closure_guard.h>
#include <brpc/controller.h>
#include <butil/iobuf.h>
#include <butil/string_printf.h>

namespace raftrig {
namespace {

// Redirect tells who leads. A leader that does not take requests, as one that
// has just been elected or is handing over, does not send anybody to itself.
void Redirect(braft::Node* node, example::AtomicResponse* response) {
  response->set_success(false);
  const braft::PeerId leader = node->leader_id();
  if (!leader.is_empty() && leader != node->node_id().peer_id) {
    response->set_redirect(leader.to_string());
  }
}

class Call : public Pending {
 public:
  Call(const Command& command, braft::Node* node, google::protobuf::RpcController* controller,
       example::AtomicResponse* response, google::protobuf::Closure* done)
      : Pending(command), node_(node), controller_(controller), response_(response), done_(done) {}

  void Run() override {
    std::unique_ptr<Call> self(this);
    brpc::ClosureGuard done_guard(done_);
    if (status().ok()) {
      response_->set_success(result().success);
      response_->set_id(command().id);
      response_->set_new_value(result().new_value);
      response_->set_old_value(result().old_value);
    } else if (NeverAppended(status())) {
      Redirect(node_, response_);
    } else {
      static_cast<brpc::Controller*>(controller_)
          ->SetFailed(kOutcomeUnknown, "outcome unknown: %s", status().error_cstr());
    }
  }

 private:
  braft::Node* const node_;
  google::protobuf::RpcController* const controller_;
  example::AtomicResponse* const response_;
  google::protobuf::Closure* const done_;
};

}  // namespace

void AtomicServiceImpl::get(google::protobuf::RpcController* controller,
                            const example::GetRequest* request, example::AtomicResponse* response,
                            google::protobuf::Closure* done) {
  Propose({Command::kGet, request->id(), 0, 0}, controller, response, done);
}

void AtomicServiceImpl::exchange(google::protobuf::RpcController* controller,
                                 const example::ExchangeRequest* request,
                                 example::AtomicResponse* response,
                                 google::protobuf::Closure* done) {
  Propose({Command::kExchange, request->id(), 0, request->value()}, controller, response, done);
}

void AtomicServiceImpl::compare_exchange(google::protobuf::RpcController* controller,
                                         const example::CompareExchangeRequest* request,
                                         example::AtomicResponse* response,
                                         google::protobuf::Closure* done) {
  Propose({Command::kCompareExchange, request->id(), request->expected_value(),
           request->new_value()},
          controller, response, done);
}

void AtomicServiceImpl::Propose(const Command& command, google::protobuf::RpcController* controller,
                                example::AtomicResponse* response,
                                google::protobuf::Closure* done) {
  const int64_t term = machine_->LeaderTerm();
  if (term < 0) {
    brpc::ClosureGuard done_guard(done);
    return Redirect(node_, response);
  }
  char bytes[kCommandSize];
  EncodeCommand(command, bytes);
  butil::IOBuf data;
  data.append(bytes, sizeof(bytes));
  braft::Task task;
  task.data = &data;
  task.done = new Call(command, node_, controller, response, done);
  task.expected_term = term;
  node_->apply(task);
}

void StatusServiceImpl::status(google::protobuf::RpcController*, const StatusRequest*,
                               StatusReply* reply, google::protobuf::Closure* done) {
  brpc::ClosureGuard done_guard(done);
  const Machine::View view = machine_->Look();
  const bool leads = machine_->LeaderTerm() >= 0;
  braft::NodeStatus status;
  node_->get_status(&status);

  int leader = 0;
  if (leads) {
    leader = options_.id;
  } else if (status.leader_id != node_->node_id().peer_id) {
    const auto& peers = options_.peers;
    const auto it = std::find(peers.begin(), peers.end(), status.leader_id.addr);
    if (it != peers.end()) leader = static_cast<int>(it - peers.begin()) + 1;
  }
  reply->set_node(options_.id);
  reply->set_leads(leads);
  reply->set_leader(leader);
  reply->set_term(status.term);
  reply->set_applied(view.applied);
  reply->set_count(view.count);
  reply->set_digest(butil::string_printf("%016" PRIx64, view.digest));
  reply->set_version(Version());
  reply->set_log(log_);
}

}  // namespace raftrig
