// Messages: the codec of `anthropic`.
#include "llm/messages.h"

#include <fmt/core.h>

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

constexpr std::string_view kVersion = "2023-06-01";
constexpr int kMessagesAnswerMax = 4 << 20;  // as in chat_completions.cc
constexpr int kTokensDefault = 4096;  // the provider requires a limit; new requests record one

bool is_thinking(const Value& block) {
  const std::string_view type = block.text("type");
  return type == "thinking" || type == "redacted_thinking";
}

bool has_text(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") != std::string_view::npos;
}

// ---- request

Value text_block(std::string_view text) {
  return Value::object({{"type", "text"}, {"text", text}});
}

// Splits `data:image/png;base64,…`; any other URL is fetched by the provider.
Value image_block(std::string_view url) {
  constexpr std::string_view kData = "data:", kBase64 = ";base64,";
  const std::size_t comma = url.find(kBase64);
  Value source = Value::object({{"type", "url"}, {"url", url}});
  if (url.starts_with(kData) && comma != url.npos) {
    source = Value::object({{"type", "base64"},
                            {"media_type", url.substr(kData.size(), comma - kData.size())},
                            {"data", url.substr(comma + kBase64.size())}});
  }
  return Value::object({{"type", "image"}, {"source", std::move(source)}});
}

void add_user(const Message& message, std::vector<Value>& blocks) {
  if (message.parts.empty()) blocks.push_back(text_block(message.text));
  for (const Part& part : message.parts) {
    blocks.push_back(part.image ? image_block(part.text) : text_block(part.text));
  }
}

void add_result(const Message& message, std::vector<Value>& blocks) {
  std::vector<Member> members = {{"type", "tool_result"}, {"tool_use_id", message.call_id}};
  if (!message.text.empty()) members.emplace_back("content", message.text);
  if (message.error) members.emplace_back("is_error", true);
  blocks.push_back(Value::object(std::move(members)));
}

void add_assistant(const Request& request, const Message& message, std::vector<Value>& blocks) {
  for (const Value& block : message.blocks) {
    if (is_thinking(block)) blocks.push_back(block);
  }
  if (has_text(message.text)) blocks.push_back(text_block(message.text));
  for (const ToolCall& call : message.calls) {
    blocks.push_back(Value::object(
        {{"type", "tool_use"},
         {"id", call.id},
         {"name", request.wire_name_of(call.name)},
         {wire::kInput,
          call.malformed ? Value::object({{"malformed", *call.malformed}}) : call.arguments}}));
  }
}

// Merges consecutive messages of one role into one turn.
struct TurnBuilder {
  std::vector<Value> system;
  std::vector<Value> turns;
  std::string role;
  std::vector<Value> blocks;

  void next(std::string_view next_role) {
    if (role != next_role && !blocks.empty()) {
      turns.push_back(
          Value::object({{"role", role}, {"content", Value::array(std::exchange(blocks, {}))}}));
    }
    role = next_role;
  }
  void add(const Request& request, const Message& message) {
    switch (message.role) {
      case Role::system:
      case Role::developer:
        return add_user(message, system);
      case Role::user:
        next("user");
        return add_user(message, blocks);
      case Role::tool:
        next("user");
        return add_result(message, blocks);
      case Role::assistant:
        next("assistant");
        return add_assistant(request, message, blocks);
    }
  }
};

Value messages_tools(const Request& request) {
  std::vector<Value> tools;
  tools.reserve(request.tools.size());
  for (const OfferedTool& tool : request.tools) {
    std::vector<Member> members = {
        {"name", tool.wire},
        {"input_schema", tool.parameters.is_null() || tool.parameters.size() == 0
                             ? Value::object({{"type", "object"}})
                             : tool.parameters}};
    if (!tool.description.empty()) members.emplace_back("description", tool.description);
    tools.push_back(Value::object(std::move(members)));
  }
  return Value::array(std::move(tools));
}

// ---- answer

Value messages_usage(const Value& usage) {
  const Value& read = usage["cache_read_input_tokens"];
  return usage_value(
      {.input = sum_tokens(usage["input_tokens"], {&read, &usage["cache_creation_input_tokens"]}),
       .output = sum_tokens(usage["output_tokens"]),
       .total = usage["total_tokens"],
       .cached = read,
       .reasoning = usage["output_tokens_details"]["thinking_tokens"]});
}

