// What people and clocks want of a job: signals, acts, doubts, pauses and timers, whoever holds it and whoever does not.
#include <algorithm>
#include <chrono>
#include <memory>

#include "runtime/desk_test.h"

namespace ae::runtime::testing {
namespace {

AE_TEST("inbox/an expiry loses to a signal that was accepted before it") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true, .durability = durability});
    desk.runtime->start();
    desk.create(plan("idempotent", kWaitAndCall));
    ground.loop.advance(9s);
    // It stands in the inbox, and whoever holds the job has not been told.
    Desk other(ground, "other", {.owned = false});
    ASSERT_TRUE(other.signal("k", "s1"));
    ground.loop.advance(5s);
    desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    const auto read = desk.read();
    EXPECT_EQ(read.state.status, engine::JobStatus::completed);
    EXPECT_EQ(read.state.closed_waits.at("k").outcome, "signalled");
    EXPECT_EQ(desk.calls.size(), 1u);
  }
}

AE_TEST("inbox/a refused commit records its outcomes anew, and calls nothing again") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true, .durability = durability});
    desk.runtime->start();
    desk.create(plan("at_most_once",
                     "[{'id':'w', 'kind':'wait', 'wait': {'type':'signal', 'key':'k'}},"
                     " {'id':'a', 'kind':'tool', 'tool':'do'}]"));
    Desk other(ground, "other", {.owned = false});
    ASSERT_TRUE(other.signal("k", "s1"));  // the holder is not told
    // With this outcome the job would go to rest and give its claim back: refused, there is a signal.
    desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    EXPECT_TRUE(desk.warned("inbox")) << "the refusal was reached";
    const auto read = desk.read();
    EXPECT_EQ(read.state.status, engine::JobStatus::completed);
    EXPECT_EQ(read.state.steps[1].result, json("1"));
    EXPECT_EQ(desk.calls.size(), 1u);
  }
}

AE_TEST(
    "inbox/a person's answer that came in time is one, also when it is given again after the "
    "expiry") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk other(ground, "other", {.owned = false});
    const auto answer = [&](const char* key, const char* id) {
      return other.act({.kind = engine::Act::Kind::signal,
                        .id = id,
                        .correlation_key = key,
                        .payload = json(R"({"decision":"approve"})")});
    };
    {
      Desk desk(ground, "w", {.owned = true, .durability = durability});
      desk.create(
          plan("idempotent",
               "[{'id':'w', 'kind':'wait', 'wait': {'type':'human', 'key':'w', 'expires':'10s'}},"
               " {'id':'v', 'kind':'wait', 'wait': {'type':'human', 'key':'v', 'expires':'10s',"
               " 'on_expire':'continue'}},"
               " {'id':'a', 'kind':'tool', 'tool':'do'}]"));
      ASSERT_TRUE(answer("w", "s1"));  // whoever holds the job does not see it any more
    }
    ground.loop.advance(20s);
    const auto again = answer("w", "s2");
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ((*again)["duplicate"], Value(true));
    EXPECT_EQ(again->text("outcome"), "approved");
    EXPECT_TRUE(answer("w", "s1")) << "the same answer, sent again";
    const auto late = answer("v", "s3");
    ASSERT_FALSE(late);
    EXPECT_EQ(late.error().code, Code::wait_expired);
    Desk next(ground, "next", {.owned = true, .durability = durability, .seed = 99});
    next.runtime->start();
    ground.loop.advance(5s);
    ASSERT_EQ(next.calls.size(), 1u);
    next.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    EXPECT_EQ(next.status(), "completed");
    EXPECT_EQ(next.read().state.closed_waits.at("w").outcome, "approved");
    EXPECT_EQ(next.read().state.closed_waits.at("v").outcome, "timed_out");
  }
}

AE_TEST("inbox/an answer to a wait of any type that has expired is refused, and none is kept") {
  for (const std::string type : {"signal", "webhook", "message"}) {
    Ground ground;
    const bool by_channel = type == "message";
    const auto answer = [&](std::string id) {
      Desk other(ground, "other", {.owned = false, .seed = 60});
      return other.act({.kind = by_channel ? engine::Act::Kind::message : engine::Act::Kind::signal,
                        .id = std::move(id),
                        .correlation_key = by_channel ? "" : "w",
                        .payload = json("1"),
                        .channel = by_channel ? "w" : ""});
    };
    {
      Desk desk(ground, "w", {.owned = true});
      desk.create(plan("idempotent", "[{'id':'w', 'kind':'wait', 'wait': {'type':'" + type + "', " +
                                         (by_channel ? "'channel'" : "'key'") +
                                         ":'w', 'expires':'10s', 'on_expire':'continue'}},"
                                         " {'id':'a', 'kind':'tool', 'tool':'do'}]"));
    }
    ground.loop.advance(20s);  // no process runs the job, and none has recorded the expiry
    const auto late = answer("s1");
    ASSERT_FALSE(late) << type;
    EXPECT_EQ(late.error().code, Code::wait_expired) << type;
    Desk next(ground, "next", {.owned = true, .seed = 99});
    next.runtime->start();
    ground.loop.advance(5s);
    ASSERT_EQ(next.calls.size(), 1u) << type;
    next.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    EXPECT_EQ(next.status(), "completed") << type;
  }
}

