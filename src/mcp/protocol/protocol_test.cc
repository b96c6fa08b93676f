// MCP protocol: revisions, messages and header values.
#include <fmt/core.h>

#include <set>
#include <string>

#include "base/utf8.h"
#include "mcp/protocol/header.h"
#include "mcp/protocol/message.h"
#include "mcp/protocol/revision.h"
#include "testing/test.h"

namespace ae::mcp {
namespace {

std::expected<Message, RpcError> read(std::string_view text) {
  const auto value = parse_message(text);
  if (!value) return std::unexpected(value.error());
  return read_message(*value);
}

// The error code of a rejected message; 0: accepted.
int code_of(std::string_view text) {
  const auto message = read(text);
  return message ? 0 : message.error().code;
}

AE_TEST("revision/revisions round-trip through text and are listed newest first") {
  const Value all = all_revisions();
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all.items().front(), Value("2026-07-28"));
  for (const Value& text : all.items()) {
    const auto revision = revision_from_text(text.as_string());
    ASSERT_TRUE(revision);
    EXPECT_EQ(to_text(*revision), text.as_string());
    EXPECT_EQ(is_modern(*revision), text == Value("2026-07-28"));
  }
  for (const char* text : {"", "2024-10-07", "2026-07-28 ", "2099-01-01", "latest"}) {
    EXPECT_FALSE(revision_from_text(text)) << text;
  }
}

AE_TEST("message/requests, notifications, responses and errors are parsed") {
  const auto request = read(R"({"jsonrpc":"2.0","id":7,"method":"a/b","params":{"x":1}})");
  ASSERT_TRUE(request);
  EXPECT_EQ(request->kind, Message::Kind::request);
  EXPECT_EQ(request->id, Value(7));
  EXPECT_EQ(request->method, "a/b");
  EXPECT_EQ(request->params["x"], Value(1));
  const auto note = read(R"({"jsonrpc":"2.0","method":"n"})");
  ASSERT_TRUE(note);
  EXPECT_EQ(note->kind, Message::Kind::notification);
  const auto response = read(R"({"jsonrpc":"2.0","id":"a","result":{}})");
  ASSERT_TRUE(response);
  EXPECT_EQ(response->kind, Message::Kind::response);
  EXPECT_EQ(response->id, Value("a"));
  const auto error = read(R"({"jsonrpc":"2.0","error":{"code":-32700,"message":"x"}})");
  ASSERT_TRUE(error);
  EXPECT_EQ(error->error["code"], Value(-32700));
}

AE_TEST("message/an invalid message is rejected with its error code") {
  for (const char* text :
       {"", "{", "nul", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\"} x", "\xEF\xBB\xBF{}",
        R"({"jsonrpc":"2.0","id":1,"id":1,"method":"a"})", "{\"jsonrpc\":\"\xC3\x28\"}",
        R"({"jsonrpc":"2.0","id":9007199254740993,"method":"a"})", "[1,]"}) {
    EXPECT_EQ(code_of(text), kParseError) << text;
  }
  EXPECT_EQ(code_of(std::string(65, '[') + std::string(65, ']')), kParseError);
  EXPECT_EQ(code_of(std::string(kMessageMax + 1, ' ')), kParseError);
  for (const char* text :
       {"1", "\"a\"", "null", "[]", "{}", R"({"jsonrpc":"1.0","id":1,"method":"a"})",
        R"({"jsonrpc":2.0,"id":1,"method":"a"})", R"({"id":1,"method":"a"})",
        R"({"jsonrpc":"2.0","id":null,"method":"a"})", R"({"jsonrpc":"2.0","id":1.5,"method":"a"})",
        R"({"jsonrpc":"2.0","id":[1],"method":"a"})", R"({"jsonrpc":"2.0","id":1})",
        R"({"jsonrpc":"2.0","id":1,"method":1})", R"({"jsonrpc":"2.0","id":1,"method":""})",
        R"({"jsonrpc":"2.0","id":1,"method":"a","result":{}})",
        R"({"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}})",
        R"({"jsonrpc":"2.0","result":{}})", R"({"jsonrpc":"2.0","id":1,"error":{}})"}) {
    EXPECT_EQ(code_of(text), kInvalidRequest) << text;
  }
  EXPECT_EQ(code_of(R"({"jsonrpc":"2.0","id":1,"method":"a","params":[1]})"), kInvalidParams);
  EXPECT_EQ(code_of(R"({"jsonrpc":"2.0","id":1,"method":"a","params":null})"), kInvalidParams);
}

