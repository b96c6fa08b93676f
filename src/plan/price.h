// Price: the price of a model's tokens, and the cost of an answer, in integers.
//
// The unit is a millionth of the currency of the agents file; no currency is stored or converted.
// The price is in the plan, so the cost of an answer follows from the log alone. Threads: pure
// functions.
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
  std::optional<std::uint64_t> cached;  // for cached input tokens; absent: same as `input`
};

constexpr std::uint64_t kPriceMax = 1'000'000'000'000;  // one unit of the currency per token

// "2.50" per million tokens is 2,500,000. At most six digits after the point, at most 1,000,000.
// Fails with input_invalid.
Result<std::uint64_t> price_from_text(std::string_view decimal);

// Reads the stored form. Fails with plan_invalid.
Result<Price> price_of(const Value& stored);
Value to_json(const Price& price);

// Cost of an answer, rounded half up to a whole millionth; at most 2^53-1. nullopt if `usage` does
// not report both input and output tokens.
std::optional<std::uint64_t> cost_micros(const Price& price, const Value& usage);

}  // namespace ae::engine
