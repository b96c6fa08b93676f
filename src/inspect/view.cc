// view: see view.h.
#include "inspect/view.h"

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/trace_context.h"
#include "engine/confirm/confirm.h"
#include "engine/state/action.h"
#include "engine/state/view_values.h"
#include "inspect/failure_location.h"
#include "inspect/request_kind.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/park_until.h"
#include "plan/model_calls.h"

namespace ae::engine {
namespace {

// Numbers of calls, and the usage of models.
Value usage_view(const State& state) {
  std::vector<Member> usage = usage_members(state.models);
  usage.emplace_back("tool_calls", number(state.tries_started - state.models.tries));
  return Value::object(std::move(usage));
}

Value use_view(const Usage& use) {
  return Value::object({{"cost_micros", number(use.cost_micros)},
                        {"model_calls", number(use.model_calls)},
                        {"tokens", number(use.tokens)},
                        {"tool_calls", number(use.tool_calls)}});
}

// Limits, spent and reserved amounts; null = no budget.
Value budget_view(const Budget& budget) {
  if (!budget.is_tracked()) return {};
  std::vector<Member> limits;
  for (const Limit limit : kCountedLimits) {
    const auto& max = budget.limits.max_of(limit);
    const bool cost = limit == Limit::cost;
    limits.emplace_back(cost ? "cost_micros" : to_text(limit), max ? number(*max) : Value());
  }
  limits.emplace_back("soft", budget.limits.soft > 0 ? number(budget.limits.soft) : Value());
  limits.emplace_back("wall",
                      budget.limits.wall ? Value(ae::to_text(*budget.limits.wall)) : Value());
  Value exceeded;
  if (budget.exceeded) {
    exceeded = Value::object({{field::asked, number(budget.exceeded->requested)},
                              {"limit", to_text(budget.exceeded->limit)}});
  }
  return Value::object({{"exceeded", exceeded},
                        {"limits", Value::object(std::move(limits))},
                        {field::reserved, use_view(budget.reserved)},
                        {"spent", use_view(budget.spent)},
                        {"wall_until", or_null(budget.wall_until)}});
}

// The new total of an exceeded limit: twice its value, or what the pending call needs. null: it
// cannot be raised.
Value raised_total(const Budget& budget, const ExceededLimit& exceeded) {
  if (exceeded.limit == Limit::wall) {
    return budget.limits.wall ? Value(ae::to_text(*budget.limits.wall * 2)) : Value();
  }
  const auto& max = budget.limits.max_of(exceeded.limit);
  if (!max) return {};
  const std::uint64_t amount =
      std::min(std::max(*max * 2, budget.used(exceeded.limit) + exceeded.requested), kBudgetMax);
  return exceeded.limit == Limit::cost ? Value(cost_text(amount)) : Value(std::to_string(amount));
}

Value failure_view(const std::optional<Failure>& failure) {
  if (!failure) return {};
  return Value::object({{field::code, failure->code}, {"message", failure->message}});
}

Value item_number(const Step& step) { return step.item == kNoItem ? Value() : number(step.item); }
Value turn_number(const Step& step) { return step.turn == kNoTurn ? Value() : number(step.turn); }
Value nth_number(const Step& step) { return step.nth == kNoTurn ? Value() : number(step.nth); }

// ---------------------------------------------------------------- state_view

std::string_view to_text(Charge charge) {
  constexpr std::string_view kText[] = {"none", "reserved", "spent"};
  return kText[static_cast<std::size_t>(charge)];
}

// The questions of a tool, and the answers so far.
Value questions_view(const Questions* questions) {
  if (questions == nullptr) return {};
  return Value::object({{"answers", questions->answers},
                        {field::asked, questions->input_required},
                        {"number", number(questions->number)},
                        {"rounds", number(questions->rounds)}});
}

Value call_view(const Invocation& call) {
  return Value::object(
      {{field::arguments, call.arguments},
       {field::arguments_hash, call.arguments_hash},
       {field::attempt_id, call.attempt.text},
       {"charge", to_text(call.charge)},
       {"counted", number(call.counted_tries)},
       {field::deadline, to_text(call.deadline)},
       {field::definite, call.definite},
       {field::error, failure_view(call.error.code.empty() && call.error.message.empty()
                                       ? std::nullopt
                                       : std::optional(call.error))},
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
  return Value::object({{field::arguments, approval.arguments},
                        {field::arguments_hash, approval.arguments_hash},
                        {field::asked, number(approval.request_count)},
                        {field::by, or_null(approval.by)},
                        {"edited_from", or_null(approval.edited_from)},
                        {field::expires_at, or_null(approval.expires_at)},
                        {"id", approval.id},
                        {field::note, or_null(approval.note)},
                        {"schema_digest", approval.schema_digest},
                        {field::state, to_text(approval.state)},
                        {"tool", approval.tool},
                        {field::tool_version, approval.tool_version},
                        {"used", approval.used}});
}

// Messages and early signals without an open wait.
Value buffered_view(const std::map<std::string, std::deque<BufferedMessage>>& all) {
  std::vector<Member> members;
  for (const auto& [name, messages] : all) {
    std::vector<Value> values;
    for (const BufferedMessage& one : messages) {
      values.push_back(Value::object({{field::by, or_null(one.by)},
                                      {"id", one.id},
                                      {field::payload, one.payload},
                                      {field::wait_type, or_null(one.wait_type)}}));
    }
    members.emplace_back(name, Value::array(std::move(values)));
  }
  return Value::object(std::move(members));
}

Value pausing_view(const State& state) {
  if (!state.pause_request) return {};
  return Value::object({{field::by, or_null(state.pause_request->by)},
                        {field::reason, or_null(state.pause_request->reason)}});
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
                                   {"repair", turn.repair ? Value(*turn.repair) : Value()}}));
  }
  std::vector<Value> noticed_limits;
  noticed_limits.reserve(loop.noticed_limits.size());
  for (const Limit limit : loop.noticed_limits) noticed_limits.emplace_back(to_text(limit));
  return Value::object({{"active", number(loop.active)},
                        {"asking", number(loop.asking)},
                        {"conversation", or_null(loop.conversation)},
                        {"failure", failure_view(loop.failure)},
                        {"next", number(loop.next)},
                        {"said", number(loop.message_count)},
                        {"told", Value::array(std::move(noticed_limits))},
                        {"turns", Value::array(std::move(turns))}});
}

