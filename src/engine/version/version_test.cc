// Version rules: where a strict job runs and where it parks, and unknown
// outcomes after a tool changed.
#include <fmt/core.h>

#include "engine/fixtures/job_fixture_test.h"
#include "inspect/trace.h"
#include "inspect/verify.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kStrictPlan = "{'versions': {'policy': 'strict'}}";
constexpr std::string_view kOneVersion = "[{'id':'a', 'kind':'tool', 'tool':'put'}]";

// A strict job that a process of another version has claimed.
JobFixture mismatched(std::string_view nodes = kOneVersion, std::string_view more = kStrictPlan) {
  JobFixture job(nodes, {.more = more});
  job.claims_when_free = false;
  job.execution_version = "v2";
  job.claim();
  return job;
}

AE_TEST("versions/a strict job parks under another version and calls nothing") {
  JobFixture job = mismatched();
  ASSERT_EQ(job.status(), "parked") << job.log_text();
  EXPECT_EQ(job.sent.size(), 0u);
  EXPECT_EQ(job.last<JobParked>().reason, "execution_version_mismatch");
  EXPECT_EQ(job.last<JobParked>().until, "version");
  EXPECT_TRUE(job.state.awaits_version());
}

AE_TEST("versions/warn jobs and claimed route jobs continue under another version") {
  for (const std::string_view more : {"{}", "{'versions': {'policy': 'route'}}"}) {
    JobFixture job = mismatched(kOneVersion, more);
    EXPECT_EQ(job.status(), "running");
    EXPECT_EQ(job.ok("a").status(), "completed");
  }
}

AE_TEST("versions/only a process of the right version ends the park") {
  JobFixture job = mismatched();
  EXPECT_EQ(job.resume().refused, Code::not_paused);
  EXPECT_NE(job.refusal.find("until `version`"), std::string::npos) << job.refusal;
  EXPECT_EQ(job.offer().reply["resumed"], Value(false));  // still v2
  EXPECT_EQ(job.status(), "parked");
  job.execution_version = "v1";
  EXPECT_EQ(job.offer().reply["resumed"], Value(true));
  EXPECT_EQ(job.status(), "queued");
  EXPECT_EQ(job.last<JobResumed>().by, "worker-2");
  EXPECT_EQ(job.offer().reply["resumed"], Value(false)) << "it resumes only once";
  EXPECT_EQ(job.count(EventType::job_resumed), 1u);
  EXPECT_EQ(job.claim().ok("a").status(), "completed");
  EXPECT_TRUE(
      verify({.job = job.state.job, .events = job.log}, uncached_plan_source()).state_machine.ok);
}

AE_TEST("versions/a parked strict job can be cancelled and fails at its deadline") {
  EXPECT_EQ(mismatched().cancel().status(), "cancelled");
  JobFixture job(kOneVersion, {.more = kStrictPlan, .deadline = 1h});
  job.claims_when_free = false;
  job.execution_version = "v2";
  job.claim();
  ASSERT_EQ(job.status(), "parked");
  EXPECT_EQ(job.after(2h).status(), "failed") << job.log_text();
  EXPECT_EQ(job.state.error->code, "deadline_exceeded");
  EXPECT_EQ(job.sent.size(), 0u);
}

AE_TEST("versions/a new plan frees a parked strict job and sets its version policy") {
  JobFixture job = mismatched();
  EXPECT_FALSE(
      job.replan(compiled(graph(kOneVersion, "{'versions': {'policy': 'route'}}"))).refused);
  EXPECT_EQ(job.status(), "queued") << job.log_text();
  EXPECT_EQ(job.claim().ok("a").status(), "completed");
  JobFixture still = mismatched();
  still.replan(compiled(graph("[{'id':'b', 'kind':'tool', 'tool':'put'}]", kStrictPlan)));
  EXPECT_EQ(still.status(), "queued");
  EXPECT_EQ(still.claim().status(), "parked") << "it is strict again";
}

AE_TEST("versions/an open call stays open while a strict job is parked") {
  JobFixture job(kOneVersion, {.more = kStrictPlan});
  job.claims_when_free = false;
  job.claim();
  ASSERT_EQ(job.sent.size(), 1u);
  job.execution_version = "v2";
  job.crash();
  ASSERT_EQ(job.status(), "parked") << job.log_text();
  EXPECT_TRUE(job.step("a").call->open);
  job.execution_version = "v1";
  job.offer().claim();
  ASSERT_EQ(job.sent.size(), 2u) << job.log_text();
  EXPECT_EQ(job.sent[1].key, job.sent[0].key);
  EXPECT_EQ(job.ok("a").status(), "completed");
}

AE_TEST("versions/a strict job does not park while its own calls are in flight") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'pay'}, {'id':'b', 'kind':'tool', 'tool':'put'},"
      " {'id':'c', 'kind':'tool', 'tool':'put', 'needs':['a', 'b']}]",
      {.more = kStrictPlan});
  job.claims_when_free = false;
  job.claim();
  ASSERT_EQ(job.sent.size(), 2u);
  job.execution_version = "v2";
  job.run_until_idle();
  EXPECT_EQ(job.status(), "running") << job.log_text();
  EXPECT_EQ(job.ok("b").status(), "running") << job.log_text();
  EXPECT_EQ(job.ok("a").status(), "parked") << job.log_text();
  EXPECT_TRUE(job.state.awaits_version());
  EXPECT_EQ(job.sent.size(), 2u) << "another version starts nothing";
  job.execution_version = "v1";
  job.offer().claim();
  ASSERT_EQ(job.sent.size(), 3u) << job.log_text();
  EXPECT_EQ(job.ok("c").status(), "completed");
}

