// Jobs that kill the process that runs them: each death is counted, and the last
// permitted one parks the job.
#include "engine/fixtures/job_fixture_test.h"
#include "engine/state/checkpoint.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

constexpr std::string_view kTwoSteps =
    "[{'id':'a', 'kind':'tool', 'tool':'put'}, {'id':'b', 'kind':'tool', 'tool':'put', "
    "'needs':['a']}]";

// The process dies in a slice of the job: the next one records that, and claims the job again.
void crash_in_slice(JobFixture& job) {
  job.reload();
  if (job.state.status == JobStatus::queued) {
    job.add({running_event(AttemptId("dead"), job.state.epoch + 1, "worker", job.opened_at)});
  }
  job.add({requeued_event(kProcessDied, std::nullopt)});
  job.claim();
}

AE_TEST("worn/a second process death without a new command parks the job until resume") {
  JobFixture job(kTwoSteps);
  crash_in_slice(job);
  EXPECT_EQ(job.state.process_deaths, 1U);
  EXPECT_EQ(job.status(), "running") << job.log_text();
  const std::size_t sent = job.sent.size();
  crash_in_slice(job);
  EXPECT_EQ(job.status(), "parked") << job.log_text();
  EXPECT_EQ(job.state.parked_reason, "worn_out");
  EXPECT_EQ(job.state.parked_until, "resume");
  EXPECT_EQ(job.sent.size(), sent) << "no further decision is made";
  job.resume();
  EXPECT_EQ(job.status(), "running") << job.log_text();
  EXPECT_EQ(job.ok("a").ok("b").status(), "completed") << job.log_text();
}

AE_TEST("worn/a new command resets the count of deaths") {
  JobFixture job(kTwoSteps);
  job.claim();
  crash_in_slice(job);
  job.ok("a");
  EXPECT_EQ(job.state.process_deaths, 0U) << job.log_text();
  crash_in_slice(job);
  EXPECT_EQ(job.status(), "running") << job.log_text();
  crash_in_slice(job);
  EXPECT_EQ(job.status(), "parked") << job.log_text();
}

// A job that waits, has died once, and has one more node.
JobFixture waits_before(const std::string& tool) {
  JobFixture job(
      "[{'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}},"
      " {'id':'a', 'kind':'tool', 'tool':'" +
          tool + "', 'needs':['w']}, {'id':'b', 'kind':'tool', 'tool':'put', 'needs':['a']}]",
      {.more = "{'tools': {'clock': {'effect': 'read', 'records': 'time'}}}"});
  crash_in_slice(job);
  AE_CHECK(job.status() == "waiting" && job.state.process_deaths == 1, job.log_text());
  job.state.lost_claims = 3;
  return job;
}

AE_TEST("worn/a recorded value resets the count of deaths") {
  JobFixture job = waits_before("clock");
  job.signal("k");
  ASSERT_EQ(job.step("a").phase, StepPhase::done) << job.log_text();
  EXPECT_EQ(job.state.process_deaths, 0U);
  EXPECT_EQ(job.state.lost_claims, 0U);
}

AE_TEST("worn/a completed wait does not reset the count of deaths") {
  JobFixture job = waits_before("put");
  job.signal("k");
  EXPECT_EQ(job.status(), "running") << job.log_text();
  EXPECT_EQ(job.state.process_deaths, 1U);
  EXPECT_EQ(job.state.lost_claims, 3U);
}

AE_TEST("worn/a resume permits one more try") {
  JobFixture job(kTwoSteps);
  crash_in_slice(job);
  crash_in_slice(job);
  job.resume();
  ASSERT_EQ(job.status(), "running") << job.log_text();
  crash_in_slice(job);
  EXPECT_EQ(job.status(), "parked") << job.log_text();
}

AE_TEST("worn/other requeues and lost leases do not count as deaths") {
  JobFixture job(kTwoSteps);
  job.claim();
  for (int i = 0; i < 3; ++i) {
    job.add({requeued_event("drain", std::nullopt)});
    job.claim().crash();
  }
  EXPECT_EQ(job.state.process_deaths, 0U);
  EXPECT_EQ(job.status(), "running") << job.log_text();
}

constexpr std::string_view kUndone = "{'tools':{'book':{'compensate':{'tool':'put','args':{}}}}}";
constexpr std::string_view kBooked =
    "[{'id':'a', 'kind':'tool', 'tool':'book'}, {'id':'b', 'kind':'tool', 'tool':'look', "
    "'needs':['a']}]";

AE_TEST("worn/a cancel is decided only after a claim, and a death during it parks the job") {
  JobFixture job(kBooked, {.more = kUndone});
  job.claim().ok("a");
  crash_in_slice(job);
  crash_in_slice(job);
  ASSERT_EQ(job.status(), "parked") << job.log_text();
  job.claims_when_free = false;
  const std::size_t sent = job.sent.size();
  job.cancel("enough");
  EXPECT_EQ(job.status(), "queued") << job.log_text();
  EXPECT_EQ(job.sent.size(), sent) << "the request itself compensates nothing";
  job.claims_when_free = true;
  job.claim();
  EXPECT_EQ(job.sent.size(), sent + 1) << "the compensation\n" << job.log_text();
  crash_in_slice(job);
  EXPECT_EQ(job.status(), "parked") << job.log_text();
  EXPECT_EQ(job.state.parked_reason, "worn_out");
  job.cancel("enough", false);
  EXPECT_EQ(job.status(), "cancelled") << job.log_text();
}

AE_TEST("worn/a deadline that passes while the job is parked ends it at the next claim") {
  JobFixture job(kTwoSteps, {.deadline = 1h});
  job.claim();
  crash_in_slice(job);
  crash_in_slice(job);
  ASSERT_EQ(job.status(), "parked") << job.log_text();
  job.claims_when_free = false;
  job.after(2h);
  EXPECT_EQ(job.status(), "queued") << job.log_text();
  EXPECT_EQ(job.last<JobResumed>().by, "runtime");
  job.claims_when_free = true;
  job.claim();
  for (int i = 0; i < 3 && job.status() == "running"; ++i) job.after(1h);
  EXPECT_EQ(job.status(), "failed") << job.log_text();
}

AE_TEST("worn/a waiting job with one death fails at its deadline when it is claimed") {
  JobFixture job("[{'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}}]",
                 {.deadline = 1h});
  crash_in_slice(job);
  ASSERT_EQ(job.status(), "waiting") << job.log_text();
  job.claims_when_free = false;
  job.after(2h);
  EXPECT_EQ(job.status(), "queued") << job.log_text();
  job.claims_when_free = true;
  job.claim();
  EXPECT_EQ(job.status(), "failed") << job.log_text();
}

AE_TEST("worn/the count of deaths is part of a checkpoint") {
  JobFixture job(kTwoSteps);
  job.claim();
  crash_in_slice(job);
  const auto bytes = checkpoint(job.state, Hash{});
  const auto restored = restore(job.state.job, job.state.seq, bytes, uncached_plan_source());
  ASSERT_TRUE(restored.has_value());
  EXPECT_EQ(restored->state.process_deaths, 1U);
}

}  // namespace
}  // namespace ae::engine::testing
