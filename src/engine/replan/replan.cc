// Decides which steps a new plan carries over: evaluates its expressions on the
// steps carried over so far.
#include "engine/replan/replan.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/hash.h"
#include "engine/heart/evaluate.h"
#include "json/json.h"
#include "log/records.h"

namespace ae::engine {
namespace {

bool has_begun(const Step& step) {
  return step.started || step.skipped || step.map != nullptr || step.loop != nullptr;
}

class ReplanBuilder {
 public:
  ReplanBuilder(const State& state, std::shared_ptr<const Plan> plan, const DroppedNodes& drop,
                Work work_max)
      : s_(state), drop_(drop), work_max_(work_max) {
    next_.job = state.job;
    next_.input = state.input;
    next_.labels = state.labels;
    next_.job_root = state.job_root;
    next_.plan = std::move(plan);
    while (next_.steps.size() < next_.plan->nodes.size()) next_.steps.add(Step());
    done_.resize(next_.plan->nodes.size());
  }
  Result<Replan> run();

 private:
  const Step* carried_step(const Node& node) const;
  bool same_branch(const Step& step, const Node& node) const;
  bool same_call(const Step& step, const Node& node) const;
  bool same_value(const Step& step, const Node& node) const;
  bool same_wait(const Step& step, const Node& node) const;
  bool same_map(const Step& step, const Node& node) const;
  bool same_loop(const Step& step, const Node& node) const;
  bool can_read(const Template& source) const;
  const Value& graph_of(const Plan& plan, const Node& node) const {
    return plan.task_graph["nodes"].items()[node.index];
  }

