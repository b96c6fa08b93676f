// Workload: the plans of the simulated jobs: random ones by number, and the small ones of the
// sweep.
//
// The plan of a number is always the same, and is compiled once. To add a kind of node, add a line
// to `kKinds` in random_plan.cc and, for the sweep, a job to small_jobs_*.cc. Threads: one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "json/value.h"
#include "plan/plan.h"
#include "plan/plan_cache.h"
#include "sim/sim_random.h"

namespace ae::sim {

struct SmallJob;

struct SimPlan {
  std::shared_ptr<const engine::Plan> plan;
  struct Wait {
    std::string type, key;  // of a message wait: the channel
  };
  std::vector<Wait> waits;  // that users can answer
  bool planner = false;     // its model makes the plan
  bool code = false;        // it is neither forked nor given another plan
};

SimPlan random_plan(std::uint64_t number);

class PlanBook {
 public:
  static constexpr std::uint64_t kPlans = 1500;
  const SimPlan& plan_by_number(std::uint64_t number);  // REQUIRES: number < kPlans
  std::shared_ptr<const engine::Plan> small(const SmallJob& job);
  // The plan of a child job with this input: `plan` is a number, or the name of one of
  // `small_children`. nullptr: there is none.
  std::shared_ptr<const engine::Plan> of_child(const Value& input);
  // By hash: for folding and verifying, and for the worlds that run them.
  engine::PlanCache& cache() { return cache_; }
  const engine::PlanSource& source() const { return cache_.source(); }

 private:
  std::map<std::uint64_t, SimPlan> plans_;
  std::map<std::string_view, std::shared_ptr<const engine::Plan>> small_;
  engine::PlanCache cache_{4 * kPlans};  // these, and plans that jobs get later
};

Value random_input(SimRandom& random);

// A changed plan for a job: one node added, removed, or with changed arguments; no node or all
// nodes changed.
struct Variation {
  Value task_graph;
  std::vector<Value> drop;  // ids of nodes of the previous plan
};
Variation vary(const Value& task_graph, SimRandom& random);

}  // namespace ae::sim
