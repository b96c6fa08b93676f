#include "runtime/history.h"

#include <algorithm>
#include <utility>

#include "engine/state/checkpoint.h"

namespace ae::runtime {

using Direction = store::WindowRequest::Direction;

// ---------------------------------------------------------------- states

// One request for a state.
struct History::Folding {
  const JobId job;
  const std::uint64_t wanted;
  async::Done<Result<PastState>> done;
  engine::State state;
  Hash head;                   // of event state.seq
  std::uint64_t kept_seq = 0;  // of the newest state that is kept
  bool may_use_checkpoint = true;
  bool is_replaced = false;  // the log does not have the event that the fold began with
  std::optional<store::Checkpoint> checkpoint;  // to begin with instead
  Status status;

  void begin(engine::State from, const Hash& at) {
    state = std::move(from);
    head = at;
    kept_seq = state.seq;
  }
};

// A cached plan, if this object still exists.
ValueLookup History::lookup() const {
  return [this, alive = alive_.watch()](const Hash& hash) -> const Value* {
    return alive ? plans_.lookup()(hash) : nullptr;
  };
}

void History::drop_expired_folds() {
  if (store_.owned()) return;  // no other process erases values
  const Duration now = steady_.since_start();
  std::erase_if(folds_, [&](const KeptFold& fold) {
    const bool expired = now - fold.kept_at > kFoldTtl;
    if (expired) fold_bytes_ -= fold.bytes.size();
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

void History::keep_fold(const JobId& job, const engine::State& state, const Hash& head) {
  const auto is_same = [&](const KeptFold& fold) {
    return fold.job == job && fold.seq == state.seq;
  };
  if (std::ranges::any_of(folds_, is_same)) return;
  KeptFold fold{.job = job,
                .seq = state.seq,
                .bytes = engine::checkpoint(state, head),
                .kept_at = steady_.since_start()};
  fold_bytes_ += fold.bytes.size();
  folds_.push_front(std::move(fold));
  while (fold_bytes_ > kFoldBytesMax) {
    fold_bytes_ -= folds_.back().bytes.size();
    folds_.pop_back();
  }
}

void History::state_at(const JobId& job, std::uint64_t seq, async::Done<Result<PastState>> done) {
  auto folding = std::make_shared<Folding>(
      Folding{.job = job, .wanted = seq, .done = std::move(done), .state = {}, .head = {}});
  folding->state.job = job;
  if (const KeptFold* kept = newest_fold(job, seq)) {
    if (auto restored = engine::restore(job, kept->seq, kept->bytes, plans_.source())) {
      folding->begin(std::move(restored->state), restored->head);
    }
  }
  fold(std::move(folding));
}

// Applies the events of a part. False: no more are needed.
bool History::visit(Folding& folding, LogPart& part) {
  engine::State& state = folding.state;
  if (state.seq == 0 && folding.may_use_checkpoint && part.checkpoint &&
      part.checkpoint->seq <= folding.wanted) {
    folding.checkpoint = std::move(part.checkpoint);
    return false;
  }
  // The part may begin before the event after the state.
  for (const Event& event : part.events) {
    if (event.seq <= state.seq) continue;
    folding.is_replaced = event.seq == state.seq + 1 && event.prev_hash != folding.head;
    if (folding.is_replaced) return false;
    if (event.seq > folding.wanted) break;
    folding.status = engine::apply(state, event, plans_.source());
    if (!folding.status) return false;
    folding.head = event.hash;
  }
  if (part.events.empty() && part.preceding != folding.head) {
    folding.is_replaced = true;
    return false;
  }
  const std::uint64_t distance = std::max(fold_events_, state.seq / kFoldShare);
  if (state.plan && state.seq >= folding.kept_seq + distance) {
    keep_fold(folding.job, state, folding.head);
    folding.kept_seq = state.seq;
  }
  return state.seq < folding.wanted;
}

void History::fold(std::shared_ptr<Folding> folding) {
  const store::WindowRequest from{.direction = Direction::after,
                                  .seq = folding->state.seq,
                                  .events_max = kPartEvents,
                                  .reads_checkpoint = folding->state.seq == 0};
  walk_log(
      store_, folding->job, from, lookup(),
      [this, alive = alive_.watch(), folding](LogPart& part) {
        return alive && visit(*folding, part);
      },
      [this, alive = alive_.watch(), folding](Result<store::JobRow> row) {
        if (!alive) return;
        if (!row) return folding->done(std::unexpected(row.error()));
        if (!folding->status) return folding->done(std::unexpected(folding->status.error()));
        if (folding->checkpoint || folding->is_replaced) {
          const auto checkpoint = std::exchange(folding->checkpoint, std::nullopt);
          folding->may_use_checkpoint = false;
          if (std::exchange(folding->is_replaced, false)) drop(folding->job);
          folding->begin({}, {});
          folding->state.job = folding->job;
          if (checkpoint) {
            auto restored =
                engine::restore(folding->job, checkpoint->seq, checkpoint->bytes, plans_.source());
            if (restored) folding->begin(std::move(restored->state), restored->head);
          }
          return fold(folding);
        }
        PastState past{.row = *std::move(row), .state = {}};
        const bool is_there =
            folding->wanted == kLastEvent || folding->wanted == folding->state.seq;
        if (is_there) past.state = std::move(folding->state);
        folding->done(std::move(past));
      });
}

// ---------------------------------------------------------------- indexes of steps

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
  const auto is_replaced = std::make_shared<bool>(false);
  walk_log(
      store_, job, {.direction = Direction::after, .seq = index->seq, .events_max = kPartEvents},
      lookup(),
      [index, is_replaced](LogPart& part) {
        if (part.events.empty() && index->seq > 0 && part.preceding != index->head) {
          *is_replaced = true;
        }
        for (const Event& event : part.events) {
          if (event.seq <= index->seq) continue;
          if (event.prev_hash != index->head) *is_replaced = true;
          if (*is_replaced) return false;
          index->steps->add(event);
          index->seq = event.seq;
          index->head = event.hash;
        }
        return true;
      },
      [this, alive = alive_.watch(), job, index, is_replaced](Result<store::JobRow> row) {
        if (!alive) return;
        if (row && *is_replaced) {  // another job has the id now
          index->steps = std::make_shared<engine::StepIndex>();
          index->seq = 0;
          index->head = {};
          return extend(job, index);
        }
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
  for (const auto& [job, index] : indexes_) bytes += index->steps->bytes();
  while (bytes > kIndexBytesMax && !indexes_by_use_.empty()) {
    const auto oldest = indexes_.find(indexes_by_use_.back());
    indexes_by_use_.pop_back();
    bytes -= oldest->second->steps->bytes();
    indexes_.erase(oldest);
  }
}

void History::drop(const JobId& job) {
  std::erase_if(folds_, [&](const KeptFold& fold) {
    const bool is_of_job = fold.job == job;
    if (is_of_job) fold_bytes_ -= fold.bytes.size();
    return is_of_job;
  });
  std::erase(indexes_by_use_, job);
  indexes_.erase(job);
}

}  // namespace ae::runtime
