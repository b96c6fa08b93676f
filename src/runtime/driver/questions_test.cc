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

AE_TEST("questions/a try receives the last sent try and the time limit for an answer") {
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

AE_TEST("questions/a process that exits when its jobs are idle grants no time for an answer") {
  TestEnvironment env;
  WorkerFixture worker(env, "a", {.owned = true, .is_resident = false});
  worker.create(plan("idempotent", kOneCall));
  ASSERT_EQ(worker.calls.size(), 1u);
  EXPECT_EQ(worker.calls[0].call.answer_timeout, Duration(0));
}

AE_TEST("questions/cancelling a job abandons a call that waits for an answer") {
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

AE_TEST("questions/a call of a replaced tool version is abandoned too") {
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

AE_TEST("questions/a failing job abandons a call that waits for an answer") {
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

AE_TEST("questions/a call that asks while its job is ending is abandoned") {
  TestEnvironment env;
  WorkerFixture worker(env, "a", {.owned = true});
  worker.create(plan("idempotent", kOneCall));
  ASSERT_TRUE(worker.submit({.id = "c", .body = engine::CancelRequest{}}));
  env.loop.advance(1s);
  EXPECT_FALSE(worker.calls[0].abandoned) << "the call is awaited";
  worker.answer(0, kInputRequired);
  env.loop.advance(1s);
  EXPECT_EQ(worker.status(), "cancelled");
  EXPECT_TRUE(worker.calls[0].abandoned);
}

AE_TEST("questions/a map item that is no longer needed abandons its call") {
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
