// One walk over the log.
#include "inspect/trace_record.h"

#include <utility>

#include "engine/heart/recorded_value.h"
#include "engine/state/applier.h"

namespace ae::engine {
namespace {

// What was found out about a call that was given up: as a decision about it is shown.
Value note_view(const Event& event) {
  const Value& p = event.payload;
  return Value::object({{"at", p["at"]},
                        {"by", p["by"]},
                        {"kind", "in_doubt"},
                        {"not_before", Value()},
                        {"payload", Value::object({{"idempotency_key", p["idempotency_key"]},
                                                   {"resolution", p["resolution"]}})},
                        {"reason", p["note"]},
                        {"seq", event.seq},
                        {"state", p["resolution"]}});
}

Value decision_view(const Event& event) {
  const Value& p = event.payload;
  // The value a map goes over can be long, and stands below it, item by item.
  Value payload = p["payload"];
  if (payload.is_array()) payload = Value::object({{"items", std::uint64_t{payload.size()}}});
  Value at = p["at"];
  if (at.is_null()) at = to_text(event.created_at);
  return Value::object({{"at", at},
                        {"by", p["by"]},
                        {"kind", p["kind"]},
                        {"not_before", p["not_before"]},
                        {"payload", payload},
                        {"reason", p["reason"]},
                        {"seq", event.seq},
                        {"state", p["state"]}});
}

}  // namespace

void TraceRecord::end_attempt(const Event& event, std::string_view how) {
  if (attempts.empty() || !attempts.back().ended.empty()) return;
  AttemptSpan& last = attempts.back();
  last.ended = how;
  last.ended_at = event.created_at;
  last.to = how == "lost" ? event.seq - 1 : event.seq;
}

void TraceRecord::take_attempt(const Event& event) {
  switch (event.type) {
    case EventType::job_running:
      end_attempt(event, "lost");
      // One process owns the store until it ends: another one means that it did.
      if (!attempts.empty() && attempts.back().ended == "lost" && attempts.back().lost.empty()) {
        const std::string_view opened = event.payload.text("opened_at");
        const bool died = !opened.empty() && opened != attempts.back().opened_at;
        attempts.back().lost = died ? "process_died" : "lease_expired";
      }
      attempts.push_back({.id = std::string(event.payload.text("attempt_id")),
                          .worker = std::string(event.payload.text("worker_id")),
                          .epoch = event.payload["epoch"],
                          .from = event.seq,
                          .to = 0,
                          .started_at = event.created_at,
                          .ended_at = {},
                          .ended = {},
                          .lost = {},
                          .opened_at = std::string(event.payload.text("opened_at"))});
      return;
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

void TraceRecord::take_try(const Event& event, StepSpan& span) {
  const Value& p = event.payload;
  if (event.type == EventType::tool_invocation_started) {
    if (span.started.is_null()) span.started = p;
    TrySpan& fresh = span.tries.emplace_back();
    fresh.number = p["try"];
    fresh.attempt = event.attempt_id ? event.attempt_id->text : "";
    if (fresh.attempt.empty() && !attempts.empty()) fresh.attempt = attempts.back().id;
    fresh.seq = event.seq;
    fresh.started_at = event.created_at;
    fresh.tool_version = p["tool_version"];
    fresh.request_schema = p["request_schema_hash"];
    return;
  }
  if (flag(p, "late")) return;
  for (TrySpan& mine : span.tries) {
    if (!(mine.number == p["try"])) continue;
    mine.finished_at = event.created_at;
    mine.outcome = p.text("outcome");
    mine.definite = flag(p, "definite");
    mine.caught_up = flag(p, "caught_up");
    mine.error = p["error"];
    mine.duration = p["duration_us"];
    mine.source = p["source"];
    mine.response_schema = p["response_schema_hash"];
  }
  if (!p["external_id"].is_null()) span.external_id = p["external_id"];
  if (p.text("outcome") == "success") span.result = p["result"];
}

void TraceRecord::take_decision(const Event& event, StepSpan& span) {
  const Value& p = event.payload;
  if (p.text("kind") == "tool_choice") {
    choices[std::string(p["payload"].text("of"))] = p["payload"];
  }
  span.decisions.push_back(decision_view(event));
  if (p.text("kind") == "in_doubt" && p.text("state") != "resend" && !span.tries.empty()) {
    span.tries.back().resolution = p.text("state");
  }
}

// What models asked for in the turns that another job had.
void TraceRecord::take_imported(const Event& event) {
  const Value& commands = event.payload["commands"];
  if (!commands.is_array()) return;
  for (const Value& one : commands.items()) {
    const Value* choice = one.find("choice");
    if (choice != nullptr) choices[std::string(choice->text("of"))] = *choice;
  }
}

void TraceRecord::take(const Event& event) {
  take_attempt(event);
  const std::string_view id = event.payload.text("step_id");
  if (const Records records = records_of(event.type); records != Records::nothing) {
    const auto of = step_of_effect(event.payload.text("effect_id"), records);
    if (of) steps[of->text].result = event.payload["value"];
  }
  if (event.type == EventType::decision_recorded && event.payload.text("kind") == "budget") {
    budget.push_back(decision_view(event));
  }
  if (event.type == EventType::fork_imported) take_imported(event);
  if (id.empty()) return;
  if (event.type == EventType::confirmation_checked) {
    steps[std::string(id)].checks.push_back(event.payload);
  }
  if (event.type == EventType::progress) {
    const Value& detail = event.payload["detail"];
    for (TrySpan& one : steps[std::string(id)].tries) {
      if (!(one.number == detail["try"])) continue;
      one.progress =
          Value::object({{"at", to_text(event.created_at)}, {"report", detail["report"]}});
    }
  }
  if (event.type == EventType::outcome_noted) {
    StepSpan& span = steps[std::string(id)];
    span.decisions.push_back(note_view(event));
    for (TrySpan& one : span.tries) {
      if (one.outcome != "success" && !one.definite)
        one.resolution = event.payload.text("resolution");
    }
  }
  const EventKind* kind = event_kind(event.type);
  if (kind == nullptr || kind->event_class == EventClass::narrative) return;
  take_of_step(event, steps[std::string(id)]);
}

void TraceRecord::take_of_step(const Event& event, StepSpan& span) {
  const Value& p = event.payload;
  if (span.node_id.empty()) span.node_id = p.text("node_id");
  switch (event.type) {
    case EventType::node_started:
      span.started_at = event.created_at;
      break;
    case EventType::command_emitted:
      if (!span.started_at) span.started_at = event.created_at;
      break;
    case EventType::tool_invocation_started:
    case EventType::tool_invocation_finished:
      take_try(event, span);
      break;
    case EventType::command_committed:
      span.committed = p;
      if (const Value* result = p.find("result")) span.result = *result;
      break;
    case EventType::decision_recorded:
      take_decision(event, span);
      break;
    case EventType::state_changed:
      span.changes.push_back(p);
      break;
    case EventType::wait_opened:
      span.waits.push_back({p, event.created_at, {}, {}});
      break;
    case EventType::wait_completed:
      for (WaitSpan& wait : span.waits) {
        if (wait.opened["correlation_key"] == p["correlation_key"]) {
          wait.completed = p;
          wait.completed_at = event.created_at;
        }
      }
      break;
    case EventType::node_finished:
      span.finished_at = event.created_at;
      span.finished_seq = event.seq;
      span.finished = p;
      if (event.attempt_id) {
        span.finished_by = event.attempt_id->text;
      } else if (!attempts.empty()) {
        span.finished_by = attempts.back().id;
      }
      break;
    default:
      break;
  }
}

}  // namespace ae::engine