AE_TEST("inbox/an entry that gives no event does not hold up an expiry") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    const auto two_waits =
        plan("idempotent",
             "[{'id':'w', 'kind':'wait', 'wait': {'type':'signal', 'key':'w', 'expires':'10s',"
             " 'on_expire':'continue'}},"
             " {'id':'k', 'kind':'wait', 'wait': {'type':'signal', 'key':'k'}},"
             " {'id':'a', 'kind':'tool', 'tool':'do'}]");
    {
      Desk desk(ground, "w", {.owned = true, .durability = durability});
      desk.create(two_waits);
      Desk other(ground, "other", {.owned = false});
      ASSERT_TRUE(other.signal("k", "s1"));
      ASSERT_TRUE(other.signal("k", "s2"));  // accepted too; it will find the wait closed
    }
    ground.loop.advance(20s);  // nobody runs it, and the other wait expires
    Desk next(ground, "next", {.owned = true, .durability = durability, .seed = 99});
    next.runtime->start();
    ground.loop.advance(5s);
    ASSERT_EQ(next.calls.size(), 1u);
    next.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    EXPECT_EQ(next.status(), "completed");
  }
}

AE_TEST("inbox/an outcome survives that the log could not be read after a refusal") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("at_most_once",
                   "[{'id':'w', 'kind':'wait', 'wait': {'type': 'signal', 'key':'k'}},"
                   " {'id':'a', 'kind':'tool', 'tool':'do'}]"));
  Desk other(ground, "other", {.owned = false});
  ASSERT_TRUE(other.signal("k", "s1"));
  int loads = 0;
  desk.script = [&](const store::Call& call) {
    return call.method == Method::load && ++loads <= 2 ? Fault::fail_before : Fault::none;
  };
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  ground.loop.advance(5s);
  EXPECT_EQ(loads >= 3, true) << "the failure was reached";
  const auto read = desk.read();
  EXPECT_EQ(read.state.status, engine::JobStatus::completed);
  EXPECT_EQ(read.state.steps[1].result, json("1"));
  EXPECT_EQ(desk.calls.size(), 1u);
}

AE_TEST("inbox/what the end overtakes is listed as undelivered") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("idempotent", kWaitAndCall));
  ASSERT_TRUE(desk.act({.kind = engine::Act::Kind::cancel, .id = "c1"}));
  Desk other(ground, "other", {.owned = false});
  store::InboxEntry entry{.number = 0, .id = "s1", .act = ""};
  const engine::Act act{.kind = engine::Act::Kind::signal, .id = "s1", .correlation_key = "k"};
  entry.act = canonical(engine::with_checksum(engine::inbox_place(kJob, entry.id), act.to_json()));
  auto put = ground.loop.await<Result<void>>(
      [&](auto done) { other.memory->put_inbox(kJob, entry, std::move(done)); });
  ASSERT_TRUE(put) << "accepted while the job was ending";
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  const auto read = desk.read();
  EXPECT_EQ(read.state.status, engine::JobStatus::cancelled);
  EXPECT_EQ(std::get<JobCancelled>(read.events.back().body).undelivered,
            json("[{'correlation_key':'k', 'signal_id':'s1'}]"));
}

// An accepted act as some program would write it: its place and checksum are right, whatever it says.
store::InboxEntry entry_of(const std::string& id, std::string_view act) {
  return {.number = 0,
          .id = id,
          .act = canonical(engine::with_checksum(engine::inbox_place(kJob, id), json(act)))};
}

AE_TEST_SLOW("limits/a job accepts 10,000 signals; the next one is refused and not written") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(
      plan("idempotent", kWaitAndCall));  // its call keeps it held: signals stay in the inbox
  Desk other(ground, "other", {.owned = false});
  const auto put = [&](const std::string& id) {
    const store::InboxEntry entry = entry_of(
        id, "{'kind':'signal', 'id':'" + id + "', 'correlation_key':'later', 'buffer':true}");
    return ground.loop
        .await<Result<void>>(
            [&](auto done) { other.memory->put_inbox(kJob, entry, std::move(done)); })
        .has_value();
  };
  for (std::size_t i = 0; i + 1 < engine::kSignalsMax; ++i)
    ASSERT_TRUE(put("s" + std::to_string(i)));
  EXPECT_TRUE(other.act({.kind = engine::Act::Kind::message, .id = "last", .channel = "c"}))
      << "a message counts, too";
  const auto one_more = other.signal("k", "one more");
  ASSERT_FALSE(one_more);
  EXPECT_EQ(one_more.error().code, Code::signals_limit);
  EXPECT_NE(one_more.error().message.find("10000 signals"), std::string::npos);
  EXPECT_EQ(other.read().inbox.size(), engine::kSignalsMax) << "nothing was written";
  EXPECT_TRUE(other.act({.kind = engine::Act::Kind::cancel, .id = "c"})) << "it can still be ended";
}

constexpr std::string_view kNewerActs[] = {
    "{'kind':'postpone', 'id':'n1', 'until':'tomorrow'}",
    "{'kind':'signal', 'id':'n1', 'correlation_key':'k', 'only_if':'sunny'}"};

