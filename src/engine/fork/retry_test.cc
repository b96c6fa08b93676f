// Retries of failed jobs: forks at the last event, which keep everything that was committed.
#include <chrono>
#include <optional>
#include <string_view>

#include "engine/fixtures/job_fixture_test.h"
#include "engine/fork/fork_fixture_test.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

AE_TEST("fork/a retry starts at the last event of a failed job and of no other job") {
  JobFixture origin(kChain);
  origin.claim().ok("a", "{'id':7}").fails("b");
  EXPECT_EQ(*retry_point(origin.state, origin.log), origin.log.size());
  JobFixture running(kChain);
  running.claim();
  EXPECT_EQ(retry_point(running.state, running.log).error().code, Code::input_invalid);
  JobFixture late(kChain, {.deadline = 10s});
  late.claim().ok("a", "{'id':7}").after(60s).ok("b", "1");
  ASSERT_EQ(late.status(), "failed");
  EXPECT_EQ(*retry_point(late.state, late.log), late.log.size());
}

// a, then two branches: b alone, and c before d.
constexpr std::string_view kBranches =
    "[{'id':'a','kind':'tool','tool':'put'},"
    "{'id':'b','kind':'tool','tool':'pay','needs':['a']},"
    "{'id':'c','kind':'tool','tool':'pay','args':{'n':1},'needs':['a']},"
    "{'id':'d','kind':'tool','tool':'pay','args':{'c':'${ .steps.c }'},'needs':['c']}]";

AE_TEST("fork/a retry keeps what a parallel branch committed before or after the failure") {
  for (const bool first : {true, false}) {
    JobFixture origin(kBranches);
    origin.claim().ok("a");
    if (first) origin.ok("c", "'C'");
    origin.fails("b");
    if (first) origin.ok("d", "'D'");
    if (!first) origin.ok("c", "'C'");
    ASSERT_EQ(origin.status(), "failed") << origin.log_text();
    const Fork fork = retried(origin);
    EXPECT_EQ(repeated_effects(fork), "");
    JobFixture job(fork, "job-2");
    EXPECT_EQ(job.step("c").id, origin.step("c").id);
    job.claim();
    ASSERT_EQ(job.sent.size(), first ? 1u : 2u) << job.log_text();
    EXPECT_EQ(job.sent[0].step, job.step("b").id);
    EXPECT_NE(job.sent[0].key, origin.sent[1].key);
    if (!first) {
      EXPECT_EQ(job.sent[1].arguments, json("{'c':'C'}"));
      job.ok("d", "'D'");
    }
    job.ok("b", "'B'");
    EXPECT_EQ(job.status(), "completed");
    EXPECT_EQ(job.state.result, json("{'b':'B','d':'D'}"));
    expect_fork_verifies(job);
  }
}

AE_TEST("fork/of a parallel branch a retry lists only an unknown call") {
  JobFixture origin(kBranches);
  origin.claim().ok("a").fails("b").times_out("c");
  ASSERT_EQ(origin.status(), "failed") << origin.log_text();
  EXPECT_EQ(repeated_effects(retried(origin)), "c in_doubt ");
}

AE_TEST("fork/a retry keeps the committed items of a failed map and of a parallel one") {
  constexpr std::string_view kMaps =
      "[{'id':'m','kind':'map','over':'${ .input.list }','max_parallel':2,"
      "'do':{'tool':'pay','args':{'v':'${ .item }'}}},"
      "{'id':'n','kind':'map','over':'${ .input.list }','max_parallel':2,"
      "'do':{'tool':'pay','args':{'w':'${ .item }'}}}]";
  JobFixture origin(kMaps, {.input = "{'list':[10,11,12]}"});
  origin.claim().fails("m/0").ok("m/1", "'B'").ok("n/0", "'X'").ok("n/1", "'Y'");
  ASSERT_EQ(origin.status(), "failed") << origin.log_text();
  const Fork fork = retried(origin);
  EXPECT_EQ(repeated_effects(fork), "");
  JobFixture job(fork, "job-2");
  job.claim();
  job.ok("m/0", "'A'").ok("m/2", "'C'").ok("n/2", "'Z'");
  EXPECT_EQ(job.sent.size(), 3u) << job.log_text();
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.state.result, json("{'m':['A','B','C'],'n':['X','Y','Z']}"));
  expect_fork_verifies(job);
}

AE_TEST("fork/a retry opens a wait again that the failure of its origin closed") {
  JobFixture origin(
      "[{'id':'b','kind':'tool','tool':'pay'},"
      "{'id':'w','kind':'wait','wait':{'type':'signal','key':'k'}}]");
  origin.claim().fails("b");
  ASSERT_EQ(origin.status(), "failed") << origin.log_text();
  JobFixture job(retried(origin), "job-2");
  job.claim().ok("b");
  EXPECT_EQ(job.status(), "waiting");
  job.signal("k", "1");
  EXPECT_EQ(job.status(), "completed");
  expect_fork_verifies(job);
}

