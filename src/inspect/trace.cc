// trace_view: one pass over the log collects the events of each step (trace_record.h); a second
// pass, over the plan, builds the tree.
#include "inspect/trace.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/trace_context.h"
#include "engine/children/children.h"
#include "engine/state/view_values.h"
#include "inspect/aliases.h"
#include "inspect/drift.h"
#include "inspect/effects.h"
#include "inspect/failure_location.h"
#include "inspect/field_json.h"
#include "inspect/step_tree.h"
#include "inspect/trace_record.h"
#include "inspect/view.h"
#include "inspect/view_parts.h"
#include "log/field_names.h"

namespace ae::engine {
namespace {

Value duration_between(const std::optional<Instant>& from, const std::optional<Instant>& to) {
  if (!from || !to) return {};
  return {static_cast<std::int64_t>((*to - *from).count())};
}

class Tracer {
 public:
  // `dropped_by`: the number of the plan that dropped the steps shown; nullopt: the job's current
  // plan.
  Tracer(const State& state, TraceRecord& record, std::optional<std::uint32_t> dropped_by = {});
  Value run(const std::vector<Event>& events);
  // The step without its parts.
  Value single_view(const Step& step, ExternalEffect world);

 private:
  std::vector<Value> dropped_views(const std::vector<Event>& events);
  std::vector<Value> dropped_nodes(const JsonOf<std::vector<CarriedNode>>& carried);
  Value node_view(const Step& step);
  Value node_view(const Step& step, std::vector<Value> items, ExternalEffect world);
  std::vector<Value> side_views(const Step& step, Role role);
  ExternalEffect effect_of(const Step& step, const StepSpan& span) const;
  std::vector<Value> requested_call_views(const Step& turn);
  Value result_of(const Step& step, const StepSpan& span) const;
  Value code_end_view(const StepSpan& span) const;
  Value span_id(const StepSpan& span, const TrySpan& one) const;
  void count(const Step& step, const StepSpan& span, StepStatus status);

