// JobDriver: the actor that runs one job.
#include "runtime/job_driver.h"

#include <algorithm>
#include <utility>

#include "async/failpoint.h"
#include "engine/heart/recovery.h"
#include "engine/heart/side_record.h"
#include "engine/questions/questions.h"
#include "json/json.h"
#include "runtime/ledger_row.h"
#include "runtime/runtime.h"

namespace ae::runtime {
namespace {

constexpr Duration kRetryFirst = std::chrono::milliseconds(50);
constexpr Duration kRetryMax = std::chrono::seconds(5);

}  // namespace

std::vector<OpenQuestion> open_questions_of(const engine::State& state) {
  std::vector<OpenQuestion> questions;
  for (const engine::Step& step : state.steps) {
    const engine::Invocation* call = step.call ? &*step.call : nullptr;
    if (call == nullptr || call->open || call->outcome != OutcomeKind::input_required) continue;
    questions.push_back({step.id, call->tool, call->id, call->try_no});
  }
  return questions;
}

void abandon_question(ToolRegistry& tool_registry, const OpenQuestion& question) {
  for (auto* entry : tool_registry.all(question.tool)) {
    entry->tool->abandon(question.invocation, question.try_no);
  }
}

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
  durable_seq_ = loaded->row.last_seq;
  if (!loaded_state->state) return release_claim(loaded_state->state.error());
  state_ = std::move(*loaded_state->state);
  unfinished_.reset();
  log_bytes_ = loaded_state->bytes;
  checkpoint_seq_ = loaded_state->checkpoint_seq;
  checkpoint_bytes_ = loaded_state->checkpoint_bytes;
  head_ = loaded->row.head;
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
  batch.expected_seq = durable_seq_;
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
  durable_seq_ = state_.seq;
  head_ = head;
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

// ---------------------------------------------------------------- end

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
    host_.cache_job(job_,
                    {std::move(state_), head_, log_bytes_, checkpoint_seq_, checkpoint_bytes_});
  }
  host_.on_driver_exit(*this, std::move(problem), exit_state);
}

}  // namespace ae::runtime
