// Tests of MCP messages: the handshake, revisions, HTTP headers, batches, and resources.
#include "api/mcp_server_fixture_test.h"

#include <fmt/core.h>

#include <utility>

#include "json/json.h"
#include "mcp/protocol/message.h"
#include "mcp/protocol/revision.h"
#include "testing/test.h"

namespace ae::api {
namespace {

AE_TEST("mcp/initialize agrees on the requested revision, or the newest with a handshake") {
  McpServerFixture fixture;
  for (const auto& [requested, agreed] :
       {std::pair{"2024-11-05", "2024-11-05"}, std::pair{"2025-03-26", "2025-03-26"},
        std::pair{"2025-06-18", "2025-06-18"}, std::pair{"2025-11-25", "2025-11-25"},
        std::pair{"2026-07-28", "2025-11-25"}, std::pair{"2099-01-01", "2025-11-25"}}) {
    const Value info =
        fixture.result(mcp::kAssumedRevision, "initialize",
                       R"("protocolVersion":")" + std::string(requested) +
                           R"(","capabilities":{},"clientInfo":{"name":"t","version":"1"})");
    EXPECT_EQ(info.text("protocolVersion"), agreed) << requested;
    EXPECT_EQ(info["serverInfo"].text("version"), "7");
    EXPECT_TRUE(info["capabilities"]["tools"].is_object());
    EXPECT_TRUE(info["capabilities"]["resources"].is_object());
    EXPECT_EQ(info["capabilities"]["tasks"].is_object(), agreed == std::string("2025-11-25"));
  }
  EXPECT_EQ(fixture.error(mcp::kAssumedRevision, "initialize", R"("protocolVersion":1)"),
            mcp::kInvalidParams);
  EXPECT_EQ(fixture.error(mcp::kAssumedRevision, "initialize"), mcp::kInvalidParams);
}

AE_TEST("mcp/a modern client discovers the server without a handshake") {
  McpServerFixture fixture;
  const Value info = fixture.result(kModern, "server/discover");
  EXPECT_EQ(info["supportedVersions"], mcp::all_revisions());
  EXPECT_TRUE(info["capabilities"]["extensions"][mcp::kTasks].is_object());
  EXPECT_EQ(info.text("cacheScope"), "private");
  EXPECT_TRUE(info["ttlMs"].is_integer());
  EXPECT_EQ(info["_meta"][mcp::kServerInfo].text("name"), "aetheris");
  EXPECT_EQ(fixture.error(kLegacy, "server/discover"), mcp::kMethodNotFound);
}

AE_TEST("mcp/each revision rejects the methods that it does not have") {
  McpServerFixture fixture;
  EXPECT_EQ(fixture.result(kLegacy, "ping"), Value::object({}));
  for (const char* method : {"ping", "initialize", "tasks/list", "tasks/result", "logging/setLevel",
                             "prompts/list", "resources/subscribe", "tools/Call", "x"}) {
    EXPECT_EQ(fixture.error(kModern, method), mcp::kMethodNotFound) << method;
  }
  for (const char* method : {"server/discover", "tasks/update", "prompts/list",
                             "completion/complete", "logging/setLevel", "subscriptions/listen"}) {
    EXPECT_EQ(fixture.error(kLegacy, method), mcp::kMethodNotFound) << method;
  }
  EXPECT_EQ(fixture.error(Revision::r2025_06_18, "tasks/get", R"("taskId":"a")"),
            mcp::kMethodNotFound);
}

AE_TEST("mcp/over HTTP an unknown method is 404 in modern revisions, an invalid message 400") {
  McpServerFixture fixture;
  const auto status = [&](std::string body, mcp::RequestHeaders headers) {
    ApiRequest request;
    request.body = std::move(body);
    request.mcp_headers = std::move(headers);
    const auto sent = fixture.send(std::move(request));
    EXPECT_TRUE(sent->answer->rpc);
    return std::pair(sent->answer->status,
                     sent->answer->body["error"]["code"].is_integer()
                         ? static_cast<int>(sent->answer->body["error"]["code"].as_int())
                         : 0);
  };
  const auto message = [](std::string_view method, std::string_view version, std::string params) {
    std::string meta;
    if (!version.empty()) {
      meta = R"("io.modelcontextprotocol/protocolVersion":")" + std::string(version) +
             R"(","io.modelcontextprotocol/clientCapabilities":{})";
    }
    return R"({"jsonrpc":"2.0","id":1,"method":")" + std::string(method) +
           R"(","params":{"_meta":{)" + meta + "}" + (params.empty() ? "" : "," + params) + "}}";
  };
  const mcp::RequestHeaders list{.version = "2026-07-28", .method = "tools/list"};
  using StatusAndCode = std::pair<int, int>;
  EXPECT_EQ(status(message("tools/list", "2026-07-28", ""), list), StatusAndCode(200, 0));
  mcp::RequestHeaders other = list;
  other.method = "no/such";
  EXPECT_EQ(status(message("no/such", "2026-07-28", ""), other),
            StatusAndCode(404, mcp::kMethodNotFound));
  EXPECT_EQ(status(message("no/such", "", ""), {}), StatusAndCode(200, mcp::kMethodNotFound));
  EXPECT_EQ(status(message("tools/list", "", ""), {}), StatusAndCode(200, 0))
      << "no header is 2025-03-26";
  EXPECT_EQ(status(message("tools/list", "", ""), {.version = "2025-06-18"}),
            StatusAndCode(200, 0));
  // Headers and body must agree; otherwise the message is rejected.
  EXPECT_EQ(status(message("tools/list", "2026-07-28", ""), {}),
            StatusAndCode(400, mcp::kHeaderMismatch));
  EXPECT_EQ(status(message("tools/list", "2026-07-28", ""), other),
            StatusAndCode(400, mcp::kHeaderMismatch));
  EXPECT_EQ(status(message("tools/list", "2026-07-28", ""),
                   {.version = "2025-11-25", .method = "tools/list"}),
            StatusAndCode(400, mcp::kHeaderMismatch));
  EXPECT_EQ(status(message("tools/list", "2099-01-01", ""),
                   {.version = "2099-01-01", .method = "tools/list"}),
            StatusAndCode(400, mcp::kUnsupportedVersion));
  EXPECT_EQ(status(message("tools/list", "", ""), {.version = "2099-01-01"}),
            StatusAndCode(400, mcp::kUnsupportedVersion));
  EXPECT_EQ(status(message("tools/list", "", ""), list), StatusAndCode(400, mcp::kInvalidParams));
  const std::string echo = message("tools/call", "2026-07-28", R"("name":"echo","arguments":{})");
  EXPECT_EQ(status(echo, {.version = "2026-07-28", .method = "tools/call"}),
            StatusAndCode(400, mcp::kHeaderMismatch));
  EXPECT_EQ(status(echo, {.version = "2026-07-28", .method = "tools/call", .name = "fails"}),
            StatusAndCode(400, mcp::kHeaderMismatch));
  EXPECT_EQ(fixture.jobs(), 0u) << "rejected requests create no jobs";
  EXPECT_EQ(status(echo, {.version = "2026-07-28", .method = "tools/call", .name = "echo"}),
            StatusAndCode(200, 0));
  EXPECT_EQ(status(message("tasks/get", "2026-07-28", R"("taskId":"a")"),
                   {.version = "2026-07-28", .method = "tasks/get", .name = "a"}),
            StatusAndCode(400, mcp::kMissingCapability));
  for (const char* text :
       {"", "{", "[]", "1", "{}", R"({"jsonrpc":"2.0","id":null,"method":"ping"})"}) {
    EXPECT_EQ(status(text, {}).first, 400) << text;
  }
}

