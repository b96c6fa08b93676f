// MCP protocol: messages, headers and lines.
#include <fmt/core.h>

#include <set>
#include <string>

#include "base/utf8.h"
#include "mcp/header.h"
#include "mcp/line_reader.h"
#include "mcp/message.h"
#include "mcp/revision.h"
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

Message tool_call(std::string_view name) {
  return *read_message(request(
      1, "tools/call",
      Value::object({{"name", name},
                     {"_meta", Value::object({{std::string(kProtocolVersion), "2026-07-28"}})}})));
}

AE_TEST("header/a request that does not match its headers is rejected") {
  const Headers valid{.version = "2026-07-28", .method = "tools/call", .name = "a.b"};
  EXPECT_TRUE(check_headers(valid, tool_call("a.b")));
  const auto code_with = [&](auto change) {
    Headers headers = valid;
    change(headers);
    const auto checked = check_headers(headers, tool_call("a.b"));
    return checked ? 0 : checked.error().code;
  };
  EXPECT_EQ(code_with([](Headers& h) { h.version.reset(); }), kHeaderMismatch);
  EXPECT_EQ(code_with([](Headers& h) { h.version = "2025-11-25"; }), kHeaderMismatch);
  EXPECT_EQ(code_with([](Headers& h) { h.method.reset(); }), kHeaderMismatch);
  EXPECT_EQ(code_with([](Headers& h) { h.method = "tools/list"; }), kHeaderMismatch);
  EXPECT_EQ(code_with([](Headers& h) { h.method = "Tools/call"; }), kHeaderMismatch);
  EXPECT_EQ(code_with([](Headers& h) { h.name.reset(); }), kHeaderMismatch);
  EXPECT_EQ(code_with([](Headers& h) { h.name = "a.c"; }), kHeaderMismatch);
  EXPECT_EQ(code_with([](Headers& h) { h.name = "=?base64?###?="; }), kHeaderMismatch);
  EXPECT_EQ(code_with([](Headers& h) { h.is_duplicated = true; }), kHeaderMismatch);
  EXPECT_EQ(code_with([](Headers& h) { h.name = "=?base64?YS5i?="; }), 0);
  Headers bytes = valid;
  bytes.name = "\xFF\xFE";
  EXPECT_TRUE(is_utf8(check_headers(bytes, tool_call("a.b")).error().message));
  Headers other = valid;
  other.name = encode_header_value("größe");
  EXPECT_TRUE(check_headers(other, tool_call("größe")));
}

AE_TEST("line_reader/lines are complete regardless of how bytes are split") {
  LineReader lines;
  std::vector<std::string> seen;
  const std::string text = "{\"a\":1}\r\n\n  \n{\"b\":2}\n{\"c\":3}";
  for (const char c : text) {
    for (const Line& line : lines.feed(std::string_view(&c, 1))) seen.push_back(line.text);
  }
  for (const Line& line : lines.end()) seen.push_back(line.text);
  EXPECT_EQ(seen, (std::vector<std::string>{"{\"a\":1}", "{\"b\":2}", "{\"c\":3}"}));
  EXPECT_TRUE(lines.end().empty());
}

AE_TEST("line_reader/a too long line is reported once, and the next line is read") {
  LineReader lines;
  const std::string much(1u << 20, 'x');
  std::size_t reported = 0;
  for (int i = 0; i < 9; ++i) reported += lines.feed(much).size();
  EXPECT_EQ(reported, 0u);
  const auto after = lines.feed("\n{}\n");
  ASSERT_EQ(after.size(), 2u);
  EXPECT_TRUE(after[0].too_long);
  EXPECT_TRUE(after[0].text.empty());
  EXPECT_EQ(after[1].text, "{}");
  const std::string most(kMessageMax, ' ');
  EXPECT_FALSE(lines.feed(fmt::format("x{}\n", most.substr(1))).front().too_long)
      << "exactly the limit";
  EXPECT_TRUE(lines.feed(fmt::format("xyz{}\n", most.substr(1))).front().too_long);
}

}  // namespace
}  // namespace ae::mcp
