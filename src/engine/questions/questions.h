// questions: what a tool asks a person when a try of its call ends `input_required`, and what the next try sends along.
//
//   tool_invocation_finished{input_required, result: {requests, state?}} ─▶ a human wait for each request, one after the
//   other, each closed by its answer ─▶ the next try of the same command, with all answers and the state
//
// Nothing is stored twice: the questions stand in the try that asked them, each answer in its wait, and a try sends what
// the two give. Threads: pure functions. See docs/decisions/0058-questions-inside-of-a-call.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/heart/ingest.h"
#include "engine/state/state.h"

namespace ae::engine {

constexpr std::uint32_t kQuestionRoundsMax = 16;  // tries of one call that ask; then it fails

// `input/<step id>#<n>`: of the n-th question of a step's call.
std::string question_wait_key(const Step& step, std::uint32_t number);
bool is_question_wait_key(std::string_view key);
// What a try sends along: {"answers": {KEY: answer…}, "state"?}; null = its tool has asked nothing.
Value inputs_of(const Invocation& call);

// Answers the question that this wait is about. Fails with input_invalid, payload_too_large.
Result<AppliedRequest> apply_question_answer(const State& state, const std::string& key,
                                             const Wait& wait, const ControlRequest& act);
// Does the act say what this answer says?
bool is_same_answer(const ControlRequest& act, const Value& answer);

}  // namespace ae::engine
