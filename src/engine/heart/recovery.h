// recovery: what an attempt finds that goes on with a job which others have run before it; for people.
//
//   recovery_started    before anything is looked at: where the log ended
//   recovery_completed  what was found, before the first new command
//
// Narrative: the fold passes over both, and nothing is decided by them. Threads: pure functions.
#pragma once

#include <cstdint>

#include "engine/state/state.h"
#include "log/event.h"

namespace ae::engine {

// Has another attempt written into this log? REQUIRES: the attempt that begins has written nothing yet.
bool is_recovery(const State& state);
EventBody recovery_started_event(const State& state, const AttemptId& begins);

// {injected, pending, caught_up, resent, in_doubt}: commands whose recorded result stands for them; tries that had no end
// when the attempt began; those of them whose end was found beside the log; of the rest, those that may be sent again, and
// calls whose fate is to be asked for. `pending` and `caught_up` are the caller's, the rest is read from the state.
struct Found {
  std::uint64_t pending = 0, caught_up = 0;
};
EventBody recovery_completed_event(const State& state, const AttemptId& begins, const Found& found);

}  // namespace ae::engine
