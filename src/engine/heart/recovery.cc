// The events of a recovery.
#include "engine/heart/recovery.h"

#include <algorithm>

namespace ae::engine {

bool is_recovery(const State& state) { return !state.attempt.empty(); }

EventBody recovery_started_event(const State& state, const AttemptId& begins) {
  return RecoveryStarted{.attempt_id = begins.text,
                         .detail = RecoveryStart{.after = state.attempt.text,
                                                 .seq = static_cast<std::int64_t>(state.seq),
                                                 .status = std::string(to_text(state.status))}};
}

EventBody recovery_completed_event(const State& state, const AttemptId& begins,
                                   const RecoveryCounts& found) {
  RecoveredCalls calls{.caught_up = static_cast<std::int64_t>(found.caught_up),
                       .pending = static_cast<std::int64_t>(found.pending)};
  for (const Step& step : state.steps) {
    if (step.committed) calls.injected++;
    if (!step.call || step.committed) continue;
    const bool outcome_unknown =
        step.phase == StepPhase::in_doubt || step.phase == StepPhase::probing;
    if (!step.call->open && !outcome_unknown) continue;
    if (!outcome_unknown && state.on_in_doubt_of(step) == OnInDoubt::resend) {
      calls.resent++;
    } else {
      calls.in_doubt++;
    }
  }
  return RecoveryCompleted{.attempt_id = begins.text, .detail = calls};
}

}  // namespace ae::engine
