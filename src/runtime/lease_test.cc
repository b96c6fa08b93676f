// Leases and claims that are lost, results that come late, and what a recovery does with both.
#include <algorithm>
#include <chrono>
#include <memory>

#include "runtime/desk_test.h"
#include "runtime/redact.h"

namespace ae::runtime::testing {
namespace {

AE_TEST(
    "lease/a worker that lost its lease writes nothing more but what it then hears for certain") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TwoWorkers two("at_most_once", durability);
    EXPECT_TRUE(two.first.calls[0].abandoned) << "what can be cancelled is cancelled";
    two.first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
    EXPECT_TRUE(two.first.warned("late result is stored"));
    const auto read = two.second.read();
    ASSERT_EQ(read.effects.size(), 1u);
    EXPECT_NE(read.effects[0].record.find(R"("late":true)"), std::string::npos);
    EXPECT_EQ(read.state.epoch, 2u) << "the log is the second worker's";
  }
}

AE_TEST("late/what was seen and refused with a lost lease is kept for whoever holds the job") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk first(ground, "first", {.durability = durability, .seed = 1, .delay = 10min});
    Desk second(ground, "second", {.durability = durability, .seed = 1'000'001});
    first.runtime->start();
    first.create(plan("at_most_once", kOneCall));
    ASSERT_EQ(first.calls.size(), 1u);
    first.script = [](const store::Call& call) {  // it hears nothing of its lease
      const bool silent = call.method == Method::heartbeat || call.method == Method::claim;
      return silent ? Fault::delay : Fault::none;
    };
    ground.loop.advance(20s);
    second.runtime->start();
    ground.loop.advance(22s);
    ASSERT_EQ(second.read().state.epoch, 2u);
    ASSERT_TRUE(first.runtime->holds(kJob)) << "it does not know better";
    first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
    EXPECT_FALSE(first.runtime->holds(kJob));
    const auto read = second.read();
    ASSERT_EQ(read.effects.size(), 1u) << "what it saw is lost";
    EXPECT_NE(read.effects[0].record.find(R"("output":7)"), std::string::npos);
    ground.loop.advance(60s);
    EXPECT_EQ(second.calls.size(), 0u);
    EXPECT_EQ(second.status(), "completed");
  }
}

NewJobRequest one_call(bool hold) {
  NewJobRequest request;
  request.job = kJob;
  request.agent = "agent";
  request.plan = plan("at_most_once", kOneCall);
  request.hold = hold;
  return request;
}

// The call that is under way is answered, and the job goes on with the holder of the newer lease.
void expect_goes_on(Ground& ground, Desk& desk) {
  EXPECT_EQ(desk.read().state.epoch, 2u);
  desk.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  ground.loop.advance(2s);
  EXPECT_EQ(desk.calls.size(), 1u);
  const auto read = desk.read();
  EXPECT_EQ(read.state.status, engine::JobStatus::completed);
  EXPECT_EQ(read.state.steps[0].result, json("7"));
}

AE_TEST("lease/a newer lease of a job that is held here ends the older holder first") {
  for (const bool by_name : {false, true}) {
    Ground ground;
    Desk desk(ground, "w", {.delay = 40s});
    // The claim is under way while the job is created here, and nothing is heard of the lease that runs out.
    desk.script = [](const store::Call& call) {
      const bool slow = call.method == Method::heartbeat || call.method == Method::claim ||
                        call.method == Method::claim_job;
      return slow ? Fault::delay : Fault::none;
    };
    if (by_name) desk.runtime->claim_job(kJob, [](Result<bool>) {});
    desk.runtime->start();
    desk.create(plan("at_most_once", kOneCall));
    ASSERT_EQ(desk.calls.size(), 1u);
    ground.loop.advance(39s);
    EXPECT_FALSE(desk.calls[0].abandoned);
    desk.script = [](const store::Call&) { return Fault::none; };
    ground.loop.advance(2s);
    EXPECT_TRUE(desk.calls[0].abandoned) << "the older holder was never told";
    EXPECT_TRUE(desk.warned("lease lost"));
    expect_goes_on(ground, desk);
  }
}

