// Resource bounds of one job: every expression of a plan is bounded, wherever it occurs; one
// decision does a bounded amount of work; and all maps together have a bounded number of items.
#include <fmt/core.h>

#include <ctime>
#include <string>

#include "engine/loop/loop_fixture_test.h"
#include "engine/planner/planner.h"
#include "engine/replan/replan.h"
#include "engine/state/checkpoint.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

// 2^60 leaves, in 60 nested arrays that share their elements.
const std::string kTower = "reduce range(60) as $i (1; [., .])";
constexpr double kSecondsMax = 10;  // of CPU time, for the slowest build
// 100 ms in an optimised build: the work of a decision, and one more evaluation.
constexpr Work kMostWork = DecideLimits{}.work_max + ExprLimits{}.fuel;

// The job fails at once with this code.
void expect_ended(const JobFixture& job, std::string_view code = "expression_failed") {
  ASSERT_EQ(job.status(), "failed") << job.log_text();
  EXPECT_EQ(job.state.error->code, code) << job.state.error->message;
  EXPECT_LT(job.state.error->message.size(), 1'000U);
  EXPECT_LE(job.work, kMostWork) << job.log_text();
}

void expect_stopped(const JobFixture& job, std::string_view code = "expression_failed") {
  expect_ended(job, code);
  if (job.status() != "failed") return;
  EXPECT_NE(job.state.error->message.find("counting each part wherever it occurs"),
            std::string::npos)
      << job.state.error->message;
}

// Short expressions whose values exceed memory or take too long to compute.
std::vector<std::string> hostile_expressions() {
  return {kTower,
          "reduce range(28) as $i (1; [., .])",
          "reduce range(60) as $i (1; {a: ., b: .})",
          "reduce range(60) as $i (\\\"a\\\"; . + .)",
          "[range(1e9)]",
          "\\\"a\\\" * 4e9",
          "[range(1000)] | [.[] as $x | .[] as $y | .[] | [$x, $y]]",
          "reduce range(1e9) as $i (0; . + 1)"};
}

// A plan of one node for each field that can hold an expression, with the name of the field.
std::vector<std::pair<std::string, std::string>> places_for(const std::string& expression) {
  const std::string e = fmt::format("${{ {} }}", expression);
  const auto tool = [](const std::string& more) {
    return fmt::format("[{{'id':'a','kind':'tool','tool':'put',{}}}]", more);
  };
  const auto map = [](const std::string& over, const std::string& args) {
    return "[{'id':'m','kind':'map','over':" + over +
           ",'max_parallel':1,'do':{'tool':'put','args':" + args + "}}]";
  };
  const auto wait = [](const std::string& more) {
    return "[{'id':'w','kind':'wait','wait':{" + more + "}}]";
  };
  const auto loop = [](const std::string& system, const std::string& prompt) {
    return "[{'id':'chat','kind':'loop','loop':{'tool':'model:main','model':'small','system':'" +
           system + "','prompt':'" + prompt +
           "','tools':['look'],'parallel_tools':2,'max_turns':5}}]";
  };
  const auto planner = [](const std::string& prompt) {
    return "[{'id':'planner','kind':'planner','planner':{'tool':'model:main','model':'small',"
           "'told':'Plan','prompt':'" +
           prompt +
           "','tools':['look'],'max_nodes':3,'repair':1,'schema':" + canonical(planner_schema()) +
           "}}]";
  };
  return {{"args", tool(fmt::format("'args':{{'v':'{}'}}", e))},
          {"text", tool(fmt::format("'args':{{'v':'text {} text'}}", e))},
          {"json", tool("'args':{'v':'${ (" + expression + ") | tojson }'}")},
          {"when", tool(fmt::format("'when':'${{ ({}) == 1 }}'", expression))},
          {"map", map(fmt::format("'{}'", e), "{}")},
          {"item", map("[1]", fmt::format("{{'v':'{}'}}", e))},
          {"wait key", wait(fmt::format("'type':'signal','key':'{}'", e))},
          {"timer", wait(fmt::format("'type':'timer','for':'{}'", e))},
          {"system", loop(e, "Hello")},
          {"prompt", loop("Be kind", e)},
          {"prompt in a text", loop("Be kind", "So: " + e)},
          {"planner", planner(e)}};
}

void expect_stopped_everywhere(const std::string& expression) {
  for (const auto& [place, nodes] : places_for(expression)) {
    SCOPED_TRACE(fmt::format("{}: {}", place, expression));
    const std::clock_t start = std::clock();
    JobFixture job(nodes, {.more = kTools});
    job.claim();
    EXPECT_TRUE(job.in_flight.empty());
    expression == kTower ? expect_stopped(job) : expect_ended(job);
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, kSecondsMax);
    if (expression != kTower || job.plan->nodes[0].loop)
      continue;  // only plans of tools, maps and waits
    JobFixture planned(nodes, {.more = kTools, .planned_by = "model:main"});
    planned.claim();
    expect_ended(planned);
  }
}

