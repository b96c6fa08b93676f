// A tool node: success, failure, retry, unknown outcome, crash, and resolutions.
#include "engine/heart/job_fixture_test.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

using Types = std::vector<std::string>;

std::string one(std::string_view tool) {
  return "[{'id':'a', 'kind':'tool', 'tool':'" + std::string(tool) + "'}]";
}

// ---------------------------------------------------------------- success and failure

AE_TEST("tool/a call is declared, sent, recorded and committed in order") {
  JobFixture job(one("pay"));
  job.claim().ok("a", "{'id':7}");
  EXPECT_EQ(job.types("a"), (Types{"node_started", "command_emitted", "tool_invocation_started",
                                   "tool_invocation_finished", "command_committed", "node_finished",
                                   "step_committed"}));
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.result, json("{'a':{'id':7}}"));
}

AE_TEST("tool/a call is declared in a commit before anything is sent") {
  JobFixture job(one("pay"));
  job.claim();
  EXPECT_EQ(job.log.back().type, EventType::tool_invocation_started);
  EXPECT_EQ(job.commits.back(), job.log.size());
  ASSERT_EQ(job.sent.size(), 1u);
  EXPECT_EQ(job.sent[0].external_key, "aetheris:job-1:" + job.step("a").id.text + ":0");
}

AE_TEST("tool/nothing is sent after the lease has expired") {
  JobFixture job(one("pay"));
  job.limits.send_window = std::chrono::hours(1);
  job.claim();
  EXPECT_EQ(job.step("a").call->send_by, job.now + 30s);
  EXPECT_EQ(job.step("a").call->deadline, job.now + 60s);
}

AE_TEST("tool/a definite failure ends the job with its code") {
  JobFixture job(one("pay"));
  job.claim().fails("a", "http_402");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "http_402");
  EXPECT_EQ(job.last<JobFailed>().node_id, "a");
  EXPECT_TRUE(job.last<JobFailed>().in_doubt.is_null());
}

AE_TEST("tool/an invalid output fails the node, counts as done and is never retried") {
  JobFixture job(one("put"));
  Outcome outcome{.kind = OutcomeKind::success};
  outcome.invalid = json("{'invalid':true, 'reason':'is too large', 'size':9}");
  job.claim().answer("a", outcome);
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "tool_output_invalid");
  EXPECT_EQ(job.tries("a"), 1u);
  EXPECT_EQ(job.count(EventType::step_committed), 1u);
  EXPECT_TRUE(job.last<JobFailed>().in_doubt.is_null());
}

AE_TEST("tool/arguments that violate the schema make no call") {
  JobFixture job(one("pay"),
                 {.more = "{'tools':{'pay':{'effect':'at_most_once','on_in_doubt':'park',"
                          "'args_schema':{'type':'object','required':['x']}}}}"});
  job.claim();
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "input_invalid");
  EXPECT_TRUE(job.sent.empty());
}

// ---------------------------------------------------------------- retry

AE_TEST("retry/the wait follows from the recorded random number") {
  JobFixture job(one("put"));
  job.claim().fails("a", "connect");
  const auto random = job.last<RandomRecorded>();
  const auto decision = job.last<DecisionRecorded>();
  EXPECT_EQ(random.effect_id, job.step("a").id.text + ":random:1");
  EXPECT_EQ(decision.kind, "retry");
  EXPECT_EQ(decision.reason, "connect");
  const Duration wait = *decision.not_before - job.now;
  const auto jitter_seed = static_cast<std::uint64_t>(random.value.value.as_int());
  EXPECT_EQ(wait, job.plan->tools[job.plan->nodes[0].tool].retry.backoff(2, jitter_seed << 11, {}));
  EXPECT_EQ(job.decide_again_at, job.now + wait);
  EXPECT_EQ(job.tries("a"), 1u);
  job.after(wait);
  EXPECT_EQ(job.tries("a"), 2u);
  EXPECT_EQ(job.ok("a").status(), "completed");
}

