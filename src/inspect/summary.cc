#include "inspect/summary.h"

#include <string_view>

#include "base/error.h"
#include "engine/confirm/confirm.h"
#include "engine/state/view_values.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::engine {
namespace {

constexpr std::string_view kLoop = "loop";

Value summary_error(const State& state) {
  if (!state.error) return {};
  return Value::object({{field::code, state.error->code},
                        {field::node_id, state.ending ? or_null(state.ending->node_id) : Value()}});
}

// The reason of a pause is the text of an operator.
std::string_view parked_code(const State& state) {
  const std::string_view reason = state.parked_reason;
  const bool is_code = !state.is_paused() || reason == kWornOut || reason == kVerifierUnreachable;
  return is_code ? reason : "paused";
}

Value summary_parked(const State& state) {
  if (state.status != JobStatus::parked) return {};
  return Value::object({{field::reason, or_null(parked_code(state))},
                        {"since", or_null(state.parked_since)},
                        {field::until, or_null(state.parked_until)}});
}

// The first open wait, as in job_view.
Value summary_waiting(const State& state) {
  if (state.status != JobStatus::waiting) return {};
  const Wait* first = nullptr;
  for (const auto& [key, wait] : state.waits) {
    if (!wait.resolve && (first == nullptr || wait.step < first->step)) first = &wait;
  }
  if (first == nullptr) return {};
  return Value::object({{field::expires_at, or_null(first->expires_at)},
                        {field::node_id, state.node_of(state.steps[first->step]).id},
                        {field::reason, wait_reason(*first)},
                        {field::wait_type, to_text(first->type)}});
}

Value summary_progress(const State& state) {
  const std::uint64_t nodes = state.plan ? state.plan->nodes.size() : 0;
  Value turns;
  if (summary_kind(state) == kLoop) {
    const auto& loop = state.steps.front().loop;
    turns = number(loop ? loop->turns.size() : 0);
  }
  return Value::object(
      {{"done", number(nodes - state.nodes_left)}, {"nodes", number(nodes)}, {"turns", turns}});
}

}  // namespace

std::string_view summary_kind(const State& state) {
  if (!state.plan) return "plan";
  if (state.planned_by_model || is_planner_only(*state.plan)) return "planner";
  const bool is_loop =
      state.plan->nodes.size() == 1 && state.plan->nodes.front().kind == NodeKind::loop;
  return is_loop ? kLoop : "plan";
}

std::string summary_text(const State& state) {
  const bool may_be_unknown =
      state.had_unknown_outcome || !state.earlier_unknown.empty() || is_terminal(state.status);
  const ModelUsage& models = state.models;
  std::string text;
  text.reserve(512);
  const auto add = [&text](std::string_view before, const Value& member) {
    text += before;
    write_canonical(member, text);
  };
  add(R"({"attempt":)", number(state.epoch));
  add(R"(,"ended_at":)", is_terminal(state.status) ? Value(to_text(state.updated_at)) : Value());
  add(R"(,"error":)", summary_error(state));
  add(R"(,"execution_version":)", state.execution_version);
  add(R"(,"kind":)", summary_kind(state));
  add(R"(,"parked":)", summary_parked(state));
  add(R"(,"plan_hash":)", state.plan ? Value(to_hex(state.plan->hash)) : Value());
  add(R"(,"progress":)", summary_progress(state));
  add(R"(,"started_at":)", or_null(state.started_at));
  add(R"(,"unknown_outcomes":)", number(may_be_unknown ? state.unknown_calls().size() : 0));
  add(R"(,"usage":{"cost_micros":)", number(models.cost_micros));
  add(R"(,"model_calls":)", number(models.tries - models.withdrawn));
  add(R"(,"tool_calls":)", number(state.tries_started - models.tries));
  add(R"(,"total_tokens":)", number(models.total_tokens));
  add(R"(},"waiting":)", summary_waiting(state));
  text += '}';
  return text;
}

Value summary_view(const State& state) {
  auto view = parse_canonical(summary_text(state), {.big_integers = true});
  AE_CHECK(view, view.error().message);
  return *std::move(view);
}

}  // namespace ae::engine
