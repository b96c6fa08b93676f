#include "api/budget_shortfall.h"

#include <fmt/core.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/command_line.h"
#include "engine/heart/decide.h"
#include "engine/state/checkpoint.h"
#include "inspect/aliases.h"
#include "inspect/view.h"
#include "log/field_names.h"
#include "plan/budget.h"

namespace ae::api {
namespace {

using engine::ExceededLimit;
using engine::Limit;

// All exceeded limits of the next call, as found by one decision of the job as if it ran; only
// `first` if that decision exceeds its work limit. `first`: the limit in the log.
std::vector<ExceededLimit> find_shortfall(const engine::State& state,
                                          std::optional<ExceededLimit> first) {
  std::vector<ExceededLimit> all;
  if (first) all.push_back(*first);
  // A state is copied through a checkpoint.
  auto copy = engine::restore(
      state.job, state.seq, engine::checkpoint(state, {}),
      [&](const Value&, std::string_view) -> Result<std::shared_ptr<const engine::Plan>> {
        return state.plan;
      });
  if (!copy) return all;
  copy->state.status = engine::JobStatus::running;
  copy->state.budget.exceeded.reset();
  const engine::DecisionContext context{.now = state.updated_at,
                                        .lease_until = state.updated_at + std::chrono::hours(1)};
  const engine::Decision decision = engine::decide(copy->state, context);
  for (const ExceededLimit& one : decision.exceeded) {
    if (!first || one.limit != first->limit) all.push_back(one);
  }
  return all;
}

Value shown(const engine::Budget& budget, const ExceededLimit& one) {
  const bool counted = one.limit != Limit::wall;
  const auto most = counted ? budget.limits.max_of(one.limit) : std::nullopt;
  return engine::with_aliases(
      Value::object({{"limit", to_text(one.limit)},
                     {"most", most ? Value(*most) : Value()},
                     {engine::plain_name::kRequested, counted ? Value(one.requested) : Value()},
                     {"used", counted ? Value(budget.used(one.limit)) : Value()}}));
}

std::vector<ExceededLimit> find_shortfall(const engine::State& state) {
  if (!state.awaits_budget() || !state.budget.exceeded) return {};
  return find_shortfall(state, state.budget.exceeded);
}

Value shown(const engine::State& state, const std::vector<ExceededLimit>& all) {
  std::vector<Value> list;
  list.reserve(all.size());
  for (const ExceededLimit& one : all) list.push_back(shown(state.budget, one));
  return Value::array(std::move(list));
}

}  // namespace

Value add_shortfall(const engine::State& state, Value body) {
  if (!body[field::budget].is_object()) return body;
  const std::vector<ExceededLimit> all = find_shortfall(state);
  if (const Value raises = raise_action(state, all);
      !raises.is_null() && body["parked"].is_object()) {
    body = body.with("parked", body["parked"].with("action", raises));
  }
  const Value budget = body[field::budget].with(engine::plain_name::kShortfall, shown(state, all));
  return body.with(field::budget, engine::with_aliases(budget));
}

Value add_remaining_shortfall(const engine::State& state, Value answer) {
  if (is_terminal(state.status) || state.ending || !state.plan) return answer;
  const std::vector<ExceededLimit> all = find_shortfall(state, state.budget.exceeded);
  if (all.empty()) return answer;
  return engine::with_aliases(answer.with("command", command_line(raise_action(state, all)))
                                  .with(engine::plain_name::kShortfall, shown(state, all)));
}

Error add_shortfall(const engine::State& state, Error refusal) {
  const std::vector<ExceededLimit> all = find_shortfall(state);
  const std::string raises = command_line(raise_action(state, all));
  if (raises.empty()) return refusal;
  std::string names;
  for (const ExceededLimit& one : all)
    names.append(names.empty() ? "" : ", ").append(to_text(one.limit));
  refusal.message += fmt::format("; the next call exceeds {}: `{}` allows it", names, raises);
  return refusal;
}

}  // namespace ae::api
