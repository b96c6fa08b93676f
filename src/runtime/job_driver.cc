// JobDriver: the actor that runs one job.
#include "runtime/job_driver.h"

#include <algorithm>
#include <set>
#include <utility>

#include "async/failpoint.h"
#include "base/trace_context.h"
#include "engine/heart/recovery.h"
#include "engine/heart/side_record.h"
#include "engine/loop/loop.h"
#include "engine/questions/questions.h"
#include "engine/state/checkpoint.h"
#include "json/json.h"
#include "runtime/log.h"
#include "runtime/output_hub.h"
#include "runtime/row.h"

namespace ae::runtime {
namespace {

constexpr Duration kRetryFirst = std::chrono::milliseconds(50);
constexpr Duration kRetryMax = std::chrono::seconds(5);
// Minimum interval between two recorded progress reports of a call. It grows to 1/64 of the time
// that the call has run, so the number of reports grows with the logarithm of that time: about 130
// in the first three minutes, 600 in a day.
constexpr Duration kReportInterval = std::chrono::seconds(1);
constexpr int kReportIntervalShare = 64;
// One job occupies the loop for at most this long; then the events decided so far are committed.
constexpr Duration kSliceMax = std::chrono::milliseconds(50);

std::string_view ledger_state(const Outcome& outcome) {
  switch (outcome.kind) {
    case OutcomeKind::success:
      return "COMMITTED";
    case OutcomeKind::failure:
      return outcome.definite ? "FAILED" : "UNKNOWN";
    case OutcomeKind::input_required:
      return "FAILED";  // no unknown outcome; another try follows
    default:
      return "UNKNOWN";
  }
}

// `note`: data that a tool leaves for a later process, may be null.
store::LedgerRow ledger_row(const JobId& job, const engine::Invocation& call,
                            std::string_view state, const Value& note = {}) {
  Value record = Value::object({{"arguments_hash", call.arguments_hash},
                                {"attempt_id", call.attempt.text},
                                {"deadline", to_text(call.deadline)},
                                {"external_key", call.external_key.text},
                                {"idempotency_key", call.key.text},
                                {"tool", call.tool}});
  if (!note.is_null()) record = record.with("note", note);
  const std::string place = engine::ledger_location(job, call.id, call.try_no, state);
  return {call.id, call.try_no, std::string(state),
          canonical(engine::with_checksum(place, record))};
}

Result<Value> read_ledger(const JobId& job, const store::LedgerRow& row) {
  return engine::read_side_record(
      engine::ledger_location(job, row.invocation, row.try_no, row.state), row.record);
}

}  // namespace

JobDriver::JobDriver(World& world, JobDriverHost& host, JobId job, store::Lease lease,
                     std::string worker)
    : world_(world),
      host_(host),
      job_(std::move(job)),
      lease_(std::move(lease)),
      worker_(std::move(worker)),
      slice_name_(RunningSlot::name_of(job_, lease_.fence)) {}

// Random words only for plans that need them; otherwise the random source is read only once per
// decision.
std::array<std::uint64_t, 4> JobDriver::entropy() {
  std::array<std::uint64_t, 4> entropy{};
  if (state_.plan && state_.plan->needs_entropy()) {
    for (std::uint64_t& word : entropy) word = world_.random.next();
  }
  return entropy;
}

engine::DecisionContext JobDriver::context() {
  const Instant now = world_.store.now();
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
          .confirmations = confirmer_ ? &confirmer_->confirmations() : nullptr};
}

// ---------------------------------------------------------------- start

void JobDriver::begin() {
  committing_ = true;  // blocks other work until the log is read
  load_state(world_.store, job_, host_.plans(), host_.extract_cached(job_),
             [self = shared_from_this()](Result<LoadedState> loaded_state) {
               self->on_loaded(std::move(loaded_state));
             });
}

