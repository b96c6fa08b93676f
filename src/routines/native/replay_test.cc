// A routine is started again from its record, at every point of its log.
#include <random>

#include "routines/native/native_job_test.h"

namespace ae::routines {
namespace {

using testing::agent_plan;
using testing::json;
using testing::NativeJob;
using testing::NativeWorld;
using namespace std::chrono_literals;

// Chooses what happens next, and what a random program does.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  std::size_t below(std::size_t count) { return random_() % count; }
  bool one_in(std::size_t count) { return below(count) == 0; }

 private:
  std::mt19937_64 random_;
};

// ---------------------------------------------------------------- random programs

// A program that follows from a seed. Its branches share a number that each outcome changes, and
// each request contains it, so a request depends on the order of all outcomes before it.
class RandomProgram {
 public:
  explicit RandomProgram(std::uint64_t seed) : seed_(seed) {}

  Result<Value> run(Context& ctx) const {
    int shared = 0;
    AE_TRY(branch(ctx, "", shared, 0));
    return Value(shared);
  }

 private:
  using Branch = std::function<Result<Value>(Context&, std::size_t)>;

  // `path` names the branch; what it does follows from it.
  Result<Value> branch(Context& ctx, const std::string& path, int& shared, int depth) const {
    Dice dice(seed_ ^ std::hash<std::string>()(path));
    const std::size_t steps = 1 + dice.below(depth == 0 ? 4 : 3);
    for (std::size_t i = 0; i < steps; ++i) {
      AE_TRY(step(ctx, dice, fmt::format("{}/{}", path, i), shared, depth));
      ++shared;
    }
    return Value(shared);
  }

  Result<Value> step(Context& ctx, Dice& dice, const std::string& path, int& shared,
                     int depth) const {
    const Value args = Value::object({{"n", shared}, {"fails", dice.one_in(6)}});
    switch (dice.below(depth < 2 ? 11 : 7)) {
      case 0:
        return settled(ctx.call("ask", args));
      case 1:
        return settled(ctx.call("score", args));
      case 2:
        AE_TRY(ctx.sleep(std::chrono::seconds(1 + dice.below(3))));
        return ctx.random();
      case 3:
        shared += static_cast<int>(ctx.random() * 100) + static_cast<int>(ctx.now().us % 7);
        AE_TRY(ctx.emit("shared", Value::array({shared, ctx.uuid()})));
        return settled(ctx.call("pay", args.with("uuid", ctx.uuid())));
      case 4:
        return settled(first_of_two(ctx, args));
      case 5:
        return settled(ctx.approval("?"));
      case 6:
        return settled(ctx.run("step", EffectClass::idempotent, args, run_step));
      case 7:
        return map(ctx, dice, path, shared, depth);
      case 8:
        return race(ctx, dice, path, shared, depth);
      default:
        return closed_scope(ctx, path, shared, depth);
    }
  }

  static std::expected<Value, FunctionFailure> run_step(const Value& args, FunctionCall&) {
    if (args["fails"] != Value(true)) return args["n"];
    return std::unexpected(FunctionFailure{.code = "no", .message = "it fails"});
  }
  // A failure is a value of the program; only the end of the routine is an error.
  static Result<Value> settled(Result<Value> result) {
    if (result || result.error().code == Code::evicted) return result;
    return Value(code_name(result.error().code));
  }
  static Result<Value> first_of_two(Context& ctx, const Value& args) {
    const std::vector<Pending> pending{ctx.later_call("ask", args), ctx.later_sleep(2s)};
    AE_ASSIGN(const std::size_t first, ctx.first(pending));
    pending[1 - first].cancel();
    return pending[first].get();
  }
  Result<Value> map(Context& ctx, Dice& dice, const std::string& path, int& shared,
                    int depth) const {
    const std::vector<Value> items(1 + dice.below(3));
    const bool fold = dice.one_in(3);
    // The name of a map with closed scopes is used once.
    const std::string name =
        fold ? fmt::format("fold-{}", std::hash<std::string>()(path)) : "items";
    AE_ASSIGN(std::vector<Value> results, ctx.map(name, items,
                                                  [&](Context& inner, const Value&, std::size_t i) {
                                                    int own = static_cast<int>(i);
                                                    return branch(inner,
                                                                  fmt::format("{}.{}", path, i),
                                                                  fold ? own : shared, depth + 1);
                                                  },
                                                  {.parallel = 1 + dice.below(3), .fold = fold}));
    return Value::array(std::move(results));
  }
  Result<Value> race(Context& ctx, Dice& dice, const std::string& path, int& shared,
                     int depth) const {
    std::vector<RaceBranch> branches;
    for (std::size_t i = 0; i < 2 + dice.below(2); ++i) {
      const std::string its_path = fmt::format("{}.{}", path, i);
      branches.push_back({fmt::format("b{}", i), [this, its_path, &shared, depth](Context& inner) {
                            return branch(inner, its_path, shared, depth + 1);
                          }});
    }
    AE_ASSIGN(const RaceResult result, ctx.race("race", branches));
    return result.won;
  }
  Result<Value> closed_scope(Context& ctx, const std::string& path, int& shared, int depth) const {
    const int before = shared;
    return ctx.scope(fmt::format("closed-{}", std::hash<std::string>()(path)),
                     [&, before](Context& inner) -> Result<Value> {
                       int own = before;
                       return branch(inner, path, own, depth + 1);
                     });
  }

