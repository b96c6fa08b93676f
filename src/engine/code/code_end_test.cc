// How code ends: its result, its failure, an exception, a cancel; and code beside other nodes.
#include <string>
#include <string_view>
#include <vector>

#include "engine/code/code_helpers_test.h"
#include "engine/fixtures/stored_job_test.h"
#include "log/seal.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

Script one_call(CodeContext ctx) { co_return co_await ctx.run("a", "idempotent"); }

// Returns, or waits for nothing that can happen.
Script makes_nothing(CodeContext ctx, bool ends) {
  const Awaited never(std::make_shared<Pending>(), ctx.ready());
  if (!ends) co_await never;
  co_return Value();
}

// ---------------------------------------------------------------- results and failures

AE_TEST("code end/the result of the code is that of its node") {
  CodeJob job(&one_call);
  job.claim().ok("code/a", "{'n':1}");
  EXPECT_EQ(job.last<NodeFinished>().result.value, json("{'n':1}"));
  EXPECT_EQ(job.state.result, json("{'code':{'n':1}}"));
  expect_proved(job);
}

AE_TEST("code end/code without a request ends at once") {
  CodeJob job([](CodeContext ctx) -> Script { co_return ctx.input(); }, "{}", {.input = "{'n':1}"});
  EXPECT_EQ(job.claim().status(), "completed") << job.log_text();
  EXPECT_EQ(job.state.result, json("{'code':{'n':1}}"));
}

AE_TEST("code end/a failure of the code fails its node") {
  CodeJob job([](CodeContext ctx) -> Script { co_return co_await ctx.call("once"); });
  job.claim().fails("code/once", "http_422");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "http_422");
  EXPECT_EQ(job.last<JobFailed>().node_id, "code");
  expect_proved(job);
}

AE_TEST("code end/a result that breaks its output_schema fails the node") {
  CodeJob bad(&one_call, "{'output_schema':{'type':'integer'}}");
  bad.claim().ok("code/a", "'text'");
  EXPECT_EQ(bad.status(), "failed");
  EXPECT_EQ(bad.state.error->code, "tool_output_invalid");
  CodeJob good(&one_call, "{'output_schema':{'type':'integer'}}");
  EXPECT_EQ(good.claim().ok("code/a", "7").status(), "completed");
}

AE_TEST("code end/a result has at most 16 MiB") {
  CodeJob job([](CodeContext) -> Script { co_return Value(std::string(kValueMax, 'x')); });
  job.claim();
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "tool_output_invalid");
}

Script returns_early(CodeContext ctx) {
  const Awaited loser = ctx.call("put"), wait = ctx.wait(human_wait("k"));
  co_return co_await ctx.run("a", "idempotent");
}

AE_TEST("code end/calls in flight are awaited and open waits cancelled when the code returns") {
  CodeJob job(&returns_early);
  job.claim().ok("code/a", "7");
  EXPECT_EQ(job.status(), "running") << "a call is in flight";
  EXPECT_EQ(job.last<WaitCompleted>().outcome, "cancelled");
  job.crash();
  EXPECT_FALSE(job.diverged);
  job.ok("code/put");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.state.result, json("{'code':7}"));
  expect_proved(job);
}

AE_TEST("code end/outcomes after the return have no effect, also in a replay") {
  CodeJob job([](CodeContext ctx) -> Script {
    std::vector<Awaited> all{ctx.call_as("x", "put", Value::object({})),
                             ctx.call_as("y", "pay", Value::object({}))};
    const std::size_t first = co_await CodeContext::first(all);
    co_return Value(static_cast<std::uint64_t>(first));
  });
  job.claim().ok("code/x").unknown("code/y");
  EXPECT_EQ(job.status(), "parked") << "the loser's outcome is unknown";
  lose(job).resolve("code/y", "happened", "1");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.state.result, json("{'code':0}"));
}

AE_TEST("code end/a scope that the code left is closed when the code ends") {
  CodeJob job([](CodeContext ctx) -> Script {
    std::vector<Awaited> all{ctx.scope("s", one_call(ctx.inside("s"))), ctx.run("b", "idempotent")};
    const std::size_t first = co_await CodeContext::first(all);
    co_return Value(static_cast<std::uint64_t>(first));
  });
  job.claim().ok("code/b");
  EXPECT_EQ(job.status(), "running");
  job.ok("code/s/a");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.step("code/s").failure->code, "cancelled");
  expect_proved(job);
}

