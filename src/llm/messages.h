// Messages: translates requests and answers to and from the API of
// Anthropic and compatible servers.
//
// Pure, like chat_completions.h. Differences: the system prompt is a separate member, tool results
// are sent as the user, consecutive messages of one role form one turn, thinking blocks are signed
// and sent back unchanged, an answer has a token limit.
// Threads: pure functions.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "json/value.h"

namespace ae::llm {

// A template for tools/http, from {"base_url", "api_key"?: "secret:NAME"}; `base_url` as in
// chat_completions.h.
Value messages_transport(const Value& settings);

// Translates a recorded request into the provider's. Fails with input_invalid, also for a request
// with system messages only, and for a schema with an open object, which the provider rejects.
Result<Value> messages_request(const Value& request);

// Translates the provider's response into the recorded answer. `blocks` holds the thinking blocks.
// `input_tokens` of `usage` includes cache reads and cache writes. Fails with tool_output_invalid.
Result<Value> messages_answer(const Value& request, const Value& body);

}  // namespace ae::llm
