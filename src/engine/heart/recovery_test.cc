// The events of a recovery, and progress reports in a trace.
#include "engine/heart/recovery.h"

#include "engine/fixtures/job_fixture_test.h"
#include "inspect/trace.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

Value counts(const JobFixture& job, RecoveryCounts found = {}) {
  const EventBody note = recovery_completed_event(job.state, AttemptId("next"), found);
  return std::get<RecoveryCompleted>(note).detail.json();
}

EventBody report(const JobFixture& job, const char* node, Value detail) {
  return Progress{.detail = ProgressReport{.report = std::move(detail), .try_no = 1},
                  .node_id = node,
                  .step_id = job.state.steps[job.state.plan->by_id.at(node)].id};
}

AE_TEST("recovery/an attempt that continues the log of another attempt is a recovery") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  EXPECT_FALSE(is_recovery(job.state));
  job.claim();
  EXPECT_TRUE(is_recovery(job.state));
  const EventBody note = recovery_started_event(job.state, AttemptId("next"));
  const auto& started = std::get<RecoveryStarted>(note);
  EXPECT_EQ(started.attempt_id, "next");
  EXPECT_EQ(started.detail.json().text("after"), job.state.attempt.text);
  EXPECT_EQ(started.detail.json()["seq"], Value(job.state.seq));
  EXPECT_EQ(started.detail.json().text("status"), "running");
}

AE_TEST("recovery/an open call is counted as resent or unknown, by the policy of its tool") {
  JobFixture paid("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  paid.claim();
  EXPECT_EQ(counts(paid, {.pending = 1}),
            json("{'caught_up':0,'in_doubt':1,'injected':0,'pending':1,'resent':0}"));
  JobFixture read("[{'id':'a', 'kind':'tool', 'tool':'look'}]");
  read.claim();
  EXPECT_EQ(counts(read, {.pending = 1}),
            json("{'caught_up':0,'in_doubt':0,'injected':0,'pending':1,'resent':1}"));
}

AE_TEST("recovery/recovery events change only the sequence number") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  job.claim();
  const Value before = trace_view(job.state, job.log)["nodes"];
  const std::uint64_t seq = job.state.seq;
  job.add({recovery_started_event(job.state, AttemptId("next")),
           recovery_completed_event(job.state, AttemptId("next"), {})});
  EXPECT_EQ(job.state.seq, seq + 2);
  EXPECT_EQ(trace_view(job.state, job.log)["nodes"], before);
}

AE_TEST("trace/the last progress report of a call is shown at its try") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  job.claim();
  const auto tried = [&] {
    return trace_view(job.state, job.log)["nodes"].items()[0]["tries"].items()[0];
  };
  EXPECT_TRUE(tried()["progress"].is_null());
  job.add({report(job, "a", Value(1)), report(job, "a", json("{'percent':50}"))});
  EXPECT_EQ(tried()["progress"]["report"], json("{'percent':50}"));
  EXPECT_TRUE(tried()["progress"]["at"].is_string());
  EXPECT_TRUE(tried()["outcome"].is_null()) << "it is still in flight";
}

}  // namespace
}  // namespace ae::engine::testing