AE_TEST("mcp/notifications and responses are accepted without a body") {
  McpServerFixture fixture;
  for (const char* text :
       {R"({"jsonrpc":"2.0","method":"notifications/initialized"})",
        R"({"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}})",
        R"({"jsonrpc":"2.0","id":3,"result":{}})"}) {
    const auto sent = fixture.send(text, kLegacy);
    EXPECT_EQ(sent->answer->status, 202) << text;
    EXPECT_TRUE(sent->answer->body.is_null());
    EXPECT_TRUE(sent->answer->rpc);
  }
}

AE_TEST("mcp/batches are accepted by the revision that has them and refused by others") {
  McpServerFixture fixture;
  const std::string two =
      R"([{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/x"},)"
      R"({"jsonrpc":"2.0","id":2,"method":"no"},5])";
  const auto sent = fixture.send(two, Revision::r2025_03_26);
  ASSERT_EQ(sent->answer->status, 200);
  ASSERT_EQ(sent->answer->body.size(), 3u) << "a notification has no response";
  EXPECT_EQ(
      fixture.send(R"([{"jsonrpc":"2.0","method":"n"}])", Revision::r2025_03_26)->answer->status,
      202);
  for (const Revision revision : {Revision::r2025_06_18, kLegacy, kModern}) {
    const auto refused = fixture.send(two, revision);
    EXPECT_EQ(refused->answer->status, 400);
    EXPECT_EQ(refused->answer->body["error"]["code"], Value(mcp::kInvalidRequest));
  }
  EXPECT_EQ(fixture.send("[]", Revision::r2025_03_26)->answer->status, 400);
  std::string many = "[0";
  for (std::size_t i = 0; i < mcp::kBatchMax; ++i) many += ",0";
  EXPECT_EQ(fixture.send(many + "]", Revision::r2025_03_26)->answer->status, 400);
}

