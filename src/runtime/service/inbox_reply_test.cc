// Tests of replies from the inbox, and of answers that arrive before their wait is open.
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/reply.h"
#include "runtime/worker_fixture_test.h"

namespace ae::runtime::testing {
namespace {

engine::ControlRequest answer_to(std::string key, std::string id, Value payload) {
  return {.id = std::move(id),
          .body = engine::SignalRequest{.correlation_key = std::move(key),
                                        .payload = std::move(payload)}};
}

AE_TEST("inbox/an answer that arrives after the expiry receives the expired outcome") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.owned = true, .durability = durability});
    worker.runtime->start();
    worker.create(plan("idempotent", kWaitAndCall));
    env.loop.advance(9s);
    // The other process reads the job while the wait is open; the expiry is committed before its
    // inbox entry arrives.
    WorkerFixture other(env, "other", {.owned = false});
    other.script = [&](const store::Call& call) {
      if (call.method == Method::put_inbox) env.loop.advance(5s);
      return Fault::none;
    };
    const auto result = other.start_request(answer_to("k", "s1", json("1")));
    env.loop.run_ready();
    worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    env.loop.advance(2s);
    ASSERT_TRUE(*result && **result);
    EXPECT_EQ((***result)["duplicate"], Value(true));
    EXPECT_EQ((***result)["outcome"], "timed_out");
    EXPECT_EQ(worker.read().state.closed_waits.at("k").outcome, "timed_out");
  }
}

AE_TEST("inbox/the sender of an answer receives the reply of the lease holder") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("idempotent", kWaitAndCall));
  const auto result = worker.signal("k", "s1");
  ASSERT_TRUE(result);
  EXPECT_EQ((*result)["outcome"], "signalled") << canonical(*result);
  EXPECT_EQ(worker.read().state.closed_waits.at("k").outcome, "signalled");
  const auto again = worker.signal("k", "s1");
  ASSERT_TRUE(again);
  EXPECT_EQ((*again)["duplicate"], Value(true));
}

AE_TEST("inbox/the reply to a second answer to a wait contains the first one") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.owned = true, .durability = durability});
    worker.runtime->start();
    worker.create(plan("idempotent", kWaitAndCall));
    WorkerFixture other(env, "other", {.owned = false});  // the lease holder is not notified
    std::vector<std::shared_ptr<std::optional<Result<Value>>>> replies;
    const auto send = [&](const char* id, const char* payload) {
      replies.push_back(other.start_request(answer_to("k", id, json(payload))));
      env.loop.run_ready();
    };
    send("s1", "1");
    send("s2", "2");
    send("s3", "1");
    send("s1", "1");
    EXPECT_EQ(other.read().inbox.size(), 3u) << "the same answer is written once";
    for (const auto& reply : replies) EXPECT_FALSE(*reply) << "no reply before it is applied";
    worker.answer(0, {.kind = OutcomeKind::success, .result = json("'done'")});
    env.loop.advance(2s);
    for (const auto& reply : replies) ASSERT_TRUE(*reply && **reply);
    const auto value = [&](std::size_t i) -> const Value& { return **(*replies[i]); };
    EXPECT_EQ(value(0)["outcome"], "signalled") << canonical(value(0));
    EXPECT_EQ(value(0).find("duplicate"), nullptr);
    EXPECT_EQ(value(1)["duplicate"], Value(true));
    EXPECT_EQ(value(1)["applied"], Value(false));
    EXPECT_EQ(value(1)["payload"], Value(1));
    EXPECT_EQ(value(2)["applied"], Value(true)) << "the same payload";
    EXPECT_EQ(value(3), value(0)) << "the same request";
    const auto changed = other.submit(answer_to("k", "s4", json("9")));
    ASSERT_TRUE(changed) << changed.error().message;
    EXPECT_EQ((*changed)["applied"], Value(false));
    EXPECT_EQ(worker.read().state.closed_waits.at("k").payload, Value(1));
    EXPECT_FALSE(worker.warned("too late"));
  }
}

