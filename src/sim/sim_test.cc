// The simulation in small: a few storms, a part of the sweep, the canaries, and regressions, each
// as a world.
//
// `./dev sim` runs the share of CI; see docs/simulation.md.
#include <fmt/core.h>

#include "json/json.h"
#include "sim/check.h"
#include "sim/small_jobs.h"
#include "sim/storm.h"
#include "sim/sweep.h"
#include "testing/test.h"

namespace ae::sim {
namespace {

using namespace std::chrono_literals;

std::string text_of(const Report& report) {
  std::string text;
  for (const Violation& v : report.violations)
    text += fmt::format("{}: {} {}\n", v.rule, v.job, v.what);
  return text;
}

AE_TEST("sim/storms violate no rule") {
  PlanBook plans;
  const std::uint64_t count = testing::are_slow_tests_enabled() ? 2000 : 30;
  for (std::uint64_t seed = 1; seed <= count; ++seed) {
    const StormResult result = run_storm({.seed = seed}, plans);
    ASSERT_TRUE(result.report.violations.empty())
        << "SEED " << seed << "; repeat: ./dev sim --seed " << seed << " --verbose\n"
        << text_of(result.report);
  }
}

AE_TEST("sim/the same seed gives the same run") {
  PlanBook plans;
  for (std::uint64_t seed = 100; seed < 104; ++seed) {
    EXPECT_EQ(run_storm({.seed = seed}, plans).last_draw,
              run_storm({.seed = seed}, plans).last_draw)
        << seed;
  }
  EXPECT_NE(run_storm({.seed = 1}, plans).last_draw, run_storm({.seed = 2}, plans).last_draw);
}

AE_TEST("sim/a crash at any boundary and in its recovery does not change the end of a job") {
  PlanBook plans;
  const std::vector<SweepCase> cases = sweep_cases();
  // One of the four cases of each small job, with every third first crash; the sweep (`./dev sim --sweep`, without
  // sanitizers) runs all of them. The long run has every first crash here, too, and every tenth crash in a recovery.
  const bool slow = testing::are_slow_tests_enabled();
  for (std::size_t i = 0; i < cases.size(); i += 5) {
    Report report;
    const SweepDepth depth{.first_one_in = slow ? 1u : 3u,
                           .first_from = i / 5,
                           .recovery = slow,
                           .second_one_in = 10,
                           .second_from = i / 5,
                           .third_one_in = 0};
    const SweepCount count = sweep(cases[i], depth, plans, report);
    EXPECT_TRUE(report.violations.empty()) << text_of(report);
    EXPECT_GT(count.points, 6u) << cases[i].name();
  }
}

AE_TEST("sim/the result of the sweep's longest loop depends on every answer in its five turns") {
  PlanBook plans;
  const auto job = std::ranges::find_if(small_jobs(), [](const SmallJob& one) {
    return one.name.starts_with("a loop of five turns");
  });
  ASSERT_NE(job, small_jobs().end());
  const SmallResult end = run_small_job({.job = &*job}, {}, plans);
  EXPECT_EQ(end.status, "completed");
  EXPECT_NE(end.result.find("\"turns\":5"), std::string::npos) << end.result;
  EXPECT_GE(end.effects.size(), 6u) << "a repeated call is a separate call";
  // A different answer in any turn changes the result.
  for (const std::string_view text : {"\\\"n\\\":1", "\\\"n\\\":3", "\\\"n\\\":4"}) {
    std::string nodes(job->nodes);
    nodes.replace(nodes.find(text), text.size(), "\\\"n\\\":7");
    const SmallJob other{.name = text, .nodes = nodes};
    const SmallResult changed = run_small_job({.job = &other}, {}, plans);
    EXPECT_EQ(changed.status, "completed");
    EXPECT_NE(changed.result, end.result) << text;
  }
}

AE_TEST("sim/planted faults are found") {
  PlanBook plans;
  const auto found = [&](Canary canary, std::string_view rule) {
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
      const StormResult result = run_storm({.seed = seed, .canary = canary}, plans);
      for (const Violation& v : result.report.violations) {
        if (v.rule.starts_with(rule)) return true;
      }
    }
    return false;
  };
  EXPECT_TRUE(found(Canary::duplicate_request, "A1 at_most_once"));
  EXPECT_TRUE(found(Canary::lost_signal, "N1 an accepted"));
  EXPECT_TRUE(found(Canary::unclaimed_job, "PR1 all jobs end"));
  EXPECT_TRUE(found(Canary::false_approval, "P2 every user action"));
  EXPECT_TRUE(found(Canary::double_message, "N3 messages are delivered"));
  EXPECT_TRUE(found(Canary::false_probe, "A1 at_most_once"));
  EXPECT_TRUE(found(Canary::unlimited_queue, "F8 no queue has more live claims"));
  EXPECT_TRUE(found(Canary::double_model_request, "M2 a model receives"));
  EXPECT_TRUE(found(Canary::always_matching_verifier, "V2 a recorded verdict"));
  EXPECT_TRUE(found(Canary::mutating_verifier, "V5 a verifier only reads"));
  EXPECT_TRUE(found(Canary::oversized_drop, "R3 a plan matches"));
  EXPECT_TRUE(found(Canary::oversized_raise, "B1 no call exceeds"));
  EXPECT_TRUE(found(Canary::lost_child_request, "PR1 all jobs end"));
}

// ---------------------------------------------------------------- regressions

// One job in a world whose faults the test makes itself.
class OneJobWorld {
 public:
  OneJobWorld(WorldOptions options, SmallJob job)
      : small_(job), world_(options), users_(world_, {}) {
    world_.set_fault_plan(
        {.dies =
             [this](const SimProcess& process, std::string_view where) {
               if (watch) watch(process, where);
               return false;
             },
         .fails = {},
         .store =
             [this](const store::Call& call) { return fault ? fault(call) : store::Fault::none; },
         .died = {}});
  }
  void start(std::size_t worker) { world_.start(worker); }
  void create() { create(kJob, small_); }
  void create(const JobId& job, const SmallJob& small) {
    runtime::NewJobRequest request;
    request.job = job;
    request.agent = "sim";
    request.plan = plans_.small(small);
    request.input = Value::object({{"x", 1}});
    users_.create(std::move(request));
  }
  // To a chosen worker, without retries.
  void signal(std::size_t worker, const std::string& key, const std::string& id = "signal") {
    submit(worker, {.id = fmt::format("{}-{}", id, key),
                    .body = engine::SignalRequest{.correlation_key = key,
                                                  .payload = Value::object({{"key", key}})}});
  }
  void submit(std::size_t worker, const engine::ControlRequest& request) {
    users_.record_request(kJob, request);
    world_.submit(worker, kJob, request, [this](Result<Value> answer) {
      if (answer) answers.push_back(*answer);
    });
  }
  void cancel(std::size_t worker) {
    submit(worker, {.id = "cancel", .body = engine::CancelRequest{}});
  }
  // Resolves the job's only call as of now.
  void resolve(std::size_t worker, const std::string& resolution) {
    AE_CHECK(world_.external_world().journal().size() == 1);
    const auto& [key, record] = *world_.external_world().journal().begin();
    engine::ResolveRequest resolve{.idempotency_key = key, .resolution = resolution};
    if (resolution == "happened") resolve.result = record.result;
    engine::ControlRequest request{
        .id = resolution, .checked_at = world_.clock().now(), .body = std::move(resolve)};
    users_.record_request(kJob, request);
    world_.submit(worker, kJob, std::move(request), [this](Result<Value> answer) {
      answers.push_back(answer ? *answer : Value(std::string(code_name(answer.error().code))));
    });
  }
  void fire_timers(std::size_t worker) {
    world_.submit(worker, kJob, {.body = engine::TimersRequest{}}, [](Result<Value>) {});
  }
  void run(Duration span) {
    world_.loop().run([] { return false; }, world_.loop().now() + span);
  }
  const std::string& status() { return status_of(kJob); }
  const std::string& status_of(const JobId& job) { return world_.observer().jobs().at(job).status; }
  SimWorld& world() { return world_; }

