// PlanCache: see plan_cache.h.
#include "plan/plan_cache.h"

#include <utility>

namespace ae::engine {

PlanCache::PlanCache(std::size_t plans_max)
    : plans_max_(plans_max),
      source_([this](const Value& graph, std::string_view hash) { return compiled(graph, hash); }),
      lookup_([this](const Hash& hash) {
        const auto found = plans_.find(hash);
        return found == plans_.end() ? nullptr : &found->second->task_graph;
      }) {}

void PlanCache::insert(std::shared_ptr<const Plan> plan) {
  if (plans_.contains(plan->hash)) return;
  if (plans_.size() >= plans_max_) plans_.clear();
  plans_.emplace(plan->hash, std::move(plan));
}

std::unique_ptr<PlanCache> PlanCache::copy() const {
  auto other = std::make_unique<PlanCache>(plans_max_);
  other->plans_ = plans_;
  return other;
}

Result<std::shared_ptr<const Plan>> PlanCache::compiled(const Value& task_graph,
                                                        std::string_view hash) {
  if (const auto wanted = hash_from_hex(hash)) {
    const auto found = plans_.find(*wanted);
    if (found != plans_.end() && found->second->task_graph == task_graph) return found->second;
  }
  AE_ASSIGN(auto plan, Plan::compile(task_graph));
  insert(plan);
  return plan;
}

}  // namespace ae::engine