AE_TEST("retry/the same random seed gives the same wait, another seed another wait") {
  const auto wait_with = [](std::uint64_t jitter_seed) {
    JobFixture job(one("put"));
    job.jitter_seed = jitter_seed;
    job.claim().fails("a", "connect");
    return job.last<DecisionRecorded>().not_before;
  };
  EXPECT_EQ(wait_with(1), wait_with(1));
  EXPECT_NE(wait_with(1), wait_with(2));
}

AE_TEST("retry/jitter is spread over the upper half of the wait") {
  Duration least = 1h, most = 0s;
  for (std::uint64_t jitter_seed = 0; jitter_seed < 200; ++jitter_seed) {
    JobFixture job(one("put"));
    job.jitter_seed = jitter_seed;
    job.claim().fails("a", "connect");
    const Duration wait = job.step("a").not_before - job.now;
    least = std::min(least, wait);
    most = std::max(most, wait);
  }
  EXPECT_GE(least, 100ms);
  EXPECT_LE(most, 200ms);
  EXPECT_LT(least, 110ms);
  EXPECT_GT(most, 190ms);
}

AE_TEST("retry/all tries share their keys and their arguments") {
  JobFixture job(one("put"));
  job.claim().fails("a", "connect").after(10s).fails("a", "http_503").after(10s).ok("a");
  ASSERT_EQ(job.sent.size(), 3u);
  for (const auto& sent : job.sent) {
    EXPECT_EQ(sent.key, job.sent[0].key);
    EXPECT_EQ(sent.external_key, job.sent[0].external_key);
    EXPECT_EQ(sent.arguments, job.sent[0].arguments);
  }
  EXPECT_EQ(job.sent[2].try_no, 3u);
  EXPECT_EQ(job.last<NodeFinished>().try_no, 3);
}

AE_TEST("retry/retries end when the tries are used up") {
  JobFixture job(one("put"));
  job.claim()
      .fails("a", "connect")
      .after(10s)
      .fails("a", "connect")
      .after(10s)
      .fails("a", "connect");
  EXPECT_EQ(job.tries("a"), 3u);
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "connect");
}

AE_TEST("retry/a failure that is not in retry_on is final") {
  JobFixture job(one("put"));
  job.claim().fails("a", "http_404");
  EXPECT_EQ(job.tries("a"), 1u);
  EXPECT_EQ(job.status(), "failed");
}

AE_TEST("retry/a delay requested by the downstream is awaited, up to max_backoff") {
  JobFixture job(one("put"));
  Outcome busy{.kind = OutcomeKind::failure, .definite = true, .error_code = "connect"};
  busy.retry_after = 3s;
  job.claim().answer("a", busy);
  EXPECT_EQ(job.step("a").not_before - job.now, Duration(3s));
}

AE_TEST("retry/a try that was never sent is declared again and not counted") {
  JobFixture job(one("once"));
  job.claim().fails("a", "not_sent");
  EXPECT_EQ(job.tries("a"), 1u) << "not at once, because the cause may persist";
  job.after(1s);
  EXPECT_EQ(job.tries("a"), 2u);
  EXPECT_EQ(job.step("a").call->counted_tries, 1u);
  EXPECT_EQ(job.sent[1].external_key, job.sent[0].external_key);
  EXPECT_EQ(job.ok("a").status(), "completed");
}

AE_TEST("retry/a long back-off releases the job until it ends") {
  JobFixture job(one("put"),
                 {.more = "{'tools':{'put':{'effect':'idempotent','retry':{"
                          "'max_attempts':3,'initial_backoff':'60s','max_backoff':'60s'}}}}"});
  job.claim().fails("a", "connect");
  EXPECT_EQ(job.status(), "queued");
  EXPECT_EQ(job.state.not_before, job.step("a").not_before);
  EXPECT_EQ(job.last<JobRequeued>().reason, "backoff");
  EXPECT_EQ(job.releases, 1);
  job.after(60s);
  EXPECT_EQ(job.tries("a"), 2u);
  EXPECT_EQ(job.ok("a").status(), "completed");
}

