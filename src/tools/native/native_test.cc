#include "tools/native/native.h"

#include <deque>
#include <stdexcept>

#include "json/json.h"
#include "testing/native_functions.h"
#include "testing/permit.h"
#include "testing/test.h"

namespace ae::tools {
namespace {

struct ManualLoop final : async::Loop {
  std::deque<async::Task> tasks;
  void post(async::Task task) override { tasks.push_back(std::move(task)); }
  async::TimerId after(Duration, async::Task) override { return 0; }
  void cancel(async::TimerId) override {}
  void run() {
    while (!tasks.empty()) {
      async::Task task = std::move(tasks.front());
      tasks.pop_front();
      task();
    }
  }
};

struct ManualClock final : async::SteadyClock {
  Duration at{0};
  Duration since_start() override { return at; }
};

Call make_call(Value args) {
  Call call;
  call.invocation = InvocationId("0123456789abcdef");
  call.args = std::move(args);
  call.send_within = std::chrono::seconds(5);
  return call;
}

struct NativeFixture {
  ManualLoop loop;
  ManualClock clock;
  std::optional<Outcome> outcome;
  void perform(NativeTool& tool, Call call) {
    auto permit = testing::PermitForTests::make(call.invocation, call.try_no);
    tool.perform(std::move(permit), std::move(call), [this](Outcome o) {
      EXPECT_FALSE(outcome.has_value());
      outcome = std::move(o);
    });
  }
  Outcome run(NativeFunction function, Value args = {}) {
    NativeTool tool(loop, clock, std::move(function));
    perform(tool, make_call(std::move(args)));
    EXPECT_FALSE(outcome.has_value()) << "completed inside perform";
    loop.run();
    return outcome.value_or(Outcome{});
  }
  Outcome run(const NativeFunctionEntry& native, Value args = {}) {
    EXPECT_TRUE(native.runs_inline);
    return run(native.function, std::move(args));
  }
};

AE_TEST("native/a returned value is a success") {
  const Outcome o = NativeFixture().run(built_in_functions()["echo"], Value::object({{"a", 1}}));
  EXPECT_EQ(o.kind, OutcomeKind::success);
  EXPECT_EQ(canonical(o.result), R"({"a":1})");
}

AE_TEST("native/a failure is definite, unless the function reports unknown") {
  const Value args = Value::object({{"code", "sold_out"}, {"retryable", true}});
  const Outcome failed = NativeFixture().run(testing::native_functions()["fail"], args);
  EXPECT_EQ(failed.kind, OutcomeKind::failure);
  EXPECT_TRUE(failed.definite);
  EXPECT_TRUE(failed.retryable);
  EXPECT_EQ(failed.error_code, "sold_out");
  const Outcome doubt = NativeFixture().run(testing::native_functions()["doubt"], args);
  EXPECT_EQ(doubt.kind, OutcomeKind::unknown);
  EXPECT_FALSE(doubt.definite);
}

AE_TEST("native/an exception gives an unknown outcome") {
  const Outcome o =
      NativeFixture().run([](const Call&, RunContext&) -> std::expected<Value, NativeFailure> {
        throw std::runtime_error("oh");
      });
  EXPECT_EQ(o.kind, OutcomeKind::unknown);
  EXPECT_EQ(o.error_code, "native_error");
  EXPECT_EQ(o.error_message, "the function threw: oh");
  EXPECT_EQ(
      NativeFixture()
          .run([](const Call&, RunContext&) -> std::expected<Value, NativeFailure> { throw 1; })
          .kind,
      OutcomeKind::unknown);
}

AE_TEST("native/a call abandoned before its start never runs") {
  NativeFixture w;
  int runs = 0;
  NativeTool tool(w.loop, w.clock, [&](const Call&, RunContext&) { return Value(++runs); });
  w.perform(tool, make_call({}));
  tool.abandon(InvocationId("another"), 1);
  tool.abandon(InvocationId("0123456789abcdef"), 2);
  tool.abandon(InvocationId("0123456789abcdef"), 1);
  w.loop.run();
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(w.outcome->error_code, "not_sent");
  EXPECT_TRUE(w.outcome->definite);
}

AE_TEST("native/a call after send_within never runs") {
  NativeFixture w;
  int runs = 0;
  NativeTool tool(w.loop, w.clock, [&](const Call&, RunContext&) { return Value(++runs); });
  w.perform(tool, make_call({}));
  w.clock.at = std::chrono::seconds(5);
  w.loop.run();
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(w.outcome->error_code, "not_sent");
}

AE_TEST("native/a call whose tool is destroyed is not sent") {
  NativeFixture w;
  {
    NativeTool tool(w.loop, w.clock, built_in_functions()["echo"].function);
    w.perform(tool, make_call({}));
  }
  w.loop.run();
  EXPECT_EQ(w.outcome->error_code, "not_sent");
}

AE_TEST("native/a result over the limit is a success with an invalid output") {
  const Outcome o =
      NativeFixture().run(testing::native_functions()["fill"], Value::object({{"bytes", 2 << 20}}));
  EXPECT_EQ(o.kind, OutcomeKind::success);
  ASSERT_TRUE(o.invalid.has_value());
  EXPECT_TRUE(o.result.is_null());
  EXPECT_EQ((*o.invalid)["size"].as_int(), (2 << 20) + 11);
}

}  // namespace
}  // namespace ae::tools
