// The conditions under which a model provider enforces a schema.
//
// OpenAI's strict mode requires a complete schema, Anthropic a closed one. Schema (schema.h)
// validates the schema itself; these functions check its structure only. Threads: pure functions.
#pragma once

#include "json/value.h"

namespace ae {

// Every object in it, at any depth, has `additionalProperties: false`.
bool is_closed(const Value& schema);

// It is closed, describes an object, requires every property that it names, and uses none of the
// keywords that strict mode rejects (allOf, oneOf, not, if, patternProperties, …).
bool is_complete(const Value& schema);

}  // namespace ae
