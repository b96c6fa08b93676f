// Child jobs: a call creates one, waits for its end, and records it.
#include <fmt/core.h>

#include "engine/children/children.h"
#include "engine/children/request_children.h"
#include "engine/fixtures/child_fixture_test.h"
#include "engine/fixtures/dropped_steps_test.h"
#include "engine/state/checkpoint.h"
#include "inspect/verify.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

constexpr std::string_view kTools =
    "{'tools': {'research': {'child': {'name': 'research'}, 'dedupe_window': 'unlimited'},"
    " 'undone': {'child': {'name': 'research'}, 'compensate': {'tool': 'put'}},"
    " 'apart': {'child': {'name': 'research', 'detached': true}}}}";
constexpr std::string_view kOne = "[{'id':'a', 'kind':'tool', 'tool':'research'}]";

// A job with this plan, whose node `a` has created its child.
JobFixture parent(std::string_view nodes = kOne, std::string_view more = kTools) {
  JobFixture job(nodes, {.more = std::string(more)});
  job.claim();
  job.answer("a", child_created(job, "a"));
  return job;
}

void expect_verified_tree(const JobFixture& job) {
  VerifyInput input;
  input.job = job.state.job;
  input.events = job.log;
  input.effects = job.effects;
  const Verification proved = verify(input, uncached_plan_source());
  EXPECT_TRUE(proved.ok) << canonical(proved.to_json());
  expect_same_views(job.state.job, job.log, uncached_plan_source());
}

// The counts of `children` in its view.
Value counts_of(const JobFixture& job) { return job_view(job.state)["children"]["counts"]; }

AE_TEST("child/a parent waits for its child, and holds no attempt") {
  JobFixture job = parent();
  EXPECT_EQ(job.status(), "waiting");
  const auto wait = job.last<WaitOpened>();
  EXPECT_EQ(wait.wait_type, "job");
  EXPECT_EQ(wait.correlation_key,
            fmt::format("job/{}", child_job_id(job.state.job, job.step("a").id).text));
  EXPECT_FALSE(wait.expires_at.has_value());
  EXPECT_EQ(job.state.open_children, 1u);
  EXPECT_EQ(job.last<JobWaiting>().reason, "job_awaited");
  expect_verified_tree(job);
}

AE_TEST("child/the result of the child is the result of the call") {
  JobFixture job = parent();
  child_ends(job, "a", "{'status': 'completed', 'result': {'n': 7}}");
  EXPECT_FALSE(job.refused);
  EXPECT_EQ(job.status(), "running");
  ASSERT_EQ(job.sent.size(), 2u) << job.log_text();
  EXPECT_EQ(job.sent[0].external_key, job.sent[1].external_key);
  job.ok("a", "{'n': 7}");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.open_children, 0u);
  expect_verified_tree(job);
}

AE_TEST("child/an end that comes before the wait is kept for it") {
  JobFixture job(kOne, {.more = std::string(kTools)});
  job.claim();
  child_ends(job, "a", "{'status': 'completed', 'result': 1}");
  EXPECT_EQ(job.count(EventType::agent_message), 1u);
  child_ends(job, "a", "{'status': 'completed', 'result': 1}");
  EXPECT_EQ(job.count(EventType::agent_message), 1u) << "once";
  job.answer("a", child_created(job, "a"));
  EXPECT_EQ(job.count(EventType::job_waiting), 0u) << job.log_text();
  EXPECT_EQ(job.sent.size(), 2u);
  job.ok("a", "1");
  EXPECT_EQ(job.status(), "completed");
  expect_verified_tree(job);
}

AE_TEST("child/its end is applied once, and no client can answer its wait") {
  JobFixture job = parent();
  const std::string key = job.last<WaitOpened>().correlation_key;
  job.signal(key, "{'status': 'completed'}");
  EXPECT_EQ(job.refused, Code::wait_mismatch);
  child_ends(job, "a", "{'status': 'completed', 'result': 1}");
  const std::size_t before = job.log.size();
  child_ends(job, "a", "{'status': 'failed'}");
  EXPECT_FALSE(job.refused);
  EXPECT_EQ(job.log.size(), before);
  ControlRequest other = child_end(job, "a", "{'status': 'completed'}");
  other.id = "another-job";
  job.send_request(other);
  EXPECT_EQ(job.refused, Code::wait_mismatch);
}

AE_TEST("child/a detached child is not awaited") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'apart'}]", {.more = std::string(kTools)});
  job.claim().ok("a", "{'job': 'x'}");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(counts_of(job), json("{'detached': 1}"));
  EXPECT_EQ(job.count(EventType::wait_opened), 0u);
}

