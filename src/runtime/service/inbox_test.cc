// Tests of the inbox: signals and requests accepted while another worker holds the lease, expiries
// and refused commits.
#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "runtime/worker_fixture_test.h"

namespace ae::runtime::testing {
namespace {

AE_TEST("inbox/a signal accepted before the expiry of its wait wins") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.owned = true, .durability = durability});
    worker.runtime->start();
    worker.create(plan("idempotent", kWaitAndCall));
    env.loop.advance(9s);
    // The signal is in the inbox, and the lease holder has not been notified.
    WorkerFixture other(env, "other", {.owned = false});
    ASSERT_TRUE(other.signal("k", "s1"));
    env.loop.advance(5s);
    worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    const auto read = worker.read();
    EXPECT_EQ(read.state.status, engine::JobStatus::completed);
    EXPECT_EQ(read.state.closed_waits.at("k").outcome, "signalled");
    EXPECT_EQ(worker.calls.size(), 1u);
  }
}

AE_TEST("inbox/a refused commit records its outcomes again without repeating a call") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.owned = true, .durability = durability});
    worker.runtime->start();
    worker.create(plan("at_most_once",
                       "[{'id':'w', 'kind':'wait', 'wait': {'type':'signal', 'key':'k'}},"
                       " {'id':'a', 'kind':'tool', 'tool':'do'}]"));
    WorkerFixture other(env, "other", {.owned = false});
    ASSERT_TRUE(other.signal("k", "s1"));  // the lease holder is not notified
    // With this outcome the job would become idle and release its claim: the commit fails, because
    // the inbox holds a signal.
    worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    EXPECT_EQ(worker.runtime->counters().aetheris_job_reload_total, 1u);
    EXPECT_FALSE(worker.warned("reloading the job"));
    const auto read = worker.read();
    EXPECT_EQ(read.state.status, engine::JobStatus::completed);
    EXPECT_EQ(read.state.steps[1].result, json("1"));
    EXPECT_EQ(worker.calls.size(), 1u);
  }
}

AE_TEST("inbox/a human answer given in time counts, also if it is repeated after the expiry") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture other(env, "other", {.owned = false});
    const auto signal_of = [](const char* key, const char* id) {
      return engine::ControlRequest{
          .id = id,
          .body = engine::SignalRequest{.correlation_key = key,
                                        .payload = json(R"({"decision":"approve"})")}};
    };
    const auto answer = [&](const char* key, const char* id) {
      return other.submit(signal_of(key, id));
    };
    {
      WorkerFixture worker(env, "w", {.owned = true, .durability = durability});
      worker.create(
          plan("idempotent",
               "[{'id':'w', 'kind':'wait', 'wait': {'type':'human', 'key':'w', 'expires':'10s'}},"
               " {'id':'v', 'kind':'wait', 'wait': {'type':'human', 'key':'v', 'expires':'10s',"
               " 'on_expire':'continue'}},"
               " {'id':'a', 'kind':'tool', 'tool':'do'}]"));
      ASSERT_TRUE(answer("w", "s1"));  // the lease holder does not see it any more
    }
    env.loop.advance(20s);
    const auto again = other.start_request(signal_of("w", "s2"));
    EXPECT_TRUE(answer("w", "s1")) << "the same answer, sent again";
    const auto late = answer("v", "s3");
    ASSERT_FALSE(late);
    EXPECT_EQ(late.error().code, Code::wait_expired);
    WorkerFixture next(env, "next", {.owned = true, .durability = durability, .seed = 99});
    next.runtime->start();
    env.loop.advance(5s);
    ASSERT_TRUE(*again && **again);
    EXPECT_EQ((***again)["duplicate"], Value(true));
    EXPECT_EQ((***again)["outcome"], "approved");
    ASSERT_EQ(next.calls.size(), 1u);
    next.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    EXPECT_EQ(next.status(), "completed");
    EXPECT_EQ(next.read().state.closed_waits.at("w").outcome, "approved");
    EXPECT_EQ(next.read().state.closed_waits.at("v").outcome, "timed_out");
  }
}