AE_TEST("lease/the answer of a create or a claim that a newer lease overtook is not taken on") {
  for (const Method late : {Method::commit, Method::claim_job}) {
    Ground ground;
    Desk desk(ground, "w", {.delay = 40s});
    bool slow = late == Method::commit;
    desk.script = [&](const store::Call& call) {
      return call.method == late && std::exchange(slow, false) ? Fault::delay_answer : Fault::none;
    };
    int answers = 0;
    if (late == Method::commit) {
      desk.runtime->create(one_call(true), [&](Result<Created> made) { answers += made ? 1 : 0; });
    } else {
      desk.runtime->create(one_call(false), [](Result<Created>) {});
      ground.loop.run_ready();
      slow = true;
      desk.runtime->claim_job(kJob, [&](Result<bool> held) { answers += held && *held ? 1 : 0; });
    }
    desk.runtime->start();
    ground.loop.advance(39s);
    ASSERT_EQ(desk.calls.size(), 1u) << "its own lease ran out, and it claimed the job again";
    EXPECT_EQ(answers, 0);
    ground.loop.advance(2s);
    EXPECT_EQ(answers, 1) << "whoever asked is answered";
    EXPECT_FALSE(desk.calls[0].abandoned);
    expect_goes_on(ground, desk);
  }
}

AE_TEST(
    "late/a result that comes while the next holder waits is taken in, and nothing is sent again") {
  for (const std::string_view effect : {"at_most_once", "idempotent"}) {
    for (const Durability durability : {Durability::fused, Durability::split}) {
      TwoWorkers two(effect, durability);
      two.first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
      two.ground.loop.advance(60s);  // lease and grace are over: the next holder decides
      EXPECT_EQ(two.second.status(), "completed") << effect;
      EXPECT_EQ(two.second.calls.size(), 0u) << effect;
      const auto read = two.second.read();
      EXPECT_EQ(read.state.steps[0].result, json("7"));
    }
  }
}

AE_TEST("late/a result that comes after the job parked frees it without a person") {
  TwoWorkers two("at_most_once");
  two.ground.loop.advance(120s);
  ASSERT_EQ(two.second.status(), "parked");
  two.first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  two.ground.loop.advance(5s);
  EXPECT_EQ(two.second.status(), "completed");
  EXPECT_EQ(two.second.calls.size(), 0u);
}

AE_TEST("late/a definite failure counts too; a timeout says nothing and is not kept") {
  TwoWorkers failed("at_most_once");
  failed.first.answer(0,
                      {.kind = OutcomeKind::failure, .definite = true, .error_code = "http_402"});
  failed.ground.loop.advance(60s);
  EXPECT_EQ(failed.second.status(), "failed");
  TwoWorkers silent("at_most_once");
  silent.first.answer(0, {.kind = OutcomeKind::timeout, .error_code = "timeout"});
  EXPECT_TRUE(silent.second.read().effects.empty());
  silent.ground.loop.advance(60s);
  EXPECT_EQ(silent.second.status(), "parked");
}

AE_TEST("late/after the call was sent again an old result is kept and shown, the new one counts") {
  TwoWorkers two("idempotent");
  two.ground.loop.advance(60s);
  ASSERT_EQ(two.second.calls.size(), 1u);
  EXPECT_EQ(two.second.calls[0].call.external_key, two.first.calls[0].call.external_key);
  two.first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  two.second.answer(0, {.kind = OutcomeKind::success, .result = json("8")});
  const auto read = two.second.read();
  EXPECT_EQ(read.state.status, engine::JobStatus::completed);
  EXPECT_EQ(read.state.steps[0].result, json("8"));
  EXPECT_EQ(read.effects.size(), 1u);
}

