// Branches on threads of the routine, closed scopes, and requests that are awaited later.
#include "routines/native/native_job_test.h"

namespace ae::routines {
namespace {

using testing::agent_plan;
using testing::json;
using testing::NativeJob;
using testing::NativeWorld;
using namespace std::chrono_literals;
using Texts = std::vector<std::string>;

const Value kNone = Value::object({});

std::vector<Value> numbers(int count) {
  std::vector<Value> items;
  items.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) items.emplace_back(i);
  return items;
}

Value code_of(const auto& result) {
  return result ? Value("ok") : Value(code_name(result.error().code));
}

AE_TEST("map/branches run in scopes of their own, some at a time, and give results in order") {
  NativeWorld world;
  world.add([](Context& ctx, const Value&) -> Result<Value> {
    AE_ASSIGN(std::vector<Value> done,
              ctx.map("item", numbers(5),
                      [](Context& inner, const Value& item, std::size_t) -> Result<Value> {
                        AE_TRY(inner.call("ask", Value::object({{"n", item}})));
                        return inner.call("ask", Value::object({{"n", item}}));
                      },
                      {.parallel = 2}));
    return Value::array(std::move(done));
  });
  NativeJob job(world);
  job.run();
  EXPECT_EQ(job.positions(), Texts({"item/0/ask", "item/1/ask"}));
  job.answer("item/1/ask", "null");
  job.run();
  job.answer("item/1/ask#2", "'b'");
  job.run();
  EXPECT_EQ(job.positions(), Texts({"item/0/ask", "item/1/ask", "item/1/ask#2", "item/2/ask"}));
  job.answer("item/0/ask", "null");
  job.run();
  job.answer("item/0/ask#2", "'a'");
  job.run();
  while (!job.remote.empty()) {
    job.answer(std::string(job.remote.front().position), "'c'");
    job.run();
  }
  EXPECT_EQ(job.result(), R"({"code":["a","b","c","c","c"]})") << job.log_text();
  EXPECT_TRUE(world.has_no_threads());
}

AE_TEST("map/the first failure ends the other branches, and closes their waits") {
  NativeWorld world;
  Texts seen;
  world.add([&seen](Context& ctx, const Value&) -> Result<Value> {
    const auto failed =
        ctx.map("item", numbers(3),
                [&seen](Context& inner, const Value& item, std::size_t i) -> Result<Value> {
                  if (i == 1) {
                    AE_TRY(inner.call("ask", kNone));
                    return inner.call("ask", item);
                  }
                  const Status slept = inner.sleep(1h);
                  seen.emplace_back(code_name(slept.error().code));
                  seen.emplace_back(code_name(inner.call("ask", kNone).error().code));
                  return std::unexpected(slept.error());
                });
    return code_of(failed);
  });
  NativeJob job(world);
  job.run();
  job.answer("item/1/ask", "1");
  job.run();
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.result(), R"({"code":"input_invalid"})");
  for (const WaitCompleted& wait : job.all<WaitCompleted>()) EXPECT_EQ(wait.outcome, "cancelled");
  EXPECT_EQ(job.count(EventType::wait_completed), 2u);
  EXPECT_EQ(seen, Texts({"evicted", "evicted", "evicted", "evicted"}));
}

AE_TEST("map/failures are collected if the options do, exceptions are thrown again") {
  NativeWorld world;
  world.add([](Context& ctx, const Value&) -> Result<Value> {
    AE_ASSIGN(const std::vector<Value> all,
              ctx.map("item", numbers(3),
                      [](Context&, const Value& item, std::size_t i) -> Result<Value> {
                        if (i == 1) return fail(Code::denied, "not this one");
                        return item;
                      },
                      {.collect_errors = true}));
    try {
      const auto none =
          ctx.map("throws", numbers(2), [](Context&, const Value&, std::size_t) -> Result<Value> {
            throw std::runtime_error("boom");
          });
      ADD_FAILURE() << none.has_value();
    } catch (const std::runtime_error& e) {
      return Value::array({Value::array(all), e.what()});
    }
    return 0;
  });
  NativeJob job(world);
  job.run();
  EXPECT_EQ(job.result(),
            R"({"code":[[0,{"error":{"code":"denied","message":"not this one"}},2],"boom"]})");
}

