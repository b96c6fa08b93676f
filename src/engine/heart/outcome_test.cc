// Outcomes of calls, sentence by sentence (SPEC §7): retry, unknown outcome, failure.
#include <fmt/core.h>

#include "engine/fixtures/job_fixture_test.h"
#include "inspect/trace.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

constexpr std::string_view kOutcomeTools = R"({'tools': {
    'keyed': {'effect': 'idempotent', 'retry': {'max_attempts': 2}},
    'sure': {'effect': 'at_most_once', 'on_in_doubt': 'park',
             'retry': {'max_attempts': 2, 'retry_on': ['connect']}}}})";

JobFixture calling_once(const std::string& tool) {
  return JobFixture(fmt::format("[{{'id':'a','kind':'tool','tool':'{}'}}]", tool),
                    {.more = kOutcomeTools});
}

AE_TEST("outcome/a 409 or 425 of an idempotent call is retried and never a failure") {
  for (const char* code : {"http_409", "http_425"}) {
    JobFixture job = calling_once("keyed");
    job.claim().unknown("a", code).after(1s);
    ASSERT_EQ(job.tries("a"), 2u) << job.log_text();
    job.unknown("a", code);
    EXPECT_EQ(job.status(), "parked") << "no tries are left, and the call is in progress";
  }
}

AE_TEST("outcome/a 409 that is declared definite is a failure") {
  JobFixture job = calling_once("keyed");
  job.claim().fails("a", "http_409");
  EXPECT_EQ(job.status(), "failed");
}

AE_TEST("outcome/an idempotent call with an unknown outcome and no tries left parks") {
  JobFixture job = calling_once("once");
  job.claim().unknown("a", "http_500");
  EXPECT_EQ(job.status(), "parked");
}

AE_TEST("outcome/a read with an unknown outcome and no tries left fails") {
  JobFixture job = calling_once("look");
  job.claim().unknown("a", "weird");
  EXPECT_EQ(job.status(), "failed");
}

AE_TEST("outcome/an at_most_once call that timed out is unknown and is not sent again") {
  JobFixture job = calling_once("sure");
  job.claim().times_out("a").after(1h);
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.tries("a"), 1u);
}

AE_TEST("outcome/an at_most_once call that definitely did not happen is retried") {
  JobFixture job = calling_once("sure");
  job.claim().fails("a", "connect").after(1s);
  EXPECT_EQ(job.tries("a"), 2u);
}

AE_TEST("outcome/the trace shows every try with its result type") {
  JobFixture job = calling_once("look");
  job.claim().times_out("a").after(20s).times_out("a").after(20s).ok("a", "1");
  const Value tries = trace_view(job.state, job.log)["nodes"].items()[0]["tries"];
  ASSERT_EQ(tries.size(), 3u);
  EXPECT_EQ(tries.items()[0]["result_type"], Value("retryable_failure"));
  EXPECT_EQ(tries.items()[1]["result_type"], Value("retryable_failure"));
  EXPECT_EQ(tries.items()[2]["result_type"], Value("success"));
  JobFixture failed = calling_once("look");
  failed.claim().fails("a");
  EXPECT_EQ(
      trace_view(failed.state, failed.log)["nodes"].items()[0]["tries"].items()[0]["result_type"],
      Value("permanent_failure"));
}

AE_TEST("outcome/successful calls are side_effect_committed; waits, maps and skips are pure") {
  JobFixture job(
      "[{'id':'a','kind':'tool','tool':'look'},{'id':'s','kind':'tool','tool':'put','when':false},"
      "{'id':'m','kind':'map','over':[],'max_parallel':1,'do':{'tool':'put'}},"
      "{'id':'w','kind':'wait','wait':{'type':'timer','for':'1s'}}]");
  job.claim().ok("a").after(2s);
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(to_text(job.step("a").result_type), "side_effect_committed");
  for (const char* node : {"s", "m", "w"}) EXPECT_EQ(to_text(job.step(node).result_type), "pure");
}

AE_TEST("outcome/a success with an invalid output is never retried") {
  JobFixture job = calling_once("look");
  job.claim().answer("a", {.kind = OutcomeKind::success,
                           .invalid = json("{'invalid':true,'sha256':'00','size':1,'head':''}")});
  EXPECT_EQ(job.tries("a"), 1u);
  EXPECT_EQ(to_text(job.step("a").result_type), "permanent_failure");
  EXPECT_EQ(job.last<JobFailed>().code, "tool_output_invalid");
}

}  // namespace
}  // namespace ae::engine::testing
