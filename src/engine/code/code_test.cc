// What the log holds of code: its requests, the order of their outcomes, its values. What `apply`
// refuses.
#include "engine/code/code.h"

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/code/code_helpers_test.h"
#include "engine/state/checkpoint.h"
#include "log/seal.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

using Types = std::vector<std::string>;

// The types of the events of one commit.
Types commit_types(const CodeJob& job, std::size_t commit) {
  Types types = job.types();
  const auto at = [&](std::size_t n) {
    return types.begin() + static_cast<std::ptrdiff_t>(n == 0 ? 0 : job.commits[n - 1]);
  };
  return {at(commit), at(commit + 1)};
}

Script two_functions(CodeContext ctx) {
  const Value first = co_await ctx.run("a", "idempotent");
  const Value args = Value::object({{"after", first}});
  co_return co_await ctx.run("b", "idempotent", args);
}

Script calls_one_function(CodeContext ctx) { co_return co_await ctx.run("a", "idempotent"); }

// ---------------------------------------------------------------- commits and order

AE_TEST("code/a step costs one commit: the end of a call and the start of the next one") {
  CodeJob job(&two_functions);
  job.claim();
  const std::size_t commits = job.commits.size();
  job.ok("code/a", "1");
  ASSERT_EQ(job.commits.size(), commits + 1) << job.log_text();
  EXPECT_EQ(commit_types(job, commits),
            (Types{"tool_invocation_finished", "command_committed", "node_finished",
                   "step_committed", "node_started", "command_emitted", "tool_invocation_started"}))
      << job.log_text();
  EXPECT_EQ(job.sent.back().arguments, json("{'after':1}"));
  job.ok("code/b", "7");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.state.result, json("{'code':7}"));
  expect_proved(job);
}

Script remote_then_function(CodeContext ctx) {
  co_await ctx.call("put");
  co_return co_await ctx.run("b", "idempotent");
}

AE_TEST("code/the outcome of a remote call is delivered after its commit") {
  CodeJob job(&remote_then_function);
  job.claim();
  const std::size_t commits = job.commits.size();
  job.ok("code/put");
  ASSERT_EQ(job.commits.size(), commits + 2) << job.log_text();
  EXPECT_EQ(commit_types(job, commits + 1),
            (Types{"node_started", "command_emitted", "tool_invocation_started"}));
}

Script uses_both_kinds(CodeContext ctx) {
  const Awaited local = ctx.run("local", "idempotent"), remote = ctx.call("put");
  std::vector<Awaited> all{local, remote};
  const std::size_t first = co_await CodeContext::first(all);
  co_await local;
  co_await remote;
  co_return Value(first == 0 ? "local" : "remote");
}

AE_TEST("code/an outcome is recorded at the position where the routine received it") {
  CodeJob job(&uses_both_kinds);
  job.claim();
  job.is_stepwise = true;
  job.ok("code/put");  // in the log first
  job.ok("code/local");
  job.record_advances();
  job.commit();
  EXPECT_EQ(job.last<ToolInvocationFinished>().delivered, 0);
  ASSERT_EQ(job.record().deliveries.size(), 2u);
  EXPECT_EQ(job.record().deliveries[0].position, "local");
  EXPECT_EQ(job.record().deliveries[1].position, "put") << "it fills the free position";
  job.is_stepwise = false;
  job.crash();
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.state.result, json("{'code':'local'}"));
  expect_proved(job);
}

AE_TEST("code/outcomes in the order of the log have no position") {
  CodeJob job(&uses_both_kinds);
  job.claim().ok("code/put").ok("code/local");
  EXPECT_EQ(job.last<ToolInvocationFinished>().delivered, std::nullopt);
  EXPECT_EQ(job.state.result, json("{'code':'remote'}"));
}

Script function_beside_remote(CodeContext ctx) {
  const Awaited remote = ctx.call("put");
  co_await ctx.run("a", "idempotent");
  co_await ctx.run("b", "idempotent");
  co_return co_await remote;
}

