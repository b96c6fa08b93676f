#include "runtime/history.h"

#include <algorithm>
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

// ---------------------------------------------------------------- indexes of steps

// An index that grows on reader threads.
struct History::Indexing {
  std::shared_ptr<engine::StepIndex> steps;
  std::uint64_t seq = 0;
  Hash head;
  bool is_shared = false;    // others read `steps`: it is copied before a change
  bool is_replaced = false;  // another job has the id now

  bool visit(const LogPart& part) {
    if (part.events.empty() && seq > 0 && part.preceding != head) is_replaced = true;
    for (const Event& event : part.events) {
      if (event.seq <= seq) continue;
      if (event.prev_hash != head) is_replaced = true;
      if (is_replaced) return false;
      if (std::exchange(is_shared, false)) steps = std::make_shared<engine::StepIndex>(*steps);
      steps->add(event);
      seq = event.seq;
      head = event.hash;
    }
    return true;
  }
};

void History::step_index(const JobId& job, async::Done<Result<IndexPtr>> done) {
  std::shared_ptr<Index>& kept = indexes_[job];
  if (!kept) kept = std::make_shared<Index>();
  std::erase(indexes_by_use_, job);
  indexes_by_use_.push_front(job);
  kept->waiting.push_back(std::move(done));
  if (!std::exchange(kept->is_reading, true)) extend(job, kept);
}

// Reads the events since the last call.
void History::extend(const JobId& job, const std::shared_ptr<Index>& index) {
  const bool is_shared = index->steps.use_count() > 1;
  const auto indexing = std::make_shared<Indexing>(Indexing{
      .steps = index->steps, .seq = index->seq, .head = index->head, .is_shared = is_shared});
  walk_log(
      source({}), job,
      {.direction = Direction::after, .seq = index->seq, .events_max = kPartEvents},
      [indexing](LogPart& part) { return indexing->visit(part); },
      [this, alive = alive_.watch(), job, index, indexing](Result<store::JobRow> row) {
        if (!alive) return;
        if (row && indexing->is_replaced) {
          index->steps = std::make_shared<engine::StepIndex>();
          index->seq = 0;
          index->head = {};
          return extend(job, index);
        }
        index->steps = std::move(indexing->steps);
        index->seq = indexing->seq;
        index->head = indexing->head;
        index->bytes = index->steps->bytes();
        index->is_reading = false;
        // A failed read may have ended in the middle of a commit.
        if (!row) drop(job);
        for (auto& done : std::exchange(index->waiting, {})) {
          done(row ? Result<IndexPtr>(index->steps) : std::unexpected(row.error()));
        }
        if (alive) evict_indexes();
      });
}

void History::evict_indexes() {
  std::size_t bytes = 0;
  for (const auto& [job, index] : indexes_) bytes += index->bytes;
  while (bytes > kIndexBytesMax && !indexes_by_use_.empty()) {
    const auto oldest = indexes_.find(indexes_by_use_.back());
    indexes_by_use_.pop_back();
    bytes -= oldest->second->bytes;
    indexes_.erase(oldest);
  }
}

void History::drop(const JobId& job) {
  ++drops_;
  std::erase_if(folds_, [&](const KeptFold& fold) {
    const bool is_of_job = fold.job == job;
    if (is_of_job) fold_bytes_ -= fold.bytes->size();
    return is_of_job;
  });
  std::erase(indexes_by_use_, job);
  indexes_.erase(job);
}

}  // namespace ae::runtime
