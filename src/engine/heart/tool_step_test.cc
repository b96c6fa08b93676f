// A tool node: success, failure, retry and limits of its results.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/fixtures/job_fixture_test.h"
#include "engine/heart/tool_step_fixture_test.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

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
  EXPECT_EQ(job.sent[0].external_key, fmt::format("aetheris:job-1:{}:0", job.step("a").id.text));
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

}  // namespace
}  // namespace ae::engine::testing