AE_TEST("inbox/an act of a newer version stays there, and the job is left to who can read it") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    for (const std::string_view act : kNewerActs) {
      Ground ground;
      Desk desk(ground, "w", {.owned = false, .durability = durability});
      desk.runtime->start();
      desk.create(plan("idempotent", kWaitAndCall));
      ASSERT_EQ(desk.calls.size(), 1u);
      const auto put = [&](const store::InboxEntry& entry) {
        const auto done = ground.loop.await<Result<void>>(
            [&](auto heard) { desk.memory->put_inbox(kJob, entry, std::move(heard)); });
        ASSERT_TRUE(done);
      };
      const auto load = [&] {
        return *ground.loop.await<Result<store::Loaded>>(
            [&](auto done) { desk.memory->load(kJob, 1, std::move(done)); });
      };
      put(entry_of("s0", "{'kind':'signal', 'id':'s0', 'correlation_key':'k', 'payload':'on'}"));
      put(entry_of("n1", act));
      put(entry_of("c1", "{'kind':'cancel', 'id':'c1'}"));
      desk.faulty->hint({.inbox_of = kJob});
      ground.loop.advance(1s);
      EXPECT_EQ(load().inbox.size(), 3u) << act;
      EXPECT_TRUE(desk.runtime->holds(kJob)) << "its call is on its way";
      desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
      ground.loop.advance(1s);
      EXPECT_FALSE(desk.runtime->holds(kJob));
      ASSERT_TRUE(desk.runtime->refuses(kJob)) << act;
      EXPECT_EQ(desk.runtime->refuses(kJob)->code, Code::needs_version);
      const auto left = desk.read();
      const auto* requeued = as<JobRequeued>(left.events.back());
      ASSERT_NE(requeued, nullptr) << act;
      EXPECT_EQ(requeued->reason, "needs_version");
      EXPECT_EQ(left.state.lost_claims, 0u);
      EXPECT_TRUE(std::ranges::any_of(left.events, [](const Event& event) {
        return event.type == EventType::tool_invocation_finished;
      })) << "what was seen is recorded";
      // Another process of this version reads no more of it than this one, and neither claims it again.
      Desk other(ground, "other", {.owned = false, .durability = durability, .seed = 99});
      other.runtime->start();
      ground.loop.advance(300s);
      ASSERT_TRUE(other.runtime->refuses(kJob));
      EXPECT_EQ(other.runtime->refuses(kJob)->code, Code::needs_version);
      EXPECT_FALSE(desk.warned("an accepted request")) << act;
      EXPECT_FALSE(other.warned("an accepted request")) << act;
      const store::Loaded after = load();
      EXPECT_EQ(after.row.last_seq, left.row.last_seq) << "no attempt has begun";
      ASSERT_EQ(after.inbox.size(), 3u);
      EXPECT_EQ(after.inbox[1].id, "n1");
      EXPECT_TRUE(after.row.claim) << "who is in the inbox's way goes to the inbox";
      // What is accepted now comes behind it.
      ASSERT_TRUE(desk.act({.kind = engine::Act::Kind::pause, .id = "p1"}));
      EXPECT_EQ(load().inbox.size(), 4u);
      EXPECT_EQ(desk.calls.size(), 1u);
      EXPECT_EQ(other.calls.size(), 0u);
    }
  }
}

AE_TEST("hint/what another process has done is looked at before the poll would") {
  Ground ground;
  Desk desk(ground, "w", {.owned = false});
  desk.runtime->start();
  ground.loop.run_ready();
  Desk other(ground, "other", {.owned = false});  // runs nothing
  NewJobRequest request;
  request.job = kJob;
  request.agent = "agent";
  request.plan = plan("idempotent", kWaitAndCall);
  request.hold = false;
  ASSERT_TRUE(ground.loop.await<Result<Created>>(
      [&](auto done) { other.runtime->create(request, std::move(done)); }));
  ground.loop.run_ready();
  EXPECT_FALSE(desk.runtime->holds(kJob)) << "nobody has said so";
  desk.faulty->hint({});
  ground.loop.run_ready();
  ASSERT_TRUE(desk.runtime->holds(kJob));
  const engine::Act act{.kind = engine::Act::Kind::cancel, .id = "c1"};
  const std::size_t before = desk.read().events.size();
  ASSERT_TRUE(other.act(act)) << "by the inbox, for another holds it";
  EXPECT_EQ(desk.read().events.size(), before);
  desk.faulty->hint({.inbox_of = kJob});
  ground.loop.run_ready();
  EXPECT_GT(desk.read().events.size(), before);
}

AE_TEST("hint/one for jobs that others run, and a job that others run, starts no claim") {
  Ground ground;
  Desk desk(ground, "w", {.owned = false});
  int claims = 0;
  desk.script = [&](const store::Call& call) {
    claims += call.method == Method::claim ? 1 : 0;
    return Fault::none;
  };
  desk.runtime->offer({"agent"}, {{"agent", "7"}});
  desk.runtime->start();
  ground.loop.run_ready();
  const int before = claims;
  const auto create = [&](const std::string& agent, std::vector<std::string> needed) {
    NewJobRequest request;
    request.agent = agent;
    request.plan = plan("idempotent", kWaitAndCall);
    request.required_capabilities = std::move(needed);
    request.hold = false;
    const auto made = ground.loop.await<Result<Created>>(
        [&](auto done) { desk.runtime->create(request, std::move(done)); });
    EXPECT_TRUE(made);
    ground.loop.run_ready();
    return made ? made->job : JobId();
  };
  const JobId needy = create("agent", {"gpu"});
  create("another", {});
  const auto cancelled = ground.loop.await<Result<Value>>([&](auto done) {
    desk.runtime->act(needy, {.kind = engine::Act::Kind::pause, .id = "p"}, std::move(done));
  });
  EXPECT_TRUE(cancelled);
  desk.faulty->hint({.inbox_of = {}, .needs = store::Hint::Needs{"another", {}}});
  desk.faulty->hint({.inbox_of = {}, .needs = store::Hint::Needs{"agent", {"gpu"}}});
  ground.loop.run_ready();
  EXPECT_EQ(claims, before);
  desk.faulty->hint({.inbox_of = {}, .needs = store::Hint::Needs{"agent", {}}});
  ground.loop.run_ready();
  EXPECT_EQ(claims, before + 1);
  const JobId ours = create("agent", {});
  EXPECT_TRUE(desk.runtime->holds(ours));
}

