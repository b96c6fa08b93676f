// loop: what a model that leads is told, what it asked for, and what that became.
//
//   turn 0   the prompt              ─▶ model ─▶ answer ─▶ decision_recorded{tool_choice} ─▶ its calls, in parallel
//   turn n   … answer, call results  ─▶ model ─▶ answer ─▶ …          no calls: the loop is over
//
// An answer that asks for nothing and breaks the loop's schema is told what is wrong with it, once, where the plan says
// `repair`: its tool_choice says so, and the turn that follows does not count against max_turns (decision 0056).
//
// A conversation is a chain of messages, and the log holds each once: the first ones in the arguments of turn 0, a model's
// in its answer, a tool's in its result. The arguments of a turn name what was said before by the end of the chain,
//
//   h0 = SHA256("aetheris.conversation.v1"), h(i+1) = SHA256(h(i) ‖ SHA256(canonical(message i)))
//
// and by its length, so that a turn costs the same whatever came before it (decision 0050). Stored: the arguments of a turn,
//   {"model", "temperature"?, "max_tokens"?, "conversation": 64 hex, "said": n, "tools"?: 64 hex, "schema"?: 64 hex,
//    "messages": […] of turn 0, "notice"?: {limit: {"left", "of"}} of the job's budget, told as the last message}
// and the payload of its tool_choice, {"turn", "of": invocation, "calls": [{"id", "name", "refused"?: {code, message}}],
// "repair"?: what is wrong with the answer}.
//
// A fork goes on with a loop that was not over: its turns stand there as another job had them, with no call of this one.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "engine/state/state.h"
#include "json/value.h"

namespace ae::engine {

// Calls of one answer; those after are told so, and not made.
inline constexpr std::size_t kTurnCallsMax = 128;
// Bytes of what a model is told of an answer that it is to mend.
inline constexpr std::size_t kRepairMax = 1'024;
// Messages of one conversation; then the loop fails.
inline constexpr std::uint64_t kConversationMax = 10'000;

// The message that a recorded `repair` (an answer cannot be used) or `notice` (the budget is low) sends to the model.
Value repair_message(const std::string& why);
Value notice_message(const Value& notice);

// All of these: REQUIRES: `loop` is a step of a loop that is under way. They add to `work`, if there is any.

// How many answers its model may give: max_turns, and one more for each that was to be mended.
std::size_t turns_max(const State& state, const Step& loop);
// May another turn begin: the newest one is chosen, and all it asked for has an answer, or it is to be mended?
bool may_begin_turn(const State& state, const Step& loop);
// What the model of the next turn is to be told of the job's budget: {limit: {"left", "of"}} for each that is low and that
// it has not been told of since it was raised; null = nothing.
Value notice_of(const State& state, const Step& loop);
// Does a recorded notice say nothing but what is so?
bool is_notice(const State& state, const Step& loop, const Value& notice);
// The arguments of a turn, as they are recorded. REQUIRES: it is the next one, or the newest one without a call. Fails with
// expression_failed (the prompt), turns_limit.
Result<Value> turn_arguments_of(const State& state, const Step& loop, std::uint32_t turn,
                                const Value& notice, Work* work = nullptr);
// About how many tokens the request of a turn with these arguments has: what the turn before it was taken for, and what
// came since.
std::uint64_t turn_tokens_of(const State& state, const Step& loop, std::uint32_t turn,
                             const Value& arguments);
// Which invocation the answer of a turn is the result of; here, or in the job that this one was forked from. REQUIRES: its
// model was asked.
const InvocationId& answer_of(const Step& turn);
// What is wrong with the turns that this loop has from another job: one does not follow from those before it, or something
// else was chosen than its answer asks for. Empty: nothing.
std::string find_invalid_turn(const State& state, const Step& loop);
// The payload of tool_choice of the newest turn, which has its answer. Fails with tool_output_invalid: no such answer.
Result<Value> tool_choice_of(const State& state, const Step& loop, Work* work = nullptr);
// The arguments of a call that the answer of a turn asked for. REQUIRES: it is among those that are made.
const Value& requested_arguments_of(const State& state, const Step& loop, std::uint32_t turn,
                                    std::uint32_t nth);
// What the loop gives: {text, turns, finish_reason?, refusal?, json?}; a node of kind llm and a planner its last answer. Fails with tool_output_invalid: the
// answer is not as its schema wants it; plan_invalid: it makes no plan. REQUIRES: the newest turn asked for nothing.
Result<Value> loop_result_of(const State& state, const Step& loop, Work* work = nullptr);

// What is sent when this step's call is performed: its recorded arguments, and of a turn the whole request in our words,
// {"model", "messages", "tools"?, "temperature"?, "max_tokens"?, "schema"?, "repair"?}. Fails with log_corrupt: the conversation
// is not the one that the call was declared with. REQUIRES: the step has a call.
Result<Value> sent_request(const State& state, const Step& step);

}  // namespace ae::engine
