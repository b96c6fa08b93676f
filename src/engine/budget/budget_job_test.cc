// A job with a budget reserves before each call, is charged after it, and parks at its limits.
#include <fmt/core.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/budget/budget_fixture_test.h"
#include "engine/fixtures/job_fixture_test.h"
#include "engine/loop/loop_fixture_test.h"
#include "engine/state/checkpoint.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

AE_TEST("budget/a call reserves its maximum use and is charged its actual use") {
  JobFixture job = job_with_budget(model_call_node("a"), "{'tokens': 100}");
  job.claim();
  EXPECT_EQ(job.last<ToolInvocationStarted>().reserved.json(),
            json("{'cost_micros': 111, 'input_tokens': 11, 'output_tokens': 50}"));
  EXPECT_EQ(budget_of(job).reserved.tokens, kOne);
  EXPECT_EQ(budget_of(job).spent.tokens, 0u);
  job.ok("a", used(5, 2));
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(budget_of(job).reserved.tokens, 0u);
  EXPECT_EQ(budget_of(job).spent.tokens, 7u);
  EXPECT_EQ(budget_of(job).spent.cost_micros, 9u);
  EXPECT_EQ(budget_of(job).spent.model_calls, 1u);
  expect_verified(job);
}

AE_TEST("budget/an answer with incomplete usage is charged at least its reservation") {
  constexpr std::uint64_t kMax = (std::uint64_t{1} << 53) - 1;
  const struct {
    const char* usage;
    std::uint64_t tokens, cost;
  } cases[] = {
      {"{'output_tokens': 2, 'total_tokens': 2, 'incomplete': true}", kOne, 111},
      {"{'output_tokens': 90, 'total_tokens': 90, 'incomplete': true}", 90, 111},
      {"{'cached_tokens': 5, 'incomplete': true}", kOne, 111},
      {"{'total_tokens': 9007199254740991, 'incomplete': true}", kMax, 111},
      {"{'input_tokens': 5, 'output_tokens': 2, 'total_tokens': 7}", 7, 9},
      {"{'input_tokens': 0, 'output_tokens': 0, 'total_tokens': 0}", kOne, 0},
      // Older logs: the charge that they recorded for incomplete usage stays.
      {"{'output_tokens': 2}", 2, 111},
      {"{'input_tokens': 90, 'output_tokens': 20, 'total_tokens': 5}", 5, 130},
      {"{'input_tokens': 90, 'output_tokens': 20, 'total_tokens': 0}", kOne, 130},
  };
  for (const auto& one : cases) {
    JobFixture job = job_with_budget(model_call_node("a"), "{'tokens': 100}");
    job.claim().ok("a", fmt::format("{{'text': 'ok', 'usage': {}}}", one.usage));
    EXPECT_EQ(budget_of(job).spent.tokens, one.tokens) << one.usage;
    EXPECT_EQ(budget_of(job).spent.cost_micros, one.cost) << one.usage;
    EXPECT_EQ(budget_of(job).reserved.tokens, 0u) << one.usage;
    expect_verified(job);
  }
}

AE_TEST("budget/a job without a budget reserves nothing and records no budget") {
  JobFixture job(fmt::format("[{}]", calls("a")));
  job.claim();
  EXPECT_TRUE(job.last<ToolInvocationStarted>().reserved.is_null());
  EXPECT_TRUE(job.last<JobCreated>().budget.is_null());
  EXPECT_TRUE(job_view(job.state)["budget"].is_null());
}

AE_TEST("budget/each limit parks the job before the first call that exceeds it") {
  struct Case {
    std::string_view limits, limit;
  };
  const std::string nodes = fmt::format("{},{},{},{}", model_call_node("a"), calls("b", "['a']"),
                                        model_call_node("c", "['b']"), calls("d", "['c']"));
  for (const Case& one : {Case{"{'tokens': 67}", "tokens"},
                          {"{'cost_micros': 119}", "cost"},
                          {"{'model_calls': 1}", "model_calls"},
                          {"{'tool_calls': 1}", "tool_calls"}}) {
    JobFixture job = job_with_budget(nodes, one.limits);
    job.claim().ok("a", used(5, 2)).ok("b");
    if (one.limit == "tool_calls") job.ok("c", used(5, 2));
    EXPECT_EQ(job.status(), "parked") << one.limits << "\n" << job.log_text();
    EXPECT_EQ(job.state.parked_until, "budget");
    EXPECT_EQ(job.state.parked_reason, "budget_exceeded");
    EXPECT_EQ(job.sent.size(), one.limit == "tool_calls" ? 3u : 2u) << one.limits;
    const auto decision = job.last<DecisionRecorded>();
    EXPECT_EQ(decision.kind, "budget");
    EXPECT_EQ(decision.state, "exceeded");
    EXPECT_EQ(decision.payload.value.text("limit"), one.limit);
    const Value raise = job_view(job.state)["parked"]["action"];
    EXPECT_EQ(raise["act"], "budget");
    ASSERT_EQ(raise["arguments"]["limits"].size(), 1u) << canonical(raise);
    EXPECT_EQ(raise["arguments"]["limits"].items()[0]["limit"], Value(one.limit));
    expect_verified(job);
  }
}

