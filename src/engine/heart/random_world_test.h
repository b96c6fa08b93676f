// RandomWorld: the external world of a random plan: performs calls and counts their effects.
//
// The result depends on a call (its key and try), never on the time, so that two runs of one plan
// differ only in their order. An effect that took place remains. For tests only. Threads: one
// owner.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "engine/heart/control_request.h"
#include "engine/heart/random_plan_test.h"
#include "engine/state/state.h"
#include "json/value.h"
#include "log/field_names.h"
#include "log/outcome.h"

namespace ae::engine::testing {

class RandomWorld {
 public:
  explicit RandomWorld(FailureMode failing) : failing_(failing) {}

  // Performs the call; the result is what the caller observes.
  Outcome perform(const Invocation& call) {
    const std::uint64_t outcome_index =
        hash_bits(fmt::format("{}#{}", call.key.text, call.try_no)) % 12;
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

}  // namespace ae::engine::testing
