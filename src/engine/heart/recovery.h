// recovery: what a new attempt finds when it continues a job of earlier attempts; for display.
//
//   recovery_started    before the log is examined: where it ended
//   recovery_completed  the findings, before the first new command
//
// Narrative: the fold ignores both, and no decision depends on them. Threads: pure functions.
#pragma once

#include <cstdint>

#include "engine/state/state.h"
#include "log/event.h"

namespace ae::engine {

// Has an earlier attempt written to this log? REQUIRES: the new attempt has written nothing yet.
bool is_recovery(const State& state);
EventBody recovery_started_event(const State& state, const AttemptId& begins);

// {injected, pending, caught_up, resent, in_doubt}: commands with a recorded result; tries that
// were open when the attempt began; those of them with a result in the effect store; of the rest,
// those that may be resent, and those whose outcome must be resolved. The caller supplies `pending`
// and `caught_up`; the other numbers are read from the state.
struct RecoveryCounts {
  std::uint64_t pending = 0, caught_up = 0;
};
EventBody recovery_completed_event(const State& state, const AttemptId& begins,
                                   const RecoveryCounts& found);

}  // namespace ae::engine
