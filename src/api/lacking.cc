#include "api/lacking.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/heart/decide.h"
#include "engine/state/checkpoint.h"
#include "plan/budget.h"

namespace ae::api {
namespace {

using engine::Exceeded;
using engine::Limit;

// All limits that leave no room for the next call, as one decision of the running job finds them: `first` alone, when its
// work is used up before. `first`: the one that the log names.
std::vector<Exceeded> lacking(const engine::State& state, std::optional<Exceeded> first) {
  std::vector<Exceeded> all;
  if (first) all.push_back(*first);
  // A checkpoint is how a state is copied.
  auto copy = engine::restore(
      state.job, state.seq, engine::checkpoint(state, {}),
      [&](const Value&, std::string_view) -> Result<std::shared_ptr<const engine::Plan>> {
        return state.plan;
      });
  if (!copy) return all;
  copy->state.status = engine::JobStatus::running;
  copy->state.budget.exceeded.reset();
  const engine::Stamp stamp{.now = state.updated_at,
                            .lease_until = state.updated_at + std::chrono::hours(1)};
  const engine::Decision decision = engine::decide(copy->state, stamp);
  for (const Exceeded& one : decision.exceeded) {
    if (!first || one.limit != first->limit) all.push_back(one);
  }
  return all;
}

std::string option(const engine::Budget& budget, const Exceeded& one) {
  if (one.limit == Limit::wall) {
    return budget.limits.wall ? " --wall " + ae::to_text(*budget.limits.wall * 2) : "";
  }
  const auto& most = budget.limits.most(one.limit);
  if (!most) return "";
  const std::uint64_t amount =
      std::min(std::max(*most * 2, budget.used(one.limit) + one.asked), engine::kBudgetMax);
  std::string name(to_text(one.limit));
  std::ranges::replace(name, '_', '-');
  return " --" + name + " " +
         (one.limit == Limit::cost ? engine::cost_text(amount) : std::to_string(amount));
}

Value shown(const engine::Budget& budget, const Exceeded& one) {
  const bool counted = one.limit != Limit::wall;
  const auto most = counted ? budget.limits.most(one.limit) : std::nullopt;
  return Value::object({{"asked", counted ? Value(one.asked) : Value()},
                        {"limit", to_text(one.limit)},
                        {"most", most ? Value(*most) : Value()},
                        {"used", counted ? Value(budget.used(one.limit)) : Value()}});
}

std::vector<Exceeded> lacking(const engine::State& state) {
  if (!state.awaits_budget() || !state.budget.exceeded) return {};
  return lacking(state, state.budget.exceeded);
}

// Raises each; "" = none can be raised.
std::string command(const engine::State& state, const std::vector<Exceeded>& all) {
  std::string options;
  for (const Exceeded& one : all) options.append(option(state.budget, one));
  return options.empty() ? options : "aetheris budget " + state.job.text + options;
}

Value shown(const engine::State& state, const std::vector<Exceeded>& all) {
  std::vector<Value> list;
  list.reserve(all.size());
  for (const Exceeded& one : all) list.push_back(shown(state.budget, one));
  return Value::array(std::move(list));
}

}  // namespace

Value with_lacking(const engine::State& state, Value body) {
  if (!body["budget"].is_object()) return body;
  const std::vector<Exceeded> all = lacking(state);
  if (const std::string raises = command(state, all);
      !raises.empty() && body["parked"].is_object()) {
    body = body.with("parked", body["parked"].with("command", raises));
  }
  return body.with("budget", body["budget"].with("lacking", shown(state, all)));
}

Value with_still_lacking(const engine::State& state, Value answer) {
  if (is_terminal(state.status) || state.ending || !state.plan) return answer;
  const std::vector<Exceeded> all = lacking(state, state.budget.exceeded);
  if (all.empty()) return answer;
  return answer.with("command", command(state, all)).with("lacking", shown(state, all));
}

Error with_lacking(const engine::State& state, Error refusal) {
  const std::vector<Exceeded> all = lacking(state);
  const std::string raises = command(state, all);
  if (raises.empty()) return refusal;
  std::string names;
  for (const Exceeded& one : all)
    names.append(names.empty() ? "" : ", ").append(to_text(one.limit));
  refusal.message.append("; the next call exceeds ").append(names);
  refusal.message.append(": `").append(raises).append("` allows it");
  return refusal;
}

}  // namespace ae::api
