// What permits another try of a call that may have happened: checked in
// logs, not only in decisions.
#include <fmt/core.h>

#include "engine/fixtures/job_fixture_test.h"
#include "inspect/verify.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

// Declares the next try of `a` by hand, as a program would that does not use `decide`.
Status declare_again(JobFixture& job, std::string_view version = "0123456789abcdef") {
  auto again = job.last<ToolInvocationStarted>();
  again.try_no++;
  again.tool_version = version;
  Status applied = apply(job.state, again, job.now, uncached_plan_source());
  if (!applied) return applied;
  Event event;
  event.seq = job.state.seq;
  event.type = type_of(again);
  event.created_at = job.now;
  event.attempt_id = job.state.attempt;
  event.schema = schema_of(again);
  event.body = again;
  job.log.push_back(std::move(event));
  return {};
}

JobFixture called(std::string_view tool) {
  JobFixture job(fmt::format("[{{'id':'a', 'kind':'tool', 'tool':'{}'}}]", tool));
  job.claim();
  job.decides = false;
  return job;
}

AE_TEST("repeated call/a log that repeats an at_most_once call with unknown outcome is rejected") {
  for (const char* tool : {"pay", "risk"}) {
    JobFixture unknown = called(tool);
    unknown.unknown("a");
    EXPECT_FALSE(declare_again(unknown)) << tool;
    JobFixture timed_out = called(tool);
    timed_out.times_out("a");
    EXPECT_FALSE(declare_again(timed_out)) << tool;
  }
  JobFixture crashed = called("pay");
  crashed.reload().begin_attempt();
  crashed.add({ToolInvocationFinished{.invocation_id = crashed.step("a").call->id,
                                      .outcome = "unknown",
                                      .step_id = crashed.step("a").id,
                                      .try_no = 1}});
  EXPECT_FALSE(declare_again(crashed));
}

AE_TEST("repeated call/a call that definitely did not happen or is not_happened may be repeated") {
  JobFixture failed = called("pay");
  failed.fails("a", "connect");
  EXPECT_TRUE(declare_again(failed));
  for (const bool open : {true, false}) {
    JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
    job.waits_for_settling = true;
    job.claim();
    if (open) {
      job.crash();
    } else {
      job.unknown("a");
    }
    ASSERT_EQ(job.status(), "parked");
    job.resolve("a", "not_happened");
    EXPECT_EQ(job.tries("a"), 2u);
    VerifyInput input;
    input.job = job.state.job;
    input.events = job.log;
    EXPECT_TRUE(verify(input, uncached_plan_source()).ok);
  }
  JobFixture idempotent = called("put");
  idempotent.unknown("a");
  EXPECT_TRUE(declare_again(idempotent)) << "the downstream deduplicates by key";
}

AE_TEST("repeated call/a log that resends an unknown call with a changed tool is rejected") {
  const std::string_view changed = "ffffffffffffffff";
  JobFixture unknown = called("put");
  unknown.unknown("a");
  EXPECT_FALSE(declare_again(unknown, changed));
  JobFixture failed = called("put");
  failed.fails("a", "connect");
  EXPECT_TRUE(declare_again(failed, changed)) << "nothing happened";
}

AE_TEST("repeated call/not_happened stays valid if the try that it permitted was never sent") {
  for (const bool open : {true, false}) {
    JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
    job.waits_for_settling = true;
    job.claim();
    if (open) {
      job.crash();
    } else {
      job.unknown("a");
    }
    job.resolve("a", "not_happened").fails("a", "not_sent").after(1s);
    EXPECT_EQ(job.status(), "running") << "no second resolution is needed\n" << job.log_text();
    EXPECT_EQ(job.tries("a"), 3u);
    EXPECT_EQ(job.ok("a").status(), "completed");
  }
}

}  // namespace
}  // namespace ae::engine::testing
