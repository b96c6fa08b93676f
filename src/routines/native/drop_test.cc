// Routines that are dropped, and the calls of their functions.
#include <thread>

#include "routines/native/native_job_test.h"

namespace ae::routines {
namespace {

using testing::json;
using testing::NativeJob;
using testing::NativeWorld;
using namespace std::chrono_literals;

const Value kNoArguments = Value::object({});

// Where a function waits until the test releases it.
struct FunctionBarrier {
  explicit FunctionBarrier(ae::testing::TestLoop& l) : loop(l) {}

  ae::testing::TestLoop& loop;
  std::atomic<int> inside = 0;
  std::atomic<bool> open = false;
  void wait() {
    inside++;
    loop.post([] {});
    open.wait(false);
  }
  void release() {
    open = true;
    open.notify_all();
  }
  bool wait_until_inside() {
    return loop.run_until([this] { return inside.load() == 1; });
  }
};

// Branches, a race and a closed scope; counts its calls that failed because it was dropped.
struct Everything {
  std::atomic<int> evicted = 0;

  Result<Value> operator()(Context& ctx, const Value&) {
    const auto note = [this](Result<Value> result) {
      if (!result && result.error().code == Code::evicted) evicted++;
      return result;
    };
    AE_TRY(note(ctx.call("score", json("{'n': 1}"))));
    const Result<std::vector<Value>> all =
        ctx.map("item", std::vector<Value>(3), [&](Context& inner, const Value&, std::size_t) {
          return note(inner.scope("closed", [&](Context& in) -> Result<Value> {
            AE_TRY(note(in.call("ask", kNoArguments)));
            AE_TRY(in.sleep(1s));
            return note(in.call("score", json("{'n': 2}")));
          }));
        });
    if (!all) return std::unexpected(all.error());
    const std::vector<RaceBranch> branches{
        {"a", [&](Context& inner) { return note(inner.call("ask", kNoArguments)); }},
        {"b", [&](Context& inner) { return note(inner.approval("?")); }}};
    AE_TRY(ctx.race("race", branches));
    return note(ctx.call("pay", kNoArguments));
  }
};

AE_TEST("drop/at every step of the loop no thread is left, and the job goes on") {
  for (int steps = 0;; ++steps) {
    NativeWorld world;
    Everything everything;
    world.add(std::ref(everything));
    NativeJob job(world);
    int left = steps;
    job.run_to_end([&](std::size_t) {
      if (left-- == 0) {
        job.crash();
      }
      return 0;
    });
    ASSERT_EQ(job.status(), "completed") << steps << "\n" << job.log_text();
    ASSERT_TRUE(world.has_no_threads()) << steps;
    EXPECT_EQ(world.routines->running_routines(), 0u);
    if (left >= 0) break;
    EXPECT_GT(everything.evicted, 0) << steps;
  }
}

AE_TEST("drop/while its threads run, at any time") {
  for (int i = 0; i < 50; ++i) {
    NativeWorld world;
    Everything everything;
    world.add(std::ref(everything));
    NativeJob job(world);
    for (std::atomic<int> spins = 0; spins < i * 2'000;) spins++;
    job.lose_routine();
    ASSERT_TRUE(world.has_no_threads()) << i;
  }
}

AE_TEST("drop/every call fails with evicted at once and for ever, values are still given") {
  NativeWorld world;
  std::vector<std::string> seen;
  world.add([&seen](Context& ctx, const Value&) -> Result<Value> {
    const Pending pending = ctx.later_call("pay", kNoArguments);
    const Result<Value> first = ctx.call("ask", kNoArguments);
    const auto see = [&seen](const auto& result) {
      seen.emplace_back(result ? "ok" : code_name(result.error().code));
    };
    see(first);
    see(pending.get());
    see(ctx.first(std::vector<Pending>{pending}));
    see(ctx.sleep(1s));
    see(ctx.scope("closed", [](Context&) -> Result<Value> { return 1; }));
    see(ctx.map("item", std::vector<Value>(2),
                [](Context&, const Value&, std::size_t) -> Result<Value> { return 1; }));
    see(ctx.race("race",
                 std::vector<RaceBranch>{{"a", [](Context&) -> Result<Value> { return 1; }}}));
    see(ctx.emit("x", 1));
    EXPECT_EQ(ctx.uuid().size(), 36u);
    EXPECT_LT(ctx.random(), 1);
    EXPECT_FALSE(ctx.patched("x"));
    static_cast<void>(ctx.now());
    for (int i = 0; i < 1'000; ++i) see(ctx.call("ask", kNoArguments));
    return first;
  });
  NativeJob job(world);
  job.run();
  job.lose_routine();
  ASSERT_TRUE(world.has_no_threads());
  EXPECT_EQ(seen, std::vector<std::string>(1'008, "evicted"));
}

AE_TEST("drop/a function goes on, and its outcome is that of a call without a routine") {
  NativeWorld world;
  const auto barrier = std::make_shared<FunctionBarrier>(world.loop);
  world.add([barrier](Context& ctx, const Value&) {
    return ctx.run("slow", EffectClass::read, kNoArguments,
                   [barrier](const Value&, FunctionCall&) -> std::expected<Value, FunctionFailure> {
                     barrier->wait();
                     return 7;
                   });
  });
  NativeJob job(world);
  ASSERT_TRUE(barrier->wait_until_inside());
  job.lose_routine();
  ASSERT_TRUE(world.has_no_threads()) << "the routine does not wait for it";
  barrier->release();
  ASSERT_TRUE(world.loop.run_until([&] { return !job.forgotten.empty(); }));
  EXPECT_EQ(job.forgotten[0].kind, OutcomeKind::success);
  EXPECT_EQ(job.forgotten[0].result, Value(7));
  EXPECT_FALSE(job.forgotten[0].delivered);
}

AE_TEST("drop/a success that was given and not recorded ends its call") {
  NativeWorld world;
  std::atomic<bool> is_given = false;
  world.add([&](Context& ctx, const Value&) -> Result<Value> {
    AE_TRY(ctx.call("score", json("{'n': 1}")));
    is_given = true;
    world.loop.post([] {});  // before the advance is
    return ctx.call("ask", kNoArguments);
  });
  NativeJob job(world);
  ASSERT_TRUE(world.loop.run_until([&] { return is_given.load(); }));
  job.lose_routine();
  ASSERT_TRUE(world.loop.run_until([&] { return !job.forgotten.empty(); }));
  EXPECT_EQ(job.forgotten[0].result, Value(1));
  EXPECT_FALSE(job.forgotten[0].delivered);
  EXPECT_EQ(job.advances, 1);
  ASSERT_TRUE(world.has_no_threads());
}

AE_TEST("drop/code that does not return keeps its place, and is counted after ten seconds") {
  NativeWorld world({.limits = {.routines = 2}});
  const auto barrier = std::make_shared<FunctionBarrier>(world.loop);
  world.add([barrier](Context&, const Value&) -> Result<Value> {
    barrier->wait();
    return 1;
  });
  NativeJob job(world);
  ASSERT_TRUE(barrier->wait_until_inside());
  job.lose_routine();
  world.advance(9s);
  EXPECT_EQ(world.routines->abandoned_threads(), 0u);
  world.advance(1s);
  EXPECT_EQ(world.routines->abandoned_threads(), 1u);
  EXPECT_EQ(world.routines->running_routines(), 1u);
  barrier->release();
  ASSERT_TRUE(world.has_no_threads());
  EXPECT_EQ(world.routines->abandoned_threads(), 0u);
  EXPECT_EQ(world.routines->running_routines(), 0u);
}

AE_TEST("drop/no routine is started when all places are taken, or for code that is not here") {
  NativeWorld world({.limits = {.routines = 1}});
  world.add([](Context& ctx, const Value&) { return ctx.call("ask", kNoArguments); });
  NativeJob job(world);
  job.run();
  const auto start = [&](std::string_view version) {
    const auto plan = testing::agent_plan("", version);
    return world.routines->start({.job = job.state.job,
                                  .node = 0,
                                  .plan = plan,
                                  .version = std::string(version),
                                  .client = &job});
  };
  EXPECT_EQ(start(""), nullptr) << "full";
  job.lose_routine();
  ASSERT_TRUE(world.has_no_threads());
  EXPECT_EQ(start("2"), nullptr) << "another version";
  NativeRoutines others({.loop = world.loop,
                         .clock = world.loop,
                         .steady_clock = world.clock,
                         .random = world.random});
  others.add(NativeAgent{.name = "agent",
                         .body = [](Context&, const Value&) -> Result<Value> { return 1; }});
  EXPECT_EQ(others.start(
                {.job = job.state.job, .node = 0, .plan = testing::agent_plan(), .client = &job}),
            nullptr)
      << "without the function score";
}

AE_TEST("drop/a routine is lost when there is no thread for a branch") {
  NativeWorld world({.limits = {.threads = 2}});
  world.add([](Context& ctx, const Value&) -> Result<Value> {
    AE_TRY(ctx.map("item", std::vector<Value>(3), [](Context& inner, const Value&, std::size_t) {
      return inner.call("ask", kNoArguments);
    }));
    return 1;
  });
  NativeJob job(world);
  job.run();
  ASSERT_TRUE(job.lost);
  EXPECT_EQ(job.lost->code, Code::unavailable);
  EXPECT_TRUE(job.positions().empty());
  ASSERT_TRUE(world.has_no_threads());
}

// ---------------------------------------------------------------- deadlines of functions

AE_TEST("deadline/the function is asked to stop, and its late result does not go to the routine") {
  NativeWorld world;
  std::atomic<bool> is_inside = false, is_stopped = false;
  world.add([&](Context& ctx, const Value&) -> Result<Value> {
    const Result<Value> result =
        ctx.run("slow", EffectClass::at_most_once, kNoArguments,
                [&](const Value&, FunctionCall& call) -> std::expected<Value, FunctionFailure> {
                  is_inside = true;
                  world.loop.post([] {});
                  while (!call.stop().stop_requested()) std::this_thread::yield();
                  is_stopped = true;
                  return 7;
                });
    return result ? Value("given") : Value(code_name(result.error().code));
  });
  NativeJob job(world);
  ASSERT_TRUE(world.loop.run_until([&] { return is_inside.load(); }));
  job.after(31s);
  ASSERT_TRUE(world.loop.run_until([&] { return !job.late.empty(); }));
  EXPECT_TRUE(is_stopped);
  EXPECT_EQ(job.late[0].result, Value(7));
  EXPECT_EQ(job.last<ToolInvocationFinished>().outcome, "timeout");
  EXPECT_EQ(job.status(), "parked") << "its outcome is unknown";
}

AE_TEST("deadline/a function gets its keys, reports progress, and the next try has the same key") {
  NativeWorld world;
  std::vector<std::string> keys;
  world.add([&keys](Context& ctx, const Value&) {
    return ctx.run(
        "a", EffectClass::idempotent, kNoArguments,
        [&keys](const Value&, FunctionCall& call) -> std::expected<Value, FunctionFailure> {
          keys.push_back(fmt::format("{} {}", call.key(), call.execution_key()));
          call.progress("half");
          if (call.try_no() == 1) {
            return std::unexpected(FunctionFailure{.code = "busy", .retryable = true});
          }
          return Value(std::uint64_t{call.try_no()});
        });
  });
  NativeJob job(world);
  job.run();
  job.after(10s);
  job.run();
  EXPECT_EQ(job.result(), R"({"code":2})") << job.log_text();
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0], keys[1]);
}

}  // namespace
}  // namespace ae::routines
