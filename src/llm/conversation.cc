// Conversation: parses requests, builds answers, and maps tool names.
#include "llm/conversation.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "json/json.h"
#include "log/field_names.h"
#include "schema/answer_json.h"

namespace ae::llm {
namespace {

constexpr std::size_t kWireMax = 64;   // characters of a name, the providers' limit
constexpr std::size_t kWireKept = 55;  // kept of a longer name; 8 digits of its digest follow
constexpr std::size_t kArgumentDepth = 64;

using Keys = std::initializer_list<std::string_view>;

std::unexpected<Error> invalid_request(const std::string& where, std::string_view what) {
  return fail(Code::input_invalid, "{} {}", where, what);
}

Status check_members(const Value& value, Keys keys, const std::string& where) {
  if (!value.is_object()) return invalid_request(where, "is not an object");
  for (const auto& [key, member] : value.members()) {
    if (std::ranges::find(keys, key) == keys.end()) {
      return invalid_request(where, fmt::format("has the unknown member `{}`", key));
    }
  }
  return {};
}

Result<std::string> read_name(const Value& value, std::string_view key, const std::string& where) {
  const Value& text = value[key];
  if (!text.is_string() || text.as_string().empty() || text.as_string().size() > kNameMax) {
    return invalid_request(where, fmt::format("has no `{}` of 1 to 512 bytes", key));
  }
  return text.as_string();
}

bool is_wire_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

std::string with_digest(std::string_view name, std::string wire) {
  wire.resize(std::min(wire.size(), kWireKept));
  return fmt::format("{}_{:.8}", wire, to_hex(sha256(name)));
}

Result<Part> read_part(const Value& value, const std::string& where) {
  const std::string_view type = value.text("type");
  const bool image = type == "image";
  if (!image && type != "text") return invalid_request(where, "has no valid type: text or image");
  const std::string_view key = image ? "url" : "text";
  AE_TRY(check_members(value, {"type", key}, where));
  if (!value[key].is_string()) return invalid_request(where, fmt::format("has no `{}`", key));
  Part part{image, value[key].as_string()};
  const bool known = part.text.starts_with("https://") || part.text.starts_with("http://") ||
                     part.text.starts_with("data:image/");
  if (image && !known)
    return invalid_request(where,
                           "has an invalid `url`: it begins with https:, http: or data:image/");
  return part;
}

Status read_content(const Value& content, const std::string& where, Message& message) {
  if (content.is_string()) {
    message.text = content.as_string();
    return {};
  }
  if (!content.is_array() || content.size() == 0 || content.size() > kPartsMax) {
    return invalid_request(where, "has no `content`: a text, or a list of 1 to 256 parts");
  }
  for (std::size_t i = 0; i < content.size(); ++i) {
    AE_ASSIGN(Part part, read_part(content.items()[i], fmt::format("{}.content[{}]", where, i)));
    message.parts.push_back(std::move(part));
  }
  return {};
}

Result<ToolCall> read_call(const Value& value, const std::string& where) {
  AE_TRY(check_members(value, {"id", "name", field::arguments, "malformed", "invalid"}, where));
  ToolCall call;
  AE_ASSIGN(call.id, read_name(value, "id", where));
  AE_ASSIGN(call.name, read_name(value, "name", where));
  const bool whole = value[field::arguments].is_object();
  if (whole == value["malformed"].is_string()) {
    return invalid_request(where, "has neither `arguments` nor `malformed`, or both");
  }
  if (whole) {
    call.arguments = value[field::arguments];
  } else {
    call.malformed = value["malformed"].as_string();
  }
  return call;
}

Status read_assistant(const Value& value, const std::string& where, Message& message) {
  AE_TRY(check_members(value, {"role", "content", "tool_calls", "blocks"}, where));
  if (!value["content"].is_string())
    return invalid_request(where, "has no `content`: a text, also an empty one");
  message.text = value["content"].as_string();
  for (const std::string_view key : {"tool_calls", "blocks"}) {
    const Value* list = value.find(key);
    if (list == nullptr) continue;
    if (!list->is_array() || list->size() > kCallsMax) {
      return invalid_request(where, fmt::format("has `{}` that is not a list of at most 256", key));
    }
    for (std::size_t i = 0; i < list->size(); ++i) {
      const Value& item = list->items()[i];
      const std::string at = fmt::format("{}.{}[{}]", where, key, i);
      if (key == "blocks") {
        if (!item.is_object()) return invalid_request(at, "is not an object");
        message.blocks.push_back(item);
        continue;
      }
      AE_ASSIGN(ToolCall call, read_call(item, at));
      message.calls.push_back(std::move(call));
    }
  }
  return {};
}

Result<Message> read_message(const Value& value, const std::string& where) {
  constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
  if (!value.is_object()) return invalid_request(where, "is not an object");
  const auto role = std::ranges::find(kRoles, value.text("role"));
  if (role == std::end(kRoles)) {
    return invalid_request(where, "has no `role`: system, developer, user, assistant or tool");
  }
  Message message;
  message.role = static_cast<Role>(role - std::begin(kRoles));
  if (message.role == Role::assistant) {
    AE_TRY(read_assistant(value, where, message));
  } else if (message.role == Role::tool) {
    AE_TRY(check_members(value, {"role", "call_id", "content", field::error}, where));
    AE_ASSIGN(message.call_id, read_name(value, "call_id", where));
    if (!value["content"].is_string()) return invalid_request(where, "has no `content`: a text");
    message.text = value["content"].as_string();
    message.error = value[field::error] == Value(true);
  } else {
    AE_TRY(check_members(value, {"role", "content"}, where));
    AE_TRY(read_content(value["content"], where, message));
  }
  return message;
}

Status read_tools(const Value& tools, Request& request) {
  if (!tools.is_array() || tools.size() > kToolsMax) {
    return fail(Code::input_invalid, "`tools` is not a list of at most 1,024");
  }
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const Value& value = tools.items()[i];
    const std::string where = fmt::format("tools[{}]", i);
    AE_TRY(check_members(value, {"name", "description", "parameters"}, where));
    OfferedTool tool;
    AE_ASSIGN(tool.name, read_name(value, "name", where));
    tool.description = value.text("description");
    tool.parameters = value["parameters"];
    if (!tool.parameters.is_null() && !tool.parameters.is_object()) {
      return invalid_request(where, "has `parameters` that are not a schema");
    }
    const auto same = [&](auto member, const std::string& text) {
      return std::ranges::find(request.tools, text, member) != request.tools.end();
    };
    if (same(&OfferedTool::name, tool.name)) return invalid_request(where, "is offered twice");
    tool.wire = wire_name(tool.name);
    if (same(&OfferedTool::wire, tool.wire)) tool.wire = with_digest(tool.name, tool.wire);
    if (same(&OfferedTool::wire, tool.wire))
      return invalid_request(where, "has the name of another");
    request.tools.push_back(std::move(tool));
  }
  return {};
}

Status read_settings(const Value& value, Request& request) {
  request.temperature = value["temperature"];
  if (!request.temperature.is_null() && !request.temperature.is_number()) {
    return fail(Code::input_invalid, "`temperature` is not a number");
  }
  request.max_tokens = value["max_tokens"];
  if (!request.max_tokens.is_null() && !is_count(request.max_tokens)) {
    return fail(Code::input_invalid, "`max_tokens` is not a number of tokens");
  }
  request.schema = value["schema"];
  if (request.schema.is_null()) return {};
  if (auto schema = Schema::compile(request.schema); !schema) {
    return fail(Code::input_invalid, "`schema`: {}", schema.error().message);
  }
  return {};
}

// The arguments of a call, as the model gave them; none is {}. Fails with the parser's message, or
// with "" for JSON that is not an object.
Result<Value> arguments_of(const Value& raw) {
  if (raw.is_object()) return raw;
  if (raw.is_null()) return Value::object({});
  if (!raw.is_string()) return fail(Code::input_invalid, "");
  if (raw.as_string().find_first_not_of(" \t\r\n") == std::string::npos) return Value::object({});
  AE_ASSIGN(Value value, parse_json(raw.as_string(), {.depth_max = kArgumentDepth,
                                                      .big_integers_as_strings = true}));
  if (!value.is_object()) return fail(Code::input_invalid, "");
  return value;
}

}  // namespace