AE_TEST("retry/a signal wakes a job that backs off") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'put'},
                   {'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}}])",
                 {.more = "{'tools':{'put':{'effect':'idempotent','retry':{"
                          "'max_attempts':3,'initial_backoff':'60s','max_backoff':'60s'}}}}"});
  job.claim().fails("a", "connect");
  ASSERT_EQ(job.status(), "queued");
  job.claims_when_free = false;
  job.signal("k", "1");
  EXPECT_EQ(job.state.not_before, std::nullopt);
}

// ---------------------------------------------------------------- unknown outcomes

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

// ---------------------------------------------------------------- crash

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

AE_TEST("limits/a result above 16 MiB fails its node and is recorded as a summary") {
  JobFixture job(one("pay"));
  job.claim();
  const std::string large(17u << 20, 'x');
  job.answer("a", {.kind = OutcomeKind::success, .result = Value(large)});
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "tool_output_invalid");
  const Value record = job.last<ToolInvocationFinished>().result.value;
  EXPECT_EQ(record["invalid"], Value(true));
  EXPECT_EQ(record["size"], Value(static_cast<std::uint64_t>(large.size() + 2)));
  EXPECT_LT(canonical(record).size(), 1000u);
}

AE_TEST("limits/arguments, map lists and outputs above 16 MiB fail with payload_too_large") {
  const std::string half = canonical(Value(std::string(9u << 20, 'x')));
  const std::string two =
      "[{'id':'a', 'kind':'tool', 'tool':'put'},"
      " {'id':'b', 'kind':'tool', 'tool':'put', 'needs':['a']}";
  const auto ends = [&](const std::string& nodes, std::string_view more) {
    JobFixture job(nodes, {.more = more});
    job.claim().ok("a", half).ok("b", half);
    EXPECT_EQ(job.status(), "failed");
    return job.state.error->code;
  };
  EXPECT_EQ(ends(two + "]", "{'output': '${ [.steps.a, .steps.b] }'}"), "payload_too_large");
  EXPECT_EQ(ends(two + ", {'id':'c', 'kind':'tool', 'tool':'put', 'needs':['b'],"
                       " 'args': {'x': '${ .steps.a + .steps.b }'}}]",
                 "{}"),
            "payload_too_large");
  EXPECT_EQ(ends(two + ", {'id':'c', 'kind':'map', 'over': '${ [.steps.a, .steps.b] }',"
                       " 'max_parallel': 1, 'needs':['b'], 'do': {'tool':'put', 'args': {}}}]",
                 "{}"),
            "payload_too_large");
}

AE_TEST("limits/a job with too many events fails with events_limit") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'put'},"
      " {'id':'b', 'kind':'tool', 'tool':'put', 'needs':['a']}]");
  job.limits.job_events_max = job.state.seq + 5;
  job.claim().ok("a");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "events_limit");
  EXPECT_EQ(job.tries("b"), 0u);
}

AE_TEST("not_sent/an unsent call is retried with growing waits under the same keys") {
  JobFixture job(one("pay"));
  job.claim();
  const auto withdrawn = [&] {
    job.answer("a", {.kind = OutcomeKind::failure,
                     .definite = true,
                     .retryable = true,
                     .error_code = "not_sent"});
  };
  Duration waited{};
  for (int i = 0; i < 4; ++i) {
    withdrawn();
    EXPECT_EQ(job.status(), "running");
    ASSERT_TRUE(job.decide_again_at) << "it is not declared again at once";
    const Duration wait = *job.decide_again_at - job.now;
    EXPECT_GE(wait, waited / 2) << "jitter takes at most a half";
    waited = std::max(waited, wait);
    job.after(wait);
    EXPECT_EQ(job.tries("a"), static_cast<std::size_t>(i) + 2);
    EXPECT_EQ(job.sent.back().external_key, job.sent.front().external_key);
  }
  EXPECT_GE(waited, 400ms);
  job.ok("a");
  EXPECT_EQ(job.status(), "completed");
}

