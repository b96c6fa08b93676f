// Waits of code: every type, with answers, expiry, rejection, early answers and cancellation. A new
// routine replays after each.
#include <string>
#include <string_view>

#include "engine/code/code_helpers_test.h"
#include "schema/question.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

// Waits, then reports what it got.
Script wait_once(CodeContext ctx, NewWait wait) {
  Value got;
  try {
    const Awaited made = ctx.wait_as("w", wait);
    const Value result = co_await made;
    got = Value::object({{"rejected", made.delivery().rejected},
                         {"result", result},
                         {"timed_out", made.delivery().timed_out}});
  } catch (const CodeFailure& failed) {
    got = Value::object({{"code", failed.failure.code}});
  }
  co_return co_await ctx.call("put", got);
}
CodeJob waiting_code(const NewWait& wait) {
  CodeJob job([wait](CodeContext ctx) { return wait_once(std::move(ctx), wait); });
  job.claim();
  return job;
}
Value awaited_report(const CodeJob& job) {
  return job.sent.empty() ? Value() : job.sent.back().arguments;
}
// The code gets this, and the next routine gets it again.
void expect_given(CodeJob& job, std::string_view result, bool rejected = false,
                  bool timed_out = false) {
  const Value expected =
      Value::object({{"rejected", rejected}, {"result", json(result)}, {"timed_out", timed_out}});
  EXPECT_EQ(awaited_report(job), expected) << job.log_text();
  lose(job);
  EXPECT_FALSE(job.diverged) << job.log_text();
  EXPECT_EQ(awaited_report(job), expected) << job.log_text();
  EXPECT_EQ(job.ok("code/put").status(), "completed") << job.log_text();
  expect_proved(job);
}

AE_TEST("code wait/a signal ends it, also after its routine was lost") {
  CodeJob job = waiting_code(signal_wait("k"));
  EXPECT_EQ(job.status(), "waiting");
  EXPECT_EQ(job.types("code/w"),
            (std::vector<std::string>{"node_started", "wait_opened", "job_waiting"}));
  lose(job).signal("k", "{'n':1}");
  expect_given(job, "{'n':1}");
}

AE_TEST("code wait/a webhook ends it") {
  NewWait wait = signal_wait("k");
  wait.type = WaitType::webhook;
  CodeJob job = waiting_code(wait);
  lose(job).signal("k", "5", "webhook");
  expect_given(job, "5");
}

AE_TEST("code wait/a wait without a key has the id of its step") {
  CodeJob job = waiting_code(signal_wait(""));
  job.signal(job.step("code/w").id.text.view(), "5");
  expect_given(job, "5");
}

AE_TEST("code wait/an approval ends a human wait") {
  CodeJob job = waiting_code(human_wait("k"));
  lose(job).approve("code/w");
  expect_given(job, "{'decision':'approve'}");
}

AE_TEST("code wait/a rejection is an answer that the code gets") {
  CodeJob job = waiting_code(human_wait("k"));
  lose(job).reject("code/w");
  EXPECT_EQ(job.reply.text("then"), "the code of node code gets the rejection");
  expect_given(job, "{'decision':'reject'}", true);
}

AE_TEST("code wait/only a wait that accepts data takes another answer than a decision") {
  CodeJob decision = waiting_code(human_wait("k"));
  EXPECT_EQ(decision.signal("k", "{'n':1}").refused, Code::input_invalid);
  NewWait wait = human_wait("k");
  wait.accepts_data = true;
  CodeJob data = waiting_code(wait);
  EXPECT_EQ(data.last<WaitOpened>().answer_type->view(), "data");
  lose(data).signal("k", "{'n':1}");
  expect_given(data, "{'n':1}");
}

