// JobDriver: the actor that runs one job.
#include "runtime/driver/job_driver.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "async/failpoint.h"
#include "engine/code/request_code.h"
#include "engine/heart/recovery.h"
#include "engine/heart/side_record.h"
#include "engine/state/checkpoint.h"
#include "json/json.h"
#include "runtime/child_requests.h"
#include "runtime/driver/job_checks.h"
#include "runtime/driver/ledger_row.h"
#include "runtime/log.h"
#include "runtime/reply.h"
#include "runtime/row.h"

namespace ae::runtime {
namespace {

constexpr Duration kRetryFirst = std::chrono::milliseconds(50);
constexpr Duration kRetryMax = std::chrono::seconds(5);
// One job occupies the loop for at most this long; then the events decided so far are committed.
constexpr Duration kSliceMax = std::chrono::milliseconds(50);

// Must it not overtake an accepted request? The end of a child completes its wait, whichever comes
// first.
bool follows_inbox(const EventBody& draft) {
  if (const auto* const opened = std::get_if<WaitOpened>(&draft)) {
    return opened->wait_type != to_text(engine::WaitType::job);
  }
  const auto* const closed = std::get_if<WaitCompleted>(&draft);
  return closed != nullptr && (closed->outcome == "timed_out" || closed->outcome == "cancelled");
}

// Does an advance follow, which belongs to it?
bool begins_advance(const Observations::Entry& observed) {
  const auto* const outcome = std::get_if<ObservedOutcome>(&observed);
  return outcome != nullptr && outcome->outcome.delivered.has_value();
}

}  // namespace

JobDriver::JobDriver(World& world, JobDriverHost& host, JobId job, store::Lease lease,
                     std::string worker)
    : world_(world),
      host_(host),
      job_(std::move(job)),
      lease_(std::move(lease)),
      worker_(std::move(worker)),
      slice_name_(RunningSlot::name_of(job_, lease_.fence)),
      drafts_(host.durability()),
      routines_(
          world,
          {.on_advance = [this](ObservedAdvance observed) { on_advance(std::move(observed)); },
           .on_dropped = [this](std::uint32_t node) { on_routine_dropped(node); },
           .on_input = [this] { pump(); },
           .on_version_wait = [this](Duration wait) { host_.on_version_wait(wait); }}) {}

// Random words only for plans that need them; otherwise the random source is read only once per
// decision.
std::array<std::uint64_t, 4> JobDriver::entropy() {
  std::array<std::uint64_t, 4> entropy{};
  if (state_.plan && state_.plan->needs_entropy()) {
    for (std::uint64_t& word : entropy) word = world_.random.next();
  }
  return entropy;
}

engine::DecisionContext JobDriver::context(Instant now) {
  const bool owned = world_.store.owned();
  // No other process can claim from a store that this process owns: its leases matter only to an
  // earlier process.
  return {.now = now,
          .lease_until = owned ? now + std::chrono::hours(1) : lease_.lease_until,
          .owned = owned && !host_.left_unknown_call(job_),
          .jitter_seed = world_.random.next(),
          .entropy = entropy(),
          .tool_versions = &tool_versions_,
          .execution_version = version_ ? &*version_ : nullptr,
          .confirmations = confirmer_ ? &confirmer_->confirmations() : nullptr,
          .routines = routines_.empty() ? nullptr : &routines_.wanted(state_),
          .functions_held_until = world_.functions_held_until,
          .held_calls = &reported_.held};
}

// ---------------------------------------------------------------- input

void JobDriver::on_inbox_notify() {
  if (ended_) return;
  inbox_notified_ = true;
  pump();
}

void JobDriver::on_inbox_loaded(Result<store::LoadedJob> loaded) {
  committing_ = false;
  if (ended_) return;
  if (!loaded) {
    if (calls_cut_off_) return end(write_error());
    inbox_notified_ = true;
    return schedule_pump(world_.store.now() + kRetryFirst);
  }
  newer_request_ = find_newer_request(job_, loaded->inbox, inbox_read_);
  for (store::InboxEntry& entry : loaded->inbox) inbox_.push_back(std::move(entry));
  batch_time_ = world_.store.now();
  if (auto imported = import_effect_records(*loaded); !imported)
    return release_claim(imported.error());
  pump();
}

void JobDriver::on_lease_lost() {
  if (ended_) return;
  // The renewal was sent while the lease was valid: the late reply is the store's fault.
  if (!pending_heartbeats_.empty() && *pending_heartbeats_.begin() < lease_.lease_until)
    on_renewal_failed();
  host_.warn(job_, "lease lost; another worker may hold the job now");
  abandon_all();
  end(Error{Code::stale_attempt, "the lease is lost"});
}

void JobDriver::drain(Duration grace) {
  if (ended_) return;
  if (!draining_) {
    draining_ = true;
    drain_timer_ = world_.loop.after(grace, [weak = weak_from_this()] {
      if (auto self = weak.lock()) {
        self->drain_timer_.reset();
        self->cut_off_calls();
      }
    });
  }
  pump();
}

void JobDriver::cut_off_calls() {
  if (ended_) return;
  calls_cut_off_ = true;
  abandon_all();
  if (failures_ > 0) return end(write_error());
  pump();
}

Error JobDriver::write_error() const {
  return {Code::unavailable,
          fmt::format("the store cannot be written, and the process stops: outcomes since the "
                      "last commit are not recorded{}",
                      observed_.has_outcome() ? "; answered calls have an unknown outcome" : "")};
}

void JobDriver::give_up() {
  if (ended_) return;
  calls_cut_off_ = true;
  abandon_all();
  end(write_error());
}

void JobDriver::abandon_all() {
  for (const InFlightCalls::Call& call : std::vector(in_flight_.list())) {
    call.tool->abandon(call.invocation, call.try_no);
  }
}

void JobDriver::on_outcome(std::shared_ptr<const PerformedCall> call, Outcome&& outcome) {
  switch (AE_FAILPOINT("tool.after")) {
    case async::FailpointAction::proceed:
      break;
    default:
      if (outcome.delivered) routines_.drop(state_.find_step(call->sent.step)->node);
      outcome = Outcome{
          .kind = OutcomeKind::unknown, .error_code = "failpoint", .error_message = "tool.after"};
  }
  if (!outcome.usage.is_null()) {
    outcome.usage = engine::with_cost(*state_.plan, std::move(outcome.usage));
  }
  // That of a routine's own function is the beginning of an advance, which follows.
  const bool advances = outcome.delivered.has_value();
  observed_.push(ObservedOutcome{std::move(call), std::move(outcome)});
  if (!advances) pump();
}

// ---------------------------------------------------------------- events

void JobDriver::add(EventBody&& draft, std::optional<TrySlot> undecided) {
  unfinished_.reset();
  Status applied = engine::apply(state_, draft, batch_time_, host_.plans().source());
  AE_CHECK(applied, fmt::format("{}: {}", job_.text, applied.error().message));
  must_read_inbox_ = must_read_inbox_ || follows_inbox(draft);
  std::optional<DraftedRow> row;
  if (host_.durability() == Durability::split) {
    row = {row_of(state_), engine::summary_key(state_), summary_of(state_)};
  }
  drafts_.add_event(std::move(draft), std::move(undecided), std::move(row));
}

// Adds an event that follows from the log. It may depend on a call having left no result.
void JobDriver::add_decided(EventBody&& draft) {
  auto undecided = engine::decided_effect_slot(state_, draft);
  add(std::move(draft), std::move(undecided));
}

// Adds the events that record the outcome; false: it is dropped.
bool JobDriver::record(ObservedOutcome& observed) {
  const engine::SentTry& sent = observed.call->sent;
  const std::uint32_t index = state_.index_of(sent.step);
  if (index == engine::kNoStep) return false;  // it has an outcome, and its step was dropped
  const engine::Step& step = state_.steps[index];
  if (!step.call || !step.call->open || step.call->try_no != sent.try_no) {
    // Its routine went on from a success that the log does not hold.
    if (observed.outcome.delivered) routines_.drop(step.node);
    return false;
  }
  if (observed.outcome.delivered) {
    if (const Status possible = engine::check_delivery(state_, step, *observed.outcome.delivered);
        !possible) {
      routines_.fail_routine(step.node, possible.error());
      observed.outcome.delivered.reset();
    }
  }
  in_flight_.erase(sent.step);
  progress_reports_.on_ended(sent.step);
  ledger_.forget(sent.invocation, sent.try_no);
  // Cut off by this process while draining: the try stays open and is handled by SPEC §6, as after
  // a crash.
  if (calls_cut_off_ && observed.outcome.kind != OutcomeKind::success && !observed.outcome.definite)
    return false;
  drafts_.has_outcomes = true;
  const bool split = host_.durability() == Durability::split;
  std::optional<store::LedgerRow> finished;
  if (split) {
    drafts_.add_effect(
        {sent.invocation, sent.try_no,
         canonical(engine::effect_record(job_, sent, observed.outcome, slice_time_))});
    finished = ledger_row(job_, *step.call, ledger_state(observed.outcome));
  } else if (auto found = tries_with_note_.find(sent.invocation); found != tries_with_note_.end()) {
    drafts_.ledger_erase.emplace_back(sent.invocation, found->second);
    tries_with_note_.erase(found);
  }
  if (observed.outcome.kind == OutcomeKind::input_required) {
    open_questions_.push_back({sent.step, step.call->tool, sent.invocation, sent.try_no});
  }
  if (observed.outcome.delivered) routines_.on_recorded(step);
  for (EventBody& draft : engine::record_outcome(state_, index, observed.outcome, slice_time_))
    add(std::move(draft));
  if (finished) drafts_.add_finished(*std::move(finished));
  return true;
}

void JobDriver::apply_inbox() {
  if (newer_request_) return inbox_.clear();
  if (inbox_.empty()) return;
  struct Received {
    std::size_t entry;  // index into drafts_.inbox_applied
    Result<engine::ControlRequest> request;
  };
  std::vector<Received> received;
  for (const store::InboxEntry& entry : std::exchange(inbox_, {})) {
    if (entry.number <= inbox_read_) continue;
    inbox_read_ = entry.number;
    auto json = engine::read_side_record(engine::inbox_location(job_, entry.id), entry.request);
    received.push_back({drafts_.inbox_applied.size(),
                        json ? engine::ControlRequest::from_json(*json)
                             : Result<engine::ControlRequest>(std::unexpected(json.error()))});
    drafts_.inbox_applied.push_back({.number = entry.number, .id = entry.id, .reply = {}});
  }
  // A plan request closes waits: requests accepted for those waits are applied first.
  std::ranges::stable_partition(received, [](const Received& one) {
    return !one.request || !one.request->is<engine::PlanRequest>();
  });
  for (const Received& one : received) {
    const Result<Value> answer = apply_received(one.request);
    // A hint has no sender.
    if (one.request && one.request->is<engine::TimersRequest, engine::ChildEndedRequest>())
      continue;
    drafts_.inbox_applied[one.entry].reply = reply_text(answer);
  }
}

// Adds the events of a request from the inbox; answers its sender.
Result<Value> JobDriver::apply_received(const Result<engine::ControlRequest>& request) {
  if (!request) {
    host_.warn(job_, fmt::format("an accepted request is damaged: {}", request.error().message));
    return std::unexpected(request.error());
  }
  // Only a hint that a late result or a due timer exists: both are checked in any case, after the
  // accepted requests.
  if (request->is<engine::TimersRequest>()) return Value();
  auto applied = engine::apply_accepted(state_, *request, context(slice_time_));
  for (EventBody& draft : applied.events) {
    // With the new plan the job goes to a worker that has its tools.
    release_ = release_ || std::holds_alternative<JobRequeued>(draft);
    add_decided(std::move(draft));
  }
  return std::move(applied.answer);
}

// Starts nothing new. Calls in flight are awaited and recorded; then the job is left to other
// workers, with its inbox: the claim ends with its lease, because a job without a lease must have
// an empty inbox.
void JobDriver::stop_for_newer_request() {
  if (!in_flight_.empty() || !to_perform_.empty()) return;
  if (state_.status == engine::JobStatus::running) {
    add(engine::requeued_event("needs_version", std::nullopt));
  }
  stopped_for_newer_request_ = true;
}

// Turns all input into events and decides until there are no more events.
void JobDriver::collect_events() {
  add_progress_reports();
  while (observed_.has_pending()) {
    Observations::Entry observed = observed_.take_next();
    const bool recorded = std::visit([this](auto& one) { return record(one); }, observed);
    // Commit these first. What belongs to an advance is recorded in one commit.
    const bool goes_on = begins_advance(observed) || !is_slice_over();
    if (recorded) observed_.add_recorded(std::move(observed));
    if (!goes_on && observed_.has_pending()) return;
  }
  apply_inbox();
  next_decision_at_.reset();
  if (newer_request_) return stop_for_newer_request();
  const bool left_open = calls_cut_off_ && in_flight_.empty() && !state_.calling.empty();
  if (draining_ && (!state_.ending || state_.must_undo() || left_open)) {
    if (in_flight_.empty() && state_.status == engine::JobStatus::running) {
      add(engine::requeued_event("drain", std::nullopt));
      release_ = true;
    }
    return;
  }
  const engine::DecisionContext decision_context = context(slice_time_);
  if (auto due = state_.next_due(); due && *due <= decision_context.now) {
    auto applied =
        engine::apply_request(state_, {.body = engine::TimersRequest{}}, decision_context);
    AE_CHECK(applied.has_value(), job_.text);
    for (EventBody& draft : applied->events) add(std::move(draft));
  }
  engine::Decision decision;
  while (drafts_.event_count() < 4096 && !is_slice_over()) {
    if (!routines_.empty())
      routines_.wanted(state_);  // the decision before may have added outcomes
    engine::decide(state_, decision_context, limits_, unfinished_ ? &*unfinished_ : nullptr,
                   decision);
    next_decision_at_ = decision.decide_again_at;
    if (!decision.confirm.empty()) start_checks(decision.confirm);
    if (decision.events.empty()) {
      unfinished_ = decision.unfinished;
      if (!unfinished_) break;
      if (world_.steady.since_start() - slice_started_ < kSliceMax) continue;
      next_decision_at_ = decision_context.now;  // other jobs run first
      break;
    }
    for (EventBody& draft : decision.events) {
      const auto* declared = std::get_if<ToolInvocationStarted>(&draft);
      if (declared != nullptr &&
          async::failpoint_handler != nullptr) {  // by node, so that a test can select one job
        static_cast<void>(AE_FAILPOINT("decided." + declared->node_id));
      }
      const bool writes_ledger = declared != nullptr && host_.durability() == Durability::split;
      const StepId step = writes_ledger ? declared->step_id : StepId();
      add_decided(std::move(draft));
      if (writes_ledger) {
        const engine::Invocation& call = *state_.find_step(step)->call;
        drafts_.add_declared(ledger_row(job_, call, "INFLIGHT"));
      }
    }
    unfinished_ = decision.unfinished;  // `add` has reset it
    for (StepId& step : decision.perform) to_perform_.push_back(std::move(step));
    if (decision.release) {
      release_ = true;
      break;
    }
  }
}

// ---------------------------------------------------------------- commit

// Other jobs and clients run while the drafts are committed. The next decision follows after the
// commit.
bool JobDriver::is_slice_over() const {
  return drafts_.event_count() > 0 && world_.steady.since_start() - slice_started_ >= kSliceMax;
}

void JobDriver::pump() {
  if (ended_ || committing_) return;
  const RunningSlot::Slice slice(world_.slot, slice_name_);
  slice_started_ = world_.steady.since_start();
  if (timer_) world_.loop.cancel(*std::exchange(timer_, std::nullopt));
  if (std::exchange(inbox_notified_, false)) {
    committing_ = true;
    world_.store.load(job_, durable_end_.seq + 1,
                      [self = shared_from_this()](Result<store::LoadedJob> loaded) {
                        self->on_inbox_loaded(std::move(loaded));
                      });
    return;
  }
  slice_time_ = world_.store.now();
  if (drafts_.event_count() == 0) batch_time_ = slice_time_;
  for (InFlightNote& note : notes_) {
    bool open = false;
    for (std::uint32_t index : state_.calling) {
      const engine::Invocation& call = *state_.steps[index].call;
      if (call.id != note.invocation) continue;
      drafts_.ledger_put.push_back(ledger_row(job_, call, "INFLIGHT", note.note));
      tries_with_note_[note.invocation] = note.try_no;
      open = true;
    }
    if (open) {
      pending_note_callbacks_.push_back(std::move(note.on_written));
    } else {
      note.on_written(fail(Code::stale_attempt, "the call is no longer open"));
    }
  }
  notes_.clear();
  collect_events();
  pending_commits_ = drafts_.take(release_);
  if (pending_commits_.empty()) {
    if (stopped_for_newer_request_) return end(newer_request_);
    if (!start_routines()) return;
    if (!to_perform_.empty()) return on_all_durable();  // declared before the log was reloaded
    std::optional<Instant> next = progress_reports_.next_at();
    if (next_decision_at_) next = std::min(*next_decision_at_, next.value_or(*next_decision_at_));
    if (next) schedule_pump(*next);
    return;
  }
  commit_next();
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
void JobDriver::add_checkpoint_event(PendingCommit& pending_commit, const LogWriter& writer) {
  auto before = writer.end_after(pending_commit.events);
  if (!before) return;  // sealing the commit reports the same error
  EventBody note =
      StateCheckpointed{.detail = CheckpointedEvent{.hash = before->head,
                                                    .seq = static_cast<std::int64_t>(before->seq)}};
  Status applied = engine::apply(state_, note, batch_time_, host_.plans().source());
  AE_CHECK(applied, fmt::format("{}: {}", job_.text, applied.error().message));
  pending_commit.events.emplace_back().body = std::move(note);
}

void JobDriver::commit_next() {
  PendingCommit pending_commit = std::move(pending_commits_.front());
  pending_commits_.erase(pending_commits_.begin());
  store::Batch& batch = batch_.emplace(job_, store::Batch::Leased{lease_.fence}, durable_end_.seq);
  batch.effects = std::move(pending_commit.effects);
  batch.effects_absent = std::move(pending_commit.effects_absent);
  batch.ledger_put = std::move(pending_commit.ledger_put);
  batch.ledger_erase = std::move(pending_commit.ledger_erase);
  committing_replies_.clear();
  for (const AppliedEntry& entry : pending_commit.inbox_applied) {
    if (!entry.reply.empty()) committing_replies_.push_back({entry.id, entry.reply});
  }
  consume(std::move(pending_commit.inbox_applied), batch);
  batch.failpoints = std::move(pending_commit.failpoints);
  batch.release = pending_commit.release;
  if (must_read_inbox_) batch.inbox_read_through = inbox_read_;
  observed_events_.clear();
  sealed_end_ = durable_end_;
  const bool checkpoints = pending_commits_.empty() && !pending_commit.events.empty() &&
                           should_checkpoint(pending_commit.release);
  for (const auto& one : pending_commit.events) add_child_request(state_, one.body, batch);
  if (!pending_commit.events.empty()) {
    LogWriter writer(world_, job_, durable_end_, batch_time_, lease_.fence.attempt);
    if (checkpoints) add_checkpoint_event(pending_commit, writer);
    auto& drafted = pending_commit.row;
    store::RowState row = drafted ? std::move(drafted->row) : row_of(state_);
    const auto key = drafted ? drafted->summary_key : engine::summary_key(state_);
    if (std::exchange(summary_key_, key) != key) {
      batch.summary = drafted ? std::move(drafted->summary) : summary_of(state_);
    }
    if (!pending_commits_.empty()) {  // the last commit sets the status
      row.status = "running";
      row.not_before.reset();
    }
    auto sealed_events = writer.append(std::move(pending_commit.events), std::move(row), batch);
    if (!sealed_events) return end(sealed_events.error());
    observed_events_ = host_.observed_events(*std::move(sealed_events));
    sealed_end_ = writer.end();
  }
  if (checkpoints) {
    batch.checkpoint = engine::checkpoint(state_, sealed_end_.head);
    checkpoint_seq_ = state_.seq;
    checkpoint_bytes_ = batch.checkpoint->size();
    state_bytes_ = bytes_of_checkpoint(checkpoint_bytes_);
  }
  if (batch.release) sign_head(world_, sealed_end_, world_.store.now(), batch);
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
  if (failures_ == 0)
    host_.warn(job_, fmt::format("a commit failed and is retried: {}", error.message));
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
        return reload("a request has arrived");
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
  const bool has_events = batch_->sealed.has_value();
  const std::vector<JobId> addressees = addressees_of(*batch_);
  if (has_events) state_bytes_ += bytes_of(*batch_->sealed);
  batch_.reset();
  durable_end_ = sealed_end_;
  if (has_events) host_.on_committed_events(job_, std::exchange(observed_events_, {}));
  for (const auto& [id, reply] : std::exchange(committing_replies_, {}))
    host_.on_inbox_reply(job_, id, reply);
  if (!addressees.empty()) host_.on_inbox_puts(addressees);
  if (ended_) return;
  is_partly_durable_ = !pending_commits_.empty();
  if (is_partly_durable_) return commit_next();
  observed_.on_durable();
  must_read_inbox_ = false;
  abandon_open_questions();
  if (released) return end(std::nullopt);
  if (stopped_for_newer_request_) return end(newer_request_);
  on_all_durable();
}

void JobDriver::on_all_durable() {
  for (async::Done<Status>& on_written : std::exchange(pending_note_callbacks_, {}))
    on_written(Status{});
  if (!start_routines()) return;
  for (const StepId& step : std::exchange(to_perform_, {})) perform(step);
  if (!ended_ && state_.ending && state_.ending->cancelled) cancel_model_calls();
  if (ended_) return;
  pump();
}

void JobDriver::schedule_pump(Instant at) {
  const Duration wait = std::max(Duration(0), at - world_.store.now());
  timer_ = world_.loop.after(wait + std::chrono::milliseconds(1), [weak = weak_from_this()] {
    auto self = weak.lock();
    if (!self || self->ended_) return;
    self->timer_.reset();
    self->pump();
  });
}

// The drafts were not committed: reads the log again. Outcomes are recorded again; calls in flight
// continue. One reload is ordinary: a request or the end of a child arrives during a commit.
void JobDriver::reload(std::string_view why) {
  host_.on_reload();
  if (reloads_ > 0) host_.warn(job_, fmt::format("reloading the job again: {}", why));
  pending_commits_.clear();
  batch_.reset();
  drafts_.clear();
  to_perform_.clear();  // calls that an earlier part made durable are found by perform_declared
  inbox_.clear();
  inbox_read_ = 0;
  release_ = must_read_inbox_ = stopped_for_newer_request_ = false;
  for (async::Done<Status>& on_written : std::exchange(pending_note_callbacks_, {})) {
    on_written(fail(Code::unavailable, "the note was not written"));
  }
  observed_.record_again();
  // Which advances are in the log already is not known: new routines are started from it.
  if (std::exchange(is_partly_durable_, false)) routines_.drop_all();
  // `committing_` stays set until the log is read. A second reload in a row is unusual: wait before
  // it.
  if (reloads_++ == 0) return begin();
  retry_later(&JobDriver::begin);
}

void JobDriver::retry_later(void (JobDriver::*what)()) {
  const Duration wait = std::min(kRetryMax, kRetryFirst * (1 << std::min(failures_++, 8u)));
  timer_ = world_.loop.after(wait, [weak = weak_from_this(), what] {
    auto self = weak.lock();
    if (!self || self->ended_) return;
    self->timer_.reset();
    (*self.*what)();
  });
}

void JobDriver::end(std::optional<Error> problem) {
  using ExitState = JobDriverHost::ExitState;
  if (std::exchange(ended_, true)) return;
  routines_.clear();
  // Outcomes that could not be recorded are stored as late results for the next lease holder.
  for (const Observations::Entry& observed : observed_.take()) {
    if (const auto* const outcome = std::get_if<ObservedOutcome>(&observed)) {
      host_.on_late_result(job_, outcome->call->sent, outcome->outcome);
    }
  }
  if (timer_) world_.loop.cancel(*timer_);
  if (drain_timer_) world_.loop.cancel(*drain_timer_);
  for (async::Done<Status>& on_written : std::exchange(pending_note_callbacks_, {})) {
    on_written(fail(Code::stale_attempt, "this worker no longer holds the job"));
  }
  const bool leaves_unknown_call =
      !in_flight_.empty() || has_own_unknown_call(state_, lease_.fence.attempt);
  const bool finished = engine::is_terminal(state_.status);
  const ExitState exit_state = leaves_unknown_call ? ExitState::unknown_call
                               : finished          ? ExitState::finished
                                                   : ExitState::resumable;
  const bool cache_job = !problem && !finished;  // all drafts are durable
  if (cache_job) {
    host_.cache_job(job_, {std::move(state_), durable_end_.head, state_bytes_, checkpoint_seq_,
                           checkpoint_bytes_});
  }
  host_.on_driver_exit(*this, std::move(problem), exit_state);
}

}  // namespace ae::runtime
