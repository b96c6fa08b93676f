#include "runtime/service/history.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/state/checkpoint.h"

namespace ae::runtime {

using Direction = store::WindowRequest::Direction;

// A plan cache for one walk: its visitor and its lookup run on reader threads.
LogSource History::source(std::stop_token abandoned) const {
  return {.store = store_,
          .executor = executor_,
          .lookup = [plans = std::shared_ptr<const engine::PlanCache>(plans_.copy())](
                        const Hash& hash) -> const Value* { return plans->lookup()(hash); },
          .abandoned = std::move(abandoned),
          .owner = alive_.watch()};
}

// ---------------------------------------------------------------- states

// One request for a state. A walk uses it on reader threads, the loop between two walks.
class History::Folding {
 public:
  Folding(const JobId& job, std::uint64_t wanted, std::uint64_t fold_events,
          std::unique_ptr<engine::PlanCache> plans, std::uint64_t drops)
      : drops_before(drops),
        job_(job),
        wanted_(wanted),
        fold_events_(fold_events),
        plans_(std::move(plans)) {
    state_.job = job;
  }

  // The bytes of a checkpoint; null: the log is folded from its beginning.
  void begin(std::uint64_t seq, std::shared_ptr<const std::string> bytes) {
    state_ = engine::State();
    state_.job = job_;
    head_ = {};
    kept_seq_ = 0;
    start_seq_ = bytes ? seq : 0;
    start_ = std::move(bytes);
  }
  // Begins again from the checkpoint of the store, or from the beginning. False: not necessary.
  bool begin_again() {
    if (!checkpoint_ && !has_wrong_start_) return false;
    may_use_checkpoint_ = false;
    has_wrong_start_ = false;
    made_.clear();
    if (const auto checkpoint = std::exchange(checkpoint_, std::nullopt)) {
      begin(checkpoint->seq, std::make_shared<const std::string>(checkpoint->bytes));
    } else {
      begin(0, nullptr);
    }
    return true;
  }
  bool has_wrong_start() const { return has_wrong_start_; }
  store::WindowRequest window() const {
    return {.direction = Direction::after,
            .seq = start_seq_,
            .events_max = kPartEvents,
            .reads_checkpoint = !start_ && may_use_checkpoint_};
  }
  const JobId& job() const { return job_; }

  bool visit(LogPart& part);  // false: no more events are needed

  Status take(PastState& past) {
    AE_TRY(status_);
    if (wanted_ == kLastEvent || wanted_ == state_.seq) past.state = std::move(state_);
    return {};
  }
  std::vector<KeptFold> take_made() { return std::move(made_); }
  std::shared_ptr<const engine::Plan> plan() const { return state_.plan; }

  const std::uint64_t drops_before;  // History::drops_ at the beginning
  Duration values_as_of{};           // values that were erased since may be in the state

 private:
  bool restore_start();
  bool apply(const std::vector<Event>& events);
  void keep_state();