AE_TEST("child/a crash while the child is created repeats the call under the same key") {
  JobFixture job(kOne, {.more = std::string(kTools)});
  job.claim().crash();
  job.after(120s);
  ASSERT_EQ(job.sent.size(), 2u) << job.log_text();
  EXPECT_EQ(job.sent[0].external_key, job.sent[1].external_key);
  job.answer("a", child_created(job, "a"));
  EXPECT_EQ(job.status(), "waiting");
  expect_verified_tree(job);
}

AE_TEST("child/a cancelled parent cancels its child once and ends after it") {
  JobFixture job = parent();
  job.cancel("enough");
  EXPECT_EQ(job.count(EventType::child_cancel_requested), 1u) << job.log_text();
  EXPECT_EQ(job.status(), "waiting");
  job.cancel("again");
  EXPECT_EQ(job.count(EventType::child_cancel_requested), 1u);
  child_ends(job, "a", "{'status': 'cancelled', 'failure': {'code': 'cancelled'}}");
  ASSERT_EQ(job.sent.size(), 2u) << job.log_text();
  job.fails("a", "cancelled");
  EXPECT_EQ(job.status(), "cancelled") << job.log_text();
  expect_verified_tree(job);
}

AE_TEST("child/a child that completed before the cancel is compensated after it has ended") {
  JobFixture job = parent("[{'id':'a', 'kind':'tool', 'tool':'undone'}]");
  job.cancel();
  child_ends(job, "a", "{'status': 'completed', 'result': 1}");
  job.ok("a", "1");
  EXPECT_EQ(job.status(), "running") << job.log_text();
  EXPECT_EQ(job.sent.back().tool, "put");
  job.answer(job.state.calling.last(), {.kind = OutcomeKind::success});
  EXPECT_EQ(job.status(), "cancelled") << job.log_text();
  EXPECT_FALSE(job.last<JobCancelled>().compensated.is_null());
  expect_verified_tree(job);
}

AE_TEST("child/a child created while its parent is cancelled is cancelled, too") {
  JobFixture job(kOne, {.more = std::string(kTools)});
  job.claim().cancel();
  EXPECT_EQ(job.status(), "running");
  job.answer("a", child_created(job, "a"));
  EXPECT_EQ(job.count(EventType::child_cancel_requested), 1u) << job.log_text();
  EXPECT_EQ(job.status(), "waiting");
  child_ends(job, "a", "{'status': 'cancelled', 'failure': {'code': 'cancelled'}}");
  job.fails("a", "cancelled");
  EXPECT_EQ(job.status(), "cancelled");
  expect_verified_tree(job);
}

AE_TEST("child/the deadline of a waiting parent cancels its child") {
  JobFixture job(kOne, {.more = std::string(kTools), .deadline = 60s});
  job.claim();
  job.answer("a", child_created(job, "a"));
  job.after(61s);
  EXPECT_EQ(job.count(EventType::child_cancel_requested), 1u) << job.log_text();
  child_ends(job, "a", "{'status': 'cancelled', 'failure': {'code': 'cancelled'}}");
  job.fails("a", "cancelled");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "deadline_exceeded");
  expect_verified_tree(job);
}

AE_TEST("child/the terminal event names the unknown calls of children") {
  JobFixture job = parent();
  child_ends(job, "a",
             "{'status': 'completed', 'result': 1, 'in_doubt': [{'job_id': 'c1',"
             " 'idempotency_keys': ['k1', 'k2']}]}");
  job.ok("a", "1");
  EXPECT_EQ(job.last<JobCompleted>().children_in_doubt.json(),
            json("[{'idempotency_keys': ['k1', 'k2'], 'job_id': 'c1'}]"));
  EXPECT_TRUE(job.last<JobCompleted>().in_doubt.is_null());
  EXPECT_EQ(end_of_child(job.state).in_doubt->size(), 1u) << "and its own end, for its parent";
  expect_verified_tree(job);
}

