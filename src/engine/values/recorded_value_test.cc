// Tools that make no call: the time, random numbers and UUIDs of a step are
// recorded once and replayed.
//
// Method: a job runs, dies after each event, and is folded, forked and re-planned with another
// clock and another random source. A recorded value never changes, and no call is sent for it.
#include <fmt/core.h>

#include <cmath>

#include "base/ids.h"
#include "engine/heart/request.h"
#include "engine/loop/loop_fixture_test.h"
#include "engine/replan/replan.h"
#include "engine/state/checkpoint.h"
#include "engine/values/recorded_value.h"
#include "inspect/trace.h"
#include "inspect/verify.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

constexpr std::string_view kNative =
    "{'tools': {'clock': {'effect': 'read', 'records': 'time'},"
    " 'dice': {'effect': 'read', 'records': 'random'},"
    " 'ids': {'effect': 'read', 'records': 'uuid'}}}";

// A plan of one node for each tool, and one that reads all three.
constexpr std::string_view kAll =
    "[{'id': 'at', 'kind': 'tool', 'tool': 'clock'},"
    " {'id': 'roll', 'kind': 'tool', 'tool': 'dice', 'args': {'min': 1, 'max': 6}},"
    " {'id': 'name', 'kind': 'tool', 'tool': 'ids'},"
    " {'id': 'use', 'kind': 'tool', 'tool': 'put', 'needs': ['at', 'roll', 'name'],"
    "  'args': {'at': '${ .steps.at.time }', 'ms': '${ .steps.at.ms }', 'n': '${ .steps.roll }',"
    "           'id': '${ .steps.name }'}}]";

std::string one_node(std::string_view tool, std::string_view args = "{}") {
  return fmt::format("[{{'id': 'a', 'kind': 'tool', 'tool': '{}', 'args': {}}}]", tool, args);
}

std::string with_tool(std::string_view more) {
  return "{'tools': {'dice': {'effect': 'read', 'records': 'random'" + std::string(more) + "}}}";
}

Verification proof_of(const JobFixture& job) {
  VerifyInput input;
  input.job = job.state.job;
  input.events = job.log;
  return verify(input, uncached_plan_source());
}

using Types = std::vector<std::string>;

AE_TEST("recorded value/a value is recorded between command and commit, without a call") {
  JobFixture job(one_node("clock"), {.more = kNative});
  job.claim();
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  const Types all = job.types();
  const Types tail(all.end() - 7, all.end());
  EXPECT_EQ(tail, (Types{"node_started", "command_emitted", "time_recorded", "command_committed",
                         "node_finished", "step_committed", "job_completed"}));
  const std::string step = job.step("a").id.text;
  const auto recorded = job.last<TimeRecorded>();
  EXPECT_EQ(recorded.effect_id, step + ":time");
  EXPECT_EQ(job.last<CommandEmitted>().input_ref, step + ":time");
  EXPECT_EQ(job.last<CommandEmitted>().kind, "tool");
  EXPECT_EQ(job.last<CommandCommitted>().result_of, step);
  EXPECT_TRUE(job.last<CommandCommitted>().result.is_null());
  EXPECT_TRUE(job.last<NodeFinished>().result.is_null());
  EXPECT_EQ(recorded.value.value,
            json("{'ms': 1767225600000, 'time': '2026-01-01T00:00:00.000000Z'}"));
  EXPECT_EQ(job.state.result["a"], recorded.value.value);
  EXPECT_TRUE(job.sent.empty());
  EXPECT_EQ(job.state.tries_started, 0u);
  EXPECT_TRUE(proof_of(job).ok) << canonical(proof_of(job).to_json());
}