AE_TEST("budget/the decision that parks a job lists every limit that the next call exceeds") {
  JobFixture job =
      job_with_budget(model_call_node("a"), "{'tokens': 10, 'cost_micros': 20, 'model_calls': 1}");
  job.claim();
  ASSERT_EQ(job.state.parked_until, "budget") << job.log_text();
  // The state just before it parked.
  job.state.status = JobStatus::running;
  job.state.budget.exceeded.reset();
  const Instant now = job.state.updated_at;
  const Decision decision = decide(job.state, {.now = now, .lease_until = now + 60s});
  ASSERT_EQ(decision.exceeded.size(), 2u);
  EXPECT_EQ(decision.exceeded[0].limit, Limit::tokens);
  EXPECT_EQ(decision.exceeded[0].requested, kOne);
  EXPECT_EQ(decision.exceeded[1].limit, Limit::cost);
  EXPECT_EQ(decision.exceeded[1].requested, 111u);
}

AE_TEST("budget/parallel calls reserve together, and the next starts when the budget allows") {
  JobFixture job = job_with_budget(fmt::format("{},{}", model_call_node("a"), model_call_node("b")),
                                   "{'tokens': 100}");
  job.claim();
  EXPECT_EQ(job.sent.size(), 1u);
  EXPECT_EQ(job.status(), "running");
  job.ok("a", used(5, 2));
  EXPECT_EQ(job.sent.size(), 2u) << job.log_text();
  job.ok("b", used(5, 2));
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(budget_of(job).spent.tokens, 14u);
  expect_verified(job);
}

AE_TEST("budget/calls in flight are awaited and recorded before the job parks") {
  JobFixture job = job_with_budget(
      fmt::format("{},{},{}", model_call_node("a"), model_call_node("b"), calls("c", "['a']")),
      "{'model_calls': 1}");
  job.claim();
  EXPECT_EQ(job.sent.size(), 1u);
  EXPECT_EQ(job.status(), "running");
  job.ok("a", used(5, 2));
  EXPECT_EQ(job.state.parked_until, "budget") << job.log_text();
  EXPECT_TRUE(job.state.calling.empty());
  job.raise("{'model_calls': 2}");
  EXPECT_FALSE(job.refused);
  job.ok("b", used(5, 2)).ok("c");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  expect_verified(job);
}

AE_TEST("budget/a call that only needs a resend is sent before the job parks") {
  for (const bool long_pause : {false, true}) {
    const std::string more =
        "{'budget': {'tool_calls': 1}, 'tools': {'put': {'retry': {'max_attempts': 3,"
        " 'retry_on': ['timeout'], 'initial_backoff': '" +
        std::string(long_pause ? "8s" : "200ms") + "'}}}}";
    JobFixture job(fmt::format("[{},{}]", calls("a"), calls("b")), {.more = more});
    job.claim();
    ASSERT_EQ(job.sent.size(), 1u);
    job.times_out("a");
    EXPECT_NE(job.status(), "parked") << job.log_text();
    job.after(20s);
    ASSERT_EQ(job.tries("a"), 2u) << job.log_text();
    job.ok("a");
    EXPECT_EQ(job.state.parked_until, "budget") << job.log_text();
    EXPECT_FALSE(job.state.may_have_happened(job.step("a")));
    expect_verified(job);
  }
}

AE_TEST("budget/a model's retry that the budget does not allow parks the job") {
  JobFixture job = job_with_budget(model_call_node("a"), "{'model_calls': 1}");
  job.claim().times_out("a");
  ASSERT_EQ(job.status(), "running") << job.log_text();
  job.after(20s);
  EXPECT_EQ(job.state.parked_until, "budget") << job.log_text();
  EXPECT_EQ(job.tries("a"), 1u);
  expect_verified(job);
}

