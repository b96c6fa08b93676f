// The log of a job, read from the store: its events, or the state that they fold to.
//
// Threads: load_state the loop's; all others any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "async/loop.h"
#include "base/error.h"
#include "base/ids.h"
#include "engine/heart/ingest.h"
#include "engine/state/state.h"
#include "log/event.h"
#include "log/seal.h"
#include "plan/plan_cache.h"
#include "runtime/job_cache.h"
#include "store/store.h"

namespace ae::runtime {

// A job's effect records as the engine takes them. The result borrows from the rows.
std::vector<engine::StoredEffect> stored_effects(const std::vector<store::EffectRow>& effects);

// Opens the commits of a job: its events with their hashes. Fails with log_corrupt, needs_version.
Result<std::vector<Event>> open_log(const JobId& job, const store::LoadedJob& loaded,
                                    const ValueLookup& lookup = {});
// The first event of a log that was loaded from 1 or as kFirstCommit; reads only the first commit.
// Fails as open_log.
Result<Event> open_job_created(const JobId& job, const store::LoadedJob& loaded);

// State of a job, from the first of these that is usable: its cached state and newer events; its
// checkpoint and newer events; its whole log. The chain is verified from there on.
struct LoadedState {
  store::LoadedJob loaded;      // contains only the part of the log that was needed
  Result<engine::State> state;  // or why the log cannot be folded
  std::size_t bytes = 0;  // total size of what the state was folded from, including earlier reads
  std::uint64_t checkpoint_seq = 0, checkpoint_bytes = 0;  // of the newest known checkpoint
};
// The same of a job that was loaded from 1.
LoadedState fold_whole_log(const JobId& job, store::LoadedJob loaded,
                           const engine::PlanCache& plans);
// The same of a job that was loaded as kFromCheckpoint. nullopt: its checkpoint does not match the
// log, which must be loaded from 1.
std::optional<LoadedState> fold_from_checkpoint(const JobId& job, store::LoadedJob&& loaded,
                                                const engine::PlanCache& plans);
// Borrows `store` and `plans` until `done` is called.
void load_state(store::Store& store, const JobId& job, const engine::PlanCache& plans,
                std::optional<CachedJob> cached, async::Done<Result<LoadedState>> done);

// Did this attempt make a call whose outcome is unknown? Its process is alive, so the call may
// still be in flight.
bool has_own_unknown_call(const engine::State& state, const AttemptId& attempt);

}  // namespace ae::runtime
