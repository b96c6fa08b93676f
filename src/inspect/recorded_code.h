// RecordedCode: the code of a job as its log has it: what a new routine is started with, and how the
// code ended if it did. For checks of code against a log, which write nothing.
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/ids.h"
#include "engine/state/state.h"
#include "log/event.h"
#include "plan/plan.h"

namespace ae::engine {

struct RecordedCode {
  State state;  // after `events`; the code runs, or has not begun
  std::size_t events = 0;
  std::optional<std::uint32_t> node;  // of the code; nullopt: it has not begun
  // How the code ended, in the event after these; nullopt: it did not.
  std::optional<NodeFinished> end;

  const Step& code() const { return state.steps[*node]; }
};

// The code before its end, or after the last event. Fails with unsupported: the plan of the job is no
// code; log_corrupt, needs_version.
Result<RecordedCode> recorded_code(const JobId& job, std::span<const Event> events,
                                   const PlanSource& plans);

}  // namespace ae::engine
