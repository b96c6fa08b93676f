// What becomes of a server and its calls when its transport answers as the test says.
#include "tools/mcp/server.h"

#include <map>
#include <optional>

#include "json/json.h"
#include "testing/permit.h"
#include "testing/test.h"
#include "tools/mcp/hand_test.h"
#include "tools/mcp/listing.h"
#include "tools/mcp/mcp_tool.h"

namespace ae::tools::mcp {
namespace {

AE_TEST("mcp/session/a server of the new era is asked for nothing but what is wanted") {
  Hand hand(new_one);
  hand.call();
  EXPECT_EQ(hand.only().result, Value("done"));
  EXPECT_TRUE((hand.script.methods ==
               std::vector<std::string>{"server/discover", "tools/list", "tools/call"}));
  for (const Post& post : hand.script.sent) {
    const Value& meta = post.message["params"]["_meta"];
    EXPECT_EQ(meta.text("io.modelcontextprotocol/protocolVersion"), "2026-07-28");
    EXPECT_TRUE(meta["io.modelcontextprotocol/clientCapabilities"].is_object());
    EXPECT_TRUE(post.modern);
  }
}

AE_TEST(
    "mcp/session/a server of the old era is initialized, whatever it says to the first question") {
  for (const Reply& first :
       {error(-32601), error(-32600), error(-32602), error(0), result("{}"),
        Reply{.how = How::refused, .status = 400}, Reply{.how = How::refused, .status = 404}}) {
    Hand hand([&](const Post& post) -> std::optional<Reply> {
      return post.method == "server/discover" ? first : old_one(post);
    });
    hand.call();
    EXPECT_EQ(hand.only().result, Value("done"));
    EXPECT_TRUE((hand.script.methods == std::vector<std::string>{"server/discover", "initialize",
                                                                 "notifications/initialized",
                                                                 "tools/list", "tools/call"}));
    EXPECT_TRUE(hand.script.last("tools/list").message["params"].find("_meta") == nullptr);
    EXPECT_FALSE(hand.script.last("initialize").modern);
  }
}

AE_TEST("mcp/session/a program that is silent to the first question is asked in the old way, too") {
  Hand hand([](const Post& post) -> std::optional<Reply> {
    if (post.method == "server/discover") return std::nullopt;
    return old_one(post);
  });
  hand.call();
  EXPECT_TRUE(hand.outcomes.empty());
  hand.script.loop.fire(kProbeTime);
  EXPECT_EQ(hand.only().result, Value("done"));
}

AE_TEST("mcp/session/a program that says nothing at all is given up, and it is said what it owes") {
  Hand hand([](const Post&) -> std::optional<Reply> { return std::nullopt; });
  std::string why;
  hand.server->list([&](const Result<Session::Listed>& listed) { why = listed.error().message; });
  hand.script.loop.run();
  hand.script.loop.fire(kProbeTime);
  hand.script.loop.fire(kProbeTime + kAskTime);
  EXPECT_NE(why.find("no answer to initialize within 30s"), std::string::npos) << why;
}

AE_TEST(
    "mcp/session/a program that ends over the first question is started again, and asked in the "
    "old way") {
  Hand hand([](const Post& post) -> std::optional<Reply> {
    if (post.method == "server/discover") return std::nullopt;
    return old_one(post);
  });
  hand.call();
  hand.script.lost("it fell over");
  hand.script.loop.run();
  EXPECT_EQ(hand.only().result, Value("done"));
  EXPECT_EQ(hand.script.opened, 2);
  EXPECT_EQ(hand.script.count("server/discover"), 1u);
}

AE_TEST("mcp/session/an idle server is stopped after its idle timeout, and never under a call") {
  constexpr Duration kIdle = 500ms;
  bool silent = false;
  Hand hand([&](const Post& post) -> std::optional<Reply> {
    if (silent && post.method == "tools/call") return std::nullopt;
    return new_one(post);
  });
  hand.server->set_idle_timeout(kIdle);
  hand.script.loop.fire(kIdle);
  EXPECT_EQ(hand.script.opened, 0);
  hand.call(1);
  EXPECT_NE(hand.script.ears, nullptr) << "it is idle for a moment only";
  hand.script.loop.fire(kIdle);
  EXPECT_EQ(hand.script.ears, nullptr) << "it is closed";
  EXPECT_EQ(hand.script.stops, 1);
  silent = true;
  hand.call(2);
  EXPECT_EQ(hand.script.opened, 2);
  hand.script.loop.fire(kIdle);
  EXPECT_NE(hand.script.ears, nullptr);
  ASSERT_EQ(hand.script.open.size(), 1u);
  auto reply = std::move(hand.script.open.begin()->second);
  hand.script.open.clear();
  reply(result(kDone));
  hand.script.loop.run();
  ASSERT_EQ(hand.outcomes.size(), 2u);
  EXPECT_EQ(hand.outcomes[1].result, Value("done"));
  EXPECT_EQ(hand.script.count("tools/call"), 2u);
  hand.script.loop.fire(kIdle);
  EXPECT_EQ(hand.script.stops, 2);
  // A call that was given up is over, also when its server never answers it.
  hand.call(3);
  hand.script.loop.fire(1s);
  ASSERT_EQ(hand.outcomes.size(), 3u);
  EXPECT_EQ(hand.outcomes[2].kind, OutcomeKind::timeout);
  hand.script.loop.fire(kIdle);
  EXPECT_EQ(hand.script.stops, 3);
  // Used again by the newest tools, it stays connected.
  silent = false;
  hand.call(4);
  hand.server->set_idle_timeout(std::nullopt);
  hand.script.loop.fire(kIdle);
  EXPECT_NE(hand.script.ears, nullptr);
  hand.server->set_idle_timeout(kIdle);
  hand.script.loop.fire(kIdle);
  EXPECT_EQ(hand.script.stops, 4);
}

AE_TEST("mcp/session/errors that only the new era knows decide which it is") {
  for (const auto& [data, old_way] : std::map<std::string, bool>{
           {R"({"supported":["2025-11-25"]})", true}, {R"({"supported":["2099-01-01"]})", false}}) {
    Hand hand([&](const Post& post) -> std::optional<Reply> {
      return post.method == "server/discover" ? error(-32022, data, 400) : old_one(post);
    });
    hand.call();
    EXPECT_EQ(hand.script.count("initialize"), old_way ? 1u : 0u);
    EXPECT_EQ(hand.only().error_code, old_way ? "" : "connect");
  }
  Hand hand([](const Post& post) -> std::optional<Reply> {
    return post.method == "server/discover" ? error(-32021, "{}", 400) : old_one(post);
  });
  hand.call();
  EXPECT_EQ(hand.only().error_code, "connect");
  EXPECT_TRUE(hand.only().definite);
}

AE_TEST("mcp/session/a server that refuses the revision which it offers is asked again, once") {
  for (const bool relents : {true, false}) {
    int asked = 0;
    Hand hand([&](const Post& post) -> std::optional<Reply> {
      const bool refused = post.method == "server/discover" && (++asked == 1 || !relents);
      return refused ? error(-32022, R"({"supported":["2026-07-28"]})", 400) : new_one(post);
    });
    hand.script.stdio = false;
    hand.call();
    EXPECT_EQ(asked, 2);
    EXPECT_EQ(hand.script.count("initialize"), 0u);
    EXPECT_EQ(hand.only().error_code, relents ? "" : "connect");
  }
}

AE_TEST("mcp/session/over HTTP a tool with headers that no call can carry is none") {
  const Value bad = json(
      R"({"name":"t","inputSchema":{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}})");
  for (const bool stdio : {false, true}) {
    Hand hand([&](const Post& post) -> std::optional<Reply> {
      if (post.method != "tools/list") return new_one(post);
      return Reply{.how = How::result, .value = Value::object({{"tools", Value::array({bad})}})};
    });
    hand.script.stdio = stdio;
    hand.call(1, std::string(pinned(bad)->text("digest")));
    EXPECT_EQ(hand.script.count("tools/call"), stdio ? 1u : 0u);
    EXPECT_EQ(hand.only().error_code, stdio ? "" : "tool_changed");
  }
}

AE_TEST("mcp/session/a revision that we do not speak is refused") {
  Hand hand([](const Post& post) -> std::optional<Reply> {
    if (post.method == "initialize") return result(R"({"protocolVersion":"1999-01-01"})");
    return old_one(post);
  });
  hand.call();
  EXPECT_EQ(hand.only().error_code, "connect");
  EXPECT_EQ(hand.script.count("tools/call"), 0u);
}

AE_TEST("mcp/session/tools come page by page, and a page that follows itself ends it") {
  Hand hand([](const Post& post) -> std::optional<Reply> {
    if (post.method != "tools/list") return old_one(post);
    const Value& cursor = post.message["params"]["cursor"];
    if (cursor.is_null()) return result(R"({"tools":[],"nextCursor":"2"})");
    return tools();
  });
  hand.call();
  EXPECT_EQ(hand.only().result, Value("done"));
  EXPECT_EQ(hand.script.count("tools/list"), 2u);
  Hand round([](const Post& post) -> std::optional<Reply> {
    if (post.method != "tools/list") return old_one(post);
    return result(R"({"tools":[],"nextCursor":"2"})");
  });
  round.call();
  EXPECT_EQ(round.only().error_code, "connect");
}

AE_TEST("mcp/call/it says who it is in _meta, beside the arguments") {
  Hand hand(old_one);
  hand.call();
  const Value& params = hand.script.last("tools/call").message["params"];
  EXPECT_EQ(canonical(params["arguments"]), R"({"a":1})");
  const Value& meta = params["_meta"];
  EXPECT_EQ(meta.text("aetheris/idempotency-key"), "aetheris:j:s:0");
  EXPECT_EQ(meta.text("aetheris/execution-key"), "k");
  EXPECT_EQ(meta.text("aetheris/invocation-id"), "i");
  EXPECT_EQ(meta["aetheris/try"], Value(1));
  EXPECT_EQ(meta.text("traceparent"), "00-trace");
}

AE_TEST("mcp/call/what would be sent is shown before, as it is sent then, and nobody is asked") {
  Hand hand(new_one);
  const Value definition =
      Value::object({{"server", "shop"}, {"tool", "t"}, {"digest", pinned(kTool)->text("digest")}});
  auto tool = McpTool::make(definition, hand.server);
  ASSERT_TRUE(tool) << tool.error().message;
  const auto the_call = [] {
    Call call;
    call.tool = "shop.t";
    call.args = Value::object({{"sum", 5}, {"who", "secret:TOKEN"}});
    call.key = IdempotencyKey{"k"};
    call.invocation = InvocationId{"i"};
    call.timeout = call.send_within = 20s;
    return call;
  };
  const auto shown = (*tool)->preview(the_call());
  ASSERT_TRUE(shown) << shown.error().message;
  EXPECT_EQ(canonical(*shown),
            R"({"arguments":{"sum":5,"who":"secret:TOKEN"},"server":"shop","tool":"t"})");
  hand.script.loop.run();
  EXPECT_EQ(hand.script.opened, 0) << "a person who looks starts no server";
  Call real = the_call();
  Permit permit = testing::PermitForTests::make(real.invocation, 1);
  (*tool)->perform(std::move(permit), std::move(real),
                   [&](Outcome outcome) { hand.outcomes.push_back(std::move(outcome)); });
  hand.script.loop.run();
  EXPECT_EQ(hand.only().kind, OutcomeKind::success);
  const Value& sent = hand.script.last("tools/call").message["params"];
  EXPECT_EQ(sent["name"], (*shown)["tool"]);
  EXPECT_EQ(sent["arguments"], (*shown)["arguments"]) << "an argument names no secret";
}

AE_TEST("mcp/call/a tool that says something else than what is pinned is not called") {
  Hand hand(old_one);
  hand.call(1, "another");
  EXPECT_EQ(hand.only().error_code, "tool_changed");
  EXPECT_TRUE(hand.only().definite);
  EXPECT_EQ(hand.script.count("tools/call"), 0u);
  // Whoever runs us hears it too, once.
  ASSERT_EQ(hand.warnings.size(), 1u);
  EXPECT_TRUE(hand.warnings[0].starts_with("j: s.t is not called: its MCP server describes"));
  EXPECT_NE(hand.warnings[0].find("aetheris check FILE --diff"), std::string::npos);
  hand.call(2, "another");
  EXPECT_EQ(hand.warnings.size(), 1u);
}

AE_TEST(
    "mcp/call/when the server says that its tools have changed, they are looked at before the next "
    "call") {
  bool changed = false;
  Hand hand([&](const Post& post) -> std::optional<Reply> {
    if (post.method != "tools/list" || !changed) return old_one(post);
    return Reply{
        .how = How::result,
        .value = Value::object({{"tools", Value::array({kTool.with("description", "evil")})}})};
  });
  hand.call(1);
  changed = true;
  hand.script.ears->heard(
      {.kind = Message::Kind::notification, .method = "notifications/tools/list_changed"});
  hand.call(2);
  ASSERT_EQ(hand.outcomes.size(), 2u);
  EXPECT_EQ(hand.outcomes[1].error_code, "tool_changed");
  EXPECT_EQ(hand.script.count("tools/call"), 1u);
}

AE_TEST(
    "mcp/call/a server that dies in the middle of it leaves it unknown; what had not gone out, "
    "goes to the next one") {
  bool dies = true;
  Hand hand([&](const Post& post) -> std::optional<Reply> {
    if (post.method == "tools/call" && dies) return std::nullopt;
    return old_one(post);
  });
  hand.call(1);
  EXPECT_TRUE(hand.outcomes.empty());
  hand.script.lost("killed");
  hand.script.loop.run();
  EXPECT_TRUE(hand.only().kind == OutcomeKind::unknown);
  EXPECT_EQ(hand.only().error_code, "reset");
  EXPECT_EQ(hand.script.opened, 1);
  dies = false;
  hand.call(2);
  EXPECT_EQ(hand.script.opened, 1);  // not at once
  hand.script.loop.fire(kBackoffLeast);
  ASSERT_EQ(hand.outcomes.size(), 2u);
  EXPECT_EQ(hand.outcomes[1].result, Value("done"));
  EXPECT_EQ(hand.script.count("tools/call"), 2u);
}

AE_TEST("mcp/call/what takes too long is told so, and is a timeout; what is given up is unknown") {
  Hand hand([](const Post& post) -> std::optional<Reply> {
    if (post.method == "tools/call") return std::nullopt;
    return old_one(post);
  });
  hand.call(1);
  hand.script.loop.fire(1s);
  EXPECT_TRUE(hand.only().kind == OutcomeKind::timeout);
  EXPECT_EQ(hand.script.last("notifications/cancelled").message["params"]["requestId"],
            hand.script.last("tools/call").message["id"]);
  hand.call(2);
  hand.server->abandon(InvocationId{"i"}, 2);
  hand.script.loop.run();
  ASSERT_EQ(hand.outcomes.size(), 2u);
  EXPECT_TRUE(hand.outcomes[1].kind == OutcomeKind::unknown);
  EXPECT_EQ(hand.outcomes[1].error_code, "abandoned");
}

AE_TEST("mcp/call/one that is given up before it went out was never sent") {
  Hand hand([](const Post&) -> std::optional<Reply> { return std::nullopt; });
  hand.call(1);
  hand.server->abandon(InvocationId{"i"}, 1);
  hand.script.loop.run();
  EXPECT_EQ(hand.only().error_code, "not_sent");
  EXPECT_TRUE(hand.only().definite);
}

AE_TEST("mcp/call/a server that is not ready in time has been sent nothing") {
  Hand hand([](const Post&) -> std::optional<Reply> { return std::nullopt; });
  hand.call(1);
  hand.script.loop.fire(20s);
  EXPECT_EQ(hand.only().error_code, "not_sent");
}

AE_TEST(
    "mcp/call/a session that the server has forgotten is made anew, and the call is not counted") {
  bool forgotten = false;
  Hand hand([&](const Post& post) -> std::optional<Reply> {
    if (post.method == "tools/call" && std::exchange(forgotten, false)) {
      return Reply{.how = How::refused, .status = 404};
    }
    return old_one(post);
  });
  hand.script.stdio = false;
  hand.call(1);
  forgotten = true;
  hand.call(2);
  ASSERT_EQ(hand.outcomes.size(), 2u);
  EXPECT_EQ(hand.outcomes[1].error_code, "not_sent");
  hand.call(3);
  hand.script.loop.fire(kBackoffLeast);
  ASSERT_EQ(hand.outcomes.size(), 3u);
  EXPECT_EQ(hand.outcomes[2].result, Value("done"));
  EXPECT_EQ(hand.script.opened, 2);
  // One that forgets at once is not asked for ever.
  Hand fresh([](const Post& post) -> std::optional<Reply> {
    if (post.method == "tools/call") return Reply{.how = How::refused, .status = 404};
    return old_one(post);
  });
  fresh.call(1);
  EXPECT_EQ(fresh.only().error_code, "http_404");
}

AE_TEST("mcp/call/progress of this call is passed on, and of no other") {
  Hand hand([](const Post& post) -> std::optional<Reply> {
    if (post.method == "tools/call") return std::nullopt;
    return old_one(post);
  });
  hand.call(1);
  const Value token = hand.script.last("tools/call").message["params"]["_meta"]["progressToken"];
  const auto tell = [&](const Value& whose) {
    hand.script.ears->heard(
        {.kind = Message::Kind::notification,
         .method = "notifications/progress",
         .body = Value::object({{"progressToken", whose}, {"progress", 1}, {"message", "half"}})});
  };
  tell(token);
  tell("another");
  tell(99);
  ASSERT_EQ(hand.progress.size(), 1u);
  EXPECT_EQ(canonical(hand.progress[0]), R"({"message":"half","progress":1})");
}

AE_TEST("mcp/call/what people answered goes along with what the server wants to have back") {
  Hand hand([](const Post& post) { return new_one(post); });
  hand.call(1);
  const Value first = hand.script.last("tools/call").message["params"];
  EXPECT_EQ(first.find("inputResponses"), nullptr);
  EXPECT_EQ(canonical(first["_meta"]["io.modelcontextprotocol/clientCapabilities"]),
            R"({"elicitation":{"form":{},"url":{}}})");
  hand.inputs = json(R"({"answers":{"k":{"action":"decline"}},"state":"s"})");
  hand.call(2);
  const Value second = hand.script.last("tools/call").message["params"];
  EXPECT_EQ(canonical(second["inputResponses"]), R"({"k":{"action":"decline"}})");
  EXPECT_EQ(second["requestState"], Value("s"));
  EXPECT_EQ(second["arguments"], first["arguments"]);
}

AE_TEST("mcp/call/a server that went back to the old era is not told answers") {
  Hand hand(old_one);
  hand.inputs = json(R"({"answers":{"k":{"action":"accept"}}})");
  hand.call(2);
  EXPECT_EQ(hand.only().error_code, "tool_changed");
  EXPECT_TRUE(hand.only().definite);
  EXPECT_EQ(hand.script.count("tools/call"), 0u);
}

AE_TEST("mcp/session/a ping is answered, nobody is asked anything, and nothing else is on offer") {
  Hand hand(old_one);
  hand.call(1);
  for (const char* method :
       {"ping", "elicitation/create", "sampling/createMessage", "roots/list"}) {
    hand.script.ears->heard(
        {.kind = Message::Kind::request, .id = Value(method), .method = method});
  }
  const std::size_t n = hand.script.sent.size();
  EXPECT_EQ(canonical(hand.script.sent[n - 4].message["result"]), "{}");
  EXPECT_EQ(hand.script.sent[n - 3].message["result"].text("action"), "decline");
  EXPECT_EQ(hand.script.sent[n - 2].message["error"]["code"], Value(-32601));
  EXPECT_EQ(hand.script.sent[n - 1].message["error"]["code"], Value(-32601));
}

AE_TEST(
    "mcp/call/when its tool is closed, what was sent is unknown and what was not is withdrawn") {
  Hand hand([](const Post& post) -> std::optional<Reply> {
    if (post.method == "tools/call") return std::nullopt;
    return old_one(post);
  });
  hand.call(1);
  hand.server->close();
  hand.script.loop.run();
  EXPECT_EQ(hand.only().error_code, "abandoned");
}

}  // namespace
}  // namespace ae::tools::mcp
