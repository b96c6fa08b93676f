#include "schema/question.h"

#include <fmt/core.h>

#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "json/json.h"
#include "schema/schema.h"
#include "schema/text_format.h"

namespace ae {
namespace {

// Drops `enumNames`, the display names of an enumeration: it is not a keyword of JSON Schema.
Result<Schema> schema_of(const Value& question) {
  Value schema = question["schema"];
  if (schema["properties"].is_object()) {
    std::vector<Member> plain;
    for (const auto& [name, field] : schema["properties"].members()) {
      std::vector<Member> members;
      if (field.is_object()) {
        for (const Member& member : field.members()) {
          if (member.first != "enumNames") members.push_back(member);
        }
      }
      plain.emplace_back(name, field.is_object() ? Value::object(std::move(members)) : field);
    }
    schema = schema.with("properties", Value::object(std::move(plain)));
  }
  return Schema::compile(schema);
}

Value default_content(const Value& question) {
  std::vector<Member> content;
  const Value& fields = question["schema"]["properties"];
  if (!fields.is_object()) return Value::object({});
  for (const auto& [name, field] : fields.members()) {
    if (const Value* default_value = field.find("default"))
      content.emplace_back(name, *default_value);
  }
  return Value::object(std::move(content));
}

// The fields are texts, numbers and choices, so there are no formats at deeper levels.
Status check_formats(const Value& question, const Value& filled) {
  const Value& fields = question["schema"]["properties"];
  if (!fields.is_object()) return {};
  for (const auto& [name, field] : fields.members()) {
    const std::string_view format = field.text("format");
    const Value* answer = filled.find(name);
    if (answer == nullptr || !answer->is_string() || matches_format(format, answer->as_string()))
      continue;
    return fail(Code::input_invalid, "/{} must be {}", name, describe_format(format));
  }
  return {};
}

}  // namespace

Status check_question(const Value& question) {
  if (canonical_exceeds(question, kQuestionMax)) {
    return fail(Code::payload_too_large, "a question is larger than 64 KiB");
  }
  const std::string_view mode = question.text("mode");
  if (!question["message"].is_string() || question.text("message").size() > kQuestionMessageMax) {
    return fail(Code::input_invalid, "a question has a message, of 16 KiB at most");
  }
  if (mode == "url") {
    return question["url"].is_string()
               ? Status()
               : fail(Code::input_invalid, "a question about an address without \"url\"");
  }
  if (mode != "form") return fail(Code::input_invalid, "a question is a form or a url");
  auto schema = schema_of(question);
  if (!schema) {
    return fail(Code::input_invalid, "a form whose schema cannot be used: {}",
                schema.error().message);
  }
  if (question["schema"].text("type") != "object") {
    return fail(Code::input_invalid, "a form whose schema is not that of an object");
  }
  return {};
}

Status check_questions(const Value& question_round) {
  const Value& requests = question_round["requests"];
  if (!requests.is_object() || requests.size() > kQuestionsMax) {
    return fail(Code::input_invalid, "a tool asks at most 16 questions at once");
  }
  if (const Value* state = question_round.find("state"); state != nullptr) {
    if (!state->is_string()) return fail(Code::input_invalid, "the state is not a string");
    if (state->as_string().size() > kQuestionStateMax) {
      return fail(Code::payload_too_large, "the state is larger than 1 MiB");
    }
  }
  for (const auto& [key, question] : requests.members()) {
    if (auto valid = check_question(question); !valid) {
      const std::string where = fmt::format("\"{}\"", truncate_utf8(key, 64));
      return std::unexpected(std::move(valid).error().with_context(where));
    }
  }
  return {};
}

Result<Value> validate_answer(const Value& question, std::string_view action,
                              const std::optional<Value>& content) {
  if (action != "accept" && action != "decline" && action != "cancel") {
    return fail(Code::input_invalid, "an answer's \"action\" is accept, decline or cancel");
  }
  const bool has_content = action == "accept" && question.text("mode") == "form";
  if (content && !has_content) {
    return fail(Code::input_invalid, "only a form that is accepted has content");
  }
  if (!has_content) return Value::object({{"action", action}});
  Value filled = content ? *content : default_content(question);
  if (canonical_exceeds(filled, kQuestionMax)) {
    return fail(Code::payload_too_large, "an answer is at most 64 KiB");
  }
  AE_ASSIGN(const Schema schema, schema_of(question));
  if (auto fits = schema.check(filled); !fits) {
    return std::unexpected(std::move(fits).error().with_context("the answer"));
  }
  if (auto fits = check_formats(question, filled); !fits) {
    return std::unexpected(std::move(fits).error().with_context("the answer"));
  }
  return Value::object({{"action", action}, {"content", std::move(filled)}});
}

}  // namespace ae