AE_TEST("race/the first branch wins, the others end and their waits are closed") {
  NativeWorld world;
  world.add([](Context& ctx, const Value&) -> Result<Value> {
    const std::vector<RaceBranch> branches{
        {"answer", [](Context& inner) { return inner.call("ask", kNone); }},
        {"late", [](Context& inner) -> Result<Value> {
           AE_TRY(inner.sleep(1h));
           return "late";
         }}};
    AE_ASSIGN(const RaceResult result, ctx.race("first", branches));
    AE_TRY(ctx.call("pay", kNone));
    return Value::array({result.won, result.value});
  });
  NativeJob job(world);
  job.run();
  EXPECT_EQ(job.positions(), Texts({"first/answer/ask", "first/late/sleep"}));
  job.answer("first/answer/ask", "7");
  job.run();
  EXPECT_EQ(job.last<WaitCompleted>().outcome, "cancelled");
  job.answer("pay", "null");
  job.run();
  EXPECT_EQ(job.result(), R"({"code":["answer",7]})") << job.log_text();
  EXPECT_TRUE(world.has_no_threads());
}

AE_TEST("race/the call of a loser ends later, without effect") {
  NativeWorld world;
  world.add([](Context& ctx, const Value&) -> Result<Value> {
    const std::vector<RaceBranch> branches{
        {"slow", [](Context& inner) { return inner.call("ask", kNone); }},
        {"timeout", [](Context& inner) -> Result<Value> {
           AE_TRY(inner.sleep(10s));
           return "timeout";
         }}};
    AE_ASSIGN(const RaceResult result, ctx.race("first", branches));
    AE_TRY(ctx.sleep(10s));
    return result.won;
  });
  NativeJob job(world);
  job.run();
  job.after(10s);
  job.run();
  job.answer("first/slow/ask", "1");
  job.run();
  job.after(10s);
  job.run();
  EXPECT_EQ(job.result(), R"({"code":"timeout"})") << job.log_text();
}

AE_TEST("pending/the first of several requests, and one that is cancelled") {
  NativeWorld world;
  world.add([](Context& ctx, const Value&) -> Result<Value> {
    const std::vector<Pending> pending{ctx.later_call("ask", kNone), ctx.later_call("pay", kNone),
                                       ctx.later_sleep(1h)};
    AE_ASSIGN(const std::size_t first, ctx.first(pending));
    pending[2].cancel();
    EXPECT_EQ(pending[2].get().error().code, Code::input_invalid);
    AE_ASSIGN(const std::size_t still_first, ctx.first(pending));
    EXPECT_EQ(first, still_first);
    AE_ASSIGN(const Value other, pending[1 - first].get());
    return Value::array({static_cast<std::uint64_t>(first), other});
  });
  NativeJob job(world);
  job.run();
  job.answer("pay", "1");
  job.run();
  EXPECT_EQ(job.last<WaitCompleted>().outcome, "cancelled");
  job.answer("ask", "2");
  job.run();
  EXPECT_EQ(job.result(), R"({"code":[1,2]})") << job.log_text();
}

AE_TEST("pending/a request that is cancelled in its own advance is not made") {
  NativeWorld world;
  world.add([](Context& ctx, const Value&) -> Result<Value> {
    ctx.later_call("pay", kNone).cancel();
    ctx.later_sleep(1h).cancel();
    return ctx.call("ask", kNone);
  });
  NativeJob job(world);
  job.run();
  EXPECT_EQ(job.positions(), Texts({"ask"}));
  job.answer("ask", "1");
  job.run();
  EXPECT_EQ(job.status(), "completed") << job.log_text();
}

AE_TEST("scope/the result of a closed scope is recorded, when its requests have outcomes") {
  NativeWorld world;
  world.add([](Context& ctx, const Value&) -> Result<Value> {
    AE_ASSIGN(const Value inside, ctx.scope("closed", [](Context& inner) -> Result<Value> {
      const Pending unused = inner.later_call("pay", kNone);
      const Pending closed = inner.later_sleep(1h);
      AE_ASSIGN(const Value answer, inner.call("ask", kNone));
      return Value::array({answer, inner.random()});
    }));
    const Result<Value> failed =
        ctx.scope("fails", [](Context&) -> Result<Value> { return fail(Code::denied, "no"); });
    EXPECT_EQ(failed.error().message, "no");
    AE_TRY(ctx.sleep(1s));
    return inside.items()[0];
  });
  NativeJob job(world);
  job.run();
  EXPECT_EQ(job.positions(), Texts({"closed", "closed/pay", "closed/sleep", "closed/ask"}));
  job.answer("closed/ask", "1");
  job.run();
  EXPECT_EQ(job.count(EventType::node_finished), 2u) << job.log_text();
  job.answer("closed/pay", "2");
  job.run();
  EXPECT_EQ(job.status(), "waiting") << job.log_text();
  job.after(1s);
  job.run();
  EXPECT_EQ(job.result(), R"({"code":1})") << job.log_text();
}

