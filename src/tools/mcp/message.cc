#include "tools/mcp/message.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "json/json.h"
#include "tools/output.h"

namespace ae::tools::mcp {
namespace {

constexpr char kResult[] = "result";
constexpr char kError[] = "error";
constexpr char kCode[] = "code";

std::unexpected<Error> bad(const char* what) {
  return fail(Code::input_invalid, "not a JSON-RPC 2.0 message: {}", what);
}

Result<Message> read_message(const Value& value) {
  if (!value.is_object()) return bad("it is not an object");
  if (value.text("jsonrpc") != "2.0") return bad("`jsonrpc` is not \"2.0\"");
  Message message;
  message.id = value["id"];
  if (!message.id.is_null() && !message.id.is_string() && !message.id.is_integer()) {
    return bad("`id` is neither a string nor an integer");
  }
  if (const Value* method = value.find("method")) {
    if (!method->is_string()) return bad("`method` is not a string");
    message.kind = message.id.is_null() ? Message::Kind::notification : Message::Kind::request;
    message.method = method->as_string();
    message.body = value["params"];
    return message;
  }
  const Value* result = value.find(kResult);
  const Value& error = value[kError];
  if ((result != nullptr) == error.is_object())
    return bad("neither a method, a result nor an error");
  if (result != nullptr) {
    message.kind = Message::Kind::result;
    message.body = *result;
    return message;
  }
  message.kind = Message::Kind::error;
  message.code = error[kCode].is_integer() ? error[kCode].as_int() : 0;
  message.text = error.text("message");
  message.body = error["data"];
  return message;
}

Value with_params(std::vector<Member> members, Value params) {
  if (!params.is_null()) members.emplace_back("params", std::move(params));
  return Value::object(std::move(members));
}

}  // namespace

Result<std::vector<Message>> read_messages(std::string_view text) {
  // Schemas contain such integers, and they are not used for arithmetic.
  AE_ASSIGN(const Value value,
            parse_json(text, {.bytes_max = kMessageMax, .big_integers_as_strings = true}));
  std::vector<Message> messages;
  if (!value.is_array()) {
    AE_ASSIGN(Message message, read_message(value));
    messages.push_back(std::move(message));
    return messages;
  }
  if (value.size() == 0 || value.size() > kBatchMax) return bad("a batch has 1 to 1,000 of them");
  for (const Value& one : value.items()) {
    AE_ASSIGN(Message message, read_message(one));
    messages.push_back(std::move(message));
  }
  return messages;
}

std::vector<std::int64_t> extract_response_ids(std::string_view text) {
  std::vector<std::int64_t> ids;
  const auto value = parse_json(text, {.bytes_max = kMessageMax, .big_integers_as_strings = true});
  const auto add = [&](const Value& one) {
    if (one.is_object() && one["id"].is_integer() && one.find("method") == nullptr) {
      ids.push_back(one["id"].as_int());
    }
  };
  if (value && value->is_array()) std::ranges::for_each(value->items(), add);
  if (value) add(*value);
  return ids;
}

std::string describe_unreadable(const Error& error, std::string_view text) {
  const Value shown = invalid_output("", text, 0);
  return fmt::format("the server's answer cannot be read ({}): {}", error.message,
                     shown.text("head"));
}

Value request(std::int64_t id, std::string_view method, Value params) {
  return with_params({{"jsonrpc", "2.0"}, {"id", id}, {"method", method}}, std::move(params));
}

Value notification(std::string_view method, Value params) {
  return with_params({{"jsonrpc", "2.0"}, {"method", method}}, std::move(params));
}

Value make_response(const Value& id, Value result) {
  return Value::object({{"jsonrpc", "2.0"}, {"id", id}, {kResult, std::move(result)}});
}

Value make_error_response(const Value& id, std::int64_t code, std::string_view text) {
  return Value::object({{"jsonrpc", "2.0"},
                        {"id", id},
                        {kError, Value::object({{kCode, code}, {"message", text}})}});
}

}  // namespace ae::tools::mcp
