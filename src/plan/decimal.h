// Parts common to price and cost texts. Amounts of money are whole millionths.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/ascii.h"

namespace ae::engine {

// The largest integer of a JSON number
constexpr std::uint64_t kNumberMax = (std::uint64_t{1} << 53) - 1;
constexpr std::uint64_t kMillion = 1'000'000;
constexpr std::size_t kDecimalsMax = 6;

inline bool is_digits(std::string_view text) { return std::ranges::all_of(text, is_digit); }

}  // namespace ae::engine
