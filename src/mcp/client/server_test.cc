// Server with a transport that answers as the test specifies.
#include "mcp/client/server.h"

#include <map>
#include <optional>

#include "json/json.h"
#include "mcp/client/listing.h"
#include "mcp/client/mcp_fixture_test.h"
#include "mcp/client/mcp_tool.h"
#include "testing/permit.h"
#include "testing/test.h"

namespace ae::mcp::client {
namespace {

AE_TEST("mcp/session/a modern server gets only discover, list and call") {
  McpFixture fixture(modern_server);
  fixture.call();
  EXPECT_EQ(fixture.only_outcome().result, Value("done"));
  EXPECT_TRUE((fixture.script.methods ==
               std::vector<std::string>{"server/discover", "tools/list", "tools/call"}));
  for (const OutgoingMessage& outgoing : fixture.script.sent) {
    const Value& meta = outgoing.message["params"]["_meta"];
    EXPECT_EQ(meta.text("io.modelcontextprotocol/protocolVersion"), "2026-07-28");
    EXPECT_TRUE(meta["io.modelcontextprotocol/clientCapabilities"].is_object());
    EXPECT_TRUE(outgoing.modern);
  }
}

AE_TEST("mcp/session/a legacy server is initialized after any response to server/discover") {
  for (const Reply& first :
       {error(-32601), error(-32600), error(-32602), error(0), result("{}"),
        Reply{.kind = Kind::refused, .status = 400}, Reply{.kind = Kind::refused, .status = 404}}) {
    McpFixture fixture([&](const OutgoingMessage& outgoing) -> std::optional<Reply> {
      return outgoing.method == "server/discover" ? first : legacy_server(outgoing);
    });
    fixture.call();
    EXPECT_EQ(fixture.only_outcome().result, Value("done"));
    EXPECT_TRUE((fixture.script.methods == std::vector<std::string>{"server/discover", "initialize",
                                                                    "notifications/initialized",
                                                                    "tools/list", "tools/call"}));
    EXPECT_TRUE(fixture.script.last("tools/list").message["params"].find("_meta") == nullptr);
    EXPECT_FALSE(fixture.script.last("initialize").modern);
  }
}

AE_TEST("mcp/session/a program that does not answer server/discover is initialized") {
  McpFixture fixture([](const OutgoingMessage& outgoing) -> std::optional<Reply> {
    if (outgoing.method == "server/discover") return std::nullopt;
    return legacy_server(outgoing);
  });
  fixture.call();
  EXPECT_TRUE(fixture.outcomes.empty());
  fixture.script.loop.fire(kProbeTimeout);
  EXPECT_EQ(fixture.only_outcome().result, Value("done"));
}

AE_TEST("mcp/session/a silent program fails with the name of the missing response") {
  McpFixture fixture([](const OutgoingMessage&) -> std::optional<Reply> { return std::nullopt; });
  std::string why;
  fixture.server->list(
      [&](const Result<Session::ToolList>& listed) { why = listed.error().message; });
  fixture.script.loop.run();
  fixture.script.loop.fire(kProbeTimeout);
  fixture.script.loop.fire(kProbeTimeout + kRequestTimeout);
  EXPECT_NE(why.find("no answer to initialize within 30s"), std::string::npos) << why;
}

AE_TEST("mcp/session/a program that exits on server/discover is restarted and initialized") {
  McpFixture fixture([](const OutgoingMessage& outgoing) -> std::optional<Reply> {
    if (outgoing.method == "server/discover") return std::nullopt;
    return legacy_server(outgoing);
  });
  fixture.call();
  fixture.script.lose_connection("it crashed");
  fixture.script.loop.run();
  EXPECT_EQ(fixture.only_outcome().result, Value("done"));
  EXPECT_EQ(fixture.script.opened, 2);
  EXPECT_EQ(fixture.script.count("server/discover"), 1u);
}

AE_TEST("mcp/session/an idle server is stopped after its idle timeout, never during a call") {
  constexpr Duration kIdle = 500ms;
  bool silent = false;
  McpFixture fixture([&](const OutgoingMessage& outgoing) -> std::optional<Reply> {
    if (silent && outgoing.method == "tools/call") return std::nullopt;
    return modern_server(outgoing);
  });
  fixture.server->set_idle_timeout(kIdle);
  fixture.script.loop.fire(kIdle);
  EXPECT_EQ(fixture.script.opened, 0);
  fixture.call(1);
  EXPECT_NE(fixture.script.callbacks, nullptr) << "the idle timeout has not passed";
  fixture.script.loop.fire(kIdle);
  EXPECT_EQ(fixture.script.callbacks, nullptr) << "the connection is closed";
  EXPECT_EQ(fixture.script.stops, 1);
  silent = true;
  fixture.call(2);
  EXPECT_EQ(fixture.script.opened, 2);
  fixture.script.loop.fire(kIdle);
  EXPECT_NE(fixture.script.callbacks, nullptr);
  ASSERT_EQ(fixture.script.open.size(), 1u);
  auto reply = std::move(fixture.script.open.begin()->second);
  fixture.script.open.clear();
  reply(result(kDone));
  fixture.script.loop.run();
  ASSERT_EQ(fixture.outcomes.size(), 2u);
  EXPECT_EQ(fixture.outcomes[1].result, Value("done"));
  EXPECT_EQ(fixture.script.count("tools/call"), 2u);
  fixture.script.loop.fire(kIdle);
  EXPECT_EQ(fixture.script.stops, 2);
  // A cancelled call is over, even if the server never answers it.
  fixture.call(3);
  fixture.script.loop.fire(1s);
  ASSERT_EQ(fixture.outcomes.size(), 3u);
  EXPECT_EQ(fixture.outcomes[2].kind, OutcomeKind::timeout);
  fixture.script.loop.fire(kIdle);
  EXPECT_EQ(fixture.script.stops, 3);
  // Without an idle timeout it stays connected.
  silent = false;
  fixture.call(4);
  fixture.server->set_idle_timeout(std::nullopt);
  fixture.script.loop.fire(kIdle);
  EXPECT_NE(fixture.script.callbacks, nullptr);
  fixture.server->set_idle_timeout(kIdle);
  fixture.script.loop.fire(kIdle);
  EXPECT_EQ(fixture.script.stops, 4);
}

AE_TEST("mcp/session/modern error codes decide the revision") {
  for (const auto& [data, is_legacy] : std::map<std::string, bool>{
           {R"({"supported":["2025-11-25"]})", true}, {R"({"supported":["2099-01-01"]})", false}}) {
    McpFixture fixture([&](const OutgoingMessage& outgoing) -> std::optional<Reply> {
      return outgoing.method == "server/discover" ? error(-32022, data, 400)
                                                  : legacy_server(outgoing);
    });
    fixture.call();
    EXPECT_EQ(fixture.script.count("initialize"), is_legacy ? 1u : 0u);
    EXPECT_EQ(fixture.only_outcome().error_code, is_legacy ? "" : "connect");
  }
  McpFixture fixture([](const OutgoingMessage& outgoing) -> std::optional<Reply> {
    return outgoing.method == "server/discover" ? error(-32021, "{}", 400)
                                                : legacy_server(outgoing);
  });
  fixture.call();
  EXPECT_EQ(fixture.only_outcome().error_code, "connect");
  EXPECT_TRUE(fixture.only_outcome().definite);
}

AE_TEST("mcp/session/a server that rejects a revision it offers is retried once") {
  for (const bool accepts_retry : {true, false}) {
    int probes = 0;
    McpFixture fixture([&](const OutgoingMessage& outgoing) -> std::optional<Reply> {
      const bool rejects =
          outgoing.method == "server/discover" && (++probes == 1 || !accepts_retry);
      return rejects ? error(-32022, R"({"supported":["2026-07-28"]})", 400)
                     : modern_server(outgoing);
    });
    fixture.script.stdio = false;
    fixture.call();
    EXPECT_EQ(probes, 2);
    EXPECT_EQ(fixture.script.count("initialize"), 0u);
    EXPECT_EQ(fixture.only_outcome().error_code, accepts_retry ? "" : "connect");
  }
}

AE_TEST("mcp/session/over HTTP a tool with an invalid x-mcp-header is ignored") {
  const Value bad = json(
      R"({"name":"t","inputSchema":{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}})");
  for (const bool stdio : {false, true}) {
    McpFixture fixture([&](const OutgoingMessage& outgoing) -> std::optional<Reply> {
      if (outgoing.method != "tools/list") return modern_server(outgoing);
      return Reply{.kind = Kind::result, .value = Value::object({{"tools", Value::array({bad})}})};
    });
    fixture.script.stdio = stdio;
    fixture.call(1, std::string(pin_tool(bad)->text("digest")));
    EXPECT_EQ(fixture.script.count("tools/call"), stdio ? 1u : 0u);
    EXPECT_EQ(fixture.only_outcome().error_code, stdio ? "" : "tool_changed");
  }
}

AE_TEST("mcp/session/an unsupported revision is rejected") {
  McpFixture fixture([](const OutgoingMessage& outgoing) -> std::optional<Reply> {
    if (outgoing.method == "initialize") return result(R"({"protocolVersion":"1999-01-01"})");
    return legacy_server(outgoing);
  });
  fixture.call();
  EXPECT_EQ(fixture.only_outcome().error_code, "connect");
  EXPECT_EQ(fixture.script.count("tools/call"), 0u);
}

AE_TEST("mcp/session/tools are listed by page, and a repeated cursor is an error") {
  McpFixture fixture([](const OutgoingMessage& outgoing) -> std::optional<Reply> {
    if (outgoing.method != "tools/list") return legacy_server(outgoing);
    const Value& cursor = outgoing.message["params"]["cursor"];
    if (cursor.is_null()) return result(R"({"tools":[],"nextCursor":"2"})");
    return tools();
  });
  fixture.call();
  EXPECT_EQ(fixture.only_outcome().result, Value("done"));
  EXPECT_EQ(fixture.script.count("tools/list"), 2u);
  McpFixture round([](const OutgoingMessage& outgoing) -> std::optional<Reply> {
    if (outgoing.method != "tools/list") return legacy_server(outgoing);
    return result(R"({"tools":[],"nextCursor":"2"})");
  });
  round.call();
  EXPECT_EQ(round.only_outcome().error_code, "connect");
}

AE_TEST("mcp/call/a call sends its keys in _meta, beside the arguments") {
  McpFixture fixture(legacy_server);
  fixture.call();
  const Value& params = fixture.script.last("tools/call").message["params"];
  EXPECT_EQ(canonical(params["arguments"]), R"({"a":1})");
  const Value& meta = params["_meta"];
  EXPECT_EQ(meta.text("aetheris/idempotency-key"), "aetheris:j:s:0");
  EXPECT_EQ(meta.text("aetheris/execution-key"), "k");
  EXPECT_EQ(meta.text("aetheris/invocation-id"), "i");
  EXPECT_EQ(meta["aetheris/try"], Value(1));
  EXPECT_EQ(meta.text("traceparent"), "00-trace");
}

AE_TEST("mcp/call/preview() shows the call as it would be sent, without starting the server") {
  McpFixture fixture(modern_server);
  const Value definition = Value::object(
      {{"server", "shop"}, {"tool", "t"}, {"digest", pin_tool(kTool)->text("digest")}});
  auto tool = McpTool::make(definition, fixture.server);
  ASSERT_TRUE(tool) << tool.error().message;
  const auto make_call = [] {
    tools::Call call;
    call.tool = "shop.t";
    call.args = Value::object({{"sum", 5}, {"who", "secret:TOKEN"}});
    call.key = IdempotencyKey{"k"};
    call.invocation = InvocationId{"i"};
    call.timeout = call.send_within = 20s;
    return call;
  };
  const auto shown = (*tool)->preview(make_call());
  ASSERT_TRUE(shown) << shown.error().message;
  EXPECT_EQ(canonical(*shown),
            R"({"arguments":{"sum":5,"who":"secret:TOKEN"},"server":"shop","tool":"t"})");
  fixture.script.loop.run();
  EXPECT_EQ(fixture.script.opened, 0) << "a preview starts no server";
  tools::Call real = make_call();
  tools::Permit permit = testing::PermitForTests::make(real.invocation, 1);
  (*tool)->perform(std::move(permit), std::move(real),
                   [&](Outcome outcome) { fixture.outcomes.push_back(std::move(outcome)); });
  fixture.script.loop.run();
  EXPECT_EQ(fixture.only_outcome().kind, OutcomeKind::success);
  const Value& sent = fixture.script.last("tools/call").message["params"];
  EXPECT_EQ(sent["name"], (*shown)["tool"]);
  EXPECT_EQ(sent["arguments"], (*shown)["arguments"])
      << "a secret reference in an argument is not resolved";
}

AE_TEST("mcp/call/a tool that differs from its pinned digest is not called") {
  McpFixture fixture(legacy_server);
  fixture.call(1, "another");
  EXPECT_EQ(fixture.only_outcome().error_code, "tool_changed");
  EXPECT_TRUE(fixture.only_outcome().definite);
  EXPECT_EQ(fixture.script.count("tools/call"), 0u);
  // The operator is warned too, once.
  ASSERT_EQ(fixture.warnings.size(), 1u);
  EXPECT_TRUE(fixture.warnings[0].starts_with("j: s.t is not called: its MCP server describes"));
  EXPECT_NE(fixture.warnings[0].find("aetheris check FILE --diff"), std::string::npos);
  fixture.call(2, "another");
  EXPECT_EQ(fixture.warnings.size(), 1u);
}

AE_TEST("mcp/call/after tools/list_changed the tools are listed before the next call") {
  bool changed = false;
  McpFixture fixture([&](const OutgoingMessage& outgoing) -> std::optional<Reply> {
    if (outgoing.method != "tools/list" || !changed) return legacy_server(outgoing);
    return Reply{
        .kind = Kind::result,
        .value = Value::object({{"tools", Value::array({kTool.with("description", "evil")})}})};
  });
  fixture.call(1);
  changed = true;
  fixture.script.callbacks->on_message({.message = {.kind = Message::Kind::notification,
                                                    .method = "notifications/tools/list_changed"}});
  fixture.call(2);
  ASSERT_EQ(fixture.outcomes.size(), 2u);
  EXPECT_EQ(fixture.outcomes[1].error_code, "tool_changed");
  EXPECT_EQ(fixture.script.count("tools/call"), 1u);
}

AE_TEST("mcp/call/a call is unknown if its server dies, the next call starts the server again") {
  bool dies = true;
  McpFixture fixture([&](const OutgoingMessage& outgoing) -> std::optional<Reply> {
    if (outgoing.method == "tools/call" && dies) return std::nullopt;
    return legacy_server(outgoing);
  });
  fixture.call(1);
  EXPECT_TRUE(fixture.outcomes.empty());
  fixture.script.lose_connection("killed");
  fixture.script.loop.run();
  EXPECT_TRUE(fixture.only_outcome().kind == OutcomeKind::unknown);
  EXPECT_EQ(fixture.only_outcome().error_code, "reset");
  EXPECT_EQ(fixture.script.opened, 1);
  dies = false;
  fixture.call(2);
  EXPECT_EQ(fixture.script.opened, 1);  // not at once
  fixture.script.loop.fire(kBackoffMin);
  ASSERT_EQ(fixture.outcomes.size(), 2u);
  EXPECT_EQ(fixture.outcomes[1].result, Value("done"));
  EXPECT_EQ(fixture.script.count("tools/call"), 2u);
}

AE_TEST("mcp/call/a timeout cancels the call at the server, an abandoned call is unknown") {
  McpFixture fixture([](const OutgoingMessage& outgoing) -> std::optional<Reply> {
    if (outgoing.method == "tools/call") return std::nullopt;
    return legacy_server(outgoing);
  });
  fixture.call(1);
  fixture.script.loop.fire(1s);
  EXPECT_TRUE(fixture.only_outcome().kind == OutcomeKind::timeout);
  EXPECT_EQ(fixture.script.last("notifications/cancelled").message["params"]["requestId"],
            fixture.script.last("tools/call").message["id"]);
  fixture.call(2);
  fixture.server->abandon(InvocationId{"i"}, 2);
  fixture.script.loop.run();
  ASSERT_EQ(fixture.outcomes.size(), 2u);
  EXPECT_TRUE(fixture.outcomes[1].kind == OutcomeKind::unknown);
  EXPECT_EQ(fixture.outcomes[1].error_code, "abandoned");
}

AE_TEST("mcp/call/a call abandoned before it was sent is not_sent") {
  McpFixture fixture([](const OutgoingMessage&) -> std::optional<Reply> { return std::nullopt; });
  fixture.call(1);
  fixture.server->abandon(InvocationId{"i"}, 1);
  fixture.script.loop.run();
  EXPECT_EQ(fixture.only_outcome().error_code, "not_sent");
  EXPECT_TRUE(fixture.only_outcome().definite);
}

AE_TEST("mcp/call/a call to a server that is not ready in time is not_sent") {
  McpFixture fixture([](const OutgoingMessage&) -> std::optional<Reply> { return std::nullopt; });
  fixture.call(1);
  fixture.script.loop.fire(20s);
  EXPECT_EQ(fixture.only_outcome().error_code, "not_sent");
}

AE_TEST("mcp/call/an expired session is replaced, and its call is not_sent") {
  bool expired = false;
  McpFixture fixture([&](const OutgoingMessage& outgoing) -> std::optional<Reply> {
    if (outgoing.method == "tools/call" && std::exchange(expired, false)) {
      return Reply{.kind = Kind::refused, .status = 404};
    }
    return legacy_server(outgoing);
  });
  fixture.script.stdio = false;
  fixture.call(1);
  expired = true;
  fixture.call(2);
  ASSERT_EQ(fixture.outcomes.size(), 2u);
  EXPECT_EQ(fixture.outcomes[1].error_code, "not_sent");
  fixture.call(3);
  fixture.script.loop.fire(kBackoffMin);
  ASSERT_EQ(fixture.outcomes.size(), 3u);
  EXPECT_EQ(fixture.outcomes[2].result, Value("done"));
  EXPECT_EQ(fixture.script.opened, 2);
  // A server that forgets every session is not retried without limit.
  McpFixture fresh([](const OutgoingMessage& outgoing) -> std::optional<Reply> {
    if (outgoing.method == "tools/call") return Reply{.kind = Kind::refused, .status = 404};
    return legacy_server(outgoing);
  });
  fresh.call(1);
  EXPECT_EQ(fresh.only_outcome().error_code, "http_404");
}

AE_TEST("mcp/call/progress is forwarded for its own call only") {
  McpFixture fixture([](const OutgoingMessage& outgoing) -> std::optional<Reply> {
    if (outgoing.method == "tools/call") return std::nullopt;
    return legacy_server(outgoing);
  });
  fixture.call(1);
  const Value token = fixture.script.last("tools/call").message["params"]["_meta"]["progressToken"];
  const auto send_progress = [&](const Value& progress_token) {
    fixture.script.callbacks->on_message(
        {.message = {
             .kind = Message::Kind::notification,
             .method = "notifications/progress",
             .params = Value::object(
                 {{"progressToken", progress_token}, {"progress", 1}, {"message", "half"}})}});
  };
  send_progress(token);
  send_progress("another");
  send_progress(99);
  ASSERT_EQ(fixture.progress.size(), 1u);
  EXPECT_EQ(canonical(fixture.progress[0]), R"({"message":"half","progress":1})");
}

AE_TEST("mcp/call/answers are sent with the request state of the server") {
  McpFixture fixture([](const OutgoingMessage& outgoing) { return modern_server(outgoing); });
  fixture.call(1);
  const Value first = fixture.script.last("tools/call").message["params"];
  EXPECT_EQ(first.find("inputResponses"), nullptr);
  EXPECT_EQ(canonical(first["_meta"]["io.modelcontextprotocol/clientCapabilities"]),
            R"({"elicitation":{"form":{},"url":{}}})");
  fixture.inputs = json(R"({"answers":{"k":{"action":"decline"}},"state":"s"})");
  fixture.call(2);
  const Value second = fixture.script.last("tools/call").message["params"];
  EXPECT_EQ(canonical(second["inputResponses"]), R"({"k":{"action":"decline"}})");
  EXPECT_EQ(second["requestState"], Value("s"));
  EXPECT_EQ(second["arguments"], first["arguments"]);
}

AE_TEST("mcp/call/answers are not sent to a server that changed to a legacy revision") {
  McpFixture fixture(legacy_server);
  fixture.inputs = json(R"({"answers":{"k":{"action":"accept"}}})");
  fixture.call(2);
  EXPECT_EQ(fixture.only_outcome().error_code, "tool_changed");
  EXPECT_TRUE(fixture.only_outcome().definite);
  EXPECT_EQ(fixture.script.count("tools/call"), 0u);
}

AE_TEST("mcp/session/a ping is answered, an elicitation declined, other requests are rejected") {
  McpFixture fixture(legacy_server);
  fixture.call(1);
  for (const char* method :
       {"ping", "elicitation/create", "sampling/createMessage", "roots/list"}) {
    fixture.script.callbacks->on_message(
        {.message = {.kind = Message::Kind::request, .id = Value(method), .method = method}});
  }
  const std::size_t n = fixture.script.sent.size();
  EXPECT_EQ(canonical(fixture.script.sent[n - 4].message["result"]), "{}");
  EXPECT_EQ(fixture.script.sent[n - 3].message["result"].text("action"), "decline");
  EXPECT_EQ(fixture.script.sent[n - 2].message["error"]["code"], Value(-32601));
  EXPECT_EQ(fixture.script.sent[n - 1].message["error"]["code"], Value(-32601));
}

AE_TEST("mcp/call/closing the server ends an open call as abandoned") {
  McpFixture fixture([](const OutgoingMessage& outgoing) -> std::optional<Reply> {
    if (outgoing.method == "tools/call") return std::nullopt;
    return legacy_server(outgoing);
  });
  fixture.call(1);
  fixture.server->close();
  fixture.script.loop.run();
  EXPECT_EQ(fixture.only_outcome().error_code, "abandoned");
}

}  // namespace
}  // namespace ae::mcp::client