// Sort key: node, item or turn and call; then probes and compensations in the order of their paths.
auto position(const Step& step) {
  return std::tuple(step.node, step.item + 1, step.turn + 1, step.nth + 1, step.role, step.of,
                    step.of_try);
}

Value step_view(const State& state, const Step& step) {
  const Node& node = state.node_of(step);
  return Value::object(
      {{"approval", step.approval ? approval_view(*step.approval) : Value()},
       {"branch", step.branch ? Value(*step.branch) : Value()},
       {"call", step.call ? call_view(*step.call) : Value()},
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
       {"wait_key", or_null(step.wait_key)}});
}

Value paths(const State& state, const std::vector<std::uint32_t>& steps) {
  std::vector<Value> paths;
  paths.reserve(steps.size());
  for (std::uint32_t index : steps) paths.emplace_back(state.path_of(state.steps[index]));
  return Value::array(std::move(paths));
}

// Paths, sorted by the positions of the steps: a step's index depends on when it started.
Value paths(const State& state, const std::set<std::uint32_t>& steps) {
  std::vector<const Step*> sorted;
  sorted.reserve(steps.size());
  for (std::uint32_t index : steps) sorted.push_back(&state.steps[index]);
  std::ranges::sort(sorted, {}, [](const Step* s) { return position(*s); });
  std::vector<Value> paths;
  paths.reserve(sorted.size());
  for (const Step* step : sorted) paths.emplace_back(state.path_of(*step));
  return Value::array(std::move(paths));
}

