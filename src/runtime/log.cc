// Reads a job's log from the store.
#include <memory>
#include <utility>

#include "engine/state/checkpoint.h"
#include "log/seal.h"
#include "runtime/job_cache.h"
#include "runtime/log.h"
#include "runtime/log_opener.h"

namespace ae::runtime {

LogOpener::LogOpener(const JobId& job, const store::LoadedJob& loaded, ValueLookup lookup,
                     std::uint64_t seq, const Hash& head)
    : job_(job), loaded_(loaded), lookup_(std::move(lookup)), seq_(seq), head_(head) {
  for (const Blob& blob : loaded.blobs) blobs_.emplace(blob.hash, &blob.bytes);
}

bool LogOpener::next() {
  if (opened_ == loaded_.commits.size() || !status_) return false;
  status_ = open_commit(loaded_.commits[opened_++]);
  return true;
}

Status LogOpener::open_commit(const std::string& bytes) {
  const BlobSource blobs = [this](const Hash& hash) -> Result<std::string> {
    if (const auto blob = blobs_.find(hash); blob != blobs_.end()) return *blob->second;
    return fail(Code::log_corrupt, "blob {} is missing", to_hex(hash));
  };
  AE_ASSIGN(OpenedBatch opened, open(job_, bytes, head_, blobs, lookup_));
  head_ = opened.head;
  if (opened.first_seq != seq_ + 1) {
    return fail(Code::log_corrupt, "event {} is missing", seq_ + 1);
  }
  seq_ = opened.last_seq;
  for (Event& event : opened.events) events_.push_back(std::move(event));
  return {};
}

std::vector<Event> LogOpener::take_opened() { return std::exchange(events_, {}); }

Status LogOpener::complete() const {
  if (!status_) return status_;
  if (seq_ == 0) return fail(Code::log_corrupt, "the job has no events");
  if (seq_ != loaded_.row.last_seq || head_ != loaded_.row.head) {
    return fail(Code::log_corrupt, "the log ends at event {}, the job's row has {}", seq_,
                loaded_.row.last_seq);
  }
  return {};
}

Result<std::vector<Event>> LogOpener::take() {
  AE_TRY(complete());
  return take_opened();
}

Error read_interrupted_error() {
  return {Code::unavailable,
          "the read ended early: the client disconnected, or this process is shutting down"};
}

Result<std::vector<Event>> open_all(LogOpener& opener, const async::Interrupt& interrupt) {
  while (opener.next()) {
    if (interrupt.requested()) return std::unexpected(read_interrupted_error());
  }
  return opener.take();
}

namespace {

// REQUIRES: `loaded` outlives the result.
BlobSource blobs_of(const store::LoadedJob& loaded) {
  return [&loaded](const Hash& hash) -> Result<std::string> {
    for (const Blob& blob : loaded.blobs) {
      if (blob.hash == hash) return blob.bytes;
    }
    return fail(Code::log_corrupt, "blob {} is missing", to_hex(hash));
  };
}

// Opens the events after event `seq`, whose hash is `head`.
Result<std::vector<Event>> open_from(const JobId& job, const store::LoadedJob& loaded,
                                     std::uint64_t seq, const Hash& head,
                                     const ValueLookup& lookup) {
  LogOpener opener(job, loaded, lookup, seq, head);
  while (opener.next()) {
  }
  return opener.take();
}

}  // namespace

Result<std::vector<Event>> open_log(const JobId& job, const store::LoadedJob& loaded,
                                    const ValueLookup& lookup) {
  return open_from(job, loaded, 0, Hash{}, lookup);
}

Result<Event> open_job_created(const JobId& job, const store::LoadedJob& loaded) {
  if (loaded.commits.empty()) return fail(Code::log_corrupt, "the job has no events");
  AE_ASSIGN(OpenedBatch first, open(job, loaded.commits.front(), Hash{}, blobs_of(loaded)));
  if (first.first_seq != 1 || first.events.empty()) {
    return fail(Code::log_corrupt, "event 1 is missing");
  }
  return std::move(first.events.front());
}

namespace {

// Extends `state`, whose last event has the hash `head`, by the newer events. nullopt: the log does
// not contain that event.
std::optional<engine::State> extend_state(const JobId& job, const store::LoadedJob& loaded,
                                          engine::State state, const Hash& head,
                                          const engine::PlanCache& plans) {
  const auto tail = open_from(job, loaded, state.seq, head, plans.lookup());
  if (!tail) return std::nullopt;
  for (const Event& event : *tail) {
    if (!engine::apply(state, event, plans.source())) {
      return std::nullopt;
    }
  }
  return state;
}

}  // namespace

std::optional<engine::State> fold_tail(const JobId& job, const store::LoadedJob& loaded,
                                       const engine::PlanCache& plans) {
  if (!loaded.checkpoint) return std::nullopt;
  auto checkpointed =
      engine::restore(job, loaded.checkpoint->seq, loaded.checkpoint->bytes, plans.source());
  if (!checkpointed) return std::nullopt;
  return extend_state(job, loaded, std::move(checkpointed->state), checkpointed->head, plans);
}

namespace {

struct LoadRequest {
  store::Store& store;
  JobId job;
  const engine::PlanCache& plans;
  async::Done<Result<LoadedState>> done;
};

LoadedState loaded_state(store::LoadedJob loaded, Result<engine::State>&& state) {
  LoadedState result{.loaded = std::move(loaded), .state = std::move(state)};
  result.bytes = bytes_of(result.loaded);
  if (const auto& checkpoint = result.loaded.checkpoint) {
    result.checkpoint_seq = checkpoint->seq;
    result.checkpoint_bytes = checkpoint->bytes.size();
  }
  return result;
}

}  // namespace

LoadedState fold_whole_log(const JobId& job, store::LoadedJob loaded,
                           const engine::PlanCache& plans) {
  const auto events = open_log(job, loaded, plans.lookup());
  if (!events) return loaded_state(std::move(loaded), std::unexpected(events.error()));
  return loaded_state(std::move(loaded), engine::fold(job, *events, plans.source()));
}

std::optional<LoadedState> fold_from_checkpoint(const JobId& job, store::LoadedJob&& loaded,
                                                const engine::PlanCache& plans) {
  if (auto state = fold_tail(job, loaded, plans)) {
    return loaded_state(std::move(loaded), std::move(*state));
  }
  if (loaded.checkpoint) return std::nullopt;
  return fold_whole_log(job, std::move(loaded), plans);
}

namespace {

void load_from_checkpoint(std::shared_ptr<LoadRequest> request) {
  request->store.load(
      request->job, store::kFromCheckpoint, [request](Result<store::LoadedJob> loaded) {
        if (!loaded) return request->done(std::unexpected(loaded.error()));
        auto state = fold_from_checkpoint(request->job, *std::move(loaded), request->plans);
        if (state) return request->done(*std::move(state));
        request->store.load(request->job, 1, [request](Result<store::LoadedJob> all) {
          if (!all) return request->done(std::unexpected(all.error()));
          request->done(fold_whole_log(request->job, *std::move(all), request->plans));
        });
      });
}

}  // namespace

void load_state(store::Store& store, const JobId& job, const engine::PlanCache& plans,
                std::optional<CachedJob> cached, async::Done<Result<LoadedState>> done) {
  auto request = std::make_shared<LoadRequest>(LoadRequest{store, job, plans, std::move(done)});
  if (!cached) return load_from_checkpoint(std::move(request));
  const std::uint64_t next = cached->state.seq + 1;
  store.load(job, next,
             [request, cached = std::move(*cached)](Result<store::LoadedJob> loaded) mutable {
               if (!loaded) return request->done(std::unexpected(loaded.error()));
               auto state = extend_state(request->job, *loaded, std::move(cached.state),
                                         cached.head, request->plans);
               if (!state) return load_from_checkpoint(std::move(request));
               LoadedState loaded_state{.loaded = std::move(*loaded), .state = std::move(*state)};
               loaded_state.bytes = cached.bytes + bytes_of(loaded_state.loaded);
               loaded_state.checkpoint_seq = cached.checkpoint_seq;
               loaded_state.checkpoint_bytes = cached.checkpoint_bytes;
               request->done(std::move(loaded_state));
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

bool has_own_unknown_call(const engine::State& state, const AttemptId& attempt) {
  for (const auto& [key, wait] : state.waits) {
    const auto& call = state.steps[wait.step].call;
    if (wait.resolve && call && call->attempt == attempt) return true;
  }
  return std::ranges::any_of(state.todo, [&](std::uint32_t index) {  // calls to be probed
    const engine::Step& step = state.steps[index];
    return step.call && step.call->attempt == attempt && state.may_probe(step);
  });
}

}  // namespace ae::runtime
