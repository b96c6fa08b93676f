// JobReader: reads jobs: rows and log from the store, then opened and folded.
//
// Long logs are opened and folded on a reader thread (World::readers). The work there owns the
// loaded bytes and a copy of the list of compiled plans; plans do not change. Results come back on
// the loop. Decision: 0083-reader-threads.md.
// Threads: the loop's, except `Work` and functions that are documented otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include "async/alive.h"
#include "async/executor.h"
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
  // Computes a result from a job, on a reader thread. It uses only its arguments and what it owns.
  // The snapshot is destroyed on that thread.
  template <class T>
  using Work = std::move_only_function<Result<T>(JobSnapshot&)>;
  // The same from the stored bytes. Long work checks the interrupt.
  template <class T>
  using LoadedWork =
      std::move_only_function<Result<T>(store::LoadedJob&&, const async::Interrupt&)>;

  // Borrows all.
  JobReader(World& world, engine::PlanCache& plans, JobCache& cache)
      : world_(world), plans_(plans), cache_(cache) {}

  // Reads the whole log: `work` gets it opened and folded, `then` the result. Opening and folding
  // end early if `abandoned` is requested. Fails with not_found, log_corrupt, needs_version,
  // plan_invalid, unavailable, and as `work` does.
  template <class T>
  void read(const JobId& job, std::stop_token abandoned, Work<T> work,
            async::Done<Result<T>> then) {
    auto result = std::make_shared<std::optional<Result<T>>>();
    read_snapshot(job, std::move(abandoned), put(result, std::move(work)),
                  take(result, std::move(then)));
  }
  // As `read`, without events, starting at the job's checkpoint: the cost does not grow with the
  // log. Steps that the state has dropped are missing.
  template <class T>
  void read_state(const JobId& job, std::stop_token abandoned, Work<T> work,
                  async::Done<Result<T>> then) {
    auto result = std::make_shared<std::optional<Result<T>>>();
    read_checkpointed(job, store::kFromCheckpoint, std::move(abandoned),
                      put(result, std::move(work)), take(result, std::move(then)));
  }
  template <class T>
  void read_state(const JobId& job, Work<T> work, async::Done<Result<T>> then) {
    read_state<T>(job, {}, std::move(work), std::move(then));
  }
  // As `read`, from the event `from_seq` on (Store::load). `work` opens what it needs.
  template <class T>
  void load(const JobId& job, std::uint64_t from_seq, std::stop_token abandoned, LoadedWork<T> work,
            async::Done<Result<T>> then) {
    auto result = std::make_shared<std::optional<Result<T>>>();
    load_job(
        job, from_seq, std::move(abandoned),
        [result, work = std::move(work)](store::LoadedJob&& loaded,
                                         const async::Interrupt& interrupt) mutable {
          result->emplace(work(std::move(loaded), interrupt));
        },
        take(result, std::move(then)));
  }

  // As `read_state`, on the loop's thread, starting at the cached state of the job, which is
  // removed from the cache.
  void read_newest(const JobId& job, async::Done<Result<JobSnapshot>> done);
  // REQUIRES: the state is the fold of the log up to the row's last event.
  void cache_state(const JobId& job, JobSnapshot&& read);

  // Runs the work of all reads.
  async::Executor& executor() { return world_.readers != nullptr ? *world_.readers : inline_; }

 private:
  using SnapshotTask = std::move_only_function<void(Result<JobSnapshot>)>;
  using LoadedTask = std::move_only_function<void(store::LoadedJob&&, const async::Interrupt&)>;

  template <class T>
  static SnapshotTask put(std::shared_ptr<std::optional<Result<T>>> result, Work<T> work) {
    return [result = std::move(result), work = std::move(work)](Result<JobSnapshot> read) mutable {
      if (read) {
        result->emplace(work(*read));
      } else {
        result->emplace(std::unexpected(std::move(read).error()));
      }
    };
  }
  template <class T>
  static async::Done<Status> take(std::shared_ptr<std::optional<Result<T>>> result,
                                  async::Done<Result<T>> then) {
    return [result = std::move(result), then = std::move(then)](Status loaded) mutable {
      if (!loaded) return then(std::unexpected(std::move(loaded).error()));
      then(*std::move(*result));
    };
  }
  void load_job(const JobId& job, std::uint64_t from_seq, std::stop_token abandoned,
                LoadedTask work, async::Done<Status> then);
  void read_snapshot(const JobId& job, std::stop_token abandoned, SnapshotTask work,
                     async::Done<Status> then);
  void read_checkpointed(const JobId& job, std::uint64_t from_seq, std::stop_token abandoned,
                         SnapshotTask work, async::Done<Status> then);

  World& world_;
  engine::PlanCache& plans_;
  JobCache& cache_;
  async::InlineExecutor inline_;
  async::Alive alive_;
};

}  // namespace ae::runtime
