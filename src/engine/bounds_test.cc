// What one job can ask of the process at most: every expression of a plan is bounded, wherever it stands, one decision
// does a bounded amount of work, and all maps together have a bounded number of items.
#include <ctime>
#include <string>

#include "engine/checkpoint.h"
#include "engine/given_job_test.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

// 2^60 leaves in 60 arrays that share.
const std::string kTower = "reduce range(60) as $i (1; [., .])";
constexpr double kSecondsMax = 10;  // of processor time, for the slowest build

// The job ends at once, and says why.
void expect_stopped(GivenJob& job, std::string_view code = "expression_failed") {
  ASSERT_EQ(job.status(), "failed") << job.story();
  EXPECT_EQ(job.state.error->code, code) << job.state.error->message;
  EXPECT_NE(job.state.error->message.find("counting each part wherever it occurs"),
            std::string::npos)
      << job.state.error->message;
  EXPECT_LT(job.state.error->message.size(), 1'000U);
}

void expect_stopped(const std::string& nodes, std::string_view more = "{}") {
  const std::clock_t start = std::clock();
  GivenJob job(nodes, {.more = more});
  job.claim();
  expect_stopped(job);
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, kSecondsMax);
}

AE_TEST("bounds/a value of 2^60 shared leaves fails the job wherever an expression stands") {
  expect_stopped("[{'id':'a','kind':'tool','tool':'put','args':{'v':'${ " + kTower + " }'}}]");
  expect_stopped("[{'id':'a','kind':'tool','tool':'put','args':{'v':'text ${ " + kTower +
                 " } text'}}]");
  expect_stopped("[{'id':'a','kind':'tool','tool':'put','args':{'v':'${ " + kTower +
                 " | tojson }'}}]");
  expect_stopped("[{'id':'a','kind':'tool','tool':'put','when':'${ " + kTower + " }'}]");
  expect_stopped("[{'id':'m','kind':'map','over':'${ " + kTower +
                 " }','max_parallel':1,'do':{'tool':'put','args':{}}}]");
  expect_stopped(
      "[{'id':'m','kind':'map','over':[1],'max_parallel':1,'do':{'tool':'put','args':"
      "{'v':'${ " +
      kTower + " }'}}}]");
  expect_stopped("[{'id':'w','kind':'wait','wait':{'type':'signal','key':'${ " + kTower + " }'}}]");
  expect_stopped("[{'id':'w','kind':'wait','wait':{'type':'timer','for':'${ " + kTower + " }'}}]");
}

AE_TEST("bounds/an output of 2^60 shared leaves fails the job") {
  const std::string output = "{'output': '${ " + kTower + " }'}";
  GivenJob job("[{'id':'a','kind':'tool','tool':'put'}]", {.more = output});
  job.claim().ok("a");
  expect_stopped(job);
  const std::string object = "{'output': {'x': ['${ " + kTower + " }']}}";
  GivenJob other("[{'id':'a','kind':'tool','tool':'put'}]", {.more = object});
  other.claim().ok("a");
  expect_stopped(other);
}

AE_TEST("bounds/what is shared between steps is bounded, too") {
  // Each step has a result of 65,536 leaves; the output has each of them a hundred times.
  std::string parts;
  for (int i = 0; i < 100; ++i) parts += std::string(i > 0 ? "," : "") + "'${ .steps.a }'";
  const std::string more = "{'output': [" + parts + "]}";
  Value large = 1;
  for (int i = 0; i < 16; ++i) large = Value::array({large, large});
  GivenJob job("[{'id':'a','kind':'tool','tool':'put'}]", {.more = more});
  job.claim().answer("a", {.kind = OutcomeKind::success, .result = large});
  expect_stopped(job);
}

AE_TEST("bounds/changes of 2^60 shared leaves fail their node, and a probe parks the job") {
  const std::string changes =
      "{'tools': {'set': {'changes': [{'type':'t','op':'update','id':'${ " + kTower + " }'}]}}}";
  GivenJob changed("[{'id':'a','kind':'tool','tool':'set'}]", {.more = changes});
  changed.claim().ok("a");
  EXPECT_EQ(changed.status(), "failed") << changed.story();
  EXPECT_EQ(changed.state.error->code, "tool_output_invalid");
  const std::string probe =
      "{'tools': {'find': {'effect': 'read'}, 'buy': {'effect': 'at_most_once', 'on_in_doubt': "
      "'probe', 'probe': {'tool': 'find', 'args': {'v': '${ " +
      kTower + " }'}, 'happened': '${ .result }'}}}}";
  GivenJob probed("[{'id':'pay','kind':'tool','tool':'buy'}]", {.more = probe});
  probed.claim().unknown("pay");
  probed.after(std::chrono::minutes(2));
  EXPECT_EQ(probed.status(), "parked") << probed.story();
}