void JobDriver::on_loaded(Result<LoadedState> loaded_state) {
  if (ended_) return;
  const RunningSlot::Slice slice(world_.slot, slice_name_);
  if (!loaded_state) {
    const Code code = loaded_state.error().code;
    if (code == Code::store_stopped) return host_.store_stopped(loaded_state.error());
    if (code != Code::unavailable) return end(loaded_state.error());
    return calls_cut_off_ ? end(write_error()) : retry_later(&JobDriver::begin);
  }
  failures_ = 0;
  store::LoadedJob* const loaded = &loaded_state->loaded;
  if (loaded->row.claim != lease_.fence)
    return on_lease_lost();  // loading took longer than the lease
  durable_end_ = {loaded->row.last_seq, loaded->row.head};
  if (!loaded_state->state) return release_claim(loaded_state->state.error());
  state_ = std::move(*loaded_state->state);
  unfinished_.reset();
  log_bytes_ = loaded_state->bytes;
  checkpoint_seq_ = loaded_state->checkpoint_seq;
  checkpoint_bytes_ = loaded_state->checkpoint_bytes;
  if (auto status = check_row(loaded->row); !status) return release_claim(status.error());
  if (!version_) version_ = host_.version_of(state_.agent);
  if (auto resolved = resolve_tools(); !resolved) return release_claim(resolved.error());
  newer_request_ = find_newer_request(loaded->inbox);
  if (newer_request_ && state_.attempt != lease_.fence.attempt)
    return release_claim(*newer_request_);
  if (auto status = end_leftover_calls(*loaded); !status) return release_claim(status.error());
  const bool takes_over = state_.attempt != lease_.fence.attempt;
  if (takes_over && !world_.store.owned() && engine::has_wrong_version(state_, context())) {
    return defer_to_other_version(std::make_shared<store::LoadedJob>(std::move(*loaded)));
  }
  take_over(*loaded);
}

// A strict job of another execution version: a process that offers the version takes the job,
// otherwise it parks (SPEC §12).
void JobDriver::defer_to_other_version(std::shared_ptr<store::LoadedJob> loaded) {
  host_.check_offered_elsewhere(
      loaded->row, state_.execution_version,
      [self = shared_from_this(), loaded](Result<bool> offered) {
        if (self->ended_) return;
        if (!offered) return self->release_claim(offered.error());
        // This process may have loaded other agents meanwhile.
        self->version_ = self->host_.version_of(self->state_.agent);
        if (!*offered || !engine::has_wrong_version(self->state_, self->context())) {
          if (auto tools = self->resolve_tools(); !tools) return self->release_claim(tools.error());
          return self->take_over(*loaded);
        }
        self->release_claim(
            {Code::execution_version_mismatch, "it belongs to the execution version " +
                                                   self->state_.execution_version +
                                                   ", which another process offers"});
      });
}

void JobDriver::take_over(const store::LoadedJob& loaded) {
  committing_ = false;
  inbox_ = loaded.inbox;
  perform_declared();
  batch_time_ = world_.store.now();
  // Without a plan the job ends, and no attempt begins
  const bool has_plan = state_.plan != nullptr;
  const bool takes_over = has_plan && state_.attempt != lease_.fence.attempt;
  const bool recovers = takes_over && engine::is_recovery(state_);
  engine::RecoveryCounts found{.pending = state_.open_tries};
  if (takes_over) begin_attempt();
  const std::size_t before = drafts_.size();
  if (auto imported = import_effect_records(loaded); !imported)
    return release_claim(imported.error());
  if (recovers) {
    for (std::size_t i = before; i < drafts_.size(); ++i) {
      const auto* event = std::get_if<ToolInvocationFinished>(&drafts_[i].event);
      found.caught_up += event != nullptr && event->caught_up.value_or(false) ? 1 : 0;
    }
    add(engine::recovery_completed_event(state_, lease_.fence.attempt, found));
  }
  repair_ledger(loaded);
  open_questions_ = open_questions_of(state_);
  pump();
}

