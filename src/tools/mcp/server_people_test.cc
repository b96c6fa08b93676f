// Servers of the old era that ask a person while their call is open.
#include <optional>

#include "json/json.h"
#include "testing/test.h"
#include "tools/mcp/hand_test.h"
#include "tools/mcp/server.h"

namespace ae::tools::mcp {
namespace {

constexpr std::string_view kForm =
    R"({"message":"How many?","requestedSchema":{"type":"object","properties":{"n":{"type":"integer"}}}})";
const Value kAccept = json(R"({"action":"accept","content":{"n":3}})");

// Its calls are open until the test answers them.
struct Asker : Hand {
  bool aside = false;  // over HTTP: it asks on the stream of GET
  explicit Asker(bool stdio = true)
      : Hand([](const Post& post) -> std::optional<Reply> {
          if (post.method == "tools/call") return std::nullopt;
          return old_one(post);
        }) {
    script.stdio = stdio;
    ask_expires = 1h;
  }
  std::int64_t open() { return script.last("tools/call").id; }
  void asks(const Value& id = "q", std::string_view params = kForm) {
    script.ears->heard({.kind = Message::Kind::request,
                        .id = id,
                        .method = "elicitation/create",
                        .body = json(params),
                        .stream = script.stdio || aside ? 0 : open()});
    script.loop.run();
  }
  void replies(std::int64_t id, Reply reply = result(kDone)) {
    auto found = script.open.extract(id);
    ASSERT_FALSE(found.empty());
    found.mapped()(std::move(reply));
    script.loop.run();
  }
  // The next try, with this answer to what the newest outcome asks.
  void answers(std::uint32_t try_no, const Value& answer = kAccept) {
    inputs = Value::object({{"answers", Value::object({{"question", answer}})},
                            {"state", outcomes.back().result["state"]}});
    call(try_no);
  }
  // What the server was told to its request.
  std::vector<Value> told(const Value& id = "q") {
    std::vector<Value> all;
    for (const Post& post : script.sent) {
      if (post.message["id"] == id && post.message.find("result")) {
        all.push_back(post.message["result"]);
      }
    }
    return all;
  }
  std::size_t calls() { return script.count("tools/call"); }
};

AE_TEST(
    "mcp/people/a question ends the try, its answer goes out on the open call, which is not made "
    "again") {
  for (const bool stdio : {true, false}) {
    Asker hand(stdio);
    hand.call(1);
    const std::int64_t id = hand.open();
    hand.asks();
    ASSERT_EQ(hand.only().kind, OutcomeKind::input_required) << hand.only().error_message;
    EXPECT_TRUE(hand.only().definite);
    EXPECT_EQ(canonical(hand.only().result["requests"]),
              R"({"question":{"message":"How many?","mode":"form","schema":)"
              R"({"properties":{"n":{"type":"integer"}},"type":"object"}}})");
    hand.script.loop.fire(2s);  // the call has no time while a person thinks
    EXPECT_TRUE(hand.told().empty());
    hand.answers(2);
    EXPECT_EQ(hand.outcomes.size(), 1u);
    ASSERT_EQ(hand.told().size(), 1u);
    EXPECT_EQ(hand.told()[0], kAccept);
    hand.replies(id);
    ASSERT_EQ(hand.outcomes.size(), 2u);
    EXPECT_EQ(hand.outcomes[1].result, Value("done"));
    EXPECT_EQ(hand.calls(), 1u);
    EXPECT_EQ(hand.script.count("notifications/cancelled"), 0u);
  }
}

AE_TEST("mcp/people/it may ask again, also for an address, and a no is told as it is") {
  Asker hand;
  hand.call(1);
  const std::int64_t id = hand.open();
  hand.asks("q1");
  hand.answers(2);
  hand.asks(
      "q2",
      R"({"mode":"url","message":"Sign","url":"https://sign.example/1","elicitationId":"1"})");
  ASSERT_EQ(hand.outcomes.size(), 2u);
  EXPECT_EQ(canonical(hand.outcomes[1].result["requests"]),
            R"({"question":{"message":"Sign","mode":"url","url":"https://sign.example/1"}})");
  hand.answers(3, json(R"({"action":"decline"})"));
  EXPECT_EQ(hand.told("q1"), std::vector<Value>{kAccept});
  EXPECT_EQ(hand.told("q2"), std::vector<Value>{json(R"({"action":"decline"})")});
  hand.replies(id);
  ASSERT_EQ(hand.outcomes.size(), 3u);
  EXPECT_EQ(hand.outcomes[2].result, Value("done"));
  EXPECT_EQ(hand.calls(), 1u);
}

AE_TEST("mcp/people/the time of a call runs again when it has its answer") {
  Asker hand;
  hand.call(1);
  hand.asks();
  hand.answers(2);
  hand.script.loop.fire(1s);
  ASSERT_EQ(hand.outcomes.size(), 2u);
  EXPECT_EQ(hand.outcomes[1].kind, OutcomeKind::timeout);
  EXPECT_EQ(hand.script.last("notifications/cancelled").message["params"]["requestId"],
            Value(hand.open()));
}

AE_TEST(
    "mcp/people/an answer leaves in the time that its try has to be sent, and is over with the "
    "try's timeout") {
  Asker hand(false);
  hand.call(1);
  hand.asks();
  hand.answers(2);
  const Post& answer = hand.script.sent.back();
  EXPECT_EQ(answer.message["id"], Value("q"));
  EXPECT_EQ(answer.send_within, Duration(20s));
  EXPECT_EQ(answer.timeout, Duration(1s));
}

AE_TEST(
    "mcp/people/an answer that for sure was not sent is not_sent: the call is kept, and the next "
    "try tells it") {
  for (const How how : {How::not_sent, How::unreachable}) {
    Asker hand(false);
    hand.call(1);
    const std::int64_t id = hand.open();
    hand.asks();
    hand.script.take = [how](const Post&) { return Reply{.how = how, .text = "refused"}; };
    hand.answers(2);
    ASSERT_EQ(hand.outcomes.size(), 2u);
    EXPECT_EQ(hand.outcomes[1].kind, OutcomeKind::failure);
    EXPECT_TRUE(hand.outcomes[1].definite);
    EXPECT_EQ(hand.outcomes[1].error_code, "not_sent");
    EXPECT_NE(hand.outcomes[1].error_message.find("refused"), std::string::npos);
    EXPECT_EQ(hand.script.count("notifications/cancelled"), 0u);
    hand.script.take = {};
    hand.sent_before = 1;  // as the engine counts: the second try was not sent
    hand.call(3);
    EXPECT_EQ(hand.told(), (std::vector<Value>{kAccept, kAccept})) << "the first one never left";
    hand.replies(id);
    EXPECT_EQ(hand.outcomes.back().result, Value("done"));
    EXPECT_EQ(hand.calls(), 1u);
  }
}

AE_TEST(
    "mcp/people/an answer that cannot get out is withdrawn when its try ends, and so is not late") {
  for (const bool abandoned : {false, true}) {
    Asker hand(false);
    hand.call(1);
    const std::int64_t id = hand.open();
    hand.asks();
    hand.script.take = [](const Post&) { return std::nullopt; };
    hand.answers(2);
    EXPECT_EQ(hand.script.untaken.size(), 1u);
    if (abandoned) hand.server->abandon(InvocationId{"i"}, 2);
    if (!abandoned) hand.script.loop.fire(1s);
    hand.script.loop.run();
    ASSERT_EQ(hand.outcomes.size(), 2u);
    EXPECT_EQ(hand.outcomes[1].error_code, "not_sent");
    EXPECT_TRUE(hand.script.untaken.empty());
    hand.script.take = {};
    hand.sent_before = 1;
    hand.call(3);
    hand.replies(id);
    EXPECT_EQ(hand.outcomes.back().result, Value("done")) << "the call is as it was";
  }
}

AE_TEST("mcp/people/an answer that may have arrived is a try that was sent, whatever ends it") {
  for (const bool abandoned : {false, true}) {
    Asker hand(false);
    hand.call(1);
    hand.asks();
    hand.script.take = [](const Post&) { return std::nullopt; };
    hand.script.withdrawn = {.how = How::lost, .text = "cut off"};
    hand.answers(2);
    if (abandoned) hand.server->abandon(InvocationId{"i"}, 2);
    if (!abandoned) hand.script.loop.fire(1s);
    hand.script.loop.run();
    ASSERT_EQ(hand.outcomes.size(), 2u);
    EXPECT_EQ(hand.outcomes[1].kind, abandoned ? OutcomeKind::unknown : OutcomeKind::timeout);
    hand.sent_before = 1;
    hand.call(3);
    EXPECT_EQ(hand.outcomes.back().kind, OutcomeKind::unknown) << "nothing is kept any more";
    EXPECT_EQ(hand.calls(), 1u);
  }
}

AE_TEST("mcp/people/a call that ends while its answer is on its way takes it back") {
  Asker hand(false);
  hand.call(1);
  const std::int64_t id = hand.open();
  hand.asks();
  hand.script.take = [](const Post&) { return std::nullopt; };
  hand.answers(2);
  hand.replies(id);
  EXPECT_EQ(hand.outcomes.back().result, Value("done"));
  EXPECT_TRUE(hand.script.untaken.empty());
  EXPECT_EQ(hand.outcomes.size(), 2u);
}

AE_TEST(
    "mcp/people/a question that is taken back while its answer is on its way is not answered "
    "later") {
  Asker hand(false);
  hand.call(1);
  const std::int64_t id = hand.open();
  hand.asks();
  hand.script.take = [](const Post&) { return std::nullopt; };
  hand.answers(2);
  hand.script.ears->heard({.kind = Message::Kind::notification,
                           .method = "notifications/cancelled",
                           .body = json(R"({"requestId":"q"})")});
  hand.script.loop.fire(1s);
  hand.script.loop.run();
  EXPECT_EQ(hand.outcomes.back().error_code, "not_sent");
  hand.sent_before = 1;
  hand.call(3);
  EXPECT_EQ(hand.told().size(), 1u) << "the one that was withdrawn";
  hand.replies(id);
  EXPECT_EQ(hand.outcomes.back().result, Value("done"));
}

AE_TEST("mcp/people/a call is not kept for ever when its answer does not get out") {
  Asker hand(false);
  hand.call(1);
  hand.asks();
  hand.script.take = [](const Post&) { return Reply{.how = How::not_sent}; };
  hand.answers(2);
  hand.script.loop.fire(kKeptOver);
  hand.script.loop.fire(kAskTime);
  EXPECT_EQ(hand.script.count("notifications/cancelled"), 1u);
}

AE_TEST("mcp/people/a server that does not wait has its reply kept for the next try") {
  Asker hand;
  hand.call(1);
  hand.asks();
  hand.replies(hand.open());
  EXPECT_EQ(hand.outcomes.size(), 1u);
  hand.answers(2);
  ASSERT_EQ(hand.outcomes.size(), 2u);
  EXPECT_EQ(hand.outcomes[1].result, Value("done"));
  EXPECT_TRUE(hand.told().empty()) << "it asks no more";
  EXPECT_EQ(hand.calls(), 1u);
}

AE_TEST("mcp/people/a question that its server has taken back is not answered") {
  Asker hand;
  hand.call(1);
  const std::int64_t id = hand.open();
  hand.asks();
  hand.script.ears->heard({.kind = Message::Kind::notification,
                           .method = "notifications/cancelled",
                           .body = json(R"({"requestId":"q"})")});
  hand.answers(2);
  EXPECT_TRUE(hand.told().empty());
  hand.replies(id);
  EXPECT_EQ(hand.outcomes.back().result, Value("done"));
}

AE_TEST(
    "mcp/people/a call that was lost while a person thinks is unknown once, and only a later try "
    "is sent, without answers") {
  Asker hand;
  hand.call(1);
  hand.asks();
  hand.script.lost("killed");
  hand.script.loop.run();
  EXPECT_EQ(hand.outcomes.size(), 1u) << "the try is over, and nobody waits";
  hand.answers(2);
  ASSERT_EQ(hand.outcomes.size(), 2u);
  EXPECT_EQ(hand.outcomes[1].kind, OutcomeKind::unknown);
  EXPECT_EQ(hand.outcomes[1].error_code, "reset");
  EXPECT_EQ(hand.calls(), 1u);
  // A try that was withdrawn before it came here decides nothing: the next one is still the first.
  hand.sent_before = 1;
  hand.call(3);
  ASSERT_EQ(hand.outcomes.size(), 3u);
  EXPECT_EQ(hand.outcomes[2].kind, OutcomeKind::unknown);
  EXPECT_EQ(hand.calls(), 1u);
  // It was declared in spite of the doubt.
  hand.sent_before.reset();
  hand.call(4);
  hand.script.loop.fire(kBackoffLeast);
  ASSERT_EQ(hand.calls(), 2u);
  const Value params = hand.script.last("tools/call").message["params"];
  EXPECT_EQ(params.find("inputResponses"), nullptr);
  EXPECT_EQ(params.find("requestState"), nullptr);
}

AE_TEST("mcp/people/another process that has the answer sends nothing, in both eras") {
  for (const bool modern : {false, true}) {
    Hand other(modern ? new_one : old_one);
    other.inputs =
        json(R"({"answers":{"question":{"action":"accept"}},"state":"aetheris/open-call/1"})");
    other.call(2);
    EXPECT_EQ(other.only().kind, OutcomeKind::unknown);
    EXPECT_EQ(other.script.count("tools/call"), 0u);
    other.call(3);
    ASSERT_EQ(other.outcomes.size(), 2u);
    EXPECT_EQ(other.outcomes[1].result, Value("done"));
    EXPECT_EQ(other.script.last("tools/call").message["params"].find("requestState"), nullptr);
  }
}

AE_TEST(
    "mcp/people/nobody comes for the answer: its server is told cancel, then that the call is "
    "given up") {
  Asker hand;
  hand.call(1);
  const std::int64_t id = hand.open();
  hand.asks();
  hand.script.loop.fire(1h);
  EXPECT_TRUE(hand.told().empty());
  hand.script.loop.fire(1h + kKeptOver);
  EXPECT_EQ(hand.told(), std::vector<Value>{json(R"({"action":"cancel"})")});
  EXPECT_EQ(hand.script.count("notifications/cancelled"), 0u);
  hand.script.loop.fire(kAskTime);
  EXPECT_EQ(hand.script.last("notifications/cancelled").message["params"]["requestId"], Value(id));
  hand.answers(2);
  EXPECT_EQ(hand.outcomes.back().kind, OutcomeKind::unknown);
  EXPECT_EQ(hand.calls(), 1u);
}

AE_TEST("mcp/people/a job that ends gives up the call that is kept for it") {
  Asker hand;
  hand.call(1);
  const std::int64_t id = hand.open();
  hand.asks();
  hand.server->abandon(InvocationId{"i"}, 1);
  EXPECT_EQ(hand.told(), std::vector<Value>{json(R"({"action":"cancel"})")});
  hand.replies(id);
  hand.script.loop.fire(kAskTime);
  EXPECT_EQ(hand.script.count("notifications/cancelled"), 0u) << "it has ended by itself";
  EXPECT_EQ(hand.outcomes.size(), 1u);
}

AE_TEST(
    "mcp/people/with two calls open on one stream nobody knows which asks: it is declined, and "
    "both jobs say why") {
  Asker hand;
  hand.call(1);
  hand.call(2);
  hand.asks();
  EXPECT_EQ(hand.told(), std::vector<Value>{json(R"({"action":"decline"})")});
  EXPECT_TRUE(hand.outcomes.empty());
  ASSERT_EQ(hand.progress.size(), 2u);
  EXPECT_NE(hand.progress[0].text("message").find("several calls are open"),
            std::string_view::npos);
}

AE_TEST("mcp/people/over HTTP each question is its own call's, however many are open") {
  Asker hand(false);
  hand.call(1);
  hand.call(2);
  hand.asks();
  ASSERT_EQ(hand.only().kind, OutcomeKind::input_required);
  EXPECT_EQ(hand.only().result.text("state"), "aetheris/open-call/2");
  EXPECT_TRUE(hand.told().empty());
}

AE_TEST(
    "mcp/people/aside of every call, over HTTP, it is asked as on the one stream of a program") {
  Asker one(false);
  one.aside = true;
  one.call(1);
  const std::int64_t id = one.open();
  one.asks();
  ASSERT_EQ(one.only().kind, OutcomeKind::input_required) << one.only().error_message;
  one.answers(2);
  EXPECT_EQ(one.told(), std::vector<Value>{kAccept});
  one.replies(id);
  EXPECT_EQ(one.outcomes.back().result, Value("done"));
  Asker two(false);
  two.aside = true;
  two.call(1);
  two.call(2);
  two.asks();
  EXPECT_EQ(two.told(), std::vector<Value>{json(R"({"action":"decline"})")});
  ASSERT_EQ(two.progress.size(), 2u);
  EXPECT_NE(two.progress[0].text("message").find("several calls are open"), std::string_view::npos);
}

AE_TEST(
    "mcp/people/a call that was lost over HTTP may be the one that asks aside; one that was "
    "refused "
    "or answered is not") {
  const std::vector<std::pair<Reply, bool>> ends = {
      {{.how = How::lost}, false},
      {{.how = How::refused, .status = 502}, false},
      {{.how = How::refused, .status = 429}, true},
      {{.how = How::unreachable}, true},
      {error(-32603), true},
      {result(kDone), true},
  };
  for (const auto& [end, is_clear] : ends) {
    Asker hand(false);
    hand.call(1);
    hand.replies(hand.open(), end);
    hand.aside = true;
    hand.call(2);
    hand.asks();
    EXPECT_EQ(hand.told().empty(), is_clear) << static_cast<int>(end.how) << " " << end.status;
  }
}

AE_TEST(
    "mcp/people/a call is sent once its server can be heard, once, and not when it was withdrawn") {
  Asker hand(false);
  hand.script.hears = false;
  hand.call(1);
  hand.call(2);
  EXPECT_EQ(hand.calls(), 0u);
  // Its list is asked for meanwhile: the calls wait for two things.
  hand.script.ears->heard(
      {.kind = Message::Kind::notification, .method = "notifications/tools/list_changed"});
  hand.script.loop.run();
  EXPECT_EQ(hand.script.count("tools/list"), 2u);
  hand.server->abandon(InvocationId{"i"}, 2);
  hand.script.loop.run();
  EXPECT_EQ(hand.only().error_code, "not_sent");
  hand.script.heard();
  EXPECT_EQ(hand.calls(), 1u);
  hand.replies(hand.open());
  EXPECT_EQ(hand.outcomes.back().result, Value("done"));
}

AE_TEST("mcp/people/a program with a call that waits or was given up may mean that one") {
  Asker waits;
  waits.call(1);
  waits.asks("q1");
  waits.call(5);
  waits.asks("q2");
  EXPECT_EQ(waits.told("q2"), std::vector<Value>{json(R"({"action":"decline"})")});
  Asker late;
  late.call(1);
  late.script.loop.fire(1s);
  late.call(2);
  late.asks();
  EXPECT_EQ(late.told(), std::vector<Value>{json(R"({"action":"decline"})")});
  EXPECT_NE(late.progress.back().text("message").find("abandoned or lost"), std::string_view::npos);
}

AE_TEST("mcp/people/a program that answers a call that was given up means that one no more") {
  Asker hand;
  hand.call(1);
  const std::int64_t first = hand.open();
  hand.script.loop.fire(1s);
  hand.script.ears->late(first + 1);  // another one
  hand.call(2);
  hand.asks("q1");
  EXPECT_EQ(hand.told("q1"), std::vector<Value>{json(R"({"action":"decline"})")});
  hand.replies(hand.open());
  hand.script.ears->late(first);
  hand.call(3);
  hand.asks("q2");
  ASSERT_EQ(hand.outcomes.size(), 3u);
  EXPECT_EQ(hand.outcomes[2].kind, OutcomeKind::input_required);
  EXPECT_TRUE(hand.told("q2").empty());
}

AE_TEST("mcp/people/more calls are astray than are counted: from then on nobody knows") {
  Asker hand;
  std::vector<std::int64_t> all;
  all.reserve(kAstrayMax + 2);
  for (std::uint32_t i = 1; i <= kAstrayMax + 2; ++i) {
    hand.call(i);
    all.push_back(hand.open());
    hand.script.loop.fire(1s);
  }
  for (const std::int64_t id : all) hand.script.ears->late(id);
  hand.call(2000);
  hand.asks();
  EXPECT_EQ(hand.told(), std::vector<Value>{json(R"({"action":"decline"})")});
}

AE_TEST("mcp/people/where nobody is asked, and what nobody can answer, is declined") {
  Asker ends;
  ends.ask_expires = Duration(0);
  ends.call(1);
  ends.asks();
  EXPECT_EQ(ends.told(), std::vector<Value>{json(R"({"action":"decline"})")});
  ASSERT_EQ(ends.progress.size(), 1u);
  ASSERT_EQ(ends.warnings.size(), 1u);
  EXPECT_TRUE(
      ends.warnings[0].starts_with("j: the MCP server of s.t asks a user: \"How many?\"; it was "
                                   "declined: only `aetheris serve`"))
      << ends.warnings[0];
  ends.asks("again");
  EXPECT_EQ(ends.warnings.size(), 1u) << "once for each call";
  ends.replies(ends.open());
  EXPECT_EQ(ends.only().result, Value("done"));
  for (const char* params : {R"({"message":"m"})", R"({"mode":"voice","message":"m"})",
                             R"({"message":7,"requestedSchema":{"type":"object"}})"}) {
    Asker odd;
    odd.call(1);
    odd.asks("q", params);
    EXPECT_EQ(odd.told(), std::vector<Value>{json(R"({"action":"decline"})")}) << params;
    EXPECT_TRUE(odd.outcomes.empty());
  }
}

AE_TEST("mcp/people/what a warning shows of a question is short and harmless") {
  Asker hand;
  hand.ask_expires = Duration(0);
  hand.call(1);
  hand.asks("q", canonical(Value::object({{"message", "a\x1b[2J\n" + std::string(300, 'b')}})));
  ASSERT_EQ(hand.warnings.size(), 1u);
  EXPECT_EQ(hand.warnings[0].find('\x1b'), std::string::npos);
  EXPECT_EQ(hand.warnings[0].find('\n'), std::string::npos);
  EXPECT_NE(hand.warnings[0].find("bbb…\""), std::string::npos) << hand.warnings[0];
  EXPECT_LT(hand.warnings[0].size(), 700u);
}

AE_TEST("mcp/people/no more than so many calls wait") {
  Asker hand(false);
  for (std::uint32_t i = 1; i <= kKeptMax; ++i) {
    hand.call(i);
    hand.asks(static_cast<std::int64_t>(i));
  }
  ASSERT_EQ(hand.outcomes.size(), kKeptMax);
  hand.call(kKeptMax + 1);
  hand.asks("more");
  EXPECT_EQ(hand.outcomes.size(), kKeptMax);
  EXPECT_EQ(hand.told("more"), std::vector<Value>{json(R"({"action":"decline"})")});
}

AE_TEST("mcp/people/a server is told that people can be asked") {
  Hand hand(old_one);
  hand.call(1);
  EXPECT_EQ(canonical(hand.script.last("initialize").message["params"]["capabilities"]),
            R"({"elicitation":{"form":{},"url":{}}})");
}

}  // namespace
}  // namespace ae::tools::mcp
