// Tests of leases and claims that are lost, of late results, and of recoveries from both.
#include <algorithm>
#include <chrono>
#include <memory>

#include "runtime/lost_lease_fixture_test.h"
#include "runtime/service/redact.h"
#include "runtime/worker_fixture_test.h"

namespace ae::runtime::testing {
namespace {

AE_TEST("lease/a worker that lost its lease writes only the definite late result of its call") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TwoWorkersFixture two("at_most_once", durability);
    EXPECT_TRUE(two.first.calls[0].abandoned) << "its call is abandoned";
    two.first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
    EXPECT_TRUE(two.first.warned("late result is stored"));
    const auto read = two.second.read();
    ASSERT_EQ(read.effects.size(), 1u);
    EXPECT_NE(read.effects[0].record.find(R"("late":true)"), std::string::npos);
    EXPECT_EQ(read.state.epoch, 2u) << "the log is the second worker's";
  }
}

AE_TEST("late_result/an outcome refused because of a lost lease is stored for the lease holder") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture first(env, "first", {.durability = durability, .seed = 1, .delay = 10min});
    WorkerFixture second(env, "second", {.durability = durability, .seed = 1'000'001});
    first.runtime->start();
    first.create(plan("at_most_once", kOneCall));
    ASSERT_EQ(first.calls.size(), 1u);
    first.script = [](const store::Call& call) {  // its heartbeats and claims get no reply
      const bool silent = call.method == Method::heartbeat || call.method == Method::claim;
      return silent ? Fault::delay : Fault::none;
    };
    env.loop.advance(20s);
    second.runtime->start();
    env.loop.advance(22s);
    ASSERT_EQ(second.read().state.epoch, 2u);
    ASSERT_TRUE(first.runtime->is_leased(kJob)) << "it has not learned that it lost the lease";
    first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
    EXPECT_FALSE(first.runtime->is_leased(kJob));
    const auto read = second.read();
    ASSERT_EQ(read.effects.size(), 1u) << "the outcome is lost";
    EXPECT_NE(read.effects[0].record.find(R"("output":7)"), std::string::npos);
    env.loop.advance(60s);
    EXPECT_EQ(second.calls.size(), 0u);
    EXPECT_EQ(second.status(), "completed");
  }
}

NewJobRequest one_call(bool start_here) {
  NewJobRequest request;
  request.job = kJob;
  request.agent = "agent";
  request.plan = plan("at_most_once", kOneCall);
  request.start_here = start_here;
  return request;
}

// The call in flight is answered, and the job continues under the newer lease.
void expect_continues(TestEnvironment& env, WorkerFixture& worker) {
  EXPECT_EQ(worker.read().state.epoch, 2u);
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  env.loop.advance(2s);
  EXPECT_EQ(worker.calls.size(), 1u);
  const auto read = worker.read();
  EXPECT_EQ(read.state.status, engine::JobStatus::completed);
  EXPECT_EQ(read.state.steps[0].result, json("7"));
}

AE_TEST("lease/a newer lease in the same process ends the older one first") {
  for (const bool by_name : {false, true}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.delay = 40s});
    // The claim is in flight while the job is created here, and no reply reports that the lease
    // expired.
    worker.script = [](const store::Call& call) {
      const bool slow = call.method == Method::heartbeat || call.method == Method::claim ||
                        call.method == Method::claim_job;
      return slow ? Fault::delay : Fault::none;
    };
    if (by_name) worker.runtime->claim_job(kJob, [](Result<bool>) {});
    worker.runtime->start();
    worker.create(plan("at_most_once", kOneCall));
    ASSERT_EQ(worker.calls.size(), 1u);
    env.loop.advance(39s);
    EXPECT_FALSE(worker.calls[0].abandoned);
    worker.script = [](const store::Call&) { return Fault::none; };
    env.loop.advance(2s);
    EXPECT_TRUE(worker.calls[0].abandoned) << "the older lease holder was not ended";
    EXPECT_TRUE(worker.warned("lease lost"));
    expect_continues(env, worker);
  }
}

