// Amounts of money are whole millionths: what the texts of prices and costs have in common.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/ascii.h"

namespace ae::engine {

constexpr std::uint64_t kNumberMax = (std::uint64_t{1} << 53) - 1;  // what a JSON number holds
constexpr std::uint64_t kMillion = 1'000'000;
constexpr std::size_t kDecimalsMax = 6;

inline bool is_digits(std::string_view text) { return std::ranges::all_of(text, is_digit); }

}  // namespace ae::engine
