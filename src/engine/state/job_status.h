// JobStatus: the status of a job, and the table of its transitions (SPEC §2).
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "log/event.h"

namespace ae::engine {

enum class JobStatus : std::uint8_t {
  none,
  queued,
  running,
  waiting,
  parked,
  completed,
  failed,
  cancelled
};
std::string_view to_text(JobStatus status);
bool is_terminal(JobStatus status);
bool is_blocked(JobStatus status);  // waiting or parked: never claimed, never reclaimed

// The status table of SPEC §2: the status after `event`, or nullopt if the event is illegal in
// `status`. `ends_own_park`: a wait_completed for a wait that the park itself opened.
std::optional<JobStatus> next_status(JobStatus status, EventType event, bool ends_own_park = false);

}  // namespace ae::engine
