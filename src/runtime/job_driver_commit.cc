// JobDriver: the commits of its events.
#include <algorithm>
#include <utility>

#include "async/failpoint.h"
#include "engine/questions/questions.h"
#include "engine/state/checkpoint.h"
#include "log/seal.h"
#include "runtime/job_driver.h"
#include "runtime/log_writer.h"
#include "runtime/row.h"
#include "runtime/running_slot.h"

namespace ae::runtime {

// fused: one commit. split: the order of SPEC §5, each phase in its own transaction.
void JobDriver::plan_commits() {
  PendingCommit pending_commit;
  const auto flush = [&] {
    if (pending_commit.events.empty() && pending_commit.effects.empty() &&
        pending_commit.ledger_put.empty())
      return;
    pending_commits_.push_back(std::exchange(pending_commit, {}));
  };
  const bool split = host_.durability() == Durability::split;
  for (DraftedEvent& drafted : drafts_) {
    const EventType type = type_of(drafted.event);
    if (split && drafted.effect) {
      flush();
      pending_commit.effects.push_back(std::move(*drafted.effect));
      pending_commit.failpoints = {"effect.after_put"};
      flush();
    }
    const bool alone =
        split && (type == EventType::node_finished || type == EventType::step_committed);
    if (alone) flush();
    if (drafted.slot) pending_commit.effects_absent.push_back(*std::move(drafted.slot));
    pending_commit.events.push_back(std::move(drafted.event));
    pending_commit.row = std::move(drafted.row);
    if (alone) flush();
    if (!drafted.ledger) continue;
    const bool declares = type == EventType::tool_invocation_started;
    if (!declares) flush();
    pending_commit.ledger_put.push_back(std::move(*drafted.ledger));
    if (!declares) {
      pending_commit.failpoints = {"ledger.after_commit"};
      flush();
    }
  }
  for (store::LedgerRow& row : ledger_put_) pending_commit.ledger_put.push_back(std::move(row));
  pending_commit.ledger_erase = std::move(ledger_erase_);
  pending_commit.inbox_applied = std::move(applied_inbox_);
  pending_commit.release = release_;
  if (!split && has_outcomes_)
    pending_commit.failpoints = {"effect.after_put", "ledger.after_commit"};
  const bool has_changes = !pending_commit.events.empty() || !pending_commit.ledger_put.empty() ||
                           !pending_commit.ledger_erase.empty() ||
                           !pending_commit.inbox_applied.empty() || !pending_commit.effects.empty();
  if (has_changes) {
    pending_commits_.push_back(std::move(pending_commit));
  } else if (!pending_commits_.empty()) {
    pending_commits_.back().release = pending_commit.release;
  }
  drafts_.clear();
  ledger_put_.clear();
  ledger_erase_.clear();
  applied_inbox_.clear();
  has_outcomes_ = false;
}

// A checkpoint is as large as the job, so it is not written each time the job grows: over a job's
// life, checkpoints cost a few bytes per event.
bool JobDriver::should_checkpoint(bool release) const {
  constexpr std::uint64_t kBytesPerEvent = 128;
  if (engine::is_terminal(state_.status)) return false;
  const std::uint64_t every = host_.checkpoint_every();
  const std::uint64_t since = state_.seq - checkpoint_seq_;
  return since >= std::max(release ? every / 4 : every, checkpoint_bytes_ / kBytesPerEvent);
}

// Adds the event that names the checkpoint: hash and seq of the event before it, because no event
// can contain its own hash. The event changes no state, and the checkpoint covers it.
void JobDriver::add_checkpoint_event(PendingCommit& pending_commit, const SealInput& sealing) {
  auto before = seal(sealing, pending_commit.events);
  if (!before) return;  // sealing the commit reports the same error
  EventBody note = StateCheckpointed{
      .detail = Value::object({{"hash", to_hex(before->head)}, {"seq", before->last_seq}})};
  Status applied = engine::apply(state_, note, batch_time_, host_.plans().source());
  AE_CHECK(applied, job_.text + ": " + applied.error().message);
  pending_commit.events.push_back(std::move(note));
}

void JobDriver::commit_next() {
  PendingCommit pending_commit = std::move(pending_commits_.front());
  pending_commits_.pop_front();
  store::Batch batch;
  batch.job = job_;
  batch.authority = store::Batch::Leased{lease_.fence};
  batch.expected_seq = durable_seq_;
  batch.effects = std::move(pending_commit.effects);
  batch.effects_absent = std::move(pending_commit.effects_absent);
  batch.ledger_put = std::move(pending_commit.ledger_put);
  batch.ledger_erase = std::move(pending_commit.ledger_erase);
  batch.inbox_consumed = std::move(pending_commit.inbox_applied);
  batch.failpoints = std::move(pending_commit.failpoints);
  batch.release = pending_commit.release;
  if (must_read_inbox_) batch.inbox_read_through = inbox_read_;
  sealed_events_.clear();
  const bool checkpoints = pending_commits_.empty() && !pending_commit.events.empty() &&
                           should_checkpoint(pending_commit.release);
  if (!pending_commit.events.empty()) {
    const SealInput sealing =
        next_commit(world_, {job_, durable_seq_, head_}, batch_time_, lease_.fence.attempt);
    if (checkpoints) add_checkpoint_event(pending_commit, sealing);
    auto sealed = seal(sealing, std::move(pending_commit.events));
    if (!sealed) return end(sealed.error());
    sealed_events_ = std::move(sealed->events);
    sealed_head_ = sealed->head;
    batch.sealed = std::move(*sealed);
    batch.row = pending_commit.row ? *std::move(pending_commit.row) : row_of(state_);
    if (!pending_commits_.empty()) {  // the last commit sets the status
      batch.row.status = "running";
      batch.row.not_before.reset();
    }
  }
  if (checkpoints) {
    batch.checkpoint = engine::checkpoint(state_, sealed_head_);
    checkpoint_seq_ = state_.seq;
    checkpoint_bytes_ = batch.checkpoint->size();
  }
  if (batch.release) {
    const bool extends = batch.sealed.has_value();
    sign_head(world_, extends ? batch.sealed->last_seq : durable_seq_,
              extends ? sealed_head_ : head_, world_.store.now(), batch);
  }
  batch_ = std::move(batch);
  committing_ = true;
  send();
}

void JobDriver::send() {
  world_.store.commit(*batch_, [self = shared_from_this()](Result<store::CommitResult> result) {
    self->on_committed(std::move(result));
  });
}

// Nothing was committed, or the outcome is unknown: sends the same bytes again, which changes
// nothing if they are already committed.
void JobDriver::retry_commit(const Error& error) {
  if (calls_cut_off_) return end(write_error());
  if (failures_ == 0) host_.warn(job_, "a commit failed and is retried: " + error.message);
  retry_later(&JobDriver::send);
}

void JobDriver::on_committed(Result<store::CommitResult> result) {
  if (ended_) return;
  const RunningSlot::Slice slice(world_.slot, slice_name_);
  if (!result) {
    switch (result.error().code) {
      case Code::unavailable:
      case Code::unknown_outcome:
        return retry_commit(result.error());
      case Code::inbox_pending:
        return reload("the inbox was not empty");
      case Code::sequence_conflict:  // no other process writes the log of a leased job
        return reload("a late result has arrived");
      case Code::stale_attempt:
      case Code::not_found:
        return on_lease_lost();
      case Code::store_stopped:
        return host_.store_stopped(result.error());
      default:
        return end(result.error());
    }
  }
  failures_ = reloads_ = 0;
  committing_ = false;
  const bool released = batch_->release;
  if (batch_->sealed) log_bytes_ += bytes_of(*batch_->sealed);
  batch_.reset();
  if (!sealed_events_.empty()) {
    durable_seq_ = sealed_events_.back().seq;
    head_ = sealed_head_;
    host_.on_committed_events(job_, std::exchange(sealed_events_, {}));
  }
  if (ended_) return;
  if (!pending_commits_.empty()) return commit_next();
  uncommitted_outcomes_.clear();
  must_read_inbox_ = false;
  abandon_open_questions();
  if (released) return end(std::nullopt);
  if (stopped_for_newer_request_) return end(newer_request_);
  on_all_durable();
}

void JobDriver::on_all_durable() {
  for (async::Done<Status>& on_written : std::exchange(pending_note_callbacks_, {}))
    on_written(Status{});
  for (const StepId& step : std::exchange(to_perform_, {})) perform(step);
  if (!ended_ && state_.ending && state_.ending->cancelled) cancel_model_calls();
  if (ended_) return;
  pump();
}

// Abandons questions whose job is ending or whose step is done. A question that a later try
// continued is no longer pending.
void JobDriver::abandon_open_questions() {
  std::erase_if(open_questions_, [&](const OpenQuestion& question) {
    const auto at = state_.by_id.find(question.step);
    const engine::Step* step = at == state_.by_id.end() ? nullptr : &state_.steps[at->second];
    const bool waits = !state_.ending && step != nullptr &&
                       step->phase != engine::StepPhase::done && step->call &&
                       step->call->id == question.invocation;
    if (waits) return false;
    abandon_question(world_.tool_registry, question);
    return true;
  });
}

// The job is cancelled. Tool calls are awaited. Model calls are abandoned, because the rest of
// their output is not needed and costs money. No outcome becomes unknown: a model call only reads.
void JobDriver::cancel_model_calls() {
  for (const auto& [step_id, call] : std::map(in_flight_)) {
    const auto step = state_.by_id.find(step_id);
    if (step == state_.by_id.end()) continue;
    if (state_.tool_of(state_.steps[step->second]).provider.empty()) continue;
    call.tool->abandon(call.invocation, call.try_no);
  }
}

}  // namespace ae::runtime
