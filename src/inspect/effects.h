// EffectKinds: which events of a log record an effect, and the kind of the effect (SPEC §5).
//
//  tool, llm         tool_invocation_finished with an observed outcome; not one that closes a try
//                    without observation
//  time              timer_fired, time_recorded
//  random, uuid      random_recorded, uuid_recorded
//  http              http_recorded
//  human             a human answer: wait_completed of a human wait, or the decision about a call
//                    (approval, unknown outcome) or about an external change
//
// The event is the record of the effect. Only tools and models leave a second copy in a side
// record, for the time between the observation and the log
// (docs/decisions/0020-effects-are-events.md).
// Threads: short-lived, one owner.
#pragma once

#include <optional>
#include <string_view>
#include <unordered_set>

#include "base/ids.h"
#include "json/value.h"
#include "log/event.h"

namespace ae::engine {

// The step for which the event records a time, a random number or a UUID: the result of the step, or
// a value of code. nullopt: none.
std::optional<StepId> recorded_step_of(const Event& event);

class EffectKinds {
 public:
  // The kind of the effect that this event records; "" = none. REQUIRES: called for all earlier
  // events of the log, in order.
  std::string_view kind_of(const Event& event);

 private:
  std::unordered_set<InvocationId> of_models_;
};

// An entry for lists of effects: {at, effect_id, kind, node_id, seq, step_id, try, type}.
// `effect_id` is the effect's id in its event: invocation_id, effect_id, correlation_key or
// decision_id.
Value effect_entry(const Event& event, std::string_view kind);

}  // namespace ae::engine