AE_TEST("lease/a create or claim result that is older than the current lease is ignored") {
  for (const Method late : {Method::commit, Method::claim_job}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.delay = 40s});
    bool slow = late == Method::commit;
    worker.script = [&](const store::Call& call) {
      return call.method == late && std::exchange(slow, false) ? Fault::delay_answer : Fault::none;
    };
    int answers = 0;
    if (late == Method::commit) {
      worker.runtime->create(one_call(true),
                             [&](Result<CreateResult> made) { answers += made ? 1 : 0; });
    } else {
      worker.runtime->create(one_call(false), [](Result<CreateResult>) {});
      env.loop.run_ready();
      slow = true;
      worker.runtime->claim_job(kJob, [&](Result<bool> held) { answers += held && *held ? 1 : 0; });
    }
    worker.runtime->start();
    env.loop.advance(39s);
    ASSERT_EQ(worker.calls.size(), 1u) << "its own lease ran out, and it claimed the job again";
    EXPECT_EQ(answers, 0);
    env.loop.advance(2s);
    EXPECT_EQ(answers, 1) << "the caller gets a result";
    EXPECT_FALSE(worker.calls[0].abandoned);
    expect_continues(env, worker);
  }
}

AE_TEST("late_result/a result before the next lease holder decides is used without a retry") {
  for (const std::string_view effect : {"at_most_once", "idempotent"}) {
    for (const Durability durability : {Durability::fused, Durability::split}) {
      TwoWorkersFixture two(effect, durability);
      two.first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
      two.env.loop.advance(60s);  // lease and grace period are over: the next lease holder decides
      EXPECT_EQ(two.second.status(), "completed") << effect;
      EXPECT_EQ(two.second.calls.size(), 0u) << effect;
      const auto read = two.second.read();
      EXPECT_EQ(read.state.steps[0].result, json("7"));
    }
  }
}

AE_TEST("late_result/a result that arrives after the job parked resumes it") {
  TwoWorkersFixture two("at_most_once");
  two.env.loop.advance(120s);
  ASSERT_EQ(two.second.status(), "parked");
  two.first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  two.env.loop.advance(5s);
  EXPECT_EQ(two.second.status(), "completed");
  EXPECT_EQ(two.second.calls.size(), 0u);
}

AE_TEST("late_result/a definite failure counts, a timeout is not stored") {
  TwoWorkersFixture failed("at_most_once");
  failed.first.answer(0,
                      {.kind = OutcomeKind::failure, .definite = true, .error_code = "http_402"});
  failed.env.loop.advance(60s);
  EXPECT_EQ(failed.second.status(), "failed");
  TwoWorkersFixture silent("at_most_once");
  silent.first.answer(0, {.kind = OutcomeKind::timeout, .error_code = "timeout"});
  EXPECT_TRUE(silent.second.read().effects.empty());
  silent.env.loop.advance(60s);
  EXPECT_EQ(silent.second.status(), "parked");
}

AE_TEST("late_result/after a retry an old result is stored, and the new one counts") {
  TwoWorkersFixture two("idempotent");
  two.env.loop.advance(60s);
  ASSERT_EQ(two.second.calls.size(), 1u);
  EXPECT_EQ(two.second.calls[0].call.external_key, two.first.calls[0].call.external_key);
  two.first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  two.second.answer(0, {.kind = OutcomeKind::success, .result = json("8")});
  const auto read = two.second.read();
  EXPECT_EQ(read.state.status, engine::JobStatus::completed);
  EXPECT_EQ(read.state.steps[0].result, json("8"));
  EXPECT_EQ(read.effects.size(), 1u);
}

