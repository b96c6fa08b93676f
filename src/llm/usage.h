// Usage: what an answer says of its tokens, as it is recorded for both dialects.
//
//   {"input_tokens"?, "output_tokens"?, "total_tokens"?, "cached_tokens"?, "reasoning_tokens"?, "incomplete"?: true}
//
// What is no number is not there. A total that is less than what was read and written is no total: it is their sum then.
// `incomplete`: of what was read or written the answer does not say all; it used `total_tokens`, or more. A budget then
// takes it for no less than it had reserved (plan/budget.h), and its cost is not known. Threads: pure functions.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>

#include "json/value.h"

namespace ae::llm {

constexpr std::int64_t kTokensMax = (std::int64_t{1} << 53) - 1;  // what a JSON number holds

// Of one direction: the sum of what is known of it.
struct Tokens {
  std::int64_t known = 0;
  bool has_known = false, is_complete = true;  // is any part of it known? all of it?
};
// `first` is said of every answer; one of `others` that is not there is 0.
Tokens tokens_of(const Value& first, std::initializer_list<const Value*> others = {});

struct Counts {
  Tokens input, output;
  const Value& total;  // that the answer calls so; these three: null = it does not say
  const Value& cached;
  const Value& reasoning;
};
// null: it counts nothing.
Value usage_value(const Counts& counts);

}  // namespace ae::llm
