// Usage: the token counts of an answer, in one format for all providers.
//
//   {"input_tokens"?, "output_tokens"?, "total_tokens"?, "cached_tokens"?, "reasoning_tokens"?,
//    "incomplete"?: true}
//
// Values that are not counts are left out. A total below the sum of input and output
// is replaced by that sum.
// `incomplete`: a count of input or output is missing; `total_tokens` is a lower bound. A budget
// then charges at least what it had reserved (plan/budget.h), and the cost is unknown.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>

#include "json/value.h"

namespace ae::llm {

constexpr std::int64_t kTokensMax = (std::int64_t{1} << 53) - 1;  // largest exact JSON number

// The counts of one direction, added up.
struct Tokens {
  std::int64_t known = 0;
  bool has_known = false, is_complete = true;  // some count is known; all counts are known
};
// `first` is required; a missing one of `others` counts as 0.
Tokens sum_tokens(const Value& first, std::initializer_list<const Value*> others = {});

struct Counts {
  Tokens input, output;
  const Value& total;  // the provider's total; these three: null = not given
  const Value& cached;
  const Value& reasoning;
};
// null: no counts.
Value usage_value(const Counts& counts);

}  // namespace ae::llm
