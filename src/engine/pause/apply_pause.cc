// How a requested pause changes the state.
#include "engine/state/applier.h"

namespace ae::engine {

Status Applier::apply(const JobPauseRequested& event) {
  if (event.withdrawn.value_or(false)) {
    if (!s_.pause_request) return corrupt_event("no pause is requested");
    s_.pause_request.reset();
    return {};
  }
  if (s_.pause_request) return corrupt_event("a pause is already requested");
  if (s_.ending) return corrupt_event("the job is ending");
  s_.pause_request = PendingPause{or_empty(event.by), or_empty(event.reason)};
  return {};
}

}  // namespace ae::engine