AE_TEST("late_result/a resolution is refused if a late result is stored first") {
  TwoWorkersFixture two("at_most_once");
  two.env.loop.advance(700s);
  ASSERT_EQ(two.second.status(), "parked");
  // The late result is stored between the read of the job and the commit of the decision.
  two.second.script = [&](const store::Call& call) {
    if (call.method == Method::commit && !two.first.calls.empty()) {
      two.first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
      two.first.calls.clear();
    }
    return Fault::none;
  };
  const auto result = two.second.resolve("not_happened");
  EXPECT_FALSE(result);
  two.env.loop.advance(5s);
  EXPECT_EQ(two.second.status(), "completed");
  EXPECT_EQ(two.second.calls.size(), 0u) << "it happened: it is not sent again";
}

// A job that ended while its call was in flight: an operator resolved the call as `happened`.
struct EndedJobFixture : TwoWorkersFixture {
  EndedJobFixture() : TwoWorkersFixture("at_most_once") {
    env.loop.advance(700s);
    AE_CHECK(second.resolve("happened").has_value());
    env.loop.advance(5s);
    AE_CHECK(second.status() == "completed", second.status());
  }
  RedactResult redact() {
    auto done = env.loop.await<Result<RedactResult>>([&](auto answered) {
      runtime::redact(*second.faulty, {.job = kJob, .all = true, .by = "test", .reason = "test"},
                      std::move(answered));
    });
    AE_CHECK(done.has_value(), done ? "" : done.error().message);
    return *std::move(done);
  }
  void deliver_late_result() {
    first.answer(0, {.kind = OutcomeKind::success, .result = json("'ada@x.org'")});
    env.loop.advance(5s);
  }
  void expect_outcome_alone() {
    const auto read = second.read();
    ASSERT_EQ(read.effects.size(), 1u);
    const std::string& record = read.effects[0].record;
    EXPECT_TRUE(record.contains(R"("outcome":"success")")) << record;
    EXPECT_FALSE(record.contains("ada@x.org")) << record;
  }
};

AE_TEST("late_result/a result after a redaction is stored without its value") {
  EndedJobFixture job;
  job.redact();
  job.deliver_late_result();
  EXPECT_TRUE(job.first.warned("late result is stored"));
  job.expect_outcome_alone();
}

AE_TEST("late_result/a redaction erases an earlier late result and keeps its outcome") {
  EndedJobFixture job;
  job.deliver_late_result();
  job.redact();
  job.expect_outcome_alone();
}

AE_TEST("late_result/a value stored after a redaction is erased by the next redaction") {
  EndedJobFixture job;
  job.redact();
  const auto read = job.second.read();
  store::Batch late{.job = kJob, .authority = store::Batch::LateResult{}};
  const engine::SentTry sent = engine::sent_try_of(read.state, read.state.steps[0]);
  late.effects.push_back(
      {sent.invocation, sent.try_no,
       canonical(engine::effect_record(
           kJob, sent, {.kind = OutcomeKind::success, .result = json("'ada@x.org'")},
           job.second.faulty->now(), engine::Arrival::late))});
  ASSERT_TRUE(job.env.loop.await<Result<store::CommitResult>>(
      [&](auto done) { job.second.faulty->commit(std::move(late), std::move(done)); }));
  EXPECT_TRUE(job.redact().erased.empty()) << "no value is left in the log";
  job.expect_outcome_alone();
}

AE_TEST("late_result/a redaction between the read of the job and the write is detected") {
  EndedJobFixture job;
  bool slow = true;
  job.first.script = [&](const store::Call& call) {
    return call.method == Method::commit && std::exchange(slow, false) ? Fault::delay : Fault::none;
  };
  job.first.answer(0, {.kind = OutcomeKind::success, .result = json("'ada@x.org'")});
  job.env.loop.advance(1ms);
  ASSERT_FALSE(slow) << "it is in flight";
  job.redact();
  EXPECT_EQ(job.second.read().effects.size(), 0u);
  job.env.loop.advance(20min);
  job.expect_outcome_alone();
}

