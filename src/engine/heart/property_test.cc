// Properties of every plan, every order of events and every moment of a
// crash. Seeds: AETHERIS_SEED.
#include <fmt/core.h>

#include <set>
#include <tuple>

#include "engine/fixtures/dice_test.h"
#include "engine/fixtures/dropped_steps_test.h"
#include "engine/fixtures/forged_event_test.h"
#include "engine/fixtures/job_fixture_test.h"
#include "engine/fixtures/random_plan_test.h"
#include "engine/fixtures/random_walk_test.h"
#include "engine/fixtures/random_world_test.h"
#include "engine/state/checkpoint.h"
#include "inspect/trace.h"
#include "inspect/verify.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

constexpr int kStepsMax = 5000;

struct RandomJob {
  std::shared_ptr<const Plan> plan;
  std::string input;
  std::optional<Duration> deadline = {};
};

RandomJob random_job(std::uint64_t seed, FailureMode failing) {
  Dice dice(seed);
  const Value graph = random_plan(dice, failing);
  return {compiled(graph), random_input(dice)};
}

// A job that may also end by its deadline, or by too many lost attempts.
RandomJob limited_random_job(std::uint64_t seed) {
  Dice dice(seed);
  Value graph = random_plan(dice, FailureMode::ends);
  std::string input = random_input(dice);
  if (dice.one_in(2)) graph = graph.with("max_attempts", 1 + dice.below(3));
  std::optional<Duration> deadline;
  if (dice.one_in(2)) deadline = std::chrono::seconds(1 + dice.below(100));
  return {compiled(graph), std::move(input), deadline};
}

JobFixture job_of(const RandomJob& random) {
  JobFixture job(random.plan, {.input = random.input, .deadline = random.deadline});
  job.waits_for_settling = true;
  return job;
}

void run_to_end(JobFixture& job, RandomWorld& world, Dice& dice) {
  int steps = 0;
  while (advance_randomly(job, world, dice)) ASSERT_LT(++steps, kStepsMax) << job.log_text();
}

// Everything except the order: what happened to each step, and how often.
using Happened = std::multiset<std::tuple<std::string, std::int64_t, std::string>>;
Happened has_happened(const JobFixture& job) {
  Happened all;
  for (const Event& event : job.log) {
    const std::string step(step_of(event));
    if (step.empty() || event.type == EventType::job_waiting) continue;
    // The number of verifications depends on how often the job was idle.
    if (event.type == EventType::confirmation_checked) continue;
    const std::int64_t n = std::visit(
        [](const auto& body) {
          if constexpr (requires { body.try_no; }) return body.try_no;
          return std::int64_t{0};
        },
        event.body);
    all.emplace(step, n, std::string(event_name(event)));
  }
  return all;
}

// The ends of all steps, without times and attempts.
Value ends_of(const JobFixture& job) {
  std::vector<Value> steps;
  const Value view = state_view(job.state);
  for (const Value& step : view["steps"].items()) {
    steps.push_back(Value::object({{"failure", step["failure"]},
                                   {"path", step["path"]},
                                   {"result", step["result"]},
                                   {"result_type", step["result_type"]},
                                   {"skipped", step["skipped"]}}));
  }
  return Value::object({{"result", view["result"]},
                        {"status", view["status"]},
                        {"steps", Value::array(std::move(steps))}});
}

void expect_once(const JobFixture& job, const RandomWorld& world) {
  for (const auto& [key, times] : world.performed()) EXPECT_EQ(times, 1) << key;
  std::map<std::string, std::string> external;
  for (const auto& sent : job.sent) {
    auto [it, fresh] = external.emplace(sent.key, sent.external_key);
    EXPECT_EQ(it->second, sent.external_key);
  }
}

