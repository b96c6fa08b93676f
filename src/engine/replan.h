// re-plan: what of a job stays when it gets another plan.
//
// A node of the new plan with the same id, kind, tool and arguments as one that has begun is that one: it keeps its step,
// with result, keys, tries, open wait and path. Everything else of the old plan is let go. An effect that was
// committed and would be let go so must be named by who re-plans (`drop`). Threads: pure functions.
// See docs/decisions/0018-re-plan.md.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/state.h"

namespace ae::engine {

// A node that is not to be carried, by its id in the old plan.
using Dropped = std::set<std::string, std::less<>>;

struct Replan {
  struct Carry {
    std::uint32_t step = 0, node = 0;  // index of the step now; of the node in the new plan
  };
  std::vector<Carry> carried;  // by node of the new plan
  Dropped lost;                // nodes of the old plan whose committed effects are not carried
};
// What a comparison may cost at most, in steps; the evaluation that exceeds it is the last one.
inline constexpr Work kReplanWorkMax = 10'000'000;
// Fails with plan_invalid: the comparison costs more than `work_max`. REQUIRES: nothing is pending or in doubt
// (`may_replan`).
Result<Replan> replan_of(const State& state, std::shared_ptr<const Plan> plan, const Dropped& drop,
                         Work work_max = kReplanWorkMax);

// Has the step's call, of a node or an item, changed the world, or may it have?
bool is_effect(const State& state, const Step& step);

// The nodes of this list whose result another job gave. Only these can be dropped under the job's own plan: a dropped node then
// runs in this job, so that the same request again drops nothing.
Dropped kept_results(const State& state, const Value& drop);

// Why the job cannot have another plan now: job_terminal, call_pending.
Status may_replan(const State& state);

// {node_id, step_id} of each.
Value carried_list(const State& state, const Replan& replan);

}  // namespace ae::engine
