// Workload: the plans of the simulated jobs: random ones by number, and the small ones of the
// sweep.
//
// The plan of a number is always the same, and is compiled once. To add a kind of node, add a line
// to `kKinds` in workload.cc and, for the sweep, a job to `small_jobs`. Threads: one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/heart/ingest.h"
#include "engine/state/state.h"
#include "plan/plan_cache.h"
#include "sim/sim_loop.h"

namespace ae::sim {

// An action on a job of the sweep: runs `after` the previous one was answered, once the job has the
// status `when`.
struct Action {
  Duration after;
  engine::ControlRequest request = {};
  std::string_view when = {};  // the job's status; "" = any
  enum class Kind : std::uint8_t {
    request,
    fork,
    mutate,
    verifiers_unreachable,
    verifiers_reachable
  } kind = Kind::request;
  bool of_fork = false;           // the action is on the fork
  std::string_view at_node = {};  // of a fork: at the end of this node; "" = where the job failed
  std::optional<Value> input = {};
};

// A job of the sweep, and what happens to it besides crashes.
struct SmallJob {
  std::string_view name;
  std::string_view nodes;  // JSON of the task graph, without its tools
  std::vector<Action> actions = {};
  std::string_view answer = {};         // to approvals: approve or reject; "" = no answer
  std::string_view confirm = "accept";  // to verification mismatches: accept or fail
  // Other possible ends after a crash: each is "status" or "status:code".
  std::vector<std::string_view> may_end = {};
  bool races = false;  // the end depends on timing: only the rules are checked
  bool forked() const {
    return std::ranges::any_of(
        actions, [](const Action& action) { return action.kind == Action::Kind::fork; });
  }
  bool cancelled() const {
    return std::ranges::any_of(
        actions, [](const Action& action) { return action.request.is<engine::CancelRequest>(); });
  }
};
const std::vector<SmallJob>& small_jobs();

struct SimPlan {
  std::shared_ptr<const engine::Plan> plan;
  struct Wait {
    std::string type, key;  // of a message wait: the channel
  };
  std::vector<Wait> waits;  // that users can answer
  bool planner = false;     // its model makes the plan
};

class PlanBook {
 public:
  static constexpr std::uint64_t kPlans = 1500;
  const SimPlan& plan_by_number(std::uint64_t number);  // REQUIRES: number < kPlans
  std::shared_ptr<const engine::Plan> small(const SmallJob& job);
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
