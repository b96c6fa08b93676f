// What a body requests, one after the other, and what it is given.
#include "log/seal.h"
#include "routines/native/native_job_test.h"
#include "testing/permit.h"

namespace ae::routines {
namespace {

using testing::agent_plan;
using testing::json;
using testing::NativeJob;
using testing::NativeWorld;
using namespace std::chrono_literals;

Function doubled() {
  return [](const Value& args, FunctionCall&) -> std::expected<Value, FunctionFailure> {
    return Value(args["n"].as_int() * 2);
  };
}

AE_TEST("requests/runs, calls and registered functions, one after the other") {
  NativeWorld world;
  world.add([](Context& ctx, const Value& input) -> Result<Value> {
    AE_ASSIGN(const Value twice, ctx.run("twice", EffectClass::read, input, doubled()));
    AE_ASSIGN(const Value order, ctx.call("ask", Value::object({{"n", twice}})));
    AE_ASSIGN(const Value score, ctx.call("score", order));
    AE_ASSIGN(const Value answer, ctx.generate("main", Value::object({{"messages", score}})));
    return Value::array({twice, order, score, answer, ctx.job()["id"]});
  });
  NativeJob job(world, agent_plan(), "{'n': 21}");
  job.run();
  ASSERT_EQ(job.remote.size(), 1u) << job.log_text();
  EXPECT_EQ(job.remote[0].args, json("{'n': 42}"));
  job.answer("ask", "{'n': 7}");
  job.run();
  job.answer("model:main", "{'text': 'hello'}");
  job.run();
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.result(), R"({"code":[42,{"n":7},7,{"text":"hello"},"job-1"]})");
  EXPECT_EQ(job.positions(), std::vector<std::string>({"twice", "ask", "score", "model:main"}));
  EXPECT_TRUE(world.has_no_threads());
}

AE_TEST("requests/the success of a function and the next request are one commit") {
  NativeWorld world;
  world.add([](Context& ctx, const Value& input) -> Result<Value> {
    AE_TRY(ctx.run("a", EffectClass::read, input, doubled()));
    return ctx.run("b", EffectClass::read, input, doubled());
  });
  NativeJob job(world, agent_plan(), "{'n': 1}");
  const std::size_t before = job.commits.size();
  job.run();
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  // a; its end and b; its end and that of the job.
  EXPECT_EQ(job.commits.size(), before + 3);
  for (const ToolInvocationFinished& end : job.all<ToolInvocationFinished>()) {
    EXPECT_FALSE(end.delivered) << "the default";
  }
}

AE_TEST("requests/timers, signals, messages and approvals") {
  NativeWorld world;
  world.add([](Context& ctx, const Value&) -> Result<Value> {
    AE_TRY(ctx.sleep(1h));
    AE_ASSIGN(const Value signal, ctx.wait({.key = "paid"}));
    AE_ASSIGN(const Value message, ctx.receive("orders"));
    AE_ASSIGN(const Value approval, ctx.approval("Refund it?"));
    AE_TRY(ctx.until(Instant{}));
    const Result<Value> rejected = ctx.approval("Really?");
    const Result<Value> expired = ctx.wait({.expires = 10s});
    return Value::array({signal, message, approval["decision"], code_name(rejected.error().code),
                         code_name(expired.error().code)});
  });
  NativeJob job(world);
  job.run();
  EXPECT_EQ(job.status(), "waiting") << job.log_text();
  job.after(1h);
  job.run();
  EXPECT_EQ(job.wait_key("signal"), "paid");
  job.signal("signal", "{'amount': 3}");
  job.run();
  job.message("orders", "'o-1'");
  job.run();
  job.signal("approval", "{'decision': 'approve'}");
  job.run();
  job.after(0s);
  job.run();
  job.signal("approval#2", "{'decision': 'reject', 'note': 'no'}");
  job.run();
  job.after(10s);
  job.run();
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.result(), R"({"code":[{"amount":3},"o-1","approve","rejected","wait_expired"]})");
}

AE_TEST("requests/a call may be stricter than the policy of its tool, and is recorded so") {
  NativeWorld world;
  world.add([](Context& ctx, const Value& input) -> Result<Value> {
    AE_TRY(ctx.run("a", EffectClass::read, input, doubled(), {.call = {.timeout = 2s}}));
    return ctx.call("ask", input, {.call = {.timeout = 1h}});
  });
  NativeJob job(world, agent_plan(), "{'n': 1}");
  job.run();
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  EXPECT_EQ(job.state.error->code, "input_invalid");
  EXPECT_EQ(job.all<CommandEmitted>()[0].options, json("{'timeout': '2s'}"));
  const auto call = job.all<ToolInvocationStarted>()[0];
  EXPECT_EQ(call.deadline - call.send_by, 2s);
}

