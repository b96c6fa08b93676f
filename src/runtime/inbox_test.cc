// Tests of control requests and timers, with and without a lease holder: signals, resolutions,
// pauses.
#include <algorithm>
#include <chrono>
#include <memory>

#include "runtime/worker_fixture_test.h"

namespace ae::runtime::testing {
namespace {

engine::ControlRequest answer_to(std::string key, std::string id, Value payload) {
  return {.id = std::move(id),
          .body = engine::SignalRequest{.correlation_key = std::move(key),
                                        .payload = std::move(payload)}};
}

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
    EXPECT_TRUE(worker.warned("inbox")) << "the refusal was reached";
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
  EXPECT_EQ(std::get<JobCancelled>(read.events.back().body).undelivered,
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
        id, "{'kind':'signal', 'id':'" + id + "', 'correlation_key':'later', 'buffer':true}");
    return env.loop
        .await<Result<void>>(
            [&](auto done) { other.memory->put_inbox(kJob, entry, std::move(done)); })
        .has_value();
  };
  for (std::size_t i = 0; i + 1 < engine::kSignalsMax; ++i)
    ASSERT_TRUE(put("s" + std::to_string(i)));
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

AE_TEST("hint/a hint triggers a claim or an inbox read before the next poll") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = false});
  worker.runtime->start();
  env.loop.run_ready();
  WorkerFixture other(env, "other", {.owned = false});  // runs nothing
  NewJobRequest request;
  request.job = kJob;
  request.agent = "agent";
  request.plan = plan("idempotent", kWaitAndCall);
  request.start_here = false;
  ASSERT_TRUE(env.loop.await<Result<CreateResult>>(
      [&](auto done) { other.runtime->create(request, std::move(done)); }));
  env.loop.run_ready();
  EXPECT_FALSE(worker.runtime->is_leased(kJob)) << "there was no hint";
  worker.faulty->hint({});
  env.loop.run_ready();
  ASSERT_TRUE(worker.runtime->is_leased(kJob));
  const engine::ControlRequest cancel{.id = "c1", .body = engine::CancelRequest{}};
  const std::size_t before = worker.read().events.size();
  ASSERT_TRUE(other.submit(cancel)) << "in the inbox, as another worker holds the lease";
  EXPECT_EQ(worker.read().events.size(), before);
  worker.faulty->hint({.inbox_of = kJob});
  env.loop.run_ready();
  EXPECT_GT(worker.read().events.size(), before);
}

AE_TEST("hint/a hint for jobs that this worker cannot run triggers no claim") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = false});
  int may_claim = 0;
  worker.script = [&](const store::Call& call) {
    may_claim += call.method == Method::claim ? 1 : 0;
    return Fault::none;
  };
  worker.runtime->offer({"agent"}, {{"agent", "7"}});
  worker.runtime->start();
  env.loop.run_ready();
  const int before = may_claim;
  const auto create = [&](const std::string& agent, std::vector<std::string> needed) {
    NewJobRequest request;
    request.agent = agent;
    request.plan = plan("idempotent", kWaitAndCall);
    request.required_capabilities = std::move(needed);
    request.start_here = false;
    const auto made = env.loop.await<Result<CreateResult>>(
        [&](auto done) { worker.runtime->create(request, std::move(done)); });
    EXPECT_TRUE(made);
    env.loop.run_ready();
    return made ? made->job : JobId();
  };
  const JobId needy = create("agent", {"gpu"});
  create("another", {});
  const auto cancelled = env.loop.await<Result<Value>>([&](auto done) {
    worker.runtime->submit_request(needy, {.id = "p", .body = engine::PauseRequest{}},
                                   std::move(done));
  });
  EXPECT_TRUE(cancelled);
  worker.faulty->hint({.inbox_of = {}, .needs = store::Hint::Needs{"another", {}}});
  worker.faulty->hint({.inbox_of = {}, .needs = store::Hint::Needs{"agent", {"gpu"}}});
  env.loop.run_ready();
  EXPECT_EQ(may_claim, before);
  worker.faulty->hint({.inbox_of = {}, .needs = store::Hint::Needs{"agent", {}}});
  env.loop.run_ready();
  EXPECT_EQ(may_claim, before + 1);
  const JobId ours = create("agent", {});
  EXPECT_TRUE(worker.runtime->is_leased(ours));
}