AE_TEST("child/items of a map wait together, and a failed one cancels the others") {
  JobFixture job(
      "[{'id':'a', 'kind':'map', 'over':[1,2,3], 'max_parallel':8,"
      " 'do':{'tool':'research'}}]",
      {.more = std::string(kTools)});
  job.claim();
  ASSERT_EQ(job.sent.size(), 3u);
  for (const char* item : {"a/0", "a/1", "a/2"}) job.answer(item, child_created(job, item));
  EXPECT_EQ(job.status(), "waiting");
  EXPECT_EQ(job.state.open_children, 3u);
  child_ends(job, "a/1", "{'status': 'failed', 'failure': {'code': 'no_money'}}");
  job.fails("a/1", "no_money");
  EXPECT_EQ(job.count(EventType::child_cancel_requested), 2u) << job.log_text();
  EXPECT_EQ(job.status(), "waiting");
  for (const char* item : {"a/0", "a/2"}) {
    child_ends(job, item, "{'status': 'cancelled', 'failure': {'code': 'cancelled'}}");
    job.fails(item, "cancelled");
  }
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  EXPECT_EQ(job.state.error->code, "no_money");
  EXPECT_EQ(counts_of(job), json("{'cancelled': 2, 'failed': 1}"));
  EXPECT_EQ(job.state.child_calls.size(), 3u);
  expect_verified_tree(job);
}

AE_TEST("child/a failed child of an item whose failure is allowed is listed, once") {
  JobFixture job(
      "[{'id':'a', 'kind':'map', 'over':[1,2], 'max_parallel':8, 'on_item_error':'collect',"
      " 'do':{'tool':'research'}}]",
      {.more = std::string(kTools)});
  job.claim();
  EXPECT_TRUE(job_view(job.state)["children"].is_null());
  for (const char* item : {"a/0", "a/1"}) job.answer(item, child_created(job, item));
  EXPECT_EQ(counts_of(job), json("{'open': 2}"));
  child_ends(job, "a/1", "{'status': 'failed', 'failure': {'code': 'no_money'}}");
  EXPECT_EQ(counts_of(job), json("{'failed': 1, 'open': 1}"));
  EXPECT_EQ(job_view(job.state)["children"]["open"].size(), 1u);
  job.fails("a/1", "no_money");
  child_ends(job, "a/0", "{'status': 'completed', 'result': 1}");
  job.ok("a/0", "1");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(counts_of(job), json("{'completed': 1, 'failed': 1}"));
  EXPECT_EQ(job.state.child_calls.size(), 2u);
  expect_verified_tree(job);
}

AE_TEST("child/what is left of the budget is reserved, and what the child used is charged") {
  JobFixture job = parent(kOne,
                          "{'budget': {'tokens': 100, 'tool_calls': 5}, 'tools': {'research':"
                          " {'child': {'name': 'research'}}}}");
  EXPECT_EQ(job.last<ToolInvocationStarted>().reserved.json(),
            json("{'input_tokens': 100, 'output_tokens': 0, 'tool_calls': 5}"));
  EXPECT_EQ(job.state.budget.reserved.tokens, 100u);
  child_ends(job, "a",
             "{'status': 'completed', 'result': 1, 'child_use': {'tokens': 30, 'tool_calls': 2}}");
  EXPECT_EQ(job.state.budget.reserved.tokens, 0u);
  EXPECT_EQ(job.state.budget.spent.tokens, 30u);
  EXPECT_EQ(job.state.budget.spent.tool_calls, 3u) << "and the call itself";
  job.claim().ok("a", "1");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.budget.spent.tool_calls, 3u);
  expect_verified_tree(job);
}

AE_TEST("child/a second child waits for what the first one returns of the budget") {
  JobFixture job = parent(
      "[{'id':'a', 'kind':'tool', 'tool':'research'}, {'id':'b', 'kind':'tool', "
      "'tool':'research'}]",
      "{'budget': {'tokens': 100}, 'tools': {'research': {'child': {'name': 'research'}}}}");
  EXPECT_EQ(job.sent.size(), 1u);
  EXPECT_EQ(job.status(), "waiting") << "not parked for its budget";
  child_ends(job, "a", "{'status': 'completed', 'result': 1, 'child_use': {'tokens': 30}}");
  job.ok("a", "1");
  ASSERT_EQ(job.sent.size(), 3u) << job.log_text();
  EXPECT_EQ(job.state.budget.reserved.tokens, 70u);
  expect_verified_tree(job);
}