AE_TEST("requests/an approval records its question and its data") {
  NativeWorld world;
  world.add([](Context& ctx, const Value&) -> Result<Value> {
    AE_TRY(ctx.approval("Refund it?", {.data = json("{'amount': 3}")}));
    return ctx.approval(std::string(20'000, 'x'));  // it has an outcome, without a wait
  });
  NativeJob job(world);
  job.run();
  const std::vector<WaitOpened> opened = job.all<WaitOpened>();
  ASSERT_EQ(opened.size(), 1u) << job.log_text();
  EXPECT_EQ(opened[0].question_text.value, Value("Refund it?"));
  EXPECT_EQ(opened[0].question_data.value, json("{'amount': 3}"));
  job.signal("approval", "{'decision': 'approve'}");
  job.run();
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  EXPECT_EQ(job.state.error->code, "payload_too_large");
}

AE_TEST("requests/a registered function is a tool for calls of any origin") {
  NativeWorld world;
  EXPECT_EQ(world.routines->tool("unknown"), nullptr);
  tools::Call call;
  call.tool = "score";
  call.args = json("{'n': 3}");
  call.invocation = InvocationId("0123456789abcdef");
  call.timeout = call.send_within = 10s;
  auto permit = ae::testing::PermitForTests::make(call.invocation, 1);
  std::optional<Outcome> outcome;
  world.routines->tool("score")->perform(std::move(permit), std::move(call),
                                         [&](Outcome given) { outcome = std::move(given); });
  ASSERT_TRUE(world.loop.run_until([&] { return outcome.has_value(); }));
  EXPECT_EQ(outcome->result, Value(3));
}

AE_TEST("requests/a failure of a function is decided by the engine, then given") {
  NativeWorld world;
  std::atomic<int> tries = 0;
  world.add([&tries](Context& ctx, const Value& input) -> Result<Value> {
    const auto fails = [&tries](const Value&,
                                FunctionCall& call) -> std::expected<Value, FunctionFailure> {
      EXPECT_EQ(call.try_no(), static_cast<std::uint32_t>(++tries));
      if (tries == 3) return std::string(call.key());
      return std::unexpected(FunctionFailure{.code = "busy", .retryable = true});
    };
    AE_ASSIGN(Value key, ctx.run("a", EffectClass::idempotent, input, fails));
    const auto refuses = [](const Value&, FunctionCall&) -> std::expected<Value, FunctionFailure> {
      return std::unexpected(FunctionFailure{.code = "no_stock", .message = "none is left"});
    };
    const Pending pending = ctx.later_run("b", EffectClass::at_most_once, input, refuses);
    const Result<Value> result = pending.get();
    EXPECT_EQ(result.error().code, Code::tool_failed);
    EXPECT_EQ(result.error().message, "no_stock: none is left");
    EXPECT_EQ(pending.failure()->code, "no_stock");
    return key;
  });
  NativeJob job(world);
  for (int i = 0; i < 3; ++i) {
    job.run();
    job.after(10s);
  }
  job.run();
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(tries, 3);
  EXPECT_TRUE(job.state.result.text("code").starts_with("aetheris:job-1:")) << job.result();
}

AE_TEST("requests/an exception of a function is an unknown outcome") {
  NativeWorld world;
  world.add([](Context& ctx, const Value& input) -> Result<Value> {
    return ctx.run("a", EffectClass::at_most_once, input,
                   [](const Value&, FunctionCall&) -> std::expected<Value, FunctionFailure> {
                     throw std::runtime_error("boom");
                   });
  });
  NativeJob job(world);
  job.run();
  EXPECT_EQ(job.status(), "parked") << job.log_text();
  EXPECT_EQ(job.last<ToolInvocationFinished>().outcome, "unknown");
}

AE_TEST("requests/a result that cannot be recorded is not given, and its call fails") {
  NativeWorld world;
  world.add([](Context& ctx, const Value&) -> Result<Value> {
    std::vector<Value> codes;
    codes.emplace_back(code_name(ctx.call("score", json("{'n': 'no integer'}")).error().code));
    for (const Value& result : {Value("\xff"), Value(std::string(kValueMax + 1, 'x'))}) {
      const auto returns = [result](const Value&,
                                    FunctionCall&) -> std::expected<Value, FunctionFailure> {
        return result;
      };
      codes.emplace_back(
          code_name(ctx.run("a", EffectClass::read, Value::object({}), returns).error().code));
    }
    return Value::array(std::move(codes));
  });
  NativeJob job(world);
  job.run();
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.result(),
            R"({"code":["tool_output_invalid","tool_output_invalid","tool_output_invalid"]})");
}

AE_TEST("requests/what cannot be requested fails at once, and is not recorded") {
  NativeWorld world;
  world.add([](Context& ctx, const Value&) -> Result<Value> {
    std::vector<Value> codes;
    const auto add = [&](const Result<Value>& result) {
      codes.emplace_back(result ? "ok" : code_name(result.error().code));
    };
    const Value none = Value::object({});
    add(ctx.call("unknown", none));
    add(ctx.call("put", none));  // in the plan, and not granted
    add(ctx.generate("ask", none));
    add(ctx.call("ask", 3));
    add(ctx.call("ask", Value::object({{"text", "\xff"}})));
    add(ctx.call("ask", none, {.name = "a/b"}));
    add(ctx.wait({.type = engine::WaitType::timer}));
    add(ctx.receive(""));
    add(ctx.later_sleep(-1s).get());
    add(ctx.run("a", EffectClass::read, none, nullptr));
    add(Pending().get());
    if (ctx.emit("a b", 1)) codes.emplace_back("ok");
    return Value::array(std::move(codes));
  });
  NativeJob job(world);
  job.run();
  EXPECT_EQ(job.result(),
            R"({"code":["tool_not_granted","tool_not_granted","tool_not_granted","input_invalid",)"
            R"("input_invalid","input_invalid","input_invalid","input_invalid","input_invalid",)"
            R"("input_invalid","input_invalid"]})");
  EXPECT_TRUE(job.positions().empty());
}

AE_TEST("requests/values are recorded, and emitted ones counted in their scope") {
  NativeWorld world;
  world.add([](Context& ctx, const Value&) -> Result<Value> {
    const Instant first = ctx.now();
    EXPECT_TRUE(ctx.emit("step", 1));
    EXPECT_TRUE(ctx.publish("state", "half"));
    AE_TRY(ctx.sleep(10s));
    const Instant second = ctx.now();
    EXPECT_EQ(second - first, 10s);
    EXPECT_TRUE(ctx.patched("cents"));
    EXPECT_TRUE(ctx.patched("cents"));
    return Value::array({ctx.random(), ctx.random(), ctx.uuid(), to_text(second)});
  });
  NativeJob job(world);
  job.run();
  job.after(10s);
  job.run();
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.count(EventType::time_recorded), 2u);
  EXPECT_EQ(job.count(EventType::random_recorded), 1u) << "the seed";
  EXPECT_EQ(job.count(EventType::uuid_recorded), 1u);
  EXPECT_EQ(job.count(EventType::value_emitted), 2u);
  const auto emitted = job.all<ValueEmitted>();
  EXPECT_EQ(emitted[1].value_number, 2);
  EXPECT_EQ(emitted[1].published, true);
}

