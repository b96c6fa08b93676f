#include "runtime/death.h"

#include <memory>
#include <utility>
#include <vector>

#include "engine/heart/decide.h"
#include "inspect/head.h"
#include "log/seal.h"
#include "runtime/row.h"
#include "runtime/runtime.h"

namespace ae::runtime {
namespace {

constexpr Duration kAgain = std::chrono::milliseconds(500);

struct Recording {
  World& world;
  const engine::PlanCache& plans;
  RunningSlot::Named died;
  std::weak_ptr<HolderHost*> alive;
  async::Done<Result<std::vector<Event>>> done;
  std::vector<Event> events;

  void nothing() { done(std::vector<Event>()); }
};

void begin(const std::shared_ptr<Recording>& recording);

void again(const std::shared_ptr<Recording>& recording) {
  recording->world.loop.after(kAgain, [recording] {
    if (recording->alive.lock()) begin(recording);
  });
}

// The attempt may have died before its job_running was durable; a job that is queued cannot be requeued.
std::vector<EventBody> death_events(const RunningSlot::Named& died, const store::JobRow& row,
                                    const engine::State& state) {
  std::vector<EventBody> events;
  const bool begun = state.attempt == died.fence.attempt;
  if (begun && state.status != engine::JobStatus::running) return events;  // it is recorded
  if (!begun) {
    events.push_back(engine::running_event(died.fence.attempt, died.fence.epoch, row.claim_worker,
                                           std::nullopt));
  }
  events.push_back(engine::requeued_event(engine::kProcessDied, std::nullopt));
  return events;
}

void committed(const std::shared_ptr<Recording>& recording,
               const Result<store::Committed>& result) {
  if (!recording->alive.lock()) return;
  if (result) return recording->done(std::move(recording->events));
  switch (result.error().code) {
    case Code::unavailable:
    case Code::unknown_outcome:
    case Code::inbox_pending:
    case Code::sequence_conflict:
      return again(recording);
    case Code::stale_attempt:
    case Code::not_found:
      return recording->nothing();
    default:
      return recording->done(std::unexpected(result.error()));
  }
}

void record(const std::shared_ptr<Recording>& recording, Stood stood) {
  World& world = recording->world;
  const RunningSlot::Named& died = recording->died;
  const store::JobRow& row = stood.loaded.row;
  if (row.claim != died.fence) return recording->nothing();
  if (!stood.state) return recording->done(std::unexpected(stood.state.error()));
  engine::State& state = *stood.state;
  if (engine::is_blocked(state.status) || engine::is_terminal(state.status)) {
    return recording->nothing();
  }
  std::vector<EventBody> events = death_events(died, row, state);
  if (events.empty()) return recording->nothing();
  const Instant now = world.store.now();
  for (std::size_t i = 0; i < events.size(); ++i) {
    const Status applied = engine::apply(state, events[i], now, recording->plans.source());
    if (!applied) return recording->done(std::unexpected(applied.error()));
    // No attempt begins: what it would take in first may be what kills it.
    if (i + 1 == events.size() && state.status == engine::JobStatus::queued &&
        state.is_worn_out()) {
      events.push_back(engine::paused_event(engine::kWornOut));
    }
  }
  auto sealed = seal({.job = died.job,
                      .first_seq = row.last_seq + 1,
                      .prev_hash = row.head,
                      .first_id = uuid_v7(static_cast<std::uint64_t>(now.us / 1000),
                                          world.chance.next(), world.chance.next()),
                      .created_at = now,
                      .attempt_id = died.fence.attempt,
                      .salt_seed_a = world.chance.next(),
                      .salt_seed_b = world.chance.next()},
                     events);
  if (!sealed) return recording->done(std::unexpected(sealed.error()));
  recording->events = std::move(sealed->events);
  store::Batch batch;
  batch.job = died.job;
  batch.authority = store::Batch::Held{died.fence};
  batch.expected_seq = row.last_seq;
  batch.row = row_of(state);
  // With acts in its inbox a job is given back by the end of its lease; one that parks keeps them until a claim takes them in.
  const bool parks = state.status == engine::JobStatus::parked;
  batch.release = parks || stood.loaded.inbox.empty();
  batch.leaves_inbox = parks;
  if (batch.release && world.signer != nullptr) {
    batch.signed_head =
        engine::signed_head(*world.signer, died.job, sealed->last_seq, sealed->head, now);
  }
  batch.sealed = std::move(*sealed);
  world.store.commit(std::move(batch), [recording](Result<store::Committed> result) {
    committed(recording, result);
  });
}

void begin(const std::shared_ptr<Recording>& recording) {
  load_state(recording->world.store, recording->died.job, recording->plans, std::nullopt,
             [recording](Result<Stood> stood) {
               if (!recording->alive.lock()) return;
               if (stood) return record(recording, std::move(*stood));
               switch (stood.error().code) {
                 case Code::unavailable:
                 case Code::unknown_outcome:
                   return again(recording);
                 case Code::not_found:
                   return recording->nothing();
                 default:
                   return recording->done(std::unexpected(stood.error()));
               }
             });
}

}  // namespace

void record_death(World& world, const engine::PlanCache& plans, const RunningSlot::Named& died,
                  std::weak_ptr<HolderHost*> alive, async::Done<Result<std::vector<Event>>> done) {
  begin(std::make_shared<Recording>(Recording{.world = world,
                                              .plans = plans,
                                              .died = died,
                                              .alive = std::move(alive),
                                              .done = std::move(done),
                                              .events = {}}));
}

}  // namespace ae::runtime
