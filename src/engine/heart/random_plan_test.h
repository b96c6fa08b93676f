// random_plan and RandomWorld: plans and worlds made from a seed, for properties
// that hold for all of them.
//
// The world's answer depends on a call (its key and try), never on the time, so that two runs of
// one plan differ only in their order. It counts effects: an effect that took place remains. For
// tests only. Threads: one owner.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/heart/job_fixture_test.h"
#include "engine/heart/request.h"
#include "log/field_names.h"
#include "testing/test.h"

namespace ae::engine::testing {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t below(std::uint64_t n) { return engine_() % n; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  template <class Container>
  auto& pick(Container& all) {
    auto it = all.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(below(all.size())));
    return *it;
  }

 private:
  std::mt19937_64 engine_;
};

// AETHERIS_SEED, or a fixed seed. A failing test names the seed that repeats it.
// Slow tests use more seeds.
inline std::uint64_t first_seed() {
  const char* env = std::getenv("AETHERIS_SEED");
  return env ? std::strtoull(env, nullptr, 10) : 1;
}
inline std::uint64_t seeds(std::uint64_t usual) {
  if (std::getenv("AETHERIS_SEED")) return 1;
  return ::ae::testing::are_slow_tests_enabled() ? usual * 50 : usual;
}
inline std::string repeat(std::uint64_t seed, std::string_view test) {
  return "SEED " + std::to_string(seed) + "; repeat: AETHERIS_SEED=" + std::to_string(seed) +
         " build/dev/tests/engine_test --gtest_filter='" + std::string(test) + "'";
}

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
      const std::string prompt = "${ [" + value.substr(2, value.size() - 3) + "] }";
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
      const std::string content = "${ [" + value.substr(2, value.size() - 3) + "] }";
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
      const std::string span = std::to_string(dice.below(90)) + "s";
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
    const std::string id = "n" + std::to_string(i);
    std::vector<Value> needs;
    Value read = "${ .input.x }";
    for (std::size_t j = 0; j < i; ++j) {
      if (!dice.one_in(3)) continue;
      const std::string need = "n" + std::to_string(j);
      needs.emplace_back(need);
      read = "${ .steps." + need + " }";
    }
    std::vector<Member> node = random_kind(dice, id, read, failing);
    node.emplace_back("id", id);
    node.emplace_back("needs", Value::array(std::move(needs)));
    if (dice.one_in(5)) {
      node.emplace_back("when", "${ .input.x > " + std::to_string(dice.below(6)) + " }");
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

class RandomWorld {
 public:
  explicit RandomWorld(FailureMode failing) : failing_(failing) {}

  // Performs the call; the result is what the caller observes.
  Outcome perform(const Invocation& call) {
    const std::uint64_t outcome_index =
        hash_bits(call.key.text + "#" + std::to_string(call.try_no)) % 12;
    Value result = Value::object({{field::of, call.key.text.substr(0, 8)},
                                  {"tool", call.tool},
                                  {field::usage, Value::object({{"input_tokens", 7}})}});
    if (const Value calls = random_tool_calls(call); calls.size() > 0) {
      result = result.with("tool_calls", calls);
    } else if (call.arguments.find("schema") != nullptr) {
      // Some first answers need a repair; later ones are valid.
      const bool good =
          hash_bits(call.key.text + "json") % 2 == 0 || call.arguments["said"] != Value(1);
      result = result.with("text", good ? "{}" : "no JSON");
    }
    if (call.tool == "ask") {
      auto found = results_.find(std::string(call.arguments.text("key")));
      result = Value::object({{"found", found == results_.end() ? Value() : found->second}});
    }
    if (failing_ != FailureMode::never) {
      if (outcome_index == 0)
        return {.kind = OutcomeKind::failure, .definite = true, .error_code = "connect"};
      if (outcome_index == 1)
        return {.kind = OutcomeKind::failure, .definite = true, .error_code = "not_sent"};
      if (outcome_index == 2) return {.kind = OutcomeKind::timeout, .error_code = "timeout"};
      if (outcome_index == 3) {
        record_effect(call, result);
        return {.kind = OutcomeKind::unknown, .error_code = "unknown"};
      }
      if (outcome_index == 4)
        return {.kind = OutcomeKind::failure, .definite = true, .error_code = "http_400"};
    }
    record_effect(call, result);
    return {.kind = OutcomeKind::success, .result = result};
  }
  bool happened(const Invocation& call) const { return results_.contains(call.key.text); }
  const Value& result(const Invocation& call) const { return results_.at(call.key.text); }
  // The number of times that an effect took place; calls that the downstream
  // deduplicates count once.
  const std::map<std::string, int>& performed() const { return performed_; }

  // An operator who checks the outcome of the call and resolves it correctly.
  ControlRequest answer(const Invocation& call) const {
    ResolveRequest request{.idempotency_key = call.key.text,
                           .resolution = happened(call) ? "happened" : "not_happened"};
    if (happened(call)) request.result = result(call);
    return {.by = "someone", .body = std::move(request)};
  }

  // The calls that the model of a loop requests, by its arguments: none, or up to three tools, some
  // of them not granted.
  static Value random_tool_calls(const Invocation& call) {
    constexpr const char* kNames[] = {"look", "put", "once", "pay", "ask", "book", "ids", "nope"};
    std::vector<Value> calls;
    const std::uint64_t bits = hash_bits(call.key.text + "wishes");
    // Each turn adds at least two messages: the loop ends before max_turns.
    const Value& message_count = call.arguments["said"];
    const bool leads = message_count.is_integer() && message_count.as_int() < 8;
    const bool offered = call.arguments.find("tools") != nullptr;
    for (std::uint64_t i = 0; leads && offered && i < bits % 4; ++i) {
      const std::string n = std::to_string(i);
      const std::string name = kNames[(bits >> (8 + 3 * i)) % 8];
      const Value arguments =
          Value::object({name == "ids" ? Member("version", 4) : Member("r", n)});
      calls.push_back(
          Value::object({{"id", "c" + n}, {"name", name}, {field::arguments, arguments}}));
    }
    return Value::array(std::move(calls));
  }

 private:
  static std::uint64_t hash_bits(const std::string& of) {
    const Hash hash = sha256(of);
    std::uint64_t bits = 0;
    for (int i = 0; i < 8; ++i) bits = bits << 8 | hash.bytes[static_cast<std::size_t>(i)];
    return bits;
  }
  void record_effect(const Invocation& call, const Value& result) {
    const bool again = results_.contains(call.key.text);
    const bool each = call.tool == "pay" || call.tool == "buy" || call.tool == "unbuy";
    if (!again || each) performed_[call.key.text]++;
    results_[call.key.text] = result;
  }

  FailureMode failing_;
  std::map<std::string, Value> results_;
  std::map<std::string, int> performed_;
};

// A message or an early answer arrives before its wait. Each has the same content as the later one.
inline void send_early(JobFixture& job, Dice& dice) {
  const Node& node = job.plan->nodes[dice.below(job.plan->nodes.size())];
  if (node.kind != NodeKind::wait || node.wait_type == WaitType::timer) return;
  if (node.wait_type == WaitType::message) {
    job.message("channel-" + node.id, "'said'", "m");
    return;
  }
  const bool human = node.wait_type == WaitType::human;
  job.signal_early("key-" + node.id, human ? "{'decision':'approve'}" : "'key-" + node.id + "'",
                   "e");
}

// Changes a resource externally, or makes its verification fail.
inline void change_externally(JobFixture& job, Dice& dice) {
  job.external_checks.clear();
  for (const auto& [key, change] : job.state.changes) {
    if (!dice.one_in(8)) continue;
    const CheckVerdict verdict =
        dice.one_in(3) ? CheckVerdict::unreachable : CheckVerdict::mismatch;
    job.external_checks[change.resource_id] = {
        .verdict = verdict,
        .expected = change.version,
        .observed = verdict == CheckVerdict::mismatch ? "other" : "",
        .reason = {}};
  }
}

// Answers a failed verification of the first escalated step.
inline void answer_confirmation(JobFixture& job, Dice& dice) {
  for (const auto& [key, change] : job.state.changes) {
    if (!change.escalated) continue;
    job.send_request({.by = "ann",
                      .body = ResolveRequest{.step_id = job.state.steps[change.step].id.text,
                                             .resolution = dice.one_in(4) ? "fail" : "accept"}});
    return;
  }
}

// Makes one random thing happen: an outcome, a signal, an answer, time. False: the job has ended.
inline bool advance_randomly(JobFixture& job, RandomWorld& world, Dice& dice) {
  if (is_terminal(job.state.status)) return false;
  if (dice.one_in(5)) send_early(job, dice);
  if (job.state.is_paused()) {
    if (dice.one_in(2)) job.resume();
  } else if (dice.one_in(12)) {
    job.pause();
  }
  if (job.state.awaits_confirmation() && dice.one_in(2)) answer_confirmation(job, dice);
  if (is_terminal(job.state.status)) return false;
  const std::size_t calls = job.in_flight.size(), waits = job.state.waits.size();
  const std::uint64_t chosen = dice.below(calls + waits + 1);
  if (chosen < calls) {
    auto it = job.in_flight.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(chosen));
    const std::uint32_t step = it->first;
    job.answer(step, world.perform(*job.state.steps[step].call));
  } else if (chosen < calls + waits) {
    auto it = job.state.waits.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(chosen - calls));
    const Wait wait = it->second;
    const std::string key = it->first;
    if (wait.resolve) {
      job.send_request(world.answer(*job.state.steps[wait.step].call));
    } else if (wait.type == WaitType::signal) {
      job.send_request({.body = SignalRequest{.correlation_key = key, .payload = Value(key)}});
    } else if (wait.type == WaitType::human) {
      job.answer_approval(job.state.approval_id(wait), "approve");
    } else if (wait.type == WaitType::message) {
      // A second wait, under another plan, gets a new message.
      const bool was_sent = job.state.message_keys.contains(message_key(wait.channel, {}, "m"));
      job.message(wait.channel, "'said'",
                  was_sent ? "m" + job.state.steps[wait.step].id.text : "m");
    }
  } else {
    job.after(20s);
  }
  return true;
}

}  // namespace ae::engine::testing
