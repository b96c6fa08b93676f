// Chat Completions: translates requests and answers to and from the API of
// OpenAI and compatible servers.
//
// Pure: values in, values out. Recorded requests and answers have one format for all
// providers (conversation.h); only this file knows this provider's. The record contains the
// complete answer, not the stream.
// Threads: pure functions.
#pragma once

#include "base/error.h"
#include "json/value.h"

namespace ae::llm {

// A template for tools/http, from the endpoint of a model:
//   {"base_url", "api_key"?: "secret:NAME", "max_tokens_name"?: "max_tokens"}
// `base_url` is a string template without expressions (a literal ${ is escaped), without a query; a
// trailing slash is optional.
Value chat_transport(const Value& settings);

// Translates a recorded request into the provider's. Fails with input_invalid.
Result<Value> chat_request(const Value& request, const Value& settings);

// Translates the provider's response into the recorded answer. `blocks` holds visible reasoning
// ({"type": "reasoning_content", "reasoning_content"}), which such servers require back together
// with the results of tool calls. An answer without text (refused, filtered, cut off) has the text
// "". Fails with tool_output_invalid; the message is the reason in the record.
Result<Value> chat_answer(const Value& request, const Value& body);

}  // namespace ae::llm
