// JobDriver: outcomes, requests, timers and decisions become events.
#include <algorithm>
#include <utility>
#include <vector>

#include "async/failpoint.h"
#include "engine/heart/side_record.h"
#include "engine/questions/questions.h"
#include "json/json.h"
#include "runtime/job_driver.h"
#include "runtime/ledger_row.h"
#include "runtime/row.h"
#include "runtime/running_slot.h"

namespace ae::runtime {
namespace {

// One job occupies the loop for at most this long; then the events decided so far are committed.
constexpr Duration kSliceMax = std::chrono::milliseconds(50);

}  // namespace

void JobDriver::add(EventBody draft) {
  unfinished_.reset();
  Status applied = engine::apply(state_, draft, batch_time_, host_.plans().source());
  AE_CHECK(applied, job_.text + ": " + applied.error().message);
  const auto* closed = std::get_if<WaitCompleted>(&draft);
  must_read_inbox_ =
      must_read_inbox_ || std::holds_alternative<WaitOpened>(draft) ||
      (closed != nullptr && (closed->outcome == "timed_out" || closed->outcome == "cancelled"));
  DraftedEvent& drafted = drafts_.emplace_back();
  drafted.event = std::move(draft);
  if (host_.durability() == Durability::split) drafted.row = row_of(state_);
}

// Adds an event that follows from the log. It may depend on a call having left no result.
void JobDriver::add_decided(EventBody draft) {
  auto slot = engine::decided_effect_slot(state_, draft);
  add(std::move(draft));
  drafts_.back().slot = std::move(slot);
}

void JobDriver::add_outcome(ObservedOutcome observed) {
  const engine::SentTry& sent = observed.sent;
  const std::uint32_t index = state_.by_id.at(sent.step);
  const engine::Step& step = state_.steps[index];
  if (!step.call || !step.call->open || step.call->try_no != sent.try_no) return;
  in_flight_.erase(sent.step);
  ledger_.forget(sent.invocation, sent.try_no);
  // Cut off by this process while draining: the try stays open and is handled by SPEC §6, as after
  // a crash.
  if (calls_cut_off_ && observed.outcome.kind != OutcomeKind::success && !observed.outcome.definite)
    return;
  has_outcomes_ = true;
  const bool split = host_.durability() == Durability::split;
  std::optional<store::EffectRow> effect;
  std::optional<store::LedgerRow> ledger;
  if (split) {
    effect = store::EffectRow{
        sent.invocation, sent.try_no,
        canonical(engine::effect_record(job_, sent, observed.outcome, world_.store.now()))};
    ledger = ledger_row(job_, *step.call, ledger_state(observed.outcome));
  } else if (auto found = tries_with_note_.find(sent.invocation); found != tries_with_note_.end()) {
    ledger_erase_.emplace_back(sent.invocation, found->second);
    tries_with_note_.erase(found);
  }
  const std::size_t first = drafts_.size();
  if (observed.outcome.kind == OutcomeKind::input_required) {
    open_questions_.push_back({sent.step, step.call->tool, sent.invocation, sent.try_no});
  }
  for (EventBody& draft :
       engine::record_outcome(state_, index, observed.outcome, world_.store.now()))
    add(std::move(draft));
  uncommitted_outcomes_.push_back(std::move(observed));
  drafts_[first].effect = std::move(effect);
  drafts_.back().ledger = std::move(ledger);
}

void JobDriver::apply_inbox() {
  if (newer_request_) return inbox_.clear();
  std::vector<Result<engine::ControlRequest>> requests;
  for (const store::InboxEntry& entry : std::exchange(inbox_, {})) {
    if (entry.number <= inbox_read_) continue;
    inbox_read_ = entry.number;
    applied_inbox_.push_back(entry.number);
    auto json = engine::read_side_record(engine::inbox_location(job_, entry.id), entry.request);
    requests.push_back(json ? engine::ControlRequest::from_json(*json)
                            : Result<engine::ControlRequest>(std::unexpected(json.error())));
  }
  // A plan request closes waits: requests accepted for those waits are applied first.
  std::ranges::stable_partition(requests, [](const Result<engine::ControlRequest>& request) {
    return !request || request->kind != engine::ControlRequest::Kind::plan;
  });
  for (const Result<engine::ControlRequest>& request : requests) {
    // Only a hint that a late result or a due timer exists: both are checked in any case, after the
    // accepted requests.
    if (request && request->kind == engine::ControlRequest::Kind::timers) continue;
    auto applied = request ? engine::apply_request(state_, *request, context())
                           : Result<engine::AppliedRequest>(std::unexpected(request.error()));
    std::vector<EventBody> events;
    if (applied) events = std::move(applied->events);
    if (request && events.empty()) events = engine::expire_request(state_, *request);
    if (!applied && events.empty()) {
      host_.warn(job_, (request ? "an accepted request no longer applies: "
                                : "an accepted request is damaged: ") +
                           applied.error().message);
    }
    for (EventBody& draft : events) {
      // With the new plan the job goes to a worker that has its tools.
      release_ = release_ || std::holds_alternative<JobRequeued>(draft);
      add_decided(std::move(draft));
    }
  }
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
  while (!pending_outcomes_.empty()) {
    ObservedOutcome observed = std::move(pending_outcomes_.front());
    pending_outcomes_.pop_front();
    add_outcome(std::move(observed));
    if (!pending_outcomes_.empty() && is_slice_over()) return;  // commit these first
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
  const engine::DecisionContext decision_context = context();
  if (auto due = state_.next_due(); due && *due <= decision_context.now) {
    auto applied = engine::apply_request(state_, {.kind = engine::ControlRequest::Kind::timers},
                                         decision_context);
    AE_CHECK(applied.has_value(), job_.text);
    for (EventBody& draft : applied->events) add(std::move(draft));
  }
  while (drafts_.size() < 4096 && !is_slice_over()) {
    engine::Decision decision =
        engine::decide(state_, decision_context, {}, unfinished_ ? &*unfinished_ : nullptr);
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
      const bool declares = declared != nullptr;
      const StepId step = declares ? declared->step_id : StepId();
      if (declares &&
          async::failpoint_handler != nullptr) {  // by node, so that a test can select one job
        static_cast<void>(AE_FAILPOINT("decided." + declared->node_id));
      }
      add_decided(std::move(draft));
      if (declares && host_.durability() == Durability::split) {
        const engine::Invocation& call = *state_.steps[state_.by_id.at(step)].call;
        drafts_.back().ledger = ledger_row(job_, call, "INFLIGHT");
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

// Other jobs and clients run while the drafts are committed. The next decision follows after the
// commit.
bool JobDriver::is_slice_over() const {
  return !drafts_.empty() && world_.steady.since_start() - slice_started_ >= kSliceMax;
}

void JobDriver::pump() {
  if (ended_ || committing_) return;
  const RunningSlot::Slice slice(world_.slot, slice_name_);
  slice_started_ = world_.steady.since_start();
  if (timer_) world_.loop.cancel(*std::exchange(timer_, std::nullopt));
  if (std::exchange(inbox_notified_, false)) {
    committing_ = true;
    world_.store.load(job_, durable_seq_ + 1,
                      [self = shared_from_this()](Result<store::LoadedJob> loaded) {
                        self->on_inbox_loaded(std::move(loaded));
                      });
    return;
  }
  if (drafts_.empty()) batch_time_ = world_.store.now();
  for (InFlightNote& note : notes_) {
    bool open = false;
    for (std::uint32_t index : state_.calling) {
      const engine::Invocation& call = *state_.steps[index].call;
      if (call.id != note.invocation) continue;
      ledger_put_.push_back(ledger_row(job_, call, "INFLIGHT", note.note));
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
  plan_commits();
  if (pending_commits_.empty()) {
    if (stopped_for_newer_request_) return end(newer_request_);
    if (!to_perform_.empty()) return on_all_durable();  // declared before the log was reloaded
    std::optional<Instant> next = next_report_at();
    if (next_decision_at_) next = std::min(*next_decision_at_, next.value_or(*next_decision_at_));
    if (next) schedule_pump(*next);
    return;
  }
  commit_next();
}

}  // namespace ae::runtime