AE_TEST("code/a request has the number of outcomes before it if the log holds others") {
  CodeJob job(&function_beside_remote);
  job.claim().ok("code/a");
  EXPECT_EQ(job.last<NodeStarted>().delivered, std::nullopt);
  EXPECT_EQ(job.step("code/b").request->delivered, 1u);
  CodeJob late(&function_beside_remote);
  late.claim();
  late.is_stepwise = true;
  late.ok("code/put");
  late.ok("code/a");
  late.is_stepwise = false;
  late.run_until_idle();
  EXPECT_EQ(late.last<NodeStarted>().delivered, 1) << late.log_text();
  EXPECT_EQ(late.step("code/b").request->delivered, 1u);
  EXPECT_EQ(late.crash().ok("code/b").status(), "completed");
}

AE_TEST("code/what a crash loses of an advance is done again by the next routine") {
  CodeJob job(&two_functions);
  job.claim();
  job.is_stepwise = true;
  job.ok("code/a", "1");  // delivered, and not in the log
  EXPECT_EQ(job.count(EventType::tool_invocation_finished), 0u);
  job.is_stepwise = false;
  job.crash();
  EXPECT_EQ(job.routine_count, 2);
  EXPECT_EQ(job.tries("code/a"), 2u) << "the function is performed again";
  job.ok("code/a", "2");
  EXPECT_EQ(job.sent.back().arguments, json("{'after':2}"));
}

AE_TEST("code/an advance without its requests may be committed alone") {
  CodeJob job(&two_functions);
  job.claim();
  job.is_stepwise = true;
  job.ok("code/a", "1");
  job.record_advances();
  job.commit();
  job.is_stepwise = false;
  job.crash();
  EXPECT_EQ(job.tries("code/a"), 1u);
  EXPECT_EQ(job.sent.back().arguments, json("{'after':1}"));
  EXPECT_EQ(job.ok("code/b").status(), "completed");
  expect_proved(job);
}

AE_TEST("code/several advances may be in one commit") {
  CodeJob job([](CodeContext ctx) -> Script {
    const Awaited a = ctx.run("a", "idempotent"), b = ctx.run("b", "idempotent");
    co_await a;
    const Awaited c = ctx.run("c", "idempotent");
    co_await b;
    co_return co_await c;
  });
  job.claim();
  job.is_stepwise = true;
  job.ok("code/a").ok("code/b");
  EXPECT_EQ(job.count(EventType::tool_invocation_finished), 0u);
  job.is_stepwise = false;
  job.run_until_idle();
  EXPECT_EQ(job.step("code/c").request->delivered, 1u) << job.log_text();
  EXPECT_EQ(job.crash().ok("code/c").status(), "completed");
  expect_proved(job);
}

AE_TEST("code/the advances of one commit are recorded one after the other") {
  CodeJob job([](CodeContext ctx) -> Script {
    const Awaited scope = ctx.scope("s", calls_one_function(ctx.inside("s")));
    co_await ctx.run("b", "idempotent");
    co_return co_await scope;
  });
  job.claim();
  const std::size_t before = job.log.size();
  job.is_stepwise = true;
  job.ok("code/s/a").ok("code/b");  // at positions 0 and 2; the result of the scope is at 1
  job.record_advances();
  EXPECT_EQ(job.last<ToolInvocationFinished>().delivered, std::nullopt) << job.log_text();
  ASSERT_EQ(job.record().deliveries.size(), 3u);
  EXPECT_EQ(job.record().deliveries[1].position, "s");
  EXPECT_EQ(job.record().deliveries[2].position, "b");
  // The end of the second function is not before that of the scope.
  auto second = job.last<ToolInvocationFinished>();
  second.delivered = 2;
  EXPECT_TRUE(is_corrupt(job, second, before + 2)) << job.log_text();
}

