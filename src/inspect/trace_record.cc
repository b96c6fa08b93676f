// TraceRecord: one pass over the log.
#include "inspect/trace_record.h"

#include <utility>

#include "engine/values/recorded_value.h"
#include "inspect/field_json.h"
#include "log/decisions.h"
#include "log/field_names.h"

namespace ae::engine {
namespace {

// A resolution recorded after the job ended, in the form of a decision.
Value note_view(const Event& event, const OutcomeNoted& note) {
  return Value::object(
      {{field::at, to_text(note.at)},
       {field::by, field_json(note.by)},
       {field::kind, OutcomeDecided::kKind},
       {field::not_before, Value()},
       {field::payload, Value::object({{field::idempotency_key, note.idempotency_key.text},
                                       {field::resolution, note.resolution}})},
       {field::reason, note.note.value},
       {"seq", event.seq},
       {field::state, note.resolution}});
}

Value decision_view(const Event& event, const DecisionRecorded& decision) {
  // The value of a map can be long, and its items are shown separately.
  Value payload = decision.payload.value;
  if (payload.is_array()) payload = Value::object({{"items", std::uint64_t{payload.size()}}});
  return Value::object({{field::at, to_text(decision.at.value_or(event.created_at))},
                        {field::by, field_json(decision.by)},
                        {field::kind, decision.kind},
                        {field::not_before, field_json(decision.not_before)},
                        {field::payload, payload},
                        {field::reason, field_json(decision.reason)},
                        {"seq", event.seq},
                        {field::state, field_json(decision.state)}});
}

}  // namespace

std::string TraceRecord::attempt_of(const Event& event) const {
  if (event.attempt_id) return event.attempt_id->text;
  return attempts.empty() ? std::string() : attempts.back().id;
}

void TraceRecord::end_attempt(const Event& event, std::string_view how) {
  if (attempts.empty() || !attempts.back().ended.empty()) return;
  AttemptSpan& last = attempts.back();
  last.ended = how;
  last.ended_at = event.created_at;
  last.to = how == "lost" ? event.seq - 1 : event.seq;
}

void TraceRecord::begin_attempt(const Event& event, const JobRunning& running) {
  end_attempt(event, "lost");
  // One process owns the store until it exits: another owner means that it died.
  if (!attempts.empty() && attempts.back().ended == "lost" && attempts.back().lost.empty()) {
    AttemptSpan& last = attempts.back();
    const bool died = running.opened_at && running.opened_at != last.opened_at;
    // The process releases the job when it has lost the worker of its code, and claims it again.
    const bool continues_here = has_code_worker_ && running.worker_id == last.worker;
    last.lost = died ? "process_died" : continues_here ? "code_worker_lost" : "lease_expired";
  }
  attempts.push_back({.id = running.attempt_id,
                      .worker = running.worker_id,
                      .epoch = running.epoch,
                      .from = event.seq,
                      .to = 0,
                      .started_at = event.created_at,
                      .ended_at = {},
                      .ended = {},
                      .lost = {},
                      .opened_at = running.opened_at});
}

void TraceRecord::add_attempt(const Event& event) {
  if (const auto* running = as<JobRunning>(event)) return begin_attempt(event, *running);
  if (const auto* started = as<RoutineStarted>(event)) {
    has_code_worker_ |= started->code_worker.has_value();
  }
  switch (event.type) {
    case EventType::job_requeued:
      return end_attempt(event, "released");
    case EventType::job_waiting:
      return end_attempt(event, "waiting");
    case EventType::job_parked:
      return end_attempt(event, "parked");
    case EventType::job_completed:
      return end_attempt(event, "completed");
    case EventType::job_failed:
      return end_attempt(event, "failed");
    case EventType::job_cancelled:
      return end_attempt(event, "cancelled");
    default:
      return;
  }
}

void TraceRecord::add_started(const Event& event, const ToolInvocationStarted& started,
                              StepSpan& span) {
  if (span.started == nullptr) span.started = &started;
  TrySpan& fresh = span.tries.emplace_back();
  fresh.started = &started;
  fresh.attempt = attempt_of(event);
  fresh.seq = event.seq;
  fresh.started_at = event.created_at;
}

void TraceRecord::add_finished(const Event& event, const ToolInvocationFinished& finished,
                               StepSpan& span) {
  if (finished.late == true) return;
  for (TrySpan& span_try : span.tries) {
    if (span_try.started->try_no != finished.try_no) continue;
    span_try.finished = &finished;
    span_try.finished_at = event.created_at;
  }
  if (finished.external_id) span.external_id = finished.external_id;
  if (finished.outcome == "success") span.result = finished.result.value;
}

void TraceRecord::add_decision(const Event& event, const DecisionRecorded& decision,
                               StepSpan& span) {
  if (auto chosen = decision_as<ToolChosen>(decision); chosen && !chosen->erased) {
    choices[chosen->choice.of.text] = std::move(chosen->choice);
  }
  span.decisions.push_back(decision_view(event, decision));
  if (is_decision<OutcomeDecided>(decision) && !span.tries.empty()) {
    span.tries.back().resolution = or_empty(decision.state);
  }
}

void TraceRecord::add_completed(const Event& event, const WaitCompleted& completed,
                                StepSpan& span) {
  for (WaitSpan& wait : span.waits) {
    if (wait.opened->correlation_key != completed.correlation_key) continue;
    wait.completed = &completed;
    wait.completed_at = event.created_at;
  }
}

// The choices of models in turns that were imported from another job.
void TraceRecord::add_imported(const ForkImported& fork) {
  auto entries = fork.commands.read();
  if (!entries) return;
  for (ForkEntry& entry : *entries) {
    if (entry.choice) choices[entry.choice->of.text] = *std::move(entry.choice);
  }
}

void TraceRecord::add_value(const Event& event) {
  const auto add = [&](const auto& recorded) {
    const auto of = step_of_effect(recorded.effect_id, recorded_kind_of(event.type));
    if (of) steps[of->text].result = recorded.value.value;
  };
  if (const auto* time = as<TimeRecorded>(event)) add(*time);
  if (const auto* random = as<RandomRecorded>(event)) add(*random);
  if (const auto* uuid = as<UuidRecorded>(event)) add(*uuid);
}

void TraceRecord::add_narrative(const Event& event, StepSpan& span) {
  if (const auto* checked = as<ConfirmationChecked>(event)) span.checks.push_back(checked);
  if (const auto* progress = as<Progress>(event)) {
    const ProgressReport reported = progress->detail.read_leniently();
    for (TrySpan& one : span.tries) {
      if (one.started->try_no != reported.try_no) continue;
      one.progress =
          Value::object({{field::at, to_text(event.created_at)}, {"report", reported.report}});
    }
  }
  if (const auto* note = as<OutcomeNoted>(event)) {
    span.decisions.push_back(note_view(event, *note));
    for (TrySpan& one : span.tries) {
      if (one.outcome() != "success" && !one.definite()) one.resolution = note->resolution;
    }
  }
}

void TraceRecord::add(const Event& event) {
  add_attempt(event);
  add_value(event);
  const auto* decision = as<DecisionRecorded>(event);
  if (decision != nullptr && decision->kind == BudgetRaised::kKind) {
    budget.push_back(decision_view(event, *decision));
  }
  if (const auto* fork = as<ForkImported>(event)) add_imported(*fork);
  const std::string id(step_of(event));
  const EventKind* kind = event_kind(event.type);
  if (id.empty() || kind == nullptr) return;
  if (kind->event_class == EventClass::narrative) return add_narrative(event, steps[id]);
  add_to_step(event, steps[id]);
}

void TraceRecord::add_to_step(const Event& event, StepSpan& span) {
  if (span.node_id.empty()) span.node_id = node_of(event);
  if (event.type == EventType::node_started) span.started_at = event.created_at;
  if (event.type == EventType::command_emitted && !span.started_at) {
    span.started_at = event.created_at;
  }
  if (const auto* started = as<ToolInvocationStarted>(event)) add_started(event, *started, span);
  if (const auto* ended = as<ToolInvocationFinished>(event)) add_finished(event, *ended, span);
  if (const auto* committed = as<CommandCommitted>(event)) {
    span.committed = committed;
    if (!committed->result.is_null()) span.result = committed->result.value;
  }
  if (const auto* decision = as<DecisionRecorded>(event)) add_decision(event, *decision, span);
  if (const auto* diverged = as<RoutineDiverged>(event)) span.diverged = diverged;
  if (const auto* failed = as<RoutineFailed>(event)) span.exception = failed;
  if (const auto* changed = as<StateChanged>(event)) span.changes.push_back(changed);
  if (const auto* wait = as<WaitOpened>(event)) {
    span.waits.push_back({wait, event.created_at, nullptr, {}});
  }
  if (const auto* completed = as<WaitCompleted>(event)) add_completed(event, *completed, span);
  if (const auto* finished = as<NodeFinished>(event)) {
    span.finished_at = event.created_at;
    span.finished_seq = event.seq;
    span.finished = finished;
    if (!finished->result.is_null()) span.result = finished->result.value;
    span.finished_by = attempt_of(event);
  }
}

}  // namespace ae::engine
