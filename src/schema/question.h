// Question: what a tool asks a user during its call, and the answer to it.
//
//   question   {"mode": "form", "message", "schema"}   fields to fill in: schema of an object
//              {"mode": "url", "message", "url"}       an action elsewhere; never opened by us
//   answer     {"action": accept | decline | cancel, "content"?}   content: of an accepted form
//
// Stored: both forms are recorded in logs. Threads: pure functions.
// See docs/decisions/0058-questions-inside-of-a-call.md.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "json/value.h"

namespace ae {

constexpr std::size_t kQuestionMax = 64u << 10;  // bytes of one question, and of one answer
constexpr std::size_t kQuestionMessageMax = 16u << 10;
constexpr std::size_t kQuestionsMax = 16;  // in one round of a tool
constexpr std::size_t kQuestionStateMax =
    1u << 20;  // bytes of the state that a tool receives back with the answers

// Fails with input_invalid, payload_too_large.
Status check_question(const Value& question);

// A round of questions of a tool: {"requests": {KEY: question…}, "state"?: text}. Fails like
// check_question.
Status check_questions(const Value& question_round);

// The answer, if it is valid for this question. An accepted form without content takes the defaults
// of its fields. Also checks the formats of text_format.h. Fails with input_invalid, naming the
// field, or payload_too_large.
Result<Value> validate_answer(const Value& question, std::string_view action,
                              const std::optional<Value>& content);

}  // namespace ae
