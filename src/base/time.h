// Instants and durations. An instant is microseconds since 1970-01-01T00:00:00Z; this file reads no
// clock.
// Threads: values.
#pragma once

#include <algorithm>
#include <chrono>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ae {

using Duration = std::chrono::microseconds;

struct Instant {
  std::int64_t us = 0;
  friend auto operator<=>(const Instant&, const Instant&) = default;
  // These saturate: a damaged row of a store can contain any number.
  friend Instant operator+(Instant t, Duration d) { return {sum(t.us, d.count())}; }
  friend Instant operator-(Instant t, Duration d) { return {difference(t.us, d.count())}; }
  // Limited to half the range of Duration, so that a delay can be added to it.
  friend Duration operator-(Instant a, Instant b) {
    constexpr std::int64_t kMost = INT64_MAX / 2;
    return Duration(std::clamp(difference(a.us, b.us), -kMost, kMost));
  }

 private:
  static constexpr std::int64_t sum(std::int64_t a, std::int64_t b) {
    std::int64_t result = 0;
    if (!__builtin_add_overflow(a, b, &result)) return result;
    return b > 0 ? INT64_MAX : INT64_MIN;
  }
  static constexpr std::int64_t difference(std::int64_t a, std::int64_t b) {
    std::int64_t result = 0;
    if (!__builtin_sub_overflow(a, b, &result)) return result;
    return b < 0 ? INT64_MAX : INT64_MIN;
  }
};

// The years 0000–9999, as four digits can represent.
inline constexpr Instant kInstantMin{-62'167'219'200'000'000};
inline constexpr Instant kInstantMax{253'402'300'799'999'999};

// True for an instant that to_text can represent.
constexpr bool is_representable(Instant instant) {
  return kInstantMin <= instant && instant <= kInstantMax;
}

// `YYYY-MM-DDThh:mm:ss.ffffffZ`, always 27 characters. An instant outside of the years above is
// written as the nearest one inside.
std::string to_text(Instant instant);
// RFC 3339 in UTC ("Z" or "+00:00"), with or without a fraction (at most 6 digits). Fails with
// input_invalid.
Result<Instant> instant_from_text(std::string_view text);

// `^[0-9]+(ms|s|m|h|d)$`, at most 36500d. Fails with input_invalid.
Result<Duration> duration_from_text(std::string_view text);
// The shortest text that duration_from_text reads back ("30s", "1500ms", "36h", "2d"). Rounds down
// to milliseconds; a negative duration is "0s".
std::string to_text(Duration duration);

}  // namespace ae