std::unexpected<Error> invalid_answer(std::string reason) {
  return fail(Code::tool_output_invalid, std::move(reason));
}

bool is_count(const Value& value) { return value.is_integer() && value.as_int() >= 0; }

std::string wire_name(std::string_view name) {
  std::string wire;
  for (const char c : name) {
    if (c == '.') {
      wire += "__";
    } else {
      wire += is_wire_char(c) ? c : '_';
    }
  }
  return wire.size() > kWireMax ? with_digest(name, std::move(wire)) : wire;
}

std::string Request::wire_name_of(std::string_view name) const {
  const auto tool = std::ranges::find(tools, name, &OfferedTool::name);
  return tool == tools.end() ? wire_name(name) : tool->wire;
}

std::string Request::name_of(std::string_view wire) const {
  const auto tool = std::ranges::find(tools, wire, &OfferedTool::wire);
  return tool == tools.end() ? std::string(wire) : tool->name;
}

std::size_t Request::calls() const {
  std::size_t count = 0;
  for (const Message& message : messages) count += message.calls.size();
  return count;
}

Result<Request> read_request(const Value& value) {
  AE_TRY(check_members(
      value, {"model", "messages", "tools", "temperature", "max_tokens", "schema", "repair"},
      "the request"));
  const Value& messages = value["messages"];
  if (value.text("model").empty() || !messages.is_array() || messages.size() == 0) {
    return fail(Code::input_invalid, "a request needs a model name and at least one message");
  }
  if (messages.size() > kMessagesMax) {
    return fail(Code::input_invalid, "a request has at most 10,000 messages");
  }
  Request request;
  request.model = value.text("model");
  request.messages.reserve(messages.size());
  for (std::size_t i = 0; i < messages.size(); ++i) {
    AE_ASSIGN(Message message, read_message(messages.items()[i], fmt::format("messages[{}]", i)));
    request.messages.push_back(std::move(message));
  }
  if (const Value* tools = value.find("tools")) AE_TRY(read_tools(*tools, request));
  AE_TRY(read_settings(value, request));
  return request;
}

