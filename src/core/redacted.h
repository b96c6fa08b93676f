// What stands where a value was erased from a log: {"$redacted": the commitment of it, 64 hex digits}.
//
// Threads: pure functions.
#pragma once

#include "core/value.h"

namespace ae {

// Is this what stands for an erased value, and nothing else?
bool is_redacted(const Value& value);
// Was something erased, here or anywhere inside?
bool holds_redacted(const Value& value);

}  // namespace ae
