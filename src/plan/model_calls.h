// Model calls: validates requests before they are sent, and extracts the metadata of answers.
//
// In all other respects a model call is an ordinary invocation. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "json/value.h"
#include "log/events.h"
#include "log/records.h"
#include "plan/plan.h"

namespace ae::engine {

// Does the URL of an image in a plan begin with a literal scheme and host, or with
// data:image/…;base64, without ${ in them? Untrusted data must not choose the server.
bool has_literal_host(std::string_view url);

// Checks a node's messages and schema before any expression is evaluated. `messages` is a list or
// one ${ … }; a content is a text or a list of parts; the URL of an image has a literal host. Fails
// with plan_invalid.
Status check_model_args(const Value& args);

// Builds the arguments of a model call from the evaluated expressions: each message has a role and
// a content. A content that is not text becomes JSON, unless `written`, the arguments in the plan,
// has parts in that place: untrusted data never becomes an image. Fails with expression_failed.
Result<Value> build_model_request(const Value& written, Value args);

// Sets the fields of command_committed that identify the model and its usage; none for a tool call,
// which has no provider. `usage` has `cost_micros` if the plan has a price and the answer reports
// its tokens. `blind`: of the job (base/ids.h).
void set_committed_answer(std::string_view blind, const ToolPolicy& tool, const Value& arguments,
                          const Value& result, CommandCommitted& event);

// Are these arguments of a function of code an HTTP request to a model API?
bool is_model_request(const Value& arguments);
// Adds the cost to the usage of a function that called a model itself, if the plan has a price for
// this model. If only the sum of the tokens is known, all have the higher price.
Value with_cost(const Plan& plan, Value usage);
// Adds the cost to `usage`, if the plan has a price and the usage reports tokens.
Value with_cost(const ToolPolicy& tool, Value usage);

// The same as `metadata` of the effect record: {provider, model, temperature?, prompt_hash,
// usage?}; without the cost, which is recorded only in the log.
Value model_metadata(std::string_view blind, std::string_view provider, const Value& arguments,
                     const Value& result);

// Totals of model calls and of what their answers used.
struct ModelUsage {
  std::uint64_t tries = 0,
                withdrawn = 0;  // over all calls; withdrawn = ended before a byte was sent
  std::uint64_t input_tokens = 0, output_tokens = 0, total_tokens = 0;
  std::uint64_t cached_tokens = 0,
                reasoning_tokens = 0;  // included in input_tokens and output_tokens
  std::uint64_t cost_micros = 0;       // of the answers with a price (plan/price.h)
  std::uint64_t unpriced_calls = 0;    // answers without a price
};

// Adds the usage of one answer; it is empty if the answer did not report it.
void add_usage(const TokenUsage& usage, ModelUsage& total);
// {model_calls, input_tokens, output_tokens, total_tokens, cached_tokens, reasoning_tokens,
// cost_micros, unpriced_calls}
std::vector<Member> usage_members(const ModelUsage& usage);

}  // namespace ae::engine