AE_TEST("code/a success that is in the log already refuses the advance, and the routine is lost") {
  CodeJob job(&two_functions);
  job.claim();
  job.is_stepwise = true;
  job.ok("code/a", "1");
  const std::uint32_t step = job.index_of("code/a");
  Outcome other{.kind = OutcomeKind::success};
  other.result = Value(2);
  job.store_effect(sent_try_of(job.state, job.state.steps[step]), other);
  job.is_stepwise = false;
  job.run_until_idle();
  EXPECT_EQ(job.refused_advances, 1);
  EXPECT_EQ(job.routine_count, 2);
  EXPECT_EQ(job.sent.back().arguments, json("{'after':2}")) << job.log_text();
}

// ---------------------------------------------------------------- positions

AE_TEST("code/a position is scopes, a name, a key, a digest and a number") {
  for (const std::string_view good :
       {"a", "A.b_c:d-9", "s/a", "s/1/a", "a@key", "a@k.1:2-3_", "a~0123456789abcdef", "a#2",
        "a#10", "s/a@k~0123456789abcdef#3", "1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/16/a"}) {
    EXPECT_TRUE(is_position(good)) << good;
  }
  for (const std::string_view bad : {"",
                                     "/",
                                     "a/",
                                     "/a",
                                     "a//b",
                                     "a b",
                                     "a#1",
                                     "a#0",
                                     "a#02",
                                     "a#",
                                     "a#2x",
                                     "a@",
                                     "a~",
                                     "a~0123456789abcde",
                                     "a~0123456789abcdeg",
                                     "a~0123456789ABCDEF",
                                     "a#2@k",
                                     "a#2/b",
                                     "ä",
                                     "1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/16/17/a",
                                     "a#99999999999999999999"}) {
    EXPECT_FALSE(is_position(bad)) << bad;
  }
  EXPECT_TRUE(is_position(std::string(64, 'a')));
  EXPECT_FALSE(is_position(std::string(65, 'a')));
  EXPECT_TRUE(is_position("a@" + std::string(128, 'k')));
  EXPECT_FALSE(is_position("a@" + std::string(129, 'k')));
  std::string scopes;
  for (int i = 0; i < 8; ++i) scopes += std::string(60, 's') + "/";
  EXPECT_EQ(scopes.size(), 488u);
  EXPECT_TRUE(is_position(scopes + std::string(24, 'a')));
  EXPECT_FALSE(is_position(scopes + std::string(25, 'a'))) << "more than 512 bytes";
}

AE_TEST("code/a position is inside of the scopes before it") {
  EXPECT_TRUE(is_inside("s/a", "s"));
  EXPECT_TRUE(is_inside("s/t/a", "s"));
  EXPECT_TRUE(is_inside("s/t/a", "s/t"));
  EXPECT_FALSE(is_inside("s", "s"));
  EXPECT_FALSE(is_inside("st/a", "s"));
  EXPECT_FALSE(is_inside("s#2", "s"));
}

AE_TEST("code/the same name is counted in its scope") {
  CodeJob job([](CodeContext ctx) -> Script {
    co_await ctx.call("put");
    co_await ctx.call("put");
    co_return co_await ctx.inside("s").call("put");
  });
  job.claim().ok("code/put").ok("code/put#2").ok("code/s/put");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
}

// ---------------------------------------------------------------- what apply refuses

AE_TEST("code/a position is requested once, whatever its kind") {
  CodeJob job(&two_functions);
  job.claim();
  EXPECT_TRUE(is_corrupt(job, started(job, "a", NodeKind::tool, "run:idempotent")));
  EXPECT_TRUE(is_corrupt(job, started(job, "a", NodeKind::wait)));
  EXPECT_TRUE(is_corrupt(job, started(job, "a", NodeKind::scope)));
  EXPECT_FALSE(is_corrupt(job, started(job, "b", NodeKind::wait)));
}

