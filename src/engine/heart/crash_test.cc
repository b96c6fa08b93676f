// Calls that a crash left open: resend, dedupe window, changed tools, and the waits of other
// workers.
#include <chrono>
#include <string_view>
#include <vector>

#include "engine/fixtures/job_fixture_test.h"
#include "engine/heart/tool_step_fixture_test.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

AE_TEST("crash/an idempotent call is resent under its first key with the same arguments") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'once', 'args':{'n':'${ .input.n }'}}]",
                 {.input = "{'n':1.5}"});
  job.claim().crash();
  ASSERT_EQ(job.sent.size(), 2u);
  EXPECT_EQ(job.sent[1].external_key, job.sent[0].external_key);
  EXPECT_EQ(canonical(job.sent[1].arguments), canonical(job.sent[0].arguments));
  EXPECT_EQ(job.sent[1].try_no, 2u);
  EXPECT_EQ(job.step("a").call->counted_tries, 1u);
  EXPECT_EQ(job.ok("a").status(), "completed");
}

AE_TEST("crash/the earlier try is closed as unknown in the commit of the new one") {
  JobFixture job(one("once"));
  job.claim().crash();
  EXPECT_EQ(job.types(), (Types{"job_created", "plan_generated", "job_running", "node_started",
                                "command_emitted", "tool_invocation_started", "job_running",
                                "tool_invocation_finished", "tool_invocation_started"}));
  EXPECT_EQ(job.commits, (std::vector<std::size_t>{2, 6, 9}));
  EXPECT_EQ(job.last<ToolInvocationFinished>().outcome, "unknown");
}

AE_TEST("crash/a resend after a crash uses up no try") {
  JobFixture job(one("put"));
  job.claim().crash().crash().crash();
  job.fails("a", "connect").after(10s).fails("a", "connect").after(10s);
  EXPECT_EQ(job.tries("a"), 6u);
  EXPECT_EQ(job.fails("a", "connect").status(), "parked")
      << "the resend did not arrive, so the earlier call stays unknown";
}

AE_TEST("crash/an answer to the resend decides the call before it") {
  JobFixture job(one("once"));
  job.claim().crash();
  EXPECT_EQ(job.fails("a", "http_422").status(), "failed");
}

AE_TEST("crash/an at_most_once call parks") {
  JobFixture job(one("pay"));
  job.claim().crash();
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.sent.size(), 1u);
  EXPECT_TRUE(job.step("a").call->open);
}

AE_TEST("crash/with on_in_doubt: fail an at_most_once call is closed as unknown and listed") {
  JobFixture job(one("risk"));
  job.claim().crash();
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "invocation_in_doubt");
  EXPECT_EQ(job.last<ToolInvocationFinished>().outcome, "unknown");
  EXPECT_EQ(job.state.final_in_doubt.size(), 1u);
}

AE_TEST("crash/after the dedupe window an idempotent call is treated as at_most_once") {
  JobFixture job(one("once"));
  job.claim().reload();
  job.now = job.now + 25h;
  job.claim();
  EXPECT_EQ(job.status(), "parked");
}

AE_TEST("crash/the dedupe window is counted from the first declaration") {
  JobFixture job(one("once"));
  job.claim().reload();
  job.now = job.now + 23h;
  job.claim();
  EXPECT_EQ(job.tries("a"), 2u);
  job.reload();
  job.now = job.now + 2h;
  job.claim();
  EXPECT_EQ(job.tries("a"), 2u);
  EXPECT_EQ(job.status(), "parked");
}

AE_TEST("crash/an unlimited dedupe window never ends") {
  JobFixture job(one("put"),
                 {.more = "{'tools':{'put':{'effect':'idempotent','dedupe_window':'unlimited'}}}"});
  job.claim().reload();
  job.now = job.now + 24h * 365;
  job.claim();
  EXPECT_EQ(job.tries("a"), 2u);
}

AE_TEST("crash/a read has no dedupe window") {
  JobFixture job(one("look"));
  job.claim().reload();
  job.now = job.now + 25h;
  EXPECT_EQ(job.claim().tries("a"), 2u);
}

AE_TEST("crash/a call is not resent by a changed tool") {
  JobFixture job(one("once"));
  job.claim().reload();
  job.versions.assign(job.plan->tools.size(), "ffffffffffffffff");
  job.claim();
  EXPECT_EQ(job.status(), "parked");
  EXPECT_NE(or_empty(job.last<WaitOpened>().reason).find("the tool has changed"),
            std::string_view::npos);
}

AE_TEST("crash/a read is not resent by a changed tool and parks for an operator") {
  for (const bool lost : {true, false}) {
    JobFixture job(one("look"));
    job.claim();
    if (!lost) job.times_out("a");  // and is to be retried
    job.reload();
    job.versions.assign(job.plan->tools.size(), "ffffffffffffffff");
    job.claim().after(1min);
    EXPECT_EQ(job.status(), "parked") << job.log_text();
    EXPECT_EQ(job.sent.size(), 1u);
    EXPECT_EQ(job.last<JobParked>().until, "resolve");
    EXPECT_EQ(job.resolve("a", "happened", "7").status(), "completed");
    EXPECT_EQ(job.state.result, json("{'a':7}"));
  }
}

AE_TEST("crash/a changed tool may retry a read after a definite failure") {
  JobFixture failed(one("look"));
  failed.claim().fails("a", "connect").reload();
  failed.versions.assign(failed.plan->tools.size(), "ffffffffffffffff");
  EXPECT_EQ(failed.claim().after(1min).tries("a"), 2u) << failed.log_text();
  EXPECT_EQ(failed.last<ToolInvocationStarted>().tool_version, "ffffffffffffffff");
  JobFixture used_up(one("look"), {.more = "{'tools':{'look':{'effect':'read'}}}"});
  used_up.versions.assign(used_up.plan->tools.size(), "ffffffffffffffff");
  EXPECT_EQ(used_up.claim().times_out("a").status(), "failed");
}