// The claim under way had looked before the job was there, and its answer says that there is nothing.
AE_TEST("hint/one that comes while a claim is under way is not forgotten") {
  Ground ground;
  Desk desk(ground, "w", {.owned = false, .delay = 100ms});
  int claims = 0;
  desk.script = [&](const store::Call& call) {
    const bool first = call.method == Method::claim && ++claims == 1;
    return first ? Fault::delay_answer : Fault::none;
  };
  desk.runtime->start();
  Desk other(ground, "other", {.owned = false});  // runs nothing
  NewJobRequest request;
  request.job = kJob;
  request.agent = "agent";
  request.plan = plan("idempotent", kWaitAndCall);
  request.hold = false;
  ASSERT_TRUE(ground.loop.await<Result<Created>>(
      [&](auto done) { other.runtime->create(request, std::move(done)); }));
  desk.faulty->hint({});
  ground.loop.run_ready();
  ASSERT_FALSE(desk.runtime->holds(kJob)) << "the first claim is not answered yet";
  ground.loop.advance(150ms);
  EXPECT_TRUE(desk.runtime->holds(kJob)) << "long before the poll";
}

AE_TEST("hint/a post whose hint was lost is found with the next heartbeat") {
  Ground ground;
  Desk desk(ground, "w", {.owned = false});
  desk.runtime->start();
  desk.create(plan("idempotent", kWaitAndCall));
  Desk other(ground, "other", {.owned = false});
  ASSERT_TRUE(other.act({.kind = engine::Act::Kind::cancel, .id = "c1"}));
  const std::size_t before = desk.read().events.size();
  ground.loop.advance(10s);
  EXPECT_GT(desk.read().events.size(), before);
}

AE_TEST("resting/what is looked at again is read from where it was left, by its holder too") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true, .durability = durability});
    std::vector<std::uint64_t> loads;
    desk.script = [&](const store::Call& call) {
      if (call.method == Method::load) loads.push_back(call.from_seq);
      return Fault::none;
    };
    desk.runtime->start();
    desk.create(plan("idempotent", kTwoWaits));
    ASSERT_EQ(desk.status(), "waiting");
    const std::uint64_t rested = desk.read().row.last_seq;
    loads.clear();
    ASSERT_TRUE(desk.signal("j", "s1"));
    ground.loop.advance(1s);
    ASSERT_EQ(desk.status(), "waiting");
    ASSERT_GE(loads.size(), 2u) << "the act, its holder";
    EXPECT_EQ(loads[0], rested + 1);
    EXPECT_GT(loads[1], rested);
    EXPECT_FALSE(desk.signal("no such key", "s2"));
    ASSERT_TRUE(desk.signal("k", "s3"));
    ground.loop.advance(1s);
    EXPECT_EQ(desk.status(), "completed");
  }
}

AE_TEST("resting/what another worker wrote meanwhile is taken in") {
  Ground ground;
  Desk first(ground, "first", {.seed = 1});
  Desk second(ground, "second", {.seed = 1'000'001});
  first.runtime->start();
  first.create(plan("idempotent", kTwoWaits));
  ASSERT_EQ(first.status(), "waiting");
  second.runtime->start();
  ASSERT_TRUE(second.signal("j", "s1"));
  ground.loop.advance(30s);
  const auto again = first.signal("j", "s2");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ((*again)["duplicate"], Value(true));
  ASSERT_TRUE(first.signal("k", "s3"));
  ground.loop.advance(30s);
  EXPECT_EQ(first.status(), "completed");
}

AE_TEST("resting/a log that does not go through what was remembered is read whole") {
  Ground ground;
  Desk desk(ground, "w", {.owned = false});
  desk.create(plan("idempotent", kTwoWaits));
  desk.runtime->start();
  ground.loop.advance(1s);
  ASSERT_EQ(desk.status(), "waiting");
  Rested other{.state = desk.read().state, .head = sha256("another log")};
  engine::PlanCache plans;
  auto stood = ground.loop.await<Result<Stood>>(
      [&](auto done) { load_state(*desk.memory, kJob, plans, std::move(other), std::move(done)); });
  ASSERT_TRUE(stood);
  ASSERT_TRUE(stood->state);
  const auto whole = ground.loop.await<Result<store::Loaded>>(
      [&](auto done) { desk.memory->load(kJob, 1, std::move(done)); });
  EXPECT_EQ(stood->loaded.commits, whole->commits);
  EXPECT_EQ(stood->state->status, engine::JobStatus::waiting);
}

AE_TEST("resting/it is bounded in bytes, and what was used least lately goes first") {
  RestingJobs resting;
  const auto rested = [](std::size_t bytes) {
    Rested one;
    one.bytes = bytes;
    return one;
  };
  resting.keep(JobId("too large"), rested(RestingJobs::kJobBytesMax + 1));
  EXPECT_FALSE(resting.take(JobId("too large")));
  const std::size_t fit = RestingJobs::kBytesMax / RestingJobs::kJobBytesMax;
  for (std::size_t i = 0; i <= fit; ++i) {
    resting.keep(JobId("j" + std::to_string(i)), rested(RestingJobs::kJobBytesMax));
    if (i > 0) resting.keep(JobId("j0"), *resting.take(JobId("j0")));
  }
  EXPECT_TRUE(resting.take(JobId("j0")));
  EXPECT_FALSE(resting.take(JobId("j1")));
  EXPECT_TRUE(resting.take(JobId("j2")));
  EXPECT_FALSE(resting.take(JobId("j2"))) << "it was taken out";
}