AE_TEST("not_sent/another attempt sends a withdrawn call at once") {
  JobFixture job(one("pay"));
  job.claim();
  job.decides = false;
  job.answer("a", {.kind = OutcomeKind::failure, .definite = true, .error_code = "not_sent"});
  job.decides = true;
  job.crash();
  EXPECT_EQ(job.tries("a"), 2u);
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

// ---------------------------------------------------------------- resolutions

AE_TEST("resolve/happened uses the given result and calls nothing") {
  JobFixture job(one("pay"));
  job.claim().crash().resolve("a", "happened", "{'id':7}");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.result, json("{'a':{'id':7}}"));
  EXPECT_EQ(job.tries("a"), 1u);
  EXPECT_EQ(job.last<ToolInvocationFinished>().outcome, "unknown");
  EXPECT_EQ(job.last<CommandCommitted>().result.value, json("{'id':7}"));
  EXPECT_EQ(job.last<DecisionRecorded>().by, "someone");
}

AE_TEST("resolve/happened after a timeout does not close the try twice") {
  JobFixture job(one("pay"));
  job.claim().times_out("a").resolve("a", "happened", "7");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.count(EventType::tool_invocation_finished), 1u);
}

AE_TEST("resolve/not_happened permits one new try under the same keys") {
  JobFixture job(one("pay"));
  job.claim().crash();
  job.waits_for_settling = true;
  job.resolve("a", "not_happened");
  EXPECT_EQ(job.tries("a"), 2u);
  EXPECT_EQ(job.sent[1].external_key, job.sent[0].external_key);
  EXPECT_EQ(job.ok("a", "8").status(), "completed");
}

AE_TEST("resolve/a call resolved as not_happened stays known if the new try never arrives") {
  JobFixture job("[{'id':'a','kind':'tool','tool':'wire'}]",
                 {.more = "{'tools': {'wire': {'effect': 'at_most_once', 'on_in_doubt': 'park',"
                          "'retry': {'max_attempts': 3, 'retry_on': ['connect']}}}}"});
  job.waits_for_settling = true;
  job.claim().crash().resolve("a", "not_happened");
  ASSERT_EQ(job.sent.size(), 2u) << "the first try was open until then\n" << job.log_text();
  job.fails("a", "connect");
  EXPECT_EQ(job.count(EventType::wait_opened), 1u) << "no second resolution is needed\n"
                                                   << job.log_text();
  job.after(10s);
  ASSERT_EQ(job.sent.size(), 3u) << job.log_text();
  EXPECT_EQ(job.ok("a").status(), "completed");
}

AE_TEST("resolve/not_happened is rejected before the call has settled, and the view shows when") {
  for (const bool owned : {true, false}) {
    JobFixture job(one("pay"));
    job.owned = owned;
    job.claim().after(2s).crash().after(45s);  // on a shared store: until the lease has ended
    ASSERT_EQ(job.status(), "parked") << job.log_text();
    const Instant settles = owned ? *job.opened_at + 60s : job.step("a").call->deadline + 30s;
    EXPECT_EQ(job_view(job.state)["in_doubt"].items()[0]["resolvable_at"], Value(to_text(settles)));
    job.now = settles - 1ms;
    job.resolve("a", "not_happened");
    EXPECT_EQ(job.refused, Code::not_settled);
    EXPECT_NE(job.refusal.find(to_text(settles)), std::string::npos) << job.refusal;
    EXPECT_EQ(job.status(), "parked");
    job.now = settles;
    job.resolve("a", "not_happened");
    EXPECT_EQ(job.refused, std::nullopt);
    EXPECT_EQ(job.tries("a"), 2u);
  }
}

