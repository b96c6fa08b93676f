// Tests that a job with code is not forked, retried or given another plan: its requests are not
// imported.
#include "engine/fixtures/code_log_test.h"
#include "engine/fork/fork.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

CodeLog failed_job() {
  CodeLog job;
  job.claim().call("a", "put").ok("code/a");
  job.ends({.failure = boxed(Failure{"no_refund", "nothing is to be paid back"})});
  AE_CHECK(job.status() == "failed", job.log_text());
  return job;
}

AE_TEST("fork/a job with code is not forked at any event") {
  const CodeLog job = failed_job();
  for (std::uint64_t at = 2; at <= job.log.size(); ++at) {
    const auto fork = job.fork(at);
    ASSERT_FALSE(fork) << at;
    EXPECT_EQ(fork.error().code, Code::unsupported);
    EXPECT_EQ(fork.error().message,
              "a job that runs code cannot be forked yet; start a new job with its input");
  }
}

AE_TEST("retry/a failed job with code is not retried") {
  const CodeLog job = failed_job();
  const auto point = retry_point(job.state, job.log);
  ASSERT_FALSE(point);
  EXPECT_EQ(point.error().code, Code::unsupported);
  EXPECT_EQ(point.error().message,
            "a job that runs code cannot be retried yet; start a new job with its input");
}

AE_TEST("replan/the plan of a job with code is not replaced, and not by one with code") {
  const auto plain = compiled(graph("[{'id':'a', 'kind':'tool', 'tool':'put'}]"));
  CodeLog job;
  job.claim().wait("sign", {.type = WaitType::signal, .key = "k"}).suspend();
  job.replan(plain);
  EXPECT_EQ(job.refused, Code::unsupported);
  EXPECT_EQ(job.refusal,
            "the plan of a job that runs code cannot be replaced yet; start a new job");
  EXPECT_EQ(job.status(), "waiting");

  JobFixture without("[{'id':'w', 'kind':'wait', 'wait':{'type':'signal','key':'k'}}]");
  without.claim().replan(job.plan);
  EXPECT_EQ(without.refused, Code::unsupported);
  EXPECT_EQ(without.refusal, "the plan of a job cannot be replaced by one with code yet");
  EXPECT_EQ(without.count(EventType::plan_generated), 1u);
}

AE_TEST("replan/a log in which the plan of code is replaced is corrupt") {
  CodeLog job;
  job.claim().wait("sign", {.type = WaitType::signal, .key = "k"}).suspend();
  const JobFixture other("[{'id':'a', 'kind':'tool', 'tool':'put'}]");
  const auto replaced = apply(job.state, other.log[1].body, job.now, uncached_plan_source());
  ASSERT_FALSE(replaced);
  EXPECT_EQ(replaced.error().code, Code::log_corrupt);
}

}  // namespace
}  // namespace ae::engine::testing
