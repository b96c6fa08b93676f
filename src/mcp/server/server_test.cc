// MCP server: headers, revisions and lines of its clients.
#include <fmt/core.h>

#include <string>
#include <vector>

#include "base/utf8.h"
#include "mcp/protocol/header.h"
#include "mcp/protocol/message.h"
#include "mcp/protocol/revision.h"
#include "mcp/server/line_reader.h"
#include "mcp/server/request_headers.h"
#include "mcp/server/request_revision.h"
#include "testing/test.h"

namespace ae::mcp {
namespace {

Message tool_call(std::string_view name) {
  return *read_message(request(
      1, "tools/call",
      Value::object({{"name", name},
                     {"_meta", Value::object({{std::string(kProtocolVersion), "2026-07-28"}})}})));
}

AE_TEST("header/a request that does not match its headers is rejected") {
  const RequestHeaders valid{.version = "2026-07-28", .method = "tools/call", .name = "a.b"};
  EXPECT_TRUE(check_headers(valid, tool_call("a.b")));
  const auto code_with = [&](auto change) {
    RequestHeaders headers = valid;
    change(headers);
    const auto checked = check_headers(headers, tool_call("a.b"));
    return checked ? 0 : checked.error().code;
  };
  EXPECT_EQ(code_with([](RequestHeaders& h) { h.version.reset(); }), kHeaderMismatch);
  EXPECT_EQ(code_with([](RequestHeaders& h) { h.version = "2025-11-25"; }), kHeaderMismatch);
  EXPECT_EQ(code_with([](RequestHeaders& h) { h.method.reset(); }), kHeaderMismatch);
  EXPECT_EQ(code_with([](RequestHeaders& h) { h.method = "tools/list"; }), kHeaderMismatch);
  EXPECT_EQ(code_with([](RequestHeaders& h) { h.method = "Tools/call"; }), kHeaderMismatch);
  EXPECT_EQ(code_with([](RequestHeaders& h) { h.name.reset(); }), kHeaderMismatch);
  EXPECT_EQ(code_with([](RequestHeaders& h) { h.name = "a.c"; }), kHeaderMismatch);
  EXPECT_EQ(code_with([](RequestHeaders& h) { h.name = "=?base64?###?="; }), kHeaderMismatch);
  EXPECT_EQ(code_with([](RequestHeaders& h) { h.is_duplicated = true; }), kHeaderMismatch);
  EXPECT_EQ(code_with([](RequestHeaders& h) { h.name = "=?base64?YS5i?="; }), 0);
  RequestHeaders bytes = valid;
  bytes.name = "\xFF\xFE";
  EXPECT_TRUE(is_utf8(check_headers(bytes, tool_call("a.b")).error().message));
  RequestHeaders other = valid;
  other.name = encode_header_value("größe");
  EXPECT_TRUE(check_headers(other, tool_call("größe")));
}

AE_TEST("request_revision/a request uses the revision of its _meta, its header or its session") {
  const auto revision = [](const Message& message, std::optional<RequestHeaders> headers,
                           std::optional<Revision> negotiated = {}) {
    return revision_of(message, {.headers = headers, .negotiated = negotiated});
  };
  const Message ping = *read_message(request(1, "ping", {}));
  EXPECT_EQ(revision(ping, {}), kAssumedRevision);
  EXPECT_EQ(revision(ping, {}, Revision::r2025_11_25), Revision::r2025_11_25);
  EXPECT_EQ(revision(ping, RequestHeaders{.version = "2025-06-18"}), Revision::r2025_06_18);
  EXPECT_EQ(revision(ping, RequestHeaders{.version = "2099-01-01"}).error().code,
            kUnsupportedVersion);
  EXPECT_EQ(revision(ping, RequestHeaders{.version = "2026-07-28"}).error().code, kInvalidParams);
  const Message initialize = *read_message(request(1, "initialize", {}));
  EXPECT_EQ(revision(initialize, RequestHeaders{.version = "2026-07-28"}), kNewestLegacy);
  EXPECT_EQ(revision(tool_call("a"), {}).error().code, kInvalidParams) << "no capabilities";
  EXPECT_EQ(revision(tool_call("a"), RequestHeaders{}).error().code, kHeaderMismatch);
  Message call = tool_call("a");
  call.params =
      call.params.with("_meta", call.params["_meta"].with(kClientCapabilities, Value::object({})));
  EXPECT_EQ(revision(call, {}), kNewest);
  EXPECT_EQ(
      revision(call, RequestHeaders{.version = "2026-07-28", .method = "tools/call", .name = "a"}),
      kNewest);
}

AE_TEST("request_revision/only the first two revisions have batches") {
  const auto revision = [](std::optional<RequestHeaders> headers,
                           std::optional<Revision> negotiated) {
    return revision_of_batch({.headers = headers, .negotiated = negotiated});
  };
  EXPECT_EQ(revision({}, {}), std::nullopt);
  EXPECT_EQ(revision({}, Revision::r2024_11_05), Revision::r2024_11_05);
  EXPECT_EQ(revision({}, Revision::r2025_06_18), std::nullopt);
  EXPECT_EQ(revision(RequestHeaders{}, {}), kAssumedRevision);
  EXPECT_EQ(revision(RequestHeaders{.version = "2025-06-18"}, {}), std::nullopt);
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
