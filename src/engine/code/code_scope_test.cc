// Scopes of code whose results are recorded, and loops: turns, and the steps that are dropped after
// them.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "engine/code/code.h"
#include "engine/code/code_helpers_test.h"
#include "engine/state/checkpoint.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

Script one_function(CodeContext ctx) { co_return co_await ctx.run("a", "idempotent"); }

Script both_kinds(CodeContext ctx) {
  const Awaited local = ctx.run("local", "idempotent"), remote = ctx.call("put");
  co_await local;
  co_return co_await remote;
}

Script inner(CodeContext ctx) {
  co_await ctx.run("x", "idempotent");
  const Value y = co_await ctx.call("put");
  co_return Value::array({y, y});
}
Script one_scope(CodeContext ctx) {
  const Value result = co_await ctx.scope("s", inner(ctx.inside("s")));
  co_return co_await ctx.run("after", "idempotent", argument("result", result));
}

AE_TEST("scope/its result is recorded, and a later routine does not run it again") {
  CodeJob job(&one_scope);
  job.claim().ok("code/s/x").ok("code/s/put", "2");
  EXPECT_EQ(job.step("code/s").phase, StepPhase::done) << job.log_text();
  EXPECT_EQ(job.step("code/s").result, json("[2,2]"));
  EXPECT_EQ(job.sent.back().arguments, json("{'result':[2,2]}"));
  const CodeRecord record = job.record();
  ASSERT_EQ(record.requests.size(), 2u) << "the scope, and the call after it";
  EXPECT_EQ(record.requests[0].position, "s");
  ASSERT_EQ(record.deliveries.size(), 2u);
  EXPECT_EQ(record.deliveries[0].passed_over, 2u);
  EXPECT_EQ(record.deliveries[1].result, json("[2,2]"));
  job.crash();
  EXPECT_EQ(job.routine()->made.size(), 1u) << "its calls are not made again";
  EXPECT_EQ(job.ok("code/after").status(), "completed") << job.log_text();
  expect_proved(job);
}

AE_TEST("scope/its end is not delivered before its begin") {
  CodeJob job(&both_kinds);
  job.claim();
  job.is_stepwise = true;
  job.ok("code/put");  // in the log, and not given yet
  ASSERT_EQ(job.step("code").code->outcomes.size(), 1u) << job.log_text();
  Advance advance;
  advance.items.emplace_back(Advance::ScopeBegun{.position = "t", .delivered = 1});
  advance.items.emplace_back(Advance::ScopeEnded{.position = "t", .result = {}, .delivered = 0});
  EXPECT_FALSE(record_advance(job.state, job.step("code"), advance));
}

AE_TEST("scope/one that has not ended is run again") {
  CodeJob job(&one_scope);
  job.claim().ok("code/s/x").crash();
  EXPECT_EQ(job.routine()->made.size(), 2u);
  job.ok("code/s/put", "2").ok("code/after");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
}

AE_TEST("scope/its end is in the commit of the success that ends it") {
  CodeJob job([](CodeContext ctx) -> Script {
    co_await ctx.scope("s", one_function(ctx.inside("s")));
    co_return co_await ctx.run("after", "idempotent");
  });
  job.claim();
  const std::size_t commits = job.commits.size();
  job.ok("code/s/a", "5");
  ASSERT_EQ(job.commits.size(), commits + 1) << job.log_text();
  EXPECT_EQ(job.step("code/s").result, Value(5));
  EXPECT_EQ(job.step("code/after").request->delivered, 2u) << "its result is an outcome, too";
  EXPECT_EQ(job.step("code/s/a").phase, StepPhase::done);
  EXPECT_EQ(job.crash().ok("code/after").status(), "completed");
  expect_proved(job);
}

AE_TEST("scope/a failure of its body is its failure, and is given again") {
  CodeJob job([](CodeContext ctx) -> Script {
    std::string code;
    const auto body = [](CodeContext in) -> Script { co_return co_await in.call("once"); };
    try {
      co_await ctx.scope("s", body(ctx.inside("s")));
    } catch (const CodeFailure& failed) {
      code = failed.failure.code;
    }
    co_return co_await ctx.run("after", "idempotent", argument("code", code));
  });
  job.claim().fails("code/s/once", "http_422");
  EXPECT_EQ(job.step("code/s").failure->code, "http_422");
  EXPECT_EQ(job.sent.back().arguments, json("{'code':'http_422'}"));
  EXPECT_EQ(job.crash().ok("code/after").status(), "completed") << job.log_text();
  expect_proved(job);
}

AE_TEST("scope/it ends when the requests of a loser inside of it have their outcomes") {
  CodeJob job([](CodeContext ctx) -> Script {
    const auto body = [](CodeContext in) -> Script {
      std::vector<Awaited> all{in.run("fast", "idempotent"), in.run("slow", "idempotent")};
      const std::size_t first = co_await CodeContext::first(all);
      co_return Value(static_cast<std::uint64_t>(first));
    };
    co_return co_await ctx.scope("s", body(ctx.inside("s")));
  });
  job.claim().ok("code/s/fast");
  EXPECT_EQ(job.step("code/s").phase, StepPhase::running);
  job.crash().ok("code/s/slow");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.state.result, json("{'code':0}"));
}