  std::uint64_t seed_;
};

// Runs a random program with random crashes.
void run_with_crashes(std::uint64_t seed) {
  const RandomProgram program(seed);
  Dice dice(seed + 1'000'000'007);
  NativeWorld world({.runs_functions_on_threads = dice.one_in(2)});
  world.add([&program](Context& ctx, const Value&) { return program.run(ctx); });
  NativeJob job(world);
  job.keeps_routine = dice.one_in(2);
  job.commits_left = static_cast<int>(dice.below(6));
  int crashes = 0;
  job.run_to_end([&](std::size_t count) {
    if (!job.commits_left && ++crashes < 4) job.commits_left = static_cast<int>(dice.below(8));
    return dice.below(count);
  });
  ASSERT_FALSE(job.divergence) << "seed " << seed << ": " << job.divergence->finding << " "
                               << job.divergence->position << "\n"
                               << job.log_text();
  ASSERT_EQ(job.status(), "completed") << "seed " << seed << "\n" << job.log_text();
  EXPECT_TRUE(world.has_no_threads()) << seed;
}

AE_TEST("replay/random programs go on after crashes") {
  for (std::uint64_t seed = 0; seed < 20 && !::testing::Test::HasFailure(); ++seed) {
    run_with_crashes(seed);
  }
}
AE_TEST_SLOW("replay/2,000 random programs go on after crashes") {
  for (std::uint64_t seed = 20; seed < 2'020 && !::testing::Test::HasFailure(); ++seed) {
    run_with_crashes(seed);
  }
}

// ---------------------------------------------------------------- every prefix of a log

// One of everything; its requests and its result do not depend on the order of outcomes.
Result<Value> everything(Context& ctx, const Value&) {
  const Value none = Value::object({});
  std::vector<Value> seen{to_text(ctx.now()), ctx.uuid(), ctx.random()};
  AE_TRY(ctx.emit("seen", 1));
  AE_ASSIGN(const std::vector<Value> all,
            ctx.map("item", std::vector<Value>{1, 2, 3},
                    [](Context& inner, const Value& item, std::size_t) -> Result<Value> {
                      AE_TRY(inner.call("score", Value::object({{"n", item}})));
                      AE_TRY(inner.emit("item", item));
                      return inner.call("ask", Value::object({{"n", inner.random()}}));
                    }));
  seen.insert(seen.end(), all.begin(), all.end());
  AE_ASSIGN(const Value closed, ctx.scope("closed", [&](Context& inner) -> Result<Value> {
    AE_TRY(inner.emit("inside", 1));
    AE_TRY(inner.sleep(1s));
    return inner.call("pay", Value::object({{"at", to_text(inner.now())}}));
  }));
  seen.push_back(closed);
  AE_TRY(ctx.approval("?"));
  AE_TRY(ctx.call("ask", none, {.key = "last"}));
  AE_TRY(ctx.emit("seen", 2));
  seen.emplace_back(ctx.random());
  seen.emplace_back(ctx.patched("more") ? "patched" : "not patched");
  return Value::array(std::move(seen));
}

AE_TEST("replay/from every commit of a log the routine requests the same, and ends the same") {
  NativeWorld world;
  world.add(everything);
  NativeJob whole(world);
  whole.run_to_end([](std::size_t) { return 0; });
  ASSERT_EQ(whole.status(), "completed") << whole.log_text();
  for (const std::size_t events : whole.commits) {
    if (is_terminal(whole.folded(events).status)) continue;
    NativeJob job(world, whole, events);
    job.run_to_end([](std::size_t) { return 0; });
    ASSERT_EQ(job.status(), "completed") << events << "\n" << job.log_text();
    EXPECT_EQ(job.count(EventType::value_emitted), whole.count(EventType::value_emitted));
    auto positions = job.positions(), expected = whole.positions();
    std::ranges::sort(positions);
    std::ranges::sort(expected);
    EXPECT_EQ(positions, expected);
  }
  EXPECT_TRUE(world.has_no_threads());
}

AE_TEST("replay/recorded values are given again") {
  NativeWorld world;
  std::vector<std::string> seen;
  world.add([&seen](Context& ctx, const Value&) -> Result<Value> {
    const Value values = Value::array({to_text(ctx.now()), ctx.uuid(), ctx.random(), ctx.random()});
    seen.push_back(canonical(values));
    AE_TRY(ctx.sleep(10s));
    Value more = Value::array({to_text(ctx.now()), ctx.uuid(), ctx.random()});
    AE_TRY(ctx.sleep(10s));
    return more;
  });
  NativeJob job(world);
  job.run();
  job.crash();
  job.run();
  job.after(10s);
  job.run();
  job.crash();
  job.run();
  job.after(10s);
  job.run();
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(seen[0], seen[2]);
  EXPECT_EQ(job.count(EventType::time_recorded), 2u);
}

AE_TEST("replay/a request that waited to be admitted is requested again") {
  NativeWorld world;
  world.add([](Context& ctx, const Value&) -> Result<Value> {
    const Value none = Value::object({});
    const Pending a = ctx.later_call("ask", none), b = ctx.later_call("pay", none);
    AE_TRY(a.get());
    return b.get();
  });
  NativeJob job(world, agent_plan(", 'parallel': 1"));
  job.run();
  EXPECT_EQ(job.positions(), std::vector<std::string>({"ask"}));
  job.crash();
  job.run();
  ASSERT_EQ(job.status(), "running") << job.log_text();
  EXPECT_EQ(job.positions(), std::vector<std::string>({"ask"})) << "its outcome is unknown";
}

AE_TEST("replay/an outcome that comes during the replay is delivered after it") {
  for (int i = 0; i < 20; ++i) {
    NativeWorld world;
    std::vector<std::string> seen;
    world.add([&seen](Context& ctx, const Value&) -> Result<Value> {
      const Value none = Value::object({});
      const std::vector<Pending> pending{ctx.later_call("ask", none), ctx.later_call("ask", none),
                                         ctx.later_call("ask", none)};
      seen.clear();
      for (int n = 0; n < 2; ++n) AE_TRY(pending[static_cast<std::size_t>(n)].get());
      seen.emplace_back("both");
      AE_TRY(pending[2].get());
      seen.emplace_back("third");
      return ctx.call("pay", none);
    });
    NativeJob job(world);
    job.run();
    job.answer("ask#2", "2");
    job.run();
    job.crash();
    job.answer("ask#3", "3");  // the new routine may not have begun
    job.answer("ask", "1");
    job.run();
    EXPECT_EQ(job.remote.size(), 1u);
    job.answer("pay", "4");
    job.run();
    ASSERT_EQ(job.status(), "completed") << job.log_text();
    EXPECT_EQ(seen, std::vector<std::string>({"both", "third"}));
    // ask#2, ask#3, ask, in this order: as the log has them.
    NativeJob again(world, job, job.commits[job.commits.size() - 2]);
    again.run();
    EXPECT_FALSE(again.divergence);
  }
}

// ---------------------------------------------------------------- divergence

// The divergence of `second` with the log of `first`, after `answers` outcomes of `ask`.
Divergence divergence_of(AgentBody first, AgentBody second, int answers = 0) {
  std::optional<Divergence> found;
  NativeWorld old_world, new_world;
  old_world.add(std::move(first));
  new_world.add(std::move(second));
  NativeJob old_job(old_world);
  old_job.run();
  for (int i = 0; i < answers; ++i) {
    old_job.answer(std::string(old_job.remote.front().position), "1");
    old_job.run();
  }
  NativeJob job(new_world, old_job, old_job.log.size());
  job.run();
  EXPECT_TRUE(job.divergence) << job.log_text();
  EXPECT_EQ(job.positions(), old_job.positions()) << "nothing is admitted before the frontier";
  EXPECT_EQ(job.advances, 0);
  job.lose_routine();
  EXPECT_TRUE(new_world.has_no_threads());
  return job.divergence.value_or(Divergence());
}

Result<Value> two_calls(Context& ctx, const Value&) {
  AE_TRY(ctx.call("ask", json("{'n': 1}")));
  return ctx.call("pay", json("{'n': 2}"));
}

AE_TEST("divergence/other arguments, another tool, another kind") {
  const Divergence arguments = divergence_of(
      two_calls, [](Context& ctx, const Value&) { return ctx.call("ask", json("{'n': 2}")); });
  EXPECT_EQ(arguments.finding, "arguments");
  EXPECT_EQ(arguments.position, "ask");
  EXPECT_EQ(arguments.delivered, 0);
  const Divergence tool = divergence_of(two_calls, [](Context& ctx, const Value&) {
    return ctx.call("pay", json("{'n': 1}"), {.name = "ask"});
  });
  EXPECT_EQ(tool.finding, "arguments");
  EXPECT_EQ(tool.found.text("tool"), "pay");
  const Divergence kind = divergence_of(two_calls, [](Context& ctx, const Value&) -> Result<Value> {
    AE_TRY(ctx.sleep(1s, {.name = "ask"}));
    return 1;
  });
  EXPECT_EQ(kind.finding, "arguments");
  EXPECT_EQ(kind.found.text("kind"), "wait");
}

AE_TEST("divergence/a recorded request is missing when the routine has settled") {
  const Divergence found = divergence_of(
      two_calls,
      [](Context& ctx, const Value&) -> Result<Value> {
        AE_TRY(ctx.call("ask", json("{'n': 1}")));
        return ctx.call("ask", json("{'n': 2}"));
      },
      1);
  EXPECT_EQ(found.finding, "missing");
  EXPECT_EQ(found.position, "pay");
  EXPECT_EQ(found.delivered, 1);
}

AE_TEST("divergence/the code ended before a recorded request") {
  const Divergence returned =
      divergence_of(two_calls, [](Context&, const Value&) -> Result<Value> { return 1; });
  EXPECT_EQ(returned.finding, "ended");
  EXPECT_EQ(returned.position, "ask");
  EXPECT_TRUE(returned.found.is_null());
  const Divergence threw = divergence_of(
      two_calls,
      [](Context& ctx, const Value&) -> Result<Value> {
        AE_TRY(ctx.call("ask", json("{'n': 1}")));
        throw std::runtime_error("a bug");
      },
      1);
  EXPECT_EQ(threw.finding, "ended");
  EXPECT_EQ(threw.found["exception"].text("message"), "a bug");
}

AE_TEST("divergence/a change that is guarded by patched is none") {
  NativeWorld old_world, new_world;
  old_world.add(two_calls);
  new_world.add([](Context& ctx, const Value&) -> Result<Value> {
    if (ctx.patched("first")) AE_TRY(ctx.call("pay", json("{'n': 0}")));
    AE_TRY(ctx.call("ask", json("{'n': 1}")));
    if (ctx.patched("cents")) return ctx.call("pay", json("{'n': 200}"));
    return ctx.call("pay", json("{'n': 2}"));
  });
  NativeJob old_job(old_world);
  old_job.run();
  NativeJob job(new_world, old_job, old_job.log.size());
  job.run();
  job.crash();  // the call is made again: it is a read
  job.run();
  ASSERT_FALSE(job.divergence) << job.divergence->position;
  job.answer("ask", "1");
  job.run();
  ASSERT_EQ(job.remote.size(), 1u) << job.log_text();
  EXPECT_EQ(job.remote[0].args, json("{'n': 200}"));
  job.crash();
  job.run();
  EXPECT_FALSE(job.divergence);
  EXPECT_EQ(job.count(EventType::decision_recorded), 2u) << job.log_text();
}

}  // namespace
}  // namespace ae::routines
