// JobDriver: how it takes a job: reads its log, ends what an earlier process left, begins an
// attempt.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/heart/decide.h"
#include "engine/heart/recovery.h"
#include "engine/heart/side_record.h"
#include "engine/version/code_version.h"
#include "json/json.h"
#include "log/field_names.h"
#include "runtime/code_offers.h"
#include "runtime/driver/job_checks.h"
#include "runtime/driver/job_driver.h"
#include "runtime/driver/ledger_row.h"
#include "runtime/log.h"

namespace ae::runtime {

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
  summary_key_ = engine::summary_key(state_);
  unfinished_.reset();
  state_bytes_ = loaded_state->bytes;
  checkpoint_seq_ = loaded_state->checkpoint_seq;
  checkpoint_bytes_ = loaded_state->checkpoint_bytes;
  if (auto status = check_row(state_, loaded->row); !status) return release_claim(status.error());
  if (!version_) version_ = offered_version(world_, state_, host_.version_of(state_.agent));
  if (auto resolved = resolve_tools(); !resolved) return release_claim(resolved.error());
  newer_request_ = find_newer_request(job_, loaded->inbox, inbox_read_);
  if (newer_request_ && state_.attempt != lease_.fence.attempt)
    return release_claim(*newer_request_);
  if (auto status = end_leftover_calls(*loaded); !status) return release_claim(status.error());
  const bool takes_over = state_.attempt != lease_.fence.attempt;
  const auto missing = takes_over && !world_.store.owned() ? missing_version() : std::nullopt;
  if (missing) {
    return defer_to_other_version(*missing, std::make_shared<store::LoadedJob>(std::move(*loaded)));
  }
  take_over(*loaded);
}

// The job's version, if it would run here under another one, or park.
std::optional<std::string> JobDriver::missing_version() {
  if (auto code = other_code(world_, state_)) return code;
  const bool is_wrong = engine::has_wrong_version(state_, context(world_.store.now()));
  return is_wrong ? std::optional(state_.execution_version) : std::nullopt;
}

