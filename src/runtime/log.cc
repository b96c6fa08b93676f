// Reading a job's log back from the store.
#include <memory>
#include <utility>

#include "engine/state/checkpoint.h"
#include "log/seal.h"
#include "runtime/log_opening.h"
#include "runtime/resting.h"
#include "runtime/runtime.h"

namespace ae::runtime {

LogOpening::LogOpening(const JobId& job, const store::Loaded& loaded, KnownValue known,
                       std::uint64_t seq, const Hash& head)
    : job_(job), loaded_(loaded), known_(std::move(known)), seq_(seq), head_(head) {
  for (const Blob& blob : loaded.blobs) blobs_.emplace(blob.hash, &blob.bytes);
}

bool LogOpening::next() {
  if (opened_ == loaded_.commits.size() || !status_) return false;
  status_ = open_commit(loaded_.commits[opened_++]);
  return true;
}

Status LogOpening::open_commit(const std::string& bytes) {
  const BlobSource blobs = [this](const Hash& hash) -> Result<std::string> {
    if (const auto blob = blobs_.find(hash); blob != blobs_.end()) return *blob->second;
    return fail(Code::log_corrupt, "blob " + to_hex(hash) + " is missing");
  };
  AE_ASSIGN(Opened opened, open(job_, bytes, head_, blobs, known_));
  head_ = opened.head;
  if (opened.first_seq != seq_ + 1) {
    return fail(Code::log_corrupt, "event " + std::to_string(seq_ + 1) + " is missing");
  }
  seq_ = opened.last_seq;
  for (Event& event : opened.events) events_.push_back(std::move(event));
  return {};
}

std::vector<Event> LogOpening::take_opened() { return std::exchange(events_, {}); }

Status LogOpening::complete() const {
  if (!status_) return status_;
  if (seq_ == 0) return fail(Code::log_corrupt, "the job has no events");
  if (seq_ != loaded_.row.last_seq || head_ != loaded_.row.head) {
    return fail(Code::log_corrupt, "the log ends at event " + std::to_string(seq_) +
                                       ", the job's row has " +
                                       std::to_string(loaded_.row.last_seq));
  }
  return {};
}

Result<std::vector<Event>> LogOpening::take() {
  AE_TRY(complete());
  return take_opened();
}

namespace {

// REQUIRES: `loaded` outlives it.
BlobSource blobs_of(const store::Loaded& loaded) {
  return [&loaded](const Hash& hash) -> Result<std::string> {
    for (const Blob& blob : loaded.blobs) {
      if (blob.hash == hash) return blob.bytes;
    }
    return fail(Code::log_corrupt, "blob " + to_hex(hash) + " is missing");
  };
}

// What follows event `seq`, whose hash is `head`.
Result<std::vector<Event>> open_from(const JobId& job, const store::Loaded& loaded,
                                     std::uint64_t seq, const Hash& head, const KnownValue& known) {
  LogOpening opening(job, loaded, known, seq, head);
  while (opening.next()) {
  }
  return opening.take();
}

}  // namespace

Result<std::vector<Event>> open_log(const JobId& job, const store::Loaded& loaded,
                                    const KnownValue& known) {
  return open_from(job, loaded, 0, Hash{}, known);
}

Result<Event> open_created(const JobId& job, const store::Loaded& loaded) {
  if (loaded.commits.empty()) return fail(Code::log_corrupt, "the job has no events");
  AE_ASSIGN(Opened first, open(job, loaded.commits.front(), Hash{}, blobs_of(loaded)));
  if (first.first_seq != 1 || first.events.empty()) {
    return fail(Code::log_corrupt, "event 1 is missing");
  }
  return std::move(first.events.front());
}

namespace {

// `state`, whose last event has the hash `head`, and what came after it. Nothing when the log does not go through there.
std::optional<engine::State> fold_on(const JobId& job, const store::Loaded& loaded,
                                     engine::State state, const Hash& head,
                                     const engine::PlanCache& plans) {
  const auto tail = open_from(job, loaded, state.seq, head, plans.known());
  if (!tail) return std::nullopt;
  for (const Event& event : *tail) {
    if (!engine::apply(state, event, plans.source())) {
      return std::nullopt;
    }
  }
  return state;
}

}  // namespace

std::optional<engine::State> fold_tail(const JobId& job, const store::Loaded& loaded,
                                       const engine::PlanCache& plans) {
  if (!loaded.checkpoint) return std::nullopt;
  auto restored =
      engine::restore(job, loaded.checkpoint->seq, loaded.checkpoint->bytes, plans.source());
  if (!restored) return std::nullopt;
  return fold_on(job, loaded, std::move(restored->state), restored->head, plans);
}

namespace {

struct Looking {
  store::Store& store;
  JobId job;
  const engine::PlanCache& plans;
  async::Done<Result<Stood>> done;
};

void answer(Looking& look, store::Loaded loaded, Result<engine::State>&& state) {
  Stood stood{.loaded = std::move(loaded), .state = std::move(state)};
  stood.bytes = bytes_of(stood.loaded);
  if (const auto& checkpoint = stood.loaded.checkpoint) {
    stood.checkpoint_seq = checkpoint->seq;
    stood.checkpoint_bytes = checkpoint->bytes.size();
  }
  look.done(std::move(stood));
}

void fold_whole(Looking& look, store::Loaded loaded) {
  const auto events = open_log(look.job, loaded, look.plans.known());
  if (!events) return answer(look, std::move(loaded), std::unexpected(events.error()));
  answer(look, std::move(loaded), engine::fold(look.job, *events, look.plans.source()));
}

void from_checkpoint(std::shared_ptr<Looking> look) {
  look->store.load(look->job, store::kFromCheckpoint, [look](Result<store::Loaded> loaded) {
    if (!loaded) return look->done(std::unexpected(loaded.error()));
    if (auto state = fold_tail(look->job, *loaded, look->plans)) {
      return answer(*look, std::move(*loaded), std::move(*state));
    }
    if (!loaded->checkpoint) return fold_whole(*look, std::move(*loaded));
    // One that does not fit: what it stands for is read.
    look->store.load(look->job, 1, [look](Result<store::Loaded> all) {
      if (!all) return look->done(std::unexpected(all.error()));
      fold_whole(*look, std::move(*all));
    });
  });
}

}  // namespace

void load_state(store::Store& store, const JobId& job, const engine::PlanCache& plans,
                std::optional<Rested> rested, async::Done<Result<Stood>> done) {
  auto look = std::make_shared<Looking>(Looking{store, job, plans, std::move(done)});
  if (!rested) return from_checkpoint(std::move(look));
  const std::uint64_t next = rested->state.seq + 1;
  store.load(job, next, [look, rested = std::move(*rested)](Result<store::Loaded> loaded) mutable {
    if (!loaded) return look->done(std::unexpected(loaded.error()));
    auto state = fold_on(look->job, *loaded, std::move(rested.state), rested.head, look->plans);
    if (!state) return from_checkpoint(std::move(look));
    Stood stood{.loaded = std::move(*loaded), .state = std::move(*state)};
    stood.bytes = rested.bytes + bytes_of(stood.loaded);
    stood.checkpoint_seq = rested.checkpoint_seq;
    stood.checkpoint_bytes = rested.checkpoint_bytes;
    look->done(std::move(stood));
  });
}

std::vector<engine::StoredEffect> stored_effects(const std::vector<store::EffectRow>& effects) {
  std::vector<engine::StoredEffect> stored;
  stored.reserve(effects.size());
  for (const store::EffectRow& row : effects) {
    stored.push_back({row.invocation, row.try_no, row.record});
  }
  return stored;
}

bool doubts_own_call(const engine::State& state, const AttemptId& attempt) {
  for (const auto& [key, wait] : state.waits) {
    const auto& call = state.steps[wait.step].call;
    if (wait.resolve && call && call->attempt == attempt) return true;
  }
  return std::ranges::any_of(state.todo, [&](std::uint32_t index) {  // yet to be asked about
    const engine::Step& step = state.steps[index];
    return step.call && step.call->attempt == attempt && state.may_probe(step);
  });
}

}  // namespace ae::runtime