AE_TEST("inbox/an answer says accepted only if it came before what closed its wait") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true, .durability = durability});
    desk.runtime->start();
    desk.create(plan("idempotent", kWaitAndCall));
    ground.loop.advance(9s);
    // The other reads the job while the wait is open; the expiry is written before its post arrives.
    Desk other(ground, "other", {.owned = false});
    other.script = [&](const store::Call& call) {
      if (call.method == Method::put_inbox) ground.loop.advance(5s);
      return Fault::none;
    };
    const auto said = other.signal("k", "s1");
    ASSERT_TRUE(said);
    EXPECT_EQ(said->find("accepted"), nullptr) << canonical(*said);
    EXPECT_EQ((*said)["duplicate"], Value(true));
    EXPECT_EQ((*said)["outcome"], "timed_out");
    desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    EXPECT_EQ(desk.read().state.closed_waits.at("k").outcome, "timed_out");
  }
}

AE_TEST("inbox/an answer that the holder has taken in since is accepted, also when asked twice") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("idempotent", kWaitAndCall));
  const auto said = desk.signal("k", "s1");
  ASSERT_TRUE(said);
  EXPECT_EQ((*said)["accepted"], Value(true));
  EXPECT_EQ(desk.read().state.closed_waits.at("k").outcome, "signalled");
  const auto again = desk.signal("k", "s1");
  ASSERT_TRUE(again);
  EXPECT_EQ((*again)["duplicate"], Value(true));
}

engine::Act answer_to(std::string key, std::string id, Value payload) {
  return {.kind = engine::Act::Kind::signal,
          .id = std::move(id),
          .correlation_key = std::move(key),
          .payload = std::move(payload)};
}

AE_TEST(
    "inbox/a second answer to a wait is told that there is one, though nobody has taken it in") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true, .durability = durability});
    desk.runtime->start();
    desk.create(plan("idempotent", kWaitAndCall));
    Desk other(ground, "other", {.owned = false});  // the holder is not told
    const auto first = other.act(answer_to("k", "s1", json("1")));
    ASSERT_TRUE(first);
    EXPECT_EQ((*first)["accepted"], Value(true));
    const auto second = other.act(answer_to("k", "s2", json("2")));
    ASSERT_TRUE(second);
    EXPECT_EQ(second->find("accepted"), nullptr) << canonical(*second);
    EXPECT_EQ((*second)["duplicate"], Value(true));
    EXPECT_EQ((*second)["applied"], Value(false));
    EXPECT_EQ((*second)["payload"], Value(1));
    const auto same = other.act(answer_to("k", "s3", json("1")));
    ASSERT_TRUE(same);
    EXPECT_EQ((*same)["applied"], Value(true)) << "it says the same";
    EXPECT_EQ(other.read().inbox.size(), 1u) << "nothing was written";
    // Its own answer sent again is no other one; with other words it is.
    const auto again = other.act(answer_to("k", "s1", json("1")));
    ASSERT_TRUE(again);
    EXPECT_EQ((*again)["accepted"], Value(true)) << canonical(*again);
    const auto changed = other.act(answer_to("k", "s1", json("9")));
    ASSERT_TRUE(changed);
    EXPECT_EQ((*changed)["applied"], Value(false)) << canonical(*changed);
    desk.answer(0, {.kind = OutcomeKind::success, .result = json("'done'")});
    EXPECT_EQ(desk.read().state.closed_waits.at("k").payload, Value(1));
    EXPECT_FALSE(desk.warned("too late"));
  }
}

AE_TEST("inbox/of two answers that are posted at once the later one is told so") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("idempotent", kWaitAndCall));
  Desk quick(ground, "quick", {.owned = false, .seed = 7});
  Desk slow(ground, "slow", {.owned = false, .seed = 8});
  // Between the reading of the one and its post, the other posts.
  bool posted = false;
  slow.script = [&](const store::Call& call) {
    if (call.method == Method::put_inbox && !std::exchange(posted, true)) {
      quick.runtime->act(kJob, answer_to("k", "s1", json("1")), [](Result<Value> said) {
        ASSERT_TRUE(said);
        EXPECT_EQ((*said)["accepted"], Value(true));
      });
      ground.loop.run_ready();
    }
    return Fault::none;
  };
  const auto said = slow.act(answer_to("k", "s2", json("2")));
  ASSERT_TRUE(said);
  ASSERT_EQ(slow.read().inbox.size(), 2u) << "both were accepted by the store";
  EXPECT_EQ((*said)["duplicate"], Value(true)) << canonical(*said);
  EXPECT_EQ((*said)["applied"], Value(false));
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("'done'")});
  EXPECT_EQ(desk.read().state.closed_waits.at("k").payload, Value(1));
}

AE_TEST("inbox/a second yes or no of a person is told which one there is") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("idempotent",
                   "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                   " {'id':'w', 'kind':'wait', 'wait':{'type':'human','key':'k'}}]"));
  Desk other(ground, "other", {.owned = false});
  const engine::State state = other.read().state;
  engine::Act no{.kind = engine::Act::Kind::signal,
                 .wait_type = "human",
                 .approval = state.approval_id(state.waits.at("k")),
                 .payload = json("{'decision':'reject'}")};
  ASSERT_TRUE(other.act(no));
  engine::Act yes = answer_to("k", "s2", json("{'decision':'approve'}"));
  const auto second = other.act(yes);
  ASSERT_TRUE(second);
  EXPECT_EQ((*second)["outcome"], "rejected") << canonical(*second);
  EXPECT_EQ((*second)["applied"], Value(false));
}

AE_TEST(
    "inbox/a second resolution of a call is refused, though nobody has taken the first one in") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(
      plan("at_most_once",
           "[{'id':'a', 'kind':'tool', 'tool':'do'}, {'id':'b', 'kind':'tool', 'tool':'do'}]"));
  desk.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset", .error_message = "lost"});
  Desk other(ground, "other", {.owned = false});
  engine::Act act{.kind = engine::Act::Kind::resolve, .resolution = "happened"};
  act.idempotency_key = other.read().state.steps[0].call->key.text;
  const auto first = other.act(act);
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ((*first)["accepted"], Value(true));
  act.resolution = "fail";
  const auto second = other.act(act);
  ASSERT_FALSE(second) << canonical(*second);
  EXPECT_EQ(second.error().code, Code::not_in_doubt);
  EXPECT_EQ(other.read().inbox.size(), 1u);
  desk.answer(1, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(desk.status(), "completed");
}

