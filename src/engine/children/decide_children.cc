// How a decision awaits child jobs, and cancels those that are not needed any more.
#include <fmt/core.h>

#include "engine/children/children.h"
#include "engine/heart/decider.h"
#include "engine/heart/features.h"
#include "engine/heart/request.h"

namespace ae::engine {

// The try has created the child, or the child has ended. A job that ends awaits its children, too.
void Decider::await_child(const Step& step) {
  if (s_.has_ended_child(step)) return declare_try(step, false);
  if (step.call->questions->rounds > kQuestionRoundsMax) {
    return fail_step(step, to_text(OutcomeKind::input_required),
                     "the end of the child job cannot be read");
  }
  const std::string key = child_wait_key(s_, step);
  emit_of(step,
          WaitOpened{.correlation_key = key, .wait_type = std::string(to_text(WaitType::job))});
  // The child ended before its wait was opened.
  const auto early = s_.early_signals.find(key);
  if (early == s_.early_signals.end()) return;
  const BufferedMessage& kept = early->second.front();
  WaitCompleted& ended = emit_of<WaitCompleted>(step);
  ended.correlation_key = key;
  ended.outcome = "signalled";
  ended.signal_id = kept.id;
  ended.wait_type = to_text(WaitType::job);
  set_child_end(kept.payload, ended);
}

// The child gets the request with the commit of this event.
void Decider::cancel_child(const Wait& wait) {
  if (wait.child_cancelled) return;
  const Step& step = s_.steps[wait.step];
  emit_of<ChildCancelRequested>(step).child_job_id = child_of(s_, step).text.string();
}

// Of a job that ends. True: children are awaited, or their outcomes are to be recorded.
bool Decider::await_children() {
  bool has_outcomes = false;
  for (const std::uint32_t index : s_.todo) {
    const Step& step = s_.steps[index];
    if (is_full()) return true;
    const bool waits = step.phase == StepPhase::settled || step.phase == StepPhase::backoff;
    if (!waits || !s_.awaits_child(step)) continue;
    if (s_.has_ended_child(step)) {
      has_outcomes = true;
      if (s_.status == JobStatus::running) declare_try(step, false);
    } else if (step.call->outcome == OutcomeKind::input_required) {
      await_child(step);
    }
  }
  for (const auto& [key, wait] : s_.waits) {
    if (wait.type == WaitType::job && !is_full()) cancel_child(wait);
  }
  if (!decision_.events.empty()) return true;
  if (has_outcomes && s_.status == JobStatus::parked) emit(JobResumed{.by = "runtime"});
  return has_outcomes || s_.open_children > 0;
}

}  // namespace ae::engine
