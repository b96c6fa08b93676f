// What is particular to calls of models: a request is checked before it is made, and what is known of its answer is said.
//
// Everything else about them is what holds for every invocation. Threads: pure functions.
#pragma once

#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/value.h"
#include "engine/plan.h"
#include "engine/state.h"

namespace ae::engine {

// The arguments of a model's call, from what the node's expressions gave: each message with a role and a text. A content
// that is no text is said as JSON. Fails with expression_failed.
Result<Value> request_of(Value args);

// The fields of command_committed that say which model answered, and what it cost; none for a tool's call, which has no
// provider.
std::vector<Member> model_members(std::string_view provider, const Value& arguments,
                                  const Value& result);

// The same as `metadata` of the effect record: {provider, model, temperature?, prompt_hash, usage?}.
Value model_metadata(std::string_view provider, const Value& arguments, const Value& result);

// Adds what one answer cost.
void add_usage(const Value& usage, ModelUsage& total);
// {model_calls, input_tokens, output_tokens, total_tokens, cached_tokens, reasoning_tokens}
std::vector<Member> usage_members(const ModelUsage& usage);

}  // namespace ae::engine
