// What a provider of models wants of a schema before it promises to keep to it.
//
// It says which values there are, and leaves nothing open: OpenAI's strict mode wants it complete, Anthropic's closed. The
// schema itself is judged by Schema (schema.h); this looks at its shape only. Threads: pure functions.
#pragma once

#include "json/value.h"

namespace ae {

// Every object of it, at whatever depth, has `additionalProperties: false`.
bool is_closed(const Value& schema);

// It is closed, describes an object, requires every property that it names, and uses none of the keywords that
// strict mode refuses (allOf, oneOf, not, if, patternProperties, …).
bool is_complete(const Value& schema);

}  // namespace ae