// A row is derived from the log and can be damaged independently of it.
Status JobDriver::check_row(const store::JobRow& row) const {
  if (engine::is_terminal(state_.status)) {
    return fail(Code::log_corrupt, "its row is runnable, but by its log it has ended");
  }
  const bool claimable =
      state_.status == engine::JobStatus::queued || state_.status == engine::JobStatus::running;
  if (!claimable) {
    return fail(Code::log_corrupt, "its row is runnable, but by its log it is " +
                                       std::string(engine::to_text(state_.status)));
  }
  const std::pair<std::string_view, std::optional<Instant>> times[] = {
      {"created_at", row.created_at},
      {"updated_at", row.updated_at},
      {"not_before", row.not_before},
      {"wake_at", row.wake_at}};
  for (const auto& [name, time] : times) {
    if (!time || is_representable(*time)) continue;
    return fail(Code::log_corrupt, "its row holds an invalid time (" + std::string(name) +
                                       "): " + std::to_string(time->us));
  }
  return {};
}

void JobDriver::begin_attempt() {
  const AttemptId& attempt = lease_.fence.attempt;
  const bool recovers = engine::is_recovery(state_);
  EventBody recovery = engine::recovery_started_event(state_, attempt);
  // This process ran that attempt, is alive, and could not release it: the attempt did not die
  // because of its job.
  if (state_.status == engine::JobStatus::running && host_.lost_to_outage(job_, state_.attempt)) {
    add(engine::requeued_event("store_unavailable", std::nullopt));
  }
  add(engine::running_event(attempt, lease_.fence.epoch, worker_, world_.store.opened_at()));
  if (recovers) add(std::move(recovery));
  if (*version_ != state_.execution_version) {
    add(VersionMismatched{.attempt_id = attempt.text,
                          .job_version = state_.execution_version,
                          .worker_version = *version_});
  }
}

// Queues the calls that this attempt declared durably and has not sent yet. The ledger ensures that
// each is sent once.
void JobDriver::perform_declared() {
  for (std::uint32_t index : state_.calling) {
    const engine::Step& step = state_.steps[index];
    const bool has_outcome =
        std::ranges::any_of(pending_outcomes_, [&](const ObservedOutcome& observed) {
          return observed.sent.step == step.id && observed.sent.try_no == step.call->try_no;
        });
    if (step.call->attempt == lease_.fence.attempt && !in_flight_.contains(step.id) &&
        !has_outcome) {
      to_perform_.push_back(step.id);
    }
  }
}

// This process cannot run the job; another may. Nothing is appended and no attempt is counted (SPEC
// §1).
void JobDriver::release_claim(Error problem) {
  store::Batch batch;
  batch.job = job_;
  batch.authority = store::Batch::Leased{lease_.fence};
  batch.expected_seq = durable_end_.seq;
  batch.release = true;
  // If this commit fails, the claim ends with its lease; the next claim reads the inbox.
  world_.store.commit(std::move(batch), [](Result<store::CommitResult>) {});
  end(std::move(problem));
}

// Returns an error if the inbox holds a control request that only a newer version can read. That
// request and all others stay in the inbox: only a process that can read all of them knows their
// order.
std::optional<Error> JobDriver::find_newer_request(
    const std::vector<store::InboxEntry>& inbox) const {
  for (const store::InboxEntry& entry : inbox) {
    if (entry.number <= inbox_read_) continue;
    const auto json =
        engine::read_side_record(engine::inbox_location(job_, entry.id), entry.request);
    if (!json) continue;
    const auto request = engine::ControlRequest::from_json(*json);
    if (!request && request.error().code == Code::needs_version) {
      return Error{Code::needs_version, "its inbox holds " + request.error().message +
                                            ": it stays there for a newer version of aetheris"};
    }
  }
  return std::nullopt;
}