AE_TEST("inbox/a request with the id of a pending one and another payload is not its repetition") {
  // The second one is sent before or after the first one is in the inbox.
  for (const bool at_once : {false, true}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.owned = true});
    worker.runtime->start();
    worker.create(plan("idempotent", kWaitAndCall));
    WorkerFixture other(env, "other", {.owned = false});  // the lease holder is not notified
    const auto first = other.start_request(answer_to("k", "s1", json("1")));
    if (!at_once) env.loop.run_ready();
    const auto second = other.start_request(answer_to("k", "s1", json("2")));
    env.loop.run_ready();
    EXPECT_EQ(other.read().inbox.size(), 1u);
    EXPECT_FALSE(*first);
    EXPECT_FALSE(*second);
    worker.answer(0, {.kind = OutcomeKind::success, .result = json("'done'")});
    env.loop.advance(2s);
    ASSERT_TRUE(*first && **first);
    EXPECT_EQ((***first)["outcome"], "signalled") << canonical(***first);
    EXPECT_EQ((***first).find("duplicate"), nullptr);
    ASSERT_TRUE(*second && **second);
    EXPECT_EQ((***second)["duplicate"], Value(true)) << canonical(***second);
    EXPECT_EQ((***second)["applied"], Value(false));
    EXPECT_EQ((***second)["payload"], Value(1));
    EXPECT_EQ(worker.read().state.closed_waits.at("k").payload, Value(1));
  }
}

AE_TEST("inbox/a request behind another one with its id fails with unavailable if no worker runs") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("idempotent", kWaitAndCall));
  worker.runtime.reset();  // the job stays leased
  WorkerFixture other(env, "other", {.owned = false});
  const auto first = other.start_request(answer_to("k", "s1", json("1")));
  env.loop.run_ready();
  const auto second = other.start_request(answer_to("k", "s1", json("2")));
  env.loop.advance(15s);
  ASSERT_TRUE(*first && **first);
  EXPECT_EQ((***first)["accepted"], Value(true));
  ASSERT_TRUE(*second);
  ASSERT_FALSE(**second);
  EXPECT_EQ((*second)->error().code, Code::unavailable);
  EXPECT_EQ(other.read().inbox.size(), 1u);
}

AE_TEST("inbox/a reply keeps the action of an error") {
  const Error error{Code::wait_mismatch, "no open wait", Action{.act = act::kJob, .job = "j"}};
  EXPECT_EQ(read_reply(reply_text(std::unexpected(error))).error(), error);
  const Error plain{Code::job_terminal, "the job has ended"};
  EXPECT_EQ(reply_text(std::unexpected(plain)),
            R"({"error":{"code":"job_terminal","message":"the job has ended"}})");
  EXPECT_EQ(read_reply(reply_text(std::unexpected(plain))).error(), plain);
}

AE_TEST("inbox/of two concurrent answers the first inbox entry counts") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("idempotent", kWaitAndCall));
  WorkerFixture quick(env, "quick", {.owned = false, .seed = 7});
  WorkerFixture slow(env, "slow", {.owned = false, .seed = 8});
  // Between the read by `slow` and its inbox entry, `quick` writes its own.
  bool posted = false;
  std::shared_ptr<std::optional<Result<Value>>> first;
  slow.script = [&](const store::Call& call) {
    if (call.method == Method::put_inbox && !std::exchange(posted, true)) {
      first = quick.start_request(answer_to("k", "s1", json("1")));
      env.loop.run_ready();
    }
    return Fault::none;
  };
  const auto second = slow.start_request(answer_to("k", "s2", json("2")));
  env.loop.run_ready();
  ASSERT_EQ(slow.read().inbox.size(), 2u) << "both were accepted by the store";
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("'done'")});
  env.loop.advance(2s);
  ASSERT_TRUE(*first && **first);
  EXPECT_EQ((***first)["outcome"], "signalled");
  ASSERT_TRUE(*second && **second);
  EXPECT_EQ((***second)["duplicate"], Value(true));
  EXPECT_EQ((***second)["applied"], Value(false));
  EXPECT_EQ(worker.read().state.closed_waits.at("k").payload, Value(1));
}