AE_TEST("inbox/an answer to an expired wait of any type is refused and not stored") {
  for (const std::string type : {"signal", "webhook", "message"}) {
    TestEnvironment env;
    const bool by_channel = type == "message";
    const auto answer = [&](std::string id) {
      WorkerFixture other(env, "other", {.owned = false, .seed = 60});
      engine::RequestBody body =
          engine::SignalRequest{.correlation_key = "w", .payload = json("1")};
      if (by_channel) body = engine::MessageRequest{.channel = "w", .payload = json("1")};
      return other.submit({.id = std::move(id), .body = std::move(body)});
    };
    {
      WorkerFixture worker(env, "w", {.owned = true});
      worker.create(plan("idempotent", "[{'id':'w', 'kind':'wait', 'wait': {'type':'" + type +
                                           "', " + (by_channel ? "'channel'" : "'key'") +
                                           ":'w', 'expires':'10s', 'on_expire':'continue'}},"
                                           " {'id':'a', 'kind':'tool', 'tool':'do'}]"));
    }
    env.loop.advance(20s);  // no process runs the job, and none has recorded the expiry
    const auto late = answer("s1");
    ASSERT_FALSE(late) << type;
    EXPECT_EQ(late.error().code, Code::wait_expired) << type;
    WorkerFixture next(env, "next", {.owned = true, .seed = 99});
    next.runtime->start();
    env.loop.advance(5s);
    ASSERT_EQ(next.calls.size(), 1u) << type;
    next.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    EXPECT_EQ(next.status(), "completed") << type;
  }
}

AE_TEST("inbox/an entry without an event does not delay an expiry") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    const auto two_waits =
        plan("idempotent",
             "[{'id':'w', 'kind':'wait', 'wait': {'type':'signal', 'key':'w', 'expires':'10s',"
             " 'on_expire':'continue'}},"
             " {'id':'k', 'kind':'wait', 'wait': {'type':'signal', 'key':'k'}},"
             " {'id':'a', 'kind':'tool', 'tool':'do'}]");
    {
      WorkerFixture worker(env, "w", {.owned = true, .durability = durability});
      worker.create(two_waits);
      WorkerFixture other(env, "other", {.owned = false});
      ASSERT_TRUE(other.signal("k", "s1"));
      ASSERT_TRUE(other.signal("k", "s2"));  // accepted too; it will find the wait closed
    }
    env.loop.advance(20s);  // no process runs the job, and the other wait expires
    WorkerFixture next(env, "next", {.owned = true, .durability = durability, .seed = 99});
    next.runtime->start();
    env.loop.advance(5s);
    ASSERT_EQ(next.calls.size(), 1u);
    next.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    EXPECT_EQ(next.status(), "completed");
  }
}

AE_TEST("inbox/an outcome is kept if the log cannot be read after a refused commit") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("at_most_once",
                     "[{'id':'w', 'kind':'wait', 'wait': {'type': 'signal', 'key':'k'}},"
                     " {'id':'a', 'kind':'tool', 'tool':'do'}]"));
  WorkerFixture other(env, "other", {.owned = false});
  ASSERT_TRUE(other.signal("k", "s1"));
  int loads = 0;
  worker.script = [&](const store::Call& call) {
    return call.method == Method::load && ++loads <= 2 ? Fault::fail_before : Fault::none;
  };
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  env.loop.advance(5s);
  EXPECT_EQ(loads >= 3, true) << "the failure was reached";
  const auto read = worker.read();
  EXPECT_EQ(read.state.status, engine::JobStatus::completed);
  EXPECT_EQ(read.state.steps[1].result, json("1"));
  EXPECT_EQ(worker.calls.size(), 1u);
}