// The map runs in one branch and the race in the other, both in the scope of the whole code.
AE_TEST("race/a map with the same name keeps its requests when the race ends") {
  NativeWorld world;
  world.add([](Context& ctx, const Value&) -> Result<Value> {
    const auto maps = [&](Context&) -> Result<Value> {
      AE_ASSIGN(std::vector<Value> done,
                ctx.map("same", numbers(2), [](Context& item, const Value&, std::size_t) {
                  return item.call("ask", kNone);
                }));
      return Value::array(std::move(done));
    };
    const auto races = [&](Context&) -> Result<Value> {
      const std::vector<RaceBranch> branches{
          {"quick", [](Context& inner) { return inner.call("ask", kNone); }},
          {"slow", [](Context& inner) { return inner.call("ask", kNone); }}};
      AE_ASSIGN(const RaceResult result, ctx.race("same", branches));
      return Value(result.won);
    };
    AE_ASSIGN(std::vector<Value> both,
              ctx.map("both", numbers(2), [&](Context& inner, const Value&, std::size_t i) {
                return i == 0 ? maps(inner) : races(inner);
              }));
    return Value::array(std::move(both));
  });
  NativeJob job(world);
  job.run();
  EXPECT_EQ(job.positions(),
            Texts({"same/0/ask", "same/1/ask", "same/quick/ask", "same/slow/ask"}));
  job.answer("same/quick/ask", "1");
  job.run();
  for (const std::string_view open : {"same/0/ask", "same/1/ask", "same/slow/ask"}) {
    job.answer(std::string(open), "2");
    job.run();
  }
  EXPECT_EQ(job.result(), R"({"code":[[2,2],"quick"]})") << job.log_text();
  EXPECT_TRUE(world.has_no_threads());
}

AE_TEST("scope/closed scopes in a loop have numbers, and items of a map can be closed scopes") {
  NativeWorld world;
  world.add([](Context& ctx, const Value&) -> Result<Value> {
    Value sum = 0;
    for (std::uint64_t turn = 0; turn < 3; ++turn) {
      AE_ASSIGN(sum, ctx.scope(
                         "turn",
                         [&](Context& inner) {
                           return inner.run("add", EffectClass::read, Value::object({{"n", sum}}),
                                            [](const Value& args, FunctionCall&) {
                                              return Value(args["n"].as_int() + 1);
                                            });
                         },
                         turn));
    }
    AE_ASSIGN(std::vector<Value> all, ctx.map("item", numbers(3),
                                              [](Context& inner, const Value& item, std::size_t) {
                                                return inner.call("score",
                                                                  Value::object({{"n", item}}));
                                              },
                                              {.fold = true}));
    all.push_back(sum);
    return Value::array(std::move(all));
  });
  NativeJob job(world);
  job.run();
  EXPECT_EQ(job.result(), R"({"code":[0,1,2,3]})") << job.log_text();
  EXPECT_EQ(job.count(EventType::node_finished), 13u);
}

AE_TEST("loop/a routine that continues begins with the newest turn") {
  std::vector<std::uint64_t> turns;
  NativeWorld world;
  world.add([&](Context& ctx, const Value&) {
    return ctx.loop("chat", Value(0),
                    [&](Context& turn, const Value& sum, std::uint64_t number) -> Result<Turn> {
                      turns.push_back(number);
                      AE_ASSIGN(const Value more, turn.call("ask", kNone));
                      return Turn{.is_last = number == 9,
                                  .value = Value(sum.as_int() + more.as_int())};
                    });
  });
  NativeJob job(world);
  job.run();
  for (int n = 0; n < 7; ++n) {
    job.answer(fmt::format("chat/{}/ask", n), "1");
    job.run();
  }
  job.crash();
  job.run();
  for (int n = 7; n < 10; ++n) {
    job.answer(fmt::format("chat/{}/ask", n), "2");
    job.run();
  }
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.result(), R"({"code":13})");
  EXPECT_EQ(turns, (std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5, 6, 7, 7, 8, 9}));
}

