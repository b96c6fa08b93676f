// loop: the messages to a model that chooses calls, its requested calls, and their results.
//
//   turn 0   the prompt              ─▶ model ─▶ answer ─▶ decision_recorded{tool_choice} ─▶ calls,
//                                                                                       in parallel
//   turn n   … answer, call results  ─▶ model ─▶ answer ─▶ …          no calls: the loop is done
//
// If an answer requests no calls and breaks the loop's schema, the model receives the error once,
// if the plan has `repair`. The tool_choice records this, and the following turn does not count
// against max_turns (decision 0056).
//
// A thread waits for a message after its answer, and its next turn begins with it (thread.h).
// max_turns and `repair` then count for each exchange.
//
// A conversation is a chain of messages. The log holds each message once: the first ones in the
// arguments of turn 0, a message of a thread in those of the turn that it begins, a model's in its
// answer, a tool's in its result. The arguments of a turn
// identify the earlier messages by the end of the chain,
//
//   h0 = SHA256("aetheris.conversation.v1"), h(i+1) = SHA256(h(i) ‖ SHA256(canonical(message i)))
//
// and by its length, so that every turn costs the same (decision 0050). Stored:
// the arguments of a turn,
//   {"model", "temperature"?, "max_tokens"?, "conversation": 64 hex, "said": n, "tools"?: 64 hex,
//    "schema"?: 64 hex, "messages": […] of turn 0, and of the first turn of an exchange,
//    "notice"?: {limit: {"left", "of"}} of the job's budget, sent as the last message,
//    "from"?, "summary"?: of a request that leaves older messages out (context.h)}
// and the payload of its tool_choice,
//   {"turn", "of": invocation, "calls": [{"id", "name", "refused"?: {code, message}}],
//    "repair"?: the error in the answer}.
//
// A fork continues an unfinished loop: the imported turns have no call in this job.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "engine/loop/context.h"
#include "engine/state/state.h"
#include "json/value.h"
#include "log/records.h"

namespace ae::engine {

// Calls of one answer. Further ones are not made, and the model is informed.
inline constexpr std::size_t kTurnCallsMax = 128;
// Bytes of the error that a repair message describes.
inline constexpr std::size_t kRepairMax = 1'024;
// Messages of one conversation; then the loop fails.
inline constexpr std::uint64_t kConversationMax = 10'000;

// All of these: REQUIRES: `loop` is the step of a running loop. They add to
// `work` unless it is nullptr.

// How many answers the model may give: max_turns, and one more for each repair.
std::size_t turns_max(const State& state, const Step& loop);
// May another turn start: is the choice of the newest one recorded, and is each of its calls
// answered, or a repair due?
bool may_begin_turn(const State& state, const Step& loop);
// The budget notice for the model of the next turn: {limit: {"left", "of"}} for each limit that is
// low and that it has not been notified of since the limit was raised; null = none.
Value notice_of(const State& state, const Step& loop);
// Is this recorded notice correct?
bool is_notice(const State& state, const Step& loop, const Value& notice);
// What is recorded for the next turn now: its budget notice, and which messages it leaves out.
// `summarize`: the turn before which others are summarized first; 0 = none.
struct NextTurn {
  TurnExtras extras;
  std::uint32_t summarize = 0;
};
// REQUIRES: it is the next turn, or the newest one and has no call. Fails with expression_failed
// (the prompt), context_exceeded.
Result<NextTurn> next_turn_of(const State& state, const Step& loop, std::uint32_t turn,
                              Work* work = nullptr);
// The arguments of a turn, as they are recorded. REQUIRES: it is the next turn, or the newest one
// and has no call; may_begin_at. Fails with expression_failed (the prompt), turns_limit.
Result<Value> turn_arguments_of(const State& state, const Step& loop, std::uint32_t turn,
                                const TurnExtras& extras, Work* work = nullptr);
// The estimated tokens of the request of a turn or of a summary with these arguments: the estimate
// of the previous turn, and the messages since.
std::uint64_t turn_tokens_of(const State& state, const Step& loop, std::uint32_t turn,
                             const Value& arguments);
// The invocation, here or in the origin of this fork, whose result is the answer of a turn.
// REQUIRES: its model was called.
const InvocationId& answer_of(const Step& turn);
// What is wrong with the imported turns of this loop: one does not follow from those before it, or
// the recorded choice is not what its answer requests. "" = nothing.
std::string find_invalid_turn(const State& state, const Step& loop);
// What the newest turn requests, which has its answer. Fails with tool_output_invalid: the answer
// is not valid.
Result<ToolChoice> tool_choice_of(const State& state, const Step& loop, Work* work = nullptr);
// The arguments of a call that the answer of a turn requested. REQUIRES: the call is not refused.
const Value& requested_arguments_of(const State& state, const Step& loop, std::uint32_t turn,
                                    std::uint32_t nth);
// The result of the loop: {text, turns, finish_reason?, refusal?, interrupted?, json?}; for a node of kind llm or
// planner its last answer. Fails with tool_output_invalid: the answer breaks its schema;
// plan_invalid: the answer is not a valid plan. REQUIRES: the newest turn requested no calls, or was
// interrupted.
Result<Value> loop_result_of(const State& state, const Step& loop, Work* work = nullptr);

// The request that is sent for this step's call: its recorded arguments; for a turn the whole
// request in our format, {"model", "messages", "tools"?, "temperature"?, "max_tokens"?, "schema"?,
// "repair"?}. Fails with log_corrupt: the conversation differs from the one that the call was
// declared with. REQUIRES: the step has a call.
Result<Value> sent_request(const State& state, const Step& step);

}  // namespace ae::engine