AE_TEST("inbox/the reply to a second human decision contains the first one") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("idempotent",
                     "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                     " {'id':'w', 'kind':'wait', 'wait':{'type':'human','key':'k'}}]"));
  WorkerFixture other(env, "other", {.owned = false});
  const engine::State state = other.read().state;
  engine::ControlRequest no{
      .body = engine::ApproveRequest{.approval_id = state.approval_id(state.waits.at("k")),
                                     .decision = "reject"}};
  ASSERT_TRUE(other.submit(no));
  engine::ControlRequest yes = answer_to("k", "s2", json("{'decision':'approve'}"));
  const auto second = other.start_request(yes);
  env.loop.run_ready();
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  env.loop.advance(2s);
  ASSERT_TRUE(*second && **second);
  EXPECT_EQ((***second)["outcome"], "rejected");
  EXPECT_EQ((***second)["applied"], Value(false));
}

AE_TEST("inbox/a second resolution of a call is rejected") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(
      plan("at_most_once",
           "[{'id':'a', 'kind':'tool', 'tool':'do'}, {'id':'b', 'kind':'tool', 'tool':'do'}]"));
  worker.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset", .error_message = "lost"});
  WorkerFixture other(env, "other", {.owned = false});
  engine::ResolveRequest resolve{.idempotency_key = other.read().state.steps[0].call->key.text,
                                 .resolution = "happened"};
  const auto first = other.start_request({.body = resolve});
  env.loop.run_ready();
  resolve.resolution = "fail";
  const auto second = other.start_request({.body = resolve});
  env.loop.run_ready();
  worker.answer(1, {.kind = OutcomeKind::success, .result = json("1")});
  env.loop.advance(2s);
  ASSERT_TRUE(*first && **first);
  EXPECT_EQ((***first)["resolution"], "happened");
  ASSERT_TRUE(*second);
  ASSERT_FALSE(**second);
  EXPECT_EQ((*second)->error().code, Code::not_in_doubt);
  EXPECT_EQ(worker.status(), "completed");
}

AE_TEST("inbox/an early answer that is invalid for its wait is listed as undelivered") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.owned = true, .durability = durability});
    worker.runtime->start();
    // Until `a` has answered, nothing shows that the key is that of a human wait.
    worker.create(plan("idempotent",
                       "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                       " {'id':'w', 'kind':'wait', 'needs':['a'],"
                       "  'wait':{'type':'human','key':'${ .steps.a }'}}]"));
    WorkerFixture other(env, "other", {.owned = false});  // the lease holder is not notified
    engine::ControlRequest none = answer_to("k", "s1", json("{'note':'hm'}"));
    std::get<engine::SignalRequest>(none.body).buffer = true;
    const auto early = other.start_request(none);
    env.loop.run_ready();
    worker.answer(0, {.kind = OutcomeKind::success, .result = json("'k'")});
    ASSERT_EQ(worker.status(), "waiting");
    env.loop.advance(2s);
    ASSERT_TRUE(*early && **early);
    EXPECT_EQ((***early)["buffered"], Value(true));
    EXPECT_FALSE(worker.warned("too late"));
    ASSERT_TRUE(worker.submit(answer_to("k", "s2", json("{'decision':'approve'}"))));
    env.loop.advance(2s);
    const auto read = worker.read();
    ASSERT_EQ(read.state.status, engine::JobStatus::completed);
    EXPECT_EQ(std::get<JobCompleted>(read.events.back().body).undelivered.json(),
              json("[{'correlation_key':'k','signal_id':'s1'}]"));
  }
}