AE_TEST("versions/a strict job is not compensated under another version") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'buy'}, {'id':'w', 'kind':'wait', 'needs':['a'],"
      " 'wait':{'type':'signal','key':'k'}}]",
      {.more = "{'versions': {'policy': 'strict'},"
               " 'tools': {'buy': {'compensate': {'tool': 'put'}}}}"});
  job.claims_when_free = false;
  job.claim().ok("a");
  ASSERT_EQ(job.status(), "waiting") << job.log_text();
  job.execution_version = "v2";
  job.cancel().claim();
  ASSERT_EQ(job.status(), "parked") << job.log_text();
  EXPECT_EQ(job.last<JobParked>().until, "version");
  EXPECT_EQ(job.sent.size(), 1u);
  job.execution_version = "v1";
  job.offer().claim();
  ASSERT_EQ(job.sent.size(), 2u) << job.log_text();
}

AE_TEST("versions/the trace shows the other version under which a process ran the job") {
  JobFixture job(kOneVersion);
  job.add({event_of(
      EventType::version_mismatched,
      Value::object({{"attempt_id", "x"}, {"job_version", "v1"}, {"worker_version", "v2"}}))});
  job.claim().ok("a");
  const Value drift = trace_view(job.state, job.log)["drift"];
  ASSERT_EQ(drift.size(), 1u) << canonical(drift);
  EXPECT_EQ(drift.items()[0]["what"], "execution_version");
  EXPECT_EQ(drift.items()[0]["from"], "v1");
  EXPECT_EQ(drift.items()[0]["to"], "v2");
  EXPECT_TRUE(drift.items()[0]["tool"].is_null());
}

// ---------------------------------------------------------------- changed tools

// A call with an unknown outcome that was left to an operator because another version
// of its tool was offered.
JobFixture changed(std::string_view tool) {
  JobFixture job(fmt::format("[{{'id':'a', 'kind':'tool', 'tool':'{}'}}]", tool));
  job.claims_when_free = false;
  job.claim().reload();
  job.versions.assign(job.plan->tools.size(), "ffffffffffffffff");
  job.claim();
  return job;
}

AE_TEST("versions/a call held back by a changed tool is sent when the original tool returns") {
  for (const std::string_view tool : {"once", "look"}) {
    JobFixture job = changed(tool);
    ASSERT_EQ(job.status(), "parked") << job.log_text();
    EXPECT_EQ(job.offer().reply["resumed"], Value(false));
    job.versions.clear();
    EXPECT_EQ(job.offer().reply["resumed"], Value(true)) << job.log_text();
    EXPECT_EQ(job.status(), "queued");
    const auto decision = job.last<DecisionRecorded>();
    EXPECT_EQ(decision.kind, "in_doubt");
    EXPECT_EQ(decision.state, "resend");
    EXPECT_EQ(schema_of(decision), 3);
    job.claim();
    ASSERT_EQ(job.sent.size(), 2u) << job.log_text();
    EXPECT_EQ(job.sent[1].key, job.sent[0].key);
    EXPECT_EQ(job.ok("a", "5").status(), "completed");
    const Verification all =
        verify({.job = job.state.job, .events = job.log}, uncached_plan_source());
    EXPECT_TRUE(all.ledger.ok && all.replay.ok && all.state_machine.ok) << canonical(all.to_json());
  }
}

AE_TEST("versions/a call that is unknown for another reason still needs an operator") {
  JobFixture pays("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  pays.claims_when_free = false;
  EXPECT_EQ(pays.claim().crash().offer().reply["resumed"], Value(false));
  EXPECT_EQ(pays.status(), "parked");
  JobFixture late = changed("once");
  late.versions.clear();
  late.now = late.now + 25h;  // its dedupe window is over
  EXPECT_EQ(late.offer().reply["resumed"], Value(false));
  EXPECT_EQ(late.status(), "parked");
  JobFixture answered = changed("once");
  answered.versions.clear();
  answered.resolve("a", "happened", "7");
  EXPECT_EQ(answered.offer().reply["resumed"], Value(false));
  EXPECT_EQ(answered.claim().status(), "completed");
  EXPECT_EQ(answered.sent.size(), 1u);
}

AE_TEST("versions/a tool that changes again before the claim leaves the call to an operator") {
  JobFixture job = changed("once");
  const std::vector<std::string> other = job.versions;
  job.versions.clear();
  job.offer();
  job.versions = other;
  job.claim();
  EXPECT_EQ(job.status(), "parked") << job.log_text();
  EXPECT_EQ(job.sent.size(), 1u);
  EXPECT_EQ(job.last<JobParked>().until, "resolve");
  EXPECT_EQ(job.resolve("a", "happened", "7").claim().status(), "completed");
}

}  // namespace
}  // namespace ae::engine::testing
