// Budget shortfall: all limits of its budget that are too low for a parked job's next call, and the
// one command that raises them.
//
// The log names only the first of them. The others come from one decision of the engine, made as if
// the job ran; if that decision exceeds its work limit, only the first is known. Threads: pure
// functions.
#pragma once

#include <string>

#include "engine/state/state.h"
#include "json/value.h"

namespace ae::api {

// Adds `budget.shortfall` to a job's view: [{limit, requested, used, most}], and a `parked.action` that
// raises each. For `wall` the numbers are null. A job that is not parked for its budget gets an
// empty list.
Value add_shortfall(const engine::State& state, Value body);

// The response to a budget raise: adds `shortfall` and `command` if the job's next call still exceeds
// a limit. REQUIRES: the job has no lease holder.
Value add_remaining_shortfall(const engine::State& state, Value answer);
// Adds all exceeded limits and the command to a refused raise. Unchanged if the job is not parked
// for its budget.
Error add_shortfall(const engine::State& state, Error refusal);

}  // namespace ae::api
