// Reads the members of a trace (GET /api/jobs/{id}/trace): an absent or unexpected value is an
// empty one.
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "base/time.h"
#include "cli/trace_text.h"
#include "json/value.h"

namespace ae::cli {

inline std::optional<Instant> instant_of(const Value& value) {
  if (!value.is_string()) return std::nullopt;
  const auto parsed = instant_from_text(value.as_string());
  return parsed ? std::optional(*parsed) : std::nullopt;
}

// Empty if it is not an array.
inline std::span<const Value> items_of(const Value& value) {
  return value.is_array() ? value.items() : std::span<const Value>();
}

inline std::string span_text(Duration duration) { return duration_shown(duration); }

inline std::string span_text(const Value& us) {
  return us.is_integer() ? span_text(Duration(us.as_int())) : std::string();
}

inline std::size_t natural_of(const Value& value) {
  return value.is_integer() && value.as_int() > 0 ? static_cast<std::size_t>(value.as_int()) : 0;
}

}  // namespace ae::cli
