// History: earlier states of jobs, and the indexes of their steps (inspect/step_list.h), for pages of
// long logs.
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
#include <map>
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
#include "inspect/step_list.h"
#include "plan/plan_cache.h"
#include "runtime/log_walk.h"
#include "store/store.h"

namespace ae::runtime {

class History {
 public:
  static constexpr std::size_t kFoldBytesMax = 32u << 20, kIndexBytesMax = 64u << 20;
  // The distance between kept states: at least this many events, and a share of the events before,
  // because a state grows with its job.
  static constexpr std::uint64_t kFoldEvents = 2'000, kFoldShare = 16;
  static constexpr Duration kFoldTtl = std::chrono::minutes(1);

  // Borrows all. `fold_events`: as kFoldEvents.
  History(store::Store& store, async::SteadyClock& steady, async::Executor& executor,
          std::uint64_t fold_events = kFoldEvents)
      : store_(store), steady_(steady), executor_(executor), fold_events_(fold_events) {}
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

  using IndexPtr = std::shared_ptr<const engine::StepIndex>;
  // The index of the steps up to the end of the log. A later call changes it in place if nobody else
  // has it: share it with a reader thread only while the loop's thread has it too. Fails as walk_log.
  void step_index(const JobId& job, async::Done<Result<IndexPtr>> done);

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
  struct Index {
    std::shared_ptr<engine::StepIndex> steps = std::make_shared<engine::StepIndex>();
    std::uint64_t seq = 0;
    Hash head;
    std::size_t bytes = 0;  // of `steps`
    bool is_reading = false;
    std::vector<async::Done<Result<IndexPtr>>> waiting;
  };
  struct Indexing;

  const KeptFold* newest_fold(const JobId& job, std::uint64_t seq);
  void keep_fold(KeptFold fold);
  void drop_expired_folds();
  void fold(FoldingPtr folding, std::stop_token abandoned, async::Done<Result<PastState>> done);
  void extend(const JobId& job, const std::shared_ptr<Index>& index);
  void evict_indexes();
  LogSource source(std::stop_token abandoned) const;

  store::Store& store_;
  async::SteadyClock& steady_;
  async::Executor& executor_;
  const std::uint64_t fold_events_;
  engine::PlanCache plans_{64};
  std::list<KeptFold> folds_;  // most recently used first
  std::size_t fold_bytes_ = 0;
  std::uint64_t drops_ = 0;  // calls of `drop`
  std::map<JobId, std::shared_ptr<Index>> indexes_;
  std::list<JobId> indexes_by_use_;  // most recently used first
  async::Alive alive_;
};

}  // namespace ae::runtime