AE_TEST("recorded value/a recorded value is kept wherever the process dies") {
  JobFixture first(kAll, {.more = kNative});
  first.jitter_seed = 1;
  first.claim();
  const std::size_t events = first.log.size();
  const Value at = first.step("at").result, roll = first.step("roll").result,
              name = first.step("name").result;
  std::size_t redrawn = 0;
  for (std::size_t cut = 3; cut <= events; ++cut) {
    JobFixture job(kAll, {.more = kNative});
    job.jitter_seed = 1;
    job.claim();
    ASSERT_EQ(job.log.size(), events);
    const std::vector<Event> known(job.log.begin(),
                                   job.log.begin() + static_cast<std::ptrdiff_t>(cut));
    job.log = known;
    job.state = job.folded(cut);
    job.in_flight.clear();
    job.now = job.now + 5s;
    job.jitter_seed = 1000 + cut;
    job.claim().ok("use");
    ASSERT_EQ(job.status(), "completed") << "cut at " << cut << "\n" << job.log_text();
    struct Drawn {
      std::string_view node;
      EventType type;
      Value before;    // in the truncated log
      Value recorded;  // in the log of the completed job
    };
    const Drawn values[] = {
        {"at", EventType::time_recorded, at, job.last<TimeRecorded>().value.value},
        {"roll", EventType::random_recorded, roll, job.last<RandomRecorded>().value.value},
        {"name", EventType::uuid_recorded, name, job.last<UuidRecorded>().value.value}};
    for (const Drawn& draw_value : values) {
      const bool was_there = std::ranges::any_of(
          known, [&](const Event& event) { return event.type == draw_value.type; });
      EXPECT_EQ(job.count(draw_value.type), 1u) << draw_value.node << ", cut at " << cut;
      EXPECT_EQ(job.step(draw_value.node).result, draw_value.recorded) << draw_value.node;
      if (was_there) {
        EXPECT_EQ(draw_value.recorded, draw_value.before) << draw_value.node << ", cut at " << cut;
      }
      redrawn += was_there || draw_value.recorded == draw_value.before ? 0 : 1;
    }
    const Value sent = job.sent.back().arguments;
    EXPECT_EQ(sent["id"], job.last<UuidRecorded>().value.value);
    EXPECT_EQ(sent["n"], job.last<RandomRecorded>().value.value);
    EXPECT_EQ(sent["ms"], job.last<TimeRecorded>().value.value["ms"]);
    EXPECT_TRUE(proof_of(job).ok) << "cut at " << cut << canonical(proof_of(job).to_json());
  }
  EXPECT_GT(redrawn, 0u);  // unrecorded values were drawn from the new random source
}

AE_TEST("recorded value/a step with a recorded value is committed even if the job is cancelled") {
  JobFixture job(one_node("dice"), {.more = kNative});
  job.claim();
  const auto recorded = std::ranges::find(job.log, EventType::random_recorded, &Event::type);
  job.log.erase(recorded + 1, job.log.end());
  job.state = job.folded(job.log.size());
  job.cancel();
  EXPECT_EQ(job.status(), "cancelled") << job.log_text();
  EXPECT_EQ(job.count(EventType::command_committed), 1u);
  EXPECT_EQ(job.count(EventType::random_recorded), 1u);
}

AE_TEST(
    "recorded value/a second value of a step, or a value of a step with calls, is log_corrupt") {
  JobFixture job(one_node("dice"), {.more = kNative});
  job.claim();
  const auto at = std::ranges::find(job.log, EventType::random_recorded, &Event::type);
  const auto upto = static_cast<std::size_t>(at - job.log.begin()) + 1;
  State state = job.folded(upto);
  EXPECT_EQ(apply(state, at->body, job.now, uncached_plan_source()).error().code,
            Code::log_corrupt);

  JobFixture calls(one_node("look"), {.more = kNative});
  calls.claim();
  const EventBody alien =
      RandomRecorded{.effect_id = calls.step("a").id.text + ":random", .value = Value(0.5)};
  EXPECT_EQ(apply(calls.state, alien, calls.now, uncached_plan_source()).error().code,
            Code::log_corrupt);
}

AE_TEST("recorded value/verify detects a changed value and a duplicated one") {
  JobFixture job(one_node("dice", "{'min': 1, 'max': 6}"), {.more = kNative});
  job.claim();
  ASSERT_TRUE(proof_of(job).ok);
  const auto at = static_cast<std::size_t>(
      std::ranges::find(job.log, EventType::random_recorded, &Event::type) - job.log.begin());
  JobFixture forged = std::move(job);
  std::get<RandomRecorded>(forged.log[at].body).value = Value(7);
  EXPECT_NE(proof_of(forged).replay.detail.find("a value that its tool does not give"),
            std::string::npos);
  Event second = forged.log[at];
  forged.log.insert(forged.log.begin() + static_cast<std::ptrdiff_t>(at) + 1, second);
  EXPECT_FALSE(proof_of(forged).ledger.ok);
  EXPECT_FALSE(proof_of(forged).state_machine.ok);
}