AE_TEST("code end/an approval that is open when the code returns is withdrawn") {
  CodeJob job(
      [](CodeContext ctx) -> Script {
        const Awaited gated = ctx.call("gated");
        co_return co_await ctx.run("a", "idempotent");
      },
      "{}", {.more = "{'tools':{'gated':{'approval':'required'}}}"});
  job.claim().ok("code/a", "7");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.step("code/gated").failure->code, "rejected");
  EXPECT_NE(job.step("code/gated").failure->message.find("its code does not need it"),
            std::string::npos);
  EXPECT_EQ(job.sent.size(), 1u);
}

// ---------------------------------------------------------------- exceptions

Script throws(CodeContext ctx) {
  const Awaited wait = ctx.wait(human_wait("k"));
  co_await ctx.run("a", "idempotent");
  throw std::runtime_error("out of range");
}

AE_TEST("code exception/it parks the job until other code is offered, and loses nothing") {
  CodeJob job(&throws);
  job.claim().ok("code/a", "7");
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.last<JobParked>().reason, "routine_failed");
  EXPECT_EQ(job.last<JobParked>().until, "version");
  EXPECT_EQ(job.last<RoutineFailed>().error.value["message"], Value("out of range"));
  EXPECT_EQ(job.step("code/human").phase, StepPhase::waiting) << "the wait stays open";
  EXPECT_EQ(job.step("code").phase, StepPhase::running);
  job.offer();
  EXPECT_EQ(job.status(), "parked") << "another execution version changes nothing";
  job.resume();
  EXPECT_EQ(job.routine_count, 2) << job.log_text();
  EXPECT_EQ(job.status(), "parked") << "the same code fails again";
  expect_proved(job);
}

AE_TEST("code exception/calls in flight are awaited before the job parks") {
  CodeJob job([](CodeContext ctx) -> Script {
    const Awaited other = ctx.call("put");
    co_await ctx.run("a", "idempotent");
    throw std::runtime_error("out of range");
  });
  job.claim().ok("code/a");
  EXPECT_EQ(job.status(), "running");
  job.ok("code/put");
  EXPECT_EQ(job.status(), "parked") << job.log_text();
}

AE_TEST("code exception/with on_exception: fail the node fails") {
  CodeJob job(&throws, "{'on_exception':'fail'}");
  job.claim().ok("code/a");
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  EXPECT_EQ(job.state.error->code, "exception");
  EXPECT_EQ(job.state.error->message, "out of range");
  expect_proved(job);
}

AE_TEST("code stalled/a routine that settled with nothing open parks the job") {
  CodeJob job([](CodeContext ctx) -> Script {
    co_await ctx.run("a", "idempotent");
    co_return co_await makes_nothing(ctx, false);
  });
  job.claim();
  EXPECT_EQ(job.status(), "running");
  job.ok("code/a");
  EXPECT_EQ(job.status(), "parked") << job.log_text();
  EXPECT_EQ(job.last<JobParked>().reason, "routine_stalled");
  EXPECT_EQ(job.last<JobParked>().until, "version");
  EXPECT_EQ(job.resume().status(), "parked") << "the same code stalls again";
  EXPECT_EQ(job.routine_count, 1) << "the routine is kept";
}

AE_TEST("code stalled/a job whose routine has code to run, or is elsewhere, does not park") {
  CodeJob job(&one_call);
  job.is_stepwise = true;
  job.claim();
  EXPECT_EQ(job.status(), "running") << "no routine is here";
  job.start_routines();
  job.run_until_idle();
  EXPECT_EQ(job.status(), "running") << "it replays";
  job.replay_one();
  job.run_until_idle();
  EXPECT_EQ(job.status(), "running") << "its request is not known to decide";
}

// ---------------------------------------------------------------- divergence

Script other_call(CodeContext ctx) {
  const Value args = Value::object({{"n", 2}});
  co_return co_await ctx.run("a", "idempotent", args);
}

AE_TEST("code divergence/code that makes another request parks the job, and performs nothing") {
  CodeJob job(&one_call);
  job.claim().reload();
  job.use(&other_call).claim();
  EXPECT_EQ(job.status(), "parked") << job.log_text();
  EXPECT_EQ(job.last<JobParked>().reason, "non_determinism");
  EXPECT_EQ(job.last<JobParked>().until, "version");
  const auto detail = job.last<RoutineDiverged>().detail.read();
  ASSERT_TRUE(detail);
  EXPECT_EQ(detail->finding, "arguments");
  EXPECT_EQ(detail->position, "a");
  EXPECT_EQ(job.sent.size(), 1u);
  expect_proved(job);
}

