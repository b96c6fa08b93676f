// Pause and resume: a job parks as soon as no call is in flight, and continues from there.
#include "engine/fixtures/job_fixture_test.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

constexpr std::string_view kPausedTwo =
    "[{'id':'a', 'kind':'tool', 'tool':'put'},"
    " {'id':'b', 'kind':'tool', 'tool':'put', 'needs':['a']}]";

AE_TEST("pause/a pause starts nothing new, awaits sent calls and parks until resume") {
  JobFixture job(kPausedTwo);
  job.claim().pause();
  EXPECT_EQ(job.reply["pause_requested"], Value(true));
  EXPECT_EQ(job.status(), "running");
  job.ok("a", "1");
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.last<JobParked>().until, "resume");
  EXPECT_EQ(job.step("a").phase, StepPhase::done) << "the outcome is recorded";
  EXPECT_EQ(job.sent.size(), 1u);
  job.resume().ok("b", "2");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.last<JobResumed>().by, "someone");
}

AE_TEST("pause/a queued or waiting job parks at once") {
  JobFixture queued(kPausedTwo);
  queued.pause();
  EXPECT_EQ(queued.reply["paused"], Value(true));
  EXPECT_EQ(queued.status(), "parked");
  JobFixture waiting("[{'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}}]");
  EXPECT_EQ(waiting.claim().pause().status(), "parked");
  const std::size_t events = waiting.log.size();
  waiting.pause();
  EXPECT_EQ(waiting.reply["paused"], Value(true));
  EXPECT_EQ(waiting.log.size(), events) << "the job is already paused";
  EXPECT_EQ(waiting.resume().status(), "waiting");
}

AE_TEST("pause/a signal during a pause is delivered, and the job continues after resume") {
  JobFixture job(
      "[{'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}},"
      " {'id':'a', 'kind':'tool', 'tool':'put', 'needs':['w']}]");
  job.claim().pause().signal("k", "1");
  EXPECT_EQ(job.reply["delivered"], Value(true));
  EXPECT_EQ(job.status(), "parked");
  EXPECT_TRUE(job.sent.empty());
  EXPECT_EQ(job.resume().ok("a").status(), "completed");
}

AE_TEST("pause/timers fire after resume, the deadline fires at once") {
  JobFixture job(
      "[{'id':'t', 'kind':'wait', 'wait':{'type':'timer', 'for':'10s'}},"
      " {'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k', 'expires':'10s'}}]");
  job.claim().pause().after(20s);
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.count(EventType::timer_fired), 0u);
  EXPECT_EQ(job.state.next_due(), std::nullopt);
  job.signal("k", "1");
  job.resume();
  EXPECT_EQ(job.status(), "completed") << "the signal came before the expiry fired";
  JobFixture late(kPausedTwo, {.deadline = 60s});
  late.pause().after(61s);
  EXPECT_EQ(late.state.error->code, "deadline_exceeded");
}

AE_TEST("pause/a resume before the job parks withdraws the pause") {
  JobFixture job(kPausedTwo);
  job.claim().pause().resume();
  EXPECT_EQ(job.reply["resumed"], Value(true));
  EXPECT_EQ(job.ok("a").ok("b").status(), "completed");
  EXPECT_EQ(job.count(EventType::job_parked), 0u);
}

AE_TEST("pause/a resume ends no other park") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  job.claim().unknown("a");
  ASSERT_EQ(job.status(), "parked");
  EXPECT_EQ(job.resume().refused, Code::not_paused);
  EXPECT_EQ(job.status(), "parked");
  JobFixture running(kPausedTwo);
  EXPECT_EQ(running.claim().resume().refused, Code::not_paused);
  running.ok("a").ok("b");
  EXPECT_EQ(running.resume().refused, Code::job_terminal);
  EXPECT_EQ(running.pause().refused, Code::job_terminal);
}

AE_TEST("pause/a pause during an unknown call parks the job after its resolution") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'pay'},"
      " {'id':'b', 'kind':'tool', 'tool':'put', 'needs':['a']}]");
  job.claim().unknown("a").pause();
  EXPECT_EQ(job.reply["pause_requested"], Value(true));
  EXPECT_EQ(job.state.parked_until, "resolve");
  job.resolve("a", "happened", "1");
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.state.parked_until, "resume");
  EXPECT_EQ(job.tries("b"), 0u);
  EXPECT_EQ(job.resume().ok("b").status(), "completed");
}

AE_TEST("pause/a resolution during a pause does not end the pause") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'pay'},"
      " {'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}}]");
  job.claim().unknown("a").pause();
  EXPECT_EQ(job.state.parked_until, "resume");
  job.waits_for_settling = true;
  job.resolve("a", "not_happened");
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.tries("a"), 1u);
  job.resume();
  EXPECT_EQ(job.tries("a"), 2u);
}

AE_TEST("pause/a crash before the park keeps the pause and resends nothing until resume") {
  JobFixture job(kPausedTwo);
  job.claim().pause().crash();
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.tries("a"), 1u);
  job.resume();
  EXPECT_EQ(job.tries("a"), 2u) << "the lost call is sent again";
  EXPECT_EQ(job.ok("a").ok("b").status(), "completed");
}

AE_TEST("pause/a cancel ends a paused job, also while a call is in flight") {
  JobFixture job(kPausedTwo);
  job.claim().pause().ok("a").cancel();
  EXPECT_EQ(job.status(), "cancelled");
  JobFixture under_way(kPausedTwo);
  under_way.claim().pause().cancel().ok("a");
  EXPECT_EQ(under_way.status(), "cancelled");
}

AE_TEST("pause/a back-off and a map are suspended by a pause and continue after it") {
  JobFixture job(
      "[{'id':'m', 'kind':'map', 'over':[1,2,3], 'max_parallel':1, 'do':{'tool':'put'}}]");
  job.claim().pause().fails("m/0", "connect");
  EXPECT_EQ(job.status(), "parked") << job.log_text();
  job.after(60s);
  EXPECT_EQ(job.sent.size(), 1u);
  job.resume();
  EXPECT_EQ(job.tries("m/0"), 2u);
  job.ok("m/0").ok("m/1").ok("m/2");
  EXPECT_EQ(job.status(), "completed");
}

AE_TEST("pause/a job whose last call succeeds completes instead of pausing") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'put'}]");
  EXPECT_EQ(job.claim().pause().ok("a").status(), "completed");
}

}  // namespace
}  // namespace ae::engine::testing
