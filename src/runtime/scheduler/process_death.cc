#include "runtime/scheduler/process_death.h"

#include <memory>
#include <utility>
#include <vector>

#include "engine/heart/decide.h"
#include "runtime/log.h"
#include "runtime/log_writer.h"
#include "runtime/row.h"

namespace ae::runtime {
namespace {

constexpr Duration kRetryDelay = std::chrono::milliseconds(500);

struct CrashRecording {
  World& world;
  const engine::PlanCache& plans;
  RunningSlot::SliceName interrupted;
  async::Alive::Watch alive;
  async::Done<Result<std::vector<Event>>> done;
  std::vector<Event> events;

  void nothing_to_record() { done(std::vector<Event>()); }
};

void load_and_record(const std::shared_ptr<CrashRecording>& recording);

void retry_later(const std::shared_ptr<CrashRecording>& recording) {
  recording->world.loop.after(kRetryDelay, [recording] {
    if (recording->alive) load_and_record(recording);
  });
}

// The attempt may have died before its job_running was durable; a queued job cannot be requeued.
std::vector<EventBody> death_events(const RunningSlot::SliceName& interrupted,
                                    const store::JobRow& row, const engine::State& state) {
  std::vector<EventBody> events;
  const bool begun = state.attempt == interrupted.fence.attempt;
  if (begun && state.status != engine::JobStatus::running) return events;  // already recorded
  if (!begun) {
    events.push_back(engine::running_event(interrupted.fence.attempt, interrupted.fence.epoch,
                                           row.claim_worker, std::nullopt));
  }
  events.push_back(engine::requeued_event(engine::kProcessDied, std::nullopt));
  return events;
}

void on_commit_result(const std::shared_ptr<CrashRecording>& recording,
                      const Result<store::CommitResult>& result) {
  if (!recording->alive) return;
  if (result) return recording->done(std::move(recording->events));
  switch (result.error().code) {
    case Code::unavailable:
    case Code::unknown_outcome:
    case Code::inbox_pending:
    case Code::sequence_conflict:
      return retry_later(recording);
    case Code::stale_attempt:
    case Code::not_found:
      return recording->nothing_to_record();
    default:
      return recording->done(std::unexpected(result.error()));
  }
}

void record(const std::shared_ptr<CrashRecording>& recording, LoadedState loaded_state) {
  World& world = recording->world;
  const RunningSlot::SliceName& interrupted = recording->interrupted;
  const store::JobRow& row = loaded_state.loaded.row;
  if (row.claim != interrupted.fence) return recording->nothing_to_record();
  if (!loaded_state.state) return recording->done(std::unexpected(loaded_state.state.error()));
  engine::State& state = *loaded_state.state;
  if (engine::is_blocked(state.status) || engine::is_terminal(state.status)) {
    return recording->nothing_to_record();
  }
  std::vector<EventBody> events = death_events(interrupted, row, state);
  if (events.empty()) return recording->nothing_to_record();
  const Instant now = world.store.now();
  const engine::SummaryKey summary_key = engine::summary_key(state);
  for (std::size_t i = 0; i < events.size(); ++i) {
    const Status applied = engine::apply(state, events[i], now, recording->plans.source());
    if (!applied) return recording->done(std::unexpected(applied.error()));
    // Parks the job without beginning an attempt: what the attempt would apply first may be what
    // kills it.
    if (i + 1 == events.size() && state.status == engine::JobStatus::queued &&
        state.is_worn_out()) {
      events.push_back(engine::paused_event(engine::kWornOut));
    }
  }
  LogWriter writer(world, interrupted.job, {row.last_seq, row.head}, now,
                   interrupted.fence.attempt);
  store::Batch batch;
  auto sealed_events = writer.append(std::move(events), row_of(state), batch);
  if (!sealed_events) return recording->done(std::unexpected(sealed_events.error()));
  recording->events = *std::move(sealed_events);
  batch.authority = store::Batch::Leased{interrupted.fence};
  batch.summary = changed_summary(state, summary_key);
  // If the inbox has entries, the claim ends with its lease; a job that parks keeps the entries
  // until a claim applies them.
  const bool parks = state.status == engine::JobStatus::parked;
  batch.release = parks || loaded_state.loaded.inbox.empty();
  batch.keeps_inbox = parks;
  if (batch.release) sign_head(world, writer.end(), now, batch);
  world.store.commit(std::move(batch), [recording](Result<store::CommitResult> result) {
    on_commit_result(recording, result);
  });
}

void load_and_record(const std::shared_ptr<CrashRecording>& recording) {
  load_state(recording->world.store, recording->interrupted.job, recording->plans, std::nullopt,
             [recording](Result<LoadedState> loaded_state) {
               if (!recording->alive) return;
               if (loaded_state) return record(recording, std::move(*loaded_state));
               switch (loaded_state.error().code) {
                 case Code::unavailable:
                 case Code::unknown_outcome:
                   return retry_later(recording);
                 case Code::not_found:
                   return recording->nothing_to_record();
                 default:
                   return recording->done(std::unexpected(loaded_state.error()));
               }
             });
}

}  // namespace

void record_process_death(World& world, const engine::PlanCache& plans,
                          const RunningSlot::SliceName& interrupted, async::Alive::Watch alive,
                          async::Done<Result<std::vector<Event>>> done) {
  load_and_record(std::make_shared<CrashRecording>(CrashRecording{.world = world,
                                                                  .plans = plans,
                                                                  .interrupted = interrupted,
                                                                  .alive = std::move(alive),
                                                                  .done = std::move(done),
                                                                  .events = {}}));
}

}  // namespace ae::runtime
