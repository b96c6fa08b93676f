// How the plan that a model made takes over: it must follow from the plan before it
// and the recorded answer.
#include "engine/planner/planner.h"
#include "engine/state/applier.h"

namespace ae::engine {

// Is it the plan that the planner's answer makes, in that version? An erased answer is not checked.
Status Applier::check_follows_from_answer(const PlanGenerated& event, const Plan& plan) const {
  if (!awaits_plan(s_)) return corrupt_event("no planner has made a plan");
  if (event.planned_by != plan_author_of(s_))
    return corrupt_event("another answer than its own made it");
  const Step& planner_step = s_.steps.front();
  if (planner_step.erased) return {};
  AE_ASSIGN(const auto made,
            plan_from_answer(*s_.plan, planner_step.result, or_empty(event.planner_version)));
  if (made->hash != plan.hash)
    return corrupt_event("it is another plan than the model's answer makes");
  return {};
}

}  // namespace ae::engine