std::string reason_of(std::string_view reason) {
  constexpr std::pair<std::string_view, std::string_view> kReasons[] = {
      {"end_turn", "stop"},       {"stop_sequence", "stop"},
      {"max_tokens", "length"},   {"model_context_window_exceeded", "length"},
      {"tool_use", "tool_calls"},
  };
  for (const auto& [wire_reason, reason_name] : kReasons) {
    if (reason == wire_reason) return std::string(reason_name);
  }
  return std::string(reason);
}

Status add_block(const Request& request, const Value& block, Answer& answer) {
  const std::string_view type = block.text("type");
  if (type == "text") {
    answer.text += block.text("text");
  } else if (type == "tool_use") {
    return answer.add_call(request, block.text("id"), block.text("name"), block[wire::kInput]);
  } else if (is_thinking(block)) {
    answer.blocks.push_back(block);
  }
  return {};
}

// The token limit may cut off a call, and the provider then sends its partial arguments as if they
// were complete: the call must not be made.
void mark_truncated_call(const Value& content, Answer& answer) {
  const Value& last = content.items()[content.size() - 1];
  if (last.text("type") != "tool_use" || answer.calls.empty()) return;
  ToolCall& call = answer.calls.back();
  if (!call.malformed) call.malformed = canonical(std::exchange(call.arguments, Value()));
}

}  // namespace

Value messages_transport(const Value& settings) {
  std::string url(settings.text("base_url"));
  while (url.ends_with('/')) url.pop_back();
  std::vector<Member> headers = {{"anthropic-version", kVersion}};
  if (const std::string_view key = settings.text("api_key"); !key.empty()) {
    headers.emplace_back("x-api-key", key);
  }
  return Value::object({{"method", "POST"},
                        {"url", fmt::format("{}/messages", url)},
                        {"output_max", kMessagesAnswerMax},
                        {"numbers", "string"},
                        {"headers", Value::object(std::move(headers))}});
}

Result<Value> messages_request(const Value& recorded) {
  AE_ASSIGN(const Request request, read_request(recorded));
  TurnBuilder builder;
  for (const Message& message : request.messages) builder.add(request, message);
  builder.next("");
  if (builder.turns.empty()) {
    return fail(Code::input_invalid, "this provider needs at least one user message");
  }
  std::vector<Member> body = {
      {"model", request.model},
      {"messages", Value::array(std::move(builder.turns))},
      {"max_tokens", request.max_tokens.is_null() ? Value(kTokensDefault) : request.max_tokens}};
  if (!builder.system.empty()) body.emplace_back("system", Value::array(std::move(builder.system)));
  if (!request.tools.empty()) body.emplace_back("tools", messages_tools(request));
  if (!request.temperature.is_null()) body.emplace_back("temperature", request.temperature);
  if (!request.schema.is_null()) {
    if (!is_closed(request.schema)) {
      return fail(Code::input_invalid,
                  "`schema`: this provider needs `additionalProperties: false` in every object");
    }
    body.emplace_back(
        "output_config",
        Value::object(
            {{"format", Value::object({{"type", "json_schema"}, {"schema", request.schema}})}}));
  }
  return Value::object(std::move(body));
}

Result<Value> messages_answer(const Value& recorded_request, const Value& body) {
  AE_ASSIGN(const Request request, read_request(recorded_request));
  const Value& content = body["content"];
  if (!content.is_array()) {
    const std::string_view error_text = body[wire::kError].text("message");
    return invalid_answer(
        error_text.empty() ? "the answer has no content"
                           : fmt::format("the answer has no content; its error: {}", error_text));
  }
  Answer answer;
  for (const Value& block : content.items()) AE_TRY(add_block(request, block, answer));
  answer.finish_reason = reason_of(body.text("stop_reason"));
  if (answer.finish_reason == "length" && content.size() > 0) mark_truncated_call(content, answer);
  answer.model = body.text("model");
  answer.refusal = body["stop_details"].text("explanation");
  answer.usage = messages_usage(body[wire::kUsage]);
  return answer_value(answer);
}

}  // namespace ae::llm