AE_TEST("code divergence/the job goes on with code that fits, when it is resumed") {
  CodeJob job(&one_call);
  job.claim().reload();
  job.use(&other_call).claim();
  ASSERT_EQ(job.status(), "parked");
  job.use(&one_call).resume();
  EXPECT_EQ(job.tries("code/a"), 2u) << job.log_text();
  EXPECT_EQ(job.ok("code/a", "7").status(), "completed") << job.log_text();
  expect_proved(job);
}

AE_TEST("code divergence/code that ends early, or makes no request, diverges") {
  for (const bool ends : {true, false}) {
    CodeJob job(&one_call);
    job.claim().reload();
    job.use([ends](CodeContext ctx) { return makes_nothing(std::move(ctx), ends); }).claim();
    EXPECT_EQ(job.status(), "parked") << job.log_text();
    EXPECT_EQ(job.last<RoutineDiverged>().detail.read()->finding, ends ? "ended" : "missing");
  }
}

AE_TEST("code divergence/remote calls in flight are awaited before the job parks") {
  CodeJob job([](CodeContext ctx) -> Script { co_return co_await ctx.call("put"); });
  job.claim().reload();
  job.use(&one_call).claim();
  EXPECT_EQ(job.status(), "running") << "its call is sent again";
  job.ok("code/put");
  EXPECT_EQ(job.status(), "parked") << job.log_text();
}

AE_TEST("code divergence/code beside it starts nothing in the decision that parks the job") {
  CodeJob job(code_plan("[{'id':'x','kind':'code','code':{}},{'id':'y','kind':'code','code':{}}]"),
              {{"x", &one_call}, {"y", &one_call}});
  job.claim();
  job.ok("x/a", "1").ok("y/a", "2");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  CodeJob parks(
      code_plan("[{'id':'x','kind':'code','code':{}},{'id':'y','kind':'code','code':{}}]"),
      {{"x", [](CodeContext ctx) -> Script { co_return co_await ctx.run("a", "at_most_once"); }},
       {"y", &one_call}});
  parks.is_stepwise = true;
  parks.claim();
  parks.start_routines();
  parks.replay_one();
  parks.record_advances();
  parks.decide_until_idle();
  parks.reload();
  parks.use(&one_call, "x").claim();
  parks.start_routines();
  while (parks.replay_one()) {
  }
  parks.record_advances();
  parks.decide_until_idle();
  EXPECT_EQ(parks.status(), "parked") << parks.log_text();
  EXPECT_EQ(parks.count(EventType::routine_diverged), 1u) << parks.log_text();
}

// ---------------------------------------------------------------- cancel

AE_TEST("code cancel/calls in flight are awaited, nothing else starts, and waits are closed") {
  CodeJob job(&returns_early);
  job.claim().cancel("enough");
  EXPECT_EQ(job.status(), "running") << "calls are in flight";
  job.ok("code/a", "7");
  EXPECT_EQ(job.sent.size(), 2u);
  job.ok("code/put");
  EXPECT_EQ(job.status(), "cancelled") << job.log_text();
  EXPECT_EQ(job.last<WaitCompleted>().outcome, "cancelled");
  expect_proved(job);
}

AE_TEST("code cancel/a lost call of unknown outcome is listed") {
  CodeJob job([](CodeContext ctx) -> Script { co_return co_await ctx.run("a", "at_most_once"); });
  job.claim().crash();
  EXPECT_EQ(job.status(), "parked");
  job.cancel();
  EXPECT_EQ(job.status(), "cancelled") << job.log_text();
  EXPECT_EQ(job.state.final_in_doubt.size(), 1u);
  expect_proved(job);
}

AE_TEST("code cancel/the deadline of the job ends its code") {
  CodeJob job([](CodeContext ctx) -> Script { co_return co_await ctx.wait(timer_wait(10h)); }, "{}",
              {.deadline = 1h});
  job.claim().after(2h);
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "deadline_exceeded");
}

// ---------------------------------------------------------------- compensation

constexpr std::string_view kBooking =
    "{'tools':{'unbook':{'effect':'idempotent'},'book':{'effect':'idempotent','compensate':"
    "{'tool':'unbook','args':{'id':'${ .result.id }','was':'${ .args.n }'}}}}}";

Script book_twice(CodeContext ctx) {
  const auto body = [](CodeContext in) -> Script {
    co_return co_await in.call("book", argument("n", 1));
  };
  co_await ctx.scope("s", body(ctx.inside("s")));
  co_await ctx.call("book", argument("n", 2));
  co_return co_await ctx.call("once");
}