AE_TEST("late/a person's decision and a late result do not both count") {
  TwoWorkers two("at_most_once");
  two.ground.loop.advance(700s);
  ASSERT_EQ(two.second.status(), "parked");
  // The late result is written between the reading of the job and the writing of the decision.
  two.second.script = [&](const store::Call& call) {
    if (call.method == Method::commit && !two.first.calls.empty()) {
      two.first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
      two.first.calls.clear();
    }
    return Fault::none;
  };
  const auto said = two.second.resolve("not_happened");
  EXPECT_FALSE(said);
  two.ground.loop.advance(5s);
  EXPECT_EQ(two.second.status(), "completed");
  EXPECT_EQ(two.second.calls.size(), 0u) << "it happened: it is not sent again";
}

// A job that ended while its call was in flight: a person said that it happened.
struct EndedEarly : TwoWorkers {
  EndedEarly() : TwoWorkers("at_most_once") {
    ground.loop.advance(700s);
    AE_CHECK(second.resolve("happened").has_value());
    ground.loop.advance(5s);
    AE_CHECK(second.status() == "completed", second.status());
  }
  Redacted redact() {
    auto done = ground.loop.await<Result<Redacted>>([&](auto answered) {
      runtime::redact(*second.faulty, {.job = kJob, .all = true, .by = "test", .reason = "test"},
                      std::move(answered));
    });
    AE_CHECK(done.has_value(), done ? "" : done.error().message);
    return *std::move(done);
  }
  void comes_late() {
    first.answer(0, {.kind = OutcomeKind::success, .result = json("'ada@x.org'")});
    ground.loop.advance(5s);
  }
  void expect_outcome_alone() {
    const auto read = second.read();
    ASSERT_EQ(read.effects.size(), 1u);
    const std::string& record = read.effects[0].record;
    EXPECT_TRUE(record.contains(R"("outcome":"success")")) << record;
    EXPECT_FALSE(record.contains("ada@x.org")) << record;
  }
};

AE_TEST(
    "late/of a result that comes after its job was redacted the outcome is kept, not the value") {
  EndedEarly job;
  job.redact();
  job.comes_late();
  EXPECT_TRUE(job.first.warned("late result is stored"));
  job.expect_outcome_alone();
}

AE_TEST("late/a result that came before its job is redacted is erased, its outcome is kept") {
  EndedEarly job;
  job.comes_late();
  job.redact();
  job.expect_outcome_alone();
}

AE_TEST("late/what came into a redacted job with its value is erased by the next redaction") {
  EndedEarly job;
  job.redact();
  const auto read = job.second.read();
  store::Batch late{.job = kJob, .authority = store::Batch::Late{}};
  const engine::Sent sent = engine::sent_of(read.state, read.state.steps[0]);
  late.effects.push_back(
      {sent.invocation, sent.try_no,
       canonical(engine::effect_record(
           kJob, sent, {.kind = OutcomeKind::success, .result = json("'ada@x.org'")},
           job.second.faulty->now(), engine::Arrival::late))});
  ASSERT_TRUE(job.ground.loop.await<Result<store::Committed>>(
      [&](auto done) { job.second.faulty->commit(std::move(late), std::move(done)); }));
  EXPECT_TRUE(job.redact().dropped.empty()) << "of the log nothing is left to drop";
  job.expect_outcome_alone();
}

AE_TEST(
    "late/a redaction between the reading of the job and the writing of the result is noticed") {
  EndedEarly job;
  bool slow = true;
  job.first.script = [&](const store::Call& call) {
    return call.method == Method::commit && std::exchange(slow, false) ? Fault::delay : Fault::none;
  };
  job.first.answer(0, {.kind = OutcomeKind::success, .result = json("'ada@x.org'")});
  job.ground.loop.advance(1ms);
  ASSERT_FALSE(slow) << "it is on its way";
  job.redact();
  EXPECT_EQ(job.second.read().effects.size(), 0u);
  job.ground.loop.advance(20min);
  job.expect_outcome_alone();
}