// The pending claim read the store before the job existed, and returns no job.
AE_TEST("hint/a hint during a pending claim triggers another claim") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = false, .delay = 100ms});
  int may_claim = 0;
  worker.script = [&](const store::Call& call) {
    const bool first = call.method == Method::claim && ++may_claim == 1;
    return first ? Fault::delay_answer : Fault::none;
  };
  worker.runtime->start();
  WorkerFixture other(env, "other", {.owned = false});  // runs nothing
  NewJobRequest request;
  request.job = kJob;
  request.agent = "agent";
  request.plan = plan("idempotent", kWaitAndCall);
  request.start_here = false;
  ASSERT_TRUE(env.loop.await<Result<CreateResult>>(
      [&](auto done) { other.runtime->create(request, std::move(done)); }));
  worker.faulty->hint({});
  env.loop.run_ready();
  ASSERT_FALSE(worker.runtime->is_leased(kJob)) << "the first claim is not answered yet";
  env.loop.advance(150ms);
  EXPECT_TRUE(worker.runtime->is_leased(kJob)) << "before the next poll";
}

AE_TEST("hint/an inbox entry whose hint was lost is found at the next heartbeat") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = false});
  worker.runtime->start();
  worker.create(plan("idempotent", kWaitAndCall));
  WorkerFixture other(env, "other", {.owned = false});
  ASSERT_TRUE(other.submit({.id = "c1", .body = engine::CancelRequest{}}));
  const std::size_t before = worker.read().events.size();
  env.loop.advance(10s);
  EXPECT_GT(worker.read().events.size(), before);
}

AE_TEST("job_cache/a cached job is read from its last known event on, also by its lease holder") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.owned = true, .durability = durability});
    std::vector<std::uint64_t> loads;
    worker.script = [&](const store::Call& call) {
      if (call.method == Method::load) loads.push_back(call.from_seq);
      return Fault::none;
    };
    worker.runtime->start();
    worker.create(plan("idempotent", kTwoWaits));
    ASSERT_EQ(worker.status(), "waiting");
    const std::uint64_t cached = worker.read().row.last_seq;
    loads.clear();
    ASSERT_TRUE(worker.signal("j", "s1"));
    env.loop.advance(1s);
    ASSERT_EQ(worker.status(), "waiting");
    ASSERT_GE(loads.size(), 2u) << "one load for the request, one for the lease holder";
    EXPECT_EQ(loads[0], cached + 1);
    EXPECT_GT(loads[1], cached);
    EXPECT_FALSE(worker.signal("no such key", "s2"));
    ASSERT_TRUE(worker.signal("k", "s3"));
    env.loop.advance(1s);
    EXPECT_EQ(worker.status(), "completed");
  }
}

AE_TEST("job_cache/events of other workers are applied to a cached job") {
  TestEnvironment env;
  WorkerFixture first(env, "first", {.seed = 1});
  WorkerFixture second(env, "second", {.seed = 1'000'001});
  first.runtime->start();
  first.create(plan("idempotent", kTwoWaits));
  ASSERT_EQ(first.status(), "waiting");
  second.runtime->start();
  ASSERT_TRUE(second.signal("j", "s1"));
  env.loop.advance(30s);
  const auto again = first.signal("j", "s2");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ((*again)["duplicate"], Value(true));
  ASSERT_TRUE(first.signal("k", "s3"));
  env.loop.advance(30s);
  EXPECT_EQ(first.status(), "completed");
}