AE_TEST("bounds/an expression with 2^60 shared leaves fails the job wherever it occurs") {
  expect_stopped_everywhere(kTower);
}

AE_TEST_SLOW("bounds/an endless expression fails the job in bounded work wherever it occurs") {
  for (const std::string& expression : hostile_expressions()) expect_stopped_everywhere(expression);
}

AE_TEST("bounds/an endless output expression fails the job in bounded work") {
  for (const std::string& expression : hostile_expressions()) {
    SCOPED_TRACE(expression);
    JobFixture job("[{'id':'a','kind':'tool','tool':'put'}]",
                   {.more = "{'output': '${ " + expression + " }'}"});
    job.claim().ok("a");
    expect_ended(job);
  }
}

AE_TEST("bounds/an output with 2^60 shared leaves fails the job") {
  const std::string output = "{'output': '${ " + kTower + " }'}";
  JobFixture job("[{'id':'a','kind':'tool','tool':'put'}]", {.more = output});
  job.claim().ok("a");
  expect_stopped(job);
  const std::string object = "{'output': {'x': ['${ " + kTower + " }']}}";
  JobFixture other("[{'id':'a','kind':'tool','tool':'put'}]", {.more = object});
  other.claim().ok("a");
  expect_stopped(other);
}

AE_TEST("bounds/values that share the result of a step are bounded too") {
  // Each step has a result of 65,536 leaves; the output contains each of them a hundred times.
  std::string parts;
  for (int i = 0; i < 100; ++i) parts += std::string(i > 0 ? "," : "") + "'${ .steps.a }'";
  const std::string more = fmt::format("{{'output': [{}]}}", parts);
  Value large = 1;
  for (int i = 0; i < 16; ++i) large = Value::array({large, large});
  JobFixture job("[{'id':'a','kind':'tool','tool':'put'}]", {.more = more});
  job.claim().answer("a", {.kind = OutcomeKind::success, .result = large});
  expect_stopped(job);
}

AE_TEST("bounds/an oversized change id fails the node, an oversized probe parks the job") {
  const std::string changes =
      "{'tools': {'set': {'changes': [{'type':'t','op':'update','id':'${ " + kTower + " }'}]}}}";
  JobFixture changed("[{'id':'a','kind':'tool','tool':'set'}]", {.more = changes});
  changed.claim().ok("a");
  EXPECT_EQ(changed.status(), "failed") << changed.log_text();
  EXPECT_EQ(changed.state.error->code, "tool_output_invalid");
  const std::string probe =
      "{'tools': {'find': {'effect': 'read'}, 'buy': {'effect': 'at_most_once', 'on_in_doubt': "
      "'probe', 'probe': {'tool': 'find', 'args': {'v': '${ " +
      kTower + " }'}, 'happened': '${ .result }'}}}}";
  JobFixture probed("[{'id':'pay','kind':'tool','tool':'buy'}]", {.more = probe});
  probed.claim().unknown("pay");
  probed.after(std::chrono::minutes(2));
  EXPECT_EQ(probed.status(), "parked") << probed.log_text();
}

AE_TEST("bounds/a decision stops at its work limit and the next one continues") {
  std::string nodes;
  for (int i = 0; i < 20; ++i) {
    nodes += std::string(i > 0 ? ", " : "") + "{'id':'n" + std::to_string(i) +
             "','kind':'tool','tool':'put','when':'${ ([range(3000)] | length) < 0 }'}";
  }
  JobFixture job(fmt::format("[{}]", nodes));
  job.begin_attempt();
  DecideLimits limits;
  limits.work_max = 20'000;
  std::size_t most = 0;
  std::size_t calls = 0;
  for (; calls < 1'000; ++calls) {
    const Decision decision = decide(job.state, job.context(), limits);
    if (decision.events.empty() || decision.release) break;
    most = std::max(most, decision.events.size());
    job.add(decision.events);
  }
  EXPECT_LE(most, 8U) << "about two evaluations and their follow-up events";
  EXPECT_GE(calls, 5U);
  EXPECT_EQ(job.state.nodes_left, 0U) << job.log_text();
}

// About 6,000 steps, for a value that differs by node.
std::string costly(int i) { return fmt::format("${{ ([range(2000)] | length) + {} }}", i); }

