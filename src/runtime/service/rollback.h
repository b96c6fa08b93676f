// park_rolled_back: parks the jobs of a store that was rolled back. Each job that has not ended is
// parked until an operator checks and resumes it: what it did since may have happened, and its log
// does not contain it.
//
// Threads: the loop's. See docs/decisions/0025-a-store-that-went-backwards.md.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "async/loop.h"
#include "base/error.h"
#include "base/ids.h"
#include "base/time.h"
#include "engine/heart/ingest.h"
#include "json/value.h"
#include "runtime/service/job_reader.h"
#include "store/store.h"

namespace ae::runtime {

// Calls of a job that may already have been made by the lost store and would be repeated when the
// job resumes.
struct RepeatableCalls {
  JobId job;
  std::uint64_t seq = 0;  // last event in the store
  Instant at;             // time of that event
  // "NODE (TOOL, EFFECT)" of each unfinished call that does more than read; for a loop, a planner
  // or code, of each of its tools.
  std::vector<std::string> calls;
  std::size_t more = 0;  // calls that are not listed
};
inline constexpr std::size_t kRepeatJobsMax = 100, kRepeatCallsMax = 20;

// Of the unfinished nodes of a job.
RepeatableCalls repeatable_calls(const engine::State& state);

struct ParkResult {
  std::uint64_t parked = 0;  // by this request, or before for another reason
  // Parks before it starts anything new: the lease holder applies the pause first
  std::uint64_t pausing = 0;
  std::uint64_t ending = 0;  // only waits for calls and compensates; cannot be paused
  std::vector<RepeatableCalls> may_repeat;  // the first kRepeatJobsMax jobs with such calls
  bool more = false;                        // there may be other such jobs
};

// As Runtime::submit_request.
using SubmitRequest =
    std::function<void(JobId job, engine::ControlRequest request, async::Done<Result<Value>> done)>;

// Idempotent: a repetition after a failure does nothing twice. `token` identifies the rollback.
// Fails with the error of the store or of a job's log; some jobs may then be parked already.
// Borrows `store` and `reader`.
void park_rolled_back(store::Store& store, JobReader& reader, SubmitRequest submit, std::string by,
                      std::string token, async::Done<Result<ParkResult>> done);

}  // namespace ae::runtime