AE_TEST("recorded value/random numbers are uniform within their bounds") {
  const auto draw = [](const Value& args, std::uint64_t seed) {
    DecisionContext context;
    context.entropy = {seed, 2, 3, 4};
    const Value value = draw_value(RecordedKind::random, args, context, StepId("0123456789abcdef"));
    EXPECT_TRUE(is_possible_value(RecordedKind::random, args, value)) << canonical(value);
    return value;
  };
  std::map<std::int64_t, int> seen;
  constexpr int kDraws = 6'000;
  for (int i = 0; i < kDraws; ++i) {
    seen[draw(json("{'min': -2, 'max': 3}"), static_cast<std::uint64_t>(i)).as_int()]++;
  }
  EXPECT_EQ(seen.size(), 6u);
  for (const auto& [number, times] : seen) EXPECT_NEAR(times, 1'000, 200) << number;
  const Value widest = json("{'min': -9007199254740991, 'max': 9007199254740991}");
  bool low = false, high = false;
  double sum = 0;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const std::int64_t number = draw(widest, i).as_int();
    low |= number < 0;
    high |= number > 0;
    sum += draw(json("{}"), i).as_number();
  }
  EXPECT_TRUE(low && high);
  EXPECT_NEAR(sum / 200, 0.5, 0.1);
  EXPECT_EQ(draw(json("{'min': 4, 'max': 4}"), 1), Value(4));
}

AE_TEST("recorded value/a UUID has the requested version and differs by step") {
  DecisionContext context;
  context.now = *instant_from_text("2026-03-04T05:06:07.890Z");
  context.entropy = {1, 2, 3, 4};
  const StepId a("0123456789abcdef"), b("fedcba9876543210");
  const Value seven = draw_value(RecordedKind::uuid, json("{}"), context, a);
  EXPECT_EQ(seven.as_string().substr(0, 15), "019cb73d-3592-7");
  EXPECT_TRUE(is_possible_value(RecordedKind::uuid, json("{'version': 7}"), seven));
  EXPECT_FALSE(is_possible_value(RecordedKind::uuid, json("{'version': 4}"), seven));
  const Value four = draw_value(RecordedKind::uuid, json("{'version': 4}"), context, a);
  EXPECT_TRUE(is_possible_value(RecordedKind::uuid, json("{'version': 4}"), four));
  EXPECT_EQ(four.as_string()[14], '4');
  EXPECT_NE(draw_value(RecordedKind::uuid, json("{}"), context, b), seven);
  EXPECT_EQ(draw_value(RecordedKind::uuid, json("{}"), context, a), seven);
}

AE_TEST("recorded value/invalid arguments fail the node before anything is recorded") {
  const std::pair<std::string_view, std::string_view> bad[] = {
      {"dice", "{'min': 6, 'max': 1}"},     {"dice", "{'min': 1}"},
      {"dice", "{'min': 0.5, 'max': 2}"},   {"dice", "{'min': '1', 'max': 2}"},
      {"dice", "{'min': 1, 'max': 1e300}"}, {"dice", "{'most': 1}"},
      {"clock", "{'zone': 'UTC'}"},         {"ids", "{'version': 1}"},
      {"ids", "{'version': 7, 'n': 2}"},    {"ids", "{'version': null}"}};
  for (const auto& [tool, args] : bad) {
    JobFixture job(one_node(tool, args), {.more = kNative});
    job.claim();
    EXPECT_EQ(job.status(), "failed") << args;
    EXPECT_EQ(job.state.error->code, "input_invalid") << args;
    EXPECT_EQ(job.types("a"), (Types{"node_started", "node_finished"})) << args;
  }
}