// A strict job of another execution version, or a job of code whose version is not offered here: a
// process that offers the version takes the job. Otherwise a strict job parks (SPEC §12), and one of
// code is tried here.
void JobDriver::defer_to_other_version(const std::string& version,
                                       std::shared_ptr<store::LoadedJob> loaded) {
  host_.check_offered_elsewhere(
      loaded->row, version, [self = shared_from_this(), loaded](Result<bool> offered) {
        if (self->ended_) return;
        if (!offered) return self->release_claim(offered.error());
        // This process may have loaded other agents meanwhile.
        self->version_ =
            offered_version(self->world_, self->state_, self->host_.version_of(self->state_.agent));
        if (!*offered || !self->missing_version()) {
          if (auto tools = self->resolve_tools(); !tools) return self->release_claim(tools.error());
          return self->take_over(*loaded);
        }
        self->release_claim(
            {Code::execution_version_mismatch,
             fmt::format("it belongs to the execution version {}, which another process offers",
                         self->state_.execution_version)});
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
  const auto imported = import_effect_records(loaded);
  if (!imported) return release_claim(imported.error());
  if (recovers) {
    found.caught_up = *imported;
    add(engine::recovery_completed_event(state_, lease_.fence.attempt, found));
  }
  repair_ledger(loaded);
  open_questions_ = open_questions_of(state_);
  host_.worker_reports().for_each(
      [this](const engine::WorkerName& worker, const WorkerReport& report) {
        on_worker_report(worker, report);
      });
  pump();
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
    const bool has_outcome = observed_.has_pending_outcome([&](const ObservedOutcome& observed) {
      const engine::SentTry& sent = observed.call->sent;
      return sent.step == step.id && sent.try_no == step.call->try_no;
    });
    if (step.call->attempt == lease_.fence.attempt && in_flight_.find(step.id) == nullptr &&
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

// Finds this process's versions of the plan's tools. A strict job of another execution version
// calls no tool.
Status JobDriver::resolve_tools() {
  tool_versions_.clear();
  if (!state_.plan) return {};
  if (engine::has_wrong_version(state_, context(world_.store.now()))) {
    tool_versions_.resize(state_.plan->tools.size());
    return {};
  }
  const bool has_code = std::ranges::any_of(
      state_.plan->nodes, [](const engine::Node& node) { return node.code != nullptr; });
  if (*version_ != state_.execution_version && !has_code) {
    host_.warn(
        job_, fmt::format("the job was created under the execution version {}, this process has {}",
                          state_.execution_version, *version_));
  }
  for (const engine::Node& node : state_.plan->nodes) {
    if (!node.code) continue;
    std::optional<Duration> again_in;
    const auto version = choose_code_version(world_, state_, node.index, again_in);
    if (again_in) host_.on_version_wait(*again_in);
    if (!version) return std::unexpected(version.error());
    if (const std::string& own = engine::version_of_code(state_, node.index); *version != own) {
      host_.warn(job_, fmt::format("the version {} of its code is tried; the job has {}", *version,
                                   own.empty() ? "none" : own));
    }
  }
  for (const engine::ToolPolicy& tool : state_.plan->tools) {
    // The engine supplies the value, or the code its function.
    if (!tool.makes_call() || tool.needs_no_transport()) {
      tool_versions_.push_back(tool.version);
      continue;
    }
    ToolRegistry::Entry* entry = world_.tool_registry.find(tool.name, tool.version);
    if (!entry) {
      return fail(Code::needs_version, "the tool \"{}\" is not in the agents file of this process",
                  tool.name);
    }
    if (entry->version != tool.version) {
      host_.warn(job_,
                 fmt::format("the tool \"{}\" has changed since the job was created ({} is now {})",
                             tool.name, tool.version, entry->version));
    }
    if (!tool.verified_by.empty() && !entry->verifier) {
      return fail(Code::needs_version,
                  "the tool \"{}\" has no `verify` in the agents file of this process", tool.name);
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
    const Value& note = (*record)[field::note];
    const bool is_in_flight = std::ranges::any_of(
        in_flight_.list(),
        [&](const InFlightCalls::Call& call) { return call.invocation == row.invocation; });
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
// §5: W3, W4). Returns how many calls they complete.
Result<std::uint64_t> JobDriver::import_effect_records(const store::LoadedJob& loaded) {
  AE_ASSIGN(std::vector<EventBody> events,
            engine::import_stored_effects(state_, stored_effects(loaded.effects)));
  std::uint64_t caught_up = 0;
  for (EventBody& draft : events) {
    const auto* finished = std::get_if<ToolInvocationFinished>(&draft);
    caught_up += finished != nullptr && finished->caught_up.value_or(false) ? 1 : 0;
    add(std::move(draft));
  }
  return caught_up;
}

void JobDriver::repair_ledger(const store::LoadedJob& loaded) {
  for (const store::LedgerRow& row : loaded.ledger) {
    if (row.state != "INFLIGHT") continue;
    for (const engine::Step& step : state_.steps) {
      if (!step.call || step.call->id != row.invocation) continue;
      if (step.call->try_no == row.try_no && step.call->open) break;
      if (host_.durability() == Durability::fused) {
        drafts_.ledger_erase.emplace_back(row.invocation, row.try_no);
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
          drafts_.ledger_put.push_back({row.invocation, row.try_no, std::string(state),
                                        canonical(engine::with_checksum(place, *record))});
        }
      }
      break;
    }
  }
}

void JobDriver::adopt(engine::State state, const Hash& head, std::size_t bytes) {
  state_ = std::move(state);
  summary_key_ = engine::summary_key(state_);
  durable_end_ = {state_.seq, head};
  state_bytes_ = bytes;
  version_ = offered_version(world_, state_, host_.version_of(state_.agent));
  if (auto resolved = resolve_tools(); !resolved) return release_claim(resolved.error());
  pump();
}

}  // namespace ae::runtime
