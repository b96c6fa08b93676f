// Tests of control requests and timers, with and without a lease holder: signals, resolutions,
// pauses.
#include <algorithm>
#include <chrono>
#include <memory>

#include "runtime/worker_fixture_test.h"

namespace ae::runtime::testing {
namespace {

engine::ControlRequest answer_to(std::string key, std::string id, Value payload) {
  return {.kind = engine::ControlRequest::Kind::signal,
          .id = std::move(id),
          .correlation_key = std::move(key),
          .payload = std::move(payload)};
}

AE_TEST("inbox/an expiry loses to a signal that was accepted before it") {
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

AE_TEST("inbox/a refused commit records its outcomes anew, and calls nothing again") {
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

AE_TEST(
    "inbox/a person's answer that came in time is one, also when it is given again after the "
    "expiry") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture other(env, "other", {.owned = false});
    const auto signal_of = [](const char* key, const char* id) {
      return engine::ControlRequest{.kind = engine::ControlRequest::Kind::signal,
                                    .id = id,
                                    .correlation_key = key,
                                    .payload = json(R"({"decision":"approve"})")};
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

AE_TEST("inbox/an answer to a wait of any type that has expired is refused, and none is kept") {
  for (const std::string type : {"signal", "webhook", "message"}) {
    TestEnvironment env;
    const bool by_channel = type == "message";
    const auto answer = [&](std::string id) {
      WorkerFixture other(env, "other", {.owned = false, .seed = 60});
      return other.submit({.kind = by_channel ? engine::ControlRequest::Kind::message
                                              : engine::ControlRequest::Kind::signal,
                           .id = std::move(id),
                           .correlation_key = by_channel ? "" : "w",
                           .payload = json("1"),
                           .channel = by_channel ? "w" : ""});
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

AE_TEST("inbox/an entry that gives no event does not hold up an expiry") {
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

AE_TEST("inbox/an outcome survives that the log could not be read after a refusal") {
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

AE_TEST("inbox/what the end overtakes is listed as undelivered") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("idempotent", kWaitAndCall));
  ASSERT_TRUE(worker.submit({.kind = engine::ControlRequest::Kind::cancel, .id = "c1"}));
  WorkerFixture other(env, "other", {.owned = false});
  store::InboxEntry entry{.number = 0, .id = "s1", .request = ""};
  const engine::ControlRequest request{
      .kind = engine::ControlRequest::Kind::signal, .id = "s1", .correlation_key = "k"};
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

AE_TEST_SLOW("limits/a job accepts 10,000 signals; the next one is refused and not written") {
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
  EXPECT_TRUE(
      other.submit({.kind = engine::ControlRequest::Kind::message, .id = "last", .channel = "c"}))
      << "a message counts, too";
  const auto one_more = other.signal("k", "one more");
  ASSERT_FALSE(one_more);
  EXPECT_EQ(one_more.error().code, Code::signals_limit);
  EXPECT_NE(one_more.error().message.find("10000 signals"), std::string::npos);
  EXPECT_EQ(other.read().inbox.size(), engine::kSignalsMax) << "nothing was written";
  EXPECT_TRUE(other.submit({.kind = engine::ControlRequest::Kind::cancel, .id = "c"}))
      << "it can still be ended";
}

constexpr std::string_view kNewerRequests[] = {
    "{'kind':'postpone', 'id':'n1', 'until':'tomorrow'}",
    "{'kind':'signal', 'id':'n1', 'correlation_key':'k', 'only_if':'sunny'}"};

AE_TEST("inbox/an act of a newer version stays there, and the job is left to who can read it") {
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
      EXPECT_TRUE(worker.runtime->is_leased(kJob)) << "its call is on its way";
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
      })) << "what was seen is recorded";
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
      EXPECT_TRUE(after.row.claim) << "who is in the inbox's way goes to the inbox";
      // A request that is accepted now comes after it.
      ASSERT_TRUE(worker.submit({.kind = engine::ControlRequest::Kind::pause, .id = "p1"}));
      EXPECT_EQ(load().inbox.size(), 4u);
      EXPECT_EQ(worker.calls.size(), 1u);
      EXPECT_EQ(other.calls.size(), 0u);
    }
  }
}

AE_TEST("hint/what another process has done is looked at before the poll would") {
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
  EXPECT_FALSE(worker.runtime->is_leased(kJob)) << "nobody has said so";
  worker.faulty->hint({});
  env.loop.run_ready();
  ASSERT_TRUE(worker.runtime->is_leased(kJob));
  const engine::ControlRequest cancel{.kind = engine::ControlRequest::Kind::cancel, .id = "c1"};
  const std::size_t before = worker.read().events.size();
  ASSERT_TRUE(other.submit(cancel)) << "by the inbox, for another holds it";
  EXPECT_EQ(worker.read().events.size(), before);
  worker.faulty->hint({.inbox_of = kJob});
  env.loop.run_ready();
  EXPECT_GT(worker.read().events.size(), before);
}

AE_TEST("hint/one for jobs that others run, and a job that others run, starts no claim") {
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
    worker.runtime->submit_request(needy, {.kind = engine::ControlRequest::Kind::pause, .id = "p"},
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
AE_TEST("hint/one that comes while a claim is under way is not forgotten") {
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
  EXPECT_TRUE(worker.runtime->is_leased(kJob)) << "long before the poll";
}

AE_TEST("hint/a post whose hint was lost is found with the next heartbeat") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = false});
  worker.runtime->start();
  worker.create(plan("idempotent", kWaitAndCall));
  WorkerFixture other(env, "other", {.owned = false});
  ASSERT_TRUE(other.submit({.kind = engine::ControlRequest::Kind::cancel, .id = "c1"}));
  const std::size_t before = worker.read().events.size();
  env.loop.advance(10s);
  EXPECT_GT(worker.read().events.size(), before);
}

AE_TEST("resting/what is looked at again is read from where it was left, by its holder too") {
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
    const std::uint64_t rested = worker.read().row.last_seq;
    loads.clear();
    ASSERT_TRUE(worker.signal("j", "s1"));
    env.loop.advance(1s);
    ASSERT_EQ(worker.status(), "waiting");
    ASSERT_GE(loads.size(), 2u) << "the act, its holder";
    EXPECT_EQ(loads[0], rested + 1);
    EXPECT_GT(loads[1], rested);
    EXPECT_FALSE(worker.signal("no such key", "s2"));
    ASSERT_TRUE(worker.signal("k", "s3"));
    env.loop.advance(1s);
    EXPECT_EQ(worker.status(), "completed");
  }
}

AE_TEST("resting/what another worker wrote meanwhile is taken in") {
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

AE_TEST("resting/a log that does not go through what was remembered is read whole") {
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

AE_TEST("resting/it is bounded in bytes, and what was used least lately goes first") {
  JobCache cache;
  const auto rested = [](std::size_t bytes) {
    CachedJob one;
    one.bytes = bytes;
    return one;
  };
  cache.insert(JobId("too large"), rested(JobCache::kJobBytesMax + 1));
  EXPECT_FALSE(cache.extract(JobId("too large")));
  const std::size_t fit = JobCache::kBytesMax / JobCache::kJobBytesMax;
  for (std::size_t i = 0; i <= fit; ++i) {
    cache.insert(JobId("j" + std::to_string(i)), rested(JobCache::kJobBytesMax));
    if (i > 0) cache.insert(JobId("j0"), *cache.extract(JobId("j0")));
  }
  EXPECT_TRUE(cache.extract(JobId("j0")));
  EXPECT_FALSE(cache.extract(JobId("j1")));
  EXPECT_TRUE(cache.extract(JobId("j2")));
  EXPECT_FALSE(cache.extract(JobId("j2"))) << "it was taken out";
}

AE_TEST("inbox/an answer to a wait that expired before it arrived is answered with the expiry") {
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

AE_TEST("inbox/the reply to a second answer to a wait has the first one") {
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

AE_TEST("inbox/of two answers sent at once the first entry of the inbox counts") {
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

AE_TEST("inbox/the reply to a second decision of a person has the first one") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("idempotent",
                     "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                     " {'id':'w', 'kind':'wait', 'wait':{'type':'human','key':'k'}}]"));
  WorkerFixture other(env, "other", {.owned = false});
  const engine::State state = other.read().state;
  engine::ControlRequest no{.kind = engine::ControlRequest::Kind::signal,
                            .wait_type = "human",
                            .approval = state.approval_id(state.waits.at("k")),
                            .payload = json("{'decision':'reject'}")};
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
  engine::ControlRequest request{.kind = engine::ControlRequest::Kind::resolve,
                                 .resolution = "happened"};
  request.idempotency_key = other.read().state.steps[0].call->key.text;
  const auto first = other.start_request(request);
  env.loop.run_ready();
  request.resolution = "fail";
  const auto second = other.start_request(request);
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

AE_TEST("inbox/an early answer that turns out to be none is never dropped: the end lists it") {
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
    none.buffer = true;
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

AE_TEST("inbox/an early answer whose wait opened while it was sent is kept") {
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
  none.buffer = true;
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

AE_TEST("inbox/a signal or message sent early to a held job is kept and delivered once") {
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
    const auto early = other.start_request({.kind = engine::ControlRequest::Kind::signal,
                                            .id = "1",
                                            .correlation_key = "k",
                                            .buffer = true,
                                            .payload = json("7")});
    env.loop.run_ready();
    // The same id on a channel is another request.
    const auto message = other.start_request({.kind = engine::ControlRequest::Kind::message,
                                              .id = "1",
                                              .payload = json("8"),
                                              .channel = "c"});
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

AE_TEST("inbox/an early signal that comes while the job ends is listed as undelivered") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("idempotent", kOneCall));
  WorkerFixture other(env, "other", {.owned = false});
  ASSERT_TRUE(other.submit({.kind = engine::ControlRequest::Kind::signal,
                            .id = "s1",
                            .correlation_key = "nobody",
                            .buffer = true,
                            .payload = json("7")}));
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  const auto read = worker.read();
  EXPECT_EQ(read.state.status, engine::JobStatus::completed);
  EXPECT_EQ(std::get<JobCompleted>(read.events.back().body).undelivered,
            json("[{'correlation_key':'nobody', 'signal_id':'s1'}]"));
}

AE_TEST("pause/is durable once accepted: the holder parks the job, or the next one does") {
  for (const bool dies : {false, true}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.owned = true});
    worker.runtime->start();
    worker.create(plan("idempotent", kOneCall));
    WorkerFixture other(env, "other", {.owned = false});  // the lease holder is not notified
    const auto result = other.submit({.kind = engine::ControlRequest::Kind::pause});
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
      ASSERT_TRUE(next->submit({.kind = engine::ControlRequest::Kind::resume}));
      env.loop.advance(2s);
      next->answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    } else {
      worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    }
    EXPECT_EQ(other.status(), "completed");
  }
}

AE_TEST("pause/resume takes back a pause that still waits in the inbox") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("idempotent",
                     "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                     " {'id':'b', 'kind':'tool', 'tool':'do', 'needs':['a']}]"));
  WorkerFixture other(env, "other", {.owned = false});
  ASSERT_TRUE(other.submit({.kind = engine::ControlRequest::Kind::pause}));
  const auto resumed = other.submit({.kind = engine::ControlRequest::Kind::resume});
  ASSERT_TRUE(resumed) << resumed.error().message;
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(worker.calls.size(), 2u);
  EXPECT_EQ(worker.status(), "running");
}

AE_TEST("pause/a timer that comes due in a pause fires after it, the deadline in it") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(
      plan("idempotent", "[{'id':'t', 'kind':'wait', 'wait':{'type':'timer', 'for':'10s'}}]"));
  ASSERT_TRUE(worker.submit({.kind = engine::ControlRequest::Kind::pause}));
  env.loop.advance(60s);
  EXPECT_EQ(worker.status(), "parked");
  ASSERT_TRUE(worker.submit({.kind = engine::ControlRequest::Kind::resume}));
  env.loop.advance(5s);
  EXPECT_EQ(worker.status(), "completed");
}

AE_TEST("approval/of the answers of two people to a held job the first counts") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("idempotent",
                     "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                     " {'id':'w', 'kind':'wait', 'wait':{'type':'human', 'key':'k',"
                     "  'on_reject':'continue'}}]"));
  const std::string id = worker.read().state.approval_id(worker.read().state.waits.at("k"));
  const auto answer = [&](std::string_view decision) {
    return worker.submit({.kind = engine::ControlRequest::Kind::signal,
                          .wait_type = "human",
                          .approval = id,
                          .payload = Value::object({{"decision", decision}})});
  };
  const auto first = answer("reject"), second = answer("approve");
  ASSERT_TRUE(first);
  EXPECT_EQ((*first)["outcome"], "rejected");
  ASSERT_TRUE(second);
  EXPECT_EQ((*second)["outcome"], "rejected");
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(worker.read().state.closed_waits.at("k").outcome, "rejected");
}

AE_TEST("doubt/who made the call in doubt must wait until it has settled") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("at_most_once", kOneCall));
  worker.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  ASSERT_EQ(worker.status(), "parked");
  const auto early = worker.resolve("not_happened");
  ASSERT_FALSE(early) << "this process lives: its call may still be under way";
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

AE_TEST("doubt/what a killed process sent settles timeout and grace after the next opening") {
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

AE_TEST(
    "doubt/a call that happened and gave nothing is one that happened, also read from the log") {
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

AE_TEST("doubt/an answer counts from when it was asked to be taken, however long that takes") {
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
  ASSERT_FALSE(*result) << "nobody could know yet when it was said";
  EXPECT_EQ(result->error().code, Code::not_settled);
  EXPECT_TRUE(worker.submit(not_happened(worker.read())));
  env.loop.advance(2s);
  EXPECT_EQ(worker.calls.size(), 2u);
}

AE_TEST("doubt/an answer that somebody gave before the call had settled is refused at any time") {
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

AE_TEST("doubt/the holder judges what stands in the inbox by when its giver looked") {
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
  ASSERT_EQ(posted.inbox.size(), 2u) << "the holder has not been told";
  EXPECT_EQ(parse_json(posted.inbox[1].request)->text("looked_at"), to_text(env.loop.now()));
  first.answer(1, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  env.loop.advance(2s);
  std::vector<std::string_view> believed;
  const auto after = first.read();
  for (const auto* wait : all_of<WaitCompleted>(after.events)) {
    believed.push_back(or_empty(wait->signal_id));
  }
  EXPECT_EQ(believed, (std::vector<std::string_view>{"in time"}));
}

AE_TEST("doubt/who holds the job and made the call in doubt says at once that it has not settled") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("at_most_once",
                     "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                     " {'id':'b', 'kind':'tool', 'tool':'do'}]"));
  worker.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  ASSERT_TRUE(worker.runtime->is_leased(kJob));
  const auto early = worker.submit(not_happened(worker.read()));
  ASSERT_FALSE(early) << "told accepted, and dropped: " << canonical(*early);
  EXPECT_EQ(early.error().code, Code::not_settled);
  EXPECT_FALSE(worker.warned("no longer applies"));
}

AE_TEST("inbox/a wait does not open beside an entry that would answer it") {
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
    ASSERT_TRUE(other.submit({.kind = engine::ControlRequest::Kind::signal,
                              .id = "1",
                              .correlation_key = "k",
                              .buffer = true,
                              .payload = json("7")}));
    worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    const auto read = worker.read();
    EXPECT_EQ(read.state.status, engine::JobStatus::running);
    EXPECT_TRUE(read.inbox.empty()) << "it was passed by";
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