AE_TEST("code/a request has a position and the step id that follows from it") {
  CodeJob job(&two_functions);
  job.claim();
  NodeStarted other = started(job, "b", NodeKind::tool, "put");
  other.step_id = job.state.request_step_id(job.step("code"), "c", NodeKind::tool);
  EXPECT_TRUE(is_corrupt(job, other));
  NodeStarted unnamed = started(job, "b", NodeKind::tool, "put");
  unnamed.position.reset();
  EXPECT_TRUE(is_corrupt(job, unnamed));
  NodeStarted unknown = started(job, "b", NodeKind::tool, "put");
  unknown.kind = "code";
  EXPECT_TRUE(is_corrupt(job, unknown));
  EXPECT_TRUE(is_corrupt(job, started(job, "b b", NodeKind::tool, "put")));
  EXPECT_FALSE(is_corrupt(job, started(job, "b", NodeKind::tool, "put")));
}

AE_TEST("code/only tools that the code may call are requested, a model as a model") {
  CodeJob job(&two_functions, "{'tools':['put','run:idempotent','model:m']}",
              {.more = "{'tools':{'model:m':{'effect':'read','provider':'openai'}}}"});
  job.claim();
  EXPECT_TRUE(is_corrupt(job, started(job, "b", NodeKind::tool, "look")));
  EXPECT_TRUE(is_corrupt(job, started(job, "b", NodeKind::tool, "unknown")));
  EXPECT_TRUE(is_corrupt(job, started(job, "b", NodeKind::tool)));
  EXPECT_TRUE(is_corrupt(job, started(job, "b", NodeKind::tool, "model:m")));
  EXPECT_TRUE(is_corrupt(job, started(job, "b", NodeKind::llm, "put")));
  EXPECT_FALSE(is_corrupt(job, started(job, "b", NodeKind::llm, "model:m")));
}

AE_TEST("code/a request has not more outcomes before it than the log holds") {
  CodeJob job(&two_functions);
  job.claim().ok("code/a");
  for (const std::int64_t delivered : {-1, 2, 1000}) {
    NodeStarted request = started(job, "c", NodeKind::wait);
    request.delivered = delivered;
    EXPECT_TRUE(is_corrupt(job, request)) << delivered;
  }
  for (const std::int64_t delivered : {0, 1}) {
    NodeStarted request = started(job, "c", NodeKind::wait);
    request.delivered = delivered;
    EXPECT_FALSE(is_corrupt(job, request)) << delivered;
  }
}

AE_TEST("code/the position of an outcome is free, and not above the outcomes in the log") {
  CodeJob job(&uses_both_kinds);
  job.claim();
  job.is_stepwise = true;
  job.ok("code/put").ok("code/local");
  job.record_advances();
  const auto first = job.last<ToolInvocationFinished>();  // at position 0, with one before it
  for (const std::int64_t delivered : {-1, 2, 7}) {
    EXPECT_TRUE(is_corrupt_instead(job, first, [&](auto& event) { event.delivered = delivered; }))
        << delivered;
  }
  EXPECT_FALSE(is_corrupt_instead(job, first, [&](auto& event) { event.delivered = 1; }));

  CodeJob taken([](CodeContext ctx) -> Script {
    const Awaited remote = ctx.call("put");
    const Awaited a = ctx.run("a", "idempotent"), b = ctx.run("b", "idempotent");
    co_await a;
    co_await b;
    co_return co_await remote;
  });
  taken.claim();
  taken.is_stepwise = true;
  taken.ok("code/put").ok("code/a").ok("code/b");
  taken.record_advances();
  const auto second = taken.last<ToolInvocationFinished>();
  EXPECT_EQ(second.delivered, 1);
  EXPECT_TRUE(is_corrupt_instead(taken, second, [&](auto& event) { event.delivered = 0; }));
}

AE_TEST("code/only the success of a function and the result of a scope have a position") {
  CodeJob job(&remote_then_function);
  job.claim().ok("code/put");
  const auto remote = job.last<ToolInvocationFinished>();
  EXPECT_TRUE(is_corrupt_instead(job, remote, [&](auto& event) { event.delivered = 0; }));
  job.fails("code/b");
  const auto failed = job.last<ToolInvocationFinished>();
  EXPECT_TRUE(is_corrupt_instead(job, failed, [&](auto& event) { event.delivered = 1; }));
  const auto finished = job.last<NodeFinished>();
  EXPECT_TRUE(is_corrupt_instead(job, finished, [&](auto& event) { event.delivered = 1; }));
}

