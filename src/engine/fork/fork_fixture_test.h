// Shared by the tests of forks.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

#include "engine/fixtures/job_fixture_test.h"
#include "engine/state/checkpoint.h"
#include "inspect/trace.h"
#include "inspect/verify.h"
#include "inspect/view.h"

namespace ae::engine::testing {

inline constexpr std::string_view kChain =
    "[{'id':'a','kind':'tool','tool':'put','args':{'n':1}},"
    "{'id':'b','kind':'tool','tool':'put','args':{'n':'${ .steps.a.id }'},'needs':['a']},"
    "{'id':'c','kind':'tool','tool':'pay','args':{'n':'${ .steps.b }'},'needs':['b']}]";

inline Verification proof(const JobFixture& job) {
  VerifyInput input;
  input.job = job.state.job;
  input.events = job.log;
  return verify(input, uncached_plan_source());
}

inline void expect_fork_verifies(const JobFixture& job) {
  const Verification all = proof(job);
  EXPECT_TRUE(all.ok) << canonical(all.to_json()) << "\n" << job.log_text();
  EXPECT_EQ(state_view(job.folded(job.log.size())), state_view(job.state));
  auto restored =
      restore(job.state.job, job.state.seq, checkpoint(job.state, Hash{}), uncached_plan_source());
  ASSERT_TRUE(restored) << restored.error().message;
  EXPECT_EQ(state_view(restored->state), state_view(job.state));
  (void)trace_view(job.state, job.log);
}

// The effects to be repeated: "node state " for each.
inline std::string repeated_effects(const Fork& fork) {
  std::string text;
  for (const Value& effect : fork.effects) {
    text += std::string(effect.text("node_id"));
    if (effect["item"].is_integer()) text += std::to_string(effect["item"].as_int());
    text += fmt::format(" {} ", effect.text("state"));
  }
  return text;
}

// The job that `aetheris retry` creates from a failed one.
inline Fork retried(const JobFixture& job) {
  const auto point = retry_point(job.state, job.log);
  AE_CHECK(point.has_value(), job.log_text());
  auto fork = job.fork(*point);
  AE_CHECK(fork.has_value(), fork ? "" : fork.error().message);
  return *std::move(fork);
}

}  // namespace ae::engine::testing