AE_TEST("late_result/a job does not park on an outcome that a late result has resolved") {
  TestEnvironment env;
  WorkerFixture first(env, "first", {.seed = 1});
  WorkerFixture second(env, "second", {.seed = 1'000'001});
  first.runtime->start();
  first.create(plan("at_most_once",
                    "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                    " {'id':'b', 'kind':'tool', 'tool':'do', 'needs':['t']},"
                    " {'id':'t', 'kind':'wait', 'wait':{'type':'timer','for':'80s'}}]"));
  first.script = without_heartbeat;
  env.loop.advance(20s);
  second.runtime->start();
  env.loop.advance(100s);  // the question is open, and the other branch makes its call
  ASSERT_EQ(second.calls.size(), 1u);
  first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  second.answer(0, {.kind = OutcomeKind::success, .result = json("8")});
  env.loop.advance(5s);
  EXPECT_EQ(second.status(), "completed");
}

AE_TEST("late_result/a result that cannot be stored at first is retried") {
  TwoWorkersFixture two("at_most_once");
  int refused = 0;
  two.first.script = [&](const store::Call& call) {
    return call.method == Method::commit && ++refused <= 3 ? Fault::fail_before : Fault::none;
  };
  two.first.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  two.env.loop.advance(60s);
  EXPECT_EQ(two.second.status(), "completed");
}

AE_TEST("recovery/a takeover records its findings in its first commit") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TwoWorkersFixture two("at_most_once", durability);
    const auto read = two.second.read();
    const auto started = all_of(read.events, EventType::recovery_started);
    const auto completed = all_of(read.events, EventType::recovery_completed);
    ASSERT_EQ(started.size(), 1u);
    ASSERT_EQ(completed.size(), 1u);
    const auto attempts = all_of(read.events, EventType::job_running);
    ASSERT_EQ(attempts.size(), 2u) << "the first attempt, which wrote the log, recovers nothing";
    const auto& found = std::get<RecoveryStarted>(started[0]->body);
    EXPECT_EQ(found.attempt_id, std::get<JobRunning>(attempts[1]->body).attempt_id);
    EXPECT_EQ(found.detail.json()["after"],
              Value(std::get<JobRunning>(attempts[0]->body).attempt_id));
    EXPECT_EQ(found.detail.json()["seq"], Value(attempts[1]->seq - 1));
    EXPECT_EQ(std::get<RecoveryCompleted>(completed[0]->body).detail.json(),
              json("{'caught_up':0, 'in_doubt':1, 'injected':0, 'pending':1, 'resent':0}"));
    EXPECT_EQ(started[0]->seq, attempts[1]->seq + 1);
    EXPECT_EQ(completed[0]->seq, attempts[1]->seq + 2);
    EXPECT_EQ(started[0]->created_at, attempts[1]->created_at) << "they are in one commit";
  }
}

AE_TEST("recovery/recorded results are replayed and side records are added to the log") {
  TestEnvironment env;
  WorkerFixture first(env, "first", {.durability = Durability::split, .seed = 1});
  first.runtime->start();
  first.create(plan("idempotent",
                    "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                    " {'id':'b', 'kind':'tool', 'tool':'do', 'needs':['a']},"
                    " {'id':'c', 'kind':'tool', 'tool':'do', 'needs':['a']}]"));
  first.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  ASSERT_EQ(first.calls.size(), 3u);
  // The effect record of `b` is stored; then no commit of this worker succeeds.
  int commits = 0;
  first.script = [&](const store::Call& call) {
    if (call.method == Method::commit && commits++ == 0) return Fault::none;
    return Fault::fail_before;
  };
  first.answer(1, {.kind = OutcomeKind::success, .result = json("2")});
  WorkerFixture second(env, "second", {.durability = Durability::split, .seed = 1'000'001});
  second.runtime->start();
  env.loop.advance(45s);
  ASSERT_EQ(second.read().state.epoch, 2u);
  const auto read = second.read();
  const auto completed = all_of<RecoveryCompleted>(read.events);
  ASSERT_EQ(completed.size(), 1u);
  EXPECT_EQ(completed[0]->detail.json(),
            json("{'caught_up':1, 'in_doubt':0, 'injected':2, 'pending':2, 'resent':1}"));
}

