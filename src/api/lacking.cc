#include "api/lacking.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/budget.h"
#include "engine/checkpoint.h"
#include "engine/decide.h"

namespace ae::api {
namespace {

using engine::Exceeded;
using engine::Limit;

// What stands in the way of a job whose budget held back as much as this one's.
std::optional<Exceeded> next_exceeded(const engine::State& state) {
  const engine::Stamp stamp{.now = state.updated_at,
                            .lease_until = state.updated_at + std::chrono::hours(1)};
  const engine::Decision decision = engine::decide(state, stamp);
  for (const EventDraft& event : decision.events) {
    const Value& p = event.payload;
    if (event.type != EventType::decision_recorded || p.text("kind") != "budget") continue;
    const std::string_view name = p["payload"].text("limit");
    for (const Limit limit : engine::kCounted) {
      if (to_text(limit) != name || !p["payload"]["asked"].is_integer()) continue;
      const auto asked = static_cast<std::uint64_t>(p["payload"]["asked"].as_int());
      return Exceeded{.limit = limit, .asked = asked};
    }
  }
  return std::nullopt;
}

// As if nothing limited it.
void lift(engine::Budget& budget, Limit limit) {
  if (limit != Limit::wall) {
    budget.limits.most(limit).reset();
    return;
  }
  budget.limits.wall.reset();
  budget.wall_until.reset();
  budget.wall_passed = false;
}

std::vector<Exceeded> lacking(const engine::State& state) {
  std::vector<Exceeded> all;
  if (!state.awaits_budget() || !state.budget.exceeded) return all;
  // A checkpoint is how a state is copied.
  auto copy = engine::restore(
      state.job, state.seq, engine::checkpoint(state, {}),
      [&](const Value&, std::string_view) -> Result<std::shared_ptr<const engine::Plan>> {
        return state.plan;
      });
  if (!copy) return {*state.budget.exceeded};
  engine::State& freed = copy->state;
  freed.status = engine::JobStatus::running;
  freed.budget.exceeded.reset();
  freed.budget.erased = true;  // without any limit, too, it is one that is kept
  std::optional<Exceeded> next = state.budget.exceeded;
  while (next && all.size() < std::size(engine::kCounted) + 1) {
    all.push_back(*next);
    lift(freed.budget, next->limit);
    next = next_exceeded(freed);
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

}  // namespace

Value with_lacking(const engine::State& state, Value body) {
  if (!body["budget"].is_object()) return body;
  std::vector<Value> list;
  std::string options;
  for (const Exceeded& one : lacking(state)) {
    list.push_back(shown(state.budget, one));
    options += option(state.budget, one);
  }
  if (!options.empty() && body["parked"].is_object()) {
    body = body.with("parked",
                     body["parked"].with("command", "aetheris budget " + state.job.text + options));
  }
  return body.with("budget", body["budget"].with("lacking", Value::array(std::move(list))));
}

}  // namespace ae::api