  // Stops the world, checks the rules, and returns the job's result.
  Value end() {
    world_.freeze();
    check_all(world_, users_, plans_.source());
    EXPECT_TRUE(world_.report().violations.empty()) << text_of(world_.report());
    auto loaded = world_.read_disk(kJob);
    auto events = runtime::open_log(kJob, *loaded);
    return engine::fold(kJob, *events, plans_.source())->result;
  }

  std::function<void(const SimProcess&, std::string_view)> watch;
  store::FaultScript fault;
  std::vector<Value> answers;

 private:
  inline static const JobId kJob{"job-0"};
  SmallJob small_;
  PlanBook plans_;
  SimWorld world_;
  Users users_;
};

constexpr std::string_view kTwoSignals = R"({"schema":1,"nodes":[
  {"id":"a","kind":"wait","wait":{"type":"signal","key":"a"}},
  {"id":"b","kind":"wait","wait":{"type":"signal","key":"b"}},
  {"id":"c","kind":"tool","tool":"once","needs":["a","b"],"args":{}}],
  "output":{"a":"${ .steps.a.key }","b":"${ .steps.b.key }"}})";

AE_TEST("sim/requests accepted while a claimed job is loading are applied afterwards") {
  for (const Duration slow : {Duration(0), Duration(2ms), Duration(1s)}) {
    OneJobWorld sim({.workers = 1, .owned = true, .store_delay = slow},
                    {.name = "two", .nodes = kTwoSignals});
    sim.start(0);
    sim.create();
    sim.run(1s);
    ASSERT_EQ(sim.status(), "waiting");
    bool is_claimed = false, reading = false;
    sim.watch = [&](const SimProcess&, std::string_view where) {
      is_claimed = is_claimed || where == "claim.after";
    };
    sim.fault = [&](const store::Call& call) {
      if (!is_claimed || reading || call.method != store::Method::load) return store::Fault::none;
      reading = true;
      return store::Fault::delay_answer;
    };
    sim.signal(0, "a");
    sim.world().loop().run([&] { return reading; }, sim.world().loop().now() + 1s);
    ASSERT_TRUE(reading);
    sim.signal(0, "b");
    sim.cancel(0);
    sim.run(10s);
    ASSERT_EQ(sim.answers.size(), 3u);
    EXPECT_EQ(sim.answers[2]["cancel_requested"], Value(true)) << canonical(sim.answers[2]);
    EXPECT_EQ(sim.status(), "cancelled");
    sim.end();
  }
}