AE_TEST("property/the order of answers changes neither the result nor what happened") {
  const std::uint64_t first = first_seed();
  for (std::uint64_t seed = first; seed < first + seeds(15); ++seed) {
    SCOPED_TRACE(repeat(seed, "property.the order of answers*"));
    const RandomJob plan = random_job(seed, FailureMode::tolerated);
    std::optional<Happened> events;
    Value ends;
    for (std::uint64_t order = 0; order < 4; ++order) {
      JobFixture job = job_of(plan);
      RandomWorld world(FailureMode::tolerated);
      Dice dice(seed * 1000 + order);
      // Also vary where a decision stops because its work is used up.
      if (order > 1) job.limits.work_max = std::size_t{1} << dice.below(8);
      job.claim();
      run_to_end(job, world, dice);
      if (::testing::Test::HasFailure()) return;
      ASSERT_EQ(job.status(), "completed") << job.log_text();
      expect_once(job, world);
      if (!events) {
        events = has_happened(job);
        ends = ends_of(job);
      }
      ASSERT_EQ(ends_of(job), ends) << job.log_text();
      ASSERT_EQ(has_happened(job), *events) << job.log_text();
    }
  }
}

AE_TEST("property/every prefix of a log folds to the state of the live job") {
  const std::uint64_t first = first_seed();
  for (std::uint64_t seed = first; seed < first + seeds(5); ++seed) {
    SCOPED_TRACE(repeat(seed, "property.every prefix*"));
    JobFixture job = job_of(random_job(seed, FailureMode::tolerated));
    RandomWorld world(FailureMode::tolerated);
    Dice dice(seed);
    std::vector<std::pair<std::size_t, Value>> grown;
    job.claim();
    for (int steps = 0; advance_randomly(job, world, dice) && steps < kStepsMax; ++steps) {
      grown.emplace_back(job.log.size(), state_view(job.state));
    }
    for (const auto& [events, view] : grown) {
      ASSERT_EQ(state_view(job.folded(events)), view) << "after event " << events;
    }
    const State folded = job.folded(job.log.size());
    const Value whole = state_view(folded);
    const std::string bytes = checkpoint(folded, Hash{});
    for (std::size_t prefix = 0; prefix < job.log.size(); ++prefix) {
      State state;
      state.job = job.state.job;
      for (std::size_t i = 0; i < job.log.size(); ++i) {
        if (i == prefix) state = job.folded(prefix);
        if (i == prefix && state.plan) {  // the same from a checkpoint
          auto restored = restore(state.job, prefix, checkpoint(state, Hash{}),
                                  [&](const Value&, std::string_view) { return job.plan; });
          ASSERT_TRUE(restored) << restored.error().message;
          state = std::move(restored->state);
        }
        if (i < prefix) continue;
        const Event& event = job.log[i];
        ASSERT_TRUE(apply(state, event.body, event.created_at,
                          [&](const Value&, std::string_view) { return job.plan; }));
      }
      ASSERT_EQ(state_view(state), whole) << "cut at " << prefix;
      ASSERT_EQ(checkpoint(state, Hash{}), bytes) << "cut at " << prefix;
    }
  }
}

AE_TEST("property/every log verifies, and all its views can be built") {
  const std::uint64_t first = first_seed();
  for (std::uint64_t seed = first; seed < first + seeds(15); ++seed) {
    SCOPED_TRACE(repeat(seed, "property.every log*"));
    JobFixture job = job_of(random_job(seed, FailureMode::tolerated));
    RandomWorld world(FailureMode::tolerated);
    Dice dice(seed);
    job.claim();
    do {
      if (dice.one_in(6)) {
        VerifyInput input;
        input.job = job.state.job;
        input.events = job.log;
        const Verification all = verify(input, uncached_plan_source());
        ASSERT_TRUE(all.ok) << canonical(all.to_json()) << "\n" << job.log_text();
        ASSERT_EQ(all.pending.size(), job.state.open_tries);
      }
      const Value trace = trace_view(job.state, job.log);
      ASSERT_EQ(trace["totals"]["tries"], Value(static_cast<std::uint64_t>(job.sent.size())));
      const auto tool_calls =
          static_cast<std::uint64_t>(job_view(job.state)["usage"]["tool_calls"].as_int());
      ASSERT_EQ(Value(tool_calls + job.state.models.tries), trace["totals"]["tries"]);
      if (dice.one_in(15) && job.state.status == JobStatus::running) job.crash();
    } while (advance_randomly(job, world, dice));
    expect_once(job, world);
    expect_same_views(job.state.job, job.log,
                      [&](const Value&, std::string_view) { return job.plan; });
  }
}

