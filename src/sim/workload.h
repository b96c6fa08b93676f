// Workload: the plans that simulated jobs run. Random ones by number, and the small ones of the sweep.
//
// A plan of a number is always the same, and compiled once. To add a kind of node, add a line to `kKinds` in
// workload.cc and, if the sweep is to cover it, a plan to `small_jobs`. Threads: one.
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

// What somebody does to a job of the sweep: each so long after the one before was answered, and when the job is so.
struct Action {
  Duration after;
  engine::ControlRequest act = {};
  std::string_view when = {};  // the job's status; "" = whatever it is
  enum class Kind : std::uint8_t { act, fork, mutate, blind, see } kind = Kind::act;
  bool of_fork = false;  // it is done to the fork
  std::string_view at_node =
      {};  // of a fork: begins when this node was done; "" = where the job failed
  std::optional<Value> input = {};
};

// What happens to a job of the sweep besides crashes.
struct SmallJob {
  std::string_view name;
  std::string_view nodes;  // JSON of the task graph, without its tools
  std::vector<Action> actions = {};
  std::string_view answer =
      {};  // to whoever asks for an approval: approve or reject; "" = nobody answers
  std::string_view confirm = "accept";  // to whoever asks whether a change is well: accept or fail
  // How else it may end when a crash hits it: each is "status" or "status:code".
  std::vector<std::string_view> may_end = {};
  bool races = false;  // who comes first decides how it ends: only the rules judge
  bool forked() const {
    return std::ranges::any_of(
        actions, [](const Action& action) { return action.kind == Action::Kind::fork; });
  }
  bool cancelled() const {
    return std::ranges::any_of(actions, [](const Action& action) {
      return action.act.kind == engine::ControlRequest::Kind::cancel;
    });
  }
};
const std::vector<SmallJob>& small_jobs();

struct SimPlan {
  std::shared_ptr<const engine::Plan> plan;
  struct Wait {
    std::string type, key;  // of a message wait: its channel
  };
  std::vector<Wait> waits;  // that people can answer
  bool planner = false;     // its model plans it
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
  engine::PlanCache cache_{4 * kPlans};  // these, and others that jobs get
};
Value random_input(SimRandom& random);

// Another plan for a job: with a node more, one less, one that is called otherwise, none changed, or all of them.
struct Variation {
  Value task_graph;
  std::vector<Value> drop;  // nodes of the plan before, by their ids
};
Variation vary(const Value& task_graph, SimRandom& random);

}  // namespace ae::sim