AE_TEST("resolve/not_happened is accepted at once after a complete response") {
  JobFixture job(one("pay"));
  job.claim().answer("a", {.kind = OutcomeKind::unknown,
                           .settled = true,
                           .error_code = "http_500",
                           .error_message = "the server answered 500"});
  ASSERT_EQ(job.status(), "parked") << "the outcome is unknown nevertheless\n" << job.log_text();
  EXPECT_EQ(job_view(job.state)["in_doubt"].items()[0]["resolvable_at"], Value(to_text(job.now)));
  EXPECT_EQ(job.resolve("a", "not_happened").refused, std::nullopt);
  EXPECT_EQ(job.tries("a"), 2u);
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

AE_TEST("resolve/not_happened of a read is rejected until the call has settled") {
  for (const bool lost : {true, false}) {
    JobFixture job(one("look"));
    job.claim();
    if (!lost) job.times_out("a");
    job.reload();
    job.versions.assign(job.plan->tools.size(), "ffffffffffffffff");
    job.claim().after(1s);
    ASSERT_EQ(job.status(), "parked") << job.log_text();
    const Instant settles = job.step("a").call->deadline + 30s;
    ASSERT_LT(job.now, settles);
    EXPECT_EQ(job.resolve("a", "not_happened").refused, Code::not_settled);
    job.now = settles;
    EXPECT_EQ(job.resolve("a", "not_happened").refused, std::nullopt);
    EXPECT_EQ(job.tries("a"), 2u);
  }
}

AE_TEST("resolve/not_happened counts from the check of the operator, not from its application") {
  JobFixture job(one("pay"));
  job.claim().crash();
  const Instant settles = *job.state.settles_at(job.step("a"));
  const auto resolve_at = [&](std::string resolution, Instant checked_at) {
    const ControlRequest request{.by = "someone",
                                 .checked_at = checked_at,
                                 .body = ResolveRequest{.idempotency_key = job.sent[0].key,
                                                        .resolution = std::move(resolution)}};
    return job.send_request(*ControlRequest::from_json(request.to_json()))
        .refused;  // as kept in the inbox
  };
  EXPECT_EQ(resolve_at("not_happened", settles + 1h), Code::not_settled) << "a clock that is ahead";
  job.now = settles + 60s;
  EXPECT_EQ(resolve_at("not_happened", settles - 1ms), Code::not_settled)
      << "the check was too early";
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(resolve_at("not_happened", settles), std::nullopt);
  EXPECT_EQ(job.tries("a"), 2u);
}

AE_TEST("resolve/not_happened from a check before the newest try is rejected, even if settled") {
  JobFixture job(one("pay"));
  job.claim().times_out("a");
  const Instant settles = *job.state.settles_at(job.step("a"));
  const auto resolve_at = [&](Instant checked_at) {
    return job
        .send_request({.by = "someone",
                       .checked_at = checked_at,
                       .body = ResolveRequest{.idempotency_key = job.sent[0].key,
                                              .resolution = "not_happened"}})
        .refused;
  };
  job.now = settles + 60s;
  ASSERT_EQ(resolve_at(settles + 20s), std::nullopt);
  ASSERT_EQ(job.tries("a"), 2u);
  job.answer("a", {.kind = OutcomeKind::unknown,
                   .settled = true,
                   .error_code = "http_500",
                   .error_message = "the server answered 500"});
  ASSERT_EQ(job.state.settles_at(job.step("a")), std::nullopt);
  EXPECT_EQ(resolve_at(settles + 10s), Code::not_settled) << "another operator checked before it";
  job.after(1s);
  EXPECT_EQ(resolve_at(job.now), std::nullopt);
}

AE_TEST("resolve/not_happened from a check before the newest try was sent is rejected") {
  JobFixture job(one("pay"));
  job.claim().times_out("a");
  const Instant settles = *job.state.settles_at(job.step("a"));
  const auto resolve_at = [&](Instant checked_at) {
    return job
        .send_request({.by = "someone",
                       .checked_at = checked_at,
                       .body = ResolveRequest{.idempotency_key = job.sent[0].key,
                                              .resolution = "not_happened"}})
        .refused;
  };
  job.now = settles + 60s;
  ASSERT_EQ(resolve_at(job.now), std::nullopt);
  const Instant decided = job.now;
  job.now = decided + 5s;  // the second try is declared, sent and answered
  job.answer("a", {.kind = OutcomeKind::unknown,
                   .settled = true,
                   .error_code = "http_500",
                   .error_message = "the server answered 500"});
  ASSERT_EQ(job.status(), "parked") << job.log_text();
  job.after(1s);
  EXPECT_EQ(resolve_at(decided + 1ms), Code::not_settled)
      << "between the decision and the next try";
  EXPECT_EQ(resolve_at(decided + 5s - 1us), Code::not_settled) << "before it was answered";
  EXPECT_EQ(resolve_at(decided + 5s), std::nullopt);
}

AE_TEST("resolve/the time of the check does not matter for happened and fail") {
  for (const std::string resolution : {"happened", "fail"}) {
    JobFixture job(one("pay"));
    job.claim().crash();
    job.send_request(
        {.checked_at = job.step("a").call->deadline - 1h,
         .body = ResolveRequest{.idempotency_key = job.sent[0].key, .resolution = resolution}});
    EXPECT_EQ(job.refused, std::nullopt) << resolution;
  }
}

AE_TEST("resolve/fail fails the node and lists the unknown call") {
  JobFixture job(one("pay"));
  job.claim().crash().resolve("a", "fail");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "invocation_in_doubt");
  EXPECT_EQ(job.last<WaitCompleted>().outcome, "rejected");
  EXPECT_EQ(job.state.final_in_doubt.size(), 1u);
}

