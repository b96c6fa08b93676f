#include "sim/workload.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "json/json.h"
#include "sim/small_jobs.h"
#include "sim/task_graph.h"

namespace ae::sim {

const SimPlan& PlanBook::plan_by_number(std::uint64_t number) {
  if (auto it = plans_.find(number); it != plans_.end()) return it->second;
  SimPlan made = random_plan(number);
  cache_.insert(made.plan);
  return plans_.emplace(number, std::move(made)).first->second;
}

std::shared_ptr<const engine::Plan> PlanBook::small(const SmallJob& job) {
  std::shared_ptr<const engine::Plan>& plan = small_[job.name];
  if (!plan) {
    auto graph = parse_json(job.nodes);
    AE_CHECK(graph.has_value(), std::string(job.name));
    plan = compile_graph(*graph);
    cache_.insert(plan);
  }
  return plan;
}

std::shared_ptr<const engine::Plan> PlanBook::of_child(const Value& input) {
  const Value& plan = input["plan"];
  if (plan.is_integer() && plan.as_int() >= 0 && std::cmp_less(plan.as_int(), kPlans)) {
    return plan_by_number(static_cast<std::uint64_t>(plan.as_int())).plan;
  }
  const auto job = std::ranges::find_if(
      small_children(), [&](const SmallJob& one) { return plan == Value(one.name); });
  return job == small_children().end() ? nullptr : small(*job);
}

}  // namespace ae::sim
