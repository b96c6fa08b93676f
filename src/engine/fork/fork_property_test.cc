// Properties of forks and retries of random jobs.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>

#include "engine/fixtures/dice_test.h"
#include "engine/fixtures/job_fixture_test.h"
#include "engine/fixtures/random_plan_test.h"
#include "engine/fixtures/random_walk_test.h"
#include "engine/fixtures/random_world_test.h"
#include "engine/fork/fork_fixture_test.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

AE_TEST("property/a fork at any moment ends as the job does and repeats only listed calls") {
  const std::uint64_t first = first_seed();
  std::size_t forks = 0, listed = 0;
  for (std::uint64_t seed = first; seed < first + seeds(40); ++seed) {
    SCOPED_TRACE(repeat(seed, "property.a fork*"));
    Dice dice(seed);
    const FailureMode failing = dice.one_in(2) ? FailureMode::tolerated : FailureMode::ends;
    const Value graph = random_plan(dice, failing);
    JobFixture origin(compiled(graph), {.input = random_input(dice)});
    origin.waits_for_settling = true;
    RandomWorld world(failing);
    origin.claim();
    const std::uint64_t moments = dice.below(60);
    for (std::uint64_t i = 0; i < moments && advance_randomly(origin, world, dice); ++i) {
    }
    const std::uint64_t at = 2 + dice.below(origin.log.size() - 1);
    const auto fork = origin.fork(at);
    ASSERT_TRUE(fork) << fork.error().message << "\n" << origin.log_text();
    std::set<std::string> repeats;  // step ids
    for (const Value& effect : fork->effects) repeats.emplace(effect.text("step_id"));
    listed += repeats.size();
    JobFixture job(*fork, "job-2");
    job.waits_for_settling = true;
    ASSERT_TRUE(proof(job).ok) << canonical(proof(job).to_json()) << job.log_text();
    // Effects of the origin that the fork does not list are done in the fork.
    for (const Event& event : origin.log) {
      const auto* committed = as<CommandCommitted>(event);
      if (committed == nullptr) continue;
      const StepId& id = committed->step_id;
      const Step& step = *origin.state.find_step(id);
      if (step.role != Role::node || origin.state.tool_of(step).effect == EffectClass::read) {
        continue;
      }
      ASSERT_EQ(job.state.find_step(id) != nullptr, !repeats.contains(id.text))
          << event.seq << "\n"
          << origin.log_text() << "\n"
          << job.log_text();
    }
    job.claim();
    int steps = 0;
    while (advance_randomly(job, world, dice)) {
      ASSERT_LT(++steps, 5000) << job.log_text();
      if (dice.one_in(10) && job.state.status == JobStatus::running) job.crash();
    }
    ASSERT_TRUE(proof(job).ok) << canonical(proof(job).to_json()) << job.log_text();
    if (failing == FailureMode::tolerated) {
      ASSERT_EQ(job.status(), "completed") << job.log_text();
    }
    forks++;
  }
  EXPECT_TRUE((forks > 10 && listed > 0) || std::getenv("AETHERIS_SEED"));
}

AE_TEST("property/a retry of any failed job lists only unknown and undone calls and later ones") {
  const std::uint64_t first = first_seed();
  std::size_t failed = 0;
  for (std::uint64_t seed = first; seed < first + seeds(60); ++seed) {
    SCOPED_TRACE(repeat(seed, "property.a retry*"));
    Dice dice(seed);
    JobFixture origin(compiled(random_plan(dice, FailureMode::ends)),
                      {.input = random_input(dice)});
    origin.waits_for_settling = true;
    RandomWorld world(FailureMode::ends);
    origin.claim();
    for (int steps = 0; advance_randomly(origin, world, dice); ++steps) {
      ASSERT_LT(steps, 5000) << origin.log_text();
    }
    if (origin.status() != "failed") continue;
    failed++;
    const Fork fork = retried(origin);
    const bool in_effect = origin.count(EventType::step_compensated) == 0 &&
                           std::ranges::none_of(fork.effects, [](const Value& effect) {
                             return effect.text("state") != "committed";
                           });
    EXPECT_TRUE(!in_effect || fork.effects.empty()) << repeated_effects(fork) << "\n"
                                                    << origin.log_text();
    JobFixture job(fork, "job-2");
    ASSERT_TRUE(proof(job).ok) << canonical(proof(job).to_json()) << job.log_text();
  }
  EXPECT_TRUE(failed > 5 || std::getenv("AETHERIS_SEED")) << failed;
}

}  // namespace
}  // namespace ae::engine::testing