Value steps_view(const State& state) {
  std::vector<const Step*> sorted;
  sorted.reserve(state.steps.size());
  for (const Step& step : state.steps) sorted.push_back(&step);
  std::ranges::sort(sorted, {}, [](const Step* s) { return position(*s); });
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

// ---------------------------------------------------------------- parts of job_view

constexpr std::size_t kKeyShown = 12;  // digits of a key: enough to identify a call

Value call_action(const State& state, const IdempotencyKey& key) {
  std::vector<Member> arguments{{"call", key.text.substr(0, kKeyShown)},
                                {"job_id", state.job.text}};
  // Without `fail` after the end of the job.
  return is_terminal(state.status)
             ? action(act::kResolve, std::move(arguments), {"happened", "not_happened"})
             : action(act::kResolve, std::move(arguments), {"happened", "not_happened", "fail"});
}

Value resume_action(const State& state) {
  return action(act::kResume, {{"job_id", state.job.text}});
}

std::vector<Value> wait_actions(const State& state, const std::string& key, const Wait& wait) {
  const Step& step = state.steps[wait.step];
  if (std::string id = state.approval_id(wait); !id.empty()) {
    id = state.job.text + "." + id;
    std::vector<Member> approval{{"id", id}};
    const Member* question = wait.question && step.call ? open_question(*step.call) : nullptr;
    if (question && question->second.text("mode") == "form") {
      approval.emplace_back("schema", question->second["schema"]);
    }
    return {action(act::kApprove, std::move(approval)), action(act::kReject, {{"id", id}})};
  }
  if (wait.type == WaitType::message) {
    return {action(act::kMessage, {{field::channel, wait.channel}, {"job_id", state.job.text}})};
  }
  if (wait.type == WaitType::timer) return {};
  return {action(act::kSignal, {{field::correlation_key, key}, {"job_id", state.job.text}})};
}

Value wait_view(const State& state, const std::string& key, const Wait& wait) {
  const Step& step = state.steps[wait.step];
  return Value::object({{"actions", Value::array(wait_actions(state, key, wait))},
                        {field::channel, or_null(wait.channel)},
                        {field::correlation_key, key},
                        {field::due_at, or_null(wait.due_at)},
                        {field::expires_at, or_null(wait.expires_at)},
                        {field::node_id, state.node_of(step).id},
                        {field::opened_at, to_text(wait.opened_at)},
                        {field::reason, or_null(wait.reason)},
                        {field::step_id, step.id.text},
                        {field::wait_type, to_text(wait.type)}});
}

std::vector<Value> waits_view(const State& state) {
  std::vector<std::pair<std::uint32_t, Value>> waits;
  for (const auto& [key, wait] : state.waits) {
    if (!wait.resolve) waits.emplace_back(wait.step, wait_view(state, key, wait));
  }
  std::ranges::sort(waits, {}, [](const auto& entry) { return entry.first; });
  std::vector<Value> views;
  views.reserve(waits.size());
  for (auto& [step, view] : waits) views.push_back(std::move(view));
  return views;
}

// A resolution recorded after the job had ended, by an operator or from a late result.
Value noted_view(const NotedOutcome& noted) {
  return Value::object({{field::at, to_text(noted.at)},
                        {field::by, or_null(noted.by)},
                        {field::note, noted.note},
                        {field::resolution, noted.resolution},
                        {field::result, noted.result}});
}

// `wait`: the open resolve wait of the call; nullptr: none.
Value unknown_call_view(const State& state, const UnknownCall& call, const Wait* wait) {
  std::string reason = wait ? wait->reason : call.error.code;
  if (reason.empty()) reason = "the outcome is unknown";
  const bool ended = is_terminal(state.status);
  const auto noted = state.noted.find(call.invocation.text);
  const bool is_noted = noted != state.noted.end();
  std::vector<Value> actions;
  if (wait || (ended && !is_noted)) actions.push_back(call_action(state, call.key));
  const Instant since = wait    ? wait->opened_at
                        : ended ? state.updated_at
                                : call.ended_at.value_or(state.updated_at);
  Value resolvable;
  if (call.try_no > 0 && (wait || ended)) {
    resolvable = to_text(call.checkable_at.value_or(since));
  }
  return Value::object({{"actions", Value::array(std::move(actions))},
                        {field::arguments, call.arguments},
                        {"compensates", or_null(call.compensates.text)},
                        {field::external_key, or_null(call.external_key.text)},
                        {"given_up", !wait && call.given_up},
                        {field::idempotency_key, call.key.text},
                        {field::invocation_id, call.invocation.text},
                        {"item", call.item == kNoItem ? Value() : number(call.item)},
                        {field::node_id, call.node_id},
                        {"noted", is_noted ? noted_view(noted->second) : Value()},
                        {field::reason, reason},
                        {"resolvable_at", resolvable},
                        {"said", or_null(call.error.message)},
                        {"since", to_text(since)},
                        {field::step_id, call.step.text},
                        {"tool", call.tool},
                        {field::try_, call.try_no > 0 ? number(call.try_no) : Value()}});
}

}  // namespace