  const JobId job_;
  const std::uint64_t wanted_, fold_events_;
  const std::unique_ptr<engine::PlanCache> plans_;
  std::shared_ptr<const std::string> start_;  // until the first visit
  std::uint64_t start_seq_ = 0;
  engine::State state_;
  Hash head_;                   // of event state_.seq
  std::uint64_t kept_seq_ = 0;  // of the newest state that is kept
  bool may_use_checkpoint_ = true;
  bool has_wrong_start_ = false;  // unusable, or the log does not have the event it ends with
  std::optional<store::Checkpoint> checkpoint_;  // to begin with instead
  std::vector<KeptFold> made_;                   // to keep, in order
  std::size_t made_bytes_ = 0;
  Status status_;
};

bool History::Folding::restore_start() {
  const auto bytes = std::exchange(start_, nullptr);
  if (!bytes) return true;
  auto restored = engine::restore(job_, start_seq_, *bytes, plans_->source());
  if (!restored) return false;
  state_ = std::move(restored->state);
  head_ = restored->head;
  kept_seq_ = state_.seq;
  return true;
}

// The events may begin before the event after the state. False: they do not follow the state, or
// `status_` is an error.
bool History::Folding::apply(const std::vector<Event>& events) {
  for (const Event& event : events) {
    if (event.seq <= state_.seq) continue;
    has_wrong_start_ = event.seq == state_.seq + 1 && event.prev_hash != head_;
    if (has_wrong_start_) return false;
    if (event.seq > wanted_) break;
    status_ = engine::apply(state_, event, plans_->source());
    if (!status_) return false;
    head_ = event.hash;
  }
  return true;
}

void History::Folding::keep_state() {
  KeptFold fold{.job = job_,
                .seq = state_.seq,
                .bytes = std::make_shared<const std::string>(engine::checkpoint(state_, head_)),
                .kept_at = {}};
  kept_seq_ = state_.seq;
  made_bytes_ += fold.bytes->size();
  made_.push_back(std::move(fold));
  while (made_bytes_ > kFoldBytesMax) {
    made_bytes_ -= made_.front().bytes->size();
    made_.erase(made_.begin());
  }
}

bool History::Folding::visit(LogPart& part) {
  if (!restore_start()) {
    has_wrong_start_ = true;
    return false;
  }
  if (state_.seq == 0 && may_use_checkpoint_ && part.checkpoint &&
      part.checkpoint->seq <= wanted_) {
    checkpoint_ = std::move(part.checkpoint);
    return false;
  }
  if (!apply(part.events)) return false;
  if (part.events.empty() && part.preceding != head_) {
    has_wrong_start_ = true;
    return false;
  }
  const std::uint64_t distance = std::max(fold_events_, state_.seq / kFoldShare);
  if (state_.plan && state_.seq >= kept_seq_ + distance) keep_state();
  return state_.seq < wanted_;
}

void History::drop_expired_folds() {
  if (store_.owned()) return;  // no other process erases values
  const Duration now = steady_.since_start();
  std::erase_if(folds_, [&](const KeptFold& fold) {
    const bool expired = now - fold.kept_at > kFoldTtl;
    if (expired) fold_bytes_ -= fold.bytes->size();
    return expired;
  });
}

const History::KeptFold* History::newest_fold(const JobId& job, std::uint64_t seq) {
  drop_expired_folds();
  auto newest = folds_.end();
  for (auto it = folds_.begin(); it != folds_.end(); ++it) {
    if (it->job != job || it->seq > seq) continue;
    if (newest == folds_.end() || it->seq > newest->seq) newest = it;
  }
  if (newest == folds_.end()) return nullptr;
  folds_.splice(folds_.begin(), folds_, newest);
  return &folds_.front();
}

void History::keep_fold(KeptFold fold) {
  const auto is_same = [&](const KeptFold& kept) {
    return kept.job == fold.job && kept.seq == fold.seq;
  };
  if (std::ranges::any_of(folds_, is_same)) return;
  fold_bytes_ += fold.bytes->size();
  folds_.push_front(std::move(fold));
  while (fold_bytes_ > kFoldBytesMax) {
    fold_bytes_ -= folds_.back().bytes->size();
    folds_.pop_back();
  }
}

void History::state_at(const JobId& job, std::uint64_t seq, std::stop_token abandoned,
                       async::Done<Result<PastState>> done) {
  auto folding = std::make_shared<Folding>(job, seq, fold_events_, plans_.copy(), drops_);
  folding->values_as_of = steady_.since_start();
  if (const KeptFold* kept = newest_fold(job, seq)) {
    folding->begin(kept->seq, kept->bytes);
    folding->values_as_of = kept->kept_at;
  }
  fold(std::move(folding), std::move(abandoned), std::move(done));
}

void History::fold(FoldingPtr folding, std::stop_token abandoned,
                   async::Done<Result<PastState>> done) {
  walk_log(
      source(abandoned), folding->job(), folding->window(),
      [folding](LogPart& part) { return folding->visit(part); },
      [this, alive = alive_.watch(), folding, abandoned,
       done = std::move(done)](Result<store::JobRow> row) mutable {
        if (!alive) return;
        if (!row) return done(std::unexpected(row.error()));
        if (folding->has_wrong_start()) drop(folding->job());
        if (folding->begin_again()) {
          folding->values_as_of = steady_.since_start();
          return fold(std::move(folding), std::move(abandoned), std::move(done));
        }
        // A value may have been erased since the events were read.
        if (folding->drops_before == drops_) {
          for (KeptFold& made : folding->take_made()) {
            made.kept_at = folding->values_as_of;
            keep_fold(std::move(made));
          }
        }
        if (const auto plan = folding->plan()) plans_.insert(plan);
        PastState past{.row = *std::move(row), .state = {}};
        if (const Status taken = folding->take(past); !taken) {
          return done(std::unexpected(taken.error()));
        }
        done(std::move(past));
      });
}

// ---------------------------------------------------------------- indexed states

// The events of one window of such a walk: opening them takes a reader thread for a few
// milliseconds.
constexpr std::uint64_t kIndexPartEvents = 2'000;

// An indexed state and those who read it.
struct History::Shared {
  explicit Shared(const JobId& job) : indexed(job) {}
  engine::IndexedState indexed;
  std::size_t readers = 0;
};

// What is kept of a job.
struct History::Kept {
  Kept(const JobId& of, std::shared_ptr<Shared> state) : job(of), shared(std::move(state)) {}

