// How a decision runs the plan: branches, maps, and failed nodes.
#include <fmt/core.h>

#include "engine/heart/decider.h"
#include "engine/heart/request.h"
#include "log/field_names.h"

namespace ae::engine {

void Decider::decide_ready(const Step& step) {
  if (step.is_part()) return start_tool(step);
  const Node& node = s_.node_of(step);
  if (node.when && !step.branch) {
    auto branch_taken = when_of(s_, node, &work_);
    if (!branch_taken) {
      start(step);
      return fail_step(step, branch_taken.error());
    }
    emit_of(step, decision_event(BranchTaken{.taken = *branch_taken},
                                 {.decision_id = decision_id_of(step, "when")}));
    if (!*branch_taken) skip(step);
    return;  // the next call of decide continues with it
  }
  if (step.branch && !*step.branch) return skip(step);
  if (node.loop || node.code) return start(step);  // the next step is decided when this is applied
  switch (node.kind) {
    case NodeKind::tool:
    case NodeKind::llm:
      return start_tool(step);
    case NodeKind::wait:
      return start_wait(step);
    case NodeKind::map:
      return start_map(step);
    case NodeKind::loop:
    case NodeKind::planner:
    case NodeKind::code:
    case NodeKind::scope:
    case NodeKind::turn:
      return;  // it has parts
  }
}

void Decider::start(const Step& step) {
  if (!step.started) emit_of<NodeStarted>(step).try_no = 1;
}

void Decider::skip(const Step& step) {
  emit_of(step, NodeFinished{.result_type = "pure", .skipped = true, .try_no = 1});
}

// Fails a step before any call, or permanently after one.
void Decider::fail_step(const Step& step, std::string_view code, std::string_view message) {
  if (step.role == Role::probe) {
    const Step& probed = s_.steps[step.of];
    if (step.call->open) finish_as_unknown(step);
    return open_resolve_wait(probed, fmt::format("the probe failed ({})", code));
  }
  if (step.role == Role::undo) return open_resolve_wait(step, fmt::format("it failed ({})", code));
  fail_job_for(step);
  emit_of(step, NodeFinished{.error = {{std::string(code), Value(message)}},
                             .result_type = std::string(failure_type(step)),
                             .try_no = step.call ? step.call->try_no : 1});
}

// The result type of a failure: compensatable if it ends a job that has something to undo.
std::string_view Decider::failure_type(const Step& step) const {
  const bool ends = !step.is_part() && !s_.node_of(step).continue_on_error;
  const bool own = step.call && step.committed && s_.tool_of(step).compensate;
  return ends && (own || undoable_ || !s_.undoable.empty()) ? "compensatable_failure"
                                                            : "permanent_failure";
}

void Decider::fail_job_for(const Step& step) {
  const Node& node = s_.node_of(step);
  if (step.turn != kNoTurn || step.request) return;  // its loop or its code decides what follows
  if (step.item == kNoItem) {
    failed_ = failed_ || !node.continue_on_error;
  } else if (!node.collect_errors) {
    failed_maps_.insert(step.node);
  }
}

// The limit applies to all maps of a job together, including those that this decision starts.
Result<Value> Decider::check_item_limits(Value over) {
  const std::uint64_t items = s_.map_items + new_items_ + over.size();
  constexpr std::size_t kMost = PlanLimits{}.nodes_times_items_max;
  if (items > kMost) {
    return fail(Code::expression_failed,
                "the maps of the job have {} items together; at most {} are allowed", items, kMost);
  }
  new_items_ += over.size();
  return over;
}

void Decider::start_map(const Step& step) {
  if (step.map) return start(step);  // the value is recorded
  auto over = over_of(s_, s_.node_of(step), &work_);
  if (over && canonical_exceeds(*over, kValueMax)) over = too_large("the map's value");
  if (over) over = check_item_limits(*std::move(over));
  if (!over) {
    start(step);
    return fail_step(step, over.error());
  }
  emit_of(step,
          decision_event(MapListed{.list = *over}, {.decision_id = decision_id_of(step, "map")}));
  start(step);
}

void Decider::start_items(const Step& step) {
  const MapProgress& map = *step.map;
  const Node& node = s_.node_of(step);
  std::uint32_t active = map.active;
  for (std::uint32_t item = map.started; item < map.results.size(); ++item) {
    if (map.finished[item]) continue;  // imported by the fork
    if (active >= node.max_parallel) return;
    if (!has_room() || !may_fit_budget(s_.plan->tools[node.tool])) return;
    if (is_full()) {
      limit_reached_ = true;
      return;
    }
    const StepId id = s_.item_step_id(node, item);
    auto args = arguments(node, item);
    Declaration first{
        .step = id, .node = node, .tool = node.tool, .args = args.value_or(Value()), .item = item};
    if (args && !fits_budget(first, first.args)) return;
    active++;
    emit(NodeStarted{.node_id = node.id, .step_id = id, .try_no = 1});
    if (!args) {
      emit(NodeFinished{.error = recorded_error(args.error()),
                        .node_id = node.id,
                        .result_type = "permanent_failure",
                        .step_id = id,
                        .try_no = 1});
      if (!node.collect_errors) return;  // the end of the map is decided when this is applied
      active--;
      continue;
    }
    if (begin_call(std::move(first))) active--;
  }
}

void Decider::finish_map(const Step& step) {
  if (step.map->failure) {
    return fail_step(step, step.map->failure->code, step.map->failure->message);
  }
  emit_of(step, NodeFinished{.result_of = step.id.text, .result_type = "pure", .try_no = 1});
}

}  // namespace ae::engine