  const State& s_;
  TraceRecord& record_;
  const std::optional<std::uint32_t> dropped_by_;
  const StepTree tree_;
  std::size_t located_ = kStepsLocated;  // failed steps whose field may still be located
  std::uint64_t done_ = 0, failed_ = 0, skipped_ = 0, tries_ = 0, repeated_ = 0, in_doubt_ = 0,
                refused_ = 0;
};

Tracer::Tracer(const State& state, TraceRecord& record, std::optional<std::uint32_t> dropped_by)
    : s_(state), record_(record), dropped_by_(dropped_by), tree_(state, dropped_by.has_value()) {}

// ---------------------------------------------------------------- external effects

std::vector<TryOutcome> outcomes_of(const StepSpan& span) {
  std::vector<TryOutcome> outcomes;
  outcomes.reserve(span.tries.size());
  for (const TrySpan& one : span.tries) {
    outcomes.push_back(
        {.try_no = static_cast<std::uint32_t>(one.started->try_no),
         .outcome = one.finished ? std::optional(outcome_from_text(one.outcome())) : std::nullopt,
         .definite = one.definite(),
         .resolution = resolution_from_text(one.resolution)});
  }
  return outcomes;
}

ExternalEffect Tracer::effect_of(const Step& step, const StepSpan& span) const {
  if (step.result_type == ResultType::compensated) return ExternalEffect::rolled_back;
  EffectSum sum;
  if (!span.tries.empty()) sum.add(s_.tool_of(step).effect, outcomes_of(span));
  for (const Step* part : tree_.parts_of(step)) {
    auto found = record_.steps.find(part->id.text);
    if (found != record_.steps.end()) sum.add(effect_of(*part, found->second));
  }
  return sum.total();
}

// The number of the try that created the child job of the call, from 1; 0: none has.
std::size_t creating_try(const StepSpan& span) {
  const auto found = std::ranges::find(span.tries, "input_required", &TrySpan::outcome);
  return found == span.tries.end() ? 0 : static_cast<std::size_t>(found - span.tries.begin()) + 1;
}

// Tries that call a tool: not those that record the end of a child job.
std::size_t call_count(const StepSpan& span, bool awaits_child) {
  const std::size_t created = awaits_child ? creating_try(span) : 0;
  return created > 0 ? created : span.tries.size();
}

void Tracer::count(const Step& step, const StepSpan& span, StepStatus status) {
  const std::size_t calls = call_count(span, s_.has_tool(step) && s_.awaits_child(step));
  tries_ += calls;
  if (calls > 1) repeated_ += calls - 1;
  if (step.role != Role::node) {
    if (status == StepStatus::in_doubt) in_doubt_++;
    return;
  }
  const Node& node = s_.node_of(step);
  const bool is_container = node.kind == NodeKind::map || node.loop || node.code;
  const bool is_call = step.is_part() ? s_.has_tool(step) : !is_container;
  if (status == StepStatus::in_doubt && is_call) in_doubt_++;
  if (step.is_part()) return;
  if (status == StepStatus::done) done_++;
  if (status == StepStatus::failed) failed_++;
  if (status == StepStatus::skipped) skipped_++;
}

// ---------------------------------------------------------------- views

Value effect_view(const StepSpan& span) {
  if (span.started == nullptr) return {};
  const ToolInvocationStarted& started = *span.started;
  return Value::object({{field::arguments, started.arguments.value},
                        {field::arguments_hash, field_json(started.arguments_hash)},
                        {field::effect_class, started.effect_class},
                        {field::external_id, field_json(span.external_id)},
                        {field::external_key, started.external_key.text},
                        {field::idempotency_key, started.idempotency_key.text},
                        {field::invocation_id, started.invocation_id.text},
                        {"tool", started.tool_name},
                        {field::tool_version, started.tool_version}});
}

// How the step ended; null: it has not ended.
Value result_type_of(const StepSpan& span) {
  return span.finished != nullptr ? Value(span.finished->result_type) : Value();
}

// The result of a try, which may differ from that of its step: if another try follows, it was a
// retryable failure.
Value try_result_type(const StepSpan& span, std::size_t index) {
  const TrySpan& one = span.tries[index];
  if (one.outcome() == "success") return "success";
  if (one.outcome() == "input_required") return {};
  if (index + 1 < span.tries.size()) return "retryable_failure";
  if (one.outcome().empty() || !one.resolution.empty()) return {};
  const bool failed = span.finished != nullptr && span.finished->error;
  return failed ? result_type_of(span) : Value();
}

// The requested model, the model that answered under its provider's name, and the usage.
Value model_view(const State& state, const Step& step, const StepSpan& span) {
  const bool is_container =
      state.node_of(step).loop && !step.is_part();  // its turns make the requests
  if (state.kind_of(step) != NodeKind::llm || is_container) return {};
  static const ToolInvocationStarted no_call;
  static const CommandCommitted none;
  const Value& request = (span.started ? *span.started : no_call).arguments.value;
  const CommandCommitted& committed = span.committed ? *span.committed : none;
  return with_aliases(Value::object({{"answered", field_json(committed.llm_model)},
                                     {field::prompt_hash, field_json(committed.prompt_hash)},
                                     {"provider", state.tool_of(step).provider},
                                     {plain_name::kRequested, request["model"]},
                                     {"temperature", request["temperature"]},
                                     {field::usage, committed.usage.json()}}));
}

Value try_view(const TrySpan& one, ExternalEffect world, Value span_id) {
  static const ToolInvocationFinished open;
  const ToolInvocationFinished& end = one.finished ? *one.finished : open;
  Value duration = field_json(end.duration_us);
  if (duration.is_null()) duration = duration_between(one.started_at, one.finished_at);
  return Value::object({{"attempt", or_null(one.attempt)},
                        {field::caught_up, end.caught_up == true},
                        {field::definite, one.definite()},
                        {field::duration_us, duration},
                        {field::error, field_json(end.error)},
                        {"finished_at", or_null(one.finished_at)},
                        {field::outcome, or_null(one.outcome())},
                        {"progress", one.progress},
                        {field::request_schema_hash, field_json(one.started->request_schema_hash)},
                        {field::resolution, or_null(one.resolution)},
                        {field::response_schema_hash, field_json(end.response_schema_hash)},
                        {"seq", number(one.seq)},
                        {field::source, field_json(end.source)},
                        {"span_id", std::move(span_id)},
                        {"started_at", to_text(one.started_at)},
                        {field::tool_version, one.started->tool_version},
                        {field::try_, one.started->try_no},
                        {"world", to_text(world)}});
}

Value wait_view(const WaitSpan& wait) {
  const WaitOpened& opened = *wait.opened;
  const WaitCompleted* end = wait.completed;
  return Value::object({{field::by, end ? field_json(end->by) : Value()},
                        {field::channel, field_json(opened.channel)},
                        {"completed_at", or_null(wait.completed_at)},
                        {field::correlation_key, opened.correlation_key},
                        {field::due_at, field_json(opened.due_at)},
                        {field::expires_at, field_json(opened.expires_at)},
                        {field::opened_at, to_text(wait.opened_at)},
                        {field::outcome, end ? Value(end->outcome) : Value()},
                        {field::payload, end ? end->payload.value : Value()},
                        {field::reason, field_json(opened.reason)},
                        {field::wait_type, opened.wait_type}});
}

// How the child of an awaited call ended; open: it has not.
std::string child_status(const StepSpan& span) {
  const bool has_ended = !span.waits.empty() && span.waits.back().completed != nullptr;
  if (!has_ended) return "open";
  const Value& end = span.waits.back().completed->payload.value;
  if (end["status"].is_string()) return std::string(end.text("status"));
  // It ended before its wait was opened, or its end was erased.
  if (span.tries.back().outcome() == "success") return "completed";
  const bool has_failed = span.finished != nullptr && span.finished->error;
  return has_failed ? "failed" : "ended";
}

// The child job of the step's call; null: it has created none.
Value child_view(const State& state, const Step& step, const StepSpan& span) {
  if (step.role != Role::node || step.map || !state.has_tool(step) || span.tries.empty()) return {};
  const auto& child = state.tool_of(step).child;
  if (!child) return {};
  const bool is_created = child->detached ? span.committed != nullptr : creating_try(span) > 0;
  if (!is_created) return {};
  std::optional<Instant> ended_at;
  if (!child->detached && !span.waits.empty()) ended_at = span.waits.back().completed_at;
  return Value::object(
      {{field::agent, child->agent},
       {field::duration_us, duration_between(span.tries.front().started_at, ended_at)},
       {"id", child_of(state, step).text},
       {"status", child->detached ? "detached" : child_status(span)}});
}

// What a call changed, with the last verification; null = not verified.
Value changes_of(const StepSpan& span) {
  std::vector<Value> views;
  for (const StateChanged* change : span.changes) {
    Value verdict, detail;
    for (const ConfirmationChecked* check : span.checks) {
      if (check->resource_type != change->resource_type ||
          check->resource_id != change->resource_id) {
        continue;
      }
      verdict = field_json(check->verdict);
      detail = check->detail.json();
    }
    views.push_back(Value::object({{field::detail, detail},
                                   {field::etag, field_json(change->etag)},
                                   {field::external_ref, field_json(change->external_ref)},
                                   {field::operation, change->operation},
                                   {field::resource_id, change->resource_id},
                                   {field::resource_type, change->resource_type},
                                   {field::verdict, verdict},
                                   {field::version, field_json(change->version)}}));
  }
  return Value::array(std::move(views));
}

Value attempt_view(const AttemptSpan& span, std::uint64_t last_seq) {
  return Value::object({{field::attempt_id, span.id},
                        {"ended", or_null(span.ended)},
                        {"ended_at", or_null(span.ended_at)},
                        {field::epoch, span.epoch},
                        {"from_seq", number(span.from)},
                        {"lost", or_null(span.lost)},
                        {"started_at", to_text(span.started_at)},
                        {"to_seq", number(span.to ? span.to : last_seq)},
                        {"worker", span.worker}});
}

// The error of a step; for an imported step only code and message are known.
Value error_of(const Step& step, const StepSpan& span) {
  if (!step.imported || !step.failure) {
    return span.finished != nullptr ? field_json(span.finished->error) : Value();
  }
  return Value::object({{field::code, step.failure->code}, {"message", step.failure->message}});
}

// What ended the wait of a request.
Value waited_result(const StepSpan& span) {
  const WaitCompleted* const end = span.waits.empty() ? nullptr : span.waits.front().completed;
  if (end == nullptr) return {};
  return end->outcome == "timed_out" ? Value::object({{"timed_out", true}}) : end->payload.value;
}

// How the code of a node ended without a result, if its job is parked because of that.
Value Tracer::code_end_view(const StepSpan& span) const {
  if (!s_.awaits_code()) return {};
  if (s_.parked_reason == code_name(Code::non_determinism) && span.diverged != nullptr) {
    return Value::object({{"diverged", span.diverged->detail.json()}});
  }
  if (span.exception == nullptr) return {};
  return Value::object({{"exception", span.exception->error.value}});
}

Value Tracer::result_of(const Step& step, const StepSpan& span) const {
  // The state drops the results inside of a scope that has ended.
  if (step.request && step.role == Role::node && step.result.is_null()) {
    return step.request->kind == NodeKind::wait ? waited_result(span) : span.result;
  }
  if (step.item == kNoItem && step.role == Role::node) return step.result;
  if (step.imported && step.turn != kNoTurn) return step.result;
  if (!step.imported || step.failure) return span.result;
  const Step& map = s_.steps[step.node];
  if (map.map) return map.map->results[step.item];
  return map.result.is_array() ? map.result.items()[step.item] : Value();
}

std::vector<Value> Tracer::side_views(const Step& step, Role role) {
  std::vector<Value> views;
  for (const Step* side : tree_.sides_of(step)) {
    if (side->role == role) views.push_back(node_view(*side));
  }
  return views;
}

Value Tracer::node_view(const Step& step) {
  std::vector<Value> items;
  for (const Step* part : tree_.parts_of(step)) items.push_back(node_view(*part));
  return node_view(step, std::move(items), effect_of(step, record_.steps[step.id.text]));
}

Value Tracer::single_view(const Step& step, ExternalEffect world) {
  return node_view(step, {}, world);
}

Value Tracer::node_view(const Step& step, std::vector<Value> items, ExternalEffect world) {
  const StepSpan& span = record_.steps[step.id.text];
  const Node& node = s_.node_of(step);
  const bool side = step.role != Role::node;
  const bool is_item = step.is_part() || side;  // it is one call
  const StepStatus status = tree_.status_of(step);
  count(step, span, status);
  std::vector<Value> tries, waits, needs;
  const std::vector<TryOutcome> outcomes = outcomes_of(span);
  for (std::size_t i = 0; i < span.tries.size(); ++i) {
    const TrySpan& one = span.tries[i];
    const ExternalEffect effect =
        external_effect_of(s_.tool_of(step).effect, outcomes, outcomes[i]);
    tries.push_back(try_view(one, effect, span_id(span, one))
                        .with(field::result_type, try_result_type(span, i)));
  }
  for (const WaitSpan& wait : span.waits) {
    const auto open = s_.waits.find(wait.opened->correlation_key);
    std::string id = open == s_.waits.end() ? "" : s_.approval_id(open->second);
    if (!id.empty()) id = fmt::format("{}.{}", s_.job.text, id);
    waits.push_back(wait_view(wait).with("approval", id.empty() ? Value() : Value(id)));
  }
  if (!is_item) {
    for (std::uint32_t need : node.needs) needs.emplace_back(s_.plan->nodes[need].id);
  }
  std::vector<Value> probes = side_views(step, Role::probe);
  std::vector<Value> undo = side_views(step, Role::undo);
  Value result_type = result_type_of(span);
  if (step.result_type == ResultType::compensated || step.imported) {
    result_type = to_text(step.result_type);
  }
  std::optional<Instant> finished_at = span.finished_at;
  if (side && step.phase == StepPhase::done && !span.tries.empty()) {
    finished_at = span.tries.back().finished_at;
  }
  const bool replayed = span.finished_seq > 0 && !record_.attempts.empty() &&
                        record_.attempts.back().from > span.finished_seq;
  return Value::object({{"changes", changes_of(span)},
                        {"calls", Value::array(requested_call_views(step))},
                        {"child", child_view(s_, step, span)},
                        {field::code, is_item ? Value() : code_view(node)},
                        {"code_end", is_item || !node.code ? Value() : code_end_view(span)},
                        {"compensation", undo.empty() ? Value() : undo.front()},
                        {"decisions", Value::array(span.decisions)},
                        {field::delivered, delivered_to(step)},
                        {"dropped_by", dropped_by_ ? number(*dropped_by_) : Value()},
                        {field::duration_us, duration_between(span.started_at, finished_at)},
                        {"effect", effect_view(span)},
                        {field::error, step_error_view(s_, step, error_of(step, span), located_)},
                        {"executed_by", or_null(span.finished_by)},
                        {"finished_at", or_null(finished_at)},
                        {"imported", step.imported != nullptr},
                        {"item", step.item != kNoItem ? number(step.item) : Value()},
                        {"items", Value::array(std::move(items))},
                        {field::kind, to_text(s_.kind_of(step))},
                        {"model", model_view(s_, step, span)},
                        {"needs", Value::array(std::move(needs))},
                        {field::node_id, node.id},
                        {"path", s_.path_of(step)},
                        {"phase", to_text(step.phase)},
                        {field::position, position_of(step)},
                        {"probes", Value::array(std::move(probes))},
                        {"replayed", replayed},
                        {field::result, result_of(step, span)},
                        {field::result_type, result_type},
                        {"role", to_text(step.role)},
                        {"started_at", or_null(span.started_at)},
                        {"status", to_text(status)},
                        {field::step_id, step.id.text},
                        {"tool", s_.has_tool(step) ? Value(s_.tool_of(step).name) : Value()},
                        {"tries", Value::array(std::move(tries))},
                        {field::try_, number(span.tries.size())},
                        {"turn", step.turn != kNoTurn ? number(step.turn) : Value()},
                        {"turn_call", step.is_loop_call() ? number(step.nth) : Value()},
                        {field::waits, Value::array(std::move(waits))},
                        {"world", to_text(world)}});
}

// The span id under which the call was sent (base/trace_context.h).
Value Tracer::span_id(const StepSpan& span, const TrySpan& one) const {
  return span_id_of(s_.job, span.started->invocation_id,
                    static_cast<std::uint32_t>(one.started->try_no));
}

Value effects_view(const std::vector<Event>& events, const TraceRecord& record) {
  EffectKinds kinds;
  std::vector<Value> effects;
  for (const Event& event : events) {
    const std::string_view kind = kinds.kind_of(event);
    if (kind.empty()) continue;
    Value entry = effect_entry(event, kind);
    const auto of = record.steps.find(std::string(entry.text(field::step_id)));
    if (entry[field::node_id].is_null() && of != record.steps.end() &&
        !of->second.node_id.empty()) {
      entry = entry.with(field::node_id, of->second.node_id);
    }
    effects.push_back(std::move(entry));
  }
  return Value::array(std::move(effects));
}

// All calls that the answer of a turn requested, in its order, including calls that were refused
// before they began.
std::vector<Value> Tracer::requested_call_views(const Step& turn) {
  std::vector<Value> views;
  if (!turn.is_turn()) return views;
  const StepSpan& span = record_.steps[turn.id.text];
  const std::string began = span.started != nullptr ? span.started->invocation_id.text : "";
  const auto choice =
      record_.choices.find(turn.imported ? turn.imported->invocation.text.string() : began);
  if (choice == record_.choices.end()) return views;
  const bool ended =
      dropped_by_ || is_terminal(s_.status) || s_.steps[turn.node].phase == StepPhase::done;
  const StepTree::Steps& started_calls = tree_.parts_of(turn);
  for (const ChosenCall& call : choice->second.calls) {
    const auto nth = static_cast<std::uint32_t>(views.size());
    const auto step =
        std::ranges::find(started_calls, nth, [](const Step* one) { return one->nth; });
    const std::string_view status = call.refused                  ? "refused"
                                    : step != started_calls.end() ? to_text(tree_.status_of(**step))
                                    : ended                       ? to_text(StepStatus::not_run)
                                                                  : to_text(StepStatus::pending);
    if (call.refused) refused_++;
    views.push_back(Value::object({{"call_id", field_json(call.id)},
                                   {field::error, field_json(call.refused)},
                                   {"status", status},
                                   {"tool", field_json(call.name)},
                                   {"turn_call", number(nth)}}));
  }
  return views;
}

// The nodes of a plan, in its order, that had begun and that the next plan does not carry over.
std::vector<Value> Tracer::dropped_nodes(const JsonOf<std::vector<CarriedNode>>& carried) {
  std::set<StepId> carried_steps;
  if (const auto list = carried.read()) {
    for (const CarriedNode& one : *list) carried_steps.insert(one.step_id);
  }
  std::vector<Value> views;
  for (const Node& node : s_.plan->nodes) {
    const Step& step = s_.steps[node.index];
    const bool has_begun = step.started || step.skipped || step.map || step.loop || step.imported;
    if (has_begun && !carried_steps.contains(step.id)) {
      views.push_back(node_view(step));
    }
  }
  return views;
}

// The steps that other plans dropped, in their state at that time: re-folds the log, because the
// current state no longer contains them.
std::vector<Value> Tracer::dropped_views(const std::vector<Event>& events) {
  std::vector<Value> views;
  if (s_.plan_number == 0) return views;
  State then;
  then.job = s_.job;
  for (const Event& event : events) {
    if (const auto* next = as<PlanGenerated>(event); next != nullptr && then.plan) {
      Tracer before(then, record_, then.plan_number + 1);
      std::ranges::move(before.dropped_nodes(next->carried), std::back_inserter(views));
      tries_ += before.tries_;
      repeated_ += before.repeated_;
      refused_ += before.refused_;
    }
    if (!apply(then, event.body, event.created_at, uncached_plan_source())) break;
  }
  return views;
}

Value Tracer::run(const std::vector<Event>& events) {
  std::vector<Value> nodes, attempts;
  if (s_.plan) {
    for (const Node& node : s_.plan->nodes) nodes.push_back(node_view(s_.steps[node.index]));
  }
  std::vector<Value> dropped = dropped_views(events);
  for (const AttemptSpan& span : record_.attempts) attempts.push_back(attempt_view(span, s_.seq));
  std::optional<Instant> created_at, ended_at;
  if (!events.empty()) created_at = events.front().created_at;
  if (is_terminal(s_.status)) ended_at = s_.updated_at;
  const Value job = job_view(s_);
  const TraceContext context = trace_of(s_.job, s_.traceparent, s_.tracestate);
  return Value::object(
      {{field::agent, s_.agent},
       {"attempts", Value::array(std::move(attempts))},
       {field::budget, Value::array(std::move(record_.budget))},
       {"created_at", or_null(created_at)},
       {"drift", drift_view(events)},
       {"dropped", Value::array(std::move(dropped))},
       {field::duration_us, duration_between(created_at, ended_at)},
       {"effects", effects_view(events, record_)},
       {"ended_at", or_null(ended_at)},
       {field::error, job[field::error]},
       {field::forked_from, field_json(s_.forked_from)},
       {"id", s_.job.text},
       {"nodes", Value::array(std::move(nodes))},
       {field::plan_hash, job[field::plan_hash]},
       {field::result, s_.result},
       {"seq", number(s_.seq)},
       {"status", to_text(s_.status)},
       {"totals", Value::object({{"done", number(done_)},
                                 {"failed", number(failed_)},
                                 {field::in_doubt, number(in_doubt_)},
                                 {"nodes", number(s_.plan ? s_.plan->nodes.size() : 0)},
                                 {"refused", number(refused_)},
                                 {"repeated", number(repeated_)},
                                 {field::skipped, number(skipped_)},
                                 {"tries", number(tries_)}})},
       {"trace", Value::object({{"parent_id", or_null(context.parent_id)},
                                {"span_id", span_id_of(s_.job)},
                                {"trace_id", context.trace_id},
                                {field::tracestate, or_null(context.state)}})},
       {field::usage, job[field::usage]}});
}

}  // namespace

Value trace_view(const State& state, const std::vector<Event>& events) {
  TraceRecord record;
  for (const Event& event : events) record.add(event);
  return Tracer(state, record).run(events);
}

Value step_trace_view(const State& state, TraceRecord& record, const Step& step,
                      ExternalEffect world) {
  return Tracer(state, record).single_view(step, world);
}

}  // namespace ae::engine
