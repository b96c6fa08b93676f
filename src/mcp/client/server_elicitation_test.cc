// Legacy servers that ask a user while a call is open.
#include <optional>

#include "json/json.h"
#include "mcp/client/mcp_fixture_test.h"
#include "mcp/client/server.h"
#include "testing/test.h"

namespace ae::mcp::client {
namespace {

constexpr std::string_view kForm =
    R"({"message":"How many?","requestedSchema":{"type":"object","properties":{"n":{"type":"integer"}}}})";
const Value kAccept = json(R"({"action":"accept","content":{"n":3}})");

// A server whose calls stay open until the test answers them.
struct ElicitationFixture : McpFixture {
  bool uses_get_stream = false;  // over HTTP: it asks on the GET stream
  explicit ElicitationFixture(bool stdio = true)
      : McpFixture([](const OutgoingMessage& outgoing) -> std::optional<Reply> {
          if (outgoing.method == "tools/call") return std::nullopt;
          return legacy_server(outgoing);
        }) {
    script.stdio = stdio;
    answer_timeout = 1h;
  }
  std::int64_t open() { return script.last("tools/call").id; }
  void send_question(const Value& id = "q", std::string_view params = kForm) {
    script.callbacks->on_message({.message = {.kind = Message::Kind::request,
                                              .id = id,
                                              .method = "elicitation/create",
                                              .params = json(params)},
                                  .stream = script.stdio || uses_get_stream ? 0 : open()});
    script.loop.run();
  }
  void send_reply(std::int64_t id, Reply reply = result(kDone)) {
    auto found = script.open.extract(id);
    ASSERT_FALSE(found.empty());
    found.mapped()(std::move(reply));
    script.loop.run();
  }
  // The next try, with this answer to the latest outcome's question.
  void call_with_answer(std::uint32_t try_no, const Value& answer = kAccept) {
    inputs = Value::object({{"answers", Value::object({{"question", answer}})},
                            {"state", outcomes.back().result["state"]}});
    call(try_no);
  }
  // The answers that the server received to its request.
  std::vector<Value> sent_answers(const Value& id = "q") {
    std::vector<Value> all;
    for (const OutgoingMessage& outgoing : script.sent) {
      if (outgoing.message["id"] == id && outgoing.message.find("result")) {
        all.push_back(outgoing.message["result"]);
      }
    }
    return all;
  }
  std::size_t calls() { return script.count("tools/call"); }
};

AE_TEST(
    "mcp/elicitation/a question ends the try, and the next try sends the answer on the open call") {
  for (const bool stdio : {true, false}) {
    ElicitationFixture fixture(stdio);
    fixture.call(1);
    const std::int64_t id = fixture.open();
    fixture.send_question();
    ASSERT_EQ(fixture.only_outcome().kind, OutcomeKind::input_required)
        << fixture.only_outcome().error_message;
    EXPECT_TRUE(fixture.only_outcome().definite);
    EXPECT_EQ(canonical(fixture.only_outcome().result["requests"]),
              R"({"question":{"message":"How many?","mode":"form","schema":)"
              R"({"properties":{"n":{"type":"integer"}},"type":"object"}}})");
    fixture.script.loop.fire(2s);  // no timeout while a user decides
    EXPECT_TRUE(fixture.sent_answers().empty());
    fixture.call_with_answer(2);
    EXPECT_EQ(fixture.outcomes.size(), 1u);
    ASSERT_EQ(fixture.sent_answers().size(), 1u);
    EXPECT_EQ(fixture.sent_answers()[0], kAccept);
    fixture.send_reply(id);
    ASSERT_EQ(fixture.outcomes.size(), 2u);
    EXPECT_EQ(fixture.outcomes[1].result, Value("done"));
    EXPECT_EQ(fixture.calls(), 1u);
    EXPECT_EQ(fixture.script.count("notifications/cancelled"), 0u);
  }
}

AE_TEST(
    "mcp/elicitation/a server may ask again, also in url mode, and a decline is sent unchanged") {
  ElicitationFixture fixture;
  fixture.call(1);
  const std::int64_t id = fixture.open();
  fixture.send_question("q1");
  fixture.call_with_answer(2);
  fixture.send_question(
      "q2",
      R"({"mode":"url","message":"Sign","url":"https://sign.example/1","elicitationId":"1"})");
  ASSERT_EQ(fixture.outcomes.size(), 2u);
  EXPECT_EQ(canonical(fixture.outcomes[1].result["requests"]),
            R"({"question":{"message":"Sign","mode":"url","url":"https://sign.example/1"}})");
  fixture.call_with_answer(3, json(R"({"action":"decline"})"));
  EXPECT_EQ(fixture.sent_answers("q1"), std::vector<Value>{kAccept});
  EXPECT_EQ(fixture.sent_answers("q2"), std::vector<Value>{json(R"({"action":"decline"})")});
  fixture.send_reply(id);
  ASSERT_EQ(fixture.outcomes.size(), 3u);
  EXPECT_EQ(fixture.outcomes[2].result, Value("done"));
  EXPECT_EQ(fixture.calls(), 1u);
}

AE_TEST("mcp/elicitation/the timeout of a call restarts when its answer is sent") {
  ElicitationFixture fixture;
  fixture.call(1);
  fixture.send_question();
  fixture.call_with_answer(2);
  fixture.script.loop.fire(1s);
  ASSERT_EQ(fixture.outcomes.size(), 2u);
  EXPECT_EQ(fixture.outcomes[1].kind, OutcomeKind::timeout);
  EXPECT_EQ(fixture.script.last("notifications/cancelled").message["params"]["requestId"],
            Value(fixture.open()));
}

AE_TEST("mcp/elicitation/an answer has the send_within and the timeout of its try") {
  ElicitationFixture fixture(false);
  fixture.call(1);
  fixture.send_question();
  fixture.call_with_answer(2);
  const OutgoingMessage& answer = fixture.script.sent.back();
  EXPECT_EQ(answer.message["id"], Value("q"));
  EXPECT_EQ(answer.send_within, Duration(20s));
  EXPECT_EQ(answer.timeout, Duration(1s));
}

AE_TEST("mcp/elicitation/an answer that was not sent gives not_sent, and the next try sends it") {
  for (const Kind kind : {Kind::not_sent, Kind::unreachable}) {
    ElicitationFixture fixture(false);
    fixture.call(1);
    const std::int64_t id = fixture.open();
    fixture.send_question();
    fixture.script.accept = [kind](const OutgoingMessage&) {
      return Reply{.kind = kind, .text = "refused"};
    };
    fixture.call_with_answer(2);
    ASSERT_EQ(fixture.outcomes.size(), 2u);
    EXPECT_EQ(fixture.outcomes[1].kind, OutcomeKind::failure);
    EXPECT_TRUE(fixture.outcomes[1].definite);
    EXPECT_EQ(fixture.outcomes[1].error_code, "not_sent");
    EXPECT_NE(fixture.outcomes[1].error_message.find("refused"), std::string::npos);
    EXPECT_EQ(fixture.script.count("notifications/cancelled"), 0u);
    fixture.script.accept = {};
    fixture.last_sent_try = 1;  // as the engine counts: the second try was not sent
    fixture.call(3);
    EXPECT_EQ(fixture.sent_answers(), (std::vector<Value>{kAccept, kAccept}))
        << "the first one was not sent";
    fixture.send_reply(id);
    EXPECT_EQ(fixture.outcomes.back().result, Value("done"));
    EXPECT_EQ(fixture.calls(), 1u);
  }
}

AE_TEST("mcp/elicitation/a pending answer is withdrawn when its try ends") {
  for (const bool abandoned : {false, true}) {
    ElicitationFixture fixture(false);
    fixture.call(1);
    const std::int64_t id = fixture.open();
    fixture.send_question();
    fixture.script.accept = [](const OutgoingMessage&) { return std::nullopt; };
    fixture.call_with_answer(2);
    EXPECT_EQ(fixture.script.unaccepted.size(), 1u);
    if (abandoned) fixture.server->abandon(InvocationId{"i"}, 2);
    if (!abandoned) fixture.script.loop.fire(1s);
    fixture.script.loop.run();
    ASSERT_EQ(fixture.outcomes.size(), 2u);
    EXPECT_EQ(fixture.outcomes[1].error_code, "not_sent");
    EXPECT_TRUE(fixture.script.unaccepted.empty());
    fixture.script.accept = {};
    fixture.last_sent_try = 1;
    fixture.call(3);
    fixture.send_reply(id);
    EXPECT_EQ(fixture.outcomes.back().result, Value("done")) << "the call is unchanged";
  }
}

AE_TEST("mcp/elicitation/an answer that may have arrived counts as sent") {
  for (const bool abandoned : {false, true}) {
    ElicitationFixture fixture(false);
    fixture.call(1);
    fixture.send_question();
    fixture.script.accept = [](const OutgoingMessage&) { return std::nullopt; };
    fixture.script.withdrawn = {.kind = Kind::lost, .text = "cut off"};
    fixture.call_with_answer(2);
    if (abandoned) fixture.server->abandon(InvocationId{"i"}, 2);
    if (!abandoned) fixture.script.loop.fire(1s);
    fixture.script.loop.run();
    ASSERT_EQ(fixture.outcomes.size(), 2u);
    EXPECT_EQ(fixture.outcomes[1].kind, abandoned ? OutcomeKind::unknown : OutcomeKind::timeout);
    fixture.last_sent_try = 1;
    fixture.call(3);
    EXPECT_EQ(fixture.outcomes.back().kind, OutcomeKind::unknown) << "the call is no longer kept";
    EXPECT_EQ(fixture.calls(), 1u);
  }
}

AE_TEST("mcp/elicitation/a call that ends withdraws its pending answer") {
  ElicitationFixture fixture(false);
  fixture.call(1);
  const std::int64_t id = fixture.open();
  fixture.send_question();
  fixture.script.accept = [](const OutgoingMessage&) { return std::nullopt; };
  fixture.call_with_answer(2);
  fixture.send_reply(id);
  EXPECT_EQ(fixture.outcomes.back().result, Value("done"));
  EXPECT_TRUE(fixture.script.unaccepted.empty());
  EXPECT_EQ(fixture.outcomes.size(), 2u);
}

AE_TEST("mcp/elicitation/a question cancelled while its answer is pending is not answered later") {
  ElicitationFixture fixture(false);
  fixture.call(1);
  const std::int64_t id = fixture.open();
  fixture.send_question();
  fixture.script.accept = [](const OutgoingMessage&) { return std::nullopt; };
  fixture.call_with_answer(2);
  fixture.script.callbacks->on_message({.message = {.kind = Message::Kind::notification,
                                                    .method = "notifications/cancelled",
                                                    .params = json(R"({"requestId":"q"})")}});
  fixture.script.loop.fire(1s);
  fixture.script.loop.run();
  EXPECT_EQ(fixture.outcomes.back().error_code, "not_sent");
  fixture.last_sent_try = 1;
  fixture.call(3);
  EXPECT_EQ(fixture.sent_answers().size(), 1u) << "the one that was withdrawn";
  fixture.send_reply(id);
  EXPECT_EQ(fixture.outcomes.back().result, Value("done"));
}

AE_TEST("mcp/elicitation/a call whose answer cannot be sent is cancelled after the grace period") {
  ElicitationFixture fixture(false);
  fixture.call(1);
  fixture.send_question();
  fixture.script.accept = [](const OutgoingMessage&) { return Reply{.kind = Kind::not_sent}; };
  fixture.call_with_answer(2);
  fixture.script.loop.fire(kSuspendedGrace);
  fixture.script.loop.fire(kRequestTimeout);
  EXPECT_EQ(fixture.script.count("notifications/cancelled"), 1u);
}

AE_TEST("mcp/elicitation/a reply before the answer is kept for the next try") {
  ElicitationFixture fixture;
  fixture.call(1);
  fixture.send_question();
  fixture.send_reply(fixture.open());
  EXPECT_EQ(fixture.outcomes.size(), 1u);
  fixture.call_with_answer(2);
  ASSERT_EQ(fixture.outcomes.size(), 2u);
  EXPECT_EQ(fixture.outcomes[1].result, Value("done"));
  EXPECT_TRUE(fixture.sent_answers().empty()) << "the question is closed";
  EXPECT_EQ(fixture.calls(), 1u);
}

AE_TEST("mcp/elicitation/a question cancelled by its server is not answered") {
  ElicitationFixture fixture;
  fixture.call(1);
  const std::int64_t id = fixture.open();
  fixture.send_question();
  fixture.script.callbacks->on_message({.message = {.kind = Message::Kind::notification,
                                                    .method = "notifications/cancelled",
                                                    .params = json(R"({"requestId":"q"})")}});
  fixture.call_with_answer(2);
  EXPECT_TRUE(fixture.sent_answers().empty());
  fixture.send_reply(id);
  EXPECT_EQ(fixture.outcomes.back().result, Value("done"));
}

AE_TEST("mcp/elicitation/a call lost while waiting is unknown once, then resent without answers") {
  ElicitationFixture fixture;
  fixture.call(1);
  fixture.send_question();
  fixture.script.lose_connection("killed");
  fixture.script.loop.run();
  EXPECT_EQ(fixture.outcomes.size(), 1u) << "the try is over";
  fixture.call_with_answer(2);
  ASSERT_EQ(fixture.outcomes.size(), 2u);
  EXPECT_EQ(fixture.outcomes[1].kind, OutcomeKind::unknown);
  EXPECT_EQ(fixture.outcomes[1].error_code, "reset");
  EXPECT_EQ(fixture.calls(), 1u);
  // A try that was withdrawn before it arrived does not count: the next one is still the first.
  fixture.last_sent_try = 1;
  fixture.call(3);
  ASSERT_EQ(fixture.outcomes.size(), 3u);
  EXPECT_EQ(fixture.outcomes[2].kind, OutcomeKind::unknown);
  EXPECT_EQ(fixture.calls(), 1u);
  // Declared in spite of the unknown outcome.
  fixture.last_sent_try.reset();
  fixture.call(4);
  fixture.script.loop.fire(kBackoffMin);
  ASSERT_EQ(fixture.calls(), 2u);
  const Value params = fixture.script.last("tools/call").message["params"];
  EXPECT_EQ(params.find("inputResponses"), nullptr);
  EXPECT_EQ(params.find("requestState"), nullptr);
}

AE_TEST(
    "mcp/elicitation/a process without the open call does not send the answer, in both revisions") {
  for (const bool modern : {false, true}) {
    McpFixture other(modern ? modern_server : legacy_server);
    other.inputs =
        json(R"({"answers":{"question":{"action":"accept"}},"state":"aetheris/open-call/1"})");
    other.call(2);
    EXPECT_EQ(other.only_outcome().kind, OutcomeKind::unknown);
    EXPECT_EQ(other.script.count("tools/call"), 0u);
    other.call(3);
    ASSERT_EQ(other.outcomes.size(), 2u);
    EXPECT_EQ(other.outcomes[1].result, Value("done"));
    EXPECT_EQ(other.script.last("tools/call").message["params"].find("requestState"), nullptr);
  }
}

AE_TEST(
    "mcp/elicitation/an unclaimed question is answered with cancel, then its call is cancelled") {
  ElicitationFixture fixture;
  fixture.call(1);
  const std::int64_t id = fixture.open();
  fixture.send_question();
  fixture.script.loop.fire(1h);
  EXPECT_TRUE(fixture.sent_answers().empty());
  fixture.script.loop.fire(1h + kSuspendedGrace);
  EXPECT_EQ(fixture.sent_answers(), std::vector<Value>{json(R"({"action":"cancel"})")});
  EXPECT_EQ(fixture.script.count("notifications/cancelled"), 0u);
  fixture.script.loop.fire(kRequestTimeout);
  EXPECT_EQ(fixture.script.last("notifications/cancelled").message["params"]["requestId"],
            Value(id));
  fixture.call_with_answer(2);
  EXPECT_EQ(fixture.outcomes.back().kind, OutcomeKind::unknown);
  EXPECT_EQ(fixture.calls(), 1u);
}

AE_TEST("mcp/elicitation/a job that ends cancels its open call") {
  ElicitationFixture fixture;
  fixture.call(1);
  const std::int64_t id = fixture.open();
  fixture.send_question();
  fixture.server->abandon(InvocationId{"i"}, 1);
  EXPECT_EQ(fixture.sent_answers(), std::vector<Value>{json(R"({"action":"cancel"})")});
  fixture.send_reply(id);
  fixture.script.loop.fire(kRequestTimeout);
  EXPECT_EQ(fixture.script.count("notifications/cancelled"), 0u) << "the call has ended";
  EXPECT_EQ(fixture.outcomes.size(), 1u);
}

AE_TEST("mcp/elicitation/a question with two open calls on its stream is declined and reported") {
  ElicitationFixture fixture;
  fixture.call(1);
  fixture.call(2);
  fixture.send_question();
  EXPECT_EQ(fixture.sent_answers(), std::vector<Value>{json(R"({"action":"decline"})")});
  EXPECT_TRUE(fixture.outcomes.empty());
  ASSERT_EQ(fixture.progress.size(), 2u);
  EXPECT_NE(fixture.progress[0].text("message").find("several calls are open"),
            std::string_view::npos);
}

AE_TEST("mcp/elicitation/over HTTP a question belongs to the call of its stream") {
  ElicitationFixture fixture(false);
  fixture.call(1);
  fixture.call(2);
  fixture.send_question();
  ASSERT_EQ(fixture.only_outcome().kind, OutcomeKind::input_required);
  EXPECT_EQ(fixture.only_outcome().result.text("state"), "aetheris/open-call/2");
  EXPECT_TRUE(fixture.sent_answers().empty());
}

AE_TEST("mcp/elicitation/a question on the GET stream is handled as over stdio") {
  ElicitationFixture one(false);
  one.uses_get_stream = true;
  one.call(1);
  const std::int64_t id = one.open();
  one.send_question();
  ASSERT_EQ(one.only_outcome().kind, OutcomeKind::input_required)
      << one.only_outcome().error_message;
  one.call_with_answer(2);
  EXPECT_EQ(one.sent_answers(), std::vector<Value>{kAccept});
  one.send_reply(id);
  EXPECT_EQ(one.outcomes.back().result, Value("done"));
  ElicitationFixture two(false);
  two.uses_get_stream = true;
  two.call(1);
  two.call(2);
  two.send_question();
  EXPECT_EQ(two.sent_answers(), std::vector<Value>{json(R"({"action":"decline"})")});
  ASSERT_EQ(two.progress.size(), 2u);
  EXPECT_NE(two.progress[0].text("message").find("several calls are open"), std::string_view::npos);
}

AE_TEST(
    "mcp/elicitation/a lost call makes a question on the GET stream ambiguous, an ended one does "
    "not") {
  const std::vector<std::pair<Reply, bool>> ends = {
      {{.kind = Kind::lost}, false},
      {{.kind = Kind::refused, .status = 502}, false},
      {{.kind = Kind::refused, .status = 429}, true},
      {{.kind = Kind::unreachable}, true},
      {error(-32603), true},
      {result(kDone), true},
  };
  for (const auto& [end, is_clear] : ends) {
    ElicitationFixture fixture(false);
    fixture.call(1);
    fixture.send_reply(fixture.open(), end);
    fixture.uses_get_stream = true;
    fixture.call(2);
    fixture.send_question();
    EXPECT_EQ(fixture.sent_answers().empty(), is_clear)
        << static_cast<int>(end.kind) << " " << end.status;
  }
}

AE_TEST(
    "mcp/elicitation/a call is sent once after the GET stream is open, unless it was withdrawn") {
  ElicitationFixture fixture(false);
  fixture.script.is_listening = false;
  fixture.call(1);
  fixture.call(2);
  EXPECT_EQ(fixture.calls(), 0u);
  // The listing is requested meanwhile: the calls wait for both.
  fixture.script.callbacks->on_message({.message = {.kind = Message::Kind::notification,
                                                    .method = "notifications/tools/list_changed"}});
  fixture.script.loop.run();
  EXPECT_EQ(fixture.script.count("tools/list"), 2u);
  fixture.server->abandon(InvocationId{"i"}, 2);
  fixture.script.loop.run();
  EXPECT_EQ(fixture.only_outcome().error_code, "not_sent");
  fixture.script.start_listening();
  EXPECT_EQ(fixture.calls(), 1u);
  fixture.send_reply(fixture.open());
  EXPECT_EQ(fixture.outcomes.back().result, Value("done"));
}

AE_TEST("mcp/elicitation/a suspended or abandoned call makes a question over stdio ambiguous") {
  ElicitationFixture waits;
  waits.call(1);
  waits.send_question("q1");
  waits.call(5);
  waits.send_question("q2");
  EXPECT_EQ(waits.sent_answers("q2"), std::vector<Value>{json(R"({"action":"decline"})")});
  ElicitationFixture late;
  late.call(1);
  late.script.loop.fire(1s);
  late.call(2);
  late.send_question();
  EXPECT_EQ(late.sent_answers(), std::vector<Value>{json(R"({"action":"decline"})")});
  EXPECT_NE(late.progress.back().text("message").find("abandoned or lost"), std::string_view::npos);
}

AE_TEST("mcp/elicitation/a late reply to an abandoned call ends its ambiguity") {
  ElicitationFixture fixture;
  fixture.call(1);
  const std::int64_t first = fixture.open();
  fixture.script.loop.fire(1s);
  fixture.script.callbacks->on_late_reply(first + 1);  // a different call
  fixture.call(2);
  fixture.send_question("q1");
  EXPECT_EQ(fixture.sent_answers("q1"), std::vector<Value>{json(R"({"action":"decline"})")});
  fixture.send_reply(fixture.open());
  fixture.script.callbacks->on_late_reply(first);
  fixture.call(3);
  fixture.send_question("q2");
  ASSERT_EQ(fixture.outcomes.size(), 3u);
  EXPECT_EQ(fixture.outcomes[2].kind, OutcomeKind::input_required);
  EXPECT_TRUE(fixture.sent_answers("q2").empty());
}

AE_TEST("mcp/elicitation/questions are declined after more abandoned calls than can be tracked") {
  ElicitationFixture fixture;
  std::vector<std::int64_t> all;
  all.reserve(kOrphanedMax + 2);
  for (std::uint32_t i = 1; i <= kOrphanedMax + 2; ++i) {
    fixture.call(i);
    all.push_back(fixture.open());
    fixture.script.loop.fire(1s);
  }
  for (const std::int64_t id : all) fixture.script.callbacks->on_late_reply(id);
  fixture.call(2000);
  fixture.send_question();
  EXPECT_EQ(fixture.sent_answers(), std::vector<Value>{json(R"({"action":"decline"})")});
}

AE_TEST("mcp/elicitation/a question is declined if no user can be asked or it cannot be answered") {
  ElicitationFixture ends;
  ends.answer_timeout = Duration(0);
  ends.call(1);
  ends.send_question();
  EXPECT_EQ(ends.sent_answers(), std::vector<Value>{json(R"({"action":"decline"})")});
  ASSERT_EQ(ends.progress.size(), 1u);
  ASSERT_EQ(ends.warnings.size(), 1u);
  EXPECT_TRUE(
      ends.warnings[0].starts_with("j: the MCP server of s.t asks a user: \"How many?\"; it was "
                                   "declined: only a server or a worker keeps"))
      << ends.warnings[0];
  ends.send_question("again");
  EXPECT_EQ(ends.warnings.size(), 1u) << "once for each call";
  ends.send_reply(ends.open());
  EXPECT_EQ(ends.only_outcome().result, Value("done"));
  for (const char* params : {R"({"message":"m"})", R"({"mode":"voice","message":"m"})",
                             R"({"message":7,"requestedSchema":{"type":"object"}})"}) {
    ElicitationFixture odd;
    odd.call(1);
    odd.send_question("q", params);
    EXPECT_EQ(odd.sent_answers(), std::vector<Value>{json(R"({"action":"decline"})")}) << params;
    EXPECT_TRUE(odd.outcomes.empty());
  }
}

AE_TEST("mcp/elicitation/a warning shows a question truncated and escaped") {
  ElicitationFixture fixture;
  fixture.answer_timeout = Duration(0);
  fixture.call(1);
  fixture.send_question(
      "q", canonical(Value::object({{"message", "a\x1b[2J\n" + std::string(300, 'b')}})));
  ASSERT_EQ(fixture.warnings.size(), 1u);
  EXPECT_EQ(fixture.warnings[0].find('\x1b'), std::string::npos);
  EXPECT_EQ(fixture.warnings[0].find('\n'), std::string::npos);
  EXPECT_NE(fixture.warnings[0].find("bbb…\""), std::string::npos) << fixture.warnings[0];
  EXPECT_LT(fixture.warnings[0].size(), 700u);
}

AE_TEST("mcp/elicitation/the number of suspended calls is limited") {
  ElicitationFixture fixture(false);
  for (std::uint32_t i = 1; i <= kSuspendedMax; ++i) {
    fixture.call(i);
    fixture.send_question(static_cast<std::int64_t>(i));
  }
  ASSERT_EQ(fixture.outcomes.size(), kSuspendedMax);
  fixture.call(kSuspendedMax + 1);
  fixture.send_question("more");
  EXPECT_EQ(fixture.outcomes.size(), kSuspendedMax);
  EXPECT_EQ(fixture.sent_answers("more"), std::vector<Value>{json(R"({"action":"decline"})")});
}

AE_TEST("mcp/elicitation/initialize declares the elicitation capability") {
  McpFixture fixture(legacy_server);
  fixture.call(1);
  EXPECT_EQ(canonical(fixture.script.last("initialize").message["params"]["capabilities"]),
            R"({"elicitation":{"form":{},"url":{}}})");
}

}  // namespace
}  // namespace ae::mcp::client