AE_TEST("scope/scopes may be inside of scopes") {
  CodeJob job([](CodeContext ctx) -> Script {
    const auto body = [](CodeContext in) -> Script {
      co_await in.scope("t", one_function(in.inside("t")));
      co_return co_await in.run("y", "idempotent");
    };
    co_await ctx.scope("s", body(ctx.inside("s")));
    co_return co_await ctx.run("z", "idempotent");
  });
  job.claim().ok("code/s/t/a", "1").crash().ok("code/s/y", "2").crash();
  EXPECT_EQ(job.record().requests.size(), 2u);
  EXPECT_EQ(job.ok("code/z", "3").status(), "completed") << job.log_text();
  expect_proved(job);
}

AE_TEST("scope/nothing is requested inside of one that has ended") {
  CodeJob job(&one_scope);
  job.claim().ok("code/s/x").ok("code/s/put");
  EXPECT_TRUE(is_corrupt(job, started(job, "s/z", NodeKind::tool, "put")));
  EXPECT_TRUE(is_corrupt(job, started(job, "s/t/z", NodeKind::wait)));
  EXPECT_TRUE(is_corrupt(job, started(job, "s/t", NodeKind::scope)));
  EXPECT_FALSE(is_corrupt(job, started(job, "st/z", NodeKind::tool, "put")));
}

AE_TEST("scope/it ends once, and not while a request inside of it is open") {
  CodeJob job(&one_scope);
  job.claim();
  const auto end = [&](std::string_view position) {
    return NodeFinished{
        .node_id = "code",
        .result = Value(1),
        .result_type = "pure",
        .step_id = job.state.request_step_id(job.step("code"), position, NodeKind::scope),
        .try_no = 1};
  };
  EXPECT_TRUE(is_corrupt(job, end("s")));
  EXPECT_TRUE(is_corrupt(job, end("unknown")));
  job.ok("code/s/x").ok("code/s/put");
  EXPECT_TRUE(is_corrupt(job, end("s")));
}

AE_TEST("scope/an advance with a scope that cannot begin or end there is refused") {
  using Begun = Advance::ScopeBegun;
  using Ended = Advance::ScopeEnded;
  CodeJob job(&one_scope);
  job.claim();
  const auto is_possible = [&](std::vector<Advance::Item> items) {
    const auto events = record_advance(job.state, job.step("code"), {.items = std::move(items)});
    return events || events.error().code != Code::input_invalid;
  };
  EXPECT_TRUE(is_possible({Begun{.position = "t"}, Ended{.position = "t"}}));
  EXPECT_TRUE(is_possible({Begun{.position = "t"}, Begun{.position = "t/u"},
                           Ended{.position = "t/u"}, Ended{.position = "t", .delivered = 1}}));
  EXPECT_FALSE(is_possible({Begun{.position = "t"}, Begun{.position = "u"}, Ended{.position = "t"},
                            Ended{.position = "u"}}))
      << "both results cannot be the first outcome";
  EXPECT_FALSE(is_possible({Begun{.position = "s"}})) << "it has begun";
  EXPECT_FALSE(is_possible({Begun{.position = "t"}, Begun{.position = "t"}}));
  EXPECT_FALSE(is_possible({Begun{.position = "t t"}}));
  EXPECT_FALSE(is_possible({Ended{.position = "t"}}));
  EXPECT_FALSE(is_possible({Ended{.position = "s"}})) << "a request inside of it is open";
  EXPECT_FALSE(
      is_possible({Begun{.position = "t"}, Begun{.position = "t/u"}, Ended{.position = "t"}}));
  EXPECT_FALSE(
      is_possible({Begun{.position = "t"}, Ended{.position = "t"}, Begun{.position = "t/u"}}));
  EXPECT_FALSE(is_possible({Begun{.position = "s/x"}})) << "a call has this position";
}

AE_TEST("scope/what is inside of an ended scope keeps no result in memory") {
  CodeJob job(&one_scope);
  job.claim().ok("code/s/x", "'large'").ok("code/s/put", "'larger'");
  for (const std::string_view inside : {"code/s/x", "code/s/put"}) {
    EXPECT_TRUE(job.step(inside).result.is_null()) << inside;
    EXPECT_EQ(job.step(inside).call, nullptr) << inside;
  }
}

// ---------------------------------------------------------------- loops

// A loop that adds up what a call gives, in 3 turns.
Script turn_of(CodeContext ctx, std::int64_t sum) {
  const Value got = co_await ctx.run("x", "idempotent");
  (void)ctx.now();
  co_return Value(sum + got.as_int());
}
Script three_turns(CodeContext ctx) {
  Value sum(0);
  for (std::uint64_t n = ctx.first_turn("add"); n < 3; ++n) {
    const std::int64_t so_far = sum.as_int();
    sum = co_await ctx.turn("add", n, turn_of(ctx.inside(fmt::format("add/{}", n)), so_far));
  }
  co_return co_await ctx.run("after", "idempotent", argument("sum", sum));
}