// The process dies after the n-th commit. Each declared call may have been sent, or not.
void crash_mid_flight(JobFixture& job, RandomWorld& world, Dice& dice) {
  for (const auto& [step, try_no] : job.in_flight) {
    if (dice.one_in(2)) world.perform(*job.state.steps[step].call);
  }
  job.crash();
}

AE_TEST("property/a crash after any commit changes no result and repeats no effect") {
  const std::uint64_t first = first_seed();
  for (std::uint64_t seed = first; seed < first + seeds(5); ++seed) {
    SCOPED_TRACE(repeat(seed, "property.a crash*"));
    const RandomJob plan = random_job(seed, FailureMode::never);
    JobFixture whole = job_of(plan);
    RandomWorld quiet(FailureMode::never);
    Dice order(seed);
    whole.claim();
    run_to_end(whole, quiet, order);
    ASSERT_EQ(whole.status(), "completed") << whole.log_text();
    for (std::size_t commit = 2; commit < whole.commits.size(); ++commit) {
      JobFixture job = job_of(plan);
      RandomWorld world(FailureMode::never);
      Dice dice(seed);
      job.claim();
      while (job.commits.size() < commit && advance_randomly(job, world, dice)) {
      }
      if (is_terminal(job.state.status)) break;
      if (job.state.status == JobStatus::running) crash_mid_flight(job, world, dice);
      run_to_end(job, world, dice);
      ASSERT_EQ(job.status(), "completed") << job.log_text();
      ASSERT_EQ(job.state.result, whole.state.result) << job.log_text();
      expect_once(job, world);
      ASSERT_EQ(world.performed().size(), quiet.performed().size());
    }
  }
}

AE_TEST("property/many crashes change no result and repeat no effect") {
  const std::uint64_t first = first_seed();
  for (std::uint64_t seed = first; seed < first + seeds(15); ++seed) {
    SCOPED_TRACE(repeat(seed, "property.many crashes*"));
    const RandomJob plan = random_job(seed, FailureMode::never);
    JobFixture whole = job_of(plan), job = job_of(plan);
    RandomWorld quiet(FailureMode::never), world(FailureMode::never);
    Dice dice(seed);
    whole.claim();
    run_to_end(whole, quiet, dice);
    if (dice.one_in(2)) job.limits.work_max = std::size_t{1} << dice.below(8);
    job.claim();
    for (int steps = 0; advance_randomly(job, world, dice); ++steps) {
      ASSERT_LT(steps, kStepsMax);
      if (dice.one_in(4) && job.state.status == JobStatus::running)
        crash_mid_flight(job, world, dice);
    }
    ASSERT_EQ(job.status(), "completed") << job.log_text();
    ASSERT_EQ(job.state.result, whole.state.result) << job.log_text();
    expect_once(job, world);
  }
}

AE_TEST("property/a cancel at any moment ends the job and lists every unknown call") {
  const std::uint64_t first = first_seed();
  for (std::uint64_t seed = first; seed < first + seeds(30); ++seed) {
    SCOPED_TRACE(repeat(seed, "property.a cancel*"));
    JobFixture job = job_of(random_job(seed, FailureMode::tolerated));
    RandomWorld world(FailureMode::tolerated);
    Dice dice(seed);
    if (!dice.one_in(10)) job.claim();
    const std::uint64_t moment = dice.below(30);
    for (std::uint64_t i = 0; i < moment; ++i) advance_randomly(job, world, dice);
    if (is_terminal(job.state.status)) continue;
    const std::size_t sent = job.sent.size();
    job.cancel();
    run_to_end(job, world, dice);
    ASSERT_EQ(job.status(), "cancelled");
    EXPECT_EQ(job.sent.size(), sent) << "nothing starts any more";
    std::set<std::string> listed;
    if (job.state.final_in_doubt.is_array()) {
      for (const Value& key : job.state.final_in_doubt.items()) listed.insert(key.as_string());
    }
    for (const Step& step : job.state.steps) {
      if (!step.call || step.phase == StepPhase::done) continue;
      const bool unclear = job.state.may_have_happened(step);
      EXPECT_EQ(listed.contains(step.call->key.text), unclear);
    }
  }
}

