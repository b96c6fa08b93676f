// add_child_request: what a job sends to its parent, or to its child, with the commit of an event.
//
// Threads: pure functions.
#pragma once

#include <vector>

#include "base/ids.h"
#include "engine/state/state.h"
#include "log/events.h"
#include "store/store.h"

namespace ae::runtime {

// The end of a child goes to its parent, a cancellation to the child. `state`: after the event, and
// all others of its commit.
void add_child_request(const engine::State& state, const EventBody& event, store::Batch& batch);
// The jobs that get a request with this batch.
std::vector<JobId> addressees_of(const store::Batch& batch);

}  // namespace ae::runtime
