#include "sim/echo_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::sim {
namespace {

// The turn that a request is for. One that leaves older messages out has the newest call, whose id
// has its turn.
std::size_t turn_of(std::span<const Value> messages) {
  std::size_t turn = 0;
  for (const Value& message : messages) {
    if (message.text("role") != "assistant") continue;
    turn++;
    const Value& calls = message["tool_calls"];
    if (calls.size() > 0) turn = std::stoul(std::string(calls.items()[0].text("id").substr(5))) + 1;
  }
  return turn;
}

// The text of the first message that has a script; a summary may come before it.
Value script_of(std::span<const Value> messages) {
  for (const Value& message : messages) {
    const auto script = parse_json(message.text("content"));
    if (script && (script->is_array() || script->is_object())) return *script;
    if (message.text("role") == "assistant") break;
  }
  return {};
}

}  // namespace

Value echo_answer(const Value& request, std::uint64_t number) {
  const auto messages = request["messages"].items();
  std::string text = fmt::format("re: {}", messages.back().text("content"));
  std::vector<Value> calls;
  const Value script = script_of(messages);
  const std::size_t turn = turn_of(messages);
  if (const Value& texts = script["texts"]; texts.size() > 0) {
    text = texts.items()[std::min(turn, texts.size() - 1)].as_string();
  }
  if (script.is_array() && request.find("tools") != nullptr) {
    if (turn < script.size()) {
      for (const Value& call : script.items()[turn].items()) {
        calls.push_back(call.with("id", fmt::format("call-{}-{}", turn, calls.size())));
      }
    }
    if (messages.size() > 1 || !calls.empty())
      text = to_hex(sha256(canonical(request["messages"])));
  }
  // This model reports no usage, and is brief.
  const bool is_plain = request.text("model") == "plain";
  if (is_plain) text = to_hex(sha256(text)).substr(0, 8);
  std::vector<Member> answer{{"finish_reason", calls.empty() ? "stop" : "tool_calls"},
                             {"model", "echo-1"},
                             {"number", number},
                             {"text", text}};
  if (!is_plain) {
    answer.emplace_back(
        field::usage,
        Value::object({{"input_tokens", 2}, {"output_tokens", 3}, {"total_tokens", 5}}));
  }
  if (!calls.empty()) {
    answer.emplace_back("tool_calls", Value::array(std::move(calls)));
  }
  return Value::object(std::move(answer));
}

bool is_repair(const Value& request) {
  const auto messages = request["messages"].items();
  return turn_of(messages) > 0 && script_of(messages)["texts"].size() > 0;
}

}  // namespace ae::sim