AE_TEST("inbox/an entry that arrives while the job ends is listed as undelivered") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("idempotent", kWaitAndCall));
  ASSERT_TRUE(worker.submit({.id = "c1", .body = engine::CancelRequest{}}));
  WorkerFixture other(env, "other", {.owned = false});
  store::InboxEntry entry{.number = 0, .id = "s1", .request = ""};
  const engine::ControlRequest request{.id = "s1",
                                       .body = engine::SignalRequest{.correlation_key = "k"}};
  entry.request =
      canonical(engine::with_checksum(engine::inbox_location(kJob, entry.id), request.to_json()));
  auto put = env.loop.await<Result<void>>(
      [&](auto done) { other.memory->put_inbox(kJob, entry, std::move(done)); });
  ASSERT_TRUE(put) << "accepted while the job was ending";
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  const auto read = worker.read();
  EXPECT_EQ(read.state.status, engine::JobStatus::cancelled);
  EXPECT_EQ(std::get<JobCancelled>(read.events.back().body).undelivered.json(),
            json("[{'correlation_key':'k', 'signal_id':'s1'}]"));
}

// An accepted request as another version might write it: location and checksum are valid, whatever
// it contains.
store::InboxEntry entry_of(const std::string& id, std::string_view request) {
  return {
      .number = 0,
      .id = id,
      .request = canonical(engine::with_checksum(engine::inbox_location(kJob, id), json(request)))};
}

AE_TEST_SLOW("limits/a job accepts 10,000 signals and refuses the next one without writing it") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(
      plan("idempotent", kWaitAndCall));  // its call keeps it leased: signals stay in the inbox
  WorkerFixture other(env, "other", {.owned = false});
  const auto put = [&](const std::string& id) {
    const store::InboxEntry entry = entry_of(
        id, fmt::format("{{'kind':'signal', 'id':'{}', 'correlation_key':'later', 'buffer':true}}",
                        id));
    return env.loop
        .await<Result<void>>(
            [&](auto done) { other.memory->put_inbox(kJob, entry, std::move(done)); })
        .has_value();
  };
  for (std::size_t i = 0; i + 1 < engine::kSignalsMax; ++i) ASSERT_TRUE(put(fmt::format("s{}", i)));
  EXPECT_TRUE(other.submit({.id = "last", .body = engine::MessageRequest{.channel = "c"}}))
      << "a message counts, too";
  const auto one_more = other.signal("k", "one more");
  ASSERT_FALSE(one_more);
  EXPECT_EQ(one_more.error().code, Code::signals_limit);
  EXPECT_NE(one_more.error().message.find("10000 signals"), std::string::npos);
  EXPECT_EQ(other.read().inbox.size(), engine::kSignalsMax) << "nothing was written";
  EXPECT_TRUE(other.submit({.id = "c", .body = engine::CancelRequest{}}))
      << "it can still be ended";
}

constexpr std::string_view kNewerRequests[] = {
    "{'kind':'postpone', 'id':'n1', 'until':'tomorrow'}",
    "{'kind':'signal', 'id':'n1', 'correlation_key':'k', 'only_if':'sunny'}"};

