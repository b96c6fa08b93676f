// JobMessages: the tool that sends messages and signals to jobs of the store (agents/send_tool.h).
//
// The request has the external key of its call as its id, so the job recognises a repeated one. The
// addressee may be a child that another call of the sender creates at this moment: then that is
// awaited. The store refuses the request if the sender is not held any more by the process that
// sends it. Threads: the loop's.
#pragma once

#include <memory>

#include "async/alive.h"
#include "async/loop.h"
#include "runtime/service/child_jobs.h"
#include "runtime/service/request_submitter.h"
#include "tools/tool.h"

namespace ae::runtime {

class JobMessages final : public tools::Tool {
 public:
  // Borrows all.
  JobMessages(async::Loop& loop, const ChildJobsHost& host, RequestSubmitter& submitter)
      : loop_(loop), host_(host), submitter_(submitter) {}

  void perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done) override;
  // The answer of the request is awaited.
  void abandon(const InvocationId&, std::uint32_t) override {}

 private:
  struct Sending;
  static const engine::Step* creator_of(Sending& sending, const engine::State& sender);
  void send(std::shared_ptr<Sending> sending);
  void await_creation(const std::shared_ptr<Sending>& sending, const Error& error);

  async::Loop& loop_;
  const ChildJobsHost& host_;
  RequestSubmitter& submitter_;
  async::Alive alive_;
};

}  // namespace ae::runtime