AE_TEST(
    "code wait/a human wait records its question and its data, and shows them while it is open") {
  NewWait wait = human_wait("k");
  wait.question = "Pay the refund?";
  wait.data = json("{'amount':40}");
  CodeJob job = waiting_code(wait);
  const auto opened = job.last<WaitOpened>();
  EXPECT_EQ(opened.question_text.value, Value("Pay the refund?"));
  EXPECT_EQ(opened.question_data.value, json("{'amount':40}"));
  lose(job);
  const std::vector<Value> approvals = approvals_view(job.state);
  ASSERT_EQ(approvals.size(), 1u);
  EXPECT_EQ(approvals[0]["question"], json("{'data':{'amount':40},'message':'Pay the refund?'}"));
  expect_every_prefix(job);
  EXPECT_TRUE(
      is_corrupt_instead(job, opened, [](auto& event) { event.question_text = json("[1]"); }));
  EXPECT_TRUE(is_corrupt_instead(job, opened, [](auto& event) { event.wait_type = "signal"; }));
  job.approve("code/w");
  expect_given(job, "{'decision':'approve'}");
  // Without a question the event is as before.
  const CodeJob plain = waiting_code(human_wait("k"));
  EXPECT_TRUE(plain.last<WaitOpened>().question_text.is_null());
  EXPECT_EQ(schema_of(plain.last<WaitOpened>()), 1);
  EXPECT_EQ(schema_of(opened), 2);
  EXPECT_TRUE(approvals_view(plain.state)[0]["question"].is_null());
}

AE_TEST("code wait/only a human wait of code has a question") {
  JobFixture plan("[{'id':'w','kind':'wait','wait':{'type':'human','key':'k'}}]");
  plan.claim();
  WaitOpened planned = plan.last<WaitOpened>();
  planned.question_text = Value("Pay?");
  State state = plan.folded(plan.seq_of(EventType::wait_opened, "w") - 1);
  EXPECT_FALSE(apply(state, planned, plan.now, uncached_plan_source()));
  NewWait wait = signal_wait("k");
  wait.question = "Pay?";
  const CodeJob signal = waiting_code(wait);
  EXPECT_TRUE(signal.last<WaitOpened>().question_text.is_null());
}

AE_TEST("code wait/a question or its data that is too large is a failure that the code gets") {
  NewWait wait = human_wait("k");
  wait.question = std::string(kQuestionMessageMax + 1, 'x');
  EXPECT_EQ(awaited_report(waiting_code(wait)), json("{'code':'payload_too_large'}"));
  wait.question = "Pay?";
  wait.data = Value(std::string(kQuestionMax, 'x'));
  EXPECT_EQ(awaited_report(waiting_code(wait)), json("{'code':'payload_too_large'}"));
}

AE_TEST("code wait/a timer fires at its instant") {
  CodeJob job = waiting_code(timer_wait(10min));
  EXPECT_EQ(job.last<WaitOpened>().due_at, job.now + 10min);
  lose(job).after(9min);
  EXPECT_EQ(job.status(), "waiting");
  job.after(1min);
  expect_given(job, "null");
  NewWait until;
  until.type = WaitType::timer;
  until.due_at = *instant_from_text("2026-01-01T01:00:00Z");
  CodeJob at = waiting_code(until);
  at.after(1h);
  expect_given(at, "null");
}

AE_TEST("code wait/a message ends it, in the order of arrival") {
  CodeJob job = waiting_code(message_wait("c"));
  lose(job).message("c", "'first'", "m1");
  expect_given(job, "'first'");
}

AE_TEST("code wait/an expiry is an outcome that the code gets") {
  for (const NewWait& base : {signal_wait("k"), human_wait("k"), message_wait("c")}) {
    NewWait wait = base;
    wait.expires = 1h;
    CodeJob job = waiting_code(wait);
    lose(job).after(2h);
    expect_given(job, "{'timed_out':true}", false, true);
  }
}

AE_TEST("code wait/a signal or a message that arrived before the wait ends it at once") {
  CodeJob signal([](CodeContext ctx) { return wait_once(std::move(ctx), signal_wait("k")); });
  signal.signal_early("k", "1", "s1").claim();
  EXPECT_EQ(signal.status(), "running") << signal.log_text();
  expect_given(signal, "1");
  CodeJob message([](CodeContext ctx) { return wait_once(std::move(ctx), message_wait("c")); });
  message.message("c", "2", "m1").claim();
  expect_given(message, "2");
  CodeJob human([](CodeContext ctx) { return wait_once(std::move(ctx), human_wait("k")); });
  human.signal_early("k", "{'decision':'reject'}", "s1").claim();
  expect_given(human, "{'decision':'reject'}", true);
}