AE_TEST("code undo/committed calls are undone in reverse order, also of ended scopes") {
  CodeJob job(&book_twice, "{}", {.more = kBooking});
  job.claim().ok("code/s/book", "{'id':'A'}").crash().ok("code/book", "{'id':'B'}");
  job.fails("code/once");
  ASSERT_EQ(job.sent.back().tool, "unbook") << job.log_text();
  EXPECT_EQ(job.sent.back().arguments, json("{'id':'B','was':2}"));
  job.ok("code/book/compensate");
  EXPECT_EQ(job.sent.back().arguments, json("{'id':'A','was':1}")) << job.log_text();
  job.crash();
  job.ok("code/s/book/compensate");
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  EXPECT_EQ(job.state.undone.size(), 2u);
  expect_proved(job);
  expect_every_prefix(job);
}

AE_TEST("code undo/a request may have the name of a compensation") {
  CodeJob job(
      [](CodeContext ctx) -> Script {
        co_await ctx.call_as("a", "book", argument("n", 1));
        co_await ctx.inside("a").call_as("compensate", "put", json("{}"));
        co_return co_await ctx.call("once");
      },
      "{}", {.more = kBooking});
  job.claim().ok("code/a", "{'id':'A'}");
  job.answer(job.index_of_request(job.plan->nodes[0], "a/compensate"),
             {.kind = OutcomeKind::success});
  job.fails("code/once");
  ASSERT_EQ(job.sent.back().tool, "unbook") << job.log_text();
  const std::uint32_t undo = job.step("code/a").undo;
  ASSERT_NE(undo, kNoStep);
  job.answer(undo, {.kind = OutcomeKind::success});
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  expect_proved(job);
}

// ---------------------------------------------------------------- other nodes

constexpr std::string_view kBeside =
    "[{'id':'before','kind':'tool','tool':'put'},"
    "{'id':'code','kind':'code','needs':['before'],'code':{}},"
    "{'id':'after','kind':'tool','tool':'put','needs':['code'],"
    "'args':{'from':'${ .steps.code }'}},"
    "{'id':'beside','kind':'tool','tool':'put'}]";

AE_TEST("code node/it starts after what it needs, and what needs it gets its result") {
  CodeJob job(code_plan(kBeside), {{"code", &one_call}});
  job.claim();
  EXPECT_EQ(job.routine_count, 0);
  job.ok("before");
  EXPECT_EQ(job.routine_count, 1);
  job.ok("code/a", "7");
  EXPECT_EQ(job.step("code").phase, StepPhase::done) << "`beside` is still in flight";
  EXPECT_EQ(job.sent.back().arguments, json("{'from':7}")) << job.log_text();
  job.ok("after").ok("beside");
  EXPECT_EQ(job.status(), "completed");
  expect_proved(job);
}

AE_TEST("code node/one whose `when` is false does not run") {
  CodeJob job(code_plan("[{'id':'code','kind':'code','when':'${ .input.go }','code':{}},"
                        "{'id':'after','kind':'tool','tool':'put','needs':['code']}]"),
              {{"code", &one_call}}, {.input = "{'go':false}"});
  job.claim();
  EXPECT_EQ(job.routine_count, 0);
  EXPECT_TRUE(job.step("code").skipped);
  EXPECT_EQ(job.ok("after").status(), "completed") << job.log_text();
  CodeJob runs(code_plan("[{'id':'code','kind':'code','when':'${ .input.go }','code':{}}]"),
               {{"code", &one_call}}, {.input = "{'go':true}"});
  EXPECT_EQ(runs.claim().ok("code/a").status(), "completed") << runs.log_text();
}

AE_TEST("code node/with on_error: continue the job goes on after a failure") {
  CodeJob job(code_plan("[{'id':'code','kind':'code','on_error':'continue','code':{}},"
                        "{'id':'after','kind':'tool','tool':'put','needs':['code'],"
                        "'args':{'from':'${ .steps.code }'}}]"),
              {{"code", &one_call}});
  job.claim().fails("code/a", "http_422");
  EXPECT_EQ(job.sent.back().arguments["from"]["error"]["code"], Value("http_422"))
      << job.log_text();
  EXPECT_EQ(job.ok("after").status(), "completed");
  expect_proved(job);
}

AE_TEST("code node/a failure of another node ends the job, and its code with it") {
  CodeJob job(code_plan("[{'id':'other','kind':'tool','tool':'once'},"
                        "{'id':'code','kind':'code','code':{}}]"),
              {{"code", &one_call}});
  job.claim().fails("other");
  EXPECT_EQ(job.status(), "running") << "a call is in flight";
  job.ok("code/a");
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  expect_proved(job);
}

