#include "inspect/summary.h"

#include <array>
#include <string_view>

#include "base/byte_buffer.h"
#include "base/error.h"
#include "engine/confirm/confirm.h"
#include "engine/state/view_values.h"
#include "json/canonical_buffer.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::engine {
namespace {

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

// Of a loop; null: the job is none.
Value turn_count(const State& state) {
  if (summary_kind(state) != kLoopKind) return {};
  const auto& loop = state.steps.front().loop;
  return number(loop ? loop->turn_count() : 0);
}

}  // namespace

std::string_view summary_kind(const State& state) {
  if (!state.plan) return kPlanKind;
  if (state.planned_by_model || is_planner_only(*state.plan)) return kPlannerKind;
  if (state.plan->nodes.size() != 1) return kPlanKind;
  switch (state.plan->nodes.front().kind) {
    case NodeKind::loop:
      return kLoopKind;
    case NodeKind::code:
      return kCodeKind;
    default:
      return kPlanKind;
  }
}

std::string summary_text(const State& state) {
  const bool may_be_unknown =
      state.had_unknown_outcome || !state.earlier_unknown.empty() || is_terminal(state.status);
  const ModelUsage& models = state.models;
  std::array<char, 1024> first;
  ByteBuffer text(first);
  const auto add = [&text](std::string_view before, const Value& member) {
    text += before;
    write_canonical(member, text);
  };
  const auto add_text = [&text](std::string_view before, std::string_view member) {
    text += before;
    write_canonical_string(member, text);
  };
  const auto add_number = [&text](std::string_view before, std::uint64_t member) {
    text += before;
    write_canonical_integer(static_cast<std::int64_t>(member), text);
  };
  add_number(R"({"attempt":)", state.epoch);
  add(R"(,"ended_at":)", is_terminal(state.status) ? Value(to_text(state.updated_at)) : Value());
  add(R"(,"error":)", summary_error(state));
  add_text(R"(,"execution_version":)", state.execution_version);
  add_text(R"(,"kind":)", summary_kind(state));
  add(R"(,"parked":)", summary_parked(state));
  add(R"(,"plan_hash":)", state.plan ? Value(to_hex(state.plan->hash)) : Value());
  const std::uint64_t nodes = state.plan ? state.plan->nodes.size() : 0;
  add_number(R"(,"progress":{"done":)", nodes - state.nodes_left);
  add_number(R"(,"nodes":)", nodes);
  add(R"(,"turns":)", turn_count(state));
  add(R"(},"started_at":)", or_null(state.started_at));
  add_number(R"(,"unknown_outcomes":)", may_be_unknown ? state.unknown_call_count() : 0);
  add_number(R"(,"usage":{"cost_micros":)", models.cost_micros);
  add_number(R"(,"model_calls":)", models.tries - models.withdrawn);
  add_number(R"(,"tool_calls":)", state.tries_started - models.tries);
  add_number(R"(,"total_tokens":)", models.total_tokens);
  add(R"(},"waiting":)", summary_waiting(state));
  text += '}';
  return std::string(text.view());
}

Value summary_view(const State& state) {
  auto view = parse_canonical(summary_text(state), {.big_integers = true});
  AE_CHECK(view, view.error().message);
  return *std::move(view);
}

}  // namespace ae::engine