AE_TEST("sim/a worker suspended between its claim and its first read loses the job") {
  OneJobWorld sim({.workers = 2, .owned = false, .lease = 6s, .poll = 2s},
                  {.name = "two", .nodes = kTwoSignals});
  sim.start(0);
  sim.create();
  sim.run(1s);
  sim.watch = [&](const SimProcess& process, std::string_view where) {
    if (process.worker == 0 && where == "claim.after") {
      sim.watch = {};
      sim.world().pause(0);
    }
  };
  sim.signal(0, "a");
  sim.run(1s);
  ASSERT_TRUE(sim.world().paused(0));
  sim.start(1);
  sim.run(20s);
  EXPECT_EQ(sim.status(), "waiting") << "the other worker took it over";
  sim.world().resume(0);
  sim.run(5s);
  sim.signal(1, "b");
  sim.run(20s);
  EXPECT_EQ(sim.status(), "completed");
  EXPECT_EQ(canonical(sim.end()), R"({"a":"a","b":"b"})");
}

AE_TEST("sim/a signal accepted before the expiry of its wait wins, fused and split") {
  for (auto durability : {runtime::Durability::fused, runtime::Durability::split}) {
    // The slow call keeps the job leased; the lease holder gets no notification of what another
    // worker enqueues.
    OneJobWorld sim({.workers = 2, .owned = false, .durability = {durability}},
                    {.name = "expires", .nodes = R"({"schema":1,"nodes":[
              {"id":"a","kind":"wait","wait":{"type":"signal","key":"a","expires":"3s",
               "on_expire":"continue"}},
              {"id":"slow","kind":"tool","tool":"put","args":{"fate":["silent","ok"]}},
              {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{}}],
              "output":"${ .steps.a }"})"});
    sim.start(0);
    sim.create();
    sim.run(1s);
    sim.start(1);
    sim.run(1500ms);
    sim.signal(1, "a");
    sim.run(100ms);
    EXPECT_TRUE(sim.answers.empty()) << "the lease holder has not read its inbox";
    sim.run(30s);
    ASSERT_EQ(sim.answers.size(), 1u);
    EXPECT_EQ(sim.answers[0]["outcome"], "signalled") << canonical(sim.answers[0]);
    EXPECT_EQ(sim.status(), "completed");
    EXPECT_EQ(canonical(sim.end()), R"({"key":"a"})");
  }
}

AE_TEST("sim/a signal without an event does not delay an expiry, fused and split") {
  for (auto durability : {runtime::Durability::fused, runtime::Durability::split}) {
    OneJobWorld sim({.workers = 2, .owned = false, .durability = {durability}},
                    {.name = "two posts", .nodes = R"({"schema":1,"nodes":[
              {"id":"a","kind":"wait","wait":{"type":"signal","key":"a","expires":"3s",
               "on_expire":"continue"}},
              {"id":"b","kind":"wait","wait":{"type":"signal","key":"b"}},
              {"id":"slow","kind":"tool","tool":"put","args":{"fate":["silent","ok"]}}],
              "output":"${ .steps.b }"})"});
    sim.start(0);
    sim.create();
    sim.run(1s);
    sim.start(1);
    sim.run(1s);
    sim.signal(1, "b", "first");
    sim.signal(1, "b", "second");  // its wait is already answered
    sim.run(30s);
    EXPECT_EQ(sim.answers.size(), 2u);
    EXPECT_EQ(sim.status(), "completed");
    EXPECT_EQ(canonical(sim.end()), R"({"key":"b"})");
  }
}

