// Rollback: what becomes of the jobs of a store that went backwards. Each that has not ended is parked, until somebody has
// looked and resumes it: what it did since may have happened, and its log does not know.
//
// Threads: the loop's. See docs/decisions/0025-a-store-that-went-backwards.md.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/runtime.h"

namespace ae::runtime {

struct ParkedJobs {
  std::uint64_t parked = 0;  // now, or for another reason before
  std::uint64_t pausing =
      0;  // parks before it starts anything more: whoever goes on with it takes that in first
  std::uint64_t ending = 0;  // it only awaits calls and undoes what it did; that cannot be held up
};

// Repeated after a failure it does nothing twice. `token` names the loss: the same again is the same.
// Fails with what the store or a job's log failed with; then some jobs may be parked already.
void park_rolled_back(store::Store& store, Runtime& runtime, std::string by, std::string token,
                      async::Done<Result<ParkedJobs>> done);

}  // namespace ae::runtime
