// approvals_view: the open requests of a job: calls, waits, questions, and changes to confirm.
#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/confirm/confirm.h"
#include "engine/state/action.h"
#include "inspect/request_kind.h"
#include "inspect/view.h"
#include "inspect/view_parts.h"
#include "log/field_names.h"

namespace ae::engine {

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
                        {"id", fmt::format("{}.{}", state.job.text, step.id.text)},
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
                       {"id", fmt::format("{}.{}", state.job.text, id)},
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

}  // namespace ae::engine
