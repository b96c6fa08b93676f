// An act that gives a job another plan.
#include <algorithm>
#include <utility>

#include "core/json.h"
#include "engine/replan.h"
#include "engine/take.h"

namespace ae::engine {
namespace {

// The names of nodes that are to be let go. Fails with plan_invalid: one is none of the plan of now.
Result<Dropped> dropped_of(const State& state, const Value& drop) {
  Dropped dropped;
  if (drop.is_null()) return dropped;
  if (!drop.is_array()) return fail(Code::input_invalid, "\"drop\" is a list of nodes");
  for (const Value& name : drop.items()) {
    if (!name.is_string() || !state.plan->by_id.contains(name.as_string())) {
      return fail(Code::plan_invalid,
                  "\"drop\" names " + canonical(name) + ", which is not a node of the job's plan");
    }
    dropped.insert(name.as_string());
  }
  return dropped;
}

Value list_of(const Dropped& names) {
  return Value::array(std::vector<Value>(names.begin(), names.end()));
}

std::string joined(const Dropped& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

EventDraft decision(const State& state, const Act& act, const Plan& plan, const Stamp& stamp) {
  const std::string number = std::to_string(state.plan_number + 1);
  std::vector<Member> p{
      {"at", to_text(stamp.now)},
      {"decision_id", step_id(state.job, plan.decision, number + "#re_plan", "decision").text},
      {"kind", "re_plan"},
      {"payload", Value::object({{"plan", state.plan_number + std::uint64_t{1}},
                                 {"plan_hash", to_hex(plan.hash)},
                                 {"replaces", to_hex(state.plan->hash)}})}};
  if (!act.by.empty()) p.emplace_back("by", act.by);
  if (!act.reason.empty()) p.emplace_back("reason", act.reason);
  return {EventType::decision_recorded, Value::object(std::move(p))};
}

EventDraft generated(const State& state, const Plan& plan, const Value& carried,
                     const Dropped& drop) {
  std::vector<Member> p{{"carried", carried},
                        {"decision_id", plan.decision.text},
                        {"decision_locked", true},
                        {"plan_hash", to_hex(plan.hash)},
                        {"plan_input_hash", state.hash_of(state.input)},
                        {"planned_by", "file"},
                        {"planner_version", kPlannerVersion},
                        {"schema_version", 1},
                        {"task_graph", plan.task_graph}};
  if (!drop.empty()) p.emplace_back("drop", list_of(drop));
  return {EventType::plan_generated, Value::object(std::move(p))};
}

}  // namespace

Result<Taken> take_plan(const State& state, const Act& act, const Stamp& stamp) {
  const Value& task_graph = act.payload["task_graph"];
  AE_ASSIGN(const auto plan, Plan::compile(task_graph));
  if (!state.plan) return fail(Code::plan_missing, "the job's log holds no plan");
  const std::string hash = to_hex(plan->hash);
  const bool same = plan->hash == state.plan->hash;
  if (same && kept_results(state, act.payload["drop"]).empty()) {
    return Taken{.events = {}, .answer = Value::object({{"plan_hash", hash}, {"unchanged", true}})};
  }
  AE_TRY(may_replan(state));
  AE_ASSIGN(const Dropped drop, same ? Result<Dropped>(kept_results(state, act.payload["drop"]))
                                     : dropped_of(state, act.payload["drop"]));
  AE_ASSIGN(const Replan replan, replan_of(state, plan, drop));
  Dropped unnamed;
  std::ranges::set_difference(replan.lost, drop, std::inserter(unnamed, unnamed.end()));
  if (!unnamed.empty()) {
    return fail(Code::plan_invalid,
                "the new plan drops what these nodes did: " + joined(unnamed) +
                    "; keep their id, tool and arguments, or name them in `drop` (--drop NODE): "
                    "their effects stay, but no longer belong to the job");
  }
  std::set<std::uint32_t> kept;
  for (const Replan::Carry& carry : replan.carried) kept.insert(carry.step);
  Taken taken;
  bool closed = false;
  for (const auto& [key, wait] : state.waits) {
    if (kept.contains(state.steps[wait.step].node)) continue;
    taken.events.push_back(
        {EventType::wait_completed, wait_members(state, key, wait, {{"outcome", "cancelled"}})});
    closed = true;
  }
  const Value carried = carried_list(state, replan);
  taken.events.push_back(decision(state, act, *plan, stamp));
  taken.events.push_back(generated(state, *plan, carried, drop));
  // Whoever has the tools of the new plan goes on with it.
  const std::string by = act.by.empty() ? "somebody" : act.by;
  if (state.status == JobStatus::running) {
    taken.events.push_back(requeued_event("re_plan", std::nullopt));
  } else if (state.awaits_version()) {  // the new plan says anew what it asks of a process
    taken.events.push_back({EventType::job_resumed, Value::object({{"by", by}})});
  } else if (state.status == JobStatus::waiting && !closed) {
    taken.events.push_back(paused_event("re_plan"));
    taken.events.push_back({EventType::job_resumed, Value::object({{"by", by}})});
  }
  taken.answer = Value::object({{"carried", carried},
                                {"drop", list_of(drop)},
                                {"plan", state.plan_number + std::uint64_t{1}},
                                {"plan_hash", hash}});
  return taken;
}

}  // namespace ae::engine
