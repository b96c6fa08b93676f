// The timers, expiries and deadline that are due.
#include <utility>

#include "engine/heart/request.h"

namespace ae::engine {

Result<AppliedRequest> apply_request(const State& state, const ControlRequest&,
                                     const TimersRequest&, const DecisionContext& context) {
  AppliedRequest applied;
  if (is_terminal(state.status)) return applied;
  const auto fired = [&](std::string_view effect, Instant due) {
    applied.events.emplace_back(TimerFired{
        .due_at = due, .effect_id = std::string(effect), .value = Value(to_text(context.now))});
  };
  if (state.deadline && !state.deadline_fired && *state.deadline <= context.now) {
    // The job ends: its waits are cancelled, none of them fires.
    fired(kDeadlineTimer, *state.deadline);
  } else if (!state.ending && !state.is_paused()) {
    const Budget& budget = state.budget;
    if (budget.wall_until && !budget.wall_passed && *budget.wall_until <= context.now) {
      fired(kWallTimer, *budget.wall_until);
    }
    for (const auto& [key, wait] : state.waits) {
      if (wait.due_at && *wait.due_at <= context.now) {
        fired(state.steps[wait.step].id.text, *wait.due_at);
        applied.events.emplace_back(wait_completed_event(state, key, wait, "fired"));
      } else if (wait.expires_at && *wait.expires_at <= context.now) {
        fired(state.steps[wait.step].id.text + ":expiry", *wait.expires_at);
        applied.events.emplace_back(wait_completed_event(state, key, wait, "timed_out"));
      }
    }
  }
  applied.answer = Value::object({{"fired", static_cast<std::uint64_t>(applied.events.size())}});
  return applied;
}

}  // namespace ae::engine
