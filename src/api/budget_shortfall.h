// Budget shortfall: all limits of its budget that leave no room for a parked job's next call, and the one command that raises them.
//
// The log names only the first of them. The others come from one decision of the engine, as if the job ran; when the work of
// that decision is used up before, only the first is known. Threads: pure functions.
#pragma once

#include <string>

#include "engine/state/state.h"
#include "json/value.h"

namespace ae::api {

// A job's page with `budget.lacking`: [{limit, asked, used, most}], and a `parked.command` that raises each. Of `wall` the
// numbers are null. A job that is not parked for its budget lacks nothing: an empty list.
Value add_shortfall(const engine::State& state, Value body);

// What somebody who raised a budget is told of the rest: the answer with `lacking` and `command`, while the job's next call
// still does not fit. REQUIRES: nobody holds the job.
Value add_remaining_shortfall(const engine::State& state, Value answer);
// A raise that was refused, with all that lacks and the command. As it was, when the job is not parked for its budget.
Error add_shortfall(const engine::State& state, Error refusal);

}  // namespace ae::api