std::string bounded_calls(int count, std::string_view tool, int first = 0) {
  std::string nodes;
  for (int i = first; i < first + count; ++i) {
    nodes += std::string(i > first ? ", " : "") + "{'id':'n" + std::to_string(i) +
             "','kind':'tool','tool':'" + std::string(tool) + "','args':{'v':'" + costly(i) + "'}}";
  }
  return nodes;
}

// More work than one of the evaluations here.
constexpr Work kOneUnit = 12'000;

AE_TEST("bounds/no further calls are evaluated when the budget is used up") {
  JobFixture job(fmt::format("[{}]", bounded_calls(300, "put")),
                 {.more = "{'budget': {'tool_calls': 1}}"});
  job.claim();
  EXPECT_EQ(job.in_flight.size(), 1U);
  EXPECT_LE(job.work, kOneUnit);
  job.ok("n0");
  EXPECT_EQ(job.state.parked_until, "budget") << job.log_text();
  EXPECT_LE(job.work, kOneUnit);
}

AE_TEST("bounds/no further items or planned calls are evaluated when the budget is used up") {
  std::string maps;
  for (int i = 0; i < 100; ++i) {
    maps += "{'id':'m" + std::to_string(i) +
            "','kind':'map','over':[1],'max_parallel':1,'do':{'tool':'put','args':{'v':'" +
            costly(i) + "'}}}, ";
  }
  const std::string one = "{'budget': {'tool_calls': 1}}";
  JobFixture mapped(fmt::format("[{}{}]", maps, bounded_calls(1, "put")), {.more = one});
  mapped.claim();
  EXPECT_EQ(mapped.in_flight.size(), 1U);
  EXPECT_LE(mapped.work, kOneUnit);
  JobFixture planned(fmt::format("[{}]", bounded_calls(100, "put")),
                     {.more = one, .planned_by = "model:m"});
  planned.claim();
  EXPECT_EQ(planned.in_flight.size(), 1U) << planned.log_text();
  EXPECT_LE(planned.work, kOneUnit);
}

// A tool that needs approval for some calls only, depending on the arguments.
std::string conditional_approval(std::string_view when, int budget = 0) {
  return "{'budget': {'tool_calls': " + std::to_string(budget) +
         "}, 'tools': {'buy': {'rules': [{'action': 'require_approval', 'when': '${ " +
         std::string(when) + " }'}]}}}";
}

AE_TEST("bounds/calls held back by a used-up budget are evaluated over several decisions") {
  JobFixture job(fmt::format("[{}]", bounded_calls(60, "buy")),
                 {.more = conditional_approval(".args.v == 2059")});
  job.limits.work_max = 40'000;
  job.claim();
  EXPECT_EQ(job.state.parked_until, "budget") << job.log_text();
  EXPECT_FALSE(job.open_request_id("n59").empty()) << "the last call is evaluated too";
  EXPECT_LE(job.most_work, job.limits.work_max + kOneUnit);
  EXPECT_GE(job.decisions, 8U);
}

AE_TEST("bounds/a job is not parked while its last events left a step to decide") {
  // The first decision ends `failing`, which readies `after`, and stops there. The next one starts
  // at the call, adds nothing because the budget is used up, and must not park the job yet.
  const std::string nodes =
      "[{'id':'failing','kind':'tool','tool':'buy','on_error':'continue',"
      "'args':{'v':'${ ([range(2000)] | length).x }'}}, " +
      bounded_calls(1, "buy") +
      ", {'id':'after','kind':'wait','wait':{'type':'signal'},'needs':['failing']}]";
  JobFixture job(nodes, {.more = conditional_approval(".args.v == 1")});
  job.limits.work_max = 1;
  job.claim();
  EXPECT_EQ(job.count(EventType::node_finished), 1U) << job.log_text();
  EXPECT_EQ(job.state.waits.size(), 1U) << job.log_text();
}

AE_TEST("bounds/calls held back by a used-up budget are not evaluated again for each other call") {
  // Fifty calls that the budget covers and fifty that need approval: one evaluation to request it,
  // one to find that nothing is left.
  JobFixture job(fmt::format("[{}, {}]", bounded_calls(50, "buy"), bounded_calls(50, "buy", 50)),
                 {.more = conditional_approval(".args.v >= 2050")});
  job.limits.work_max = 20'000;
  job.claim();
  EXPECT_EQ(job.state.parked_until, "budget") << job.log_text();
  EXPECT_EQ(job.state.waits.size(), 50U);
  EXPECT_LE(job.most_work, job.limits.work_max + kOneUnit);
  EXPECT_LE(job.work, 3 * 100 * kOneUnit);
}

