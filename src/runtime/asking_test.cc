// What the runtime tells a tool that asks people in the middle of its call.
#include "runtime/desk_test.h"

namespace ae::runtime::testing {
namespace {

const Outcome kAsks{.kind = OutcomeKind::input_required,
                    .definite = true,
                    .result = json("{'requests':{'k':{'message':'Sign', 'mode':'url', "
                                   "'url':'https://x.example'}}, 'state':'s'}")};

void say_yes(Desk& desk, std::string id) {
  const std::string key = desk.read().state.waits.begin()->first;
  ASSERT_TRUE(desk.act({.kind = engine::Act::Kind::signal,
                        .id = std::move(id),
                        .correlation_key = key,
                        .payload = json("{'action':'accept'}")}));
}

AE_TEST("asking/a try is told which earlier one may have been sent, and how long a person has") {
  Ground ground;
  Desk desk(ground, "a", {.owned = true});
  desk.runtime->start();
  desk.create(plan("idempotent", kOneCall));
  ASSERT_EQ(desk.calls.size(), 1u);
  EXPECT_EQ(desk.calls[0].call.sent_before, 0u);
  EXPECT_EQ(desk.calls[0].call.ask_expires, Duration(24h));
  desk.answer(0, kAsks);
  say_yes(desk, "s1");
  ground.loop.advance(1s);
  ASSERT_EQ(desk.calls.size(), 2u);
  EXPECT_EQ(desk.calls[1].call.sent_before, 1u);
  EXPECT_EQ(desk.calls[1].call.inputs.text("state"), "s");
  // Withdrawn before it was sent: what the next one answers is still the first.
  desk.answer(1, {.kind = OutcomeKind::failure,
                  .definite = true,
                  .retryable = true,
                  .error_code = "not_sent"});
  ground.loop.advance(10s);
  ASSERT_EQ(desk.calls.size(), 3u);
  EXPECT_EQ(desk.calls[2].call.try_no, 3u);
  EXPECT_EQ(desk.calls[2].call.sent_before, 1u);
  desk.answer(2, {.kind = OutcomeKind::unknown, .retryable = true, .error_code = "reset"});
  ground.loop.advance(1s);
  ASSERT_EQ(desk.status(), "parked");
  ground.loop.advance(700s);  // its deadline and its grace are over
  ASSERT_TRUE(desk.resolve("not_happened"));
  ground.loop.advance(1s);
  ASSERT_EQ(desk.calls.size(), 4u);
  EXPECT_EQ(desk.calls[3].call.sent_before, 3u);
}

AE_TEST("asking/a process that ends when its jobs rest lets no call wait for a person") {
  Ground ground;
  Desk desk(ground, "a", {.owned = true, .stays = false});
  desk.create(plan("idempotent", kOneCall));
  ASSERT_EQ(desk.calls.size(), 1u);
  EXPECT_EQ(desk.calls[0].call.ask_expires, Duration(0));
}

AE_TEST("asking/a job that is cancelled while a person thinks lets go of the call") {
  Ground ground;
  Desk desk(ground, "a", {.owned = true});
  desk.create(plan("idempotent", kOneCall));
  desk.answer(0, kAsks);
  EXPECT_EQ(desk.status(), "waiting");
  EXPECT_FALSE(desk.calls[0].abandoned);
  ASSERT_TRUE(desk.act({.kind = engine::Act::Kind::cancel, .id = "c"}));
  ground.loop.advance(1s);
  EXPECT_EQ(desk.status(), "cancelled");
  EXPECT_TRUE(desk.calls[0].abandoned);
}

AE_TEST("asking/a call of a tool that has a newer version since is let go of, too") {
  Ground ground;
  Desk desk(ground, "a", {.owned = true});
  desk.create(plan("idempotent", kOneCall));
  desk.answer(0, kAsks);
  std::deque<Waiting> newer;
  desk.performers.renew("do", {std::make_unique<SlowTool>(newer), "ffffffffffffffff"});
  ASSERT_TRUE(desk.act({.kind = engine::Act::Kind::cancel, .id = "c"}));
  ground.loop.advance(1s);
  EXPECT_EQ(desk.status(), "cancelled");
  EXPECT_TRUE(desk.calls[0].abandoned);
}

AE_TEST("asking/a job that fails while a person thinks lets go of the call") {
  Ground ground;
  Desk desk(ground, "a", {.owned = true});
  desk.create(
      plan("idempotent",
           "[{'id':'a', 'kind':'tool', 'tool':'do'}, {'id':'b', 'kind':'tool', 'tool':'do'}]"));
  ASSERT_EQ(desk.calls.size(), 2u);
  desk.answer(0, kAsks);
  EXPECT_FALSE(desk.calls[0].abandoned);
  desk.answer(1, {.kind = OutcomeKind::failure, .definite = true, .error_code = "tool_error"});
  ground.loop.advance(1s);
  EXPECT_EQ(desk.status(), "failed");
  EXPECT_TRUE(desk.calls[0].abandoned);
}

AE_TEST("asking/a call that asks when its job is ending already is let go of") {
  Ground ground;
  Desk desk(ground, "a", {.owned = true});
  desk.create(plan("idempotent", kOneCall));
  ASSERT_TRUE(desk.act({.kind = engine::Act::Kind::cancel, .id = "c"}));
  ground.loop.advance(1s);
  EXPECT_FALSE(desk.calls[0].abandoned) << "it is awaited";
  desk.answer(0, kAsks);
  ground.loop.advance(1s);
  EXPECT_EQ(desk.status(), "cancelled");
  EXPECT_TRUE(desk.calls[0].abandoned);
}

AE_TEST(
    "asking/an item that nobody waits for lets go of its call, whether its job ends or goes on") {
  for (const char* more : {"", ", 'on_error':'continue'"}) {
    Ground ground;
    Desk desk(ground, "a", {.owned = true});
    desk.create(
        plan("idempotent",
             "[{'id':'m', 'kind':'map', 'over':[1,2], 'max_parallel':2, 'do':{'tool':'do'}" +
                 std::string(more) +
                 "}, {'id':'w', 'kind':'wait', 'needs':['m'],"
                 "   'wait':{'type':'signal', 'key':'k'}}]"));
    ASSERT_EQ(desk.calls.size(), 2u);
    desk.answer(0, kAsks);
    EXPECT_FALSE(desk.calls[0].abandoned);
    desk.answer(1, {.kind = OutcomeKind::failure, .definite = true, .error_code = "tool_error"});
    ground.loop.advance(1s);
    EXPECT_EQ(desk.status(), *more == 0 ? "failed" : "waiting");
    EXPECT_TRUE(desk.calls[0].abandoned) << more;
  }
}

}  // namespace
}  // namespace ae::runtime::testing