AE_TEST("bounds/one decision evaluates no more than its limit, and the next one goes on") {
  std::string nodes;
  for (int i = 0; i < 20; ++i) {
    nodes += std::string(i > 0 ? ", " : "") + "{'id':'n" + std::to_string(i) +
             "','kind':'tool','tool':'put','when':'${ ([range(3000)] | length) < 0 }'}";
  }
  GivenJob job("[" + nodes + "]");
  job.begin_attempt();
  DecideLimits limits;
  limits.work_max = 20'000;
  std::size_t most = 0;
  std::size_t calls = 0;
  for (; calls < 1'000; ++calls) {
    const Decision decision = decide(job.state, job.stamp(), limits);
    if (decision.events.empty() || decision.release) break;
    most = std::max(most, decision.events.size());
    job.add(decision.events);
  }
  EXPECT_LE(most, 8U) << "about two evaluations, and what follows";
  EXPECT_GE(calls, 5U);
  EXPECT_EQ(job.state.nodes_left, 0U) << job.story();
}

// A job whose input is so long a list, and that many maps over it; none of them makes a call.
GivenJob with_maps(int maps, std::size_t items) {
  std::string nodes;
  for (int i = 0; i < maps; ++i) {
    nodes += std::string(i > 0 ? ", " : "") + "{'id':'m" + std::to_string(i) +
             "','kind':'map','over':'${ [range(" + std::to_string(items) +
             ")] }','max_parallel':1,'do':{'tool':'put','args':{}}}";
  }
  return GivenJob("[" + nodes + "]");
}

AE_TEST_SLOW("bounds/all maps of a job together go over at most 1,000,000 items") {
  GivenJob ten = with_maps(10, 100'000);
  ten.claim();
  EXPECT_EQ(ten.status(), "running");
  EXPECT_EQ(ten.in_flight.size(), 10U);
  GivenJob eleven = with_maps(11, 100'000);
  eleven.claim();
  while (!eleven.in_flight.empty()) {
    eleven.answer(eleven.in_flight.begin()->first, {.kind = OutcomeKind::success});
  }
  EXPECT_EQ(eleven.status(), "failed");
  EXPECT_EQ(eleven.state.error->code, "expression_failed");
  EXPECT_EQ(eleven.state.error->message,
            "the maps of the job have 1100000 items together; at most 1000000 are allowed");
  EXPECT_EQ(eleven.count(EventType::decision_recorded), 10U) << "it is checked before the write";
}

AE_TEST("bounds/the items of a map are counted when it begins, whatever becomes of it") {
  constexpr std::string_view kThree =
      "[{'id':'fails','kind':'map','on_error':'continue','over':[1,2],'max_parallel':1,'do':"
      "{'tool':'put','args':{}}},"
      " {'id':'ends','kind':'map','needs':['fails'],'over':[1,2,3],'max_parallel':1,'do':"
      "{'tool':'put','args':{}}},"
      " {'id':'now','kind':'map','needs':['ends'],'over':[1,2,3,4],'max_parallel':1,'do':"
      "{'tool':'put','args':{}}}]";
  GivenJob job(kThree);
  job.claim().fails("fails/0");
  EXPECT_EQ(job.state.map_items, 5U) << job.story();
  job.ok("ends/0").ok("ends/1").ok("ends/2");
  EXPECT_EQ(job.state.map_items, 9U) << job.story();
  EXPECT_EQ(job.folded(job.log.size()).map_items, 9U);
  const auto restored =
      restore(job.state.job, job.state.seq, checkpoint(job.state, Hash{}), compile_each_time());
  ASSERT_TRUE(restored);
  EXPECT_EQ(restored->state.map_items, 9U);
  // A fork knows of what it brings in.
  const auto fork = job.fork(job.log.size());
  ASSERT_TRUE(fork);
  EXPECT_EQ(GivenJob(*fork, "job-2").state.map_items, 7U) << "the failed one has no list";
}

AE_TEST_SLOW("bounds/maps that failed count among the items of all maps") {
  std::string nodes;
  for (int i = 0; i < 11; ++i) {
    nodes += std::string(i > 0 ? ", " : "") + "{'id':'m" + std::to_string(i) +
             "','kind':'map','on_error':'continue','over':'${ [range(100000)] }'," +
             (i > 0 ? "'needs':['m" + std::to_string(i - 1) + "']," : "") +
             "'max_parallel':1,'do':{'tool':'put','args':{}}}";
  }
  GivenJob job("[" + nodes + "]");
  job.claim();
  while (!job.in_flight.empty()) {
    job.answer(job.in_flight.begin()->first, {.kind = OutcomeKind::failure,
                                              .definite = true,
                                              .error_code = "http_400",
                                              .error_message = "no"});
  }
  EXPECT_EQ(job.count(EventType::decision_recorded), 10U) << "the eleventh is not begun";
  EXPECT_EQ(job.state.map_items, 1'000'000U);
  ASSERT_TRUE(job.step("m10").failure);
  EXPECT_EQ(job.step("m10").failure->code, "expression_failed");
}

AE_TEST_SLOW("bounds/a map over 100,001 items fails before its list is recorded") {
  GivenJob most = with_maps(1, 100'000);
  most.claim();
  EXPECT_EQ(most.status(), "running");
  EXPECT_EQ(most.count(EventType::decision_recorded), 1U);
  GivenJob more = with_maps(1, 100'001);
  more.claim();
  ASSERT_EQ(more.status(), "failed");
  EXPECT_EQ(more.state.error->code, "expression_failed");
  EXPECT_EQ(more.state.error->message,
            "the value of `map` has 100001 items; at most 100000 are allowed");
  EXPECT_EQ(more.count(EventType::decision_recorded), 0U);
}

}  // namespace
}  // namespace ae::engine::testing
