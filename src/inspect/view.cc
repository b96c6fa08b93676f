// job_view: see view.h. The other views are in state_view.cc and requests_view.cc.
#include "inspect/view.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/trace_context.h"
#include "engine/confirm/confirm.h"
#include "engine/state/action.h"
#include "inspect/failure_location.h"
#include "inspect/field_json.h"
#include "inspect/view_parts.h"
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
  } else if (state.is_paused() || state.awaits_code()) {
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
                        {field::position, Value()},
                        {"reads_input", Value()},
                        {"reads_kept", Value::array({})},
                        {"summary", reason},
                        {"tool", Value()},
                        {"tries", Value()},
                        {"turn", Value()}});
}

// The steps as in events.
Value steps_view(const State& state, const std::vector<std::uint32_t>& steps) {
  return record_list_json(steps_list(state, steps));
}

}  // namespace

Value job_view(const State& state) {
  std::vector<Value> waits = waits_view(state);
  std::vector<Value> in_doubt = in_doubt_view(state);
  const bool waiting = state.status == JobStatus::waiting && !waits.empty();
  const std::uint64_t nodes = state.plan ? state.plan->nodes.size() : 0;
  const bool ended = is_terminal(state.status);
  return Value::object(
      {{field::agent, state.agent},
       {"attempt", number(state.epoch)},
       {field::attempt_id, or_null(state.attempt.text)},
       {field::budget, budget_view(state.budget)},
       {"changes", Value::array(changes_view(state))},
       {"children", children_view(state)},
       {field::compensated, steps_view(state, state.undone)},
       {"confirmations", Value::array(confirmations_view(state))},
       {"created_at", state.job_root["created_at"]},
       {field::deadline, or_null(state.deadline)},
       {"ending", ending_view(state)},
       {field::error, error_view(state)},
       {field::execution_version, state.execution_version},
       {field::forked_from, field_json(state.forked_from)},
       {"id", state.job.text},
       {field::input, state.input},
       {field::labels, state.labels},
       {"needs_version", Value()},
       {"next_due", ended ? Value() : or_null(state.next_due())},
       {field::not_before, or_null(state.not_before)},
       {field::parent, field_json(state.parent)},
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
       {"thread", thread_view(state)},
       {"trace_id", trace_of(state.job, state.traceparent, state.tracestate).trace_id},
       {field::uncompensated, steps_view(state, ended && state.status != JobStatus::completed
                                                    ? not_undone(state)
                                                    : std::vector<std::uint32_t>())},
       {"updated_at", to_text(state.updated_at)},
       {field::usage, usage_view(state)},
       {"waiting", waiting ? waits.front() : Value()},
       {field::waits, Value::array(std::move(waits))},
       {field::in_doubt, Value::array(std::move(in_doubt))}});
}

}  // namespace ae::engine