std::vector<Value> in_doubt_view(const State& state) {
  std::vector<std::pair<std::uint32_t, Value>> doubts;
  for (const auto& [key, wait] : state.waits) {
    if (!wait.resolve) continue;
    doubts.emplace_back(wait.step,
                        unknown_call_view(state, state.call_of(state.steps[wait.step]), &wait));
  }
  std::ranges::sort(doubts, {}, [](const auto& entry) { return entry.first; });
  std::vector<Value> views;
  views.reserve(doubts.size());
  for (auto& [step, view] : doubts) views.push_back(std::move(view));
  for (const UnknownCall& call : state.unknown_calls()) {
    if (!call.given_up && !is_terminal(state.status)) continue;
    views.push_back(unknown_call_view(state, call, nullptr));
  }
  return views;
}

namespace {

// Calls with an unknown outcome that are probed once their requests can no longer take effect.
std::vector<Value> settling_view(const State& state) {
  std::vector<Value> views;
  if (is_terminal(state.status)) return views;
  for (const std::uint32_t index : state.todo) {
    const Step& step = state.steps[index];
    const bool left =
        step.phase == StepPhase::calling ? !state.is_live(step) : step.phase == StepPhase::settled;
    if (!step.call || !left || !state.may_probe(step)) continue;
    const auto settles = state.settles_at(step);
    if (!settles) continue;
    views.push_back(Value::object({{field::idempotency_key, step.call->key.text},
                                   {"item", item_number(step)},
                                   {field::node_id, state.node_of(step).id},
                                   {field::step_id, step.id.text},
                                   {"tool", state.tool_of(step).name},
                                   {field::until, to_text(*settles)}}));
  }
  return views;
}

// The steps whose verification an operator must decide: a changed resource does not match or cannot
// be reached.
std::vector<std::uint32_t> escalated_steps(const State& state) {
  std::set<std::uint32_t> steps;
  if (state.escalated == 0) return {};
  for (const auto& [key, change] : state.changes) {
    if (change.escalated) steps.insert(change.step);
  }
  return {steps.begin(), steps.end()};
}

std::vector<Value> confirmation_actions(const State& state, std::uint32_t step) {
  std::vector<Value> actions;
  if (state.parked_reason == kVerifierUnreachable) actions.push_back(resume_action(state));
  actions.push_back(action(act::kResolve,
                           {{"call", state.steps[step].id.text}, {"job_id", state.job.text}},
                           {"accept", "fail"}));
  return actions;
}

// One request per step, with all resources that it changed.
Value confirmation_view(const State& state, std::uint32_t index) {
  const Step& step = state.steps[index];
  std::vector<Value> resources;
  for (const auto& [key, change] : state.changes) {
    if (change.step != index || !change.escalated) continue;
    resources.push_back(Value::object({{field::etag, or_null(change.etag)},
                                       {field::external_ref, or_null(change.external_ref)},
                                       {"observed", or_null(change.escalated->observed)},
                                       {field::resource_id, change.resource_id},
                                       {field::resource_type, change.resource_type},
                                       {field::verdict, change.escalated->verdict},
                                       {field::version, or_null(change.version)}}));
  }
  return Value::object({{"actions", Value::array(confirmation_actions(state, index))},
                        {"answer", "decision"},
                        {field::arguments, Value()},
                        {field::arguments_hash, Value()},
                        {field::correlation_key, Value()},
                        {"editable", false},
                        {field::expires_at, Value()},
                        {"id", state.job.text + "." + step.id.text},
                        {"item", item_number(step)},
                        {"job_id", state.job.text},
                        {field::kind, to_text(RequestKind::confirmation)},
                        {field::labels, state.labels},
                        {field::node_id, state.node_of(step).id},
                        {field::opened_at, or_null(state.parked_since)},
                        {"question", Value()},
                        {field::reason, Value()},
                        {"resources", Value::array(std::move(resources))},
                        {field::step_id, step.id.text},
                        {"tool", state.tool_of(step).name},
                        {field::tool_version, Value()},
                        {"turn", turn_number(step)},
                        {"turn_call", nth_number(step)}});
}

Value parked_view(const State& state, const std::vector<Value>& in_doubt) {
  if (state.status != JobStatus::parked) return {};
  Value unpark;  // null: this version has no action for it
  if (const auto escalated = escalated_steps(state); !escalated.empty()) {
    unpark = confirmation_actions(state, escalated.front()).front();
  }
  if (state.parked_until == park_until::kResolve && !in_doubt.empty() &&
      in_doubt.front()["actions"].size() > 0) {
    unpark = in_doubt.front()["actions"].items()[0];
  } else if (state.awaits_budget()) {
    unpark = state.budget.exceeded ? raise_action(state, {&*state.budget.exceeded, 1}) : Value();
  } else if (state.is_paused()) {
    unpark = resume_action(state);
  } else if (state.awaits_version()) {  // with a file that offers the job's version
    unpark = action(act::kRun, {{"job_id", state.job.text}});
  }
  return Value::object({{"action", unpark},
                        {field::reason, state.parked_reason},
                        {"since", or_null(state.parked_since)},
                        {field::until, state.parked_until}});
}

Value ending_view(const State& state) {
  if (!state.ending || is_terminal(state.status)) return {};
  const Ending& ending = *state.ending;
  return Value::object({{field::by, or_null(ending.by)},
                        {field::code, ending.code},
                        {field::kind, ending.cancelled ? "cancelled" : "failed"},
                        {"message", or_null(ending.message)},
                        {field::node_id, or_null(ending.node_id)}});
}

Value error_view(const State& state) {
  if (state.error) return job_error_view(state);
  if (state.status != JobStatus::cancelled || !state.ending) return {};
  const std::string reason =
      state.ending->message.empty() ? "the job was cancelled" : state.ending->message;
  return Value::object({{field::code, "cancelled"},
                        {"committed", committed_nodes(state)},
                        {"expression", Value()},
                        {"field", Value()},
                        {field::idempotency_key, Value()},
                        {"item", Value()},
                        {"message", reason},
                        {"model", Value()},
                        {field::node_id, Value()},
                        {"reads_input", Value()},
                        {"reads_kept", Value::array({})},
                        {"summary", reason},
                        {"tool", Value()},
                        {"tries", Value()},
                        {"turn", Value()}});
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
       {field::forked_from, state.forked_from},
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
       {"seq", number(state.seq)},
       {"startable", paths(state, state.startable)},
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

Value raise_action(const State& state, std::span<const ExceededLimit> exceeded) {
  std::vector<Value> limits;
  for (const ExceededLimit& one : exceeded) {
    const Value total = raised_total(state.budget, one);
    if (total.is_null()) continue;
    limits.push_back(Value::object({{"limit", to_text(one.limit)}, {"total", total}}));
  }
  if (limits.empty()) return {};
  return action(act::kBudget,
                {{"job_id", state.job.text}, {"limits", Value::array(std::move(limits))}});
}

std::vector<Value> approvals_view(const State& state) {
  std::vector<std::pair<std::uint32_t, Value>> entries;
  if (state.ending || is_terminal(state.status)) return {};
  for (const auto& [key, wait] : state.waits) {
    const std::string id = state.approval_id(wait);
    if (id.empty()) continue;
    const Step& step = state.steps[wait.step];
    const Node& node = state.node_of(step);
    const Approval* call = wait.approval ? step.approval.get() : nullptr;
    const Member* question = wait.question && step.call ? open_question(*step.call) : nullptr;
    const bool data = !call && !wait.question && node.accepts_data;
    entries.emplace_back(
        wait.step,
        Value::object({{"answer", data ? "data" : "decision"},
                       {field::arguments, call ? call->arguments : Value()},
                       {field::arguments_hash, call ? Value(call->arguments_hash) : Value()},
                       {field::correlation_key, key},
                       {"editable", call != nullptr && !step.call},
                       {field::expires_at, or_null(wait.expires_at)},
                       {"id", state.job.text + "." + id},
                       {"item", item_number(step)},
                       {"job_id", state.job.text},
                       {field::kind, to_text(call            ? RequestKind::call
                                             : wait.question ? RequestKind::question
                                                             : RequestKind::wait)},
                       {field::labels, state.labels},
                       {field::node_id, node.id},
                       {field::opened_at, to_text(wait.opened_at)},
                       {"question", question ? question->second : Value()},
                       {field::reason, or_null(wait.reason)},
                       {field::step_id, step.id.text},
                       {"tool", call            ? Value(call->tool)
                                : wait.question ? Value(step.call->tool)
                                                : Value()},
                       {"turn", turn_number(step)},
                       {"turn_call", nth_number(step)},
                       {field::tool_version, call            ? Value(call->tool_version)
                                             : wait.question ? Value(step.call->tool_version)
                                                             : Value()}}));
  }
  for (const std::uint32_t step : escalated_steps(state)) {
    entries.emplace_back(step, confirmation_view(state, step));
  }
  std::ranges::stable_sort(entries, {}, [](const auto& entry) { return entry.first; });
  std::vector<Value> views;
  views.reserve(entries.size());
  for (auto& [step, view] : entries) views.push_back(std::move(view));
  return views;
}

Value job_view(const State& state) {
  std::vector<Value> waits = waits_view(state);
  std::vector<Value> in_doubt = in_doubt_view(state);
  std::vector<Value> confirmations;
  if (!state.ending) {
    for (const std::uint32_t step : escalated_steps(state)) {
      confirmations.push_back(confirmation_view(state, step));
    }
  }
  const bool waiting = state.status == JobStatus::waiting && !waits.empty();
  const std::uint64_t nodes = state.plan ? state.plan->nodes.size() : 0;
  const bool ended = is_terminal(state.status);
  return Value::object(
      {{field::agent, state.agent},
       {"attempt", number(state.epoch)},
       {field::attempt_id, or_null(state.attempt.text)},
       {field::budget, budget_view(state.budget)},
       {"changes", Value::array(changes_view(state))},
       {field::compensated, steps_list(state, state.undone)},
       {"confirmations", Value::array(std::move(confirmations))},
       {"created_at", state.job_root["created_at"]},
       {field::deadline, or_null(state.deadline)},
       {"ending", ending_view(state)},
       {field::error, error_view(state)},
       {field::execution_version, state.execution_version},
       {field::forked_from, state.forked_from},
       {"id", state.job.text},
       {field::input, state.input},
       {field::labels, state.labels},
       {"needs_version", Value()},
       {"next_due", ended ? Value() : or_null(state.next_due())},
       {field::not_before, or_null(state.not_before)},
       {"parked", parked_view(state, in_doubt)},
       {"pausing", pausing_view(state)},
       {"plan", number(state.plan_number)},
       {field::plan_hash, state.plan ? Value(to_hex(state.plan->hash)) : Value()},
       {"progress",
        Value::object({{"done", number(nodes - state.nodes_left)}, {"nodes", number(nodes)}})},
       {field::result, state.result},
       {"seq", number(state.seq)},
       {"settling", Value::array(settling_view(state))},
       {"status", to_text(state.status)},
       {"trace_id", trace_of(state.job, state.traceparent, state.tracestate).trace_id},
       {field::uncompensated, steps_list(state, ended && state.status != JobStatus::completed
                                                    ? not_undone(state)
                                                    : std::vector<std::uint32_t>())},
       {"updated_at", to_text(state.updated_at)},
       {field::usage, usage_view(state)},
       {"waiting", waiting ? waits.front() : Value()},
       {field::waits, Value::array(std::move(waits))},
       {field::in_doubt, Value::array(std::move(in_doubt))}});
}

}  // namespace ae::engine
