// What is particular to calls of models: a request is checked before it is made, and what is known of its answer is said.
//
// Everything else about them is what holds for every invocation. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "json/value.h"
#include "log/events.h"
#include "plan/plan.h"

namespace ae::engine {

// Does the URL of an image, as a plan writes it, begin with its scheme and host, or with data:image/…;base64, and no ${ in
// them? What a stranger says chooses no server.
bool has_literal_host(std::string_view url);

// A node's messages and schema as the plan has them, before any expression is evaluated: a list, or one ${ … }; a content
// is a text, or parts; the URL of an image names its host in the plan. Fails with plan_invalid.
Status check_model_args(const Value& args);

// The arguments of a model's call, from what the node's expressions gave: each message with a role and a content. A content
// that is no text is said as JSON, unless `written`, the arguments in the plan, has parts in its place: what a stranger
// gave never becomes an image. Fails with expression_failed.
Result<Value> build_model_request(const Value& written, Value args);

// The fields of command_committed that say which model answered, and what it cost; none for a tool's call, which has no
// provider. `usage` has `cost_micros` when the plan knows the price and the answer counts its tokens.
// `blind`: of the job (base/ids.h).
CommandCommitted committed_answer(std::string_view blind, const ToolPolicy& tool,
                                  const Value& arguments, const Value& result);

// `usage` with what it cost, where the plan knows the price and the usage counts tokens.
Value with_cost(const ToolPolicy& tool, Value usage);

// The same as `metadata` of the effect record: {provider, model, temperature?, prompt_hash, usage?}; what it cost is
// the log's to say.
Value model_metadata(std::string_view blind, std::string_view provider, const Value& arguments,
                     const Value& result);

// What models were asked, and what their answers cost.
struct ModelUsage {
  std::uint64_t tries = 0, withdrawn = 0;  // of all calls; withdrawn = before a byte was sent
  std::uint64_t input_tokens = 0, output_tokens = 0, total_tokens = 0;
  std::uint64_t cached_tokens = 0, reasoning_tokens = 0;  // parts of the above
  std::uint64_t cost_micros = 0;     // of the answers that have a price (plan/price.h)
  std::uint64_t unpriced_calls = 0;  // answers that have none
};

// Adds what one answer cost; `usage` is null when it did not say.
void add_usage(const Value& usage, ModelUsage& total);
// {model_calls, input_tokens, output_tokens, total_tokens, cached_tokens, reasoning_tokens, cost_micros, unpriced_calls}
std::vector<Member> usage_members(const ModelUsage& usage);

}  // namespace ae::engine