AE_TEST("budget/a log whose reservations overflow is rejected as log_corrupt") {
  std::string nodes;
  for (int i = 0; i < 8; ++i) nodes += (i ? "," : "") + model_call_node(fmt::format("n{}", i));
  JobFixture job = job_with_budget(nodes, "{'model_calls': 100}");
  job.claim();
  ASSERT_EQ(job.sent.size(), 8u);
  job.ok("n0", used(5, 2));
  std::vector<Event> forged = job.log;
  each<ToolInvocationStarted>(forged, [](ToolInvocationStarted& call) {
    constexpr auto kMax = static_cast<std::int64_t>(kBudgetMax);
    call.reserved = TokenReservation{.input_tokens = kMax, .output_tokens = kMax};
  });
  const auto folded = fold(job.state.job, forged, uncached_plan_source());
  ASSERT_FALSE(folded);
  EXPECT_EQ(folded.error().code, Code::log_corrupt) << folded.error().message;
}

AE_TEST("budget/a map item that exceeds the budget is not started") {
  JobFixture job = job_with_budget(
      "{'id': 'm', 'kind': 'map', 'over': [1, 2, 3], 'max_parallel': 8, 'do': {'tool': 'put'}}",
      "{'tool_calls': 2}");
  job.claim();
  EXPECT_EQ(job.sent.size(), 2u);
  job.ok("m/0").ok("m/1");
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.count(EventType::node_started), 3u);  // the map and two items
  job.raise("{'tool_calls': 3}").ok("m/2");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  expect_verified(job);
}

AE_TEST("budget/a model call repeated after a lost answer is charged its first reservation") {
  JobFixture job = job_with_budget(model_call_node("a"), "{'tokens': 130}");
  job.claim().crash();
  EXPECT_EQ(job.tries("a"), 2u) << job.log_text();
  EXPECT_EQ(budget_of(job).spent.tokens, kOne);
  EXPECT_EQ(budget_of(job).reserved.tokens, kOne);
  job.ok("a", used(5, 2));
  EXPECT_EQ(budget_of(job).spent.tokens, kOne + 7);
  EXPECT_EQ(budget_of(job).spent.model_calls, 2u);
  expect_verified(job);
}

AE_TEST("budget/a lost call that the budget does not allow to repeat parks until a raise") {
  JobFixture job = job_with_budget(model_call_node("a"), "{'tokens': 100}");
  job.claim().crash();
  EXPECT_EQ(job.status(), "parked") << job.log_text();
  EXPECT_EQ(job.tries("a"), 1u);
  job.raise("{'tokens': 200}");
  EXPECT_EQ(job.tries("a"), 2u) << job.log_text();
  job.ok("a", used(5, 2));
  EXPECT_EQ(job.status(), "completed");
  expect_verified(job);
}

AE_TEST("budget/a job parked for its budget with a lost call ends by cancel and by deadline") {
  JobFixture job = job_with_budget(model_call_node("a"), "{'tokens': 100}");
  job.claim().crash();
  ASSERT_EQ(job.status(), "parked");
  job.cancel("enough");
  EXPECT_EQ(job.status(), "cancelled") << job.log_text();
  expect_verified(job);
  const std::string more = budget("{'model_calls': 0}");
  JobFixture late(fmt::format("[{}]", model_call_node("a")), {.more = more, .deadline = 60s});
  late.claim();
  ASSERT_EQ(late.state.parked_until, "budget");
  late.after(61s);
  EXPECT_EQ(late.status(), "failed") << late.log_text();
  EXPECT_EQ(late.state.error->code, "deadline_exceeded");
  expect_verified(late);
}

AE_TEST("budget/a provider error uses one call and no tokens, an unsent call uses nothing") {
  JobFixture job = job_with_budget(model_call_node("a"), "{'tokens': 100, 'model_calls': 2}");
  job.claim().fails("a", "not_sent");
  EXPECT_EQ(budget_of(job).spent.model_calls, 0u);
  EXPECT_EQ(budget_of(job).reserved.tokens, 0u);
  job.after(10s).fails("a", "http_503");
  EXPECT_EQ(budget_of(job).spent.model_calls, 1u) << job.log_text();
  EXPECT_EQ(budget_of(job).spent.tokens, 0u);
  job.after(10s).ok("a", used(5, 2));
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(budget_of(job).spent.model_calls, 2u);
  expect_verified(job);
}

AE_TEST("budget/an answer without token counts is charged its reservation") {
  JobFixture job = job_with_budget(model_call_node("a"), "{'tokens': 100}");
  job.claim().ok("a", "{'text': 'ok'}");
  EXPECT_EQ(budget_of(job).spent.tokens, kOne);
  EXPECT_EQ(budget_of(job).spent.cost_micros, 111u);
}

