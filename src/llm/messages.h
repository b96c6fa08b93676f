// Messages: how a model is asked and what it answered, as Anthropic and those who speak its language say it.
//
// Pure, as chat_completions.h, its sibling. What differs: what the system says stands apart, results of tools are said by
// the user, neighbours of one role are one turn, thoughts are signed and come back as they were, an answer has a limit.
// Threads: pure functions.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "json/value.h"

namespace ae::llm {

// A template for tools/http, made of {"base_url", "api_key"?: "secret:NAME"}; `base_url` as in chat_completions.h.
Value messages_transport(const Value& settings);

// What is sent, made of what is recorded. Fails with input_invalid: also for a request that has no message but the
// system's, and for a schema that leaves an object open, which the provider refuses.
Result<Value> messages_request(const Value& request);

// What is recorded, made of what came back. `blocks` holds the thoughts. Of `usage`, `input_tokens` counts all that was
// read, also from the cache and into it. Fails with tool_output_invalid.
Result<Value> messages_answer(const Value& request, const Value& body);

}  // namespace ae::llm
