// Values for views and traces: null stands for a missing one.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/time.h"
#include "json/value.h"

namespace ae::engine {

inline Value or_null(std::string_view text) { return text.empty() ? Value() : Value(text); }
inline Value number(std::uint64_t n) { return {n}; }
inline Value or_null(const std::optional<Instant>& instant) {
  return instant ? Value(to_text(*instant)) : Value();
}

}  // namespace ae::engine