AE_TEST("job_cache/a log that does not contain the cached head is read completely") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = false});
  worker.create(plan("idempotent", kTwoWaits));
  worker.runtime->start();
  env.loop.advance(1s);
  ASSERT_EQ(worker.status(), "waiting");
  CachedJob other{.state = worker.read().state, .head = sha256("another log")};
  engine::PlanCache plans;
  auto loaded_state = env.loop.await<Result<LoadedState>>([&](auto done) {
    load_state(*worker.memory, kJob, plans, std::move(other), std::move(done));
  });
  ASSERT_TRUE(loaded_state);
  ASSERT_TRUE(loaded_state->state);
  const auto whole = env.loop.await<Result<store::LoadedJob>>(
      [&](auto done) { worker.memory->load(kJob, 1, std::move(done)); });
  EXPECT_EQ(loaded_state->loaded.commits, whole->commits);
  EXPECT_EQ(loaded_state->state->status, engine::JobStatus::waiting);
}

AE_TEST("job_cache/the cache is bounded in bytes and evicts the least recently used job") {
  JobCache cache;
  const auto cached = [](std::size_t bytes) {
    CachedJob one;
    one.bytes = bytes;
    return one;
  };
  cache.insert(JobId("too large"), cached(JobCache::kJobBytesMax + 1));
  EXPECT_FALSE(cache.extract(JobId("too large")));
  const std::size_t fit = JobCache::kBytesMax / JobCache::kJobBytesMax;
  for (std::size_t i = 0; i <= fit; ++i) {
    cache.insert(JobId("j" + std::to_string(i)), cached(JobCache::kJobBytesMax));
    if (i > 0) cache.insert(JobId("j0"), *cache.extract(JobId("j0")));
  }
  EXPECT_TRUE(cache.extract(JobId("j0")));
  EXPECT_FALSE(cache.extract(JobId("j1")));
  EXPECT_TRUE(cache.extract(JobId("j2")));
  EXPECT_FALSE(cache.extract(JobId("j2"))) << "it was extracted";
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
      .body = engine::SignalRequest{.approval = state.approval_id(state.waits.at("k")),
                                    .wait_type = "human",
                                    .payload = json("{'decision':'reject'}")}};
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
    EXPECT_EQ(std::get<JobCompleted>(read.events.back().body).undelivered,
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
  EXPECT_EQ(std::get<JobCompleted>(worker.read().events.back().body).undelivered,
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
  EXPECT_EQ(std::get<JobCompleted>(read.events.back().body).undelivered,
            json("[{'correlation_key':'nobody', 'signal_id':'s1'}]"));
}

AE_TEST("pause/an accepted pause is durable and applied by the current or next lease holder") {
  for (const bool dies : {false, true}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.owned = true});
    worker.runtime->start();
    worker.create(plan("idempotent", kOneCall));
    WorkerFixture other(env, "other", {.owned = false});  // the lease holder is not notified
    const auto result = other.submit({.body = engine::PauseRequest{}});
    ASSERT_TRUE(result);
    EXPECT_EQ((*result)["accepted"], Value(true));
    std::optional<WorkerFixture> next;
    if (dies) {
      worker.runtime.reset();
      next.emplace(env, "next", WorkerFixture::Setup{.owned = true, .seed = 99});
      next->runtime->start();
      env.loop.advance(60s);
      EXPECT_EQ(next->status(), "parked");
      EXPECT_TRUE(next->calls.empty());
      ASSERT_TRUE(next->submit({.body = engine::ResumeRequest{}}));
      env.loop.advance(2s);
      next->answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    } else {
      worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    }
    EXPECT_EQ(other.status(), "completed");
  }
}

AE_TEST("pause/a resume revokes a pause that is still in the inbox") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("idempotent",
                     "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                     " {'id':'b', 'kind':'tool', 'tool':'do', 'needs':['a']}]"));
  WorkerFixture other(env, "other", {.owned = false});
  ASSERT_TRUE(other.submit({.body = engine::PauseRequest{}}));
  const auto resumed = other.submit({.body = engine::ResumeRequest{}});
  ASSERT_TRUE(resumed) << resumed.error().message;
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(worker.calls.size(), 2u);
  EXPECT_EQ(worker.status(), "running");
}

AE_TEST("pause/a timer that is due during a pause fires after the resume") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(
      plan("idempotent", "[{'id':'t', 'kind':'wait', 'wait':{'type':'timer', 'for':'10s'}}]"));
  ASSERT_TRUE(worker.submit({.body = engine::PauseRequest{}}));
  env.loop.advance(60s);
  EXPECT_EQ(worker.status(), "parked");
  ASSERT_TRUE(worker.submit({.body = engine::ResumeRequest{}}));
  env.loop.advance(5s);
  EXPECT_EQ(worker.status(), "completed");
}