AE_TEST("loop of code/a later routine begins with the end of its last turn") {
  CodeJob job(&three_turns);
  job.claim().ok("code/add/0/x", "1").ok("code/add/1/x", "2").crash();
  const CodeRecord record = job.record();
  ASSERT_EQ(record.requests.size(), 3u) << "turn 1, which ended, and turn 2 with its call";
  EXPECT_EQ(record.requests[0].position, "add/1");
  EXPECT_EQ(record.requests[0].kind, NodeKind::turn);
  ASSERT_EQ(record.deliveries.size(), 2u);
  EXPECT_EQ(record.deliveries[0].passed_over, 3u) << "the calls of two turns, and the first turn";
  EXPECT_EQ(record.deliveries[1].result, Value(3));
  EXPECT_FALSE(record.values.contains("time:add/1/1")) << "of a turn that ended";
  EXPECT_TRUE(record.values.empty());
  job.ok("code/add/2/x", "3");
  EXPECT_EQ(job.sent.back().arguments, json("{'sum':6}"));
  EXPECT_EQ(job.ok("code/after").status(), "completed") << job.log_text();
  expect_proved(job);
}

AE_TEST("loop of code/a request whose step was dropped is not admitted again") {
  CodeJob job(&three_turns);
  job.claim().ok("code/add/0/x", "1").ok("code/add/1/x", "2");
  const std::size_t steps = job.state.steps.size();
  drop_all_folded_steps(job.state);
  EXPECT_EQ(job.state.steps.size(), steps - 4) << "two turns, each with its call";
  ASSERT_EQ(job.routine()->requests.size(), 3u)
      << "the routine's list still has those of the turns";
  job.ok("code/add/2/x", "3").ok("code/after");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.count(EventType::tool_invocation_started), 4u);
}

AE_TEST("loop of code/turns begin one after the other, each once") {
  CodeJob job(&three_turns);
  job.claim().ok("code/add/0/x", "1");
  for (const char* position : {"add/0", "add/1", "add/3", "add/-1", "add/02", "add", "more/1"}) {
    EXPECT_TRUE(is_corrupt(job, started(job, position, NodeKind::turn))) << position;
  }
  EXPECT_TRUE(is_corrupt(job, started(job, "add/0/y", NodeKind::wait))) << "its turn has ended";
  EXPECT_FALSE(is_corrupt(job, started(job, "more/0", NodeKind::turn)));
  const Step& code = job.step("code");
  const auto advance = [&](std::string position, bool is_turn) {
    Advance one;
    one.items.emplace_back(Advance::ScopeBegun{.position = std::move(position),
                                               .delivered = code.code->outcomes.size(),
                                               .is_turn = is_turn});
    return one;
  };
  EXPECT_FALSE(record_advance(job.state, code, advance("add/2", true))) << "turn 1 is open";
  EXPECT_FALSE(record_advance(job.state, code, advance("add/0", false))) << "it has ended";
  EXPECT_FALSE(record_advance(job.state, code, advance("add/0/s", false))) << "in one that ended";
  EXPECT_TRUE(record_advance(job.state, code, advance("more/0", true)));
  Advance plain = advance("more/0", false);
  const std::uint64_t outcomes = code.code->outcomes.size();
  plain.items.emplace_back(Advance::ScopeEnded{.position = "more/0", .delivered = outcomes});
  plain.items.emplace_back(
      Advance::ScopeBegun{.position = "more/1", .delivered = outcomes + 1, .is_turn = true});
  EXPECT_FALSE(record_advance(job.state, code, plain)) << "a plain scope is no turn";
}

// Each turn ends at once: what it records takes no memory afterwards.
Script many_turns(CodeContext ctx) {
  for (std::uint64_t n = ctx.first_turn("add"); n < 400; ++n) {
    (void)co_await ctx.turn("add", n, turn_of(ctx.inside(fmt::format("add/{}", n)), 0));
  }
  co_return Value(true);
}

AE_TEST("loop of code/its state does not grow with its turns") {
  CodeJob job(&many_turns);
  job.state.keeps_folded = true;
  job.claim();
  for (int n = 0; n < 400; ++n) job.ok(fmt::format("code/add/{}/x", n), "1");
  ASSERT_EQ(job.status(), "completed");
  State state;
  state.job = job.state.job;
  const PlanSource plans = [&](const Value&, std::string_view) {
    return Result<std::shared_ptr<const Plan>>(job.plan);
  };
  std::size_t steps = 0, bytes = 0;
  for (const Event& event : job.log) {
    ASSERT_TRUE(apply(state, event, plans));
    steps = std::max(steps, state.steps.size());
    if (event.seq > 100 && event.seq % 50 == 0) {
      bytes = std::max(bytes, checkpoint(state, {}).size());
    }
  }
  EXPECT_LT(steps, 150u);
  EXPECT_LT(bytes, 32u << 10);
  VerifyInput input;
  input.job = job.state.job;
  input.events = job.log;
  input.effects = job.effects;
  const Verification all = verify(input, plans);
  EXPECT_TRUE(all.ok) << canonical(all.to_json());
}

}  // namespace
}  // namespace ae::engine::testing