AE_TEST("late/a job does not rest on a question that has been answered") {
  Ground ground;
  Desk first(ground, "first", {.seed = 1});
  Desk second(ground, "second", {.seed = 1'000'001});
  first.runtime->start();
  first.create(plan("at_most_once",
                    "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                    " {'id':'b', 'kind':'tool', 'tool':'do', 'needs':['t']},"
                    " {'id':'t', 'kind':'wait', 'wait':{'type':'timer','for':'80s'}}]"));
  first.script = without_heartbeat;
  ground.loop.advance(20s);
  second.runtime->start();
  ground.loop.advance(100s);  // the question is open, and the other branch makes its call
  ASSERT_EQ(second.calls.size(), 1u);
  first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  second.answer(0, {.kind = OutcomeKind::success, .result = json("8")});
  ground.loop.advance(5s);
  EXPECT_EQ(second.status(), "completed");
}

AE_TEST("late/a result that the store would not take at first is offered again") {
  TwoWorkers two("at_most_once");
  int refused = 0;
  two.first.script = [&](const store::Call& call) {
    return call.method == Method::commit && ++refused <= 3 ? Fault::fail_before : Fault::none;
  };
  two.first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  two.ground.loop.advance(60s);
  EXPECT_EQ(two.second.status(), "completed");
}

AE_TEST(
    "recovery/an attempt that takes a job over tells what it found, in the commit it makes "
    "anyway") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TwoWorkers two("at_most_once", durability);
    const auto read = two.second.read();
    const auto started = all_of(read.events, EventType::recovery_started);
    const auto completed = all_of(read.events, EventType::recovery_completed);
    ASSERT_EQ(started.size(), 1u);
    ASSERT_EQ(completed.size(), 1u);
    const auto attempts = all_of(read.events, EventType::job_running);
    ASSERT_EQ(attempts.size(), 2u) << "the first attempt, which wrote the log, recovers nothing";
    const auto& found = std::get<RecoveryStarted>(started[0]->body);
    EXPECT_EQ(found.attempt_id, std::get<JobRunning>(attempts[1]->body).attempt_id);
    EXPECT_EQ(found.detail["after"], Value(std::get<JobRunning>(attempts[0]->body).attempt_id));
    EXPECT_EQ(found.detail["seq"], Value(attempts[1]->seq - 1));
    EXPECT_EQ(std::get<RecoveryCompleted>(completed[0]->body).detail,
              json("{'caught_up':0, 'in_doubt':1, 'injected':0, 'pending':1, 'resent':0}"));
    EXPECT_EQ(started[0]->seq, attempts[1]->seq + 1);
    EXPECT_EQ(completed[0]->seq, attempts[1]->seq + 2);
    EXPECT_EQ(started[0]->created_at, attempts[1]->created_at) << "they stand in one commit";
  }
}

AE_TEST("recovery/what was done is injected, what stands beside the log is caught up") {
  Ground ground;
  Desk first(ground, "first", {.durability = Durability::split, .seed = 1});
  first.runtime->start();
  first.create(plan("idempotent",
                    "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                    " {'id':'b', 'kind':'tool', 'tool':'do', 'needs':['a']},"
                    " {'id':'c', 'kind':'tool', 'tool':'do', 'needs':['a']}]"));
  first.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  ASSERT_EQ(first.calls.size(), 3u);
  // The effect of `b` is kept; then nothing more of this worker arrives.
  int commits = 0;
  first.script = [&](const store::Call& call) {
    if (call.method == Method::commit && commits++ == 0) return Fault::none;
    return Fault::fail_before;
  };
  first.answer(1, {.kind = OutcomeKind::success, .result = json("2")});
  Desk second(ground, "second", {.durability = Durability::split, .seed = 1'000'001});
  second.runtime->start();
  ground.loop.advance(45s);
  ASSERT_EQ(second.read().state.epoch, 2u);
  const auto read = second.read();
  const auto completed = all_of<RecoveryCompleted>(read.events);
  ASSERT_EQ(completed.size(), 1u);
  EXPECT_EQ(completed[0]->detail,
            json("{'caught_up':1, 'in_doubt':0, 'injected':2, 'pending':2, 'resent':1}"));
}