AE_TEST("inbox/an early answer that turns out to be none is never dropped: the end lists it") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true, .durability = durability});
    desk.runtime->start();
    // Nobody can tell before `a` has answered that the key is that of a person's wait.
    desk.create(plan("idempotent",
                     "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                     " {'id':'w', 'kind':'wait', 'needs':['a'],"
                     "  'wait':{'type':'human','key':'${ .steps.a }'}}]"));
    Desk other(ground, "other", {.owned = false});  // the holder is not told
    engine::Act none = answer_to("k", "s1", json("{'note':'hm'}"));
    none.buffer = true;
    const auto early = other.act(none);
    ASSERT_TRUE(early) << early.error().message;
    EXPECT_EQ((*early)["buffered"], Value(true));
    desk.answer(0, {.kind = OutcomeKind::success, .result = json("'k'")});
    ASSERT_EQ(desk.status(), "waiting");
    EXPECT_FALSE(desk.warned("too late"));
    ASSERT_TRUE(desk.act(answer_to("k", "s2", json("{'decision':'approve'}"))));
    ground.loop.advance(2s);
    const auto read = desk.read();
    ASSERT_EQ(read.state.status, engine::JobStatus::completed);
    EXPECT_EQ(std::get<JobCompleted>(read.events.back().body).undelivered,
              json("[{'correlation_key':'k','signal_id':'s1'}]"));
  }
}

AE_TEST("inbox/an early answer whose wait opened while it was posted is said to be kept") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(
      plan("idempotent",
           "[{'id':'a', 'kind':'tool', 'tool':'do'}, {'id':'b', 'kind':'tool', 'tool':'do'},"
           " {'id':'w', 'kind':'wait', 'needs':['a'],"
           "  'wait':{'type':'human','key':'${ .steps.a }'}}]"));
  Desk other(ground, "other", {.owned = false});
  bool answered = false;
  other.script = [&](const store::Call& call) {
    if (call.method == Method::put_inbox && !std::exchange(answered, true)) {
      desk.answer(0, {.kind = OutcomeKind::success, .result = json("'k'")});
    }
    return Fault::none;
  };
  engine::Act none = answer_to("k", "s1", json("{'note':'hm'}"));
  none.buffer = true;
  const auto said = other.act(none);
  ASSERT_TRUE(said) << said.error().message;
  EXPECT_EQ((*said)["buffered"], Value(true)) << canonical(*said);
  desk.answer(1, {.kind = OutcomeKind::success, .result = json("1")});
  ASSERT_TRUE(desk.act(answer_to("k", "s2", json("{'decision':'approve'}"))));
  ground.loop.advance(2s);
  EXPECT_EQ(std::get<JobCompleted>(desk.read().events.back().body).undelivered,
            json("[{'correlation_key':'k','signal_id':'s1'}]"));
}

AE_TEST("inbox/what is sent early to a busy job is kept, and delivered once") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true, .durability = durability});
    desk.runtime->start();
    desk.create(
        plan("idempotent",
             "[{'id':'a', 'kind':'tool', 'tool':'do'},"
             " {'id':'w', 'kind':'wait', 'needs':['a'], 'wait':{'type':'signal','key':'k'}},"
             " {'id':'m', 'kind':'wait', 'needs':['w'],"
             "  'wait':{'type':'message','channel':'c'}}]"));
    Desk other(ground, "other", {.owned = false});  // the holder is not told
    const auto early = other.act({.kind = engine::Act::Kind::signal,
                                  .id = "1",
                                  .correlation_key = "k",
                                  .buffer = true,
                                  .payload = json("7")});
    ASSERT_TRUE(early);
    EXPECT_EQ((*early)["buffered"], Value(true));
    const auto message = other.act(
        {.kind = engine::Act::Kind::message, .id = "1", .payload = json("8"), .channel = "c"});
    ASSERT_TRUE(message) << "the same id on a channel is another thing";
    EXPECT_EQ((*message)["accepted"], Value(true));
    desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    const auto read = desk.read();
    EXPECT_EQ(read.state.status, engine::JobStatus::completed);
    EXPECT_EQ(read.state.steps[1].result, json("7"));
    EXPECT_EQ(read.state.steps[2].result, json("8"));
    EXPECT_TRUE(std::get<JobCompleted>(read.events.back().body).undelivered.is_null());
  }
}

AE_TEST("inbox/an early signal that comes while the job ends is listed as undelivered") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("idempotent", kOneCall));
  Desk other(ground, "other", {.owned = false});
  ASSERT_TRUE(other.act({.kind = engine::Act::Kind::signal,
                         .id = "s1",
                         .correlation_key = "nobody",
                         .buffer = true,
                         .payload = json("7")}));
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  const auto read = desk.read();
  EXPECT_EQ(read.state.status, engine::JobStatus::completed);
  EXPECT_EQ(std::get<JobCompleted>(read.events.back().body).undelivered,
            json("[{'correlation_key':'nobody', 'signal_id':'s1'}]"));
}