AE_TEST("loop/the failure of a turn is that of the loop, also for a later routine") {
  NativeWorld world;
  world.add([](Context& ctx, const Value&) -> Result<Value> {
    const Result<Value> end =
        ctx.loop("chat", Value(0), [](Context&, const Value&, std::uint64_t) -> Result<Turn> {
          return fail(Code::denied, "no");
        });
    AE_TRY(ctx.call("ask", kNone));
    return Value(end ? std::string("none") : end.error().message);
  });
  NativeJob job(world);
  job.run();
  job.crash();
  job.run();
  job.answer("ask", "1");
  job.run();
  EXPECT_EQ(job.result(), R"({"code":"no"})") << job.log_text();
}

AE_TEST("scope/inside of a closed scope only its own Context can be used") {
  NativeWorld world;
  world.add([](Context& ctx, const Value&) -> Result<Value> {
    return ctx.scope("closed", [&](Context&) { return ctx.call("ask", kNone); });
  });
  NativeJob job(world);
  job.run();
  EXPECT_EQ(job.last<RoutineFailed>().error.value["name"], Value("wrong_scope"));
}

AE_TEST("scope/an exception in a closed scope ends the code, although it is caught") {
  NativeWorld world;
  world.add([](Context& ctx, const Value&) -> Result<Value> {
    try {
      const auto none =
          ctx.scope("closed", [](Context&) -> Result<Value> { throw std::runtime_error("boom"); });
      ADD_FAILURE() << none.has_value();
    } catch (const std::runtime_error&) {
      EXPECT_EQ(ctx.call("ask", kNone).error().code, Code::evicted);
    }
    return 1;
  });
  NativeJob job(world);
  job.run();
  EXPECT_EQ(job.last<RoutineFailed>().error.value["message"], Value("boom"));
}

AE_TEST("race/the closed scope of a loser ends with its requests") {
  NativeWorld world;
  world.add([](Context& ctx, const Value&) -> Result<Value> {
    const std::vector<RaceBranch> branches{
        {"scope",
         [](Context& inner) {
           return inner.scope("closed", [](Context& in) { return in.call("ask", kNone); });
         }},
        {"timeout", [](Context& inner) -> Result<Value> {
           AE_TRY(inner.sleep(10s));
           return "timeout";
         }}};
    return ctx.scope("outer", [&](Context& outer) -> Result<Value> {
      AE_ASSIGN(const RaceResult result, outer.race("first", branches));
      return result.won;
    });
  });
  NativeJob job(world);
  job.run();
  job.after(10s);
  job.run();
  EXPECT_EQ(job.status(), "running") << "the outer scope has a request without an outcome";
  job.answer("outer/first/scope/closed/ask", "1");
  job.run();
  EXPECT_EQ(job.result(), R"({"code":"timeout"})") << job.log_text();
}

// Branches share a variable without a lock, and each request contains it.
Result<Value> shared_variable(Context& ctx, const Value&) {
  int shared = 0;
  AE_ASSIGN(std::vector<Value> all,
            ctx.map("item", numbers(8),
                    [&](Context& inner, const Value& item, std::size_t) -> Result<Value> {
                      for (int i = 0; i < 3; ++i) {
                        AE_TRY(inner.run("step", EffectClass::read,
                                         Value::object({{"item", item}, {"shared", ++shared}}),
                                         [](const Value& args, FunctionCall&) { return args; }));
                      }
                      return Value(++shared);
                    },
                    {.parallel = 4}));
  return Value::array(std::move(all));
}

void expect_same_logs(int runs) {
  std::string first;
  for (int i = 0; i < runs; ++i) {
    NativeWorld world({.runs_functions_on_threads = false});
    world.add(shared_variable);
    NativeJob job(world);
    job.run();
    ASSERT_EQ(job.status(), "completed") << job.log_text();
    if (i == 0) first = job.log_text();
    ASSERT_EQ(job.log_text(), first) << i;
  }
}

AE_TEST("map/the threads run in the same order each time") { expect_same_logs(2); }
AE_TEST_SLOW("map/the threads run in the same order in 200 runs") { expect_same_logs(200); }

}  // namespace
}  // namespace ae::routines
