#include "mcp/client/classify_response.h"

#include <fmt/core.h>

#include <string>
#include <utility>
#include <vector>

#include "base/http_status.h"
#include "base/utf8.h"
#include "json/json.h"
#include "log/field_names.h"
#include "schema/question.h"

namespace ae::mcp::client {
namespace {

std::string text_of(const Value& content) {
  std::string text;
  if (!content.is_array()) return text;
  for (const Value& block : content.items()) {
    if (block.text("type") != "text" || !block["text"].is_string()) continue;
    if (!text.empty()) text += '\n';
    text += block.text("text");
  }
  return text;
}

Outcome invalid_result(const Value& result, const std::string& why,
                       const std::vector<tools::UsedSecret>& used) {
  Outcome outcome;
  outcome.kind = OutcomeKind::success;
  const std::string text = tools::scrub(canonical(result), used);
  outcome.invalid = tools::invalid_output(why, text, text.size());
  return outcome;
}

// An elicitation in our schema (schema/question.h).
Value questions_in(const Value& params) {
  const std::string_view mode = params.text("mode", "form");
  std::vector<Member> question{{"message", params["message"]}, {"mode", mode}};
  if (mode == "url") question.emplace_back("url", params["url"]);
  if (mode == "form") question.emplace_back("schema", params["requestedSchema"]);
  return Value::object(std::move(question));
}

// A request of the server in our schema; null: no user can answer it.
Value question_of(const Value& request) {
  return request.text("method") == "elicitation/create" ? questions_in(request["params"]) : Value();
}

Outcome make_input_required(Value questions) {
  Outcome outcome;
  outcome.kind = OutcomeKind::input_required;
  outcome.definite = true;
  outcome.result = std::move(questions);
  return outcome;
}

// The server needs answers of a user. Its requests are for users; its state is returned to it
// unchanged.
Outcome classify_questions(const Value& result, const std::vector<tools::UsedSecret>& used) {
  std::vector<Member> requests;
  bool answerable = true;
  if (const Value* questions = result.find("inputRequests");
      questions != nullptr && questions->is_object()) {
    for (const auto& [key, request] : questions->members()) {
      requests.emplace_back(key, question_of(request));
      answerable = answerable && !requests.back().second.is_null();
    }
  }
  std::vector<Member> members{{"requests", Value::object(std::move(requests))}};
  const Value* state = result.find("requestState");
  if (state != nullptr) members.emplace_back(field::state, *state);
  const Value questions = tools::scrub_value(Value::object(std::move(members)), used);
  // The server could not use a state from which a secret was scrubbed.
  if (state != nullptr && !(questions[field::state] == *state)) answerable = false;
  const Status good = check_questions(questions);
  if (answerable && good && (state != nullptr || questions["requests"].size() > 0)) {
    return make_input_required(questions);
  }
  const bool has_state = state != nullptr;
  const std::string why = good ? "" : ": " + good.error().message;
  return tools::make_outcome(
      has_state ? OutcomeKind::unknown : OutcomeKind::failure, !has_state, false, "input_required",
      fmt::format("the server requested input during the call, which cannot be provided here{}",
                  why));
}

Outcome classify_result(const Value& result, std::size_t output_max,
                        const std::vector<tools::UsedSecret>& used) {
  const std::string_view type = result.text("resultType", "complete");
  if (type == "input_required") return classify_questions(result, used);
  if (type != "complete") {
    return tools::make_outcome(
        OutcomeKind::unknown, false, false, "rpc_error",
        fmt::format("the server returned a result of an unknown type: {}",
                    tools::printable(type.substr(0, 64), tools::LineBreaks::escape)));
  }
  const Value& content = result["content"];
  if (result["isError"] == Value(true)) {
    std::string text =
        tools::printable(tools::scrub(text_of(content), used), tools::LineBreaks::keep);
    if (text.empty()) text = "the tool failed without an error message";
    return tools::make_outcome(OutcomeKind::failure, true, false, "tool_error",
                               truncate_text(std::move(text), kErrorTextMax));
  }
  const Value* structured = result.find("structuredContent");
  if (structured == nullptr && !content.is_array()) {
    return invalid_result(result, "the result has no content", used);
  }
  Value value;
  if (structured != nullptr) {
    value = *structured;
  } else if (content.size() == 1 && content.items()[0].text("type") == "text" &&
             content.items()[0]["text"].is_string()) {
    value = content.items()[0]["text"];
  } else if (content.size() > 0) {
    value = content;
  }
  if (canonical_exceeds(value, output_max)) {
    return invalid_result(value, fmt::format("the result is larger than {} bytes", output_max),
                          used);
  }
  Outcome outcome;
  outcome.kind = OutcomeKind::success;
  outcome.result = tools::scrub_value(value, used);
  return outcome;
}

Outcome classify_error(const Reply& reply, std::string text) {
  if (reply.code == kMethodNotFound || reply.code == kInvalidParams) {
    return tools::make_outcome(OutcomeKind::failure, true, false, "rpc_refused", std::move(text));
  }
  if (reply.status != 0 && is_no_effect_status(reply.status)) {
    return tools::make_outcome(OutcomeKind::failure, true, reply.status == 429,
                               fmt::format("http_{}", reply.status), std::move(text));
  }
  Outcome outcome =
      tools::make_outcome(OutcomeKind::unknown, false, true, "rpc_error", std::move(text));
  outcome.settled = reply.status < 300 || is_settling_status(reply.status);  // 0: not HTTP
  return outcome;
}

}  // namespace

std::string truncate_text(std::string text, std::size_t most) {
  if (text.size() <= most) return text;
  return std::string(truncate_utf8(text, most)).append("…");
}

std::optional<Outcome> classify_open_question(const Value& params, std::string_view state,
                                              const std::vector<tools::UsedSecret>& used) {
  const Value requests =
      Value::object({{std::string(kOpenRequest), tools::scrub_value(questions_in(params), used)}});
  Value questions = Value::object({{"requests", requests}, {field::state, state}});
  if (!check_questions(questions)) return std::nullopt;
  return make_input_required(std::move(questions));
}

Outcome classify_response(const Reply& reply, std::size_t output_max,
                          const std::vector<tools::UsedSecret>& used) {
  std::string text = truncate_text(
      tools::printable(tools::scrub(reply.text, used), tools::LineBreaks::keep), kErrorTextMax);
  switch (reply.kind) {
    case Reply::Kind::result:
      return classify_result(reply.value, output_max, used);
    case Reply::Kind::error:
      if (!text.empty()) text = ": " + text;
      return classify_error(reply, fmt::format("the server answered error {}{}", reply.code, text));
    case Reply::Kind::refused: {
      const bool definite = is_no_effect_status(reply.status);
      Outcome outcome = tools::make_outcome(definite ? OutcomeKind::failure : OutcomeKind::unknown,
                                            definite, !definite || reply.status == 429,
                                            fmt::format("http_{}", reply.status), std::move(text));
      outcome.settled = !definite && is_settling_status(reply.status);
      return outcome;
    }
    case Reply::Kind::not_sent:
      return tools::make_outcome(OutcomeKind::failure, true, true, "not_sent", std::move(text));
    case Reply::Kind::unreachable:
      return tools::make_outcome(OutcomeKind::failure, true, true,
                                 reply.is_tls_failure ? "tls" : "connect", std::move(text));
    case Reply::Kind::unreadable:
      return tools::make_outcome(OutcomeKind::unknown, false, true, "rpc_error", std::move(text));
    case Reply::Kind::lost:
      break;
  }
  return tools::make_outcome(OutcomeKind::unknown, false, true, "reset", std::move(text));
}

}  // namespace ae::mcp::client
