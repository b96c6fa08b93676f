// Question: what a tool wants to know of a person in the middle of its call, and what an answer to it is.
//
//   question   {"mode": "form", "message", "schema"}   fields to fill in, as a JSON Schema of an object
//              {"mode": "url", "message", "url"}        something to do elsewhere, never opened by us
//   answer     {"action": accept | decline | cancel, "content"?}; content: of a form that is accepted
//
// Stored: both shapes stand in logs. Threads: pure functions. See docs/decisions/0058-questions-inside-of-a-call.md.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "json/value.h"

namespace ae {

constexpr std::size_t kQuestionMax = 64u << 10;  // bytes of one question, and of one answer
constexpr std::size_t kQuestionMessageMax = 16u << 10;
constexpr std::size_t kQuestionsMax = 16;  // that one answer of a tool may ask
constexpr std::size_t kQuestionStateMax =
    1u << 20;  // bytes of what a tool wants to have back with the answers

// Fails with input_invalid, payload_too_large.
Status check_question(const Value& question);

// What a tool that cannot go on says: {"requests": {KEY: question…}, "state"?: text}. Fails as check_question.
Status check_questions(const Value& asked);

// The answer, if it is one to this question. A form that is accepted without content is taken as it stands: with the
// values that its fields have by default. Also held to the formats of text_format.h. Fails with input_invalid, naming the field, or payload_too_large.
Result<Value> validate_answer(const Value& question, std::string_view action,
                              const std::optional<Value>& content);

}  // namespace ae
