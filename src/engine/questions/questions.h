// questions: what a tool asks a user when a try of its call ends `input_required`, and the answers
// that the next try sends.
//
//   tool_invocation_finished{input_required, result: {requests, state?}} ─▶ a human wait for each
//   request, one after the other, each closed by its answer ─▶ the next try of the command, with
//   all answers and the state
//
// Nothing is stored twice: the questions are in the try that ended with them, each answer is in its
// wait, and the next try combines them. Threads: pure functions. See
// docs/decisions/0058-questions-inside-of-a-call.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/state/state.h"

namespace ae::engine {

constexpr std::uint32_t kQuestionRoundsMax = 16;  // tries with questions per call; then it fails

// `input/<step id>#<n>`: the key of the wait for the n-th question of a step's call.
std::string question_wait_key(const Step& step, std::uint32_t number);
bool is_question_wait_key(std::string_view key);
// The inputs that a try sends: {"answers": {KEY: answer…}, "state"?}; null =
// its tool has asked nothing.
Value inputs_of(const Invocation& call);

}  // namespace ae::engine
