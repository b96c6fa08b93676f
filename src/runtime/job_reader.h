// JobReader: reads the log of a job and folds it.
//
// Threads: the loop's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "async/alive.h"
#include "async/loop.h"
#include "base/error.h"
#include "base/ids.h"
#include "engine/state/state.h"
#include "log/event.h"
#include "plan/plan_cache.h"
#include "runtime/job_cache.h"
#include "runtime/world.h"
#include "store/store.h"

namespace ae::runtime {

struct JobSnapshot {
  store::JobRow row;
  std::vector<Event> events;
  engine::State state;
  std::vector<store::EffectRow> effects;
  std::vector<store::InboxEntry> inbox;  // accepted, not applied yet
  std::size_t bytes = 0;                 // as in LoadedState
  std::uint64_t checkpoint_seq = 0, checkpoint_bytes = 0;
};

class JobReader {
 public:
  // Borrows all.
  JobReader(World& world, const engine::PlanCache& plans, JobCache& cache)
      : world_(world), plans_(plans), cache_(cache) {}

  // Reads the whole log, in time slices.
  void read(const JobId& job, async::Done<Result<JobSnapshot>> done);
  // As `read`, without events, starting at the job's checkpoint: the cost does not grow with the
  // log.
  void read_state(const JobId& job, async::Done<Result<JobSnapshot>> done);
  // As `read_state`, starting at the cached state of the job, which is removed from the cache.
  void read_newest(const JobId& job, async::Done<Result<JobSnapshot>> done);
  // REQUIRES: the state is the fold of the log up to the row's last event.
  void cache_state(const JobId& job, JobSnapshot&& read);

 private:
  struct LogReading;
  void read_from(const JobId& job, std::optional<CachedJob> cached,
                 async::Done<Result<JobSnapshot>> done);

  World& world_;
  const engine::PlanCache& plans_;
  JobCache& cache_;
  async::Alive alive_;
};

}  // namespace ae::runtime