AE_TEST("inbox/an early answer whose wait opens during the send is kept") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(
      plan("idempotent",
           "[{'id':'a', 'kind':'tool', 'tool':'do'}, {'id':'b', 'kind':'tool', 'tool':'do'},"
           " {'id':'w', 'kind':'wait', 'needs':['a'],"
           "  'wait':{'type':'human','key':'${ .steps.a }'}}]"));
  WorkerFixture other(env, "other", {.owned = false});
  bool answered = false;
  other.script = [&](const store::Call& call) {
    if (call.method == Method::put_inbox && !std::exchange(answered, true)) {
      worker.answer(0, {.kind = OutcomeKind::success, .result = json("'k'")});
    }
    return Fault::none;
  };
  engine::ControlRequest none = answer_to("k", "s1", json("{'note':'hm'}"));
  std::get<engine::SignalRequest>(none.body).buffer = true;
  const auto result = other.start_request(none);
  env.loop.run_ready();
  worker.answer(1, {.kind = OutcomeKind::success, .result = json("1")});
  env.loop.advance(2s);
  ASSERT_TRUE(*result && **result);
  EXPECT_EQ((***result)["accepted"], Value(true)) << canonical(***result);
  ASSERT_TRUE(worker.submit(answer_to("k", "s2", json("{'decision':'approve'}"))));
  env.loop.advance(2s);
  EXPECT_EQ(std::get<JobCompleted>(worker.read().events.back().body).undelivered.json(),
            json("[{'correlation_key':'k','signal_id':'s1'}]"));
}

AE_TEST("inbox/an early signal or message to a leased job is kept and delivered once") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.owned = true, .durability = durability});
    worker.runtime->start();
    worker.create(
        plan("idempotent",
             "[{'id':'a', 'kind':'tool', 'tool':'do'},"
             " {'id':'w', 'kind':'wait', 'needs':['a'], 'wait':{'type':'signal','key':'k'}},"
             " {'id':'m', 'kind':'wait', 'needs':['w'],"
             "  'wait':{'type':'message','channel':'c'}}]"));
    WorkerFixture other(env, "other", {.owned = false});  // the lease holder is not notified
    const auto early =
        other.start_request({.id = "1",
                             .body = engine::SignalRequest{
                                 .correlation_key = "k", .buffer = true, .payload = json("7")}});
    env.loop.run_ready();
    // The same id on a channel is another request.
    const auto message = other.start_request(
        {.id = "1", .body = engine::MessageRequest{.channel = "c", .payload = json("8")}});
    env.loop.run_ready();
    worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    env.loop.advance(2s);
    ASSERT_TRUE(*early && **early);
    EXPECT_EQ((***early)["buffered"], Value(true));
    ASSERT_TRUE(*message && **message);
    EXPECT_EQ((***message)["accepted"], Value(true));
    const auto read = worker.read();
    EXPECT_EQ(read.state.status, engine::JobStatus::completed);
    EXPECT_EQ(read.state.steps[1].result, json("7"));
    EXPECT_EQ(read.state.steps[2].result, json("8"));
    EXPECT_TRUE(std::get<JobCompleted>(read.events.back().body).undelivered.is_null());
  }
}

AE_TEST("inbox/an early signal whose wait never opens is listed as undelivered") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("idempotent", kOneCall));
  WorkerFixture other(env, "other", {.owned = false});
  ASSERT_TRUE(
      other.submit({.id = "s1",
                    .body = engine::SignalRequest{
                        .correlation_key = "nobody", .buffer = true, .payload = json("7")}}));
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  const auto read = worker.read();
  EXPECT_EQ(read.state.status, engine::JobStatus::completed);
  EXPECT_EQ(std::get<JobCompleted>(read.events.back().body).undelivered.json(),
            json("[{'correlation_key':'nobody', 'signal_id':'s1'}]"));
}

}  // namespace
}  // namespace ae::runtime::testing
