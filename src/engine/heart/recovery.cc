// The events of a recovery.
#include "engine/heart/recovery.h"

#include <algorithm>

#include "log/field_names.h"

namespace ae::engine {

bool is_recovery(const State& state) { return !state.attempt.empty(); }

EventBody recovery_started_event(const State& state, const AttemptId& begins) {
  return RecoveryStarted{
      .attempt_id = begins.text,
      .detail = Value::object(
          {{"after", state.attempt.text}, {"seq", state.seq}, {"status", to_text(state.status)}})};
}

EventBody recovery_completed_event(const State& state, const AttemptId& begins,
                                   const RecoveryCounts& found) {
  std::uint64_t injected = 0, resent = 0, in_doubt = 0;
  for (const Step& step : state.steps) {
    if (step.committed) injected++;
    if (!step.call || step.committed) continue;
    const bool outcome_unknown =
        step.phase == StepPhase::in_doubt || step.phase == StepPhase::probing;
    if (!step.call->open && !outcome_unknown) continue;
    if (!outcome_unknown && state.tool_of(step).on_in_doubt == OnInDoubt::resend) {
      resent++;
    } else {
      in_doubt++;
    }
  }
  return RecoveryCompleted{.attempt_id = begins.text,
                           .detail = Value::object({{field::caught_up, found.caught_up},
                                                    {field::in_doubt, in_doubt},
                                                    {"injected", injected},
                                                    {"pending", found.pending},
                                                    {"resent", resent}})};
}

}  // namespace ae::engine