AE_TEST("pause/is durable once accepted: the holder parks the job, or the next one does") {
  for (const bool dies : {false, true}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true});
    desk.runtime->start();
    desk.create(plan("idempotent", kOneCall));
    Desk other(ground, "other", {.owned = false});  // the holder is not told
    const auto said = other.act({.kind = engine::Act::Kind::pause});
    ASSERT_TRUE(said);
    EXPECT_EQ((*said)["accepted"], Value(true));
    std::optional<Desk> next;
    if (dies) {
      desk.runtime.reset();
      next.emplace(ground, "next", Desk::Setup{.owned = true, .seed = 99});
      next->runtime->start();
      ground.loop.advance(60s);
      EXPECT_EQ(next->status(), "parked");
      EXPECT_TRUE(next->calls.empty());
      ASSERT_TRUE(next->act({.kind = engine::Act::Kind::resume}));
      ground.loop.advance(2s);
      next->answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    } else {
      desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    }
    EXPECT_EQ(other.status(), "completed");
  }
}

AE_TEST("pause/resume takes back a pause that still waits in the inbox") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("idempotent",
                   "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                   " {'id':'b', 'kind':'tool', 'tool':'do', 'needs':['a']}]"));
  Desk other(ground, "other", {.owned = false});
  ASSERT_TRUE(other.act({.kind = engine::Act::Kind::pause}));
  const auto resumed = other.act({.kind = engine::Act::Kind::resume});
  ASSERT_TRUE(resumed) << resumed.error().message;
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(desk.calls.size(), 2u);
  EXPECT_EQ(desk.status(), "running");
}

AE_TEST("pause/a timer that comes due in a pause fires after it, the deadline in it") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(
      plan("idempotent", "[{'id':'t', 'kind':'wait', 'wait':{'type':'timer', 'for':'10s'}}]"));
  ASSERT_TRUE(desk.act({.kind = engine::Act::Kind::pause}));
  ground.loop.advance(60s);
  EXPECT_EQ(desk.status(), "parked");
  ASSERT_TRUE(desk.act({.kind = engine::Act::Kind::resume}));
  ground.loop.advance(5s);
  EXPECT_EQ(desk.status(), "completed");
}

AE_TEST("approval/answers of two people to a held job: one counts, and both are told which") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("idempotent",
                   "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                   " {'id':'w', 'kind':'wait', 'wait':{'type':'human', 'key':'k',"
                   "  'on_reject':'continue'}}]"));
  const std::string id = desk.read().state.approval_id(desk.read().state.waits.at("k"));
  const auto answer = [&](std::string_view decision) {
    return desk.act({.kind = engine::Act::Kind::signal,
                     .wait_type = "human",
                     .approval = id,
                     .payload = Value::object({{"decision", decision}})});
  };
  const auto first = answer("reject"), second = answer("approve");
  ASSERT_TRUE(first);
  EXPECT_EQ((*first)["accepted"], Value(true));
  ASSERT_TRUE(second);
  EXPECT_EQ((*second)["outcome"], "rejected");
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(desk.read().state.closed_waits.at("k").outcome, "rejected");
}

AE_TEST("doubt/who made the call in doubt must wait until it has settled") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("at_most_once", kOneCall));
  desk.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  ASSERT_EQ(desk.status(), "parked");
  const auto early = desk.resolve("not_happened");
  ASSERT_FALSE(early) << "this process lives: its call may still be under way";
  EXPECT_EQ(early.error().code, Code::not_settled);
  // Another process has opened the store since: the caller is gone, and what it sent may still arrive.
  const Instant settles = desk.read().state.steps[0].call->deadline + 30s;
  desk.runtime.reset();
  Desk next(ground, "next", {.owned = true, .seed = 99});
  const auto restarted = next.resolve("not_happened");
  ASSERT_FALSE(restarted);
  EXPECT_EQ(restarted.error().code, Code::not_settled);
  EXPECT_NE(restarted.error().message.find(to_text(settles)), std::string::npos);
  ground.loop.advance(settles - ground.loop.now());
  EXPECT_TRUE(next.resolve("not_happened"));
}

AE_TEST("doubt/what a killed process sent settles timeout and grace after the next opening") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("at_most_once", kOneCall));
  ground.loop.advance(2s);
  desk.runtime.reset();  // with its call in flight
  Desk next(ground, "next", {.owned = true, .seed = 99});
  const Instant opened = ground.loop.now();
  next.runtime->start();
  ground.loop.run_ready();
  ASSERT_EQ(next.status(), "parked");
  const Runtime::Read read = next.read();
  const engine::Step& step = read.state.steps[0];
  const Instant settles = opened + (step.call->deadline - step.call->send_by) + 30s;
  EXPECT_EQ(read.state.settles_at(step), settles);
  ground.loop.advance(settles - ground.loop.now() - 1ms);
  const auto early = next.resolve("not_happened");
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code, Code::not_settled);
  ground.loop.advance(1ms);
  EXPECT_TRUE(next.resolve("not_happened"));
}

AE_TEST(
    "doubt/a call that happened and gave nothing is one that happened, also read from the log") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("at_most_once", kOneCall));
  desk.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  ASSERT_EQ(desk.status(), "parked");
  ASSERT_TRUE(desk.resolve("happened"));
  ground.loop.run_ready();
  const Runtime::Read read = desk.read();
  EXPECT_EQ(engine::to_text(read.state.status), "completed");
  EXPECT_TRUE(read.state.steps[0].result.is_null());
  EXPECT_EQ(desk.calls.size(), 1u);
}

