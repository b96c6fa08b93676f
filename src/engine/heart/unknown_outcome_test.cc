// Calls with an unknown outcome, and results that arrive late.
#include <chrono>

#include "engine/fixtures/job_fixture_test.h"
#include "engine/heart/tool_step_fixture_test.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

AE_TEST("unknown/a read is retried and fails when its tries are used up") {
  JobFixture job(one("look"));
  job.claim().times_out("a").after(10s).unknown("a").after(10s).times_out("a");
  EXPECT_EQ(job.tries("a"), 3u);
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "timeout");
  EXPECT_TRUE(job.last<JobFailed>().in_doubt.is_null());
}

AE_TEST("unknown/an idempotent call is retried under the same key") {
  JobFixture job(one("put"));
  job.claim().times_out("a").after(10s).ok("a");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.sent[0].external_key, job.sent[1].external_key);
}

AE_TEST("unknown/an idempotent call without tries left parks instead of failing") {
  JobFixture job(one("once"));
  job.claim().times_out("a");
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.state.parked_until, "resolve");
  EXPECT_EQ(job.state.parked_reason, "invocation_in_doubt");
  EXPECT_EQ(job.last<WaitOpened>().correlation_key, "resolve/" + job.step("a").call->key.text);
  EXPECT_EQ(job.releases, 1);
}

AE_TEST("unknown/an at_most_once call is never sent again and parks") {
  JobFixture job(one("pay"),
                 {.more = "{'tools':{'pay':{'effect':'at_most_once','on_in_doubt':'park',"
                          "'retry':{'max_attempts':5,'retry_on':['timeout']}}}}"});
  job.claim().times_out("a");
  EXPECT_EQ(job.tries("a"), 1u);
  EXPECT_EQ(job.status(), "parked");
}

AE_TEST("unknown/with on_in_doubt: fail an at_most_once call fails and is listed as unknown") {
  JobFixture job(one("risk"));
  job.claim().unknown("a");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "invocation_in_doubt");
  ASSERT_EQ(job.state.final_in_doubt.size(), 1u);
  EXPECT_EQ(job.state.final_in_doubt.items()[0], job.sent[0].key);
}

AE_TEST("unknown/an indefinite failure of an at_most_once call parks the job") {
  JobFixture job(one("pay"));
  job.claim().answer("a", {.kind = OutcomeKind::failure, .error_code = "http_500"});
  EXPECT_EQ(job.status(), "parked");
}

AE_TEST("unknown/a try that was never sent leaves an earlier try unknown") {
  JobFixture job(one("put"));
  job.claim().crash();
  job.fails("a", "not_sent").after(1s);
  ASSERT_EQ(job.tries("a"), 3u) << "within the window it is sent again, under the same key";
  job.fails("a", "not_sent").after(25h);
  EXPECT_EQ(job.tries("a"), 3u) << "after the window the key may be forgotten";
  EXPECT_EQ(job.status(), "parked");
  job.cancel();
  EXPECT_EQ(job.state.final_in_doubt.size(), 1u);
}

AE_TEST("unknown/a call without tries left parks if an earlier try may have happened") {
  JobFixture job(one("put"));
  job.claim().times_out("a").after(1s).fails("a", "connect").after(10s).fails("a", "connect");
  EXPECT_EQ(job.tries("a"), 3u);
  EXPECT_EQ(job.status(), "parked");
}

AE_TEST("late/a result after the fail resolution of an operator is late") {
  JobFixture job(one("pay"));
  job.claim().crash();
  const SentTry first = sent_try_of(job.state, job.step("a"));
  job.decides = false;
  job.resolve("a", "fail");
  job.store_effect(first, {.kind = OutcomeKind::success, .result = json("7")});
  job.decides = true;
  job.run_until_idle();
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.last<ToolInvocationFinished>().late, true);
}

AE_TEST("late/a late success frees a parked job") {
  JobFixture job(one("pay"));
  job.claim().crash();
  ASSERT_EQ(job.status(), "parked");
  job.store_effect("a", {.kind = OutcomeKind::success, .result = json("7")});
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.tries("a"), 1u);
  EXPECT_EQ(job.step("a").result, json("7"));
}