AE_TEST("message/an error response has the request id if it could be read") {
  const auto invalid = read(R"({"jsonrpc":"2.0","id":"k","method":5})");
  ASSERT_FALSE(invalid);
  EXPECT_EQ(invalid.error().id, Value("k"));
  EXPECT_EQ(error_response(invalid.error())["id"], Value("k"));
  const Value unknown = error_response({.code = kParseError, .message = "no"});
  EXPECT_EQ(unknown.find("id"), nullptr);
  EXPECT_EQ(unknown["error"].find("data"), nullptr);
}

AE_TEST("message/messages round-trip") {
  const Value params = Value::object({{"x", Value::array({Value(1), Value("two")})}});
  const auto again = read_message(request("id", "m", params));
  ASSERT_TRUE(again);
  EXPECT_EQ(again->params, params);
  EXPECT_EQ(read_message(notification("n", {}))->kind, Message::Kind::notification);
  EXPECT_EQ(read_message(response(3, params))->result, params);
}

AE_TEST("message/clip_text never splits a character") {
  EXPECT_EQ(clip_text("short"), "short");
  EXPECT_EQ(clip_text(std::string(79, 'x') + "é"), std::string(79, 'x'));
  EXPECT_EQ(clip_text(std::string(78, 'x') + "é"), std::string(78, 'x') + "é");
  EXPECT_EQ(clip_text("a\xFF\xC3"), "a??");
}

AE_TEST("header/a value that is not plain round-trips as base64") {
  const std::pair<std::string, std::string> kCases[] = {
      {"us-west1", "us-west1"},
      {"Zürich", "=?base64?WsO8cmljaA==?="},
      {"tab\tinside", "tab\tinside"},
      {"Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="},
      {" padded ", "=?base64?IHBhZGRlZCA=?="},
      {"line1\nline2", "=?base64?bGluZTEKbGluZTI=?="},
      {"=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="},
      {"",
       "=?base64?"
       "?="}};
  for (const auto& [text, value] : kCases) {
    EXPECT_EQ(encode_header_value(text), value);
    EXPECT_EQ(decode_header_value(value), text);
  }
  for (const char* value :
       {"=?base64?a?=", "=?base64?ab=c?=", "=?base64?a===?=", "=?base64?ab==?=x\n",
        "=?base64?!!!!?=", "=?base64?/w==?=", "=?base64?YR==?=", "a\r\nb", " a"}) {
    EXPECT_FALSE(decode_header_value(value)) << value;
  }
}

AE_TEST("message/a message of a server is read leniently") {
  const auto read_server = [](std::string_view text) {
    const auto value = parse_message(text, Sender::server);
    return value ? read_message(*value, Sender::server) : std::unexpected(value.error());
  };
  const auto result = read_server(R"({"jsonrpc":"2.0","id":1,"result":null,"error":null})");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->kind, Message::Kind::response);
  EXPECT_TRUE(result->error.is_null());
  const auto error = read_server(R"({"jsonrpc":"2.0","id":null,"error":{"message":"no"}})");
  ASSERT_TRUE(error);
  EXPECT_TRUE(error->id.is_null());
  EXPECT_EQ(error->error.text("message"), "no");
  const auto note = read_server(R"({"jsonrpc":"2.0","id":null,"method":"n","params":[1]})");
  ASSERT_TRUE(note);
  EXPECT_EQ(note->kind, Message::Kind::notification);
  EXPECT_EQ(note->params.size(), 1u);
  const auto large = read_server(R"({"jsonrpc":"2.0","id":1,"result":9007199254740993})");
  ASSERT_TRUE(large);
  EXPECT_EQ(large->result, Value("9007199254740993"));
  for (const char* text :
       {R"({"jsonrpc":"2.0","id":{},"method":"m"})", R"({"jsonrpc":"2.0","id":1,"error":1})",
        R"({"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":""}})"}) {
    EXPECT_FALSE(read_server(text)) << text;
  }
}

}  // namespace
}  // namespace ae::mcp
