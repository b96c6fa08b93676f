// record_process_death: records in a job's log that the process died while it ran a slice of that
// job.
//
// Written under the claim of the attempt that died, before this process claims anything: it decides
// nothing for the job. After two deaths without a new command in between, `decide` parks the job
// (SPEC §11).
// Threads: the loop's. See docs/decisions/0064-worn-out-jobs.md.
#pragma once

#include <vector>

#include "async/alive.h"
#include "async/loop.h"
#include "base/error.h"
#include "log/event.h"
#include "plan/plan_cache.h"
#include "runtime/running_slot.h"
#include "runtime/world.h"

namespace ae::runtime {

// Returns the events that were appended. None: the attempt no longer holds the job, or the death is
// already recorded. Retries until the store responds. Fails with log_corrupt, needs_version,
// store_stopped. Borrows world and plans, which exist while `alive` does; once it has expired,
// `done` is not called.
void record_process_death(World& world, const engine::PlanCache& plans,
                          const RunningSlot::SliceName& interrupted, async::Alive::Watch alive,
                          async::Done<Result<std::vector<Event>>> done);

}  // namespace ae::runtime
