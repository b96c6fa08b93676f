// How a re-plan changes the state: carried steps stay, the rest of the old plan is removed.
#include <algorithm>
#include <utility>

#include "engine/replan/replan.h"
#include "engine/state/applier.h"

namespace ae::engine {

// {node of the new plan: step in the current plan}. Fails if one cannot be carried over.
Result<std::map<std::uint32_t, std::uint32_t>> Applier::parse_carried(
    const JsonOf<std::vector<CarriedNode>>& list, const Plan& plan) const {
  std::map<std::uint32_t, std::uint32_t> carried;
  const auto entries = list.read();
  if (!entries) return corrupt_event(entries.error().message);
  for (const CarriedNode& entry : *entries) {
    const std::uint32_t step = s_.index_of(entry.step_id);
    const auto node = plan.by_id.find(entry.node_id);
    if (step == kNoStep || node == plan.by_id.end())
      return corrupt_event("it carries what is not there");
    const Step& old = s_.steps[step];
    const Node& old_node = s_.node_of(old);
    const Node& new_node = plan.nodes[node->second];
    const bool begun = old.started || old.skipped || old.map || old.loop;
    if (old.role != Role::node || old.is_part() || !begun || old_node.id != new_node.id ||
        old_node.kind != new_node.kind) {
      return corrupt_event("it carries another node");
    }
    if (old_node.kind != NodeKind::wait &&
        s_.plan->tools[old_node.tool].name != plan.tools[new_node.tool].name) {
      return corrupt_event("it carries another tool's call");
    }
    if (old.phase == StepPhase::done && old.failure && !new_node.continue_on_error) {
      return corrupt_event("it carries a failure that ends the job");
    }
    if (!carried.emplace(new_node.index, step).second)
      return corrupt_event("it carries a node twice");
  }
  return carried;
}

// Abandoned effects must be named, and abandoned steps must have no open wait.
Status Applier::check_abandoned(const std::vector<std::string>& drop,
                                const std::set<std::uint32_t>& kept) const {
  const std::set<std::string, std::less<>> dropped(drop.begin(), drop.end());
  for (const Step& step : s_.steps) {
    if (kept.contains(step.node)) continue;
    if (is_effect(s_, step) && !dropped.contains(s_.node_of(step).id)) {
      return corrupt_event("it drops an effect that `drop` does not name");
    }
  }
  for (const auto& [key, wait] : s_.waits) {
    if (!kept.contains(s_.steps[wait.step].node))
      return corrupt_event("a wait that it drops is open");
  }
  return {};
}

// Keeps calls with an unknown outcome that have no node in the new plan.
void Applier::keep_unknown_calls(const std::set<std::uint32_t>& kept) {
  for (const Step& step : s_.steps) {
    if (kept.contains(step.node) || !s_.may_have_happened(step)) continue;
    UnknownCall call = s_.call_of(step);
    call.given_up = true;
    s_.earlier_unknown.push_back(std::move(call));
  }
}

// The tool of a call of a loop, in the new plan.
Status Applier::move_tool(Step& step, const Plan& before) {
  const std::string& name = before.tools[step.tool].name;
  const auto same = std::ranges::find(s_.plan->tools, name, &ToolPolicy::name);
  if (same == s_.plan->tools.end()) return corrupt_event("it carries another tool's call");
  step.tool = static_cast<std::uint32_t>(same - s_.plan->tools.begin());
  return {};
}

// Its position in the new plan. Its probes, if any, are done.
void Applier::move_step(Step& step, std::uint32_t node) {
  step.node = node;
  step.needs_left = 0;
  step.probe = kNoStep;
}

namespace {

// Updates the indexes in an imported loop. False: the new plan lacks one of its tools.
bool move_loop(LoopProgress& loop, const Plan& before, const Plan& after,
               const std::map<std::uint32_t, std::uint32_t>& moved) {
  for (LoopTurn& turn : loop.turns) {
    turn.step = moved.at(turn.step);
    for (LoopCall& call : turn.calls) {
      if (call.step != kNoStep) call.step = moved.at(call.step);
      if (call.refused) continue;
      const auto same =
          std::ranges::find(after.tools, before.tools[call.tool].name, &ToolPolicy::name);
      if (same == after.tools.end()) return false;
      call.tool = static_cast<std::uint32_t>(same - after.tools.begin());
    }
  }
  return true;
}

}  // namespace

Status Applier::apply_replan(const PlanGenerated& event, std::shared_ptr<const Plan> plan) {
  if (auto may = may_replan(s_); !may) return corrupt_event(may.error().message);
  if (has_code(*plan)) return corrupt_event("it has code");
  AE_ASSIGN(const auto carried, this->parse_carried(event.carried, *plan));
  // Of carried steps: node of the old plan → node of the new one.
  std::map<std::uint32_t, std::uint32_t> new_node_of_step;
  std::set<std::uint32_t> kept;
  for (const auto& [node, step] : carried) {
    new_node_of_step.emplace(step, node);
    kept.insert(step);
  }
  AE_TRY(check_abandoned(event.drop.read_leniently(), kept));
  keep_unknown_calls(kept);

  Steps old = std::exchange(s_.steps, {});
  const std::shared_ptr<const Plan> before = std::exchange(s_.plan, std::move(plan));
  s_.plan_number++;
  std::map<std::uint32_t, std::uint32_t> moved;  // old index → new index
  for (const Node& node : s_.plan->nodes) {
    if (const auto from = carried.find(node.index); from != carried.end()) {
      move_step(s_.steps.add(std::move(old[from->second])), node.index);
      moved.emplace(from->second, node.index);
    } else {
      begin_node(node);
    }
  }
  for (std::uint32_t i = static_cast<std::uint32_t>(before->nodes.size()); i < old.size(); ++i) {
    if (old[i].role != Role::node || !kept.contains(old[i].node)) continue;
    moved.emplace(i, static_cast<std::uint32_t>(s_.steps.size()));
    Step& step = s_.steps.add(std::move(old[i]));
    move_step(step, new_node_of_step.at(step.node));
    if (step.tool != kNoTurn) AE_TRY(move_tool(step, *before));
  }
  for (const Node& node : s_.plan->nodes) {
    const Step& step = s_.steps[node.index];
    if (step.loop && !move_loop(*step.loop, *before, *s_.plan, moved)) {
      return corrupt_event("it carries another tool's call");
    }
  }
  return reindex_steps(moved);
}

// Updates everything that refers to steps by index, or is derived from them.
Status Applier::reindex_steps(const std::map<std::uint32_t, std::uint32_t>& moved) {
  for (std::uint32_t i = 0; i < s_.steps.size(); ++i) {
    if (s_.index_of(s_.steps[i].id) != i) return corrupt_event("two steps have one id");
  }
  for (auto& [key, wait] : s_.waits) wait.step = moved.at(wait.step);
  for (std::vector<std::uint32_t>* list : {&s_.undoable, &s_.undone, &s_.given_up}) {
    std::vector<std::uint32_t> still;
    for (const std::uint32_t index : *list) {
      const auto now = moved.find(index);
      if (now == moved.end()) continue;
      if (s_.tool_of(s_.steps[now->second]).compensate) still.push_back(now->second);
    }
    *list = std::move(still);
  }
  for (auto it = s_.changes.begin(); it != s_.changes.end();) {
    if (const auto now = moved.find(it->second.step); now != moved.end()) {
      it++->second.step = now->second;
      continue;
    }
    s_.to_confirm.erase(it->first);  // abandoned changes are not verified
    it = s_.changes.erase(it);
  }
  s_.todo.clear();
  s_.startable.clear();
  s_.calling.clear();
  s_.not_before.reset();
  s_.nodes_left = 0;
  for (const Node& node : s_.plan->nodes) {
    Step& step = s_.steps[node.index];
    if (step.phase == StepPhase::done) continue;
    s_.nodes_left++;
    std::uint32_t left = 0;
    for (const std::uint32_t need : node.needs) {
      if (s_.steps[need].phase != StepPhase::done) left++;
    }
    if (step.phase != StepPhase::blocked && left > 0)
      return corrupt_event("it carries what may not begin yet");
    step.needs_left = left;
  }
  for (std::uint32_t i = 0; i < s_.steps.size(); ++i) update_work_sets(i);
  for (const Node& node : s_.plan->nodes) open_node(node.index);
  return {};
}

}  // namespace ae::engine