// Finds this process's versions of the plan's tools. A strict job of another execution version
// calls no tool.
Status JobDriver::resolve_tools() {
  tool_versions_.clear();
  if (!state_.plan) return {};
  if (engine::has_wrong_version(state_, context())) {
    tool_versions_.resize(state_.plan->tools.size());
    return {};
  }
  if (*version_ != state_.execution_version) {
    host_.warn(job_, "the job was created under the execution version " + state_.execution_version +
                         ", this process has " + *version_);
  }
  for (const engine::ToolPolicy& tool : state_.plan->tools) {
    if (!tool.makes_call()) {  // the engine supplies the value
      tool_versions_.push_back(tool.version);
      continue;
    }
    ToolRegistry::Entry* entry = world_.tool_registry.find(tool.name, tool.version);
    if (!entry) {
      return fail(Code::needs_version,
                  "the tool \"" + tool.name + "\" is not in the agents file of this process");
    }
    if (entry->version != tool.version) {
      host_.warn(job_, "the tool \"" + tool.name + "\" has changed since the job was created (" +
                           tool.version + " is now " + entry->version + ")");
    }
    if (!tool.verified_by.empty() && !entry->verifier) {
      return fail(Code::needs_version, "the tool \"" + tool.name +
                                           "\" has no `verify` in the agents file of this process");
    }
    tool_versions_.push_back(entry->version);
  }
  return {};
}

// Ends everything that an earlier process left running for this job's open tries.
Status JobDriver::end_leftover_calls(const store::LoadedJob& loaded) {
  for (const store::LedgerRow& row : loaded.ledger) {
    auto record = read_ledger(job_, row);
    if (!record) return std::unexpected(record.error());
    const Value& note = (*record)["note"];
    const bool is_in_flight = std::ranges::any_of(
        in_flight_, [&](const auto& call) { return call.second.invocation == row.invocation; });
    if (note.is_null() || is_in_flight) continue;
    // The call may have been made by a version of the tool that a reload has replaced.
    const auto versions = world_.tool_registry.all(record->text("tool"));
    if (versions.empty()) continue;
    for (auto* entry : versions) AE_TRY(entry->tool->kill_leftovers(note));
    tries_with_note_[row.invocation] = row.try_no;
  }
  return {};
}

// Imports side records that an earlier attempt made durable but could not write into the log (SPEC
// §5: W3, W4).
Status JobDriver::import_effect_records(const store::LoadedJob& loaded) {
  AE_ASSIGN(std::vector<EventBody> events,
            engine::import_stored_effects(state_, stored_effects(loaded.effects)));
  for (EventBody& draft : events) add(std::move(draft));
  return {};
}

void JobDriver::repair_ledger(const store::LoadedJob& loaded) {
  for (const store::LedgerRow& row : loaded.ledger) {
    if (row.state != "INFLIGHT") continue;
    for (const engine::Step& step : state_.steps) {
      if (!step.call || step.call->id != row.invocation) continue;
      if (step.call->try_no == row.try_no && step.call->open) break;
      if (host_.durability() == Durability::fused) {
        ledger_erase_.emplace_back(row.invocation, row.try_no);
      } else {
        // A try older than the newest one: the next try closed it with an unknown outcome.
        const bool newest = step.call->try_no == row.try_no;
        const bool success = newest && step.call->outcome == OutcomeKind::success;
        const std::string_view state = success                         ? "COMMITTED"
                                       : newest && step.call->definite ? "FAILED"
                                                                       : "UNKNOWN";
        if (auto record = read_ledger(job_, row)) {
          const std::string place =
              engine::ledger_location(job_, row.invocation, row.try_no, state);
          ledger_put_.push_back({row.invocation, row.try_no, std::string(state),
                                 canonical(engine::with_checksum(place, *record))});
        }
      }
      break;
    }
  }
}

void JobDriver::adopt(engine::State state, const Hash& head, std::size_t bytes) {
  state_ = std::move(state);
  durable_end_ = {state_.seq, head};
  log_bytes_ = bytes;
  version_ = host_.version_of(state_.agent);
  if (auto resolved = resolve_tools(); !resolved) return end(resolved.error());
  pump();
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
  newer_request_ = find_newer_request(loaded->inbox);
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
          "the store cannot be written, and the process stops: outcomes since the last commit are "
          "not recorded" +
              std::string(pending_outcomes_.empty() && uncommitted_outcomes_.empty()
                              ? ""
                              : "; answered calls have an unknown outcome")};
}

