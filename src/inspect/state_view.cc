// state_view: every part of a state, in an order that does not depend on when a step started.
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/confirm/confirm.h"
#include "inspect/aliases.h"
#include "inspect/field_json.h"
#include "inspect/view.h"
#include "inspect/view_parts.h"
#include "json/json.h"
#include "log/field_names.h"
#include "plan/model_calls.h"

namespace ae::engine {
namespace {

std::string_view to_text(Charge charge) {
  constexpr std::string_view kText[] = {"none", "reserved", "spent"};
  return kText[static_cast<std::size_t>(charge)];
}

// The questions of a tool, and the answers so far.
Value questions_view(const Questions* questions) {
  if (questions == nullptr) return {};
  return with_aliases(Value::object({{"answers", questions->answers},
                                     {"number", number(questions->number)},
                                     {plain_name::kRequested, questions->input_required},
                                     {"rounds", number(questions->rounds)}}));
}

Value call_view(const Invocation& call) {
  return Value::object({{field::arguments, call.arguments},
                        {field::arguments_hash, to_hex(call.arguments_hash)},
                        {field::attempt_id, call.attempt.text},
                        {"charge", to_text(call.charge)},
                        {"counted", number(call.counted_tries)},
                        {field::deadline, to_text(call.deadline)},
                        {field::definite, call.definite},
                        {field::error, failure_view(call.failure)},
                        {field::external_key, call.external_key.text},
                        {"first_send_by", to_text(call.first_send_by)},
                        {field::idempotency_key, call.key.text},
                        {field::invocation_id, call.id.text},
                        {"open", call.open},
                        {field::outcome, call.open ? Value() : Value(ae::to_text(call.outcome))},
                        {"questions", questions_view(call.questions.get())},
                        {field::retry_after_ms,
                         call.retry_after ? Value(call.retry_after->count() / 1000) : Value()},
                        {field::retryable, call.retryable},
                        {field::send_by, to_text(call.send_by)},
                        {"tool", call.tool},
                        {field::tool_version, call.tool_version},
                        {field::try_, number(call.try_no)}});
}

Value approval_view(const Approval& approval) {
  return with_aliases(Value::object({{field::arguments, approval.arguments},
                                     {field::arguments_hash, approval.arguments_hash},
                                     {field::by, or_null(approval.by)},
                                     {"edited_from", or_null(approval.edited_from)},
                                     {field::expires_at, or_null(approval.expires_at)},
                                     {"id", approval.id},
                                     {field::note, or_null(approval.note)},
                                     {plain_name::kRequestCount, number(approval.request_count)},
                                     {"schema_digest", approval.schema_digest},
                                     {field::state, to_text(approval.state)},
                                     {"tool", approval.tool},
                                     {field::tool_version, approval.tool_version},
                                     {"used", approval.used}}));
}

// Messages and early signals without an open wait.
Value buffered_view(const std::map<std::string, std::deque<BufferedMessage>>& all) {
  std::vector<Member> members;
  for (const auto& [name, messages] : all) {
    std::vector<Value> values;
    for (const BufferedMessage& one : messages) {
      values.push_back(Value::object({{field::by, or_null(one.by)},
                                      {"ends_thread", one.ends_thread},
                                      {"id", one.id},
                                      {field::payload, one.payload},
                                      {field::wait_type, or_null(one.wait_type)}}));
    }
    members.emplace_back(name, Value::array(std::move(values)));
  }
  return Value::object(std::move(members));
}

Value map_view(const MapProgress& map) {
  std::vector<Value> results;
  results.reserve(map.results.size());
  for (std::size_t i = 0; i < map.results.size(); ++i) {
    results.push_back(
        Value::object({{"finished", bool{map.finished[i]}}, {field::result, map.results[i]}}));
  }
  return Value::object({{"active", number(map.active)},
                        {"asking", number(map.asking)},
                        {"done", number(map.done)},
                        {"failure", failure_view(map.failure)},
                        {"over", map.over},
                        {field::results, Value::array(std::move(results))},
                        {"started", number(map.started)}});
}

Value loop_view(const State& state, const LoopProgress& loop) {
  std::vector<Value> turns;
  for (const LoopTurn& turn : loop.turns) {
    std::vector<Value> calls;
    calls.reserve(turn.calls.size());
    for (const LoopCall& call : turn.calls) {
      calls.push_back(Value::object(
          {{"begun", call.step != kNoStep},
           {"id", call.id},
           {"refused", failure_view(call.refused)},
           {"tool", call.refused ? Value() : Value(state.plan->tools[call.tool].name)}}));
    }
    turns.push_back(Value::object({{"calls", Value::array(std::move(calls))},
                                   {"chosen", turn.chosen},
                                   {"message", turn.message ? *turn.message : Value()},
                                   {"repair", turn.repair ? Value(*turn.repair) : Value()}}));
  }
  std::vector<Value> noticed_limits;
  noticed_limits.reserve(loop.noticed_limits.size());
  for (const Limit limit : loop.noticed_limits) noticed_limits.emplace_back(to_text(limit));
  return with_aliases(
      Value::object({{"active", number(loop.active)},
                     {"asking", number(loop.asking)},
                     {"context_tokens", number(loop.context_tokens)},
                     {"conversation", or_null(loop.conversation)},
                     {"ended", loop.ended},
                     {"exchange_turn", number(loop.exchange_turn)},
                     {"exchanges", number(loop.exchanges)},
                     {"failure", failure_view(loop.failure)},
                     {"from", number(loop.context.from)},
                     {plain_name::kMessageCount, number(loop.message_count)},
                     {"interrupted", loop.interrupted},
                     {"next", number(loop.next)},
                     {plain_name::kNoticedLimits, Value::array(std::move(noticed_limits))},
                     {"turns", Value::array(std::move(turns))},
                     {"waiting", loop.waiting}}));
}

Value worker_view(const Boxed<WorkerName>& worker) {
  if (!worker) return {};
  return Value::object({{"key", worker->key}, {"name", worker->name}});
}

Value code_progress_view(const State& state, const CodeProgress& code) {
  std::vector<Value> outcomes;
  for (const OutcomeOrder::Place& place : code.outcomes.places()) {
    outcomes.emplace_back(state.steps[place.step].request->position);
  }
  std::vector<Member> loops;
  loops.reserve(code.loops.size());
  for (const auto& [position, loop] : code.loops) loops.emplace_back(position, number(loop.ended));
  std::vector<Member> emitted;
  emitted.reserve(code.emitted.size());
  for (const auto& [scope, count] : code.emitted) emitted.emplace_back(scope, number(count));
  std::vector<Member> values(code.values.begin(), code.values.end());
  return Value::object(
      {{"emitted", Value::object(std::move(emitted))},
       {"may_repeat", code.may_repeat},
       {"open", number(code.open)},
       {"outcomes", Value::array(std::move(outcomes))},
       {"scopes", number(code.scopes)},
       {"tried", Value::array(std::vector<Value>(code.tried.begin(), code.tried.end()))},
       {"values", Value::object(std::move(values))},
       {field::version, code.version},
       {"worker", worker_view(code.worker)}});
}

Value request_view(const CodeRequest& request) {
  const bool waits = request.kind == NodeKind::wait;
  return Value::object({{"accepts_data", request.wait.accepts_data},
                        {field::arguments_hash,
                         request.arguments_hash ? Value(to_hex(*request.arguments_hash)) : Value()},
                        {field::delivered, number(request.delivered)},
                        {"ended", request.ended},
                        {field::position, request.position},
                        {"succeeded", request.succeeded},
                        {field::wait_type, waits ? Value(to_text(request.wait.type)) : Value()}});
}

// Sort key: node, item or turn and call, or position; then probes and compensations in the order of
// their paths. The index of a step depends on when it started.
auto sort_key(const State& state, const Step& step) {
  const Step* about = &step;
  while (about->role != Role::node) about = &state.steps[about->of];
  const std::string_view position =
      about->request ? std::string_view(about->request->position) : std::string_view();
  return std::tuple(step.node, step.item + 1, step.turn + 1, step.nth + 1, position, step.role,
                    step.of, step.of_try);
}

Value step_view(const State& state, const Step& step) {
  const Node& node = state.node_of(step);
  return Value::object(
      {{"approval", step.approval ? approval_view(*step.approval) : Value()},
       {"branch", step.branch ? Value(*step.branch) : Value()},
       {"call", step.call ? call_view(*step.call) : Value()},
       {field::code, step.code ? code_progress_view(state, *step.code) : Value()},
       {"committed", step.committed},
       {"failure", failure_view(step.failure)},
       {"imported", step.imported != nullptr},
       {"item", item_number(step)},
       {field::kind, to_text(state.kind_of(step))},
       {"loop", step.loop ? loop_view(state, *step.loop) : Value()},
       {"map", step.map ? map_view(*step.map) : Value()},
       {"needs_left", number(step.needs_left)},
       {field::node_id, node.id},
       {field::not_before,
        step.phase == StepPhase::backoff ? Value(to_text(step.not_before)) : Value()},
       {"path", state.path_of(step)},
       {"phase", to_text(step.phase)},
       {"rejected", step.rejected},
       {"request", step.request ? request_view(*step.request) : Value()},
       {field::result, step.result},
       {field::result_type,
        step.result_type == ResultType::none ? Value() : Value(to_text(step.result_type))},
       {"role", to_text(step.role)},
       {field::skipped, step.skipped},
       {"started", step.started},
       {"step_committed", step.barrier},
       {field::step_id, step.id.text},
       {"timed_out", step.timed_out},
       {"turn", turn_number(step)},
       {"turn_call", nth_number(step)},
       {"wait_key", step.wait_key ? or_null(*step.wait_key) : Value()}});
}

Value paths(const State& state, const std::vector<std::uint32_t>& steps) {
  std::vector<Value> paths;
  paths.reserve(steps.size());
  for (std::uint32_t index : steps) paths.emplace_back(state.path_of(state.steps[index]));
  return Value::array(std::move(paths));
}

// Paths, sorted by the keys of the steps.
Value paths(const State& state, const NumberSet& steps) {
  std::vector<const Step*> sorted;
  sorted.reserve(steps.size());
  for (std::uint32_t index : steps) sorted.push_back(&state.steps[index]);
  std::ranges::sort(sorted, {}, [&](const Step* s) { return sort_key(state, *s); });
  std::vector<Value> paths;
  paths.reserve(sorted.size());
  for (const Step* step : sorted) paths.emplace_back(state.path_of(*step));
  return Value::array(std::move(paths));
}

Value steps_view(const State& state) {
  std::vector<const Step*> sorted;
  sorted.reserve(state.steps.size());
  for (const Step& step : state.steps) sorted.push_back(&step);
  std::ranges::sort(sorted, {}, [&](const Step* s) { return sort_key(state, *s); });
  std::vector<Value> steps;
  steps.reserve(sorted.size());
  for (const Step* step : sorted) steps.push_back(step_view(state, *step));
  return Value::array(std::move(steps));
}

Value results_view(const State& state) {
  std::vector<Member> results;
  if (!state.plan) return Value::object({});
  for (const Node& node : state.plan->nodes) {
    const Step& step = state.steps[node.index];
    if (step.phase == StepPhase::done)
      results.emplace_back(node.id, state.result_for_dependents(step));
  }
  return Value::object(std::move(results));
}

Value earlier_unknown_view(const State& state) {
  std::vector<Value> calls;
  calls.reserve(state.earlier_unknown.size());
  for (const UnknownCall& call : state.earlier_unknown) {
    calls.push_back(Value::object({{"checkable_at", or_null(call.checkable_at)},
                                   {field::external_key, call.external_key.text},
                                   {field::idempotency_key, call.key.text},
                                   {field::invocation_id, call.invocation.text},
                                   {"item", call.item == kNoItem ? Value() : number(call.item)},
                                   {field::node_id, call.node_id},
                                   {field::reason, or_null(call.error.code)},
                                   {field::step_id, call.step.text},
                                   {"tool", call.tool},
                                   {field::try_, number(call.try_no)}}));
  }
  return Value::array(std::move(calls));
}

Value closed_waits_view(const State& state) {
  std::vector<Value> waits;
  waits.reserve(state.closed_waits.size());
  for (const auto& [key, wait] : state.closed_waits) {
    waits.push_back(Value::object({{field::correlation_key, key},
                                   {field::outcome, wait.outcome},
                                   {field::payload, wait.payload},
                                   {field::wait_type, to_text(wait.type)}}));
  }
  return Value::array(std::move(waits));
}

}  // namespace

std::string_view to_text(StepPhase phase) {
  switch (phase) {
    case StepPhase::blocked:
      return "blocked";
    case StepPhase::ready:
      return "ready";
    case StepPhase::calling:
      return "calling";
    case StepPhase::settled:
      return "settled";
    case StepPhase::backoff:
      return "backoff";
    case StepPhase::redo:
      return "redo";
    case StepPhase::in_doubt:
      return "in_doubt";
    case StepPhase::probing:
      return "probing";
    case StepPhase::committed:
      return "committed";
    case StepPhase::asking:
      return "asking";
    case StepPhase::questioned:
      return "questioned";
    case StepPhase::waiting:
      return "waiting";
    case StepPhase::answered:
      return "answered";
    case StepPhase::mapping:
      return "mapping";
    case StepPhase::looping:
      return "looping";
    case StepPhase::recorded:
      return "recorded";
    case StepPhase::refused:
      return "refused";
    case StepPhase::running:
      return "running";
    case StepPhase::done:
      return "done";
  }
  return "blocked";
}

std::string_view to_text(Role role) {
  constexpr std::string_view kText[] = {"node", "probe", "compensation"};
  return kText[static_cast<std::size_t>(role)];
}

Value state_view(const State& state) {
  std::vector<Value> waits;
  waits.reserve(state.waits.size());
  for (const auto& [key, wait] : state.waits) {
    waits.push_back(wait_view(state, key, wait).with("resolve", wait.resolve));
  }
  std::vector<Value> to_confirm;
  for (const std::string& key : state.to_confirm) {
    const Change& change = state.changes.at(key);
    to_confirm.push_back(Value::array({change.resource_type, change.resource_id}));
  }
  return Value::object(
      {{field::agent, state.agent},
       {"changes", Value::array(changes_view(state))},
       {"to_confirm", Value::array(std::move(to_confirm))},
       {field::attempt_id, or_null(state.attempt.text)},
       {field::budget, budget_view(state.budget)},
       {"calling", paths(state, state.calling)},
       {"closed_waits", closed_waits_view(state)},
       {field::deadline, or_null(state.deadline)},
       {"deadline_fired", state.deadline_fired},
       {"earlier_unknown", earlier_unknown_view(state)},
       {"early", buffered_view(state.early_signals)},
       {"ending", state.ending ? Value::object({{field::by, state.ending->by},
                                                {"cancelled", state.ending->cancelled},
                                                {field::code, state.ending->code},
                                                {field::compensate, state.ending->compensate},
                                                {"message", state.ending->message},
                                                {field::node_id, state.ending->node_id}})
                               : Value()},
       {field::epoch, number(state.epoch)},
       {field::error, failure_view(state.error)},
       {field::execution_version, state.execution_version},
       {"final_in_doubt", state.final_in_doubt},
       {field::forked_from, field_json(state.forked_from)},
       {"id", state.job.text},
       {field::input, state.input},
       {"job", state.job_root},
       {"lost_claims", number(state.lost_claims)},
       {"mail", buffered_view(state.pending_messages)},
       {"models", Value::object(usage_members(state.models))},
       {"nodes_left", number(state.nodes_left)},
       {field::not_before, or_null(state.not_before)},
       {"open_tries", number(state.open_tries)},
       {"plan_number", number(state.plan_number)},
       {"process_deaths", number(state.process_deaths)},
       {"parked", Value::object({{field::reason, or_null(state.parked_reason)},
                                 {"since", or_null(state.parked_since)},
                                 {field::until, or_null(state.parked_until)}})},
       {"pausing", pausing_view(state)},
       {field::plan_hash, state.plan ? Value(to_hex(state.plan->hash)) : Value()},
       {field::result, state.result},
       {field::results, results_view(state)},
       {"routines", paths(state, state.routines)},
       {"seq", number(state.seq)},
       {"startable", paths(state, state.startable)},
       {"started_at", or_null(state.started_at)},
       {"status", to_text(state.status)},
       {"steps", steps_view(state)},
       {"todo", paths(state, state.todo)},
       {field::compensated, paths(state, state.undone)},
       {"given_up", paths(state, state.given_up)},
       {"undoable", paths(state, state.undoable)},
       {field::traceparent, or_null(state.traceparent)},
       {field::tracestate, or_null(state.tracestate)},
       {"tries_started", number(state.tries_started)},
       {"updated_at", to_text(state.updated_at)},
       {field::waits, Value::array(std::move(waits))}});
}

}  // namespace ae::engine
