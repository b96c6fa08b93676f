// in_doubt_view and settling_view: the calls whose outcome is unknown.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/state/action.h"
#include "inspect/aliases.h"
#include "inspect/view.h"
#include "inspect/view_parts.h"
#include "log/field_names.h"

namespace ae::engine {
namespace {

constexpr std::size_t kKeyShown = 12;  // digits of a key: enough to identify a call

Value call_action(const State& state, const IdempotencyKey& key) {
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
  return with_aliases(
      Value::object({{"actions", Value::array(std::move(actions))},
                     {field::arguments, call.arguments},
                     {"compensates", or_null(call.compensates.text)},
                     {field::external_key, or_null(call.external_key.text)},
                     {plain_name::kErrorMessage, or_null(call.error.message)},
                     {"given_up", !wait && call.given_up},
                     {field::idempotency_key, call.key.text},
                     {field::invocation_id, call.invocation.text},
                     {"item", call.item == kNoItem ? Value() : number(call.item)},
                     {field::node_id, call.node_id},
                     {"noted", is_noted ? noted_view(noted->second) : Value()},
                     {field::reason, reason},
                     {"resolvable_at", resolvable},
                     {"since", to_text(since)},
                     {field::step_id, call.step.text},
                     {"tool", call.tool},
                     {field::try_, call.try_no > 0 ? number(call.try_no) : Value()}}));
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

}  // namespace ae::engine
