// The job's state machine: SPEC §2, every cell.
#include <fmt/core.h>

#include <array>
#include <sstream>

#include "engine/fixtures/job_fixture_test.h"
#include "testing/test.h"

namespace ae::engine {
namespace {

constexpr auto kStatuses = std::to_array(
    {JobStatus::none, JobStatus::queued, JobStatus::running, JobStatus::waiting, JobStatus::parked,
     JobStatus::completed, JobStatus::failed, JobStatus::cancelled});

// As in SPEC §2; `-` is illegal, `own`: queued if the park itself opened the wait.
constexpr std::string_view kTable = R"(
event                 none    queued     running    waiting    parked
job_created           queued  -          -          -          -
job_running           -       running    running    -          -
job_requeued          -       -          queued     -          -
job_waiting           -       -          waiting    -          -
wait_completed        -       queued     running    queued     parked
job_parked            -       parked     parked     parked     -
job_resumed           -       -          -          -          queued
job_cancel_requested  -       queued     running    queued     queued
job_completed         -       -          completed  -          -
job_failed            -       failed     failed     failed     failed
job_cancelled         -       cancelled  cancelled  cancelled  cancelled
)";

std::string text_of(const std::optional<JobStatus>& status) {
  return status ? std::string(to_text(*status)) : "-";
}

AE_TEST("status/every cell of the table matches the specification") {
  std::istringstream lines{std::string(kTable)};
  std::string event, cell;
  lines >> event >> cell >> cell >> cell >> cell >> cell;
  int cells = 0;
  while (lines >> event) {
    const EventKind* kind = event_kind(event);
    ASSERT_NE(kind, nullptr) << event;
    for (std::size_t i = 0; i < 5; ++i, ++cells) {
      lines >> cell;
      EXPECT_EQ(text_of(next_status(kStatuses[i], kind->type)), cell)
          << event << " in " << to_text(kStatuses[i]);
    }
  }
  EXPECT_EQ(cells, 55);
}

AE_TEST("status/a wait opened by the park itself ends the park") {
  EXPECT_EQ(next_status(JobStatus::parked, EventType::wait_completed, true), JobStatus::queued);
  EXPECT_EQ(next_status(JobStatus::waiting, EventType::wait_completed, true), JobStatus::queued);
}

AE_TEST("status/events without a row never change the status and are legal before the end") {
  constexpr std::string_view kColumns = kTable;
  for (const EventKind& kind : event_kinds()) {
    if (kColumns.find(fmt::format("\n{} ", kind.name)) != kColumns.npos) continue;
    EXPECT_EQ(next_status(JobStatus::none, kind.type), std::nullopt) << kind.name;
    for (const JobStatus status :
         {JobStatus::queued, JobStatus::running, JobStatus::waiting, JobStatus::parked}) {
      EXPECT_EQ(next_status(status, kind.type), status) << kind.name;
    }
  }
}

AE_TEST("status/a terminal status accepts only narrative events") {
  for (const JobStatus status : {JobStatus::completed, JobStatus::failed, JobStatus::cancelled}) {
    EXPECT_TRUE(is_terminal(status));
    for (const EventKind& kind : event_kinds()) {
      const bool narrative = kind.event_class == EventClass::narrative;
      EXPECT_EQ(next_status(status, kind.type).has_value(), narrative) << kind.name;
    }
  }
}

AE_TEST("status/an event of a terminal job returns job_terminal") {
  testing::JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  job.claim().ok("a");
  ASSERT_EQ(job.status(), "completed");
  auto again =
      apply(job.state, running_event(AttemptId("x"), 99, "w"), job.now, uncached_plan_source());
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, Code::job_terminal);
}

AE_TEST("status/an illegal event is log_corrupt and names its position") {
  testing::JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  auto bad = apply(job.state, requeued_event("drain", {}), job.now, uncached_plan_source());
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, Code::log_corrupt);
  EXPECT_NE(bad.error().message.find("event 3 (job_requeued)"), std::string::npos);
}

AE_TEST("status/only waiting and parked are blocked") {
  for (const JobStatus status : kStatuses) {
    const bool blocked = status == JobStatus::waiting || status == JobStatus::parked;
    EXPECT_EQ(is_blocked(status), blocked);
  }
}

AE_TEST("status/a job cannot end while a call is in flight") {
  testing::JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  job.claim();
  const EventBody end = JobFailed{.code = "x", .error = Value("y")};
  EXPECT_FALSE(apply(job.state, end, job.now, uncached_plan_source()));
}

}  // namespace
}  // namespace ae::engine
