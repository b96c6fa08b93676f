// random_plan: task graphs of all kinds of nodes, made from a seed, for properties that hold for
// all of them.
//
// For tests only. Threads: pure functions but for the dice.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/heart/dice_test.h"
#include "engine/heart/plan_fixture_test.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::engine::testing {

// tolerated: nodes and items may fail, the job does not. ends: the job may
// fail, and has steps to undo.
enum class FailureMode { never, tolerated, ends };

// The external changes of a call of the random world, verified after a recovery.
inline Value changing(const Value& policy, std::string_view mode = "strict") {
  return policy
      .with("changes",
            json("[{'type': '${ .result.tool }', 'id': '${ .result.of }', 'op': 'create', "
                 "'version': '${ .call.try }'}]"))
      .with("verify", Value::object({{field::by, "file"}, {"mode", mode}}));
}

// Tools whose calls can be undone and probed.
inline Value undoable_tools() {
  const Value thrice =
      json("{'retry': {'max_attempts': 3, 'retry_on': ['connect', 'timeout', 'unknown']}}");
  const Value undo = json("{'compensate': {'tool': 'unbook', 'args': {'of': '${ .call.key }'}}}");
  const Value undo_once = json("{'compensate': {'tool': 'unbuy', 'args': {'of': '${ .result }'}}}");
  const Value probe = json(
      "{'probe': {'tool': 'ask', 'args': {'key': '${ .call.key }'}, 'happened': '${ .result.found "
      "}'}}");
  const Value gives = json("{'type': 'object', 'required': ['of', 'tool']}");
  return Value::object(
      {{"ask", tool_policy("read", "resend", thrice)},
       {"book", changing(tool_policy("idempotent", "resend",
                                     thrice.with(field::compensate, undo[field::compensate])
                                         .with("args_schema", json("{'type': 'object'}"))
                                         .with("result_schema", gives)))},
       {"buy", tool_policy("at_most_once", "probe",
                           probe.with(field::compensate, undo_once[field::compensate])
                               .with("result_schema", gives))},
       {"put", changing(tool_policy("idempotent", "resend", thrice), "human")},
       {"sign", tool_policy("idempotent", "resend", undo.with("approval", "required"))},
       {"unbook", changing(tool_policy("idempotent", "resend", thrice), "warn")},
       {"unbuy", tool_policy("at_most_once", "probe", probe)}});
}

// A random number or UUID, of one step or of each item. These values depend on the step. A time
// does not: it depends on the order of answers.
inline std::vector<Member> recorded_kind(Dice& dice) {
  const bool number = dice.one_in(2);
  const Value tool = number ? "dice" : "ids";
  const Value args = json(number ? "{'min': 1, 'max': 6}" : "{'version': 4}");
  if (dice.one_in(2)) return {{field::kind, "tool"}, {"tool", tool}, {"args", args}};
  return {{field::kind, "map"},
          {"over", "${ .input.list }"},
          {"max_parallel", 1 + dice.below(3)},
          {"do", Value::object({{"tool", tool}, {"args", args}})}};
}

