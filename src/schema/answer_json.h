// Parses a model's answer as JSON and validates it against the requested schema. Used when the
// answer arrives and when the next step is decided, so that a replay gives the same result.
//
// An answer is `{"text", "finish_reason"?, "refusal"?, …}` (llm/conversation.h). Threads: pure
// functions.
#pragma once

#include "base/error.h"
#include "json/value.h"
#include "schema/schema.h"

namespace ae {

// The answer's text as JSON. Fails with tool_output_invalid: "is invalid JSON …" or "breaks the
// schema …". Adds the cost of the schema to `work` (Schema::check).
Result<Value> parse_answer_json(const Schema& schema, const Value& answer,
                                std::size_t* work = nullptr);

// True if the model may be able to correct an answer that breaks its schema. False for a refusal
// and for an answer that was cut off: a repeat would end the same way.
bool is_repairable(const Value& answer);

}  // namespace ae