AE_TEST("requests/an error, an exception and a result end the code") {
  const auto end_of = [](AgentBody body) {
    NativeWorld world;
    world.add(std::move(body));
    NativeJob job(world);
    job.run();
    EXPECT_TRUE(world.has_no_threads());
    if (job.count(EventType::routine_failed) > 0) {
      return canonical(job.last<RoutineFailed>().error.value);
    }
    return job.state.error ? job.state.error->code + ": " + job.state.error->message : job.result();
  };
  EXPECT_EQ(end_of([](Context&, const Value&) -> Result<Value> { return 7; }), R"({"code":7})");
  EXPECT_EQ(end_of([](Context&, const Value&) -> Result<Value> {
              return fail(Code::denied, "not today");
            }),
            "denied: not today");
  EXPECT_EQ(end_of([](Context&, const Value&) -> Result<Value> {
              throw std::out_of_range("no such order");
            }),
            R"({"message":"no such order","name":"std::out_of_range"})");
  EXPECT_EQ(end_of([](Context&, const Value&) -> Result<Value> { throw 3; }),
            R"({"message":"the code threw an object that is not a std::exception",)"
            R"("name":"no_exception"})");
  EXPECT_EQ(end_of([](Context&, const Value&) -> Result<Value> { return "\xff"; }),
            "tool_output_invalid: the result: a text that is not UTF-8");
}

AE_TEST("requests/a Context on another thread ends the routine with an exception") {
  NativeWorld world;
  world.add([](Context& ctx, const Value& input) -> Result<Value> {
    Result<Value> there;
    std::thread([&] { there = ctx.call("ask", input); }).join();
    EXPECT_EQ(there.error().code, Code::input_invalid);
    EXPECT_EQ(ctx.call("ask", input).error().code, Code::evicted);
    return 1;
  });
  NativeJob job(world);
  job.run();
  EXPECT_EQ(job.last<RoutineFailed>().error.value["name"], Value("wrong_thread"));
  EXPECT_TRUE(job.positions().empty());
}

}  // namespace
}  // namespace ae::routines
