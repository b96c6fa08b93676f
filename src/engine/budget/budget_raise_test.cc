// Raises of a budget, and the budgets of forks.
#include <fmt/core.h>

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/budget/budget_fixture_test.h"
#include "engine/fixtures/job_fixture_test.h"
#include "engine/loop/loop_fixture_test.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

// The payload that raised the budget is erased from the log.
std::vector<Event> erased(const JobFixture& job) {
  std::vector<Event> log = job.log;
  each<DecisionRecorded>(log, [](DecisionRecorded& event) {
    if (event.state == "raised") event.payload = erased_value();
  });
  return log;
}

AE_TEST("budget/a raise can be erased, also if the budget is exceeded and raised again") {
  const std::string nodes =
      fmt::format("{},{},{}", model_call_node("a"), model_call_node("b", "['a']"),
                  model_call_node("c", "['b']"));
  JobFixture job = job_with_budget(nodes, "{'model_calls': 1, 'soft': 80}");
  job.claim().ok("a", used(5, 2));
  job.raise("{'model_calls': 2}").ok("b", used(5, 2));
  ASSERT_EQ(job.state.parked_until, "budget") << job.log_text();
  // The parked job is read again and continues as before.
  auto then = fold(job.state.job, erased(job), uncached_plan_source());
  ASSERT_TRUE(then) << then.error().message;
  EXPECT_EQ(then->parked_until, "budget");
  EXPECT_EQ(then->budget.spent.model_calls, 2u);
  job.log = erased(job);
  job.state = std::move(*then);
  job.raise("{'model_calls': 3}").ok("c", used(5, 2));
  ASSERT_FALSE(job.refused);
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(budget_of(job).spent.model_calls, 3u);
  const auto whole = fold(job.state.job, erased(job), uncached_plan_source());
  ASSERT_TRUE(whole) << whole.error().message;
  EXPECT_EQ(whole->budget.spent.tokens, 21u);
}

AE_TEST("budget/a raise of the time limit can be erased") {
  const std::string nodes =
      fmt::format("{},{},{}", model_call_node("a"), model_call_node("b", "['a']"),
                  model_call_node("c", "['b']"));
  JobFixture job = job_with_budget(nodes, "{'wall': '1h'}");
  job.claim().after(2h).ok("a", used(5, 2));
  ASSERT_EQ(job.state.parked_until, "budget") << job.log_text();
  job.raise("{'wall': '3h'}").after(2h).ok("b", used(5, 2));
  ASSERT_EQ(job.state.parked_until, "budget") << job.log_text();
  auto then = fold(job.state.job, erased(job), uncached_plan_source());
  ASSERT_TRUE(then) << then.error().message;
  job.log = erased(job);
  job.state = std::move(*then);
  job.raise("{'wall': '3h'}");
  EXPECT_EQ(job.refused, Code::input_invalid) << "the time has passed";
  job.raise("{'wall': '9h'}").ok("c", used(5, 2));
  ASSERT_FALSE(job.refused);
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_TRUE(fold(job.state.job, erased(job), uncached_plan_source()));
}

AE_TEST("budget/a limit can be raised early, and only above what is spent and set") {
  JobFixture job = job_with_budget(
      fmt::format("{},{}", model_call_node("a"), model_call_node("b", "['a']")), "{'tokens': 70}");
  job.claim();
  const std::size_t before = job.log.size();
  for (const char* wrong : {"{'tokens': 60}", "{'tool_calls': 5}", "{}", "{'wall': '1h'}"}) {
    job.raise(wrong);
    EXPECT_EQ(job.refused, Code::input_invalid) << wrong;
  }
  job.raise("{'tokens': 70}");
  EXPECT_EQ(job.reply["raised"], Value(false));
  EXPECT_EQ(job.log.size(), before);
  job.raise("{'tokens': 140}");
  EXPECT_EQ(job.reply["raised"], Value(true));
  const auto decision = job.last<DecisionRecorded>();
  EXPECT_EQ(decision.state, "raised");
  EXPECT_EQ(decision.by, "ann");
  EXPECT_EQ(decision.payload.value, json("{'tokens': 140}"));
  job.ok("a", used(50, 25)).ok("b", used(5, 2));
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  job.raise("{'tokens': 500}");
  EXPECT_EQ(job.refused, Code::job_terminal);
  expect_verified(job);
}