AE_TEST("fork/a retry requests an approval again that the failure of its origin closed") {
  JobFixture origin(
      "[{'id':'b','kind':'tool','tool':'pay'},{'id':'r','kind':'tool','tool':'refund'}]",
      {.more = "{'tools': {'refund': {'effect': 'idempotent', 'approval': 'required'}}}"});
  origin.claim().fails("b");
  ASSERT_EQ(origin.status(), "failed") << origin.log_text();
  JobFixture job(retried(origin), "job-2");
  job.claim().ok("b");
  EXPECT_EQ(job.status(), "waiting");
  ASSERT_EQ(job.sent.size(), 1u);
  expect_fork_verifies(job);
}

AE_TEST("fork/a retry counts all spending of its origin, also on the failed node") {
  JobFixture origin(kChain, {.more = "{'budget': {'tool_calls': 9}}"});
  origin.claim().ok("a", "{'id':7}").fails("b");
  EXPECT_EQ(retried(origin).spent.tool_calls, 2u);
}

constexpr std::string_view kRiskThenPut =
    "[{'id':'a','kind':'tool','tool':'risk'},"
    "{'id':'b','kind':'tool','tool':'put','args':{'n':'${ .steps.a.id }'},'needs':['a']}]";

ControlRequest happened(const JobFixture& origin, std::string_view result) {
  return {
      .by = "ann",
      .body = ResolveRequest{
          .idempotency_key = origin.sent[0].key, .resolution = "happened", .result = json(result)}};
}

AE_TEST("fork/a retry repeats a call that was resolved as not_happened after the end") {
  JobFixture origin(kRiskThenPut);
  origin.claim().unknown("a");
  ASSERT_EQ(repeated_effects(retried(origin)), "a in_doubt ");
  origin.after(2min).resolve("a", "not_happened");
  ASSERT_EQ(origin.refused, std::nullopt);
  const Fork fork = retried(origin);
  EXPECT_EQ(repeated_effects(fork), "");
  JobFixture job(fork, "job-2");
  job.claim().ok("a", "{'id':7}").ok("b");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  expect_fork_verifies(job);
}

AE_TEST("fork/a retry keeps the result that an operator gave after the end") {
  JobFixture origin(kRiskThenPut);
  origin.claim().unknown("a").send_request(happened(origin, "{'id':7}"));
  ASSERT_EQ(origin.refused, std::nullopt);
  const Fork fork = retried(origin);
  EXPECT_EQ(repeated_effects(fork), "");
  JobFixture job(fork, "job-2");
  job.claim();
  ASSERT_EQ(job.sent.size(), 1u) << job.log_text();
  EXPECT_EQ(job.sent[0].arguments, json("{'n':7}"));
  job.ok("b");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job_view(job.state)["in_doubt"].size(), 0u);
  expect_fork_verifies(job);
  EXPECT_EQ(repeated_effects(*origin.fork(2)), "a committed ") << "it is repeated";
}

AE_TEST("fork/a retry does not treat a late result that was not stored as null") {
  JobFixture origin(kRiskThenPut);
  origin.claim().unknown("a");
  origin.state.blind_erased = true;  // an erased job stores no new values
  origin.store_effect("a", {.kind = OutcomeKind::success, .result = json("{'id':7}")});
  ASSERT_EQ(origin.count(EventType::outcome_noted), 1u);
  EXPECT_EQ(repeated_effects(retried(origin)), "a committed ");
}

AE_TEST("fork/a retry keeps an operator's result of a call that violated its schema") {
  JobFixture origin(kRiskThenPut,
                    {.more = "{'tools':{'risk':{'effect':'at_most_once','on_in_doubt':"
                             "'fail','result_schema':{'required':['charge']}}}}"});
  origin.claim().ok("a", "{'id':7}");
  ASSERT_EQ(origin.status(), "failed");
  ASSERT_EQ(repeated_effects(retried(origin)), "a committed ");
  EXPECT_EQ(origin.resolve("a", "not_happened").refused, Code::input_invalid);
  origin.send_request(happened(origin, "{'id':7}"));
  ASSERT_EQ(origin.refused, std::nullopt);
  EXPECT_EQ(origin.status(), "failed");
  expect_fork_verifies(origin);
  const Fork fork = retried(origin);
  EXPECT_EQ(repeated_effects(fork), "");
  JobFixture job(fork, "job-2");
  job.claim();
  ASSERT_EQ(job.sent.size(), 1u) << job.log_text();
  EXPECT_EQ(job.sent[0].arguments, json("{'n':7}"));
  job.ok("b");
  EXPECT_EQ(job.status(), "completed");
  expect_fork_verifies(job);
}

}  // namespace
}  // namespace ae::engine::testing