AE_TEST("code/nothing is recorded of code that has ended") {
  CodeJob job(code_plan("[{'id':'code','kind':'code','code':{}},"
                        "{'id':'other','kind':'tool','tool':'put'}]"),
              {{"code", &calls_one_function}});
  job.claim();
  const StepId code = job.step("code").id;
  job.ok("code/a");
  ASSERT_EQ(job.step("code").phase, StepPhase::done) << job.log_text();
  ASSERT_EQ(job.status(), "running");
  EXPECT_TRUE(is_corrupt(job, started(job, "b", NodeKind::wait)));
  EXPECT_TRUE(is_corrupt(job, TimeRecorded{.effect_id = code.text.string() + ":time:1"}));
  EXPECT_TRUE(is_corrupt(job, ValueEmitted{.node_id = "code",
                                           .step_id = code,
                                           .value = Value(1),
                                           .value_name = "n",
                                           .value_number = 1}));
  const auto ended = job.last<ToolInvocationFinished>();
  EXPECT_TRUE(is_corrupt(job, ended));
  EXPECT_TRUE(is_corrupt(
      job, NodeFinished{.node_id = "code", .result_type = "pure", .step_id = code, .try_no = 1}));
}

AE_TEST("code/code does not end while a request has no outcome") {
  CodeJob job(&two_functions);
  job.claim();
  const NodeFinished end{
      .node_id = "code", .result_type = "pure", .step_id = job.step("code").id, .try_no = 1};
  EXPECT_TRUE(is_corrupt(job, end));
  job.ok("code/a").ok("code/b");
  EXPECT_EQ(job.status(), "completed");
}

// ---------------------------------------------------------------- values

Script draws(CodeContext ctx) {
  const Value first = ctx.now(), second = ctx.now(), id = ctx.uuid(), seed = ctx.random_seed();
  ctx.emit("progress", Value("begun"));
  const bool is_new = ctx.patched("cents");
  const Value args = Value::object({{"first", first},
                                    {"id", id},
                                    {"patched", is_new},
                                    {"second", second},
                                    {"seed", seed},
                                    {"scoped", ctx.inside("s").now()}});
  co_await ctx.run("a", "idempotent", args);
  ctx.emit("progress", Value("done"), true);
  co_return co_await ctx.run("b", "idempotent", argument("seed", ctx.random_seed()));
}

AE_TEST("value/times, ids, seeds and patches are drawn once and given again") {
  CodeJob job(&draws);
  job.claim();
  const Value args = job.sent.back().arguments;
  EXPECT_NE(args["first"], args["second"]);
  EXPECT_EQ(job.record().values.at("time:1"), args["first"]);
  EXPECT_EQ(job.record().values.at("time:2"), args["second"]);
  EXPECT_EQ(job.record().values.at("time:s/1"), args["scoped"]);
  EXPECT_EQ(job.record().values.at("uuid:1"), args["id"]);
  EXPECT_EQ(job.record().values.at("random"), args["seed"]);
  EXPECT_EQ(job.record().values.at("patch:cents"), Value(true));
  job.crash();
  EXPECT_FALSE(job.diverged) << job.log_text();
  EXPECT_EQ(job.sent.back().arguments, args);
  job.ok("code/a");
  EXPECT_EQ(job.sent.back().arguments["seed"], args["seed"]) << "one seed for each code";
  EXPECT_EQ(job.ok("code/b").status(), "completed");
  expect_proved(job);
}