AE_TEST("claims/a store outage that the process survives is not a lost claim") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.durability = durability});
    worker.runtime->start();
    worker.create(plan("idempotent", kOneCall));
    for (std::uint64_t time = 1; time <= 3; ++time) {
      outage(env, worker);
      env.loop.advance(32s);  // its call has settled and is retried
      ASSERT_TRUE(worker.runtime->is_leased(kJob));
      const auto read = worker.read();
      EXPECT_EQ(read.state.lost_claims, 0u);
      const auto requeued = all_of<JobRequeued>(read.events);
      EXPECT_EQ(std::ranges::count(requeued, "store_unavailable", &JobRequeued::reason),
                static_cast<std::ptrdiff_t>(time));
    }
  }
}

// The request was sent in time; its reply arrives after the lease expired. Either a heartbeat or a
// commit comes first.
AE_TEST("claims/a store that stalls for longer than a lease causes no lost claim") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    for (const bool writes : {false, true}) {
      TestEnvironment env;
      WorkerFixture worker(env, "w", {.durability = durability, .delay = 35s});
      worker.runtime->start();
      worker.create(plan("idempotent", kOneCall));
      for (std::uint64_t time = 1; time <= 2; ++time) {
        ASSERT_EQ(worker.calls.size(), time);
        env.loop.advance(1s);
        worker.script = [](const store::Call&) { return Fault::delay; };
        if (writes) answer_not_sent(worker, worker.calls.size() - 1);
        env.loop.advance(48s);
        EXPECT_FALSE(worker.runtime->is_leased(kJob));
        EXPECT_EQ(worker.outages, "") << "every request was answered";
        worker.script = [](const store::Call&) { return Fault::none; };
        env.loop.advance(75s);  // late claims, and the grace period of the call
        ASSERT_TRUE(worker.runtime->is_leased(kJob));
        const auto read = worker.read();
        const auto requeued = all_of<JobRequeued>(read.events);
        EXPECT_EQ(std::ranges::count(requeued, "store_unavailable", &JobRequeued::reason),
                  static_cast<std::ptrdiff_t>(time));
        EXPECT_EQ(read.state.lost_claims, 0u);
      }
    }
  }
}

AE_TEST("claims/a lease lost to another worker or to a missed heartbeat is a lost claim") {
  TwoWorkersFixture two("idempotent");
  EXPECT_EQ(two.second.read().state.lost_claims, 1u) << "the state of the first one is unknown";

  TestEnvironment env;
  WorkerFixture worker(env, "w", {});
  worker.runtime->start();
  worker.create(plan("idempotent", kOneCall));
  // The worker sent no heartbeat in time, while the store was available.
  env.loop.skip_time(60s);
  env.loop.advance(20s);
  EXPECT_GE(worker.read().state.epoch, 2u);
  EXPECT_GE(worker.read().state.lost_claims, 1u);
}

AE_TEST("late_result/a result after a timeout is stored, and the outcome stays unknown") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("at_most_once", kOneCall));
  worker.answer(0, {.kind = OutcomeKind::timeout, .error_code = "timeout"});
  EXPECT_EQ(worker.status(), "parked");
  worker.calls[0].call.on_late_outcome({.kind = OutcomeKind::success, .result = json("7")});
  env.loop.run_ready();
  EXPECT_TRUE(worker.warned("late result is stored"));
  const auto read = worker.read();
  const auto finished = all_of<ToolInvocationFinished>(read.events);
  ASSERT_EQ(finished.size(), 2u);
  EXPECT_EQ(finished[1]->late, true);
  EXPECT_EQ(finished[1]->outcome, "success");
  ASSERT_TRUE(worker.resolve("happened"));
}

