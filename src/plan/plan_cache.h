// PlanCache: compiled plans by hash. Jobs of one agent share a plan, and a log that contains its
// task graph is read without parsing the graph again (`open`, ValueLookup).
//
// A cached plan is returned only if the task graph equals its own, not merely for an equal hash;
// any other graph is compiled.
// Threads: one thread's; a returned plan may be used in any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <unordered_map>

#include "log/seal.h"
#include "plan/plan.h"

namespace ae::engine {

class PlanCache {
 public:
  // When the cache is full, it is cleared.
  explicit PlanCache(std::size_t plans_max = 1024);
  PlanCache(const PlanCache&) = delete;
  PlanCache& operator=(const PlanCache&) = delete;

  void insert(std::shared_ptr<const Plan> plan);
  // Another cache with the same plans, for another thread.
  std::unique_ptr<PlanCache> copy() const;
  // Fails as Plan::compile does.
  const PlanSource& source() const { return source_; }
  // Task graphs of the cached plans.
  const ValueLookup& lookup() const { return lookup_; }

 private:
  Result<std::shared_ptr<const Plan>> compiled(const Value& task_graph, std::string_view hash);

  const std::size_t plans_max_;
  std::unordered_map<Hash, std::shared_ptr<const Plan>> plans_;
  const PlanSource source_;  // both borrow this
  const ValueLookup lookup_;
};

}  // namespace ae::engine
