#include "sim/workload.h"

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

}  // namespace ae::sim
