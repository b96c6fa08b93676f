// PlanCache: compiled plans by their hash. Jobs of one agent share one, and a log that holds its task graph is read
// without parsing that again (`open`, ValueLookup).
//
// A plan is found by its hash only for the very task graph that has this hash; any other is compiled, and says its own.
// Threads: one loop's; a copy of what it gives away may go anywhere.
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
  // When as many are kept, all are forgotten.
  explicit PlanCache(std::size_t plans_max = 1024);
  PlanCache(const PlanCache&) = delete;
  PlanCache& operator=(const PlanCache&) = delete;

  void keep(std::shared_ptr<const Plan> plan);
  // Fails as Plan::compile does.
  const PlanSource& source() const { return source_; }
  // Task graphs of the plans that are kept.
  const ValueLookup& known() const { return known_; }

 private:
  Result<std::shared_ptr<const Plan>> compiled(const Value& task_graph, std::string_view hash);

  const std::size_t plans_max_;
  std::unordered_map<Hash, std::shared_ptr<const Plan>> plans_;
  const PlanSource source_;  // both borrow this
  const ValueLookup known_;
};

}  // namespace ae::engine
