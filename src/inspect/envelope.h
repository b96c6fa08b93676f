// The reverse of `envelope` (log/event.h): an event from the JSON of the API and of archives.
//
// Threads: pure functions.
#pragma once

#include "base/error.h"
#include "json/value.h"
#include "log/event.h"

namespace ae {

// The event of an envelope, without its salts. Fails with log_corrupt: it is none; needs_version:
// this program does not know its type or schema.
Result<Event> event_from_envelope(const Value& envelope);

}  // namespace ae