// The members of a node by kind: a map, a wait of any type, a call, a recorded value;
// some calls need an approval.
inline std::vector<Member> random_kind(Dice& dice, const std::string& id, const Value& read,
                                       FailureMode failing) {
  constexpr const char* kTools[] = {"look", "put", "once", "pay", "ask"};
  constexpr const char* kUndoable[] = {"book", "buy", "sign", "put"};
  const std::string tool =
      failing == FailureMode::ends ? kUndoable[dice.below(4)] : kTools[dice.below(5)];
  if (failing != FailureMode::ends && dice.one_in(8)) return recorded_kind(dice);
  switch (dice.below(failing == FailureMode::ends ? 8 : 10)) {
    case 9: {
      std::vector<Value> tools;
      for (const char* name : kTools) tools.emplace_back(name);
      tools.emplace_back("ids");
      const std::string& value = read.as_string();
      const std::string prompt = fmt::format("${{ [{}] }}", value.substr(2, value.size() - 3));
      Value loop = Value::object({{"tool", "model:main"},
                                  {"model", "small"},
                                  {"prompt", prompt},
                                  {"tools", Value::array(std::move(tools))},
                                  {"max_turns", 5 + dice.below(2)},
                                  {"parallel_tools", 1 + dice.below(3)}});
      if (dice.one_in(2)) loop = loop.with("schema", json("{'type': 'object'}")).with("repair", 1);
      return {{field::kind, "loop"}, {"loop", loop}};
    }
    case 8: {
      const std::string& value = read.as_string();  // ${ … }; its value may be null
      const std::string content = fmt::format("${{ [{}] }}", value.substr(2, value.size() - 3));
      const Value message = Value::object({{"role", "user"}, {"content", content}});
      Value request = Value::object({{"model", "small"}, {"messages", Value::array({message})}});
      std::vector<Member> node{{field::kind, "llm"}, {"tool", "model:main"}};
      if (dice.one_in(2)) {
        request = request.with("schema", json("{'type': 'object'}"));
        node.emplace_back("repair", 1);
      }
      node.emplace_back("args", std::move(request));
      return node;
    }
    case 0:
      return {
          {field::kind, "map"},
          {"over", "${ .input.list }"},
          {"max_parallel", 1 + dice.below(3)},
          {"on_item_error", failing == FailureMode::tolerated ? "collect" : "fail"},
          {"do", Value::object(
                     {{"tool", tool},
                      {"args",
                       Value::object({{"i", "${ .index }"}, {"v", "${ .item }"}, {"r", read}})}})}};
    case 1:
      return {{field::kind, "wait"},
              {"wait", Value::object({{"type", "signal"}, {"key", "key-" + id}})}};
    case 2: {
      const std::string span = fmt::format("{}s", dice.below(90));
      return {{field::kind, "wait"}, {"wait", Value::object({{"type", "timer"}, {"for", span}})}};
    }
    case 3:
      return {{field::kind, "wait"},
              {"wait", Value::object({{"type", "human"}, {"key", "key-" + id}})}};
    case 4:
      return {{field::kind, "wait"},
              {"wait", Value::object({{"type", "message"}, {field::channel, "channel-" + id}})}};
    default:
      return {{field::kind, "tool"}, {"tool", tool}, {"args", Value::object({{"r", read}})}};
  }
}

// A task graph of up to ten nodes of all kinds.
inline Value random_plan(Dice& dice, FailureMode failing) {
  const std::size_t count = 1 + dice.below(9);
  std::vector<Value> nodes;
  nodes.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string id = fmt::format("n{}", i);
    std::vector<Value> needs;
    Value read = "${ .input.x }";
    for (std::size_t j = 0; j < i; ++j) {
      if (!dice.one_in(3)) continue;
      const std::string need = fmt::format("n{}", j);
      needs.emplace_back(need);
      read = fmt::format("${{ .steps.{} }}", need);
    }
    std::vector<Member> node = random_kind(dice, id, read, failing);
    node.emplace_back("id", id);
    node.emplace_back("needs", Value::array(std::move(needs)));
    if (dice.one_in(5)) {
      node.emplace_back("when", fmt::format("${{ .input.x > {} }}", dice.below(6)));
    }
    if (failing == FailureMode::tolerated) node.emplace_back("on_error", "continue");
    nodes.push_back(Value::object(std::move(node)));
  }
  return Value::object(
      {{field::max_attempts, 1000},
       {"nodes", Value::array(std::move(nodes))},
       {"output", "${ .steps }"},
       {"schema", 1},
       {"tools",
        failing == FailureMode::ends
            ? undoable_tools()
            : usual_tools()
                  .with("ask", tool_policy("idempotent", "resend", json("{'approval':'required'}")))
                  .with("model:main", tool_policy("read", "resend", json("{'provider':'openai'}")))
                  .with("dice", tool_policy("read", "resend", json("{'records': 'random'}")))
                  .with("ids", tool_policy("read", "resend", json("{'records': 'uuid'}")))
                  .with("put", changing(usual_tools()["put"]))
                  .with("pay", changing(usual_tools()["pay"], "human"))}});
}

inline std::string random_input(Dice& dice) {
  std::vector<Value> list(dice.below(5));
  for (Value& item : list) item = Value(dice.below(100));
  return canonical(Value::object({{"list", Value::array(std::move(list))}, {"x", dice.below(6)}}));
}

}  // namespace ae::engine::testing