AE_TEST("mcp/jobs are listed and read as resources, with their trace and events") {
  McpServerFixture fixture;
  const std::string job = job_in(fixture.call(kLegacy, "echo", R"({"n": 1})"));
  for (const Revision revision : kAllRevisions) {
    const Value listed = fixture.result(revision, "resources/list");
    ASSERT_EQ(listed["resources"].size(), 1u);
    const std::string uri(listed["resources"].items()[0].text("uri"));
    EXPECT_EQ(uri, "aetheris://jobs/" + job);
    EXPECT_EQ(fixture.result(revision, "resources/templates/list")["resourceTemplates"].size(), 3u);
    for (const char* part : {"", "/trace", "/events", "/events?after=1"}) {
      const Value read =
          fixture.result(revision, "resources/read", fmt::format(R"("uri":"{}{}")", uri, part));
      ASSERT_EQ(read["contents"].size(), 1u);
      EXPECT_EQ(read["contents"].items()[0].text("uri"), uri + part);
      const auto body = parse_json(read["contents"].items()[0].text("text"), {.depth_max = 100});
      ASSERT_TRUE(body);
      EXPECT_EQ(read["ttlMs"].is_integer(), mcp::is_modern(revision));
    }
  }
  for (const std::string& uri :
       {std::string("aetheris://jobs/missing"), fmt::format("aetheris://jobs/{}/secrets", job),
        fmt::format("aetheris://jobs/{}/", job), fmt::format("aetheris://jobs/{}?after=1", job),
        fmt::format("aetheris://jobs/{}/events?x=1", job), std::string("aetheris://jobs/../keys"),
        std::string("aetheris://keys"), std::string("file:///etc/passwd"), std::string("")}) {
    const std::string params = fmt::format(R"("uri":"{}")", uri);
    EXPECT_EQ(fixture.error(kModern, "resources/read", params), mcp::kInvalidParams) << uri;
    EXPECT_EQ(fixture.error(kLegacy, "resources/read", params), mcp::kResourceNotFound) << uri;
  }
  EXPECT_EQ(fixture.error(kLegacy, "resources/read", R"("uri":5)"), mcp::kInvalidParams);
  EXPECT_EQ(fixture.error(kLegacy, "resources/list", R"("cursor":"missing")"), mcp::kInvalidParams);
  EXPECT_EQ(fixture.error(kLegacy, "resources/list", R"("cursor":7)"), mcp::kInvalidParams);
}

}  // namespace
}  // namespace ae::api