AE_TEST("doubt/an answer counts from when it was asked to be taken, however long that takes") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true, .delay = 100s});
  desk.runtime->start();
  desk.create(plan("at_most_once", kOneCall));
  desk.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  ASSERT_EQ(desk.status(), "parked");
  const Instant settles = desk.read().state.steps[0].call->deadline + 30s;
  ground.loop.advance(settles - ground.loop.now() - 50s);
  std::optional<Result<Value>> said;
  engine::Act act = not_happened(desk.read());
  bool slow = true;
  desk.script = [&](const store::Call& of) {
    const bool is_load = of.method == Method::load && std::exchange(slow, false);
    return is_load ? Fault::delay : Fault::none;
  };
  act.looked_at = settles + 1h;  // its giver's clock is ahead
  desk.runtime->act(kJob, act, [&](Result<Value> answer) { said.emplace(std::move(answer)); });
  ground.loop.advance(101s);
  ASSERT_TRUE(said);
  ASSERT_FALSE(*said) << "nobody could know yet when it was said";
  EXPECT_EQ(said->error().code, Code::not_settled);
  EXPECT_TRUE(desk.act(not_happened(desk.read())));
  ground.loop.advance(2s);
  EXPECT_EQ(desk.calls.size(), 2u);
}

AE_TEST("doubt/an answer that somebody gave before the call had settled is refused at any time") {
  TwoWorkers two("at_most_once");
  two.ground.loop.advance(120s);
  ASSERT_EQ(two.second.status(), "parked");
  const Instant looked_at = two.ground.loop.now();
  two.ground.loop.advance(1200s);
  engine::Act act = not_happened(two.second.read());
  act.looked_at = looked_at;
  const auto early = two.second.act(act);
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code, Code::not_settled);
  EXPECT_NE(early.error().message.find(to_text(looked_at)), std::string::npos);
  act.looked_at = two.ground.loop.now();
  EXPECT_TRUE(two.second.act(act));
}

AE_TEST("doubt/the holder judges what stands in the inbox by when its giver looked") {
  Ground ground;
  Desk first(ground, "first", {.seed = 1});
  Desk second(ground, "second", {.seed = 1'000'001});
  first.runtime->start();
  first.create(plan("at_most_once",
                    "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                    " {'id':'b', 'kind':'tool', 'tool':'do'}]"));
  first.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  const auto read = second.read();
  ASSERT_TRUE(read.row.claim) << "the other call keeps the job held";
  const Instant settles = read.state.steps[0].call->deadline + 30s;
  ground.loop.advance(settles + 1s - ground.loop.now());
  // Whoever let it in: this one was seen too early.
  engine::Act early = not_happened(read);
  early.id = "early";
  early.looked_at = settles - 1s;
  store::InboxEntry entry{.number = 0, .id = early.id, .act = {}};
  entry.act =
      canonical(engine::with_checksum(engine::inbox_place(kJob, entry.id), early.to_json()));
  auto put = ground.loop.await<Result<void>>(
      [&](auto done) { second.memory->put_inbox(kJob, entry, std::move(done)); });
  ASSERT_TRUE(put);
  engine::Act act = not_happened(read);
  act.id = "in time";
  const auto said = second.act(act);
  ASSERT_TRUE(said);
  EXPECT_EQ((*said)["accepted"], Value(true));
  const auto posted = second.read();
  ASSERT_EQ(posted.inbox.size(), 2u) << "the holder has not been told";
  EXPECT_EQ(parse_json(posted.inbox[1].act)->text("looked_at"), to_text(ground.loop.now()));
  first.answer(1, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  ground.loop.advance(2s);
  std::vector<std::string_view> believed;
  const auto after = first.read();
  for (const auto* wait : all_of<WaitCompleted>(after.events)) {
    believed.push_back(or_empty(wait->signal_id));
  }
  EXPECT_EQ(believed, (std::vector<std::string_view>{"in time"}));
  EXPECT_TRUE(first.warned("still be running"));
}

AE_TEST("doubt/who holds the job and made the call in doubt says at once that it has not settled") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("at_most_once",
                   "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                   " {'id':'b', 'kind':'tool', 'tool':'do'}]"));
  desk.answer(0, {.kind = OutcomeKind::unknown, .error_code = "reset"});
  ASSERT_TRUE(desk.runtime->holds(kJob));
  const auto early = desk.act(not_happened(desk.read()));
  ASSERT_FALSE(early) << "told accepted, and dropped: " << canonical(*early);
  EXPECT_EQ(early.error().code, Code::not_settled);
  EXPECT_FALSE(desk.warned("no longer applies"));
}

AE_TEST("inbox/a wait does not open beside an entry that would answer it") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true, .durability = durability});
    desk.runtime->start();
    // While the wait opens another call goes on, so that the job is not given back.
    desk.create(plan("idempotent",
                     "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                     " {'id':'long', 'kind':'tool', 'tool':'do'},"
                     " {'id':'w', 'kind':'wait', 'needs':['a'],"
                     "  'wait':{'type':'signal','key':'k'}}]"));
    ASSERT_EQ(desk.calls.size(), 2u);
    Desk other(ground, "other", {.owned = false});  // the holder is not told
    ASSERT_TRUE(other.act({.kind = engine::Act::Kind::signal,
                           .id = "1",
                           .correlation_key = "k",
                           .buffer = true,
                           .payload = json("7")}));
    desk.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    const auto read = desk.read();
    EXPECT_EQ(read.state.status, engine::JobStatus::running);
    EXPECT_TRUE(read.inbox.empty()) << "it was passed by";
    EXPECT_EQ(read.state.closed_waits.at("k").outcome, "signalled");
    EXPECT_EQ(desk.calls.size(), 2u) << "nothing is called again";
    const auto opened = all_of(read.events, EventType::wait_opened);
    const auto closed = all_of(read.events, EventType::wait_completed);
    ASSERT_EQ(opened.size(), 1u);
    EXPECT_EQ(opened[0]->created_at, closed[0]->created_at);
  }
}

}  // namespace
}  // namespace ae::runtime::testing
