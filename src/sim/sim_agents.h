// SimAgents: the agent of child jobs in one simulated process. The input of a child selects its
// plan.
//
// Threads: one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "runtime/service/new_job.h"
#include "sim/sim_loop.h"

namespace ae::sim {

class SimAgents final : public runtime::NewJobSource {
 public:
  using PlanOf = std::function<std::shared_ptr<const engine::Plan>(const Value& input)>;
  SimAgents(PlanOf plan_of, std::shared_ptr<SimProcess> process)
      : plan_of_(std::move(plan_of)), process_(std::move(process)) {}

  void make_child_request(runtime::ChildJobSpec spec,
                          async::Done<Result<runtime::NewJobRequest>> done) override {
    process_->post([this, spec = std::move(spec), done = std::move(done)]() mutable {
      done(request_of(std::move(spec)));
    });
  }

 private:
  Result<runtime::NewJobRequest> request_of(runtime::ChildJobSpec spec) const {
    runtime::NewJobRequest request{.job = spec.id, .agent = spec.agent};
    request.plan = plan_of_ ? plan_of_(spec.input) : nullptr;
    if (!request.plan) return fail(Code::input_invalid, "no plan has this number");
    request.input = std::move(spec.input);
    for (const auto& [name, label] : spec.labels.members()) {
      request.labels.emplace_back(std::string(name), label.as_string());
    }
    request.priority = spec.priority;
    request.queue = spec.queue.value_or("");
    return request;
  }

  PlanOf plan_of_;
  std::shared_ptr<SimProcess> process_;
};

}  // namespace ae::sim
