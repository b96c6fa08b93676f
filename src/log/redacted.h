// Which values of an event were erased from its log.
//
// {"$redacted": the commitment of it, 64 hex digits} stands for an erased value, but looks prove nothing: a tool, a model or
// an input may say just that. An erased value has lost its salt, and every other has its own.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "json/value.h"
#include "log/event.h"

namespace ae {

// Does it look like what stands for an erased value?
bool is_redacted(const Value& value);

// The names of the value fields that were erased (of an error: its message), as they stood in `Event::salts`.
std::vector<std::string> erased_fields(const Event& event);

}  // namespace ae