// In the log of an ended job everything that could be undone is undone, once,
// the last committed first.
void expect_undone(const JobFixture& job) {
  std::vector<std::string> committed, undone;
  for (const Event& event : job.log) {
    const std::string step(step_of(event));
    const bool undoable =
        event.type == EventType::step_committed &&
        job.state.tool_of(*job.state.find_step(StepId(step))).compensate.has_value();
    if (undoable) committed.insert(committed.begin(), step);
    if (event.type == EventType::step_compensated) undone.push_back(step);
  }
  if (job.state.status == JobStatus::completed) {
    EXPECT_TRUE(undone.empty());
  } else {
    EXPECT_EQ(undone, committed) << job.log_text();
  }
  VerifyInput input;
  input.job = job.state.job;
  input.events = job.log;
  const Verification all = verify(input, uncached_plan_source());
  ASSERT_TRUE(all.ok) << canonical(all.to_json()) << "\n" << job.log_text();
  ASSERT_EQ(state_view(job.folded(job.log.size())), state_view(job.state));
}

AE_TEST("property/every end of a job compensates each committed step once, despite crashes") {
  const std::uint64_t first = first_seed();
  std::size_t undone = 0, confirmed = 0;
  std::map<std::string, int> ends;  // by status and code
  for (std::uint64_t seed = first; seed < first + seeds(150); ++seed) {
    SCOPED_TRACE(repeat(seed, "property.every end*"));
    JobFixture job =
        job_of(seed % 2 == 0 ? random_job(seed, FailureMode::ends) : limited_random_job(seed));
    RandomWorld world(FailureMode::ends);
    Dice dice(seed);
    job.owned = dice.one_in(2);
    const bool few_attempts = job.plan->max_attempts < 1000;
    const bool crashes = dice.one_in(2) || few_attempts;
    const std::uint64_t cancel_at = dice.below(40);
    job.claim();
    for (std::uint64_t steps = 0; advance_randomly(job, world, dice); ++steps) {
      ASSERT_LT(steps, static_cast<std::uint64_t>(kStepsMax)) << job.log_text();
      if (steps == cancel_at && !is_terminal(job.state.status)) job.cancel();
      if (crashes && dice.one_in(5) && job.state.status == JobStatus::running) {
        change_externally(job, dice);
        do {
          crash_mid_flight(job, world, dice);
        } while (few_attempts && job.state.status == JobStatus::running && dice.one_in(2));
      }
      confirmed += job.state.escalated > 0 ? 1 : 0;  // an operator is asked about a change
    }
    expect_once(job, world);
    expect_undone(job);
    undone += job.state.undone.size();
    ends[job.state.error ? job.state.error->code : std::string(job.status())]++;
    if (::testing::Test::HasFailure()) return;
    (void)job_view(job.state);
    const Value trace = trace_view(job.state, job.log);
    ASSERT_EQ(trace["totals"]["tries"], Value(static_cast<std::uint64_t>(job.sent.size())));
  }
  if (std::getenv("AETHERIS_SEED")) return;
  EXPECT_GT(undone, 0u);
  EXPECT_GT(confirmed, 0u);
  for (const char* end : {"completed", "cancelled", "deadline_exceeded", "max_attempts"}) {
    EXPECT_GT(ends[end], 0) << end;
  }
}

// ---------------------------------------------------------------- impossible events

AE_TEST("property/a forged event is rejected or applied without a crash") {
  const std::uint64_t first = first_seed();
  const PlanSource compile = uncached_plan_source();
  std::size_t refused = 0;
  for (std::uint64_t seed = first; seed < first + seeds(6); ++seed) {
    SCOPED_TRACE(repeat(seed, "property.a forged event*"));
    const FailureMode failing = seed % 2 == 0 ? FailureMode::ends : FailureMode::tolerated;
    JobFixture job = job_of(random_job(seed, failing));
    RandomWorld world(failing);
    Dice dice(seed);
    job.claim();
    for (int i = 0; i < 300 && advance_randomly(job, world, dice); ++i) {
    }
    const PlanSource same = [&](const Value& graph, std::string_view hash) {
      return hash == to_hex(job.plan->hash) ? Result<std::shared_ptr<const Plan>>(job.plan)
                                            : compile(graph, hash);
    };
    refused +=
        forge_events(job, dice, 60, same, [](const State& state, const std::vector<Event>& log) {
          (void)state_view(state);
          (void)job_view(state);
          (void)trace_view(state, log);
        });
  }
  EXPECT_GT(refused, 0u);
}