AE_TEST("approval/of two answers to a leased job the first counts") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("idempotent",
                     "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                     " {'id':'w', 'kind':'wait', 'wait':{'type':'human', 'key':'k',"
                     "  'on_reject':'continue'}}]"));
  const std::string id = worker.read().state.approval_id(worker.read().state.waits.at("k"));
  const auto answer = [&](std::string_view decision) {
    return worker.submit(
        {.body = engine::SignalRequest{.approval = id,
                                       .wait_type = "human",
                                       .payload = Value::object({{"decision", decision}})}});
  };
  const auto first = answer("reject"), second = answer("approve");
  ASSERT_TRUE(first);
  EXPECT_EQ((*first)["outcome"], "rejected");
  ASSERT_TRUE(second);
  EXPECT_EQ((*second)["outcome"], "rejected");
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(worker.read().state.closed_waits.at("k").outcome, "rejected");
}

AE_TEST(
    "unknown_outcome/not_happened is refused until the call has settled, also after a restart") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("at_most_once", kOneCall));
  worker.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  ASSERT_EQ(worker.status(), "parked");
  const auto early = worker.resolve("not_happened");
  ASSERT_FALSE(early) << "this process is alive: its call may still be in flight";
  EXPECT_EQ(early.error().code, Code::not_settled);
  // Another process has opened the store since: the caller has exited, but its request may still
  // take effect.
  const Instant settles = worker.read().state.steps[0].call->deadline + 30s;
  worker.runtime.reset();
  WorkerFixture next(env, "next", {.owned = true, .seed = 99});
  const auto restarted = next.resolve("not_happened");
  ASSERT_FALSE(restarted);
  EXPECT_EQ(restarted.error().code, Code::not_settled);
  EXPECT_NE(restarted.error().message.find(to_text(settles)), std::string::npos);
  env.loop.advance(settles - env.loop.now());
  EXPECT_TRUE(next.resolve("not_happened"));
}

AE_TEST(
    "unknown_outcome/a killed process's call settles timeout and grace after the next opening") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("at_most_once", kOneCall));
  env.loop.advance(2s);
  worker.runtime.reset();  // with its call in flight
  WorkerFixture next(env, "next", {.owned = true, .seed = 99});
  const Instant opened = env.loop.now();
  next.runtime->start();
  env.loop.run_ready();
  ASSERT_EQ(next.status(), "parked");
  const Runtime::JobSnapshot read = next.read();
  const engine::Step& step = read.state.steps[0];
  const Instant settles = opened + (step.call->deadline - step.call->send_by) + 30s;
  EXPECT_EQ(read.state.settles_at(step), settles);
  env.loop.advance(settles - env.loop.now() - 1ms);
  const auto early = next.resolve("not_happened");
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code, Code::not_settled);
  env.loop.advance(1ms);
  EXPECT_TRUE(next.resolve("not_happened"));
}

AE_TEST("unknown_outcome/a call resolved as happened without a result completes with null") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("at_most_once", kOneCall));
  worker.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  ASSERT_EQ(worker.status(), "parked");
  ASSERT_TRUE(worker.resolve("happened"));
  env.loop.run_ready();
  const Runtime::JobSnapshot read = worker.read();
  EXPECT_EQ(engine::to_text(read.state.status), "completed");
  EXPECT_TRUE(read.state.steps[0].result.is_null());
  EXPECT_EQ(worker.calls.size(), 1u);
}