AE_TEST("late/a late definite failure fails the node without an operator") {
  JobFixture job(one("pay"));
  job.claim().crash();
  job.store_effect("a", {.kind = OutcomeKind::failure, .definite = true, .error_code = "http_402"});
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "http_402");
  EXPECT_EQ(job.tries("a"), 1u);
}

AE_TEST("late/a late timeout is not applied") {
  JobFixture job(one("pay"));
  job.claim().crash();
  job.store_effect("a", {.kind = OutcomeKind::timeout, .error_code = "timeout"});
  EXPECT_EQ(job.status(), "parked");
}

AE_TEST("late/a late result counts only from the attempt that made the call") {
  JobFixture job(one("pay"));
  job.claim().crash();
  SentTry other = sent_try_of(job.state, job.step("a"));
  other.attempt = AttemptId("somebody");
  job.store_effect(other, {.kind = OutcomeKind::success});
  EXPECT_EQ(job.status(), "parked");
}

AE_TEST("late/a success between not_happened and the new try is the result") {
  JobFixture job(one("pay"));
  job.claim().crash();
  job.claims_when_free = false;
  job.resolve("a", "not_happened");
  job.store_effect("a", {.kind = OutcomeKind::success, .result = json("7")});
  job.claims_when_free = true;
  job.claim();
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.tries("a"), 1u);
}

AE_TEST("late/a late result of a decided call is recorded once and changes nothing") {
  JobFixture job(one("put"));
  job.claim();
  const SentTry first = sent_try_of(job.state, job.step("a"));
  job.crash();  // resent: the first try is closed as unknown
  ASSERT_EQ(job.tries("a"), 2u);
  job.store_effect(first, {.kind = OutcomeKind::success, .result = json("7")});
  const auto late = job.last<ToolInvocationFinished>();
  EXPECT_EQ(late.late, true);
  EXPECT_EQ(late.try_no, 1);
  EXPECT_EQ(job.status(), "running");
  const std::size_t events = job.log.size();
  job.store_effect(first, {.kind = OutcomeKind::success, .result = json("7")});
  EXPECT_EQ(job.log.size(), events) << "it is recorded once";
  job.ok("a", "8");
  EXPECT_EQ(job.state.result, job.state.result);
  EXPECT_EQ(job.step("a").result, json("8"));
}

AE_TEST("late/a resolution names the effect slot that must be empty") {
  JobFixture job(one("pay"));
  job.claim().crash();
  auto applied =
      apply_request(job.state,
                    {.body = ResolveRequest{.idempotency_key = job.step("a").call->key.text,
                                            .resolution = "happened"}},
                    job.context());
  ASSERT_TRUE(applied);
  const auto slot = decided_effect_slot(job.state, applied->events.front());
  ASSERT_TRUE(slot);
  EXPECT_EQ(slot->first, job.step("a").call->id);
  EXPECT_EQ(slot->second, 1u);
  JobFixture closed(one("pay"));
  closed.claim().times_out("a");
  EXPECT_FALSE(decided_effect_slot(
      closed.state, DecisionRecorded{.kind = "in_doubt", .step_id = closed.step("a").id}))
      << "its own attempt closed it: no late result is possible";
}

AE_TEST("late/an outcome that is already in the log is not imported again") {
  JobFixture job(one("put"));
  job.claim();
  const SentTry first = sent_try_of(job.state, job.step("a"));
  const Outcome withdrawn{.kind = OutcomeKind::failure,
                          .definite = true,
                          .retryable = true,
                          .error_code = "not_sent",
                          .error_message = "the process is stopping"};
  job.answer("a", withdrawn).after(1s);
  ASSERT_EQ(job.tries("a"), 2u) << job.log_text();
  const std::size_t events = job.log.size();
  job.store_effect(first, withdrawn);
  EXPECT_EQ(job.log.size(), events) << job.log_text();
}

}  // namespace
}  // namespace ae::engine::testing