AE_TEST("budget/a tool call counts once, however often it is tried") {
  JobFixture job = job_with_budget(calls("a"), "{'tool_calls': 1}");
  job.claim().fails("a", "http_503").after(10s);
  EXPECT_EQ(job.tries("a"), 2u) << job.log_text();
  job.crash();
  EXPECT_EQ(job.tries("a"), 3u) << job.log_text();
  job.ok("a");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(budget_of(job).spent.tool_calls, 1u);
  expect_verified(job);
}

AE_TEST("budget/after the time limit calls in flight end, then the job parks") {
  JobFixture job = job_with_budget(
      fmt::format("{},{}", model_call_node("a"), model_call_node("b", "['a']")), "{'wall': '1h'}");
  job.claim().after(2h);
  EXPECT_EQ(job.status(), "running");
  EXPECT_EQ(job.last<TimerFired>().effect_id, "budget");
  job.ok("a", used(5, 2));
  EXPECT_EQ(job.state.parked_until, "budget") << job.log_text();
  EXPECT_EQ(job.sent.size(), 1u);
  job.raise("{'wall': '90m'}");
  EXPECT_EQ(job.refused, Code::input_invalid);
  job.raise("{'wall': '3h'}");
  EXPECT_FALSE(job.refused);
  EXPECT_EQ(job.sent.size(), 2u);
  job.ok("b", used(5, 2));
  EXPECT_EQ(job.status(), "completed");
  expect_verified(job);
}

AE_TEST("budget/only a raise ends the park, a resume does not") {
  JobFixture job = job_with_budget(model_call_node("a"), "{'model_calls': 0}");
  job.claim();
  ASSERT_EQ(job.status(), "parked");
  job.resume();
  EXPECT_EQ(job.refused, Code::not_paused);
  State parked = job.folded(job.log.size());
  EXPECT_FALSE(apply(parked, JobResumed{.by = "x"}, job.now, uncached_plan_source()));
  job.raise("{'model_calls': 1}");
  EXPECT_EQ(job.status(), "running");
}

AE_TEST("budget/a log with a call that exceeds the budget is rejected") {
  JobFixture job = job_with_budget(model_call_node("a"), "{'tokens': 100}");
  job.claim().ok("a", used(5, 2));
  std::vector<Event> forged = job.log;
  std::get<JobCreated>(forged[0].body).budget = JobBudget{.tokens = 10};
  const auto folded = fold(job.state.job, forged, uncached_plan_source());
  ASSERT_FALSE(folded);
  EXPECT_EQ(folded.error().code, Code::log_corrupt);
}

AE_TEST("budget/a log that parks before the budget is exceeded is rejected") {
  const auto refused = [](const JobFixture& job, const auto& change) {
    std::vector<Event> forged = job.log;
    for (Event& event : forged) change(event);
    const auto folded = fold(job.state.job, forged, uncached_plan_source());
    return folded ? std::string() : folded.error().message;
  };
  JobFixture job =
      job_with_budget(fmt::format("{},{}", model_call_node("a"), model_call_node("b", "['a']")),
                      "{'model_calls': 1}");
  job.claim().ok("a", used(5, 2));
  ASSERT_EQ(job.state.parked_until, "budget");
  EXPECT_EQ(refused(job, [](Event&) {}), "");
  const std::string room = refused(job, [](Event& event) {
    auto* created = std::get_if<JobCreated>(&event.body);
    if (created != nullptr) created->budget = JobBudget{.model_calls = 2};
  });
  EXPECT_NE(room.find("there is room"), std::string::npos) << room;

  const auto earlier = [](Event& event) {
    auto* fired = std::get_if<TimerFired>(&event.body);
    if (fired != nullptr) fired->value = Value("2026-01-01T00:00:30.000000Z");
  };
  JobFixture late = job_with_budget(
      fmt::format("{},{}", model_call_node("a"), model_call_node("b", "['a']")), "{'wall': '1h'}");
  late.claim().after(2h);
  ASSERT_TRUE(late.state.budget.wall_passed);
  const std::string time = refused(late, earlier);
  EXPECT_NE(time.find("has not passed"), std::string::npos) << time;

  JobFixture ended(fmt::format("[{}]", model_call_node("a")),
                   {.more = budget("{'wall': '1h'}"), .deadline = 60s});
  ended.claim().after(61s);
  ASSERT_TRUE(ended.state.deadline_fired);
  const std::string deadline = refused(ended, earlier);
  EXPECT_NE(deadline.find("has not passed"), std::string::npos) << deadline;
}