void JobDriver::give_up() {
  if (ended_) return;
  calls_cut_off_ = true;
  abandon_all();
  end(write_error());
}

void JobDriver::abandon_all() {
  for (const auto& [step, call] : std::map(in_flight_)) {
    call.tool->abandon(call.invocation, call.try_no);
  }
}

void JobDriver::on_outcome(const engine::SentTry& sent, Outcome outcome) {
  switch (AE_FAILPOINT("tool.after")) {
    case async::FailpointAction::proceed:
      break;
    default:
      outcome = Outcome{
          .kind = OutcomeKind::unknown, .error_code = "failpoint", .error_message = "tool.after"};
  }
  pending_outcomes_.push_back({sent, std::move(outcome)});
  pump();
}

// ---------------------------------------------------------------- events

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

// ---------------------------------------------------------------- commit

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
    world_.store.load(job_, durable_end_.seq + 1,
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
  EventBody note = StateCheckpointed{
      .detail = Value::object({{"hash", to_hex(before->head)}, {"seq", before->seq}})};
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
  batch.expected_seq = durable_end_.seq;
  batch.effects = std::move(pending_commit.effects);
  batch.effects_absent = std::move(pending_commit.effects_absent);
  batch.ledger_put = std::move(pending_commit.ledger_put);
  batch.ledger_erase = std::move(pending_commit.ledger_erase);
  batch.inbox_consumed = std::move(pending_commit.inbox_applied);
  batch.failpoints = std::move(pending_commit.failpoints);
  batch.release = pending_commit.release;
  if (must_read_inbox_) batch.inbox_read_through = inbox_read_;
  sealed_events_.clear();
  sealed_end_ = durable_end_;
  const bool checkpoints = pending_commits_.empty() && !pending_commit.events.empty() &&
                           should_checkpoint(pending_commit.release);
  if (!pending_commit.events.empty()) {
    LogWriter writer(world_, job_, durable_end_, batch_time_, lease_.fence.attempt);
    if (checkpoints) add_checkpoint_event(pending_commit, writer);
    store::RowState row = pending_commit.row ? *std::move(pending_commit.row) : row_of(state_);
    if (!pending_commits_.empty()) {  // the last commit sets the status
      row.status = "running";
      row.not_before.reset();
    }
    auto sealed_events = writer.append(pending_commit.events, std::move(row), batch);
    if (!sealed_events) return end(sealed_events.error());
    sealed_events_ = *std::move(sealed_events);
    sealed_end_ = writer.end();
  }
  if (checkpoints) {
    batch.checkpoint = engine::checkpoint(state_, sealed_end_.head);
    checkpoint_seq_ = state_.seq;
    checkpoint_bytes_ = batch.checkpoint->size();
  }
  if (batch.release) sign_head(world_, sealed_end_, world_.store.now(), batch);
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
    durable_end_ = sealed_end_;
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

// ---------------------------------------------------------------- calls

// The only path that performs an effect. Its permit comes from the ledger, after the declaration is
// durable.
void JobDriver::perform(const StepId& step_id) {
  const auto found = state_.by_id.find(step_id);
  if (found == state_.by_id.end()) return;  // the declaration was not committed
  const engine::Step& step = state_.steps[found->second];
  auto permit = ledger_.permit(state_, step);
  if (!permit) return;
  const engine::Invocation& call = *step.call;
  const std::uint32_t try_no = call.try_no;
  // Shared by the two callbacks that may receive the outcome.
  const auto sent = std::make_shared<const engine::SentTry>(engine::sent_try_of(state_, step));
  auto answer = [weak = weak_from_this(), host = host_.handle(), job = job_,
                 sent](Outcome outcome) {
    if (auto self = weak.lock(); self && !self->ended_)
      return self->on_outcome(*sent, std::move(outcome));
    if (auto locked_host = host.lock()) (*locked_host)->on_late_result(job, *sent, outcome);
  };
  const auto withdraw = [&](std::string why) {
    world_.loop.post([answer, why]() mutable {
      answer({.kind = OutcomeKind::failure,
              .definite = true,
              .retryable = true,
              .error_code = "not_sent",
              .error_message = why});
    });
  };
  const auto index = static_cast<std::size_t>(&state_.tool_of(step) - state_.plan->tools.data());
  auto* entry = world_.tool_registry.find(
      call.tool, index < tool_versions_.size() ? tool_versions_[index] : std::string());
  AE_CHECK(entry, call.tool);
  in_flight_.insert_or_assign(step_id,
                              InFlightCall{entry->tool.get(), call.id, try_no, world_.store.now()});
  if (newer_request_) return withdraw("the job is left to a newer version");
  if (draining_) return withdraw("the process is stopping");
  if (AE_FAILPOINT("tool.before") != async::FailpointAction::proceed)
    return withdraw("failpoint tool.before");
  auto sendable = engine::sent_request(state_, step);
  if (!sendable) {  // the log does not hold the request: nothing is sent
    world_.loop.post([answer, why = sendable.error().message]() mutable {
      answer({.kind = OutcomeKind::failure,
              .definite = true,
              .error_code = std::string(code_name(Code::log_corrupt)),
              .error_message = why});
    });
    return;
  }
  tools::Call request;
  request.job = job_;
  request.tool = call.tool;
  request.args = *std::move(sendable);
  request.inputs = engine::inputs_of(call);
  request.key = call.key;
  request.external_key = call.external_key;
  request.invocation = call.id;
  request.try_no = try_no;
  request.last_sent_try = try_no - 1 - call.unsent_tries;
  if (step.role == engine::Role::node && host_.is_resident()) {
    request.answer_timeout = state_.tool_of(step).ask_expires;
  }
  request.timeout = state_.tool_of(step).timeout;
  const TraceContext trace = trace_of(job_, state_.traceparent, state_.tracestate);
  request.traceparent = traceparent(trace.trace_id, span_id_of(job_, call.id, try_no), trace.flags);
  request.tracestate = trace.state;
  request.note_in_flight = [weak = weak_from_this(), id = call.id, try_no](
                               Value note, async::Done<Status> on_written) {
    auto self = weak.lock();
    if (!self || self->ended_) {
      return on_written(fail(Code::stale_attempt, "this worker no longer holds the job"));
    }
    self->notes_.push_back({id, try_no, std::move(note), std::move(on_written)});
    self->pump();
  };
  request.progress = [weak = weak_from_this(), step_id, try_no](Value value) {
    if (auto self = weak.lock()) self->on_progress(step_id, try_no, std::move(value));
  };
  const engine::ToolPolicy& policy = state_.tool_of(step);
  if (world_.output_hub != nullptr && !policy.provider.empty()) {
    request.on_text_delta = world_.output_hub->begin(job_, {.step = step_id,
                                                            .node = state_.node_of(step).id,
                                                            .invocation = call.id,
                                                            .try_no = try_no,
                                                            .text = {}});
  }
  request.on_late_outcome = [host = host_.handle(), job = job_, sent](Outcome outcome) {
    if (auto locked_host = host.lock()) (*locked_host)->on_late_result(job, *sent, outcome);
  };
  // Computed last, from the latest possible store time: the tool's clock includes suspend from here
  // on, and any suspend since the lease was requested is included in this value.
  request.send_within = call.send_by - world_.store.latest_now();
  if (request.send_within.count() <= 0) return withdraw("its send deadline had passed");
  entry->tool->perform(std::move(*permit), std::move(request), std::move(answer));
}

Instant JobDriver::InFlightCall::may_report_at() const {
  return last_reported ? *last_reported + std::max(kReportInterval,
                                                   (*last_reported - sent) / kReportIntervalShare)
                       : sent;
}

void JobDriver::on_progress(const StepId& step, std::uint32_t try_no, Value value) {
  const auto call = in_flight_.find(step);
  if (ended_ || draining_ || call == in_flight_.end() || call->second.try_no != try_no) return;
  const bool fresh =
      progress_reports_.insert_or_assign(step, ProgressReport{try_no, std::move(value)}).second;
  // A report that replaces a pending one needs no decision: its write is already scheduled.
  if (fresh) pump();
}

// Records the reports of calls in flight once they may be written, and the last report when the
// call has ended.
void JobDriver::add_progress_reports() {
  const Instant now = world_.store.now();
  for (auto it = progress_reports_.begin(); it != progress_reports_.end();) {
    const auto call = in_flight_.find(it->first);
    const auto step = state_.by_id.find(it->first);
    if (draining_ || call == in_flight_.end() || step == state_.by_id.end()) {
      it = progress_reports_.erase(it);
      continue;
    }
    const bool finished = std::ranges::any_of(
        pending_outcomes_,
        [&](const ObservedOutcome& observed) { return observed.sent.step == it->first; });
    if (!finished && call->second.may_report_at() > now) {
      ++it;
      continue;
    }
    call->second.last_reported = now;
    add(Progress{.detail = Value::object(
                     {{"report", it->second.value}, {"try", std::uint64_t{it->second.try_no}}}),
                 .node_id = state_.node_of(state_.steps[step->second]).id,
                 .step_id = it->first});
    it = progress_reports_.erase(it);
  }
}

std::optional<Instant> JobDriver::next_report_at() const {
  std::optional<Instant> next;
  for (const auto& [step, report] : progress_reports_) {
    const auto call = in_flight_.find(step);
    if (call == in_flight_.end()) continue;
    const Instant at = call->second.may_report_at();
    if (!next || at < *next) next = at;
  }
  return next;
}

// Starts the verifiers; their results are input of the next decision.
void JobDriver::start_checks(const std::vector<std::string>& keys) {
  if (!confirmer_) {
    confirmer_.emplace(world_.loop, world_.tool_registry, [weak = weak_from_this()] {
      if (auto self = weak.lock(); self && !self->ended_) self->pump();
    });
  }
  confirmer_->check(state_, keys, tool_versions_);
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
// continue.
void JobDriver::reload(std::string_view why) {
  host_.warn(job_, "reloading the job: " + std::string(why));
  pending_commits_.clear();
  batch_.reset();
  drafts_.clear();
  to_perform_.clear();  // calls that an earlier part made durable are found by perform_declared
  ledger_put_.clear();
  ledger_erase_.clear();
  applied_inbox_.clear();
  inbox_.clear();
  inbox_read_ = 0;
  release_ = must_read_inbox_ = stopped_for_newer_request_ = false;
  for (async::Done<Status>& on_written : std::exchange(pending_note_callbacks_, {})) {
    on_written(fail(Code::unavailable, "the note was not written"));
  }
  for (auto it = uncommitted_outcomes_.rbegin(); it != uncommitted_outcomes_.rend(); ++it) {
    pending_outcomes_.push_front(std::move(*it));
  }
  uncommitted_outcomes_.clear();
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
  // Outcomes that could not be recorded are stored as late results for the next lease holder.
  for (const ObservedOutcome& observed : std::exchange(uncommitted_outcomes_, {})) {
    host_.on_late_result(job_, observed.sent, observed.outcome);
  }
  for (const ObservedOutcome& observed : std::exchange(pending_outcomes_, {}))
    host_.on_late_result(job_, observed.sent, observed.outcome);
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
    host_.cache_job(job_, {std::move(state_), durable_end_.head, log_bytes_, checkpoint_seq_,
                           checkpoint_bytes_});
  }
  host_.on_driver_exit(*this, std::move(problem), exit_state);
}

}  // namespace ae::runtime