AE_TEST("value/emitted values are recorded once, with their numbers") {
  CodeJob job(&draws);
  job.claim().crash().ok("code/a").crash().ok("code/b");
  const auto emitted = job.all<ValueEmitted>();
  ASSERT_EQ(emitted.size(), 2u) << job.log_text();
  EXPECT_EQ(emitted[0].value_number, 1);
  EXPECT_EQ(emitted[0].published, std::nullopt);
  EXPECT_EQ(emitted[1].value_number, 2);
  EXPECT_EQ(emitted[1].published, true);
  EXPECT_EQ(emitted[1].value.value, Value("done"));
}

AE_TEST("value/values are in the commit of their advance") {
  CodeJob job([](CodeContext ctx) -> Script {
    co_await ctx.run("a", "idempotent");
    const Value args = Value::object({{"at", ctx.now()}});
    co_return co_await ctx.run("b", "idempotent", args);
  });
  job.claim();
  const std::size_t commits = job.commits.size();
  job.ok("code/a");
  ASSERT_EQ(job.commits.size(), commits + 1);
  EXPECT_EQ(job.count(EventType::time_recorded), 1u);
}

AE_TEST("value/a value is recorded once, and emitted values count 1, 2, 3") {
  CodeJob job(&draws);
  job.claim();
  const std::string code = job.step("code").id.text.string();
  EXPECT_TRUE(is_corrupt(job, TimeRecorded{.effect_id = code + ":time:1", .value = json("{}")}));
  EXPECT_FALSE(is_corrupt(job, TimeRecorded{.effect_id = code + ":time:9", .value = json("{}")}));
  for (const std::int64_t number : {0, 1, 3}) {
    EXPECT_TRUE(is_corrupt(job, ValueEmitted{.node_id = "code",
                                             .step_id = job.step("code").id,
                                             .value = Value(1),
                                             .value_name = "n",
                                             .value_number = number}))
        << number;
  }
}

AE_TEST("value/an emitted value has at most 256 KiB, and values have known names") {
  CodeJob job(&two_functions);
  job.claim();
  const auto recorded = [&](Advance::Item item) {
    return record_advance(job.state, job.step("code"), {.items = {std::move(item)}});
  };
  Advance::Emitted large{.scope = {}, .name = "n", .value = Value(std::string(kEmittedMax, 'x'))};
  EXPECT_EQ(recorded(large).error().code, Code::payload_too_large);
  large.value = Value(std::string(kEmittedMax - 2, 'x'));
  EXPECT_TRUE(recorded(large));
  EXPECT_EQ(recorded(Advance::NewValue{.name = "dice:1", .value = Value(1)}).error().code,
            Code::input_invalid);
  EXPECT_EQ(recorded(Advance::NewValue{.name = "patch:p", .value = Value(1)}).error().code,
            Code::input_invalid);
  const Advance large_scope{
      .items = {
          Advance::ScopeBegun{.position = "s"},
          Advance::ScopeEnded{.position = "s", .result = Value(std::string(kValueMax, 'x'))}}};
  EXPECT_EQ(record_advance(job.state, job.step("code"), large_scope).error().code,
            Code::payload_too_large);
}

// ---------------------------------------------------------------- the record

AE_TEST("record/it is the same at every event and from every checkpoint") {
  CodeJob job(
      [](CodeContext ctx) -> Script {
        const auto body = [](CodeContext in) -> Script {
          co_await in.run("x", "idempotent");
          co_return co_await in.call("put", argument("at", in.now()));
        };
        const Awaited scope = ctx.scope("s", body(ctx.inside("s")));
        const Awaited wait = ctx.wait(human_wait("k"));
        const Awaited gated = ctx.call("gated");
        ctx.emit("n", Value(1));
        co_await scope;
        co_await wait;
        co_return co_await gated;
      },
      "{}", {.more = "{'tools':{'gated':{'approval':'required'}}}"});
  job.claim().ok("code/s/x").crash();
  job.is_stepwise = true;
  job.ok("code/s/put");
  job.is_stepwise = false;
  job.run_until_idle().signal("k", "{'decision':'approve'}").approve("code/gated");
  job.crash().ok("code/gated");
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  expect_every_prefix(job);
  expect_proved(job);
}

}  // namespace
}  // namespace ae::engine::testing
