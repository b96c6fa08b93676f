#include "sim/random_children.h"

#include <fmt/core.h>

#include <iterator>
#include <string>
#include <utility>

#include "json/json.h"
#include "log/field_names.h"
#include "sim/sim_random.h"
#include "sim/tool_kinds.h"
#include "sim/workload.h"

namespace ae::sim {
namespace {

constexpr std::uint64_t kOneIn = 12, kRest = 5;  // the plans with children: 5, 17, 29, …

// A lower number, often of a plan with children. REQUIRES: number > 0.
std::uint64_t plan_of_child(std::uint64_t number, SimRandom& random) {
  const std::uint64_t before = number / kOneIn;  // plans with children and a lower number
  if (before > 0 && random.one_in(3)) return kRest + kOneIn * random.below(before);
  return random.below(number);
}

Value any_child_tool(SimRandom& random) {
  return kChildTools[random.below(std::size(kChildTools))].name;
}

std::vector<Member> child_call(std::uint64_t number, SimRandom& random) {
  return {{field::kind, "tool"},
          {"tool", any_child_tool(random)},
          {"args", child_input(number, random)}};
}

std::vector<Member> child_map(std::uint64_t number, SimRandom& random) {
  const Value args = child_input(number, random).with("i", "${ .index }").with("v", "${ .item }");
  return {{field::kind, "map"},
          {"over", "${ .input.list }"},
          {"max_parallel", 1 + random.below(3)},
          {"on_item_error", random.one_in(2) ? "collect" : "fail"},
          {"do", Value::object({{"tool", any_child_tool(random)}, {"args", args}})}};
}

// The model calls a child, or two at once, and a tool with an effect.
std::vector<Member> child_loop(std::uint64_t number, SimRandom& random) {
  std::vector<Value> script;
  for (std::uint64_t turns = 1 + random.below(2); turns > 0; --turns) {
    std::vector<Value> calls;
    for (std::uint64_t left = 1 + random.below(2); left > 0; --left) {
      const bool child = !random.one_in(3);
      const Value args = child ? child_input(number, random)
                               : Value::object({{"n", script.size()}, {"nth", calls.size()}});
      calls.push_back(
          Value::object({{field::arguments, args}, {"name", child ? "delegate" : "book"}}));
    }
    script.push_back(Value::array(std::move(calls)));
  }
  const Value loop = Value::object({{"tool", "model:echo"},
                                    {"model", "echo"},
                                    {"prompt", canonical(Value::array(std::move(script)))},
                                    {"tools", Value::array({"delegate", "book"})},
                                    {"max_turns", 2 + random.below(3)},
                                    {"parallel_tools", 1 + random.below(2)}});
  return {{field::kind, "loop"}, {"loop", loop}};
}

constexpr std::vector<Member> (*kChildNodes[])(std::uint64_t, SimRandom&) = {child_call, child_call,
                                                                             child_map, child_loop};

}  // namespace

Value child_input(std::uint64_t number, SimRandom& random) {
  const Value input = random_input(random);
  if (random.one_in(20)) return input.with("plan", "none");
  return input.with("plan", plan_of_child(number, random));
}

void add_children(std::uint64_t number, std::vector<Value>& nodes) {
  if (number % kOneIn != kRest) return;
  SimRandom random(number * 104'729 + 11);
  for (std::uint64_t i = 0, count = 1 + random.below(2); i < count; ++i) {
    std::vector<Member> node = kChildNodes[random.below(std::size(kChildNodes))](number, random);
    node.emplace_back("id", fmt::format("c{}", i));
    if (random.one_in(2)) node.emplace_back("on_error", "continue");
    if (random.one_in(3)) node.emplace_back("needs", Value::array({nodes.back()["id"]}));
    nodes.push_back(Value::object(std::move(node)));
  }
}

}  // namespace ae::sim