AE_TEST("resolve/a lost new try parks again under its own correlation key") {
  JobFixture job(one("pay"));
  job.claim().crash();
  job.waits_for_settling = true;
  job.resolve("a", "not_happened").crash();
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.last<WaitOpened>().correlation_key, "resolve/" + job.sent[0].key + "#2");
  job.resolve("a", "happened", "9");
  EXPECT_EQ(job.status(), "completed");
}

AE_TEST("resolve/a resolution of an earlier try does not apply to a later one") {
  JobFixture job(one("pay"));
  job.claim().crash().after(60s);
  ControlRequest first{.body = ResolveRequest{.idempotency_key = job.sent[0].key,
                                              .resolution = "not_happened",
                                              .try_no = 1}};
  // By another operator, waiting in the inbox.
  ControlRequest second = *ControlRequest::from_json(first.to_json());
  second.id = "second";
  job.send_request(first).crash();
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.send_request(second).refused, Code::not_in_doubt);
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.sent.size(), 2u);
}

AE_TEST("resolve/a definite failure of the new try follows the retry policy") {
  JobFixture job(one("pay"));
  job.claim().times_out("a");
  job.waits_for_settling = true;
  job.resolve("a", "not_happened").fails("a", "http_402");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "http_402");
  EXPECT_TRUE(job.last<JobFailed>().in_doubt.is_null());
}

AE_TEST("resolve/a unique prefix of a key of at least 8 characters is accepted") {
  JobFixture job(one("pay"));
  job.claim().crash();
  const std::string key = job.sent[0].key;
  const auto with = [&](std::string part) {
    job.send_request(
        {.body = ResolveRequest{.idempotency_key = std::move(part), .resolution = "fail"}});
    return job.refused;
  };
  EXPECT_EQ(with(key.substr(0, 7)), Code::not_in_doubt);
  EXPECT_EQ(with("ffff" + key.substr(4)), Code::not_in_doubt);
  EXPECT_EQ(with(key.substr(0, 8)), std::nullopt);
  EXPECT_EQ(with(key), Code::job_terminal);
}

AE_TEST("resolve/an invalid resolution is rejected") {
  JobFixture job(one("pay"));
  job.claim().crash();
  EXPECT_EQ(job.resolve("a", "maybe").refused, Code::input_invalid);
  EXPECT_EQ(job.resolve("a", "fail", "7").refused, Code::input_invalid);
  EXPECT_EQ(job.signal("resolve/" + job.sent[0].key).refused, Code::wait_mismatch);
  EXPECT_EQ(job.status(), "parked");
}

AE_TEST("resolve/other branches continue while a call is unknown") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'pay'}, {'id':'b', 'kind':'tool', 'tool':'put'},"
      " {'id':'c', 'kind':'tool', 'tool':'put', 'needs':['b']}]");
  job.claim().times_out("a");
  EXPECT_EQ(job.status(), "running");
  job.ok("b");
  EXPECT_EQ(job.status(), "running");
  job.ok("c");
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.resolve("a", "happened").status(), "completed");
}

}  // namespace
}  // namespace ae::engine::testing
