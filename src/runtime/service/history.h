// History: the states of jobs at the end of their logs, with the indexes of their steps
// (inspect/indexed_state.h), and earlier states, for pages of long logs.
//
// Both are computed by walks through the log and kept for the jobs that were read last, bounded in
// bytes: a second read costs only the events since. What is kept is used only if the log still has
// the event that it ends with, with the same hash. On a shared store a kept state may hold values
// that another process has erased since, so it is dropped after a minute.
// See docs/decisions/0084-pages.md. Threads: the loop's; reader threads open, fold and index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "async/alive.h"
#include "async/executor.h"
#include "async/loop.h"
#include "base/error.h"
#include "base/ids.h"
#include "engine/state/state.h"
#include "inspect/indexed_state.h"
#include "plan/plan_cache.h"
#include "runtime/service/log_walk.h"
#include "store/store.h"

namespace ae::runtime {

class History {
 public:
  static constexpr std::size_t kFoldBytesMax = 32u << 20;
  // Of indexed states. A larger one is kept alone, for at most kFoldTtl after its last use.
  static constexpr std::size_t kIndexBytesMax = 64u << 20;
  // The distance between kept states: at least this many events, and a share of the events before,
  // because a state grows with its job.
  static constexpr std::uint64_t kFoldEvents = 2'000, kFoldShare = 16;
  static constexpr Duration kFoldTtl = std::chrono::minutes(1);

  // Borrows all. `fold_events`, `index_bytes_max`: as kFoldEvents and kIndexBytesMax.
  History(async::Loop& loop, store::Store& store, async::SteadyClock& steady,
          async::Executor& executor, std::uint64_t fold_events = kFoldEvents,
          std::size_t index_bytes_max = kIndexBytesMax)
      : loop_(loop),
        store_(store),
        steady_(steady),
        executor_(executor),
        fold_events_(fold_events),
        index_bytes_max_(index_bytes_max) {}
  ~History();
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  struct PastState {
    store::JobRow row;
    std::optional<engine::State> state;  // nullopt: the log has no such event
  };
  // The state after event `seq`; kLastEvent: after the last one.
  // Ends early if `abandoned` is requested. Fails with not_found, unavailable (also interrupted),
  // log_corrupt, needs_version, plan_invalid.
  static constexpr std::uint64_t kLastEvent = UINT64_MAX;
  void state_at(const JobId& job, std::uint64_t seq, std::stop_token abandoned,
                async::Done<Result<PastState>> done);

  struct NewestState {
    store::JobRow row;
    // Does not change while anyone has it: a later call that finds new events waits until it is
    // released, on the loop's thread.
    std::shared_ptr<const engine::IndexedState> indexed;
  };
  // The state at the end of the log, at the time of the call or later. Fails as state_at.
  void newest(const JobId& job, async::Done<Result<NewestState>> done);

  // The last event of the state that `newest` keeps of the job now; 0 = it keeps none.
  std::uint64_t kept_seq(const JobId& job) const;

  // Single events; fails as walk_log.
  void events(const JobId& job, std::vector<std::uint64_t> seqs, std::stop_token abandoned,
              async::Done<Result<std::vector<Event>>> done) {
    read_events(source(std::move(abandoned)), job, std::move(seqs), std::move(done));
  }
  // Values of the job were erased, or it was deleted.
  void drop(const JobId& job);

 private:
  struct KeptFold {
    JobId job;
    std::uint64_t seq = 0;
    std::shared_ptr<const std::string> bytes;  // a checkpoint (engine/state/checkpoint.h)
    Duration kept_at{};                        // by the steady clock; of its oldest values
  };
  class Folding;
  using FoldingPtr = std::shared_ptr<Folding>;
  struct Shared;
  struct Kept;
  using KeptPtr = std::shared_ptr<Kept>;
  class IndexWalk;

  const KeptFold* newest_fold(const JobId& job, std::uint64_t seq);
  void keep_fold(KeptFold fold);
  void drop_expired_folds();
  void fold(FoldingPtr folding, std::stop_token abandoned, async::Done<Result<PastState>> done);
  std::shared_ptr<Shared> new_shared(const JobId& job);
  void extend(const KeptPtr& kept);
  void end_walk(const KeptPtr& kept, IndexWalk& walk, Result<store::JobRow> row);
  void answer(const KeptPtr& kept, const Result<store::JobRow>& row);
  std::shared_ptr<const engine::IndexedState> share(const KeptPtr& kept);
  void evict();
  void expire_large();
  LogSource source(std::stop_token abandoned) const;

  async::Loop& loop_;
  store::Store& store_;
  async::SteadyClock& steady_;
  async::Executor& executor_;
  const std::uint64_t fold_events_;
  const std::size_t index_bytes_max_;
  engine::PlanCache plans_{64};
  std::list<KeptFold> folds_;  // most recently used first
  std::size_t fold_bytes_ = 0;
  std::uint64_t drops_ = 0;                    // calls of `drop`
  std::list<KeptPtr> kept_;                    // most recently used first
  std::optional<async::TimerId> large_timer_;  // set while a large one is kept
  async::Alive alive_;
};

}  // namespace ae::runtime