Status Answer::add_call(const Request& request, std::string_view id, std::string_view wire,
                        const Value& arguments) {
  if (wire.empty() || wire.size() > kNameMax)
    return invalid_answer("the answer calls a tool without a name");
  if (calls.size() == kCallsMax) return invalid_answer("the answer calls more than 256 tools");
  ToolCall call;
  call.name = request.name_of(wire);
  const auto is_taken = [&](std::string_view one) {
    return one.empty() || one.size() > kNameMax ||
           std::ranges::find(calls, one, &ToolCall::id) != calls.end();
  };
  call.id = id;
  for (std::size_t n = request.calls() + calls.size() + 1; is_taken(call.id); ++n) {
    call.id = fmt::format("call_{}", n);
  }
  if (auto object = arguments_of(arguments)) {
    call.arguments = *std::move(object);
  } else {
    call.malformed = arguments.is_string() ? arguments.as_string() : canonical(arguments);
    call.invalid = std::move(object).error().message;
  }
  calls.push_back(std::move(call));
  return {};
}

Value call_value(const ToolCall& call) {
  std::vector<Member> members = {{"id", call.id}, {"name", call.name}};
  if (call.malformed) {
    if (!call.invalid.empty()) members.emplace_back("invalid", call.invalid);
    members.emplace_back("malformed", *call.malformed);
  } else {
    members.emplace_back(field::arguments, call.arguments);
  }
  return Value::object(std::move(members));
}

Value answer_value(const Answer& answer) {
  std::vector<Member> members = {{"text", answer.text}};
  if (!answer.calls.empty()) {
    std::vector<Value> calls;
    calls.reserve(answer.calls.size());
    for (const ToolCall& call : answer.calls) calls.push_back(call_value(call));
    members.emplace_back("tool_calls", Value::array(std::move(calls)));
  }
  if (!answer.blocks.empty()) members.emplace_back("blocks", Value::array(answer.blocks));
  const std::pair<const char*, const std::string&> texts[] = {
      {"finish_reason", answer.finish_reason},
      {"model", answer.model},
      {"refusal", answer.refusal}};
  for (const auto& [name, text] : texts) {
    if (!text.empty()) members.emplace_back(name, text);
  }
  if (!answer.usage.is_null()) members.emplace_back(field::usage, answer.usage);
  return Value::object(std::move(members));
}

Result<Value> with_parsed_json(const Value& schema, Value answer) {
  if (schema.is_null() || answer.find("tool_calls") != nullptr) return answer;
  AE_ASSIGN(const Schema compiled, Schema::compile(schema));
  AE_ASSIGN(Value json, parse_answer_json(compiled, answer));
  return answer.with("json", std::move(json));
}

}  // namespace ae::llm
