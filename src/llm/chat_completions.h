// Chat Completions: how a model is asked and what it answered, as OpenAI and those who speak its language say it.
//
// Pure: values in, values out. A recorded request and a recorded answer are in our words (conversation.h), the same for all
// providers; this is the one place that knows this provider's. Not streamed: the answer that came whole is the one that is
// recorded. Threads: pure functions.
#pragma once

#include "base/error.h"
#include "json/value.h"

namespace ae::llm {

// Where a model is and how to reach it; a template for tools/http is made of it.
//   {"base_url", "api_key"?: "secret:NAME", "max_tokens_name"?: "max_tokens"}
// `base_url` is a string template without expressions (a literal ${ is escaped), without a query, with or without
// a last slash.
Value chat_transport(const Value& settings);

// What is sent, made of what is recorded. Fails with input_invalid.
Result<Value> chat_request(const Value& request, const Value& settings);

// What is recorded, made of what came back. `blocks` holds what a server reasoned aloud beside its answer
// ({"type": "reasoning_content", "reasoning_content"}): who makes calls of tools there wants it back with their results.
// An answer without words (refused, filtered, cut at once) has the text "". Fails with tool_output_invalid; the message is
// the reason that its record shows.
Result<Value> chat_answer(const Value& request, const Value& body);

}  // namespace ae::llm