AE_TEST("recorded value/each item of a map has its own value, a failed item has none") {
  JobFixture job(
      "[{'id': 'a', 'kind': 'map', 'over': '${ .input.list }', 'max_parallel': 2,"
      " 'on_item_error': 'collect',"
      " 'do': {'tool': 'dice', 'args': {'min': '${ .item }', 'max': 3}}}]",
      {.more = kNative, .input = "{'list': [1, 2, 9, 3, 1]}"});
  job.claim();
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.count(EventType::random_recorded), 4u);
  EXPECT_EQ(job.state.result["a"].items()[2]["error"]["code"], "input_invalid");
  EXPECT_EQ(job.state.result["a"].items()[3], Value(3));
  EXPECT_TRUE(proof_of(job).ok) << canonical(proof_of(job).to_json());
  const Value trace = trace_view(job.state, job.log);
  EXPECT_EQ(trace["nodes"].items()[0]["items"].items()[3]["result"], Value(3));
  EXPECT_EQ(trace["nodes"].items()[0]["items"].items()[3]["world"], "unchanged");
}

AE_TEST("recorded value/a model's call receives the value, invalid arguments are rejected") {
  JobFixture job(
      "[{'id': 'chat', 'kind': 'loop', 'loop': {'tool': 'model:main', 'model': 'small',"
      " 'prompt': 'Go', 'tools': ['clock', 'dice'], 'parallel_tools': 2, 'max_turns': 5}}]",
      {.more = "{'tools': {'model:main': {'effect': 'read', 'provider': 'openai'},"
               " 'clock': {'effect': 'read', 'records': 'time'},"
               " 'dice': {'effect': 'read', 'records': 'random'}}}"});
  job.claim().ok("chat/0", tool_calls_answer({{"a", "clock"},
                                              {"b", "dice", "{'min': 2, 'max': 1}"},
                                              {"c", "dice", "{'min': 2, 'max': 2}"}}));
  EXPECT_EQ(last_message(job, "chat/1", 3)["content"],
            canonical(job.last<TimeRecorded>().value.value));
  EXPECT_NE(last_message(job, "chat/1", 2).text("content").find("input_invalid"),
            std::string::npos);
  EXPECT_EQ(last_message(job, "chat/1")["content"], "2");
  EXPECT_EQ(job.sent.size(), 2u);  // both to the model
  const Value before = request(job, "chat/1");
  job.now = job.now + 1h;
  job.jitter_seed = 99;
  job.crash();
  EXPECT_EQ(request(job, "chat/1"), before);
  EXPECT_EQ(job.count(EventType::time_recorded), 1u);
  job.ok("chat/1", text_answer("Done"));
  EXPECT_EQ(job.status(), "completed");
  expect_verified(job);
}

AE_TEST("recorded value/policies and approvals apply as to a call") {
  JobFixture denied(one_node("dice"),
                    {.more = with_tool(", 'rules': [{'action': 'deny', 'reason': 'no games'}]")});
  denied.claim();
  EXPECT_EQ(denied.state.error->code, "denied");
  EXPECT_EQ(denied.count(EventType::random_recorded), 0u);
  EXPECT_TRUE(proof_of(denied).ok);

  JobFixture job(one_node("dice", "{'min': 1, 'max': 6}"),
                 {.more = with_tool(", 'approval': '${ .args.max > 5 }'")});
  job.claim();
  ASSERT_EQ(job.status(), "waiting") << job.log_text();
  EXPECT_EQ(job.count(EventType::random_recorded), 0u);
  job.signal("approval/" + job.step("a").id.text, "{'decision': 'approve'}");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.count(EventType::random_recorded), 1u);
  EXPECT_TRUE(proof_of(job).ok) << canonical(proof_of(job).to_json());

  JobFixture refused(one_node("dice"), {.more = with_tool(", 'approval': 'required'")});
  refused.claim();
  refused.signal("approval/" + refused.step("a").id.text, "{'decision': 'reject'}");
  EXPECT_EQ(refused.state.error->code, "rejected");
  EXPECT_EQ(refused.count(EventType::random_recorded), 0u);
  const EventBody forced =
      RandomRecorded{.effect_id = refused.step("a").id.text + ":random", .value = Value(0.5)};
  EXPECT_FALSE(apply(refused.state, forced, refused.now, uncached_plan_source()));
}

AE_TEST("recorded value/a recorded value does not count against the budget") {
  JobFixture job(kAll, {.more = "{'budget': {'tool_calls': 1}, " + std::string(kNative).substr(1)});
  job.claim().ok("use");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.state.budget.spent.tool_calls, 1u);
}

