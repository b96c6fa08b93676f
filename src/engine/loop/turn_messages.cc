// Builds the messages of turns: what the model answered and what its calls gave.
#include "engine/loop/turn_messages.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "engine/loop/thread.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::engine {

void MessageChain::append(const Value& message) {
  const Hash one = sha256(canonical(message));
  Sha256 next;
  next.add({reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size()});
  next.add({reinterpret_cast<const char*>(one.bytes.data()), one.bytes.size()});
  hash = next.finish();
  count++;
}

// Stored, by its hash: the end of the conversation's chain.
Value repair_message(const std::string& why) {
  return Value::object({{"content", fmt::format("This answer cannot be used: it {}. Answer again, "
                                                "with JSON as it was asked for and nothing else.",
                                                why)},
                        {"role", "user"}});
}

// Stored, by its hash: the end of the conversation's chain.
Value notice_message(const Value& notice) {
  std::string text;
  for (const auto& [name, amount] : notice.members()) {
    std::string what = name;
    std::ranges::replace(what, '_', ' ');
    text += fmt::format("{}{} of {} {} left", text.empty() ? "budget: " : "; ", amount.text("left"),
                        amount.text(field::of), what);
  }
  return Value::object({{"content", fmt::format("{}. Come to an end before it is used up.", text)},
                        {"role", "user"}});
}

std::string call_id_of(const Value& call, std::size_t turn, std::size_t nth) {
  const std::string id(call.text("id"));
  return id.empty() ? fmt::format("call_{}_{}", turn, nth) : id;
}

Value failure_value(const Failure& failure) {
  return Value::object({{field::code, failure.code}, {"message", failure.message}});
}

const Step& step_of_turn(const State& state, const Step& loop, std::uint32_t turn) {
  return state.steps[loop.loop->turn(turn).step];
}

namespace {

Value assistant_message(const Value& answer, std::size_t turn) {
  std::vector<Member> message{{"content", answer.text("text")}, {"role", "assistant"}};
  if (const Value* blocks = answer.find("blocks")) message.emplace_back("blocks", *blocks);
  std::vector<Value> calls;
  const Value& tool_calls = answer["tool_calls"];
  for (std::size_t nth = 0; nth < tool_calls.size() && tool_calls.is_array(); ++nth) {
    const Value& one = tool_calls.items()[nth];
    std::vector<Member> call{{"id", call_id_of(one, turn, nth)}, {"name", one.text("name")}};
    const char* field = one.find("malformed") != nullptr ? "malformed" : field::arguments;
    call.emplace_back(field, one[field]);
    calls.push_back(Value::object(std::move(call)));
  }
  if (!calls.empty()) message.emplace_back("tool_calls", Value::array(std::move(calls)));
  return Value::object(std::move(message));
}

Value tool_message(const State& state, const LoopCall& call) {
  const Step* step = call.step == kNoStep ? nullptr : &state.steps[call.step];
  const Boxed<Failure>& failure = step ? step->failure : call.refused;
  std::vector<Member> message{{"call_id", call.id}, {"role", "tool"}};
  // The model must know that the arguments were edited.
  std::vector<Member> content;
  if (call.edited) content.emplace_back("edited_arguments", *call.edited);
  const Value result = step ? step->result : Value();
  if (failure) {
    content.emplace_back(field::error, failure_value(*failure));
    message.emplace_back(field::error, true);
  } else if (call.edited) {
    content.emplace_back(field::result, result);
  } else {
    message.emplace_back("content", result.is_string() ? result : Value(canonical(result)));
  }
  if (!content.empty()) {
    message.emplace_back("content", canonical(Value::object(std::move(content))));
  }
  return Value::object(std::move(message));
}

}  // namespace

std::vector<Value> messages_after(const State& state, const Step& loop, std::uint32_t turn) {
  std::vector<Value> messages{assistant_message(step_of_turn(state, loop, turn).result, turn)};
  const LoopTurn& over = loop.loop->turn(turn);
  for (const LoopCall& call : over.calls) messages.push_back(tool_message(state, call));
  if (over.repair) messages.push_back(repair_message(*over.repair));
  return messages;
}

Value opening_of(const State& state, const Step& loop, std::uint32_t turn) {
  if (turn == loop.loop->first_turn) {
    return turn_arguments(step_of_turn(state, loop, turn))["messages"];
  }
  const auto& message = loop.loop->turn(turn - 1).message;
  return message ? Value::array({thread_message(*message)}) : Value();
}

void append_all(const Value& messages, std::vector<Value>& to) {
  for (std::size_t i = 0; messages.is_array() && i < messages.size(); ++i) {
    to.push_back(messages.items()[i]);
  }
}

}  // namespace ae::engine
