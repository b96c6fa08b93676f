// Redaction: which values of an event were erased from its log.
//
// {"$redacted": its commitment, 64 hex digits} represents an erased value. That form alone proves
// nothing: a tool, a model or an input may produce the same JSON. Only an erased value has no salt.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "json/value.h"
#include "log/event.h"

namespace ae {

// True if the value has the form of an erased one.
bool is_redacted(const Value& value);

// The names of erased value fields (of an error: its message), as in `Event::salts`.
std::vector<std::string> erased_fields(const Event& event);

}  // namespace ae
