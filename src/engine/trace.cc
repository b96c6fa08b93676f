// One walk over the log gathers what belongs to each step; a second, over the plan, writes the tree.
#include "engine/trace.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/trace_context.h"
#include "engine/drift.h"
#include "engine/effects.h"
#include "engine/view.h"

namespace ae::engine {
namespace {

Value or_null(std::string_view text) { return text.empty() ? Value() : Value(text); }
Value or_null(const std::optional<Instant>& instant) {
  return instant ? Value(to_text(*instant)) : Value();
}
Value number(std::uint64_t n) { return {n}; }

Value between(const std::optional<Instant>& from, const std::optional<Instant>& to) {
  if (!from || !to) return {};
  return {static_cast<std::int64_t>((*to - *from).count())};
}

bool flag(const Value& payload, std::string_view key) {
  const Value& value = payload[key];
  return value.is_bool() && value.as_bool();
}

struct AttemptSpan {
  std::string id, worker;
  Value epoch;
  std::uint64_t from = 0, to = 0;
  Instant started_at;
  std::optional<Instant> ended_at;
  std::string ended;
};

struct TrySpan {
  Value number;
  std::string attempt;
  std::uint64_t seq = 0;
  Instant started_at;
  std::optional<Instant> finished_at;
  std::string outcome;
  bool definite = false, caught_up = false;
  Value error, duration, source;
  Value progress;          // its last report: {at, report}
  std::string resolution;  // what a person said of it
  Value tool_version, request_schema, response_schema;
};

struct WaitSpan {
  Value opened;  // payload
  Instant opened_at;
  Value completed;
  std::optional<Instant> completed_at;
};

struct StepSpan {
  std::optional<Instant> started_at, finished_at;
  std::uint64_t finished_seq = 0;
  std::string finished_by;
  Value started;  // payload of its first tool_invocation_started
  Value external_id, result, finished, committed;
  std::vector<TrySpan> tries;
  std::vector<WaitSpan> waits;
  std::vector<Value> decisions;
  std::vector<Value> changes;  // payloads of state_changed
  std::vector<Value> checks;   // of confirmation_checked
};

class Tracer {
 public:
  Tracer(const State& state, const std::vector<Event>& events) : s_(state), events_(events) {}
  Value run();

 private:
  void gather(const Event& event);
  void gather_attempt(const Event& event);
  void end_attempt(const Event& event, std::string_view how);
  void gather_try(const Event& event, StepSpan& span);
  void gather_decision(const Event& event, StepSpan& span);
  static Value decision_view(const Event& event);

  Value node_view(const Step& step);
  std::vector<Value> sides_view(const Step& step, Role role);
  std::string_view status_of(const Step& step) const;
  std::string_view world_of(const Step& step, const StepSpan& span, const TrySpan& span_try) const;
  std::string_view world_of(const Step& step, const StepSpan& span) const;
  std::string_view map_status(const Step& step) const;
  std::vector<const Step*> below(const Step& step) const;
  Value result_of(const Step& step, const StepSpan& span) const;
  Value span_id(const StepSpan& span, const TrySpan& one) const;
  void count(const Step& step, const StepSpan& span, std::string_view status);

