// Recorded effects of a log: which event is the record of one, and of what kind it is (SPEC §5).
//
//   tool, llm         tool_invocation_finished: what was seen of a try; not that nobody saw what became of it
//   time              timer_fired, time_recorded
//   random, uuid      random_recorded, uuid_recorded
//   http              http_recorded
//   human             a person's answer: wait_completed of a human wait, or the decision about a call (approval, doubt) or
//                     about what a call changed
//
// The record of an effect is its event. Only tools and models leave a second copy beside the log, for the time between what
// was seen and the log (docs/decisions/0020-effects-are-events.md). Threads: short-lived, one owner.
#pragma once

#include <string_view>
#include <unordered_set>

#include "base/ids.h"
#include "json/value.h"
#include "log/event.h"

namespace ae::engine {

class EffectKinds {
 public:
  // The kind of the effect that this event records; "" = it records none. REQUIRES: all events of the log before it have
  // been shown.
  std::string_view kind_of(const Event& event);

 private:
  std::unordered_set<InvocationId> of_models_;
};

// {at, effect_id, kind, node_id, seq, step_id, try, type}: for a list of them. `effect_id` names it in its event:
// invocation_id, effect_id, correlation_key or decision_id.
Value effect_entry(const Event& event, std::string_view kind);

}  // namespace ae::engine
