// Forks of jobs with calls whose outcome is unknown.
#include <fmt/core.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "engine/fixtures/job_fixture_test.h"
#include "engine/fork/fork_fixture_test.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

constexpr std::string_view kRiskThenWait =
    "[{'id':'a','kind':'tool','tool':'risk','on_error':'continue'},"
    "{'id':'b','kind':'wait','wait':{'type':'signal','key':'k'},'needs':['a']}]";

std::string unknown_keys(const Value& list) {
  std::string text;
  for (const Value& one : list.items()) text += one.text("idempotency_key");
  return text;
}

AE_TEST("fork/a call abandoned before the fork stays unknown in the fork") {
  JobFixture origin(kRiskThenWait);
  origin.claim().unknown("a");
  const std::string key = origin.sent[0].key;
  const auto fork = origin.fork(origin.log.size());
  ASSERT_TRUE(fork);
  EXPECT_EQ(repeated_effects(*fork), "") << "it is not repeated";
  JobFixture job(*fork, "job-2");
  EXPECT_EQ(schema_of(job.last<ForkImported>()), 3);
  job.claim();
  const Value unknown_calls = job_view(job.state)["in_doubt"];
  EXPECT_EQ(unknown_keys(unknown_calls), key);
  EXPECT_EQ(unknown_calls.items()[0]["given_up"], Value(true));
  EXPECT_EQ(unknown_calls.items()[0]["tool"], Value("risk"));
  EXPECT_EQ(unknown_calls.items()[0]["external_key"], Value(origin.sent[0].external_key));
  const auto next = job.fork(job.log.size());
  ASSERT_TRUE(next);
  JobFixture third(*next, "job-3");
  EXPECT_EQ(unknown_keys(job_view(third.state)["in_doubt"]), key) << "a fork of the fork";
  job.signal("k");
  EXPECT_EQ(job.last<JobCompleted>().in_doubt.json(), Value::array({Value(key)}));
  job.send_request({.body = ResolveRequest{.idempotency_key = key, .resolution = "happened"}});
  EXPECT_EQ(job.refused, std::nullopt);
  expect_fork_verifies(job);
}

AE_TEST("fork/an abandoned map item stays unknown in the fork") {
  JobFixture origin(
      "[{'id':'m','kind':'map','over':[1,2],'max_parallel':2,'on_item_error':'collect',"
      "'do':{'tool':'risk'}},"
      "{'id':'b','kind':'wait','wait':{'type':'signal','key':'k'},'needs':['m']}]");
  origin.claim().unknown("m/1").ok("m/0");
  JobFixture job(*origin.fork(origin.log.size()), "job-2");
  const Value unknown_calls = job_view(job.state)["in_doubt"];
  ASSERT_EQ(unknown_calls.size(), 1u);
  EXPECT_EQ(unknown_calls.items()[0]["item"], Value(1));
  expect_fork_verifies(job);
}

AE_TEST_SLOW("fork/unknown calls above the event size limit are split over several events") {
  constexpr int kItems = 10'000;  // each takes about 500 bytes
  std::string over;
  for (int i = 0; i < kItems; ++i) over += i == 0 ? "0" : ",0";
  JobFixture origin("[{'id':'m','kind':'map','over':[" + over +
                    "],'max_parallel':16,'on_item_error':'collect','do':{'tool':'risk'}},"
                    "{'id':'b','kind':'wait','wait':{'type':'signal','key':'k'},'needs':['m']}]");
  origin.claim();
  for (int i = 0; i < kItems; ++i) origin.unknown(fmt::format("m/{}", i));
  const auto fork = origin.fork(origin.log.size());
  ASSERT_TRUE(fork);
  ASSERT_GE(fork->imported.size(), 2u);
  for (const EventBody& event : fork->imported) {
    EXPECT_LT(canonical(std::get<ForkImported>(event).unknown.json()).size(), 5u << 20);
  }
  EXPECT_EQ(JobFixture(*fork, "job-2").state.earlier_unknown.size(), std::size_t{kItems});
}

AE_TEST("fork/a repeated call is listed and is not an unknown call of the fork") {
  JobFixture origin(kRiskThenWait);
  origin.claim().unknown("a");
  const auto fork = origin.fork(2);
  EXPECT_EQ(repeated_effects(*fork), "a in_doubt ");
  EXPECT_EQ(job_view(JobFixture(*fork, "job-2").state)["in_doubt"].size(), 0u);
}

AE_TEST("fork/an unknown call that the origin dropped is listed or stays unknown") {
  JobFixture origin(kRiskThenWait);
  origin.claim().unknown("a");
  const std::uint64_t before = origin.log.size();
  origin.replan(compiled(graph("[{'id':'z','kind':'wait','wait':{'type':'signal','key':'z'}}]")),
                {"a"});
  ASSERT_EQ(origin.refused, std::nullopt);
  EXPECT_EQ(repeated_effects(*origin.fork(2)), "a in_doubt ") << "it is repeated";
  for (const std::uint64_t at : {before, std::uint64_t{origin.log.size()}}) {
    const auto fork = origin.fork(at);
    EXPECT_EQ(repeated_effects(*fork), "");
    JobFixture job(*fork, "job-2");
    EXPECT_EQ(unknown_keys(job_view(job.state)["in_doubt"]), origin.sent[0].key) << at;
    expect_fork_verifies(job);
  }
}

AE_TEST("fork/an outcome noted by the origin is known in the fork") {
  JobFixture origin("[{'id':'a','kind':'tool','tool':'risk','on_error':'continue'}]");
  origin.claim().unknown("a").resolve("a", "happened");
  ASSERT_EQ(origin.count(EventType::outcome_noted), 1u);
  JobFixture job(*origin.fork(origin.log.size()), "job-2");
  EXPECT_EQ(job_view(job.state)["in_doubt"].size(), 0u);
}

}  // namespace
}  // namespace ae::engine::testing
