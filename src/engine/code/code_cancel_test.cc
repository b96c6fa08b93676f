// Calls that code does not need any more: what was not sent is withdrawn, what may have had an effect
// is awaited, and each has an outcome in the log.
#include <fmt/core.h>

#include <string>
#include <string_view>
#include <vector>

#include "engine/code/code_helpers_test.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

// Calls `tool`, does not need the result once a signal has come, and reports what it got.
Script cancels(CodeContext ctx, std::string_view tool) {
  const Awaited call = ctx.call_as("a", tool, ctx.input());
  co_await ctx.wait_as("go", signal_wait("go"));
  ctx.cancel(call);
  Value got;
  try {
    got = argument("result", co_await call);
  } catch (const CodeFailure& failed) {
    got = Value::object({{"code", failed.failure.code}});
  }
  co_return co_await ctx.call("put", got);
}

constexpr std::string_view kRetry =
    "'retry':{'max_attempts':3,'initial_backoff':'1m','max_backoff':'1m','multiplier':1,"
    "'retry_on':['connect','timeout','unknown']}";
CodeJob calling(std::string_view tool, std::string_view code = "{}") {
  CodeJob job([](CodeContext ctx) { return cancels(std::move(ctx), "buy"); }, code,
              {.more = fmt::format("{{'tools':{{'buy':{{{},{}}}}}}}", tool, kRetry)});
  job.claim();
  return job;
}
Value cancelled_report(const CodeJob& job) {
  return job.sent.empty() || job.sent.back().tool != "put" ? Value() : job.sent.back().arguments;
}
// The code got this outcome, and the next routine gets it again.
void expect_outcome(CodeJob& job, std::string_view outcome) {
  EXPECT_EQ(cancelled_report(job), json(outcome)) << job.log_text();
  lose(job);
  EXPECT_FALSE(job.diverged) << job.log_text();
  EXPECT_EQ(cancelled_report(job), json(outcome)) << job.log_text();
  EXPECT_EQ(job.ok("code/put").status(), "completed") << job.log_text();
  expect_proved(job);
  expect_every_prefix(job);
}

AE_TEST("code cancel/a call that waits for room is never made, and has an outcome") {
  CodeJob job(
      [](CodeContext ctx) -> Script {
        const Awaited first = ctx.call("look");
        const Awaited second = ctx.call_as("a", "put", ctx.input());
        co_await ctx.wait_as("go", signal_wait("go"));
        ctx.cancel(second);
        std::string code;
        try {
          co_await second;
        } catch (const CodeFailure& failed) {
          code = failed.failure.code;
        }
        co_await first;
        co_return Value(code);
      },
      "{'parallel':1}");
  job.claim().signal("go");
  EXPECT_EQ(job.types("code/a"), (std::vector<std::string>{"node_started", "node_finished"}));
  EXPECT_EQ(job.step("code/a").failure->code, "cancelled");
  job.crash().ok("code/look");
  EXPECT_EQ(job.state.result, json("{'code':'cancelled'}")) << job.log_text();
  expect_proved(job);
}

AE_TEST("code cancel/a call that waits for approval is withdrawn") {
  CodeJob job = calling("'effect':'idempotent','approval':'required'");
  job.signal("go");
  EXPECT_TRUE(approvals_view(job.state).empty()) << job.log_text();
  expect_outcome(job, "{'code':'rejected'}");
}

AE_TEST("code cancel/a call between two tries is not tried again") {
  CodeJob job = calling("'effect':'idempotent'");
  job.fails("code/a", "connect");
  EXPECT_EQ(job.step("code/a").phase, StepPhase::backoff);
  job.signal("go");
  EXPECT_EQ(job.tries("code/a"), 1u);
  expect_outcome(job, "{'code':'cancelled'}");
}

AE_TEST("code cancel/an open call is awaited, and its success is the outcome") {
  CodeJob job = calling("'effect':'idempotent'");
  job.signal("go");
  EXPECT_EQ(job.step("code/a").phase, StepPhase::calling);
  job.ok("code/a", "7");
  expect_outcome(job, "{'result':7}");
}

AE_TEST("code cancel/an open call that fails is not tried again") {
  CodeJob job = calling("'effect':'idempotent'");
  job.signal("go").fails("code/a", "connect");
  expect_outcome(job, "{'code':'connect'}");
}

AE_TEST("code cancel/a call that only reads is not repeated, whatever its outcome") {
  CodeJob job = calling("'effect':'read'");
  job.signal("go").unknown("code/a");
  expect_outcome(job, "{'code':'unknown'}");
}

AE_TEST("code cancel/an unknown outcome is resolved by the rules of its tool") {
  CodeJob job = calling("'effect':'idempotent'");
  job.signal("go").unknown("code/a").after(std::chrono::minutes(2));
  EXPECT_EQ(job.step("code/a").call->try_no, 2u) << job.log_text();
  job.ok("code/a", "7");
  expect_outcome(job, "{'result':7}");
}

AE_TEST("code cancel/a call that was not sent is not sent later") {
  CodeJob job = calling("'effect':'idempotent'");
  job.signal("go").fails("code/a", "not_sent");
  expect_outcome(job, "{'code':'cancelled'}");
}

Outcome url_question() {
  return {.kind = OutcomeKind::input_required,
          .definite = true,
          .result = json("{'requests':{'k':{'mode':'url','message':'m','url':'https://x.org'}}}")};
}

AE_TEST("code cancel/a question of its tool is closed, and the tool is not called again") {
  CodeJob job = calling("'effect':'idempotent'");
  job.answer("code/a", url_question());
  EXPECT_EQ(job.step("code/a").phase, StepPhase::questioned) << job.log_text();
  job.signal("go");
  EXPECT_EQ(job.tries("code/a"), 1u) << job.log_text();
  expect_outcome(job, "{'code':'cancelled'}");
}

AE_TEST("code end/a question of a tool that is open when the code returns is closed") {
  CodeJob job([](CodeContext ctx) -> Script {
    const Awaited open = ctx.call_as("a", "put", ctx.input());
    co_return co_await ctx.wait_as("go", signal_wait("go"));
  });
  job.claim();
  job.answer("code/a", url_question());
  job.signal("go", "1");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.step("code/a").failure->code, "cancelled");
  expect_proved(job);
}

AE_TEST("code cancel/requests of the same advance count the outcome that it makes") {
  CodeJob job(
      [](CodeContext ctx) -> Script {
        const Awaited gone = ctx.call_as("a", "buy", ctx.input());
        co_await ctx.wait_as("go", signal_wait("go"));
        ctx.cancel(gone);
        co_return co_await ctx.call("put");
      },
      "{}", {.more = fmt::format("{{'tools':{{'buy':{{{}}}}}}}", kRetry)});
  job.claim().fails("code/a", "connect").signal("go");
  EXPECT_EQ(job.step("code/put").request->delivered, 1u) << job.log_text();
  job.crash().ok("code/put", "4");
  EXPECT_EQ(job.state.result, json("{'code':4}")) << job.log_text();
  expect_proved(job);
}

}  // namespace
}  // namespace ae::engine::testing