AE_TEST("claims/an outage of the store is no lost claim of a process that outlives it") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    Ground ground;
    Desk desk(ground, "w", {.durability = durability});
    desk.runtime->start();
    desk.create(plan("idempotent", kOneCall));
    for (std::uint64_t time = 1; time <= 3; ++time) {
      outage(ground, desk);
      ground.loop.advance(32s);  // its call has settled, and is made again
      ASSERT_TRUE(desk.runtime->holds(kJob));
      const auto read = desk.read();
      EXPECT_EQ(read.state.lost_claims, 0u);
      const auto requeued = all_of<JobRequeued>(read.events);
      EXPECT_EQ(std::ranges::count(requeued, "store_unavailable", &JobRequeued::reason),
                static_cast<std::ptrdiff_t>(time));
    }
  }
}

// It was asked in time, and answers when the lease is over: first a heartbeat, or first a commit.
AE_TEST("claims/a store that stalls for longer than a lease, and then answers, is no lost claim") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    for (const bool writes : {false, true}) {
      Ground ground;
      Desk desk(ground, "w", {.durability = durability, .delay = 35s});
      desk.runtime->start();
      desk.create(plan("idempotent", kOneCall));
      for (std::uint64_t time = 1; time <= 2; ++time) {
        ASSERT_EQ(desk.calls.size(), time);
        ground.loop.advance(1s);
        desk.script = [](const store::Call&) { return Fault::delay; };
        if (writes) not_sent(desk, desk.calls.size() - 1);
        ground.loop.advance(48s);
        EXPECT_FALSE(desk.runtime->holds(kJob));
        EXPECT_EQ(desk.outages, "") << "every question was answered";
        desk.script = [](const store::Call&) { return Fault::none; };
        ground.loop.advance(75s);  // claims that are late, and the grace of the call
        ASSERT_TRUE(desk.runtime->holds(kJob));
        const auto read = desk.read();
        const auto requeued = all_of<JobRequeued>(read.events);
        EXPECT_EQ(std::ranges::count(requeued, "store_unavailable", &JobRequeued::reason),
                  static_cast<std::ptrdiff_t>(time));
        EXPECT_EQ(read.state.lost_claims, 0u);
      }
    }
  }
}

AE_TEST(
    "claims/a process that another outlived, or that lost its lease otherwise, has lost a claim") {
  TwoWorkers two("idempotent");
  EXPECT_EQ(two.second.read().state.lost_claims, 1u) << "nobody can know how the first one is";

  Ground ground;
  Desk desk(ground, "w", {});
  desk.runtime->start();
  desk.create(plan("idempotent", kOneCall));
  // It did not ask in time: the store is well.
  ground.loop.stand_still(60s);
  ground.loop.advance(20s);
  EXPECT_GE(desk.read().state.epoch, 2u);
  EXPECT_GE(desk.read().state.lost_claims, 1u);
}

AE_TEST(
    "late/what a function says after its call was cut off is kept and shown, and its doubt stays") {
  Ground ground;
  Desk desk(ground, "w", {.owned = true});
  desk.runtime->start();
  desk.create(plan("at_most_once", kOneCall));
  desk.answer(0, {.kind = OutcomeKind::timeout, .error_code = "timeout"});
  EXPECT_EQ(desk.status(), "parked");
  desk.calls[0].call.late({.kind = OutcomeKind::success, .result = json("7")});
  ground.loop.run_ready();
  EXPECT_TRUE(desk.warned("late result is stored"));
  const auto read = desk.read();
  const auto finished = all_of<ToolInvocationFinished>(read.events);
  ASSERT_EQ(finished.size(), 2u);
  EXPECT_EQ(finished[1]->late, true);
  EXPECT_EQ(finished[1]->outcome, "success");
  ASSERT_TRUE(desk.resolve("happened"));
}

