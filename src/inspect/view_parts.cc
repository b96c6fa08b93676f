// Failures, the budget, a pause and the open waits of a job.
#include "inspect/view_parts.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>
#include <utility>

#include "engine/children/children.h"
#include "engine/loop/loop.h"
#include "engine/loop/thread.h"
#include "engine/state/action.h"
#include "inspect/aliases.h"
#include "inspect/view.h"
#include "log/field_names.h"

namespace ae::engine {
namespace {

Value use_view(const Usage& use) {
  return Value::object({{"cost_micros", number(use.cost_micros)},
                        {"model_calls", number(use.model_calls)},
                        {"tokens", number(use.tokens)},
                        {"tool_calls", number(use.tool_calls)}});
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

}  // namespace

Value code_view(const Node& node) {
  if (!node.code) return {};
  return Value::object({{field::agent, node.code->agent},
                        {"language", node.code->language},
                        {field::version, or_null(node.code->version)}});
}

Value failure_view(const Boxed<Failure>& failure) {
  if (!failure) return {};
  return Value::object({{field::code, failure->code}, {"message", failure->message}});
}

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
    exceeded =
        with_aliases(Value::object({{"limit", to_text(budget.exceeded->limit)},
                                    {plain_name::kRequested, number(budget.exceeded->requested)}}));
  }
  return Value::object({{"exceeded", exceeded},
                        {"limits", Value::object(std::move(limits))},
                        {field::reserved, use_view(budget.reserved)},
                        {"spent", use_view(budget.spent)},
                        {"wall_until", or_null(budget.wall_until)}});
}

Value pausing_view(const State& state) {
  if (!state.pause_request) return {};
  return Value::object({{field::by, or_null(state.pause_request->by)},
                        {field::reason, or_null(state.pause_request->reason)}});
}

Value wait_view(const State& state, const std::string& key, const Wait& wait) {
  const Step& step = state.steps[wait.step];
  Value view = Value::object({{"actions", Value::array(wait_actions(state, key, wait))},
                              {field::channel, or_null(wait.channel)},
                              {field::correlation_key, key},
                              {field::due_at, or_null(wait.due_at)},
                              {field::expires_at, or_null(wait.expires_at)},
                              {field::node_id, state.node_of(step).id},
                              {field::opened_at, to_text(wait.opened_at)},
                              {field::position, position_of(step)},
                              {field::reason, or_null(wait.reason)},
                              {field::step_id, step.id.text},
                              {field::wait_type, to_text(wait.type)}});
  if (wait.type != WaitType::job) return view;
  return view.with("cancelled", wait.child_cancelled).with("job", child_of(state, step).text);
}

Value thread_view(const State& state) {
  const Step* const thread = thread_of(state);
  if (thread == nullptr) return {};
  const LoopProgress* const loop = thread->loop.get();
  Value answer;
  if (loop != nullptr && (loop->waiting || loop->ended)) {
    answer = loop_result_of(state, *thread).value_or(Value());
  } else if (thread->phase == StepPhase::done && !thread->failure) {
    answer = thread->result;
  }
  return Value::object({{"answer", std::move(answer)},
                        {"ending", is_thread_ending(state)},
                        {"exchanges", loop != nullptr ? number(loop->exchanges) : Value()},
                        {"waiting", loop != nullptr && loop->waiting}});
}

Value children_view(const State& state) {
  constexpr std::size_t kShown = 20;
  if (state.child_calls.empty()) return {};
  std::vector<std::uint32_t> waiting;
  for (const auto& [key, wait] : state.waits) {
    if (wait.type == WaitType::job) waiting.push_back(wait.step);
  }
  std::ranges::sort(waiting);
  std::vector<Value> shown;
  for (const std::uint32_t index : waiting) {
    if (shown.size() == kShown) break;
    const Step& step = state.steps[index];
    shown.push_back(Value::object({{field::agent, state.tool_of(step).child->agent},
                                   {"id", child_of(state, step).text},
                                   {field::node_id, state.node_of(step).id},
                                   {field::step_id, step.id.text}}));
  }
  std::vector<Member> counts;
  std::uint64_t open = state.child_calls.size();
  for (const auto& [status, count] : state.child_counts) {
    counts.emplace_back(status, number(count));
    open -= count;
  }
  if (open > 0) counts.emplace_back("open", number(open));
  return Value::object({{"counts", Value::object(std::move(counts))},
                        {field::in_doubt, record_list_json(state.children_in_doubt)},
                        {"open", Value::array(std::move(shown))},
                        {"total", number(state.child_calls.size())}});
}

std::vector<Value> wait_actions(const State& state, const std::string& key, const Wait& wait) {
  const Step& step = state.steps[wait.step];
  if (std::string id = state.approval_id(wait); !id.empty()) {
    id = fmt::format("{}.{}", state.job.text, id);
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
  if (wait.type == WaitType::job) {
    return {action(act::kJob, {{"job_id", child_of(state, step).text}})};
  }
  return {action(act::kSignal, {{field::correlation_key, key}, {"job_id", state.job.text}})};
}

std::vector<Value> settling_view(const State& state) {
  std::vector<Value> views;
  if (is_terminal(state.status)) return views;
  for (const std::uint32_t index : state.todo) {
    const Step& step = state.steps[index];
    const bool left =
        step.phase == StepPhase::calling ? !state.is_live(step) : step.phase == StepPhase::settled;
    if (!step.call || !left) continue;
    const bool probes = state.may_probe(step);
    // Without a probe the job is queued until the call can be decided about.
    const bool is_awaited = step.phase == StepPhase::calling && state.status == JobStatus::queued;
    const auto settles = probes       ? state.settles_at(step)
                         : is_awaited ? state.not_before
                                      : std::nullopt;
    if (!settles) continue;
    views.push_back(Value::object({{field::idempotency_key, step.call->key.text},
                                   {"item", item_number(step)},
                                   {field::node_id, state.node_of(step).id},
                                   {field::position, position_of(step)},
                                   {"probes", probes},
                                   {field::step_id, step.id.text},
                                   {"tool", state.tool_of(step).name},
                                   {field::until, to_text(*settles)}}));
  }
  return views;
}

Value resume_action(const State& state) {
  return action(act::kResume, {{"job_id", state.job.text}});
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

}  // namespace ae::engine