  const State& s_;
  const DroppedNodes& drop_;
  const Work work_max_;
  mutable Work work_ = 0;
  // The state under the new plan so far: its expressions read it.
  State next_;
  std::vector<bool> done_;  // its nodes that are carried over as done
};

// Are all steps that it reads done under the new plan?
bool ReplanBuilder::can_read(const Template& source) const {
  const auto& steps = source.roots().steps;
  return std::ranges::all_of(steps, [&](const std::string& id) {
    const auto node = next_.plan->by_id.find(id);
    return node != next_.plan->by_id.end() && done_[node->second];
  });
}

bool ReplanBuilder::same_branch(const Step& step, const Node& node) const {
  if (!node.when) return !step.skipped;
  if (!can_read(*node.when)) return false;
  const auto branch_taken = when_of(next_, node, &work_);
  return branch_taken && *branch_taken == !step.skipped;
}

bool ReplanBuilder::same_call(const Step& step, const Node& node) const {
  const ToolPolicy& tool_policy = next_.plan->tools[node.tool];
  const std::string& name = tool_policy.name;
  if (s_.tool_of(step).records != tool_policy.records) return false;
  if (!tool_policy.makes_call()) return same_value(step, node);
  std::string tool, hash;
  if (step.call) {
    tool = step.call->tool;
    hash = to_hex(step.call->arguments_hash);
  } else if (step.imported) {
    tool = step.imported->tool;
    hash = step.imported->arguments_hash;
  } else if (step.approval) {
    tool = step.approval->tool;
    hash = step.approval->arguments_hash;
  }
  // The arguments that the old plan requested count, even if the approver edited them.
  if (step.approval && !step.approval->edited_from.empty()) hash = step.approval->edited_from;
  if (hash.empty() || tool != name || (node.has_args && !can_read(node.args))) return false;
  const auto args = arguments_of(next_, node, kNoItem, &work_);
  return args && s_.hash_of(*args) == hash;
}

// Its log holds no arguments, so the arguments of both plans are compared.
bool ReplanBuilder::same_value(const Step& step, const Node& node) const {
  if (s_.tool_of(step).name != next_.plan->tools[node.tool].name ||
      (node.has_args && !can_read(node.args))) {
    return false;
  }
  const auto old_args = arguments_of(s_, step, &work_);
  const auto new_args = arguments_of(next_, node, kNoItem, &work_);
  return old_args && new_args && *old_args == *new_args;
}

bool ReplanBuilder::same_wait(const Step& step, const Node& node) const {
  if (graph_of(*s_.plan, s_.node_of(step))["wait"] != graph_of(*next_.plan, node)["wait"]) {
    return false;
  }
  for (const auto* part : {&node.wait_for, &node.wait_until, &node.wait_key, &node.wait_channel}) {
    if (*part && !can_read(**part)) return false;
  }
  return true;
}

bool ReplanBuilder::same_map(const Step& step, const Node& node) const {
  const Value& old_graph = graph_of(*s_.plan, s_.node_of(step));
  const Value& new_graph = graph_of(*next_.plan, node);
  for (const char* name : {"over", "as", "do", "on_item_error"}) {
    if (old_graph[name] != new_graph[name]) return false;
  }
  return can_read(node.over) && (!node.has_args || can_read(node.args));
}

// A completed loop, or an imported one that has not started here: same model, same messages, same
// tools. The maximum number of turns may differ: it does not affect completed turns.
bool ReplanBuilder::same_loop(const Step& step, const Node& node) const {
  const bool is_imported_loop = step.phase == StepPhase::ready && step.loop;
  if (step.phase != StepPhase::done && !is_imported_loop) return false;
  const Value& old_graph = graph_of(*s_.plan, s_.node_of(step));
  const Value& new_graph = graph_of(*next_.plan, node);
  // A loop that goes on may get higher limits.
  const auto compared = [&](const Value& part) {
    if (!is_imported_loop || !part.is_object()) return part;
    const Value& context = part["context"];
    const Value rest = part.with("max_turns", {});
    return context.is_object() ? rest.with("context", context.with("limit", {})) : rest;
  };
  for (const char* name : {"loop", "args", "repair"}) {
    if (compared(old_graph[name]) != compared(new_graph[name])) return false;
  }
  if (node.has_args && !can_read(node.args)) return false;
  if (!can_read(node.loop->prompt) || (node.loop->system && !can_read(*node.loop->system))) {
    return false;
  }
  const auto first = std::ranges::find_if(s_.steps, [&](const Step& one) {
    return one.node == step.node && one.role == Role::node && one.turn == 0 && one.is_turn();
  });
  if (first == s_.steps.end() || (!first->call && !first->imported)) return false;
  const auto opening = opening_messages_of(next_, node, &work_);
  return opening && *opening == turn_arguments(*first)["messages"];
}

// The step that this node of the new plan continues; nullptr: it starts again.
const Step* ReplanBuilder::carried_step(const Node& node) const {
  const auto known = s_.plan->by_id.find(node.id);
  if (known == s_.plan->by_id.end() || drop_.contains(node.id)) return nullptr;
  const Step& step = s_.steps[known->second];
  if (!has_begun(step) || s_.node_of(step).kind != node.kind) return nullptr;
  const bool done = step.phase == StepPhase::done;
  const bool needs_done = done || std::ranges::all_of(node.needs, [&](std::uint32_t need) {
                            return bool{done_[need]};
                          });
  if (!needs_done || !same_branch(step, node)) return nullptr;
  if (step.skipped) return &step;
  if (done && step.failure && !node.continue_on_error) return nullptr;
  // A new planner must make a new plan; the plan that a planner made carries
  // the planner's node over.
  if (node.kind == NodeKind::planner) {
    const bool made = done && is_planner_only(*s_.plan) && !is_planner_only(*next_.plan) &&
                      graph_of(*s_.plan, s_.node_of(step)) == graph_of(*next_.plan, node);
    return made ? &step : nullptr;
  }
  if (node.loop) return same_loop(step, node) ? &step : nullptr;
  switch (node.kind) {
    case NodeKind::tool:
    case NodeKind::llm:
      return same_call(step, node) ? &step : nullptr;
    case NodeKind::wait:
      return same_wait(step, node) ? &step : nullptr;
    case NodeKind::map:
      return same_map(step, node) ? &step : nullptr;
    case NodeKind::loop:
    case NodeKind::planner:
    case NodeKind::code:
    case NodeKind::scope:
    case NodeKind::turn:
      return nullptr;  // it has parts
  }
  return nullptr;
}

Result<Replan> ReplanBuilder::run() {
  Replan replan;
  Needs needs;
  for (const Node& node : next_.plan->nodes) needs.push_back(node.needs);
  std::vector<bool> kept(s_.plan->nodes.size());
  for (const std::uint32_t index : topological_order(needs).order) {
    const Step* step = carried_step(next_.plan->nodes[index]);
    if (work_ > work_max_) {
      return fail(
          Code::plan_invalid,
          "to compare the new plan with what the job has done takes more than {} steps of its "
          "expressions; name nodes in `drop` (--drop NODE), which are not compared",
          work_max_);
    }
    if (step == nullptr) continue;
    replan.carried.push_back({.step = step->node, .node = index});
    kept[step->node] = true;
    if (step->phase != StepPhase::done) continue;
    done_[index] = true;
    Step& carried = next_.steps[index];
    carried.result = step->result;
    carried.failure = step->failure;
    carried.skipped = step->skipped;
  }
  std::ranges::sort(replan.carried, {}, &Replan::CarriedStep::node);
  for (const Step& step : s_.steps) {
    if (!kept[step.node] && is_effect(s_, step)) replan.lost.insert(s_.node_of(step).id);
  }
  return replan;
}

}  // namespace

DroppedNodes kept_results(const State& state, const Value& drop) {
  DroppedNodes kept;
  if (!drop.is_array()) return kept;
  for (const Value& name : drop.items()) {
    const auto node =
        name.is_string() ? state.plan->by_id.find(name.as_string()) : state.plan->by_id.end();
    if (node != state.plan->by_id.end() && state.steps[node->second].imported) {
      kept.insert(node->first);
    }
  }
  return kept;
}

bool is_effect(const State& state, const Step& step) {
  if (step.role != Role::node) return false;
  const Node& node = state.node_of(step);
  const bool calls = state.has_tool(step) && (node.is_single_call() || step.is_part());
  if (!calls || state.tool_of(step).effect == EffectClass::read) return false;
  const bool success = step.call && !step.call->open && step.call->outcome == OutcomeKind::success;
  return step.committed || success || state.may_have_happened(step);
}

Result<Replan> replan_of(const State& state, std::shared_ptr<const Plan> plan,
                         const DroppedNodes& drop, Work work_max) {
  return ReplanBuilder(state, std::move(plan), drop, work_max).run();
}

Status may_replan(const State& state) {
  if (is_terminal(state.status)) {
    return fail(Code::job_terminal, Action{.act = act::kFork, .job = state.job.text},
                "the job has ended ({})", to_text(state.status));
  }
  if (state.ending) return fail(Code::job_terminal, "the job is ending");
  if (has_code(*state.plan)) {
    return fail(Code::unsupported, Action{.act = act::kJob, .job = state.job.text},
                "the plan of a job that runs code cannot be replaced yet; start a new job");
  }
  if (state.escalated > 0) {
    return fail(Code::call_pending, Action{.act = act::kApprovals},
                "a confirmation of what the job changed is open: answer it, then replace the plan");
  }
  for (const Step& step : state.steps) {
    if (step.phase == StepPhase::looping) {
      return fail(Code::call_pending,
                  "the loop \"{}\" is running; replace the plan when it has ended",
                  state.node_of(step).id);
    }
    const bool over = step.phase == StepPhase::done;
    const bool pending = step.call && step.call->open;
    // Its tool waits for a user's answer: the call will continue with it.
    const bool awaits_answer =
        !over && step.call && step.call->outcome == OutcomeKind::input_required;
    if (pending || (!over && state.may_have_happened(step)) || step.phase == StepPhase::in_doubt ||
        step.phase == StepPhase::probing || step.phase == StepPhase::refused || awaits_answer) {
      return fail(Code::call_pending, Action{.act = act::kPause, .job = state.job.text},
                  "a call of node \"{}\" is running or has an unknown outcome: replace the plan "
                  "when its outcome is recorded",
                  state.node_of(step).id);
    }
  }
  return {};
}

std::vector<CarriedNode> carried_list(const State& state, const Replan& replan) {
  std::vector<CarriedNode> list;
  for (const Replan::CarriedStep& carry : replan.carried) {
    const Step& step = state.steps[carry.step];
    list.push_back({.node_id = state.node_of(step).id, .step_id = step.id});
  }
  return list;
}

}  // namespace ae::engine
