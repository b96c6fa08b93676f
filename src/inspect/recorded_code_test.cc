// The code of a job as its log has it, for checks of other code against the log.
#include "inspect/recorded_code.h"

#include <string>
#include <vector>

#include "engine/code/code.h"
#include "engine/fixtures/code_log_test.h"
#include "inspect/code_end.h"
#include "inspect/envelope.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

CodeLog refund() {
  CodeLog job;
  job.claim().call("charge", "run:idempotent", "{'n':1}").ok("code/charge", "7");
  job.call("mail", "run:at_most_once", "{'to':'ada'}", 1);
  return job;
}

RecordedCode recorded(const std::vector<Event>& log) {
  auto found = recorded_code(JobId("job-1"), log, uncached_plan_source());
  AE_CHECK(found.has_value(), found ? "" : found.error().message);
  return *std::move(found);
}

AE_TEST("recorded code/a job whose code runs has all its events") {
  const CodeLog job = refund();
  const RecordedCode code = recorded(job.log);
  EXPECT_EQ(code.events, job.log.size());
  ASSERT_TRUE(code.node);
  EXPECT_FALSE(code.end);
  const CodeRecord record = record_of(code.state, code.code());
  ASSERT_EQ(record.requests.size(), 2u);
  EXPECT_EQ(record.requests[1].position, "mail");
  EXPECT_EQ(record.deliveries.size(), 1u);
}

AE_TEST("recorded code/what a routine is started with ends before the end of the code") {
  CodeLog job = refund();
  job.ok("code/mail", "null");
  job.returns("{'paid':7}");
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  const RecordedCode code = recorded(job.log);
  ASSERT_TRUE(code.node);
  ASSERT_TRUE(code.end);
  EXPECT_EQ(canonical(code.end->result.value), R"({"paid":7})");
  EXPECT_TRUE(as<NodeFinished>(job.log[code.events]) != nullptr);
  EXPECT_EQ(record_of(code.state, code.code()).deliveries.size(), 2u);
}

AE_TEST("recorded code/code that has not begun has no node") {
  CodeLog job;
  const RecordedCode code = recorded(job.log);
  EXPECT_FALSE(code.node);
  EXPECT_EQ(code.events, job.log.size());
}

AE_TEST("recorded code/the log can be cut at each event before the end") {
  const CodeLog job = refund();
  for (std::size_t events = 2; events <= job.log.size(); ++events) {
    const std::vector<Event> begin(job.log.begin(),
                                   job.log.begin() + static_cast<std::ptrdiff_t>(events));
    EXPECT_EQ(recorded(begin).events, events);
  }
}

AE_TEST("recorded code/a plan without code is unsupported") {
  const JobFixture job("[{'id':'w','kind':'wait','wait':{'type':'signal'}}]");
  const auto found = recorded_code(job.state.job, job.log, uncached_plan_source());
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::unsupported);
}

AE_TEST("recorded code/a divergence that is not in the log is explained as one that is") {
  CodeLog job = refund();
  const Divergence detail{
      .delivered = 1,
      .finding = "arguments",
      .found = json("{'kind':'tool','position':'mail','tool':'run:at_most_once'}"),
      .position = "mail"};
  const RecordedCode code = recorded(job.log);
  const Value early = divergence_view(
      code.state, job.log,
      RoutineDiverged{.detail = detail, .node_id = "code", .step_id = code.code().id});
  EXPECT_TRUE(early["seq"].is_null());
  job.ok("code/mail", "null");  // calls in flight are awaited before the job parks
  CodeLog waiting;
  waiting.claim().wait("go", {});
  waiting.routine().divergence =
      Divergence{.delivered = 0, .finding = "missing", .found = {}, .position = "go"};
  const RecordedCode before = recorded(waiting.log);
  const Value without = divergence_view(
      before.state, waiting.log,
      RoutineDiverged{
          .detail = *waiting.routine().divergence, .node_id = "code", .step_id = before.code().id});
  waiting.run_until_idle();
  ASSERT_EQ(waiting.status(), "parked") << waiting.log_text();
  const Value stored = divergence_view(waiting.state, waiting.log);
  EXPECT_EQ(without, stored.with("seq", Value()));
}

AE_TEST("recorded code/an event is read again from its envelope") {
  CodeLog job = refund();
  job.ok("code/mail", "null");
  job.returns("{'paid':7}");
  for (const Event& event : job.log) {
    auto read = event_from_envelope(envelope(job.state.job, event));
    ASSERT_TRUE(read) << read.error().message;
    Event expected = event;
    expected.salts.clear();
    EXPECT_EQ(envelope(job.state.job, *read), envelope(job.state.job, expected));
  }
  const Value first = envelope(job.state.job, job.log.front());
  EXPECT_EQ(event_from_envelope(first.with("type", "dream_recorded")).error().code,
            Code::needs_version);
  EXPECT_EQ(event_from_envelope(first.with("schema", 99)).error().code, Code::needs_version);
  EXPECT_EQ(event_from_envelope(first.with("seq", 0)).error().code, Code::log_corrupt);
  EXPECT_EQ(event_from_envelope(first.with("payload", Value::object({}))).error().code,
            Code::log_corrupt);
  EXPECT_EQ(event_from_envelope(Value(1)).error().code, Code::log_corrupt);
}

}  // namespace
}  // namespace ae::engine::testing
