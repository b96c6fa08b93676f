// Rollback: what becomes of the jobs of a store that went backwards. Each that has not ended is parked, until somebody has
// looked and resumes it: what it did since may have happened, and its log does not know.
//
// Threads: the loop's. See docs/decisions/0025-a-store-that-went-backwards.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/runtime.h"

namespace ae::runtime {

// A job that goes on from what the store knows: the calls that may have been made already by the store that was lost.
struct RepeatableCalls {
  JobId job;
  std::uint64_t seq = 0;  // of the last event that the store has
  Instant at;             // its time
  // "NODE (TOOL, EFFECT)" of each call that is not finished and does more than read; of a loop or planner each of its tools.
  std::vector<std::string> calls;
  std::size_t more = 0;  // calls that are not listed
};
inline constexpr std::size_t kRepeatJobsMax = 100, kRepeatCallsMax = 20;

struct ParkResult {
  std::uint64_t parked = 0;  // now, or for another reason before
  std::uint64_t pausing =
      0;  // parks before it starts anything more: whoever goes on with it takes that in first
  std::uint64_t ending = 0;  // it only awaits calls and undoes what it did; that cannot be held up
  std::vector<RepeatableCalls> may_repeat;  // the first kRepeatJobsMax jobs that have such calls
  bool more = false;                        // there may be others
};

// Repeated after a failure it does nothing twice. `token` names the loss: the same again is the same.
// Fails with what the store or a job's log failed with; then some jobs may be parked already.
void park_rolled_back(store::Store& store, Runtime& runtime, std::string by, std::string token,
                      async::Done<Result<ParkResult>> done);

}  // namespace ae::runtime