  const JobId job;
  std::shared_ptr<Shared> shared;
  std::size_t bytes = 0;
  Duration built_at{}, used_at{};  // by the steady clock
  bool is_busy = false;            // a walk reads the log, or waits for readers
  bool waits_for_readers = false;
  // Answered by the present walk, and by the next one, because their events may be newer.
  std::vector<async::Done<Result<NewestState>>> served, waiting;
};

// Extends an indexed state. Used on reader threads, and by the loop after the walk.
class History::IndexWalk {
 public:
  IndexWalk(std::shared_ptr<Shared> shared, std::unique_ptr<engine::PlanCache> plans)
      : may_change(shared->readers == 0), shared_(std::move(shared)), plans_(std::move(plans)) {}

  bool visit(const LogPart& part) {
    const engine::IndexedState& indexed = shared_->indexed;
    const std::uint64_t seq = indexed.state().seq;
    const auto first = std::ranges::upper_bound(part.events, seq, {}, &Event::seq);
    const bool has_new = first != part.events.end();
    if (has_new || (part.events.empty() && seq > 0)) {
      is_replaced = (has_new ? first->prev_hash : part.preceding) != indexed.head();
    }
    if (is_replaced || !has_new) return !is_replaced;
    if (!may_change) {
      has_more = true;
      return false;
    }
    status = shared_->indexed.add({first, part.events.end()}, plans_->source());
    return status.has_value();
  }
  std::shared_ptr<const engine::Plan> plan() const { return shared_->indexed.state().plan; }

  const bool may_change;
  bool has_more = false;     // events that may not be added
  bool is_replaced = false;  // another job has the id now
  Status status;

