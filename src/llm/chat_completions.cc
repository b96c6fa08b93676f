// Chat Completions: the codec of `openai`.
#include "llm/chat_completions.h"

#include <fmt/core.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "json/json.h"
#include "llm/conversation.h"
#include "llm/usage.h"
#include "llm/wire_names.h"
#include "schema/closed_schema.h"

namespace ae::llm {
namespace {

constexpr std::string_view kNewerName =
    "max_completion_tokens";  // newer models accept only this name

// Model answers are larger than most tool results: 128 Ki tokens of JSON, plus reasoning.
constexpr int kAnswerMax = 4 << 20;
constexpr std::string_view kReasoning = "reasoning_content";

// ---- request

Value content_of(const Message& message) {
  if (message.parts.empty()) return message.text;
  std::vector<Value> parts;
  parts.reserve(message.parts.size());
  for (const Part& part : message.parts) {
    parts.push_back(part.image ? Value::object({{"type", "image_url"},
                                                {"image_url", Value::object({{"url", part.text}})}})
                               : Value::object({{"type", "text"}, {"text", part.text}}));
  }
  return Value::array(std::move(parts));
}

Value assistant_of(const Request& request, const Message& message) {
  std::vector<Member> members = {{"role", "assistant"}, {"content", message.text}};
  if (!message.calls.empty()) {
    if (message.text.empty()) members[1].second = Value();
    std::vector<Value> calls;
    calls.reserve(message.calls.size());
    for (const ToolCall& call : message.calls) {
      const std::string arguments = call.malformed ? *call.malformed : canonical(call.arguments);
      calls.push_back(
          Value::object({{"id", call.id},
                         {"type", "function"},
                         {"function", Value::object({{"name", request.wire_name_of(call.name)},
                                                     {wire::kArguments, arguments}})}}));
    }
    members.emplace_back("tool_calls", Value::array(std::move(calls)));
  }
  for (const Value& block : message.blocks) {
    if (block.text("type") != kReasoning || !block[kReasoning].is_string()) continue;
    members.emplace_back(kReasoning, block[kReasoning]);
    break;
  }
  return Value::object(std::move(members));
}

Value message_of(const Request& request, const Message& message) {
  constexpr std::string_view kRoles[] = {"system", "developer", "user"};
  if (message.role == Role::assistant) return assistant_of(request, message);
  if (message.role == Role::tool) {
    return Value::object(
        {{"role", "tool"}, {"tool_call_id", message.call_id}, {"content", message.text}});
  }
  return Value::object(
      {{"role", kRoles[static_cast<std::size_t>(message.role)]}, {"content", content_of(message)}});
}

Value chat_tools(const Request& request) {
  std::vector<Value> tools;
  tools.reserve(request.tools.size());
  for (const OfferedTool& tool : request.tools) {
    std::vector<Member> function = {{"name", tool.wire}};
    if (!tool.description.empty()) function.emplace_back("description", tool.description);
    if (!tool.parameters.is_null()) function.emplace_back("parameters", tool.parameters);
    tools.push_back(
        Value::object({{"type", "function"}, {"function", Value::object(std::move(function))}}));
  }
  return Value::array(std::move(tools));
}

// A schema with open parts cannot be `strict`; the answer is validated against it anyway.
Value format_of(const Value& schema) {
  return Value::object(
      {{"type", "json_schema"},
       {"json_schema",
        Value::object({{"name", "answer"}, {"schema", schema}, {"strict", is_complete(schema)}})}});
}

// ---- answer

// The text of an answer: a string, or the texts of its parts. null is "".
Result<std::string> content_text(const Value& content) {
  if (content.is_null()) return std::string();
  if (content.is_string()) return content.as_string();
  if (!content.is_array())
    return invalid_answer("the content of the answer is neither a text nor parts");
  std::string text;
  for (const Value& part : content.items()) {
    if (part.text("type") == "text") text += part.text("text");
  }
  return text;
}

Value chat_usage(const Value& usage) {
  return usage_value({.input = sum_tokens(usage["prompt_tokens"]),
                      .output = sum_tokens(usage["completion_tokens"]),
                      .total = usage["total_tokens"],
                      .cached = usage["prompt_tokens_details"]["cached_tokens"],
                      .reasoning = usage["completion_tokens_details"]["reasoning_tokens"]});
}

Status add_calls(const Request& request, const Value& message, Answer& answer) {
  const Value& calls = message["tool_calls"];
  if (calls.is_null()) return {};
  if (!calls.is_array()) return invalid_answer("the answer's `tool_calls` is not a list");
  for (const Value& call : calls.items()) {
    const Value& function = call["function"];
    AE_TRY(answer.add_call(request, call.text("id"), function.text("name"),
                           function[wire::kArguments]));
  }
  return {};
}

// An answer with tool calls is not final, whatever finish_reason the server gives.
std::string reason_of(std::string_view reason, bool calls) {
  if (reason == "function_call" || (calls && reason == "stop")) return "tool_calls";
  return std::string(reason);
}

}  // namespace

Value chat_transport(const Value& settings) {
  std::string url(settings.text("base_url"));
  while (url.ends_with('/')) url.pop_back();
  std::vector<Member> http = {{"method", "POST"},
                              {"url", fmt::format("{}/chat/completions", url)},
                              {"output_max", kAnswerMax},
                              {"numbers", "string"}};
  if (const std::string_view key = settings.text("api_key"); !key.empty()) {
    http.emplace_back("headers", Value::object({{"Authorization", fmt::format("Bearer {}", key)}}));
  }
  return Value::object(std::move(http));
}

Result<Value> chat_request(const Value& recorded, const Value& settings) {
  AE_ASSIGN(const Request request, read_request(recorded));
  std::vector<Value> messages;
  messages.reserve(request.messages.size());
  for (const Message& message : request.messages) messages.push_back(message_of(request, message));
  std::vector<Member> body = {{"model", request.model},
                              {"messages", Value::array(std::move(messages))}};
  if (!request.tools.empty()) body.emplace_back("tools", chat_tools(request));
  if (!request.temperature.is_null()) body.emplace_back("temperature", request.temperature);
  if (!request.max_tokens.is_null()) {
    body.emplace_back(settings.text("max_tokens_name", kNewerName), request.max_tokens);
  }
  if (!request.schema.is_null()) body.emplace_back("response_format", format_of(request.schema));
  return Value::object(std::move(body));
}

Result<Value> chat_answer(const Value& recorded_request, const Value& body) {
  AE_ASSIGN(const Request request, read_request(recorded_request));
  const Value& choices = body["choices"];
  if (!choices.is_array() || choices.size() == 0) {
    const std::string_view error_text = body[wire::kError].text("message");
    return invalid_answer(
        error_text.empty() ? "the answer has no choices"
                           : fmt::format("the answer has no choices; its error: {}", error_text));
  }
  const Value& choice = choices.items()[0];
  const Value& message = choice["message"];
  if (!message.is_object()) return invalid_answer("the answer has no message");
  Answer answer;
  AE_ASSIGN(answer.text, content_text(message["content"]));
  AE_TRY(add_calls(request, message, answer));
  if (const Value& reasoning = message[kReasoning];
      reasoning.is_string() && !reasoning.as_string().empty()) {
    answer.blocks.push_back(
        Value::object({{"type", kReasoning}, {std::string(kReasoning), reasoning}}));
  }
  answer.finish_reason = reason_of(choice.text("finish_reason"), !answer.calls.empty());
  answer.model = body.text("model");
  answer.refusal = message.text("refusal");
  answer.usage = chat_usage(body[wire::kUsage]);
  return answer_value(answer);
}

}  // namespace ae::llm
