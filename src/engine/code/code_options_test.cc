// Options of a call that code states with its request: recorded, within the policy of its tool, and
// those of the record hold.
#include <fmt/core.h>

#include <string>
#include <string_view>

#include "engine/code/code_helpers_test.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

using std::chrono::seconds;

Script call_with(CodeContext ctx, std::string_view tool, CallOptions options) {
  Value got;
  try {
    got = argument("result", co_await ctx.call_as("a", tool, ctx.input(), options));
  } catch (const CodeFailure& failed) {
    got = Value::object({{"code", failed.failure.code}});
  }
  co_return co_await ctx.call("put", got);
}
Program calls_with(std::string_view tool, const CallOptions& options) {
  return [tool, options](CodeContext ctx) { return call_with(std::move(ctx), tool, options); };
}

constexpr std::string_view kTool =
    "'effect':'idempotent','timeout':'30s','on_in_doubt':'resend','retry':{'max_attempts':3,"
    "'initial_backoff':'1s','max_backoff':'10s','multiplier':2,'retry_on':['connect','unknown']}";
CodeJob buying_with(const CallOptions& options, std::string_view more = "") {
  CodeJob job(calls_with("buy", options), "{}",
              {.more = fmt::format("{{'tools':{{'buy':{{{}{}}}}}}}", kTool, more)});
  job.claim();
  return job;
}
Value reported_options(const CodeJob& job) {
  return job.sent.empty() ? Value() : job.sent.back().arguments;
}
Duration time_of_call(const CodeJob& job) {
  const auto call = job.last<ToolInvocationStarted>();
  return call.deadline - call.send_by;
}

AE_TEST("code options/a call without options has those of its tool, and its log is as before") {
  const CodeJob job = buying_with({});
  const auto command = job.last<CommandEmitted>();
  EXPECT_TRUE(command.options.is_null());
  EXPECT_EQ(schema_of(command), 1);
  EXPECT_EQ(time_of_call(job), seconds(30));
}

AE_TEST("code options/the timeout of a request is that of its call, also of later tries") {
  CodeJob job = buying_with({.timeout = seconds(2)});
  const auto command = job.last<CommandEmitted>();
  EXPECT_EQ(command.options, json("{'timeout':'2s'}"));
  EXPECT_EQ(schema_of(command), 2);
  EXPECT_EQ(time_of_call(job), seconds(2));
  EXPECT_EQ(job.state.timeout_of(job.step("code/a")), seconds(2));
  job.fails("code/a", "connect").after(seconds(1));
  EXPECT_EQ(job.step("code/a").call->try_no, 2u) << job.log_text();
  EXPECT_EQ(time_of_call(job), seconds(2));
  expect_every_prefix(job);
  job.ok("code/a").ok("code/put");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  expect_proved(job);
}

AE_TEST("code options/a request may have fewer tries, and longer delays between them") {
  CodeJob once = buying_with({.max_attempts = 1});
  once.fails("code/a", "connect");
  EXPECT_EQ(reported_options(once), json("{'code':'connect'}")) << once.log_text();
  CodeJob slow = buying_with({.initial_backoff = seconds(60), .max_backoff = seconds(600)});
  slow.fails("code/a", "connect");
  EXPECT_GE(slow.step("code/a").not_before, slow.now + seconds(30)) << slow.log_text();
}

AE_TEST("code options/a request may leave an unknown outcome as a failure, or to an operator") {
  const CallOptions failing{.max_attempts = 1, .on_in_doubt = OnInDoubt::fail};
  CodeJob fails = buying_with(failing);
  fails.crash();
  EXPECT_EQ(reported_options(fails), json("{'code':'invocation_in_doubt'}")) << fails.log_text();
  CodeJob parks = buying_with({.on_in_doubt = OnInDoubt::park});
  parks.crash();
  EXPECT_EQ(parks.step("code/a").phase, StepPhase::in_doubt) << parks.log_text();
  CodeJob resends = buying_with({});
  resends.crash();
  EXPECT_EQ(resends.step("code/a").call->try_no, 2u) << resends.log_text();
}

AE_TEST("code options/looser options than the policy are refused, and nothing is called") {
  for (const CallOptions& options :
       {CallOptions{.timeout = seconds(31)}, CallOptions{.timeout = Duration(0)},
        CallOptions{.timeout = Duration(1'500)}, CallOptions{.max_attempts = 4},
        CallOptions{.max_attempts = 0}, CallOptions{.initial_backoff = Duration(0)},
        CallOptions{.max_backoff = seconds(9)}, CallOptions{.on_in_doubt = OnInDoubt::probe}}) {
    CodeJob job = buying_with(options);
    EXPECT_EQ(reported_options(job), json("{'code':'input_invalid'}")) << job.log_text();
    EXPECT_EQ(job.types("code/a"), (std::vector<std::string>{"node_started", "node_finished"}));
  }
}

AE_TEST("code options/those of the record hold when the code states others") {
  CodeJob job = buying_with({.timeout = seconds(2)});
  job.use(calls_with("buy", {.timeout = seconds(1), .max_attempts = 1}));
  job.crash();
  EXPECT_FALSE(job.diverged) << job.log_text();
  EXPECT_EQ(job.step("code/a").call->try_no, 2u) << job.log_text();
  EXPECT_EQ(time_of_call(job), seconds(2));
  job.fails("code/a", "connect");
  EXPECT_EQ(job.step("code/a").phase, StepPhase::backoff) << job.log_text();
}

AE_TEST("code options/those of a call that needs approval are recorded with the request for it") {
  CodeJob job = buying_with({.timeout = seconds(2)}, ",'approval':'required'");
  const auto decision = job.last<DecisionRecorded>();
  EXPECT_EQ(decision_as<ApprovalRequested>(decision)->options, json("{'timeout':'2s'}"));
  job.use(calls_with("buy", {.timeout = seconds(1)}));
  lose(job).approve("code/a");
  EXPECT_EQ(time_of_call(job), seconds(2)) << job.log_text();
  expect_every_prefix(job);
  job.ok("code/a").ok("code/put");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  expect_proved(job);
}

AE_TEST("code options/an event with other options than its request may have is corrupt") {
  const CodeJob job = buying_with({.timeout = seconds(2)});
  const auto command = job.last<CommandEmitted>();
  for (const char* options :
       {"{'timeout':'31s'}", "{'retry':{'max_attempts':4}}", "{'x':1}", "1"}) {
    EXPECT_TRUE(is_corrupt_instead(job, command, [&](auto& event) {
      event.options = json(options);
    })) << options;
  }
  JobFixture plan("[{'id':'n','kind':'tool','tool':'put'}]");
  plan.claim();
  CommandEmitted planned = plan.last<CommandEmitted>();
  planned.options = json("{'timeout':'2s'}");
  State state = plan.folded(plan.seq_of(EventType::command_emitted, "n") - 1);
  EXPECT_FALSE(apply(state, planned, plan.now, uncached_plan_source()));
}

}  // namespace
}  // namespace ae::engine::testing