AE_TEST("sim/a timer that another worker finds due does not overtake a signal") {
  OneJobWorld sim({.workers = 2, .owned = false, .lease = 30s},
                  {.name = "timers", .nodes = R"({"schema":1,"nodes":[
            {"id":"t","kind":"wait","wait":{"type":"timer","for":"2s"}},
            {"id":"a","kind":"wait","wait":{"type":"signal","key":"a","expires":"3s",
             "on_expire":"continue"}},
            {"id":"slow","kind":"tool","tool":"put","args":{"fate":["silent","ok"]}}],
            "output":"${ .steps.a }"})"});
  sim.start(0);
  sim.create();
  sim.run(1s);
  sim.start(1);
  sim.world().pause(0);
  sim.run(1500ms);
  sim.fire_timers(1);
  sim.run(100ms);
  sim.signal(1, "a");
  sim.run(5s);
  EXPECT_TRUE(sim.answers.empty()) << "the lease holder is paused";
  sim.world().resume(0);
  sim.run(30s);
  EXPECT_EQ(sim.answers.size(), 1u);
  EXPECT_EQ(sim.status(), "completed");
  EXPECT_EQ(canonical(sim.end()), R"({"key":"a"})");
}

AE_TEST("sim/a resolution checked too early is refused by a worker that was suspended meanwhile") {
  OneJobWorld sim({.workers = 2, .owned = false}, {.name = "late", .nodes = R"({"schema":1,"nodes":[
            {"id":"a","kind":"tool","tool":"once","args":{"fate":["late","ok"]}}],
            "output":"${ .steps.a.tool }"})"});
  sim.start(0);
  sim.create();
  sim.run(1s);
  sim.start(1);
  sim.run(3100ms);  // the call times out, and arrives nevertheless
  ASSERT_EQ(sim.status(), "parked");
  ASSERT_EQ(sim.world().external_world().journal().begin()->second.in_transit, 1u);
  sim.world().pause(1);
  sim.resolve(1, "not_happened");
  sim.run(60s);
  sim.world().resume(1);
  sim.run(5s);
  ASSERT_EQ(sim.answers.size(), 1u);
  EXPECT_EQ(sim.answers[0], "not_settled");
  EXPECT_EQ(sim.status(), "parked");
  sim.resolve(1, "happened");
  sim.run(5s);
  EXPECT_EQ(sim.status(), "completed");
  EXPECT_EQ(canonical(sim.end()), R"("once")");
}

AE_TEST("sim/a job that kills its worker twice in a slice parks, and others continue") {
  for (const bool owned : {true, false}) {
    for (auto durability : {runtime::Durability::fused, runtime::Durability::split}) {
      OneJobWorld sim({.workers = 2, .owned = owned, .durability = {durability}},
                      {.name = "poison", .nodes = R"({"schema":1,"nodes":[
                {"id":"a","kind":"tool","tool":"put","args":{}},
                {"id":"poison","kind":"tool","tool":"put","needs":["a"],"args":{}}],
                "output":"done"})"});
      const SmallJob calm_job{.name = "calm", .nodes = R"({"schema":1,"nodes":[
                {"id":"a","kind":"tool","tool":"put","args":{}}]})"};
      const JobId other("job-1");
      int deaths = 0;
      sim.watch = [&](const SimProcess& process, std::string_view where) {
        if (where != kPoison) return;
        deaths++;
        sim.world().kill(process.worker);
      };
      const auto until_death = [&](int count) {
        sim.world().start(0);
        sim.world().loop().run([&] { return deaths == count; }, sim.world().loop().now() + 60s);
        ASSERT_EQ(deaths, count);
        sim.run(1ms);  // destroys the dead process
      };
      sim.world().start(0);
      sim.create();
      sim.run(1s);
      ASSERT_EQ(deaths, 1);
      until_death(2);
      sim.world().start(0);
      sim.create(other, calm_job);
      sim.run(60s);
      EXPECT_EQ(deaths, 2) << "it is not run again";
      EXPECT_EQ(sim.status(), "parked");
      EXPECT_EQ(sim.world().observer().jobs().at(JobId("job-0")).parked, "worn_out");
      EXPECT_EQ(sim.status_of(other), "completed");
      sim.watch = {};
      sim.submit(0, {.id = "resume", .by = "resume", .body = engine::ResumeRequest{}});
      sim.run(60s);  // the call that the dead process left open must settle first
      EXPECT_EQ(sim.status(), "completed");
      EXPECT_EQ(canonical(sim.end()), R"("done")");
    }
  }
}

}  // namespace
}  // namespace ae::sim
