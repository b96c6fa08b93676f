// How a decision drains a job that pauses.
#include "engine/heart/decider.h"

namespace ae::engine {

// A pause is requested: nothing starts, results are recorded, calls in flight are awaited.
void Decider::drain_for_pause() {
  for (std::uint32_t index : s_.todo) {
    if (is_full() || failed_) break;
    const Step& step = s_.steps[index];
    switch (step.phase) {
      case StepPhase::settled:
      case StepPhase::recorded:
      case StepPhase::committed:
      case StepPhase::answered:
      case StepPhase::refused:
      case StepPhase::done:
        this->decide_step(index);
        break;
      case StepPhase::mapping:
        if (step.map->failure || step.map->started == step.map->results.size())
          this->decide_step(index);
        break;
      case StepPhase::looping:
        if (can_only_conclude(step)) this->decide_step(index);
        break;
      default:
        break;
    }
  }
  if (!decision_.events.empty()) return;
  if (s_.has_live_call()) {
    if (auto due = s_.next_due()) decide_again_at(*due);
    return;
  }
  if (s_.nodes_left == 0) return complete_job();
  decision_.events.push_back(paused_event(s_.pause_request->reason));
  decision_.release = true;
}

}  // namespace ae::engine
