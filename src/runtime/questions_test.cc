// Tests of the information that a tool with questions receives from the runtime.
#include "runtime/worker_fixture_test.h"

namespace ae::runtime::testing {
namespace {

const Outcome kInputRequired{.kind = OutcomeKind::input_required,
                             .definite = true,
                             .result = json("{'requests':{'k':{'message':'Sign', 'mode':'url', "
                                            "'url':'https://x.example'}}, 'state':'s'}")};

void accept_question(WorkerFixture& worker, std::string id) {
  const std::string key = worker.read().state.waits.begin()->first;
  ASSERT_TRUE(worker.submit({.id = std::move(id),
                             .body = engine::SignalRequest{
                                 .correlation_key = key, .payload = json("{'action':'accept'}")}}));
}

AE_TEST("asking/a try is told which earlier one may have been sent, and how long a person has") {
  TestEnvironment env;
  WorkerFixture worker(env, "a", {.owned = true});
  worker.runtime->start();
  worker.create(plan("idempotent", kOneCall));
  ASSERT_EQ(worker.calls.size(), 1u);
  EXPECT_EQ(worker.calls[0].call.last_sent_try, 0u);
  EXPECT_EQ(worker.calls[0].call.answer_timeout, Duration(24h));
  worker.answer(0, kInputRequired);
  accept_question(worker, "s1");
  env.loop.advance(1s);
  ASSERT_EQ(worker.calls.size(), 2u);
  EXPECT_EQ(worker.calls[1].call.last_sent_try, 1u);
  EXPECT_EQ(worker.calls[1].call.inputs.text("state"), "s");
  // Withdrawn before it was sent: the next try still answers the question of the first try.
  worker.answer(1, {.kind = OutcomeKind::failure,
                    .definite = true,
                    .retryable = true,
                    .error_code = "not_sent"});
  env.loop.advance(10s);
  ASSERT_EQ(worker.calls.size(), 3u);
  EXPECT_EQ(worker.calls[2].call.try_no, 3u);
  EXPECT_EQ(worker.calls[2].call.last_sent_try, 1u);
  worker.answer(2, {.kind = OutcomeKind::unknown, .retryable = true, .error_code = "reset"});
  env.loop.advance(1s);
  ASSERT_EQ(worker.status(), "parked");
  env.loop.advance(700s);  // its deadline and grace period are over
  ASSERT_TRUE(worker.resolve("not_happened"));
  env.loop.advance(1s);
  ASSERT_EQ(worker.calls.size(), 4u);
  EXPECT_EQ(worker.calls[3].call.last_sent_try, 3u);
}

AE_TEST("asking/a process that ends when its jobs rest lets no call wait for a person") {
  TestEnvironment env;
  WorkerFixture worker(env, "a", {.owned = true, .is_resident = false});
  worker.create(plan("idempotent", kOneCall));
  ASSERT_EQ(worker.calls.size(), 1u);
  EXPECT_EQ(worker.calls[0].call.answer_timeout, Duration(0));
}

AE_TEST("asking/a job that is cancelled while a person thinks lets go of the call") {
  TestEnvironment env;
  WorkerFixture worker(env, "a", {.owned = true});
  worker.create(plan("idempotent", kOneCall));
  worker.answer(0, kInputRequired);
  EXPECT_EQ(worker.status(), "waiting");
  EXPECT_FALSE(worker.calls[0].abandoned);
  ASSERT_TRUE(worker.submit({.id = "c", .body = engine::CancelRequest{}}));
  env.loop.advance(1s);
  EXPECT_EQ(worker.status(), "cancelled");
  EXPECT_TRUE(worker.calls[0].abandoned);
}

AE_TEST("asking/a call of a tool that has a newer version since is let go of, too") {
  TestEnvironment env;
  WorkerFixture worker(env, "a", {.owned = true});
  worker.create(plan("idempotent", kOneCall));
  worker.answer(0, kInputRequired);
  std::deque<PendingCall> newer;
  worker.tool_registry.renew("do", {std::make_unique<ManualTool>(newer), "ffffffffffffffff"});
  ASSERT_TRUE(worker.submit({.id = "c", .body = engine::CancelRequest{}}));
  env.loop.advance(1s);
  EXPECT_EQ(worker.status(), "cancelled");
  EXPECT_TRUE(worker.calls[0].abandoned);
}

AE_TEST("asking/a job that fails while a person thinks lets go of the call") {
  TestEnvironment env;
  WorkerFixture worker(env, "a", {.owned = true});
  worker.create(
      plan("idempotent",
           "[{'id':'a', 'kind':'tool', 'tool':'do'}, {'id':'b', 'kind':'tool', 'tool':'do'}]"));
  ASSERT_EQ(worker.calls.size(), 2u);
  worker.answer(0, kInputRequired);
  EXPECT_FALSE(worker.calls[0].abandoned);
  worker.answer(1, {.kind = OutcomeKind::failure, .definite = true, .error_code = "tool_error"});
  env.loop.advance(1s);
  EXPECT_EQ(worker.status(), "failed");
  EXPECT_TRUE(worker.calls[0].abandoned);
}

AE_TEST("asking/a call that asks when its job is ending already is let go of") {
  TestEnvironment env;
  WorkerFixture worker(env, "a", {.owned = true});
  worker.create(plan("idempotent", kOneCall));
  ASSERT_TRUE(worker.submit({.id = "c", .body = engine::CancelRequest{}}));
  env.loop.advance(1s);
  EXPECT_FALSE(worker.calls[0].abandoned) << "it is awaited";
  worker.answer(0, kInputRequired);
  env.loop.advance(1s);
  EXPECT_EQ(worker.status(), "cancelled");
  EXPECT_TRUE(worker.calls[0].abandoned);
}

AE_TEST(
    "asking/an item that nobody waits for lets go of its call, whether its job ends or goes on") {
  for (const char* more : {"", ", 'on_error':'continue'"}) {
    TestEnvironment env;
    WorkerFixture worker(env, "a", {.owned = true});
    worker.create(
        plan("idempotent",
             "[{'id':'m', 'kind':'map', 'over':[1,2], 'max_parallel':2, 'do':{'tool':'do'}" +
                 std::string(more) +
                 "}, {'id':'w', 'kind':'wait', 'needs':['m'],"
                 "   'wait':{'type':'signal', 'key':'k'}}]"));
    ASSERT_EQ(worker.calls.size(), 2u);
    worker.answer(0, kInputRequired);
    EXPECT_FALSE(worker.calls[0].abandoned);
    worker.answer(1, {.kind = OutcomeKind::failure, .definite = true, .error_code = "tool_error"});
    env.loop.advance(1s);
    EXPECT_EQ(worker.status(), *more == 0 ? "failed" : "waiting");
    EXPECT_TRUE(worker.calls[0].abandoned) << more;
  }
}

}  // namespace
}  // namespace ae::runtime::testing
