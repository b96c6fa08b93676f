// re-plan: which steps of a job stay when its plan is replaced.
//
// A started node is carried over if a node of the new plan has the same id, kind, tool and
// arguments. It keeps its step, with result, keys, tries, open wait and path. The rest of the old
// plan is abandoned. A committed effect can only be abandoned if the request names its node
// (`drop`). Threads: pure functions. See docs/decisions/0018-re-plan.md.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/state/state.h"

namespace ae::engine {

// A node that must not be carried over, by its id in the old plan.
using DroppedNodes = std::set<std::string, std::less<>>;

struct Replan {
  struct CarriedStep {
    std::uint32_t step = 0, node = 0;  // index of the step now; of the node in the new plan
  };
  std::vector<CarriedStep> carried;  // by node of the new plan
  DroppedNodes lost;  // nodes of the old plan whose committed effects are not carried over
};
// The maximum cost of a comparison, in steps; the evaluation that exceeds it is the last one.
inline constexpr Work kReplanWorkMax = 10'000'000;
// Fails with plan_invalid: the comparison costs more than `work_max`. REQUIRES: no call is pending
// or of unknown outcome (`may_replan`).
Result<Replan> replan_of(const State& state, std::shared_ptr<const Plan> plan,
                         const DroppedNodes& drop, Work work_max = kReplanWorkMax);

// Has the call of this step, of a node or an item, had an effect, or may it have had one?
bool is_effect(const State& state, const Step& step);

// The nodes of this list whose result comes from another job. Only these can be dropped under the
// job's own plan: a dropped node then runs in this job, so that a repeated request drops nothing.
DroppedNodes kept_results(const State& state, const Value& drop);

// Why the plan cannot be replaced now: job_terminal, call_pending; unsupported: it has code.
// REQUIRES: the job has a plan.
Status may_replan(const State& state);

std::vector<CarriedNode> carried_list(const State& state, const Replan& replan);

}  // namespace ae::engine
