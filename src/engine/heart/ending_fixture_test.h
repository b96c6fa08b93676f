// Shared by the tests of how jobs with an unknown outcome end.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "engine/fixtures/job_fixture_test.h"
#include "inspect/verify.h"
#include "inspect/view.h"

namespace ae::engine::testing {

// The process dies, and the next one claims the job; control requests are
// applied before it decides.
inline JobFixture& crash_and_claim(JobFixture& job) {
  job.reload();
  job.begin_attempt();
  return job;
}

inline void expect_log_verifies(const JobFixture& job) {
  VerifyInput input;
  input.job = job.state.job;
  input.events = job.log;
  input.effects = job.effects;
  const Verification all = verify(input, uncached_plan_source());
  EXPECT_TRUE(all.ok) << canonical(all.to_json());
  EXPECT_EQ(state_view(job.folded(job.log.size())), state_view(job.state));
}

// The keys of unknown calls in the terminal event.
inline std::set<std::string> listed(const JobFixture& job) {
  const std::vector<std::string> in_doubt = std::visit(
      [](const auto& end) {
        if constexpr (requires { end.in_doubt; }) return end.in_doubt.read_leniently();
        return std::vector<std::string>();
      },
      job.log.back().body);
  return {in_doubt.begin(), in_doubt.end()};
}

inline constexpr std::string_view kRiskThenWait =
    "[{'id':'a','kind':'tool','tool':'risk','args':{'n':1},'on_error':'continue'},"
    "{'id':'b','kind':'wait','wait':{'type':'signal','key':'k'},'needs':['a']}]";

inline Value unknown_call_of(const JobFixture& job) {
  const Value view = job_view(job.state)["in_doubt"];
  AE_CHECK(view.size() == 1, job.log_text());
  return view.items()[0];
}

inline Outcome succeeded() { return {.kind = OutcomeKind::success, .result = json("{'id':7}")}; }

}  // namespace ae::engine::testing
