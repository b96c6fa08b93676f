// What a model's answer is as JSON, held to the schema that was asked for: the same where it comes in and where it is
// decided what follows, years later too.
//
// An answer is `{"text", "finish_reason"?, "refusal"?, …}` (llm/conversation.h). Threads: pure functions.
#pragma once

#include "base/error.h"
#include "json/value.h"
#include "schema/schema.h"

namespace ae {

// Its text as JSON. Fails with tool_output_invalid: "is no JSON …" or "breaks the schema …".
// Adds what the schema cost to `work` (Schema::check).
Result<Value> parse_answer_json(const Schema& schema, const Value& answer,
                                std::size_t* work = nullptr);

// Could its model mend an answer that broke its schema? Not what it refused to say, nor what was cut off: it would be again.
bool is_repairable(const Value& answer);

}  // namespace ae
