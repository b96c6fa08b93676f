// thread: a loop that waits for the next message after its answer (decision 0106).
//
//   message ─▶ turns ─▶ answer ─▶ wait for a message on the channel `thread` ─▶ turns ─▶ answer …
//
// An exchange is a message and the turns until its answer. The first message is the prompt. The
// wait is one of type message: a message that comes earlier is kept, and a message with the same
// message_id changes nothing. Stored: the keys of these waits, and the first turn of an exchange
// has the message in its arguments (loop.h).
//
// `interrupt` ends the running exchange: a call that was made is awaited, no other one is made, and
// the model is not called again before the next message. `end` takes its place among the messages:
// the thread is over when its turn comes.
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "engine/state/state.h"
#include "json/value.h"

namespace ae::engine {

// The channel of the messages of a thread.
inline constexpr std::string_view kThreadChannel = "thread";

// `control` of agent_message. Stored.
namespace thread_control {
inline constexpr std::string_view kEnd = "end", kInterrupt = "interrupt";
}

// The step of the job's thread, whether or not it has started; nullptr: the job is not a thread.
const Step* thread_of(const State& state);
// Is the newest exchange over: with an answer, or because it was interrupted? REQUIRES: the loop
// runs.
bool is_exchange_over(const Step& loop);
// May this loop wait for a message? REQUIRES: it runs.
bool may_await_message(const State& state, const Step& loop);
// The key of the wait after the newest exchange.
std::string thread_wait_key(const Step& loop);
// The text of a message: a text, the text in its `message`, or the payload as JSON; "" = none.
std::string message_text_of(const Value& payload);
// The message to the model.
Value thread_message(const Value& payload);
// Is there an exchange to interrupt?
bool may_interrupt(const State& state);
// Was the end of the thread requested, or reached?
bool is_thread_ending(const State& state);

}  // namespace ae::engine