AE_TEST("code node/two codes run beside each other, each with its own order of outcomes") {
  CodeJob job(code_plan("[{'id':'x','kind':'code','code':{}},{'id':'y','kind':'code','code':{}}]"),
              {{"x", &one_call}, {"y", &one_call}});
  job.claim();
  EXPECT_EQ(job.routine_count, 2);
  EXPECT_NE(job.step("x/a").id, job.step("y/a").id);
  job.ok("y/a", "2");
  EXPECT_EQ(job.step("y").phase, StepPhase::done) << job.log_text();
  job.crash().ok("x/a", "1");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.state.result, json("{'x':1,'y':2}"));
  expect_proved(job);
}

AE_TEST("code node/a wait of code and a wait of the plan are open side by side") {
  CodeJob job(
      code_plan("[{'id':'w','kind':'wait','wait':{'type':'signal','key':'p'}},"
                "{'id':'code','kind':'code','code':{}}]"),
      {{"code", [](CodeContext ctx) -> Script { co_return co_await ctx.wait(signal_wait("c")); }}});
  job.claim();
  EXPECT_EQ(job.status(), "waiting");
  EXPECT_EQ(job.state.waits.size(), 2u);
  job.signal("p", "1");
  EXPECT_EQ(job.status(), "waiting") << job.log_text();
  EXPECT_EQ(job.signal("c", "2").status(), "completed") << job.log_text();
}

// ---------------------------------------------------------------- erased values

Script two_in_order(CodeContext ctx) {
  const Value first = co_await ctx.call("put");
  co_return co_await ctx.call_as("b", "once", argument("of", first));
}

// The job, as a process reads it after these values were erased.
State erased_state(const CodeJob& job, EventType type, std::string_view field,
                   std::vector<Event>& log) {
  StoredJob stored(job);
  stored.redact(job.state.job, [&](const Event& event, std::string_view value) {
    return event.type == type && value == field;
  });
  log = stored.opened(job.state.job).events;
  auto state = fold(job.state.job, log, uncached_plan_source());
  AE_CHECK(state.has_value(), state ? "" : state.error().message);
  return *std::move(state);
}

AE_TEST("code erased/the record says which result is no longer in the log") {
  CodeJob job(&two_in_order);
  job.claim().ok("code/put", "'secret'");
  std::vector<Event> log;
  const State state = erased_state(job, EventType::tool_invocation_finished, "result", log);
  const CodeRecord record = record_of(state, state.steps[0]);
  ASSERT_EQ(record.deliveries.size(), 1u);
  EXPECT_TRUE(record.deliveries[0].erased);
  EXPECT_FALSE(job.record().deliveries[0].erased);
}

AE_TEST("code erased/arguments keep their hash, so that a replay still compares them") {
  CodeJob job(&two_in_order);
  job.claim().ok("code/put", "'secret'");
  std::vector<Event> log;
  const State state = erased_state(job, EventType::tool_invocation_started, "arguments", log);
  const CodeRecord record = record_of(state, state.steps[0]);
  ASSERT_EQ(record.requests.size(), 2u);
  EXPECT_EQ(record.requests[1].arguments_hash, job.record().requests[1].arguments_hash);
  EXPECT_TRUE(record.requests[1].arguments_hash.has_value());
}

AE_TEST("code erased/a log without its values verifies") {
  CodeJob job(
      [](CodeContext ctx) -> Script {
        const Value at = ctx.now();
        ctx.emit("n", at);
        const Value result = co_await ctx.scope("s", two_in_order(ctx.inside("s")));
        co_return co_await ctx.call("gated", argument("of", result));
      },
      "{}", {.more = "{'tools':{'gated':{'approval':'required'}}}"});
  job.claim().ok("code/s/put", "'secret'").ok("code/s/b", "'deep'").approve("code/gated");
  job.ok("code/gated", "'last'");
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  StoredJob stored(job);
  stored.redact(job.state.job, [](const Event&, std::string_view) { return true; });
  const VerifyInput input = stored.opened(job.state.job);
  const Verification all = verify(input, uncached_plan_source());
  EXPECT_TRUE(all.ok) << canonical(all.to_json());
  StoredJob whole(job);
  const Verification unchanged = verify(whole.opened(job.state.job), uncached_plan_source());
  EXPECT_TRUE(unchanged.ok) << canonical(unchanged.to_json());
  EXPECT_NE(unchanged.replay.detail.find(" the plan"), std::string::npos);
}

}  // namespace
}  // namespace ae::engine::testing