AE_TEST("inbox/a request of a newer version stays, and the job is left to a newer process") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    for (const std::string_view request : kNewerRequests) {
      TestEnvironment env;
      WorkerFixture worker(env, "w", {.owned = false, .durability = durability});
      worker.runtime->start();
      worker.create(plan("idempotent", kWaitAndCall));
      ASSERT_EQ(worker.calls.size(), 1u);
      const auto put = [&](const store::InboxEntry& entry) {
        const auto done = env.loop.await<Result<void>>(
            [&](auto done) { worker.memory->put_inbox(kJob, entry, std::move(done)); });
        ASSERT_TRUE(done);
      };
      const auto load = [&] {
        return *env.loop.await<Result<store::LoadedJob>>(
            [&](auto done) { worker.memory->load(kJob, 1, std::move(done)); });
      };
      put(entry_of("s0", "{'kind':'signal', 'id':'s0', 'correlation_key':'k', 'payload':'on'}"));
      put(entry_of("n1", request));
      put(entry_of("c1", "{'kind':'cancel', 'id':'c1'}"));
      worker.faulty->hint({.inbox_of = kJob});
      env.loop.advance(1s);
      EXPECT_EQ(load().inbox.size(), 3u) << request;
      EXPECT_TRUE(worker.runtime->is_leased(kJob)) << "its call is in flight";
      worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
      env.loop.advance(1s);
      EXPECT_FALSE(worker.runtime->is_leased(kJob));
      ASSERT_TRUE(worker.runtime->refusal_of(kJob)) << request;
      EXPECT_EQ(worker.runtime->refusal_of(kJob)->code, Code::needs_version);
      const auto left = worker.read();
      const auto* requeued = as<JobRequeued>(left.events.back());
      ASSERT_NE(requeued, nullptr) << request;
      EXPECT_EQ(requeued->reason, "needs_version");
      EXPECT_EQ(left.state.lost_claims, 0u);
      EXPECT_TRUE(std::ranges::any_of(left.events, [](const Event& event) {
        return event.type == EventType::tool_invocation_finished;
      })) << "the outcome is recorded";
      // Another process of this version can read no more of it than this one, and neither claims it
      // again.
      WorkerFixture other(env, "other", {.owned = false, .durability = durability, .seed = 99});
      other.runtime->start();
      env.loop.advance(300s);
      ASSERT_TRUE(other.runtime->refusal_of(kJob));
      EXPECT_EQ(other.runtime->refusal_of(kJob)->code, Code::needs_version);
      EXPECT_FALSE(worker.warned("an accepted request")) << request;
      EXPECT_FALSE(other.warned("an accepted request")) << request;
      const store::LoadedJob after = load();
      EXPECT_EQ(after.row.last_seq, left.row.last_seq) << "no attempt has begun";
      ASSERT_EQ(after.inbox.size(), 3u);
      EXPECT_EQ(after.inbox[1].id, "n1");
      EXPECT_TRUE(after.row.claim) << "the claim row stays, so that requests go to the inbox";
      // A request that is accepted now comes after it.
      ASSERT_TRUE(worker.submit({.id = "p1", .body = engine::PauseRequest{}}));
      EXPECT_EQ(load().inbox.size(), 4u);
      EXPECT_EQ(worker.calls.size(), 1u);
      EXPECT_EQ(other.calls.size(), 0u);
    }
  }
}

AE_TEST("inbox/a wait that an inbox entry answers is opened and completed in one commit") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.owned = true, .durability = durability});
    worker.runtime->start();
    // Another call is in flight while the wait opens, so that the job is not released.
    worker.create(plan("idempotent",
                       "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                       " {'id':'long', 'kind':'tool', 'tool':'do'},"
                       " {'id':'w', 'kind':'wait', 'needs':['a'],"
                       "  'wait':{'type':'signal','key':'k'}}]"));
    ASSERT_EQ(worker.calls.size(), 2u);
    WorkerFixture other(env, "other", {.owned = false});  // the lease holder is not notified
    ASSERT_TRUE(other.submit({.id = "1",
                              .body = engine::SignalRequest{
                                  .correlation_key = "k", .buffer = true, .payload = json("7")}}));
    worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    const auto read = worker.read();
    EXPECT_EQ(read.state.status, engine::JobStatus::running);
    EXPECT_TRUE(read.inbox.empty()) << "an entry was left in the inbox";
    EXPECT_EQ(read.state.closed_waits.at("k").outcome, "signalled");
    EXPECT_EQ(worker.calls.size(), 2u) << "nothing is called again";
    const auto opened = all_of(read.events, EventType::wait_opened);
    const auto closed = all_of(read.events, EventType::wait_completed);
    ASSERT_EQ(opened.size(), 1u);
    EXPECT_EQ(opened[0]->created_at, closed[0]->created_at);
  }
}

}  // namespace
}  // namespace ae::runtime::testing
