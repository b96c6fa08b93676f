// Price: what the tokens of a model cost, and so what an answer cost, in integers.
//
// The unit is a millionth of whatever currency the agents file counts in: no currency is stored, none is converted. The
// price stands in the plan, so that what an answer cost follows from the log alone. Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "json/value.h"

namespace ae::engine {

// Millionths per million tokens. Stored: {"input", "output", "cached"?}, integers.
struct Price {
  std::uint64_t input = 0, output = 0;
  std::optional<std::uint64_t> cached;  // of the input; without: as the rest of it
};

constexpr std::uint64_t kPriceMax = 1'000'000'000'000;  // one unit of the currency per token

// "2.50" per million tokens is 2,500,000. At most six digits behind the point, at most 1,000,000. Fails with input_invalid.
Result<std::uint64_t> price_from_text(std::string_view decimal);

// As it stands in a plan. Fails with plan_invalid.
Result<Price> price_of(const Value& stored);
Value to_json(const Price& price);

// What an answer cost, to the nearest millionth, a half up; at most 2^53-1. Nothing when `usage` does not count the
// tokens of both directions.
std::optional<std::uint64_t> cost_micros(const Price& price, const Value& usage);

}  // namespace ae::engine
