// Values of events in the form of the state, and the error for an event that is not possible.
//
// Only `apply` uses them. Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "engine/state/state.h"
#include "json/value.h"
#include "log/decisions.h"
#include "log/event.h"
#include "log/field_names.h"

namespace ae::engine {

inline std::unexpected<Error> corrupt(const State& state, EventType type, std::string_view why) {
  return fail(Code::log_corrupt, "event {} ({}): {}", state.seq + 1, event_name(type), why);
}

inline Failure failure_of(const RecordedError& error) {
  const Value& message = error.message.value;
  return {error.code, message.is_string() ? message.as_string() : std::string()};
}

inline Failure failure_of(const RefusedCall& refused) {
  return {refused.code, or_empty(refused.message)};
}

inline Failure failure_of(const Value& error) {
  return {std::string(error.text(field::code)), std::string(error.text("message"))};
}

inline std::optional<std::int64_t> maybe_int(const Value& payload, std::string_view key) {
  const Value& value = payload[key];
  return value.is_integer() ? std::optional(value.as_int()) : std::nullopt;
}

ResultType result_type_of(std::string_view text);  // none: unknown text

}  // namespace ae::engine