AE_TEST("code wait/a reserved key, or one that was used, is a failure that the code gets") {
  CodeJob reserved = waiting_code(signal_wait("resolve/1"));
  EXPECT_EQ(awaited_report(reserved), json("{'code':'correlation_key_reused'}"))
      << reserved.log_text();
  EXPECT_EQ(lose(reserved).ok("code/put").status(), "completed") << reserved.log_text();
  CodeJob twice([](CodeContext ctx) -> Script {
    const Awaited first = ctx.wait(signal_wait("k")), second = ctx.wait(signal_wait("k"));
    std::string code;
    try {
      co_await second;
    } catch (const CodeFailure& failed) {
      code = failed.failure.code;
    }
    co_await first;
    co_return Value(code);
  });
  lose(static_cast<CodeJob&>(twice.claim())).signal("k");
  EXPECT_EQ(twice.state.result, json("{'code':'correlation_key_reused'}")) << twice.log_text();
  expect_proved(twice);
}

Script raced_wait(CodeContext ctx) {
  const Awaited wait = ctx.wait_as("w", human_wait("k")), call = ctx.run("a", "idempotent");
  const Value result = co_await call;
  ctx.cancel(wait);
  Value got = Value::object({{"code", ""}});
  try {
    co_await wait;
  } catch (const CodeFailure& failed) {
    got = Value::object({{"code", failed.failure.code}});
  }
  co_return co_await ctx.call("put", got);
}

AE_TEST("code wait/a wait that the code cancels is closed, and fails as cancelled") {
  CodeJob job(&raced_wait);
  job.claim().ok("code/a");
  EXPECT_EQ(job.last<WaitCompleted>().outcome, "cancelled") << job.log_text();
  EXPECT_EQ(awaited_report(job), json("{'code':'cancelled'}"));
  job.crash();
  EXPECT_EQ(awaited_report(job), json("{'code':'cancelled'}"));
  EXPECT_EQ(job.ok("code/put").status(), "completed") << job.log_text();
  expect_proved(job);
}

AE_TEST("code wait/code may cancel a wait and return in one advance") {
  CodeJob job([](CodeContext ctx) -> Script {
    const Awaited wait = ctx.wait_as("w", human_wait("k")), call = ctx.run("a", "idempotent");
    const Value result = co_await call;
    ctx.cancel(wait);
    co_return result;
  });
  job.claim().ok("code/a", "7");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.last<WaitCompleted>().outcome, "cancelled");
  expect_proved(job);
}

AE_TEST("code wait/an answer that arrives before the cancellation is the outcome") {
  CodeJob job(&raced_wait);
  job.claim().approve("code/w").ok("code/a");
  EXPECT_EQ(awaited_report(job), json("{'code':''}")) << "it did not fail";
  EXPECT_EQ(job.step("code/w").result, json("{'decision':'approve'}"));
}

AE_TEST("code wait/its answers are known by their type only where code waits") {
  CodeJob job = waiting_code(human_wait("k"));
  const auto opened = job.last<WaitOpened>();
  EXPECT_TRUE(is_corrupt_instead(job, opened, [](auto& event) { event.wait_type = "telephone"; }));
  JobFixture plan("[{'id':'w','kind':'wait','wait':{'type':'human','key':'k'}}]");
  plan.claim();
  WaitOpened planned = plan.last<WaitOpened>();
  planned.answer_type = "data";
  State state = plan.folded(plan.seq_of(EventType::wait_opened, "w") - 1);
  EXPECT_FALSE(apply(state, planned, plan.now, uncached_plan_source()));
}

AE_TEST("code wait/several waits are answered in any order, and replay in that order") {
  CodeJob job([](CodeContext ctx) -> Script {
    std::vector<Awaited> all{ctx.wait(signal_wait("x")), ctx.wait(signal_wait("y"))};
    const std::size_t first = co_await CodeContext::first(all);
    const Value args = Value::object({{"first", static_cast<std::uint64_t>(first)}});
    co_await ctx.call("put", args);
    co_return co_await all[1 - first];
  });
  job.claim().signal("y", "2");
  EXPECT_EQ(job.sent.back().arguments, json("{'first':1}"));
  job.crash().signal("x", "1").crash().ok("code/put");
  EXPECT_EQ(job.state.result, json("{'code':1}")) << job.log_text();
  expect_proved(job);
}

}  // namespace
}  // namespace ae::engine::testing
