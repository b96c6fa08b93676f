#include "inspect/summary.h"

#include <algorithm>

#include "engine/state/view_values.h"

namespace ae::engine {
namespace {

std::string_view summary_kind(const State& state) {
  if (!state.plan) return "plan";
  if (state.planned_by_model || is_planner_only(*state.plan)) return "planner";
  const bool is_loop =
      state.plan->nodes.size() == 1 && state.plan->nodes.front().kind == NodeKind::loop;
  return is_loop ? "loop" : "plan";
}

Value summary_error(const State& state) {
  if (!state.error) return {};
  return Value::object({{"code", state.error->code},
                        {"node_id", state.ending ? or_null(state.ending->node_id) : Value()}});
}

Value summary_parked(const State& state) {
  if (state.status != JobStatus::parked) return {};
  return Value::object({{"reason", or_null(state.parked_reason)},
                        {"since", or_null(state.parked_since)},
                        {"until", or_null(state.parked_until)}});
}

// The first open wait, as in job_view.
Value summary_waiting(const State& state) {
  if (state.status != JobStatus::waiting) return {};
  const std::pair<const std::string, Wait>* first = nullptr;
  for (const auto& entry : state.waits) {
    if (entry.second.resolve) continue;
    if (first == nullptr || entry.second.step < first->second.step) first = &entry;
  }
  if (first == nullptr) return {};
  const auto& [key, wait] = *first;
  return Value::object({{"correlation_key", key},
                        {"expires_at", or_null(wait.expires_at)},
                        {"node_id", state.node_of(state.steps[wait.step]).id},
                        {"reason", or_null(wait.reason)},
                        {"wait_type", to_text(wait.type)}});
}

}  // namespace

Value summary_view(const State& state) {
  const std::uint64_t nodes = state.plan ? state.plan->nodes.size() : 0;
  const bool may_be_unknown =
      state.had_unknown_outcome || !state.earlier_unknown.empty() || is_terminal(state.status);
  const ModelUsage& models = state.models;
  return Value::object(
      {{"attempt", number(state.epoch)},
       {"ended_at", is_terminal(state.status) ? Value(to_text(state.updated_at)) : Value()},
       {"error", summary_error(state)},
       {"execution_version", state.execution_version},
       {"unknown_outcomes", number(may_be_unknown ? state.unknown_calls().size() : 0)},
       {"kind", summary_kind(state)},
       {"parked", summary_parked(state)},
       {"progress",
        Value::object({{"done", number(nodes - state.nodes_left)}, {"nodes", number(nodes)}})},
       {"usage", Value::object({{"cost_micros", number(models.cost_micros)},
                                {"model_calls", number(models.tries - models.withdrawn)},
                                {"tool_calls", number(state.tries_started - models.tries)},
                                {"total_tokens", number(models.total_tokens)}})},
       {"waiting", summary_waiting(state)}});
}

}  // namespace ae::engine
