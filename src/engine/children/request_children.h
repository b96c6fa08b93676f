// The request of a child job that has ended to its parent.
//
// Threads: pure functions.
#pragma once

#include "engine/heart/control_request.h"
#include "engine/state/state.h"

namespace ae::engine {

// To the parent of this job. REQUIRES: it has a parent and has ended.
ControlRequest child_ended_request(const State& child);
// To a child of this job that is cancelled.
ControlRequest child_cancel_request(const State& parent);

}  // namespace ae::engine