 private:
  const std::shared_ptr<Shared> shared_;
  const std::unique_ptr<engine::PlanCache> plans_;
};

History::~History() {
  if (large_timer_) loop_.cancel(*large_timer_);
}

// Freeing a large state takes longer than the loop may be busy.
std::shared_ptr<History::Shared> History::new_shared(const JobId& job) {
  constexpr std::size_t kFreedByLoop = 1u << 20;
  return {new Shared(job), [this, alive = alive_.watch()](Shared* shared) {
            std::unique_ptr<Shared> freed(shared);
            if (!alive || freed->indexed.bytes() <= kFreedByLoop) return;
            executor_.run([freed = std::move(freed)](const std::stop_token&) {}, [] {});
          }};
}

void History::newest(const JobId& job, async::Done<Result<NewestState>> done) {
  const Duration now = steady_.since_start();
  const auto is_outdated = [&](const KeptPtr& kept) {
    return !kept->is_busy && now - kept->built_at > kFoldTtl;
  };
  if (!store_.owned()) std::erase_if(kept_, is_outdated);  // another process may erase values
  const auto found =
      std::ranges::find(kept_, job, [](const KeptPtr& kept) -> const JobId& { return kept->job; });
  if (found == kept_.end()) {
    kept_.push_front(std::make_shared<Kept>(job, new_shared(job)));
    kept_.front()->built_at = now;
  } else {
    kept_.splice(kept_.begin(), kept_, found);
  }
  const KeptPtr kept = kept_.front();
  kept->used_at = now;
  kept->waiting.push_back(std::move(done));
  if (!kept->is_busy) extend(kept);
}

std::uint64_t History::kept_seq(const JobId& job) const {
  const auto is_readable = [&](const KeptPtr& kept) { return kept->job == job && !kept->is_busy; };
  const auto found = std::ranges::find_if(kept_, is_readable);
  return found == kept_.end() ? 0 : (*found)->shared->indexed.state().seq;
}

// Reads the events since the last walk.
void History::extend(const KeptPtr& kept) {
  kept->is_busy = true;
  std::ranges::move(std::exchange(kept->waiting, {}), std::back_inserter(kept->served));
  const auto walk = std::make_shared<IndexWalk>(kept->shared, plans_.copy());
  walk_log(
      source({}), kept->job,
      {.direction = Direction::after,
       .seq = kept->shared->indexed.state().seq,
       .events_max = kIndexPartEvents},
      [walk](LogPart& part) { return walk->visit(part); },
      [this, alive = alive_.watch(), kept, walk](Result<store::JobRow> row) {
        if (alive) end_walk(kept, *walk, std::move(row));
      });
}

void History::end_walk(const KeptPtr& kept, IndexWalk& walk, Result<store::JobRow> row) {
  if (row && walk.is_replaced) {
    kept->shared = new_shared(kept->job);
    kept->built_at = steady_.since_start();
    return extend(kept);
  }
  if (row && walk.has_more) {
    kept->waits_for_readers = kept->shared->readers > 0;
    if (!kept->waits_for_readers) extend(kept);
    return;
  }
  if (row && !walk.status) row = std::unexpected(std::move(walk.status).error());
  if (row && walk.plan()) plans_.insert(walk.plan());
  // A failed walk may have ended between two events of a commit.
  if (!row) {
    std::erase(kept_, kept);
    kept->shared = new_shared(kept->job);
    kept->built_at = steady_.since_start();
  }
  answer(kept, row);
}

void History::answer(const KeptPtr& kept, const Result<store::JobRow>& row) {
  kept->bytes = kept->shared->indexed.bytes();
  kept->used_at = steady_.since_start();
  kept->is_busy = false;
  using Answer = Result<NewestState>;
  std::vector<std::pair<async::Done<Answer>, Answer>> answers;
  for (auto& done : std::exchange(kept->served, {})) {
    answers.emplace_back(std::move(done),
                         row ? Answer({*row, share(kept)}) : Answer(std::unexpected(row.error())));
  }
  evict();
  if (!kept->waiting.empty()) extend(kept);
  for (auto& [done, answer] : answers) done(std::move(answer));
}

// The copies of the pointer are one reader.
std::shared_ptr<const engine::IndexedState> History::share(const KeptPtr& kept) {
  kept->shared->readers++;
  return {&kept->shared->indexed, [this, alive = alive_.watch(), kept,
                                   shared = kept->shared](const engine::IndexedState*) mutable {
            const bool is_last = --shared->readers == 0;
            if (!alive || !is_last || kept->shared != shared || !kept->waits_for_readers) return;
            kept->waits_for_readers = false;
            extend(kept);
          }};
}

// The newest one stays, whatever its size.
void History::evict() {
  std::size_t bytes = 0;
  for (const KeptPtr& kept : kept_) bytes += kept->bytes;
  while (bytes > index_bytes_max_ && kept_.size() > 1) {
    bytes -= kept_.back()->bytes;
    kept_.pop_back();
  }
  if (bytes > index_bytes_max_ && !large_timer_) {
    large_timer_ = loop_.after(kFoldTtl, [this] { expire_large(); });
  }
}

void History::expire_large() {
  large_timer_.reset();
  if (kept_.empty() || kept_.front()->bytes <= index_bytes_max_) return;
  const Duration unused = steady_.since_start() - kept_.front()->used_at;
  if (unused >= kFoldTtl && !kept_.front()->is_busy) return kept_.pop_front();
  large_timer_ =
      loop_.after(std::max(kFoldTtl - unused, Duration(kFoldTtl / 16)), [this] { expire_large(); });
}

void History::drop(const JobId& job) {
  ++drops_;
  std::erase_if(folds_, [&](const KeptFold& fold) {
    const bool is_of_job = fold.job == job;
    if (is_of_job) fold_bytes_ -= fold.bytes->size();
    return is_of_job;
  });
  std::erase_if(kept_, [&](const KeptPtr& kept) { return kept->job == job; });
}

}  // namespace ae::runtime