AE_TEST("recorded value/forks and new plans reuse recorded values") {
  JobFixture origin(kAll, {.more = kNative});
  origin.claim().fails("use");
  ASSERT_EQ(origin.status(), "failed");
  auto fork = origin.fork(origin.seq_of(EventType::node_started, "use"));
  ASSERT_TRUE(fork) << fork.error().message;
  JobFixture job(*fork, "job-2");
  job.jitter_seed = 12345;
  job.now = job.now + 1h;
  job.claim();
  EXPECT_EQ(job.sent.back().arguments, origin.sent.back().arguments);
  EXPECT_EQ(job.count(EventType::time_recorded), 0u);

  auto early = origin.fork(origin.seq_of(EventType::node_started, "roll"));
  ASSERT_TRUE(early) << early.error().message;
  JobFixture redrawn(*early, "job-3");
  redrawn.jitter_seed = 12345;
  redrawn.claim();
  EXPECT_EQ(redrawn.step("at").result, origin.step("at").result);
  EXPECT_EQ(redrawn.count(EventType::uuid_recorded), 1u);
  EXPECT_NE(redrawn.step("name").result, origin.step("name").result);

  // The arguments of the random number change: only its value is dropped.
  job.ok("use");
  JobFixture running(kAll, {.more = kNative});
  running.claim();
  State before_use = running.folded(running.seq_of(EventType::node_started, "use") - 1);
  const auto replan_with = [&](std::string_view max) {
    std::string nodes(kAll);
    nodes.replace(nodes.find("'max': 6"), 8, "'max': " + std::string(max));
    return *replan_of(before_use, compiled(graph(nodes, kNative)), {});
  };
  EXPECT_EQ(replan_with("6").carried.size(), 3u);
  EXPECT_EQ(replan_with("8").carried.size(), 2u);
  EXPECT_TRUE(replan_with("8").lost.empty());
}

AE_TEST("recorded value/a log with erased values folds, and the job can be viewed") {
  JobFixture job(kAll, {.more = kNative});
  job.claim().ok("use");
  const auto erase = [](auto& event) { event.value = erased_value(); };
  each<TimeRecorded>(job.log, erase);
  each<RandomRecorded>(job.log, erase);
  each<UuidRecorded>(job.log, erase);
  const State folded = job.folded(job.log.size());
  EXPECT_TRUE(folded.steps[0].erased);
  EXPECT_EQ(to_text(folded.status), "completed");
  EXPECT_TRUE(trace_view(folded, job.log).is_object());
  EXPECT_TRUE(proof_of(job).ledger.ok) << proof_of(job).ledger.detail;
  EXPECT_TRUE(proof_of(job).replay.ok) << proof_of(job).replay.detail;
  const auto fork = job.fork(job.log.size());
  EXPECT_FALSE(fork);
}

AE_TEST("recorded value/a plan with an invalid recording tool is rejected") {
  const auto refused = [](std::string_view tool) {
    const auto plan =
        Plan::compile(graph(one_node("dice"), "{'tools': {'dice': " + std::string(tool) + "}}"));
    return plan ? std::string("accepted") : std::string(code_name(plan.error().code));
  };
  EXPECT_EQ(refused("{'effect': 'read', 'records': 'random'}"), "accepted");
  EXPECT_EQ(refused("{'effect': 'idempotent', 'records': 'random'}"), "plan_invalid");
  EXPECT_EQ(refused("{'effect': 'read', 'records': 'random', 'on_in_doubt': 'park'}"),
            "plan_invalid");
  EXPECT_EQ(refused("{'effect': 'read', 'records': 'random', 'result_schema': true}"),
            "plan_invalid");
  EXPECT_EQ(refused("{'effect': 'read', 'records': 'weather'}"), "plan_invalid");
  const auto probing = Plan::compile(
      graph(one_node("buy"),
            "{'tools': {'clock': {'effect': 'read', 'records': 'time'}, 'buy': {'effect': "
            "'at_most_once', 'on_in_doubt': 'probe', 'probe': {'tool': 'clock', 'happened': '${ "
            ".result }'}}}}"));
  EXPECT_FALSE(probing);
}

AE_TEST("recorded value/a plan that records values has a newer schema") {
  const JobFixture job(one_node("dice"), {.more = kNative});
  EXPECT_EQ(job.log[1].schema, 3);
  const JobFixture other(one_node("look"));
  EXPECT_EQ(other.log[1].schema, 1);
}

}  // namespace
}  // namespace ae::engine::testing
