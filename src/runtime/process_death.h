// Death: notes in a job's log that the process which ran a slice of the job died in it.
//
// Written with the claim of the attempt that died, before this process claims anything: nothing of the job is decided for it.
// After two deaths without a new command between them `decide` parks the job (SPEC §11).
// Threads: the loop's. See docs/decisions/0064-worn-out-jobs.md.
#pragma once

#include <memory>
#include <vector>

#include "plan/plan_cache.h"
#include "runtime/job_driver.h"
#include "runtime/running_slot.h"
#include "runtime/world.h"

namespace ae::runtime {

// The events that stand in the log now. None: the attempt holds the job no longer, or its death is recorded. Asks the store
// again for as long as it does not answer. Fails with log_corrupt, needs_version, store_stopped. Borrows world and plans; they
// are there as long as `alive` is, and without it there is no answer.
void record_process_death(World& world, const engine::PlanCache& plans,
                          const RunningSlot::SliceName& interrupted,
                          std::weak_ptr<JobDriverHost*> alive,
                          async::Done<Result<std::vector<Event>>> done);

}  // namespace ae::runtime