AE_TEST("unknown_outcome/a resolution counts from its arrival, not from a delayed load") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true, .delay = 100s});
  worker.runtime->start();
  worker.create(plan("at_most_once", kOneCall));
  worker.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  ASSERT_EQ(worker.status(), "parked");
  const Instant settles = worker.read().state.steps[0].call->deadline + 30s;
  env.loop.advance(settles - env.loop.now() - 50s);
  std::optional<Result<Value>> result;
  engine::ControlRequest request = not_happened(worker.read());
  bool slow = true;
  worker.script = [&](const store::Call& of) {
    const bool is_load = of.method == Method::load && std::exchange(slow, false);
    return is_load ? Fault::delay : Fault::none;
  };
  request.checked_at = settles + 1h;  // the caller's clock is ahead
  worker.runtime->submit_request(kJob, request,
                                 [&](Result<Value> answer) { result.emplace(std::move(answer)); });
  env.loop.advance(101s);
  ASSERT_TRUE(result);
  ASSERT_FALSE(*result) << "the time of the decision cannot be verified";
  EXPECT_EQ(result->error().code, Code::not_settled);
  EXPECT_TRUE(worker.submit(not_happened(worker.read())));
  env.loop.advance(2s);
  EXPECT_EQ(worker.calls.size(), 2u);
}

AE_TEST("unknown_outcome/a resolution checked before the call settled is refused at any time") {
  TwoWorkersFixture two("at_most_once");
  two.env.loop.advance(120s);
  ASSERT_EQ(two.second.status(), "parked");
  const Instant checked_at = two.env.loop.now();
  two.env.loop.advance(1200s);
  engine::ControlRequest request = not_happened(two.second.read());
  request.checked_at = checked_at;
  const auto early = two.second.submit(request);
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code, Code::not_settled);
  EXPECT_NE(early.error().message.find(to_text(checked_at)), std::string::npos);
  request.checked_at = two.env.loop.now();
  EXPECT_TRUE(two.second.submit(request));
}

AE_TEST("unknown_outcome/the lease holder applies a resolution by the time it was checked at") {
  TestEnvironment env;
  WorkerFixture first(env, "first", {.seed = 1});
  WorkerFixture second(env, "second", {.seed = 1'000'001});
  first.runtime->start();
  first.create(plan("at_most_once",
                    "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                    " {'id':'b', 'kind':'tool', 'tool':'do'}]"));
  first.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  const auto read = second.read();
  ASSERT_TRUE(read.row.claim) << "the other call keeps the job held";
  const Instant settles = read.state.steps[0].call->deadline + 30s;
  env.loop.advance(settles + 1s - env.loop.now());
  // However it got into the inbox: this resolution was made too early.
  engine::ControlRequest early = not_happened(read);
  early.id = "early";
  early.checked_at = settles - 1s;
  store::InboxEntry entry{.number = 0, .id = early.id, .request = {}};
  entry.request =
      canonical(engine::with_checksum(engine::inbox_location(kJob, entry.id), early.to_json()));
  auto put = env.loop.await<Result<void>>(
      [&](auto done) { second.memory->put_inbox(kJob, entry, std::move(done)); });
  ASSERT_TRUE(put);
  engine::ControlRequest request = not_happened(read);
  request.id = "in time";
  const auto result = second.submit(request);
  ASSERT_TRUE(result);
  EXPECT_EQ((*result)["accepted"], Value(true));
  const auto posted = second.read();
  ASSERT_EQ(posted.inbox.size(), 2u) << "the lease holder was not notified";
  EXPECT_EQ(parse_json(posted.inbox[1].request)->text("looked_at"), to_text(env.loop.now()));
  first.answer(1, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  env.loop.advance(2s);
  std::vector<std::string_view> applied;
  const auto after = first.read();
  for (const auto* wait : all_of<WaitCompleted>(after.events)) {
    applied.push_back(or_empty(wait->signal_id));
  }
  EXPECT_EQ(applied, (std::vector<std::string_view>{"in time"}));
}

AE_TEST(
    "unknown_outcome/the lease holder refuses not_happened at once for its own unsettled call") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("at_most_once",
                     "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                     " {'id':'b', 'kind':'tool', 'tool':'do'}]"));
  worker.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  ASSERT_TRUE(worker.runtime->is_leased(kJob));
  const auto early = worker.submit(not_happened(worker.read()));
  ASSERT_FALSE(early) << "accepted and dropped: " << canonical(*early);
  EXPECT_EQ(early.error().code, Code::not_settled);
  EXPECT_FALSE(worker.warned("no longer applies"));
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