AE_TEST("crash/a read resolved as not_happened is sent by the changed tool") {
  JobFixture job(one("look"));
  job.claim().reload();
  job.waits_for_settling = true;
  job.versions.assign(job.plan->tools.size(), "ffffffffffffffff");
  job.claim().resolve("a", "not_happened");
  EXPECT_EQ(job.sent.size(), 2u) << job.log_text();
  EXPECT_EQ(job.ok("a", "1").status(), "completed");
}

AE_TEST("crash/a retry outside the dedupe window parks") {
  JobFixture job(one("put"),
                 {.more = "{'tools':{'put':{'effect':'idempotent','dedupe_window':'1m','retry':{"
                          "'max_attempts':3,'initial_backoff':'4m','max_backoff':'4m',"
                          "'retry_on':['timeout']}}}}"});
  job.claim().times_out("a").after(5min);
  EXPECT_EQ(job.tries("a"), 1u);
  EXPECT_EQ(job.status(), "parked");
}

AE_TEST("crash/another worker waits until lease and grace have passed") {
  JobFixture job(one("once"));
  job.owned = false;
  job.claim();
  const Instant settles = job.step("a").call->send_by + 30s;
  job.crash();
  EXPECT_EQ(job.tries("a"), 1u);
  EXPECT_EQ(job.status(), "queued") << "no worker holds the job meanwhile";
  EXPECT_EQ(job.state.not_before, settles);
  EXPECT_EQ(job.last<JobRequeued>().reason, "settling");
  job.after(settles - job.now);
  EXPECT_EQ(job.tries("a"), 2u);
}

AE_TEST("crash/a call that settles soon is awaited without a release") {
  JobFixture job(one("once"));
  job.owned = false;
  job.claim().after(26s);
  job.add({requeued_event("drain", {})});
  job.claim();
  const Instant settles = job.now + 30s;
  job.after(26s).claim();
  EXPECT_EQ(job.state.lost_claims, 0u);
  EXPECT_EQ(job.status(), "running");
  EXPECT_EQ(job.decide_again_at, settles);
}

AE_TEST("crash/workers that die while they wait for a call do not extend the wait") {
  JobFixture job(one("once"));
  job.owned = false;
  job.claim().after(20s).crash();
  const Instant settles = job.now + 30s;
  EXPECT_EQ(job.state.not_before, settles);
  for (int death = 0; death < 3; death++) {
    job.after(5s).crash();
    EXPECT_EQ(job.state.not_before, settles);
    EXPECT_EQ(job.tries("a"), 1u);
  }
  job.after(settles - job.now);
  EXPECT_EQ(job.tries("a"), 2u);
}

AE_TEST("crash/all calls left open at the parallel limit are resent") {
  JobFixture job(
      "[{'id':'m', 'kind':'map', 'over':'${ .input }', 'max_parallel':8, 'do':{'tool':'once'}}]",
      {.input = "[1,2,3,4,5,6,7,8]"});
  job.limits.parallel_max = 8;
  job.claim().crash();
  EXPECT_EQ(job.sent.size(), 16u);
  EXPECT_EQ(job.state.calling.size(), 8u);
}

AE_TEST("crash/a completed node is never run again") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'pay'},"
      " {'id':'b', 'kind':'tool', 'tool':'put', 'needs':['a']}]");
  job.claim().ok("a", "1").crash().ok("b", "2");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.tries("a"), 1u);
  EXPECT_EQ(job.tries("b"), 2u);
}

AE_TEST("crash/a result in the effect store is used instead of a second call") {
  JobFixture job(one("pay"));
  job.claim().reload();
  job.begin_attempt();
  job.store_effect("a", {.kind = OutcomeKind::success, .result = json("7")}, Arrival::in_time);
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.tries("a"), 1u);
  EXPECT_EQ(job.all<ToolInvocationFinished>()[0].caught_up, true);
}

AE_TEST("crash/a result that arrives while an operator is asked closes the wait") {
  JobFixture job(one("pay"));
  job.claim().crash();
  ASSERT_EQ(job.status(), "parked");
  job.decides = false;
  job.store_effect("a", {.kind = OutcomeKind::success, .result = json("7")});
  EXPECT_EQ(job.last<WaitCompleted>().outcome, "cancelled");
  job.add({JobCancelRequested{}});
  job.decides = true;
  job.run_until_idle();
  EXPECT_EQ(job.status(), "cancelled");
  EXPECT_TRUE(job.last<JobCancelled>().in_doubt.is_null());
}

AE_TEST("crash/a success without its command_committed is committed, never called again") {
  JobFixture job(one("pay"));
  job.claim();
  auto seen =
      record_outcome(job.state, 0, {.kind = OutcomeKind::success, .result = json("7")}, job.now);
  job.add({seen[0]});
  job.commits.push_back(job.log.size());
  job.crash();
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.tries("a"), 1u);
}

AE_TEST("crash/only a missing step_committed is written") {
  JobFixture job(one("pay"));
  job.claim().ok("a", "7");
  while (job.log.back().type != EventType::node_finished) job.log.pop_back();
  job.commits.back() = job.log.size();
  job.crash();
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.count(EventType::node_finished), 1u);
  EXPECT_EQ(job.count(EventType::step_committed), 1u);
}

}  // namespace
}  // namespace ae::engine::testing
