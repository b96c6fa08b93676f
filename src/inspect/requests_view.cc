// The requests to operators, each built once; approvals_view and in_doubt_view are projections.
#include "inspect/requests_view.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "engine/confirm/confirm.h"
#include "engine/loop/loop.h"
#include "engine/policy/policy.h"
#include "engine/state/action.h"
#include "engine/state/view_values.h"
#include "inspect/aliases.h"
#include "inspect/request_kind.h"
#include "inspect/view.h"
#include "inspect/view_parts.h"
#include "log/field_names.h"

namespace ae::engine {
namespace {

constexpr std::size_t kIdDigits = 16;
constexpr std::size_t kKeyShown = 12;  // digits of a key: enough to identify a call

// A request; or, without actions, a call whose outcome stays unknown.
struct Request {
  RequestKind kind = RequestKind::call;
  std::uint32_t step = 0;  // for the order
  std::string id;
  Value node_id, step_id, item, tool, reason, opened_at, expires_at;
  std::vector<Value> actions;
  std::vector<Member> more;  // the members of its kind
};

bool is_approval(RequestKind kind) {
  return kind != RequestKind::unknown_outcome && kind != RequestKind::budget;
}

// Its entry in the list of its kind.
Value detail_of(const State& state, const Request& request) {
  std::vector<Member> members = request.more;
  if (request.kind == RequestKind::budget) return Value::object(std::move(members));
  members.emplace_back("item", request.item);
  members.emplace_back(field::node_id, request.node_id);
  members.emplace_back(field::reason, request.reason);
  members.emplace_back(field::step_id, request.step_id);
  members.emplace_back("tool", request.tool);
  if (!is_approval(request.kind) || request.kind == RequestKind::confirmation) {
    members.emplace_back("actions", Value::array(request.actions));
  }
  if (!is_approval(request.kind)) {
    members.emplace_back("since", request.opened_at);
    return with_aliases(Value::object(std::move(members)));
  }
  members.emplace_back(field::expires_at, request.expires_at);
  members.emplace_back("id", request.id);
  members.emplace_back("job_id", state.job.text);
  members.emplace_back(field::kind, to_text(request.kind));
  members.emplace_back(field::labels, state.labels);
  members.emplace_back(field::opened_at, request.opened_at);
  return Value::object(std::move(members));
}

Value request_view(const State& state, const Request& request) {
  return Value::object({{"actions", Value::array(request.actions)},
                        {field::agent, state.agent},
                        {field::detail, detail_of(state, request)},
                        {field::expires_at, request.expires_at},
                        {"id", request.id},
                        {"item", request.item},
                        {"job_id", state.job.text},
                        {field::kind, to_text(request.kind)},
                        {field::labels, state.labels},
                        {field::node_id, request.node_id},
                        {field::opened_at, request.opened_at},
                        {field::reason, request.reason},
                        {field::step_id, request.step_id},
                        {"tool", request.tool}});
}

std::vector<Value> details_of(const State& state, const std::vector<Request>& requests) {
  std::vector<Value> details;
  details.reserve(requests.size());
  for (const Request& request : requests) details.push_back(detail_of(state, request));
  return details;
}

// ---------------------------------------------------------------- approvals

Request request_of_step(const State& state, RequestKind kind, std::uint32_t index) {
  const Step& step = state.steps[index];
  return {.kind = kind,
          .step = index,
          .id = {},
          .node_id = state.node_of(step).id,
          .step_id = step.id.text,
          .item = item_number(step),
          .tool = {},
          .reason = {},
          .opened_at = {},
          .expires_at = {},
          .actions = {},
          .more = {{field::position, position_of(step)},
                   {"turn", turn_number(step)},
                   {"turn_call", nth_number(step)}}};
}

// What a human wait of code asks; null: nothing.
Value prompt_of(const Wait& wait) {
  if (wait.prompt.empty() && wait.data.is_null()) return {};
  return Value::object({{"data", wait.data}, {"message", wait.prompt}});
}

// A call to approve, a question of a tool, or a human wait. `id`: State::approval_id.
Request request_of_wait(const State& state, const std::string& key, const Wait& wait,
                        std::string_view id) {
  const Step& step = state.steps[wait.step];
  const Approval* call = wait.approval ? step.approval.get() : nullptr;
  const Invocation* sent = wait.question ? step.call.get() : nullptr;
  const Member* question = sent ? open_question(*sent) : nullptr;
  const bool data = !call && !wait.question && state.wait_rules_of(step).accepts_data;
  Request request = request_of_step(state,
                                    call            ? RequestKind::call
                                    : wait.question ? RequestKind::question
                                                    : RequestKind::wait,
                                    wait.step);
  request.id = fmt::format("{}.{}", state.job.text, id);
  request.tool = call ? Value(call->tool) : sent ? Value(sent->tool) : Value();
  request.reason = or_null(wait.reason);
  request.opened_at = to_text(wait.opened_at);
  request.expires_at = or_null(wait.expires_at);
  request.actions = wait_actions(state, key, wait);
  const auto add = [&request](std::string_view name, Value value) {
    request.more.emplace_back(name, std::move(value));
  };
  add("answer", data ? "data" : "decision");
  add(field::arguments, call ? call->arguments : Value());
  add(field::arguments_hash, call ? Value(call->arguments_hash) : Value());
  add(field::correlation_key, key);
  add("editable", call != nullptr && !step.call);
  add("question", question ? question->second : prompt_of(wait));
  add(field::tool_version, call   ? Value(call->tool_version)
                           : sent ? Value(sent->tool_version)
                                  : Value());
  return request;
}

// All resources that the step changed and that do not match.
std::vector<Value> escalated_resources(const State& state, std::uint32_t step) {
  std::vector<Value> resources;
  for (const auto& [key, change] : state.changes) {
    if (change.step != step || !change.escalated) continue;
    resources.push_back(Value::object({{field::etag, or_null(change.etag)},
                                       {field::external_ref, or_null(change.external_ref)},
                                       {"observed", or_null(change.escalated->observed)},
                                       {field::resource_id, change.resource_id},
                                       {field::resource_type, change.resource_type},
                                       {field::verdict, change.escalated->verdict},
                                       {field::version, or_null(change.version)}}));
  }
  return resources;
}

// One for each step whose changes an operator must decide about.
std::vector<Request> confirmations(const State& state) {
  std::vector<Request> requests;
  if (state.ending) return requests;
  for (const std::uint32_t index : escalated_steps(state)) {
    Request request = request_of_step(state, RequestKind::confirmation, index);
    request.id = fmt::format("{}.{}", state.job.text, state.steps[index].id.text);
    request.tool = state.tool_of(state.steps[index]).name;
    request.opened_at = or_null(state.parked_since);
    request.actions = confirmation_actions(state, index);
    const auto add = [&request](std::string_view name, Value value) {
      request.more.emplace_back(name, std::move(value));
    };
    add("answer", "decision");
    for (const char* name : {field::arguments, field::arguments_hash, field::correlation_key,
                             "question", field::tool_version}) {
      add(name, {});
    }
    add("editable", false);
    add("resources", Value::array(escalated_resources(state, index)));
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<Request> approvals(const State& state) {
  std::vector<Request> requests;
  if (state.ending || is_terminal(state.status)) return requests;
  for (const auto& [key, wait] : state.waits) {
    const std::string id = state.approval_id(wait);
    if (!id.empty()) requests.push_back(request_of_wait(state, key, wait, id));
  }
  std::ranges::move(confirmations(state), std::back_inserter(requests));
  std::ranges::stable_sort(requests, {}, &Request::step);
  return requests;
}

// ---------------------------------------------------------------- unknown outcomes

Value resolve_action(const State& state, const IdempotencyKey& key) {
  std::vector<Member> arguments{{"call", key.text.substr(0, kKeyShown)},
                                {"job_id", state.job.text}};
  // Without `fail` after the end of the job.
  return is_terminal(state.status)
             ? action(act::kResolve, std::move(arguments), {"happened", "not_happened"})
             : action(act::kResolve, std::move(arguments), {"happened", "not_happened", "fail"});
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
Request unknown_outcome(const State& state, const UnknownCall& call, const Wait* wait) {
  std::string reason = wait ? wait->reason : call.error.code;
  if (reason.empty()) reason = "the outcome is unknown";
  const bool ended = is_terminal(state.status);
  const auto noted = state.noted.find(call.invocation.text);
  const bool is_noted = noted != state.noted.end();
  std::vector<Value> actions;
  if (wait || (ended && !is_noted)) actions.push_back(resolve_action(state, call.key));
  const Instant since = wait    ? wait->opened_at
                        : ended ? state.updated_at
                                : call.ended_at.value_or(state.updated_at);
  const Step* const step = state.find_step(call.step);
  Value resolvable;
  if (call.try_no > 0 && (wait || ended)) {
    resolvable = to_text(call.checkable_at.value_or(since));
  }
  return {.kind = RequestKind::unknown_outcome,
          .step = wait ? wait->step : 0,
          .id = fmt::format("{}.{}", state.job.text, call.key.text.substr(0, kIdDigits)),
          .node_id = call.node_id,
          .step_id = call.step.text,
          .item = call.item == kNoItem ? Value() : number(call.item),
          .tool = call.tool,
          .reason = reason,
          .opened_at = to_text(since),
          .expires_at = {},
          .actions = std::move(actions),
          .more = {{field::arguments, call.arguments},
                   {"compensates", or_null(call.compensates.text)},
                   {field::external_key, or_null(call.external_key.text)},
                   {"given_up", !wait && call.given_up},
                   {field::idempotency_key, call.key.text},
                   {field::invocation_id, call.invocation.text},
                   {"noted", is_noted ? noted_view(noted->second) : Value()},
                   {plain_name::kErrorMessage, or_null(call.error.message)},
                   {field::position, step != nullptr ? position_of(*step) : Value()},
                   {"resolvable_at", resolvable},
                   {field::try_, call.try_no > 0 ? number(call.try_no) : Value()}}};
}

// Also those without an action: given up, or an outcome is noted.
std::vector<Request> unknown_outcomes(const State& state) {
  std::vector<Request> requests;
  for (const auto& [key, wait] : state.waits) {
    if (!wait.resolve) continue;
    requests.push_back(unknown_outcome(state, state.call_of(state.steps[wait.step]), &wait));
  }
  std::ranges::stable_sort(requests, {}, &Request::step);
  for (const UnknownCall& call : state.unknown_calls()) {
    if (!call.given_up && !is_terminal(state.status)) continue;
    requests.push_back(unknown_outcome(state, call, nullptr));
  }
  return requests;
}

// ---------------------------------------------------------------- the budget

Request exceeded_budget(const State& state) {
  const ExceededLimit& exceeded = *state.budget.exceeded;
  const Value raise = raise_action(state, {&exceeded, 1});
  return {.kind = RequestKind::budget,
          .step = 0,
          .id = fmt::format("{}.budget", state.job.text),
          .node_id = {},
          .step_id = {},
          .item = {},
          .tool = {},
          .reason = or_null(state.parked_reason),
          .opened_at = or_null(state.parked_since),
          .expires_at = {},
          .actions = raise.is_null() ? std::vector<Value>() : std::vector<Value>{raise},
          .more = {{"limit", to_text(exceeded.limit)}, {"requested", number(exceeded.requested)}}};
}

// ---------------------------------------------------------------- one request

// The rule of the plan that requires approval of the call; null: none, as when the tool itself
// requires it, or the arguments were erased.
Value policy_view(const State& state, const Step& step, const Value& policies) {
  if (!step.approval || !step.approval->arguments.is_object()) return {};
  const auto decision =
      evaluate_policy(state, &step, state.tool_of(step), step.approval->arguments);
  if (!decision || !decision->rule) return {};
  const std::size_t rule = *decision->rule;
  return Value::object({{"number", number(rule + 1)}, {"rule", policies.items()[rule]}});
}

// The text of the model's answer that requests this call; null: the call is not part of a loop.
Value model_text(const State& state, const Step& step) {
  if (!step.is_loop_call()) return {};
  const auto& loop = state.steps[step.node].loop;
  if (!loop || step.turn < loop->first_turn || step.turn >= loop->turn_count()) return {};
  return or_null(state.steps[loop->turn(step.turn).step].result.text("text"));
}

}  // namespace

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

std::vector<Value> requests_view(const State& state) {
  std::vector<Value> views;
  for (const Request& request : approvals(state)) views.push_back(request_view(state, request));
  for (const Request& request : unknown_outcomes(state)) {
    if (!request.actions.empty()) views.push_back(request_view(state, request));
  }
  if (state.budget.exceeded && !is_terminal(state.status)) {
    views.push_back(request_view(state, exceeded_budget(state)));
  }
  return views;
}

std::vector<Value> approvals_view(const State& state) {
  return details_of(state, approvals(state));
}

std::vector<Value> confirmations_view(const State& state) {
  return details_of(state, confirmations(state));
}

std::vector<Value> in_doubt_view(const State& state) {
  return details_of(state, unknown_outcomes(state));
}

Value detailed_request(const State& state, const Value& request) {
  const std::string_view kind = request.text(field::kind);
  const bool is_call = kind == to_text(RequestKind::call);
  const bool has_tool = is_call || kind == to_text(RequestKind::unknown_outcome);
  const Value tool =
      has_tool && state.plan ? state.plan->task_graph["tools"][request.text("tool")] : Value();
  const Value& id = request[field::step_id];
  const Step* const step = id.is_string() ? state.find_step(StepId(id.as_string())) : nullptr;
  return request.with("answer_schema", request[field::detail]["question"]["schema"])
      .with("args_schema", tool["args_schema"])
      .with("model_text", step ? model_text(state, *step) : Value())
      .with("policy", step && is_call ? policy_view(state, *step, tool["rules"]) : Value())
      .with("result_schema", tool["result_schema"]);
}

}  // namespace ae::engine