// At least 20,000 steps; the value is true.
const std::string kHeavy = "([range(10000)] | length) == 10000";

std::string tool_with(std::string_view name, std::string_view what) {
  return "{'tools': {'" + std::string(name) + "': {" + std::string(what) + "}}}";
}

// One decision evaluates it and counts the work.
void expect_counted(JobFixture& job, Work least = 20'000) {
  EXPECT_GE(job.most_work, least) << job.log_text();
}

AE_TEST("bounds/policies, outputs, changes and probes count as work of the decision") {
  constexpr std::string_view kCall = "[{'id':'a','kind':'tool','tool':'buy'}]";
  JobFixture policy(kCall, {.more = tool_with("buy", "'rules': [{'action': 'deny', 'when': '${ (" +
                                                         kHeavy + ") | not }'}]")});
  policy.claim();
  expect_counted(policy);
  JobFixture output("[{'id':'a','kind':'tool','tool':'put'}]",
                    {.more = "{'output': '${ " + kHeavy + " }'}"});
  output.claim().ok("a");
  ASSERT_EQ(output.status(), "completed");
  expect_counted(output);
  // A probe that answers yes: both `happened` and the changes of the call are evaluated.
  const std::string probed =
      "{'tools': {'find': {'effect': 'read'}, 'buy': {'effect': 'at_most_once', 'on_in_doubt': "
      "'probe', 'changes': [{'type':'t','op':'update','id':'${ if " +
      kHeavy +
      " then 1 else 2 end }'}], 'probe': {'tool': 'find', 'args': {}, 'happened': '${ if " +
      kHeavy + " then .result else null end }'}}}}";
  JobFixture probe("[{'id':'a','kind':'tool','tool':'buy'}]", {.more = probed});
  probe.claim().unknown("a");
  probe.after(std::chrono::minutes(2));
  probe.work = probe.most_work = 0;
  probe.ok("a/probe", "{'x': 1}");
  ASSERT_EQ(probe.status(), "completed") << probe.log_text();
  expect_counted(probe, 60'000);  // `happened` once, changes twice
}

AE_TEST("bounds/schema checks count as work of the decision") {
  std::string list;
  for (int i = 0; i < 5'000; ++i) list += (i > 0 ? "," : "") + std::to_string(i);
  JobFixture job("[{'id':'a','kind':'tool','tool':'buy','args':{'v':5000}}]",
                 {.more = tool_with("buy", "'args_schema': {'properties': {'v': {'enum': [" + list +
                                               ",5000]}}}")});
  job.claim();
  EXPECT_EQ(job.in_flight.size(), 1U) << job.log_text();
  expect_counted(job, 5'000);
}

AE_TEST("bounds/a new plan is compared with bounded work and rejected above the bound") {
  JobFixture job(fmt::format("[{}]", bounded_calls(3, "put")));
  job.claim().ok("n0").ok("n1");
  const auto next = compiled(
      graph(fmt::format("[{}, {}]", bounded_calls(3, "put"), bounded_calls(1, "look", 3))));
  const auto compared = replan_of(job.state, next, {});
  ASSERT_TRUE(compared);
  EXPECT_EQ(compared->carried.size(), 3U);
  const auto refused = replan_of(job.state, next, {}, 6'000);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::plan_invalid);
  EXPECT_TRUE(replan_of(job.state, next, {"n0", "n1", "n2"}, 6'000)) << "these are not compared";
}

AE_TEST("bounds/an early signal evaluates the keys of only some waits") {
  std::string waits;
  for (int i = 0; i < 40; ++i) {
    waits += "{'id':'w" + std::to_string(i) +
             "','kind':'wait','needs':['n0'],'wait':{'type':'human','key':'k${ [range(10000)] | "
             "length }-" +
             std::to_string(i) + "'}}, ";
  }
  JobFixture job(fmt::format("[{}{}]", waits, bounded_calls(1, "put")));
  job.claim();
  const std::clock_t start = std::clock();
  job.signal_early("k10000-1", "{'neither': 1}", "one", "human");
  EXPECT_EQ(job.refused, Code::input_invalid)
      << "the answer has no decision, and its wait is found";
  job.signal_early("k10000-39", "{'neither': 1}", "two", "human");
  EXPECT_FALSE(job.refused) << "the signal is buffered, although its wait will not accept it";
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, kSecondsMax);
}

// A job with a list of this length as its input, and this many maps over it; none makes a call.
JobFixture with_maps(int maps, std::size_t items) {
  std::string nodes;
  for (int i = 0; i < maps; ++i) {
    nodes += std::string(i > 0 ? ", " : "") + "{'id':'m" + std::to_string(i) +
             "','kind':'map','over':'${ [range(" + std::to_string(items) +
             ")] }','max_parallel':1,'do':{'tool':'put','args':{}}}";
  }
  return JobFixture(fmt::format("[{}]", nodes));
}

AE_TEST_SLOW("bounds/all maps of a job together have at most 1,000,000 items") {
  JobFixture ten = with_maps(10, 100'000);
  ten.claim();
  EXPECT_EQ(ten.status(), "running");
  EXPECT_EQ(ten.in_flight.size(), 10U);
  JobFixture eleven = with_maps(11, 100'000);
  eleven.claim();
  while (!eleven.in_flight.empty()) {
    eleven.answer(eleven.in_flight.begin()->first, {.kind = OutcomeKind::success});
  }
  EXPECT_EQ(eleven.status(), "failed");
  EXPECT_EQ(eleven.state.error->code, "expression_failed");
  EXPECT_EQ(eleven.state.error->message,
            "the maps of the job have 1100000 items together; at most 1000000 are allowed");
  EXPECT_EQ(eleven.count(EventType::decision_recorded), 10U)
      << "the limit is checked before the write";
}

AE_TEST("bounds/map items are counted when the map begins, whatever its outcome") {
  constexpr std::string_view kThree =
      "[{'id':'fails','kind':'map','on_error':'continue','over':[1,2],'max_parallel':1,'do':"
      "{'tool':'put','args':{}}},"
      " {'id':'ends','kind':'map','needs':['fails'],'over':[1,2,3],'max_parallel':1,'do':"
      "{'tool':'put','args':{}}},"
      " {'id':'now','kind':'map','needs':['ends'],'over':[1,2,3,4],'max_parallel':1,'do':"
      "{'tool':'put','args':{}}}]";
  JobFixture job(kThree);
  job.claim().fails("fails/0");
  EXPECT_EQ(job.state.map_items, 5U) << job.log_text();
  job.ok("ends/0").ok("ends/1").ok("ends/2");
  EXPECT_EQ(job.state.map_items, 9U) << job.log_text();
  EXPECT_EQ(job.folded(job.log.size()).map_items, 9U);
  const auto restored =
      restore(job.state.job, job.state.seq, checkpoint(job.state, Hash{}), uncached_plan_source());
  ASSERT_TRUE(restored);
  EXPECT_EQ(restored->state.map_items, 9U);
  // A fork counts the items of imported maps.
  const auto fork = job.fork(job.log.size());
  ASSERT_TRUE(fork);
  EXPECT_EQ(JobFixture(*fork, "job-2").state.map_items, 7U) << "the failed map has no list";
}

AE_TEST_SLOW("bounds/failed maps count towards the item limit of all maps") {
  std::string nodes;
  for (int i = 0; i < 11; ++i) {
    nodes += std::string(i > 0 ? ", " : "") + "{'id':'m" + std::to_string(i) +
             "','kind':'map','on_error':'continue','over':'${ [range(100000)] }'," +
             (i > 0 ? fmt::format("'needs':['m{}'],", i - 1) : "") +
             "'max_parallel':1,'do':{'tool':'put','args':{}}}";
  }
  JobFixture job(fmt::format("[{}]", nodes));
  job.claim();
  while (!job.in_flight.empty()) {
    job.answer(job.in_flight.begin()->first, {.kind = OutcomeKind::failure,
                                              .definite = true,
                                              .error_code = "http_400",
                                              .error_message = "no"});
  }
  EXPECT_EQ(job.count(EventType::decision_recorded), 10U) << "the eleventh is not started";
  EXPECT_EQ(job.state.map_items, 1'000'000U);
  ASSERT_TRUE(job.step("m10").failure);
  EXPECT_EQ(job.step("m10").failure->code, "expression_failed");
}

AE_TEST_SLOW("bounds/a map of 100,001 items fails before its list is recorded") {
  JobFixture most = with_maps(1, 100'000);
  most.claim();
  EXPECT_EQ(most.status(), "running");
  EXPECT_EQ(most.count(EventType::decision_recorded), 1U);
  JobFixture more = with_maps(1, 100'001);
  more.claim();
  ASSERT_EQ(more.status(), "failed");
  EXPECT_EQ(more.state.error->code, "expression_failed");
  EXPECT_EQ(more.state.error->message,
            "the value of `map` has 100001 items; at most 100000 are allowed");
  EXPECT_EQ(more.count(EventType::decision_recorded), 0U);
}

}  // namespace
}  // namespace ae::engine::testing