  const State& s_;
  const std::vector<Event>& events_;
  std::vector<AttemptSpan> attempts_;
  std::vector<Value> budget_;  // when it was used up, and when raised
  std::unordered_map<std::string, StepSpan> steps_;
  std::map<std::uint32_t, std::vector<const Step*>> items_;  // by map, in item order
  std::map<std::uint32_t, std::vector<const Step*>> turns_;  // by loop
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<const Step*>>
      calls_;                                                          // by loop and turn
  std::unordered_map<std::uint32_t, std::vector<const Step*>> sides_;  // by what they are about
  std::uint64_t done_ = 0, failed_ = 0, skipped_ = 0, tries_ = 0, repeated_ = 0, in_doubt_ = 0;
};

// ---------------------------------------------------------------- gathering

void Tracer::end_attempt(const Event& event, std::string_view how) {
  if (attempts_.empty() || !attempts_.back().ended.empty()) return;
  AttemptSpan& last = attempts_.back();
  last.ended = how;
  last.ended_at = event.created_at;
  last.to = how == "lost" ? event.seq - 1 : event.seq;
}

void Tracer::gather_attempt(const Event& event) {
  switch (event.type) {
    case EventType::job_running:
      end_attempt(event, "lost");
      attempts_.push_back({.id = std::string(event.payload.text("attempt_id")),
                           .worker = std::string(event.payload.text("worker_id")),
                           .epoch = event.payload["epoch"],
                           .from = event.seq,
                           .to = 0,
                           .started_at = event.created_at,
                           .ended_at = {},
                           .ended = {}});
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

void Tracer::gather_try(const Event& event, StepSpan& span) {
  const Value& p = event.payload;
  if (event.type == EventType::tool_invocation_started) {
    if (span.started.is_null()) span.started = p;
    TrySpan& fresh = span.tries.emplace_back();
    fresh.number = p["try"];
    fresh.attempt = event.attempt_id ? event.attempt_id->text : "";
    if (fresh.attempt.empty() && !attempts_.empty()) fresh.attempt = attempts_.back().id;
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

Value Tracer::decision_view(const Event& event) {
  const Value& p = event.payload;
  // The value a map goes over can be long, and stands below it, item by item.
  Value payload = p["payload"];
  if (payload.is_array()) payload = Value::object({{"items", number(payload.size())}});
  Value at = p["at"];
  if (at.is_null()) at = to_text(event.created_at);
  return Value::object({{"at", at},
                        {"by", p["by"]},
                        {"kind", p["kind"]},
                        {"not_before", p["not_before"]},
                        {"payload", payload},
                        {"reason", p["reason"]},
                        {"seq", number(event.seq)},
                        {"state", p["state"]}});
}

void Tracer::gather_decision(const Event& event, StepSpan& span) {
  const Value& p = event.payload;
  span.decisions.push_back(decision_view(event));
  if (p.text("kind") == "in_doubt" && !span.tries.empty()) {
    span.tries.back().resolution = p.text("state");
  }
}

void Tracer::gather(const Event& event) {
  gather_attempt(event);
  const std::string_view id = event.payload.text("step_id");
  if (event.type == EventType::decision_recorded && event.payload.text("kind") == "budget") {
    budget_.push_back(decision_view(event));
  }
  if (id.empty()) return;
  if (event.type == EventType::confirmation_checked) {
    steps_[std::string(id)].checks.push_back(event.payload);
  }
  if (event.type == EventType::progress) {
    const Value& detail = event.payload["detail"];
    for (TrySpan& one : steps_[std::string(id)].tries) {
      if (!(one.number == detail["try"])) continue;
      one.progress =
          Value::object({{"at", to_text(event.created_at)}, {"report", detail["report"]}});
    }
  }
  const EventKind* kind = event_kind(event.type);
  if (kind == nullptr || kind->event_class == EventClass::narrative) return;
  StepSpan& span = steps_[std::string(id)];
  const Value& p = event.payload;
  switch (event.type) {
    case EventType::node_started:
      span.started_at = event.created_at;
      break;
    case EventType::command_emitted:
      if (!span.started_at) span.started_at = event.created_at;
      break;
    case EventType::tool_invocation_started:
    case EventType::tool_invocation_finished:
      gather_try(event, span);
      break;
    case EventType::command_committed:
      span.committed = p;
      if (const Value* result = p.find("result")) span.result = *result;
      break;
    case EventType::decision_recorded:
      gather_decision(event, span);
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
      } else if (!attempts_.empty()) {
        span.finished_by = attempts_.back().id;
      }
      break;
    default:
      break;
  }
}

// ---------------------------------------------------------------- judging

// The items of a map, the turns of a loop, the calls of a turn.
std::vector<const Step*> Tracer::below(const Step& step) const {
  if (step.role != Role::node || step.item != kNoItem || step.is_loop_call()) return {};
  if (step.is_turn()) {
    const auto calls = calls_.find({step.node, step.turn});
    return calls == calls_.end() ? std::vector<const Step*>() : calls->second;
  }
  for (const auto* parts : {&items_, &turns_}) {
    if (const auto found = parts->find(step.node); found != parts->end()) return found->second;
  }
  return {};
}

std::string_view Tracer::map_status(const Step& step) const {
  const auto doubted = [&](const Step* part) {
    return part->phase == StepPhase::in_doubt ||
           std::ranges::any_of(below(*part),
                               [](const Step* call) { return call->phase == StepPhase::in_doubt; });
  };
  return std::ranges::any_of(below(step), doubted) ? "in_doubt" : "running";
}

std::string_view Tracer::status_of(const Step& step) const {
  if (step.role != Role::node && step.phase == StepPhase::done) {
    return step.committed || !step.call ? "done" : "failed";
  }
  if (step.phase == StepPhase::done) {
    if (step.skipped) return "skipped";
    return step.failure ? "failed" : "done";
  }
  if (is_terminal(s_.status)) {
    if (s_.may_have_happened(step)) return "in_doubt";
    return step.started ? "failed" : "not_run";
  }
  switch (step.phase) {
    case StepPhase::blocked:
    case StepPhase::ready:
      return step.started ? "running" : "pending";
    case StepPhase::backoff:
      return "backoff";
    case StepPhase::asking:
    case StepPhase::questioned:
    case StepPhase::waiting:
      return "waiting";
    case StepPhase::in_doubt:
    case StepPhase::probing:
      return "in_doubt";
    case StepPhase::refused:
      return step.role == Role::undo ? "failed" : "running";
    case StepPhase::mapping:
    case StepPhase::looping:
      return map_status(step);
    default:
      return "running";
  }
}

std::string_view Tracer::world_of(const Step& step, const StepSpan& span,
                                  const TrySpan& span_try) const {
  if (s_.tool_of(step).effect == EffectClass::read) return "unchanged";
  if (span_try.outcome == "success" || span_try.resolution == "happened") return "changed";
  if (span_try.outcome == "failure" && span_try.definite) return "unchanged";
  if (span_try.outcome == "input_required") return "unchanged";
  if (span_try.resolution == "not_happened") return "unchanged";
  // A later try under the same external key that went well says what became of an earlier one: it is one effect.
  for (const TrySpan& other : span.tries) {
    if (other.outcome == "success" || other.resolution == "happened") return "changed";
  }
  return "unknown";
}

std::string_view Tracer::world_of(const Step& step, const StepSpan& span) const {
  if (step.result_type == ResultType::compensated) return "rolled back";
  bool changed = false, unknown = false, rolled_back = false;
  const auto take = [&](std::string_view world) {
    changed |= world == "changed";
    unknown |= world == "unknown";
    rolled_back |= world == "rolled back";
  };
  for (const TrySpan& one : span.tries) take(world_of(step, span, one));
  for (const Step* part : below(step)) {
    auto of_part = steps_.find(part->id.text);
    if (of_part != steps_.end()) take(world_of(*part, of_part->second));
  }
  return unknown ? "unknown" : changed ? "changed" : rolled_back ? "rolled back" : "unchanged";
}

void Tracer::count(const Step& step, const StepSpan& span, std::string_view status) {
  tries_ += span.tries.size();
  if (span.tries.size() > 1) repeated_ += span.tries.size() - 1;
  if (step.role != Role::node) {
    if (status == "in_doubt") in_doubt_++;
    return;
  }
  const Node& node = s_.node_of(step);
  const bool whole = node.kind == NodeKind::map || node.loop;
  if (status == "in_doubt" && (!whole || step.is_part())) in_doubt_++;
  if (step.is_part()) return;
  if (status == "done") done_++;
  if (status == "failed") failed_++;
  if (status == "skipped") skipped_++;
}

// ---------------------------------------------------------------- writing

Value effect_view(const StepSpan& span) {
  const Value& started = span.started;
  if (started.is_null()) return {};
  return Value::object({{"arguments", started["arguments"]},
                        {"arguments_hash", started["arguments_hash"]},
                        {"effect_class", started["effect_class"]},
                        {"external_id", span.external_id},
                        {"external_key", started["external_key"]},
                        {"idempotency_key", started["idempotency_key"]},
                        {"invocation_id", started["invocation_id"]},
                        {"tool", started["tool_name"]},
                        {"tool_version", started["tool_version"]}});
}

// What a try was, beside what became of the step: one that is followed by another was a failure to be tried again.
Value try_result_type(const StepSpan& span, std::size_t index, const Value& of_step) {
  const TrySpan& one = span.tries[index];
  if (one.outcome == "success") return "success";
  if (one.outcome == "input_required") return {};
  if (index + 1 < span.tries.size()) return "retryable_failure";
  if (one.outcome.empty() || !one.resolution.empty()) return {};
  return span.finished["error"].is_null() ? Value() : of_step;
}

// Who was asked and who answered, by what name its provider calls it; what that cost.
Value model_view(const State& state, const Step& step, const StepSpan& span) {
  const bool whole = state.node_of(step).loop && !step.is_part();  // its turns are what is asked
  if (state.kind_of(step) != NodeKind::llm || whole) return {};
  const Value& request = span.started["arguments"];
  const Value& committed = span.committed;
  return Value::object({{"answered", committed["llm_model"]},
                        {"asked", request["model"]},
                        {"prompt_hash", committed["prompt_hash"]},
                        {"provider", state.tool_of(step).provider},
                        {"temperature", request["temperature"]},
                        {"usage", committed["usage"]}});
}

Value try_view(const TrySpan& one, std::string_view world, Value span_id) {
  Value duration = one.duration;
  if (duration.is_null()) duration = between(one.started_at, one.finished_at);
  return Value::object({{"attempt", or_null(one.attempt)},
                        {"caught_up", one.caught_up},
                        {"definite", one.definite},
                        {"duration_us", duration},
                        {"error", one.error},
                        {"finished_at", or_null(one.finished_at)},
                        {"outcome", or_null(one.outcome)},
                        {"progress", one.progress},
                        {"request_schema_hash", one.request_schema},
                        {"resolution", or_null(one.resolution)},
                        {"response_schema_hash", one.response_schema},
                        {"seq", number(one.seq)},
                        {"source", one.source},
                        {"span_id", std::move(span_id)},
                        {"started_at", to_text(one.started_at)},
                        {"tool_version", one.tool_version},
                        {"try", one.number},
                        {"world", world}});
}

Value wait_view(const WaitSpan& wait) {
  return Value::object({{"by", wait.completed["by"]},
                        {"channel", wait.opened["channel"]},
                        {"completed_at", or_null(wait.completed_at)},
                        {"correlation_key", wait.opened["correlation_key"]},
                        {"due_at", wait.opened["due_at"]},
                        {"expires_at", wait.opened["expires_at"]},
                        {"opened_at", to_text(wait.opened_at)},
                        {"outcome", wait.completed["outcome"]},
                        {"payload", wait.completed["payload"]},
                        {"reason", wait.opened["reason"]},
                        {"wait_type", wait.opened["wait_type"]}});
}

// What a call changed, each with what was last seen of it: null = nobody has looked.
Value changes_of(const StepSpan& span) {
  std::vector<Value> views;
  for (const Value& change : span.changes) {
    Value verdict, detail;
    for (const Value& check : span.checks) {
      if (!(check["resource_type"] == change["resource_type"]) ||
          !(check["resource_id"] == change["resource_id"])) {
        continue;
      }
      verdict = check["verdict"];
      detail = check["detail"];
    }
    views.push_back(Value::object({{"detail", detail},
                                   {"etag", change["etag"]},
                                   {"external_ref", change["external_ref"]},
                                   {"operation", change["operation"]},
                                   {"resource_id", change["resource_id"]},
                                   {"resource_type", change["resource_type"]},
                                   {"verdict", verdict},
                                   {"version", change["version"]}}));
  }
  return Value::array(std::move(views));
}

Value attempt_view(const AttemptSpan& span, std::uint64_t last_seq) {
  return Value::object({{"attempt_id", span.id},
                        {"ended", or_null(span.ended)},
                        {"ended_at", or_null(span.ended_at)},
                        {"epoch", span.epoch},
                        {"from_seq", number(span.from)},
                        {"started_at", to_text(span.started_at)},
                        {"to_seq", number(span.to ? span.to : last_seq)},
                        {"worker", span.worker}});
}

// How a step ended badly; of one that another job did, nothing else is known.
Value error_of(const Step& step, const StepSpan& span) {
  if (!step.imported || !step.failure) return span.finished["error"];
  return Value::object({{"code", step.failure->code}, {"message", step.failure->message}});
}

Value Tracer::result_of(const Step& step, const StepSpan& span) const {
  if (step.item == kNoItem && step.role == Role::node) return step.result;
  if (step.imported && step.turn != kNoTurn) return step.result;
  if (!step.imported || step.failure) return span.result;
  const Step& map = s_.steps[step.node];
  if (map.map) return map.map->results[step.item];
  return map.result.is_array() ? map.result.items()[step.item] : Value();
}

std::vector<Value> Tracer::sides_view(const Step& step, Role role) {
  std::vector<Value> views;
  if (step.probe == kNoStep && step.undo == kNoStep) return views;
  auto beside = sides_.find(s_.by_id.at(step.id));
  if (beside == sides_.end()) return views;
  for (const Step* side : beside->second) {
    if (side->role == role) views.push_back(node_view(*side));
  }
  return views;
}

Value Tracer::node_view(const Step& step) {
  const StepSpan& span = steps_[step.id.text];
  const Node& node = s_.node_of(step);
  const bool side = step.role != Role::node;
  const bool is_item = step.is_part() || side;  // it is one call
  const std::string_view status = status_of(step);
  count(step, span, status);
  std::vector<Value> tries, waits, items, needs;
  for (std::size_t i = 0; i < span.tries.size(); ++i) {
    const TrySpan& one = span.tries[i];
    tries.push_back(
        try_view(one, world_of(step, span, one), span_id(span, one))
            .with("result_type", try_result_type(span, i, span.finished["result_type"])));
  }
  for (const WaitSpan& wait : span.waits) {
    const auto open = s_.waits.find(std::string(wait.opened.text("correlation_key")));
    std::string id = open == s_.waits.end() ? "" : s_.approval_id(open->second);
    if (!id.empty()) id.insert(0, s_.job.text + ".");
    waits.push_back(wait_view(wait).with("approval", id.empty() ? Value() : Value(id)));
  }
  for (const Step* part : below(step)) items.push_back(node_view(*part));
  if (!is_item) {
    for (std::uint32_t need : node.needs) needs.emplace_back(s_.plan->nodes[need].id);
  }
  std::vector<Value> probes = sides_view(step, Role::probe);
  std::vector<Value> undo = sides_view(step, Role::undo);
  Value result_type = span.finished["result_type"];
  if (step.result_type == ResultType::compensated || step.imported) {
    result_type = to_text(step.result_type);
  }
  std::optional<Instant> finished_at = span.finished_at;
  if (side && step.phase == StepPhase::done && !span.tries.empty()) {
    finished_at = span.tries.back().finished_at;
  }
  const bool calls = is_item || node.kind != NodeKind::wait;
  const bool replayed =
      span.finished_seq > 0 && attempts_.size() > 0 && attempts_.back().from > span.finished_seq;
  return Value::object({{"changes", changes_of(span)},
                        {"compensation", undo.empty() ? Value() : undo.front()},
                        {"decisions", Value::array(span.decisions)},
                        {"duration_us", between(span.started_at, finished_at)},
                        {"effect", effect_view(span)},
                        {"error", error_of(step, span)},
                        {"executed_by", or_null(span.finished_by)},
                        {"finished_at", or_null(finished_at)},
                        {"imported", step.imported != nullptr},
                        {"item", step.item != kNoItem ? number(step.item) : Value()},
                        {"items", Value::array(std::move(items))},
                        {"kind", to_text(s_.kind_of(step))},
                        {"model", model_view(s_, step, span)},
                        {"needs", Value::array(std::move(needs))},
                        {"node_id", node.id},
                        {"path", s_.path_of(step)},
                        {"phase", to_text(step.phase)},
                        {"probes", Value::array(std::move(probes))},
                        {"replayed", replayed},
                        {"result", result_of(step, span)},
                        {"result_type", result_type},
                        {"role", to_text(step.role)},
                        {"started_at", or_null(span.started_at)},
                        {"status", status},
                        {"step_id", step.id.text},
                        {"tool", calls ? Value(s_.tool_of(step).name) : Value()},
                        {"tries", Value::array(std::move(tries))},
                        {"try", number(span.tries.size())},
                        {"turn", step.turn != kNoTurn ? number(step.turn) : Value()},
                        {"turn_call", step.is_loop_call() ? number(step.nth) : Value()},
                        {"waits", Value::array(std::move(waits))},
                        {"world", world_of(step, span)}});
}

// Under which the call went out (core/trace_context.h).
Value Tracer::span_id(const StepSpan& span, const TrySpan& one) const {
  const std::string_view invocation = span.started.text("invocation_id");
  if (invocation.empty() || !one.number.is_integer()) return {};
  return span_id_of(s_.job, InvocationId(std::string(invocation)),
                    static_cast<std::uint32_t>(one.number.as_int()));
}

Value Tracer::run() {
  EffectKinds kinds;
  std::vector<Value> effects;
  for (const Event& event : events_) {
    gather(event);
    const std::string_view kind = kinds.kind_of(event);
    if (!kind.empty()) effects.push_back(effect_entry(event, kind));
  }
  for (const Step& step : s_.steps) {
    if (step.role != Role::node) {
      sides_[step.of].push_back(&step);
    } else if (step.item != kNoItem) {
      items_[step.node].push_back(&step);
    } else if (step.is_turn()) {
      turns_[step.node].push_back(&step);
    } else if (step.is_loop_call()) {
      calls_[{step.node, step.turn}].push_back(&step);
    }
  }
  std::vector<Value> nodes, attempts;
  if (s_.plan) {
    for (const Node& node : s_.plan->nodes) nodes.push_back(node_view(s_.steps[node.index]));
  }
  for (const AttemptSpan& span : attempts_) attempts.push_back(attempt_view(span, s_.seq));
  std::optional<Instant> created_at, ended_at;
  if (!events_.empty()) created_at = events_.front().created_at;
  if (is_terminal(s_.status)) ended_at = s_.updated_at;
  const Value job = job_view(s_);
  const TraceContext context = trace_of(s_.job, s_.traceparent, s_.tracestate);
  return Value::object(
      {{"agent", s_.agent},
       {"attempts", Value::array(std::move(attempts))},
       {"budget", Value::array(std::move(budget_))},
       {"created_at", or_null(created_at)},
       {"drift", drift_view(events_)},
       {"duration_us", between(created_at, ended_at)},
       {"effects", Value::array(std::move(effects))},
       {"ended_at", or_null(ended_at)},
       {"error", job["error"]},
       {"forked_from", s_.forked_from},
       {"id", s_.job.text},
       {"nodes", Value::array(std::move(nodes))},
       {"plan_hash", job["plan_hash"]},
       {"result", s_.result},
       {"seq", number(s_.seq)},
       {"status", to_text(s_.status)},
       {"totals", Value::object({{"done", number(done_)},
                                 {"failed", number(failed_)},
                                 {"in_doubt", number(in_doubt_)},
                                 {"nodes", number(s_.plan ? s_.plan->nodes.size() : 0)},
                                 {"repeated", number(repeated_)},
                                 {"skipped", number(skipped_)},
                                 {"tries", number(tries_)}})},
       {"trace", Value::object({{"parent_id", or_null(context.parent_id)},
                                {"span_id", span_id_of(s_.job)},
                                {"trace_id", context.trace_id},
                                {"tracestate", or_null(context.state)}})},
       {"usage", job["usage"]}});
}

}  // namespace

Value trace_view(const State& state, const std::vector<Event>& events) {
  return Tracer(state, events).run();
}

}  // namespace ae::engine