AE_TEST("budget/a crash at any event declares no call above the budget and ends the same") {
  const std::string nodes =
      fmt::format("{},{},{},{}", model_call_node("a"), model_call_node("b", "['a']"),
                  calls("c", "['a']"), model_call_node("d", "['b']"));
  const auto run = [](JobFixture& job) {
    for (int guard = 0; guard < 50 && !is_terminal(job.state.status); ++guard) {
      if (job.in_flight.empty()) {
        ASSERT_EQ(job.state.parked_until, "budget") << job.log_text();
        job.raise(fmt::format("{{'tokens': {}}}", *budget_of(job).limits.tokens + 100));
        ASSERT_FALSE(job.refused) << job.log_text();
        continue;
      }
      const std::uint32_t index = job.in_flight.begin()->first;
      job.answer(index, {.kind = OutcomeKind::success, .result = json(used(40, 10))});
    }
  };
  JobFixture whole = job_with_budget(nodes, "{'tokens': 100}");
  whole.claim();
  run(whole);
  ASSERT_EQ(whole.status(), "completed");
  for (std::size_t kept = 2; kept < whole.log.size(); ++kept) {
    JobFixture job = job_with_budget(nodes, "{'tokens': 100}");
    job.log.assign(whole.log.begin(), whole.log.begin() + static_cast<std::ptrdiff_t>(kept));
    job.state = job.folded(kept);
    job.attempt_count = static_cast<int>(job.state.epoch);
    if (job.state.status == JobStatus::parked) {
      job.raise("{'tokens': 1000}");
    } else {
      job.claim();
    }
    run(job);
    ASSERT_EQ(job.status(), "completed") << "cut at " << kept << "\n" << job.log_text();
    EXPECT_EQ(budget_of(job).reserved.tokens, 0u);
    EXPECT_EQ(canonical(job.state.result), canonical(whole.state.result));
    expect_verified(job);
  }
}

AE_TEST("budget/the amount spent exceeds the limit at most by the overruns of single calls") {
  std::uint64_t seed = 1;
  const auto next = [&seed](std::uint64_t most) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (seed >> 33) % most;
  };
  std::string nodes;
  for (int i = 0; i < 12; ++i) {
    nodes += (i > 0 ? "," : "") + model_call_node(fmt::format("n{}", i));
  }
  for (int round = 0; round < 60; ++round) {
    const std::uint64_t limit = 50 + next(600);
    JobFixture job = job_with_budget(nodes, fmt::format("{{'tokens': {}}}", limit));
    job.claim();
    std::uint64_t overran = 0;
    while (!job.in_flight.empty()) {
      auto flight = job.in_flight.begin();
      std::advance(flight, static_cast<std::ptrdiff_t>(next(job.in_flight.size())));
      const std::uint64_t tokens = next(3 * kOne);
      overran += tokens > kOne ? tokens - kOne : 0;
      EXPECT_LE(budget_of(job).spent.tokens + budget_of(job).reserved.tokens, limit + overran);
      job.answer(flight->first,
                 {.kind = OutcomeKind::success, .result = json(used(static_cast<int>(tokens), 0))});
    }
    EXPECT_TRUE(job.status() == "parked" || job.status() == "completed") << job.log_text();
    EXPECT_LE(budget_of(job).spent.tokens, limit + overran);
    EXPECT_EQ(budget_of(job).reserved.tokens, 0u);
  }
}

AE_TEST("budget/a checkpoint at any event folds to the same state") {
  JobFixture job =
      job_with_budget(fmt::format("{},{}", model_call_node("a"), model_call_node("b", "['a']")),
                      "{'tokens': 70, 'wall': '1h'}");
  job.claim().ok("a", used(40, 2)).raise("{'tokens': 200}").ok("b", used(5, 2));
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  for (std::size_t at = 2; at <= job.log.size(); ++at) {
    const std::string bytes = checkpoint(job.folded(at), {});
    auto restored = restore(job.state.job, at, bytes, uncached_plan_source());
    ASSERT_TRUE(restored) << at;
    State state = std::move(restored->state);
    EXPECT_EQ(checkpoint(state, {}), bytes);
    for (std::size_t i = at; i < job.log.size(); ++i) {
      const Event& event = job.log[i];
      ASSERT_TRUE(apply(state, event.body, event.created_at, uncached_plan_source()));
    }
    EXPECT_EQ(state_view(state), state_view(job.state)) << at;
  }
}

}  // namespace
}  // namespace ae::engine::testing
