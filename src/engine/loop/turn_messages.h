// turn_messages: the messages of a loop's conversation, and the hash chain that identifies them.
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/hash.h"
#include "engine/state/state.h"
#include "json/value.h"

namespace ae::engine {

// The end of the hash chain over messages, and their number (loop.h).
struct MessageChain {
  Hash hash = sha256("aetheris.conversation.v1");
  std::uint64_t count = 0;

  void append(const Value& message);
  void append(const std::vector<Value>& messages) {
    for (const Value& message : messages) append(message);
  }
};

// The message to the model for a recorded `repair` (the answer is unusable) or
// `notice` (the budget is low).
Value repair_message(const std::string& why);
Value notice_message(const Value& notice);

// The id of a call that an answer requested: the model's, or one of ours.
std::string call_id_of(const Value& call, std::size_t turn, std::size_t nth);
Value failure_value(const Failure& failure);

// All of these: REQUIRES: `loop` is the step of a running loop, and its state has the turn.

const Step& step_of_turn(const State& state, const Step& loop, std::uint32_t turn);
// The messages that this turn begins with, besides its notice: the prompt, or the message of a
// thread. null = none. REQUIRES: turn 0 was declared.
Value opening_of(const State& state, const Step& loop, std::uint32_t turn);
// The answer of a turn, the result of each call in the requested order, and the repair message.
std::vector<Value> messages_after(const State& state, const Step& loop, std::uint32_t turn);
// Appends each message of an array; null has none.
void append_all(const Value& messages, std::vector<Value>& to);

}  // namespace ae::engine
