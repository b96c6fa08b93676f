// A request that replaces the plan of a job.
#include <fmt/core.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/heart/request.h"
#include "engine/replan/replan.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::engine {
namespace {

// The nodes to be abandoned, by name. Fails with plan_invalid: one is not in the current plan.
Result<DroppedNodes> dropped_of(const State& state, const Value& drop) {
  DroppedNodes dropped;
  if (drop.is_null()) return dropped;
  if (!drop.is_array()) return fail(Code::input_invalid, "\"drop\" is a list of nodes");
  for (const Value& name : drop.items()) {
    if (!name.is_string() || !state.plan->by_id.contains(name.as_string())) {
      return fail(Code::plan_invalid, "\"drop\" names {}, which is not a node of the job's plan",
                  canonical(name));
    }
    dropped.insert(name.as_string());
  }
  return dropped;
}

Value list_of(const DroppedNodes& names) {
  return Value::array(std::vector<Value>(names.begin(), names.end()));
}

std::string joined(const DroppedNodes& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

DecisionRecorded plan_decision(const State& state, const ControlRequest& request,
                               const std::string& reason, const Plan& plan,
                               const DecisionContext& context) {
  const std::string name = fmt::format("{}#re_plan", state.plan_number + 1);
  return decision_event(
      PlanReplaced{.plan = std::int64_t{state.plan_number} + 1,
                   .plan_hash = plan.hash,
                   .replaces = state.plan->hash},
      {.at = context.now,
       .by = none_if_empty(request.by),
       .decision_id = DecisionId(step_id(state.job, plan.decision, name, "decision").text),
       .reason = none_if_empty(reason)});
}

PlanGenerated generated(const State& state, const Plan& plan,
                        const std::vector<CarriedNode>& carried, const DroppedNodes& drop) {
  PlanGenerated event{.carried = carried,
                      .decision_id = plan.decision,
                      .decision_locked = true,
                      .plan_hash = plan.hash,
                      .plan_input_hash = *hash_from_hex(state.hash_of(state.input)),
                      .planned_by = "file",
                      .planner_version = std::string(kPlannerVersion),
                      .schema_version = 1,
                      .task_graph = plan.task_graph};
  if (!drop.empty()) event.drop = std::vector<std::string>(drop.begin(), drop.end());
  return event;
}

}  // namespace

Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const PlanRequest& requested, const DecisionContext& context) {
  AE_ASSIGN(const auto plan, Plan::compile(requested.task_graph));
  if (!state.plan) return fail(Code::plan_missing, "the job's log holds no plan");
  const std::string hash = to_hex(plan->hash);
  const bool same = plan->hash == state.plan->hash;
  if (same && kept_results(state, requested.drop).empty()) {
    return AppliedRequest{.events = {},
                          .answer = Value::object({{field::plan_hash, hash}, {"unchanged", true}})};
  }
  AE_TRY(may_replan(state));
  if (has_code(*plan)) {
    return fail(Code::unsupported, "the plan of a job cannot be replaced by one with code yet");
  }
  AE_ASSIGN(const DroppedNodes drop, same
                                         ? Result<DroppedNodes>(kept_results(state, requested.drop))
                                         : dropped_of(state, requested.drop));
  AE_ASSIGN(const Replan replan, replan_of(state, plan, drop));
  DroppedNodes unnamed;
  std::ranges::set_difference(replan.lost, drop, std::inserter(unnamed, unnamed.end()));
  if (!unnamed.empty()) {
    constexpr std::string_view kAdvice =
        "keep their id, tool and arguments, or name them in `drop` (--drop NODE): their effects "
        "stay, but no longer belong to the job";
    return fail(Code::plan_invalid, "the new plan drops what these nodes did: {}; {}",
                joined(unnamed), kAdvice);
  }
  std::set<std::uint32_t> kept;
  for (const Replan::CarriedStep& carry : replan.carried) kept.insert(carry.step);
  AppliedRequest applied;
  bool closed = false;
  for (const auto& [key, wait] : state.waits) {
    if (kept.contains(state.steps[wait.step].node)) continue;
    applied.events.emplace_back(wait_completed_event(state, key, wait, "cancelled"));
    closed = true;
  }
  const std::vector<CarriedNode> carried = carried_list(state, replan);
  applied.events.push_back(plan_decision(state, request, requested.reason, *plan, context));
  applied.events.push_back(generated(state, *plan, carried, drop));
  // The job is released to any worker that has the tools of the new plan.
  const std::string by = author_of(request);
  if (state.status == JobStatus::running) {
    applied.events.push_back(requeued_event("re_plan", std::nullopt));
  } else if (state.awaits_version()) {  // the new plan has its own version policy
    applied.events.emplace_back(JobResumed{.by = by});
  } else if (state.status == JobStatus::waiting && !closed) {
    applied.events.push_back(paused_event("re_plan"));
    applied.events.emplace_back(JobResumed{.by = by});
  }
  applied.answer = Value::object({{field::carried, record_list_json(carried)},
                                  {field::drop, list_of(drop)},
                                  {"plan", state.plan_number + std::uint64_t{1}},
                                  {field::plan_hash, hash}});
  return applied;
}

}  // namespace ae::engine
