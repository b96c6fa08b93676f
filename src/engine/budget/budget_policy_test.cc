// Budgets with policies and approvals: which calls need approval, and when the budget is checked.
#include "engine/loop/loop_fixture_test.h"

namespace ae::engine::testing {
namespace {

constexpr std::string_view kBuy =
    "[{'id': 'a', 'kind': 'tool', 'tool': 'buy', 'args': {'n': 250}}]";
constexpr std::string_view kAsk = "{'action': 'require_approval'}";

// A job with this budget, whose tool `buy` has this rule.
JobFixture job_with_rule(std::string_view limits, std::string_view rule,
                         std::string_view nodes = kBuy) {
  const std::string more = "{'budget': " + std::string(limits) + ", 'tools': {'buy': {'rules': [" +
                           std::string(rule) + "]}}}";
  return JobFixture(nodes, {.more = more});
}

ToolInvocationStarted started_call(const JobFixture& job) {
  return job.last<ToolInvocationStarted>();
}

AE_TEST("budget/a call denied by a policy needs no budget") {
  JobFixture job = job_with_rule("{'tool_calls': 0}", "{'action': 'deny'}");
  job.claim();
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  EXPECT_EQ(job.state.error->code, "denied");
  EXPECT_EQ(job.state.budget.spent.tool_calls, 0u);
  expect_verified(job);
}

AE_TEST("budget/approval is requested first, and the approved call waits for the budget") {
  JobFixture job = job_with_rule("{'tool_calls': 0}", kAsk);
  job.claim();
  EXPECT_EQ(job.status(), "waiting") << job.log_text();
  job.approve("a");
  EXPECT_EQ(job.state.parked_until, "budget") << job.log_text();
  EXPECT_TRUE(job.sent.empty());
  job.reload().raise("{'tool_calls': 1}");
  ASSERT_EQ(job.sent.size(), 1u) << job.log_text();
  EXPECT_EQ(job.count(EventType::wait_opened), 1u);
  EXPECT_FALSE(or_empty(started_call(job).approval_id).empty());
  job.ok("a");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.budget.spent.tool_calls, 1u);
  expect_verified(job);
}

AE_TEST("budget/edited arguments wait for the budget and are sent unchanged") {
  JobFixture job = job_with_rule("{'tool_calls': 0}", kAsk);
  job.claim().send_request({.by = "ann",
                            .body = ApproveRequest{.approval_id = job.open_request_id("a"),
                                                   .decision = "approve",
                                                   .arguments = json("{'n': 100}")}});
  ASSERT_FALSE(job.refused);
  EXPECT_EQ(job.state.parked_until, "budget") << job.log_text();
  job.raise("{'tool_calls': 1}");
  ASSERT_EQ(job.sent.size(), 1u) << job.log_text();
  EXPECT_EQ(job.sent[0].arguments, json("{'n': 100}"));
  job.crash();  // the lost try and the next one are one call
  EXPECT_EQ(job.sent.back().arguments, json("{'n': 100}"));
  job.ok("a");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.budget.spent.tool_calls, 1u);
  EXPECT_EQ(job.state.budget.reserved.tool_calls, 0u);
  expect_verified(job);
}

AE_TEST("budget/a rejected call needs no budget") {
  JobFixture job = job_with_rule("{'tool_calls': 0}", kAsk);
  job.claim().reject("a");
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  EXPECT_EQ(job.state.error->code, "rejected");
  EXPECT_EQ(job.count(EventType::job_parked), 0u);
  expect_verified(job);
}

AE_TEST("budget/an approval during a budget park is accepted and does not end the park") {
  JobFixture job = job_with_rule("{'tool_calls': 0}", kAsk,
                                 "[{'id': 'a', 'kind': 'tool', 'tool': 'put'},"
                                 " {'id': 'b', 'kind': 'tool', 'tool': 'buy', 'args': {'n': 1}}]");
  job.claim();
  ASSERT_EQ(job.state.parked_until, "budget") << job.log_text();
  ASSERT_FALSE(job.open_request_id("b").empty());
  job.approve("b");
  EXPECT_FALSE(job.refused);
  EXPECT_EQ(job.state.parked_until, "budget") << job.log_text();
  EXPECT_TRUE(job.sent.empty());
  job.raise("{'tool_calls': 1}");
  EXPECT_EQ(job.sent.size(), 1u) << job.log_text();
  job.ok(job.sent[0].tool == "put" ? "a" : "b");
  EXPECT_EQ(job.state.parked_until, "budget") << job.log_text();
  job.raise("{'tool_calls': 2}").ok(job.sent[0].tool == "put" ? "b" : "a");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  expect_verified(job);
}

AE_TEST("budget/an approval that expired during a budget park is requested again") {
  JobFixture job =
      job_with_rule("{'tool_calls': 0}", "{'action': 'require_approval', 'expires': '5m'}");
  job.claim().approve("a");
  ASSERT_EQ(job.state.parked_until, "budget") << job.log_text();
  job.after(10min).raise("{'tool_calls': 1}");
  EXPECT_TRUE(job.sent.empty()) << job.log_text();
  EXPECT_EQ(job.status(), "waiting");
  job.approve("a").ok("a");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  expect_verified(job);
}

AE_TEST("budget/a call in a loop waits for its approval, then for the budget") {
  const std::string more = "{'budget': {'tool_calls': 1}, " + std::string(kTools.substr(1));
  JobFixture job = loop_job("", {.more = more});
  job.claim().ok("chat/0", tool_calls_answer({{"x", "refund"}, {"y", "look"}}));
  EXPECT_EQ(job.open_request_id("chat/0/0").empty(), false) << job.log_text();
  job.ok("chat/0/1", "1").approve("chat/0/0");
  EXPECT_EQ(job.state.parked_until, "budget") << job.log_text();
  job.raise("{'tool_calls': 2}").ok("chat/0/0", "2").ok("chat/1", text_answer("Done"));
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.state.budget.spent.tool_calls, 2u);
  expect_verified(job);
}

}  // namespace
}  // namespace ae::engine::testing