AE_TEST("budget/after an overrun only a raise that allows the next call is accepted") {
  JobFixture job = job_with_budget(
      fmt::format("{},{}", model_call_node("a"), model_call_node("b", "['a']")), "{'tokens': 70}");
  job.claim().ok("a", used(100, 0));
  ASSERT_EQ(job.status(), "parked");
  EXPECT_EQ(budget_of(job).spent.tokens, 100u);
  for (const char* low : {"{'tokens': 90}", "{'tokens': 100}", "{'tokens': 160}"}) {
    job.raise(low);
    EXPECT_EQ(job.refused, Code::input_invalid) << low;
    EXPECT_EQ(job.status(), "parked");
  }
  job.raise("{'tokens': 161}");
  EXPECT_EQ(job.tries("b"), 1u) << job.log_text();
  expect_verified(job);
}

AE_TEST("budget/a fork has the limits and the spending of its origin at that event") {
  JobFixture job =
      job_with_budget(fmt::format("{},{}", model_call_node("a"), model_call_node("b", "['a']")),
                      "{'tokens': 70, 'tool_calls': 5}");
  job.claim().ok("a", used(5, 5));
  ASSERT_EQ(job.state.parked_until, "budget");
  const auto before_raise = job.log.size();
  job.raise("{'tokens': 200}").ok("b", used(40, 2));
  ASSERT_EQ(job.status(), "completed");
  JobFixture early(*job.fork(2), "job-2");
  EXPECT_EQ(budget_of(early).spent.tokens, 0u);
  EXPECT_EQ(early.last<JobCreated>().budget.json().find("spent"), nullptr);
  JobFixture fork(*job.fork(before_raise), "job-3");
  EXPECT_EQ(budget_of(fork).limits.tokens, 70u) << "later raises do not apply";
  EXPECT_EQ(fork.last<JobCreated>().budget.json()["spent"],
            json("{'cost_micros': 15, 'model_calls': 1, 'tokens': 10}"));
  fork.claim();
  EXPECT_TRUE(fork.sent.empty()) << fork.log_text();
  EXPECT_EQ(fork.state.parked_until, "budget");
  expect_verified(fork);
  JobFixture late(*job.fork(job.log.size()), "job-4");
  EXPECT_EQ(budget_of(late).limits.tokens, 200u);
  EXPECT_EQ(budget_of(late).spent.tokens, 52u);
  EXPECT_EQ(budget_of(late).spent.model_calls, 2u);
  expect_verified(late.claim());
}

AE_TEST("budget/forks of forks keep the spent budget") {
  JobFixture job =
      job_with_budget(fmt::format("{},{},{}", calls("a"), calls("b", "['a']"), calls("c", "['b']")),
                      "{'tool_calls': 2}");
  job.claim().ok("a").ok("b");
  ASSERT_EQ(job.state.parked_until, "budget");
  JobFixture fork(*job.fork(job.log.size()), "job-2");
  fork.claim();
  EXPECT_EQ(fork.state.parked_until, "budget") << fork.log_text();
  JobFixture second(*fork.fork(fork.log.size()), "job-3");
  second.claim();
  EXPECT_EQ(second.state.parked_until, "budget");
  EXPECT_EQ(budget_of(second).spent.tool_calls, 2u);
  EXPECT_EQ(fork.sent.size() + second.sent.size(), 0u);
  second.raise("{'tool_calls': 3}").ok("c");
  EXPECT_EQ(second.status(), "completed") << second.log_text();
  expect_verified(second);
}

AE_TEST("budget/only a fork starts with a spent budget") {
  JobFixture job = job_with_budget(model_call_node("a"), "{'tokens': 70}");
  const auto created = job.last<JobCreated>();
  const auto accepts = [&](const Value& spent, bool forked) {
    State state;
    state.job = JobId("job-9");
    JobCreated event = created;
    event.budget.json() = created.budget.json().with("spent", spent);
    if (forked) event.forked_from = ForkOrigin{.job_id = "job-1", .seq = 2};
    return apply(state, event, Instant{}, uncached_plan_source()).has_value();
  };
  EXPECT_TRUE(accepts(json("{'tokens': 7}"), true));
  EXPECT_FALSE(accepts(json("{'tokens': 7}"), false));
  for (const char* wrong : {"7", "{'tokens': -1}", "{'tokens': 1.5}", "{'wall': '1h'}"}) {
    EXPECT_FALSE(accepts(json(wrong), true)) << wrong;
  }
  const auto compiles = [](std::string_view text) {
    return Plan::compile(graph(fmt::format("[{}]", calls("a")), budget(text))).has_value();
  };
  EXPECT_TRUE(compiles("{'tokens': 5}"));
  EXPECT_FALSE(compiles("{'tokens': 5, 'spent': {'tokens': 1}}"));
}

}  // namespace
}  // namespace ae::engine::testing
