// Usage: sums that no provider's numbers can overflow.
#include "llm/usage.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "llm/conversation.h"

namespace ae::llm {
namespace {

// Each operand is at most kTokensMax.
std::int64_t sum(std::int64_t a, std::int64_t b) { return std::min(a + b, kTokensMax); }

void add(Tokens& tokens, const Value& count) {
  if (!is_count(count)) {
    tokens.is_complete = false;
    return;
  }
  tokens.known = sum(tokens.known, count.as_int());
  tokens.has_known = true;
}

}  // namespace

Tokens sum_tokens(const Value& first, std::initializer_list<const Value*> others) {
  Tokens tokens;
  add(tokens, first);
  for (const Value* other : others) {
    if (!other->is_null()) add(tokens, *other);
  }
  return tokens;
}

Value usage_value(const Counts& counts) {
  const auto& [input, output, total, cached, reasoning] = counts;
  std::vector<Member> members;
  if (input.is_complete) members.emplace_back("input_tokens", input.known);
  if (output.is_complete) members.emplace_back("output_tokens", output.known);
  if (input.has_known || output.has_known || is_count(total)) {
    const std::int64_t reported = is_count(total) ? total.as_int() : 0;
    members.emplace_back("total_tokens", std::max(reported, sum(input.known, output.known)));
  }
  if (is_count(cached)) members.emplace_back("cached_tokens", cached);
  if (is_count(reasoning)) members.emplace_back("reasoning_tokens", reasoning);
  if (members.empty()) return {};
  if (!input.is_complete || !output.is_complete) members.emplace_back("incomplete", true);
  return Value::object(std::move(members));
}

}  // namespace ae::llm