AE_TEST("child/a retry that waits for what a child returns of the budget does not keep the lease") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'research'}, {'id':'b', 'kind':'llm',"
      " 'tool':'model:main', 'args':{'model':'small', 'max_tokens':50, 'messages':[{'role':'user', "
      "'content':'x'}]}}]",
      {.more = "{'budget': {'model_calls': 3}, 'tools': {'research': {'child': {'name':"
               " 'research', 'budget': {'model_calls': 2}}}, 'model:main': {'effect': 'read',"
               " 'provider': 'openai', 'retry': {'max_attempts': 3, 'retry_on': ['timeout']}}}}"});
  job.claim();
  ASSERT_EQ(job.sent.size(), 2u) << job.log_text();
  job.answer("a", child_created(job, "a"));
  job.times_out("b").after(20s);
  EXPECT_EQ(job.status(), "waiting") << job.log_text();
  child_ends(job, "a", "{'status': 'completed', 'result': 1, 'child_use': {'model_calls': 1}}");
  job.ok("a", "1");
  EXPECT_EQ(job.tries("b"), 2u) << job.log_text();
  expect_verified_tree(job);
}

AE_TEST("child/a creation with an unknown outcome is repeated until the child is found") {
  JobFixture job(kOne, {.more = std::string(kTools)});
  job.claim();
  for (std::size_t lost = 1; lost < 6; ++lost) {
    ASSERT_EQ(job.sent.size(), lost) << job.log_text();
    job.answer("a", {.kind = OutcomeKind::unknown, .error_code = "lost"}).after(120s);
    EXPECT_NE(job.status(), "parked") << job.log_text();
  }
  job.answer("a", child_created(job, "a"));
  EXPECT_EQ(job.status(), "waiting");
  expect_verified_tree(job);
}

AE_TEST("child/the failure of a child is final, whatever its code, also after an unknown outcome") {
  for (const std::string_view code : {"connect", "not_sent", "timeout", "own_code"}) {
    JobFixture job(kOne, {.more = "{'tools': {'research': {'child': {'name': 'research'}, 'retry':"
                                  " {'max_attempts': 3, 'retry_on': ['connect', 'timeout']}}}}"});
    job.claim().answer("a", child_created(job, "a"));
    child_ends(job, "a", fmt::format("{{'status': 'failed', 'failure': {{'code': '{}'}}}}", code));
    job.answer("a", {.kind = OutcomeKind::unknown, .error_code = "lost"}).after(120s);
    ASSERT_EQ(job.sent.size(), 3u) << job.log_text();
    job.answer("a", {.kind = OutcomeKind::failure,
                     .definite = true,
                     .error_code = std::string(code),
                     .external_id = "c"});
    job.after(120s);
    ASSERT_EQ(job.status(), "failed") << job.log_text();
    EXPECT_EQ(job.state.error->code, code);
    expect_verified_tree(job);
  }
}

AE_TEST("child/a cancelled job awaits a child that may exist, also if its effects stay") {
  for (const bool compensate : {true, false}) {
    JobFixture job(kOne, {.more = std::string(kTools)});
    job.claim().answer("a", {.kind = OutcomeKind::unknown, .error_code = "lost"});
    job.send_request({.id = "c", .body = CancelRequest{.compensate = compensate}});
    job.after(120s);
    ASSERT_EQ(job.sent.size(), 2u) << job.log_text();
    job.answer("a", child_created(job, "a"));
    EXPECT_EQ(job.count(EventType::child_cancel_requested), 1u) << job.log_text();
    EXPECT_EQ(job.status(), "waiting");
    child_ends(job, "a", "{'status': 'cancelled', 'failure': {'code': 'cancelled'}}");
    job.fails("a", "cancelled");
    EXPECT_EQ(job.status(), "cancelled") << job.log_text();
    EXPECT_TRUE(job.last<JobCancelled>().in_doubt.is_null());
    expect_verified_tree(job);
  }
}

AE_TEST("child/a paused parent records the end of its child, and acts on it when it is resumed") {
  JobFixture job = parent();
  job.pause();
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.count(EventType::child_cancel_requested), 0u);
  child_ends(job, "a", "{'status': 'completed', 'result': 1}");
  EXPECT_EQ(job.status(), "parked") << job.log_text();
  EXPECT_EQ(job.sent.size(), 1u);
  job.resume().claim().ok("a", "1");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  expect_verified_tree(job);
}

AE_TEST("child/a checkpoint of a waiting parent restores it") {
  const JobFixture job = parent();
  const std::string bytes = checkpoint(job.state, Hash{});
  auto restored = restore(job.state.job, job.state.seq, bytes, uncached_plan_source());
  ASSERT_TRUE(restored) << restored.error().message;
  EXPECT_EQ(restored->state.open_children, 1u);
  EXPECT_EQ(checkpoint(restored->state, Hash{}), bytes);
}

}  // namespace
}  // namespace ae::engine::testing
