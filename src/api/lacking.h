// Lacking: all the limits of its budget that a parked job's next call does not fit, and the one command that raises them.
//
// The log names the first of them alone. Which others follow is asked of the engine: with that one raised, what would it
// decide? Threads: pure functions.
#pragma once

#include "core/value.h"
#include "engine/state.h"

namespace ae::api {

// A job's page with `budget.lacking`: [{limit, asked, used, most}], and a `parked.command` that raises each. Of `wall` the
// numbers are null. A job that is not parked for its budget lacks nothing: an empty list.
Value with_lacking(const engine::State& state, Value body);

}  // namespace ae::api