// ---------------------------------------------------------------- after the end

// Its call was given up, and the job has failed.
void gives_up(Ground& ground, Desk& desk) {
  desk.runtime->start();
  desk.create(plan("at_most_once", kOneCall));
  desk.answer(0, {.kind = OutcomeKind::timeout, .error_code = "timeout"});
  AE_CHECK(desk.resolve("fail").has_value());
  ground.loop.run_ready();
  AE_CHECK(desk.status() == "failed", desk.status());
}

const Outcome kSeven{.kind = OutcomeKind::success, .result = json("7")};

void expect_noted_once(Desk& desk) {
  const auto read = desk.read();
  const auto notes = all_of<OutcomeNoted>(read.events);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0]->by, "runtime");
  EXPECT_EQ(notes[0]->resolution, "happened");
  EXPECT_EQ(notes[0]->result.value, json("7"));
  EXPECT_EQ(read.state.status, engine::JobStatus::failed);
  EXPECT_EQ(read.effects.size(), 1u);
}

AE_TEST("late/a certain result that comes after the end of its job is noted in the log") {
  for (const bool owned : {true, false}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = owned});
    gives_up(ground, desk);
    desk.calls[0].call.late(kSeven);
    ground.loop.advance(5s);
    expect_noted_once(desk);
    desk.calls[0].call.late(kSeven);  // it arrives twice
    ground.loop.advance(5s);
    expect_noted_once(desk);
  }
}

AE_TEST("late/a worker that lost a job notes its late result after another worker ended the job") {
  TwoWorkers two("at_most_once");
  two.ground.loop.advance(700s);
  ASSERT_EQ(two.second.status(), "parked");
  ASSERT_TRUE(two.second.resolve("fail"));
  two.ground.loop.run_ready();
  ASSERT_EQ(two.second.status(), "failed");
  two.first.answer(0, kSeven);
  two.ground.loop.advance(5s);
  expect_noted_once(two.second);
}

AE_TEST("late/a note that the store would not take at first is written later") {
  for (const Fault fault : {Fault::fail_before, Fault::fail_after}) {
    Ground ground;
    Desk desk(ground, "w", {.owned = true});
    gives_up(ground, desk);
    int commits = 0;
    desk.script = [&](const store::Call& call) {
      const bool note = call.method == Method::commit && ++commits == 2;
      return note ? fault : Fault::none;
    };
    desk.calls[0].call.late(kSeven);
    ground.loop.advance(5s);
    EXPECT_GE(commits, 2);
    expect_noted_once(desk);
  }
}

AE_TEST("late/a process that dies before its note leaves it to the next act on the job") {
  Ground ground;
  {
    Desk desk(ground, "w", {.owned = true, .seed = 1});
    gives_up(ground, desk);
    int commits = 0;
    desk.script = [&](const store::Call& call) {
      return call.method == Method::commit && ++commits > 1 ? Fault::fail_before : Fault::none;
    };
    desk.calls[0].call.late(kSeven);
    ground.loop.run_ready();
    ASSERT_EQ(desk.read().effects.size(), 1u);
    ASSERT_TRUE(all_of(desk.read().events, EventType::outcome_noted).empty());
  }
  Desk next(ground, "next", {.owned = true, .seed = 2});
  next.runtime->start();
  ground.loop.advance(1h);
  const auto said = next.resolve("not_happened");
  ASSERT_FALSE(said);
  EXPECT_EQ(said.error().code, Code::not_in_doubt) << said.error().message;
  expect_noted_once(next);
  EXPECT_FALSE(next.resolve("happened"));
  expect_noted_once(next);
}

}  // namespace
}  // namespace ae::runtime::testing