// ---------------------------------------------------------------- after shutdown

// Its call was given up, and the job has failed.
void fail_job_of_unknown_call(TestEnvironment& env, WorkerFixture& worker) {
  worker.runtime->start();
  worker.create(plan("at_most_once", kOneCall));
  worker.answer(0, {.kind = OutcomeKind::timeout, .error_code = "timeout"});
  AE_CHECK(worker.resolve("fail").has_value());
  env.loop.run_ready();
  AE_CHECK(worker.status() == "failed", worker.status());
}

const Outcome kSuccess{.kind = OutcomeKind::success, .result = json("7")};

void expect_noted_once(WorkerFixture& worker) {
  const auto read = worker.read();
  const auto notes = all_of<OutcomeNoted>(read.events);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0]->by, "runtime");
  EXPECT_EQ(notes[0]->resolution, "happened");
  EXPECT_EQ(notes[0]->result.value, json("7"));
  EXPECT_EQ(read.state.status, engine::JobStatus::failed);
  EXPECT_EQ(read.effects.size(), 1u);
}

AE_TEST("late_result/a definite result after the end of its job is noted in the log") {
  for (const bool owned : {true, false}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.owned = owned});
    fail_job_of_unknown_call(env, worker);
    worker.calls[0].call.on_late_outcome(kSuccess);
    env.loop.advance(5s);
    expect_noted_once(worker);
    worker.calls[0].call.on_late_outcome(kSuccess);  // it arrives twice
    env.loop.advance(5s);
    expect_noted_once(worker);
  }
}

AE_TEST("late_result/a worker that lost a job notes its result after another one ended the job") {
  TwoWorkersFixture two("at_most_once");
  two.env.loop.advance(700s);
  ASSERT_EQ(two.second.status(), "parked");
  ASSERT_TRUE(two.second.resolve("fail"));
  two.env.loop.run_ready();
  ASSERT_EQ(two.second.status(), "failed");
  two.first.answer(0, kSuccess);
  two.env.loop.advance(5s);
  expect_noted_once(two.second);
}

AE_TEST("late_result/a note that cannot be stored at first is retried") {
  for (const Fault fault : {Fault::fail_before, Fault::fail_after}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.owned = true});
    fail_job_of_unknown_call(env, worker);
    int commits = 0;
    worker.script = [&](const store::Call& call) {
      const bool note = call.method == Method::commit && ++commits == 2;
      return note ? fault : Fault::none;
    };
    worker.calls[0].call.on_late_outcome(kSuccess);
    env.loop.advance(5s);
    EXPECT_GE(commits, 2);
    expect_noted_once(worker);
  }
}

AE_TEST("late_result/a note missed by a crash is written with the next request to the job") {
  TestEnvironment env;
  {
    WorkerFixture worker(env, "w", {.owned = true, .seed = 1});
    fail_job_of_unknown_call(env, worker);
    int commits = 0;
    worker.script = [&](const store::Call& call) {
      return call.method == Method::commit && ++commits > 1 ? Fault::fail_before : Fault::none;
    };
    worker.calls[0].call.on_late_outcome(kSuccess);
    env.loop.run_ready();
    ASSERT_EQ(worker.read().effects.size(), 1u);
    ASSERT_TRUE(all_of(worker.read().events, EventType::outcome_noted).empty());
  }
  WorkerFixture next(env, "next", {.owned = true, .seed = 2});
  next.runtime->start();
  env.loop.advance(1h);
  const auto result = next.resolve("not_happened");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Code::not_in_doubt) << result.error().message;
  expect_noted_once(next);
  EXPECT_FALSE(next.resolve("happened"));
  expect_noted_once(next);
}

}  // namespace
}  // namespace ae::runtime::testing