// ---------------------------------------------------------------- cost

// What a decision visits: the steps that need one, and those that fill the free slots.
struct Cost {
  std::size_t checked = 0, most = 0, decisions = 0;
};

Cost cost_of(JobFixture& job) {
  Cost cost;
  job.decides = false;
  job.begin_attempt();
  const PlanSource same = [&](const Value&, std::string_view) { return job.plan; };
  const auto apply_all = [&](const std::vector<EventBody>& drafts) {
    for (const EventBody& draft : drafts) AE_CHECK(apply(job.state, draft, job.now, same));
  };
  while (!is_terminal(job.state.status)) {
    for (;;) {
      const std::size_t checked =
          job.state.todo.size() + std::min(job.state.startable.size(), job.limits.parallel_max + 1);
      cost.checked += checked;
      cost.most = std::max(cost.most, checked);
      cost.decisions++;
      const Decision decision = decide(job.state, job.context(), job.limits);
      if (decision.events.empty()) break;
      apply_all(decision.events);
      if (decision.release) break;
    }
    if (is_terminal(job.state.status)) break;
    AE_CHECK(!job.state.calling.empty());
    apply_all(record_outcome(job.state, *job.state.calling.begin(), {.kind = OutcomeKind::success},
                             job.now));
  }
  return cost;
}

std::string list_of(std::size_t items) {
  std::string list = "[0";
  for (std::size_t i = 1; i < items; ++i) list += ",0";
  return list + "]";
}

Cost map_cost(std::size_t items) {
  JobFixture job(
      "[{'id':'m','kind':'map','over':'${ .input }','max_parallel':8,'do':{'tool':'put'}}]",
      {.input = list_of(items)});
  const Cost cost = cost_of(job);
  EXPECT_EQ(job.status(), "completed");
  return cost;
}

Cost chain_cost(std::size_t count, bool wide) {
  std::string nodes = "[";
  for (std::size_t i = 0; i < count; ++i) {
    nodes += fmt::format("{}{}','kind':'tool','tool':'put'{}", i ? ",{'id':'n" : "{'id':'n", i,
                         i && !wide ? fmt::format(",'needs':['n{}']}}", i - 1) : "}");
  }
  JobFixture job(nodes + "]");
  const Cost cost = cost_of(job);
  EXPECT_EQ(job.status(), "completed");
  return cost;
}

AE_TEST("cost/a decision visits as few steps in a long map as in a short one") {
  const Cost small = map_cost(50), large = map_cost(1000);
  EXPECT_EQ(large.most, small.most);
  EXPECT_LE(large.checked, 1000u * 2 + 100);
}

AE_TEST("cost/a chain costs linear work") {
  const Cost cost = chain_cost(500, false);
  EXPECT_LE(cost.most, 2u);
  EXPECT_LE(cost.checked, 500u * 4);
}

AE_TEST("cost/a wide plan costs no more than the limit of open calls") {
  const Cost cost = chain_cost(1000, true);
  EXPECT_LE(cost.most, 64u + 2);
}

AE_TEST_SLOW("cost/20,000 items and 10,000 nodes cost as little per step as a few") {
  const Cost few = map_cost(50), many = map_cost(20'000);
  EXPECT_EQ(many.most, few.most);
  EXPECT_LE(many.checked, 20'000u * 2 + 100);
  const Cost chain = chain_cost(10'000, false);
  EXPECT_LE(chain.most, 2u);
  EXPECT_LE(chain.checked, 10'000u * 4);
  EXPECT_LE(chain_cost(10'000, true).most, 64u + 2);
}

}  // namespace
}  // namespace ae::engine::testing
