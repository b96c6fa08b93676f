// recorded_value: the results of tools that make no call: the time, a random number, a UUID.
// `decide` draws a value from its DecisionContext and records it in the commit that decides on the
// step; from then on it is replayed.
//
//   time     {}                      {"ms": integer, "time": text}   the store's clock, in
//                                    milliseconds since 1970 and as text
//   random   {}                      a number in [0, 1), of 53 bits
//            {"min": n, "max": m}    an integer from n to m, both included
//   uuid     {"version"?: 4 | 7}     a lower-case UUID; default: version 7, from the store's clock
//
// Pure. Threads: pure functions. See docs/decisions/0070-time-random-uuid.md.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "engine/heart/decide.h"
#include "log/event.h"

namespace ae::engine {

std::string_view to_text(RecordedKind records);
std::optional<RecordedKind> recorded_kind_of(std::string_view text);  // time, random, uuid
// time_recorded, random_recorded, uuid_recorded. REQUIRES: not RecordedKind::nothing.
EventType recorded_event_type(RecordedKind records);
EventBody make_recorded_event(RecordedKind records, std::string effect_id, Value value);
// The kind of value in events of this type; nothing: none.
RecordedKind recorded_kind_of(EventType type);
// The schema of a tool's arguments. `check_recorded_args` checks what the schema cannot express.
Value args_schema_of(RecordedKind records);
// Fails with input_invalid: arguments that the tool does not accept.
Status check_recorded_args(RecordedKind records, const Value& args);
// Can a call with these `args` have this value?
bool is_possible_value(RecordedKind records, const Value& args, const Value& value);
// REQUIRES: check_recorded_args succeeds.
Value draw_value(RecordedKind records, const Value& args, const DecisionContext& context,
                 const StepId& step);

// "<step>:time", "<step>:random", "<step>:uuid".
std::string effect_id(const StepId& step, RecordedKind records);
// The step whose value is in an event with this effect_id. nullopt: another effect, for example the
// jitter of a back-off ("<step>:random:<try>").
std::optional<StepId> step_of_effect(std::string_view effect_id, RecordedKind records);

}  // namespace ae::engine
