#include "mcp/protocol/message.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "json/json.h"

namespace ae::mcp {
namespace {

constexpr std::string_view kJsonRpc = "2.0";
constexpr char kResult[] = "result";
constexpr char kError[] = "error";
constexpr char kCode[] = "code";

bool is_id(const Value& id) { return id.is_string() || id.is_integer(); }

std::unexpected<RpcError> reject_message(int code, std::string message, const Value& id) {
  return std::unexpected(
      RpcError{.code = code, .message = std::move(message), .id = is_id(id) ? id : Value()});
}

}  // namespace

std::expected<Value, RpcError> parse_message(std::string_view text, Sender sender) {
  auto value = parse_json(text, {.bytes_max = kMessageMax,
                                 .depth_max = kDepthMax,
                                 .big_integers_as_strings = sender == Sender::server});
  if (!value) return reject_message(kParseError, value.error().message, {});
  return *std::move(value);
}

std::expected<Message, RpcError> read_message(const Value& value, Sender sender) {
  const bool lenient = sender == Sender::server;
  if (!value.is_object()) return reject_message(kInvalidRequest, "a message is a JSON object", {});
  const Value& id = value["id"];
  if (value["jsonrpc"] != Value(kJsonRpc)) {
    return reject_message(kInvalidRequest, "a message must have \"jsonrpc\": \"2.0\"", id);
  }
  if (lenient && !id.is_null() && !is_id(id)) {
    return reject_message(kInvalidRequest, "an id is a text or a whole number", {});
  }
  Message message;
  const Value* const method = value.find("method");
  const Value* const result = value.find(kResult);
  const Value* error = value.find(kError);
  if (lenient && error != nullptr && !error->is_object()) error = nullptr;
  if (method == nullptr) {
    const bool is_valid =
        (result == nullptr) != (error == nullptr) &&
        (lenient || (result != nullptr ? is_id(id) : (*error)[kCode].is_integer()));
    if (!is_valid) {
      return reject_message(kInvalidRequest,
                            "a message has a \"method\", or is a response with an id and either a "
                            "\"result\" or an \"error\"",
                            id);
    }
    message.kind = Message::Kind::response;
    message.id = id;
    if (result != nullptr) message.result = *result;
    if (error != nullptr) message.error = *error;
    return message;
  }
  if (!method->is_string() || (!lenient && method->as_string().empty())) {
    return reject_message(kInvalidRequest, "\"method\" is a text", id);
  }
  if (!lenient && (result != nullptr || error != nullptr)) {
    return reject_message(kInvalidRequest, "a message is a request or a response, not both", id);
  }
  message.method = method->as_string();
  const bool has_id = lenient ? !id.is_null() : value.find("id") != nullptr;
  if (has_id && !is_id(id)) {
    return reject_message(kInvalidRequest, "an id is a text or a whole number, and not null", {});
  }
  message.kind = has_id ? Message::Kind::request : Message::Kind::notification;
  message.id = id;
  if (const Value* const params = value.find("params")) {
    if (!lenient && !params->is_object())
      return reject_message(kInvalidParams, "\"params\" is an object", id);
    message.params = *params;
  }
  return message;
}

std::string clip_text(std::string_view text) {
  constexpr std::size_t kMost = 80;
  const bool is_valid = is_utf8(text);
  std::size_t end = std::min(kMost, text.size());
  const auto is_continuation = [&](std::size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
  };
  while (is_valid && end > 0 && is_continuation(end)) --end;
  std::string out(text.substr(0, end));
  if (!is_valid) {
    std::ranges::replace_if(out, [](char c) { return static_cast<unsigned char>(c) >= 0x80; }, '?');
  }
  return out;
}

Value request(const Value& id, std::string_view method, const Value& params) {
  return notification(method, params).with("id", id);
}

Value notification(std::string_view method, const Value& params) {
  std::vector<Member> members{{"jsonrpc", kJsonRpc}, {"method", method}};
  if (!params.is_null()) members.emplace_back("params", params);
  return Value::object(std::move(members));
}

Value response(const Value& id, const Value& result) {
  return Value::object({{"id", id}, {"jsonrpc", kJsonRpc}, {kResult, result}});
}

Value error_response(const RpcError& error) {
  Value body = Value::object({{kCode, error.code}, {"message", error.message}});
  if (!error.data.is_null()) body = body.with("data", error.data);
  const Value whole = Value::object({{kError, std::move(body)}, {"jsonrpc", kJsonRpc}});
  return error.id.is_null() ? whole : whole.with("id", error.id);
}

}  // namespace ae::mcp
