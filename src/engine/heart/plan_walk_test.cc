// Execution of a plan: branches, chains, failures, maps, output, limits.
#include "engine/fixtures/job_fixture_test.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

using Types = std::vector<std::string>;

// ---------------------------------------------------------------- chains and branches

AE_TEST("chain/a node starts when all its needs are complete") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'put'},
                   {'id':'b', 'kind':'tool', 'tool':'put'},
                   {'id':'c', 'kind':'tool', 'tool':'put', 'needs':['a','b']}])");
  job.claim();
  EXPECT_EQ(job.sent.size(), 2u);
  job.ok("b");
  EXPECT_EQ(job.tries("c"), 0u);
  job.ok("a");
  EXPECT_EQ(job.tries("c"), 1u);
  EXPECT_EQ(job.ok("c").status(), "completed");
}

AE_TEST("chain/the next call is declared in the commit that records the last one") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'put'},
                   {'id':'b', 'kind':'tool', 'tool':'put', 'needs':['a']}])");
  job.claim().ok("a");
  EXPECT_EQ(job.commits.size(), 3u);  // created; a declared; a recorded with b declared
}

AE_TEST("chain/arguments read the input, the job and the results of needs") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'look'},
                   {'id':'b', 'kind':'tool', 'tool':'put', 'needs':['a'],
                    'args':{'i':'${ .input.x }', 'j':'${ .job.id }', 's':'${ .steps.a.y }',
                            't':'${ .job.created_at }'}}])",
                 {.input = "{'x':[1]}"});
  job.claim().ok("a", "{'y':'yes'}");
  EXPECT_EQ(job.sent[1].arguments,
            json("{'i':[1],'j':'job-1','s':'yes','t':'2026-01-01T00:00:00.000000Z'}"));
}

AE_TEST("chain/arguments that cannot be computed fail the node") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'put', 'args':{'x':'${ .input.x + 1 }'}}]",
                 {.input = "{'x':'text'}"});
  job.claim();
  EXPECT_EQ(job.state.error->code, "expression_failed");
  EXPECT_EQ(job.types("a"), (Types{"node_started", "node_finished"}));
}

AE_TEST("branch/a node whose `when` is false is skipped, and its dependents run") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'pay', 'when':'${ .input.go }'},
                   {'id':'b', 'kind':'tool', 'tool':'put', 'needs':['a'],
                    'args':{'a':'${ .steps.a }'}}])",
                 {.input = "{'go':false}"});
  job.claim();
  EXPECT_EQ(job.types("a"), (Types{"decision_recorded", "node_finished"}));
  EXPECT_TRUE(job.step("a").skipped);
  EXPECT_EQ(job.step("a").result_type, ResultType::pure);
  EXPECT_EQ(job.sent[0].arguments, json("{'a':null}"));
  EXPECT_EQ(job.ok("b").status(), "completed");
}

AE_TEST("branch/the value of a when condition is recorded before the node starts") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay', 'when':'${ .input.go }'}]",
                 {.input = "{'go':0}"});  // only false and null are false
  job.claim();
  EXPECT_EQ(job.types("a")[0], "decision_recorded");
  EXPECT_EQ(job.last<DecisionRecorded>().payload.value, Value(true));
  EXPECT_EQ(job.tries("a"), 1u);
}

AE_TEST("branch/a chain of skipped nodes ends in one commit") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'pay', 'when':false},
                   {'id':'b', 'kind':'tool', 'tool':'pay', 'needs':['a'],
                    'when':'${ .steps.a != null }'},
                   {'id':'c', 'kind':'wait', 'needs':['b'], 'wait':{'type':'timer','for':'1h'},
                    'when':'${ .steps.b != null }'},
                   {'id':'d', 'kind':'map', 'over':[1], 'do':{'tool':'pay'}, 'max_parallel':1,
                    'needs':['c'], 'when':false}])");
  job.claim();
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.result, json("{'d':null}"));
  EXPECT_TRUE(job.sent.empty());
  EXPECT_EQ(job.commits.size(), 2u);
}

AE_TEST("branch/a `when` that fails to evaluate fails its node") {
  for (const std::string_view kind :
       {"'kind':'tool','tool':'pay'", "'kind':'wait','wait':{'type':'signal'}",
        "'kind':'map','over':[1],'max_parallel':1,'do':{'tool':'pay'}"}) {
    JobFixture job("[{'id':'a', 'when':'${ .input + 1 }', " + std::string(kind) + "}]");
    job.claim();
    EXPECT_EQ(job.state.error->code, "expression_failed") << kind;
  }
}

// ---------------------------------------------------------------- failures

AE_TEST("failure/calls in flight are awaited before the job ends") {
  JobFixture job(
      R"([{'id':'a', 'kind':'tool', 'tool':'pay'}, {'id':'b', 'kind':'tool', 'tool':'pay'},
                   {'id':'c', 'kind':'tool', 'tool':'pay', 'needs':['b']}])");
  job.claim().fails("a", "no");
  EXPECT_EQ(job.status(), "running");
  job.ok("b", "1");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "no");
  EXPECT_EQ(job.tries("c"), 0u);
  EXPECT_EQ(job.step("b").result_type, ResultType::side_effect_committed);
}

AE_TEST("failure/nothing starts after the failure that ends the job") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'pay', 'args':{'x':'${ .input + 1 }'}},
                   {'id':'b', 'kind':'tool', 'tool':'pay'}])");
  job.claim();
  EXPECT_EQ(job.status(), "failed");
  EXPECT_TRUE(job.sent.empty());
}

AE_TEST("failure/calls awaited at the end that stay unknown are listed") {
  JobFixture job(
      R"([{'id':'a', 'kind':'tool', 'tool':'pay'}, {'id':'b', 'kind':'tool', 'tool':'pay'},
                   {'id':'c', 'kind':'tool', 'tool':'look'}])");
  job.claim().fails("a", "no").times_out("b").times_out("c");
  EXPECT_EQ(job.status(), "failed");
  ASSERT_EQ(job.state.final_in_doubt.size(), 1u);
  EXPECT_EQ(job.state.final_in_doubt.items()[0], job.sent[1].key);
}

AE_TEST("failure/open waits and unknown calls are closed before the end") {
  JobFixture job(
      R"([{'id':'a', 'kind':'tool', 'tool':'pay'}, {'id':'b', 'kind':'tool', 'tool':'pay'},
                   {'id':'w', 'kind':'wait', 'wait':{'type':'signal','key':'k'}}])");
  job.claim().times_out("a").fails("b", "no");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.count(EventType::wait_completed), 2u);
  EXPECT_EQ(job.state.final_in_doubt.size(), 1u);
}

AE_TEST("failure/with on_error: continue the dependents receive the error") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'pay', 'on_error':'continue'},
                   {'id':'b', 'kind':'tool', 'tool':'put', 'needs':['a'],
                    'args':{'code':'${ .steps.a.error.code }'}}])",
                 {.more = "{'output':'${ .steps }'}"});
  job.claim().fails("a", "http_402");
  EXPECT_EQ(job.sent.back().arguments, json("{'code':'http_402'}"));
  job.ok("b", "2");
  EXPECT_EQ(job.state.result,
            json("{'a':{'error':{'code':'http_402','message':'the tool failed'}},'b':2}"));
}

AE_TEST("failure/on_error: continue applies to a call with on_in_doubt: fail") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'risk', 'on_error':'continue'}]");
  job.claim().unknown("a");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.result["a"]["error"]["code"], "invocation_in_doubt");
}

// ---------------------------------------------------------------- maps

constexpr std::string_view kMap =
    "[{'id':'m', 'kind':'map', 'over':'${ .input }', 'as':'it', 'max_parallel':2,"
    "  'do':{'tool':'put', 'args':{'v':'${ .it }', 'w':'${ .item }', 'i':'${ .index }'}}}]";

AE_TEST("map/results are in item order, whatever the order of the answers") {
  JobFixture job(kMap, {.input = "['x','y','z']"});
  job.claim().ok("m/1", "'Y'").ok("m/2", "'Z'").ok("m/0", "'X'");
  EXPECT_EQ(job.state.result, json("{'m':['X','Y','Z']}"));
}

AE_TEST("map/an item reads its value, its name and its index") {
  JobFixture job(kMap, {.input = "['x']"});
  job.claim();
  EXPECT_EQ(job.sent[0].arguments, json("{'v':'x','w':'x','i':0}"));
}

AE_TEST("map/at most max_parallel items are in flight") {
  JobFixture job(kMap, {.input = "[1,2,3,4]"});
  job.claim();
  EXPECT_EQ(job.in_flight.size(), 2u);
  job.ok("m/0");
  EXPECT_EQ(job.in_flight.size(), 2u);
  EXPECT_TRUE(job.in_flight.contains(job.index_of("m/2")));
}

AE_TEST("map/an empty list gives an empty result") {
  JobFixture job(kMap, {.input = "[]"});
  job.claim();
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.result, json("{'m':[]}"));
}

AE_TEST("map/a value that is not a list fails the node") {
  JobFixture job(kMap, {.input = "{}"});
  job.claim();
  EXPECT_EQ(job.state.error->code, "expression_failed");
}

AE_TEST("map/the list is recorded and replayed after a crash") {
  JobFixture job(kMap, {.input = "[1,2,3]"});
  job.claim();
  EXPECT_EQ(job.last<DecisionRecorded>().payload.value, json("[1,2,3]"));
  job.crash();
  EXPECT_EQ(job.count(EventType::decision_recorded), 1u);
  job.ok("m/0", "1").ok("m/1", "2").ok("m/2", "3");
  EXPECT_EQ(job.state.result, json("{'m':[1,2,3]}"));
}

AE_TEST("map/a failed item starts no new items, awaits the others and fails the node") {
  JobFixture job(kMap, {.input = "[1,2,3,4]"});
  job.claim().fails("m/0", "http_400");
  EXPECT_EQ(job.status(), "running");
  EXPECT_EQ(job.in_flight.size(), 1u);
  job.ok("m/1");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "http_400");
  EXPECT_EQ(job.sent.size(), 2u);
}

AE_TEST("map/with on_item_error: collect the errors are kept among the results") {
  JobFixture job(
      R"([{'id':'m', 'kind':'map', 'over':[1,2], 'max_parallel':2, 'on_item_error':'collect',
                    'do':{'tool':'pay'}}])");
  job.claim().fails("m/1", "http_400").ok("m/0", "'one'");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.result["m"].items()[0], "one");
  EXPECT_EQ(job.state.result["m"].items()[1]["error"]["code"], "http_400");
}

AE_TEST("map/items with failing arguments are collected or fail the map") {
  const std::string map =
      "[{'id':'m', 'kind':'map', 'over':['x',1,'y'], 'max_parallel':1,"
      " 'do':{'tool':'pay','args':{'n':'${ .item + 1 }'}}";
  JobFixture strict(map + "}]");
  EXPECT_EQ(strict.claim().state.error->code, "expression_failed");
  EXPECT_TRUE(strict.sent.empty());
  JobFixture lenient(map + ", 'on_item_error':'collect'}]");
  lenient.claim().ok("m/1", "2");
  EXPECT_EQ(lenient.status(), "completed");
  EXPECT_EQ(lenient.state.result["m"].items()[1], Value(2));
  EXPECT_EQ(lenient.state.result["m"].items()[2]["error"]["code"], "expression_failed");
}

AE_TEST("map/a failed map with on_error: continue does not end the job") {
  JobFixture job(R"([{'id':'m', 'kind':'map', 'over':[1], 'max_parallel':2, 'on_error':'continue',
                    'do':{'tool':'pay'}}])");
  job.claim().fails("m/0", "http_400");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.result["m"]["error"]["code"], "http_400");
}

AE_TEST("map/an unknown item parks the job when the others are done") {
  JobFixture job(
      R"([{'id':'m', 'kind':'map', 'over':[1,2], 'max_parallel':2, 'do':{'tool':'pay'}}])");
  job.claim().times_out("m/0").ok("m/1", "2");
  EXPECT_EQ(job.status(), "parked");
  job.resolve("m/0", "happened", "1");
  EXPECT_EQ(job.state.result, json("{'m':[1,2]}"));
}

AE_TEST("map/an unknown item of a failed map is listed when the job ends") {
  JobFixture job(
      R"([{'id':'m', 'kind':'map', 'over':[1,2], 'max_parallel':2, 'do':{'tool':'risk'}}])");
  job.claim().times_out("m/0").ok("m/1", "2");
  EXPECT_EQ(job.status(), "failed");
  ASSERT_EQ(job.state.final_in_doubt.size(), 1u);
  EXPECT_EQ(job.state.final_in_doubt.items()[0], job.sent[0].key);
}

// ---------------------------------------------------------------- output

AE_TEST("output/an output expression reads all steps") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'put'},
                   {'id':'b', 'kind':'tool', 'tool':'put', 'when':false}])",
                 {.more = "{'output':'${ {sum: (.steps.a + 1), all: .steps} }'}"});
  job.claim().ok("a", "2");
  EXPECT_EQ(job.state.result, json("{'sum':3,'all':{'a':2,'b':null}}"));
}

AE_TEST("output/without an output expression the result is that of the last nodes") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'put'},
                   {'id':'b', 'kind':'tool', 'tool':'put', 'needs':['a']},
                   {'id':'c', 'kind':'tool', 'tool':'put', 'needs':['a']}])");
  job.claim().ok("a", "1").ok("c", "3").ok("b", "2");
  EXPECT_EQ(job.state.result, json("{'b':2,'c':3}"));
}

AE_TEST("output/an output that fails to evaluate fails the job") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'put'}]",
                 {.more = "{'output':'${ .steps.a + 1 }'}"});
  job.claim().ok("a", "'x'");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "expression_failed");
  EXPECT_TRUE(job.state.error->message.starts_with("output: "));
}

// ---------------------------------------------------------------- limits

AE_TEST("limits/at most parallel_max calls are open") {
  JobFixture job(
      R"([{'id':'m', 'kind':'map', 'over':[1,2,3,4], 'max_parallel':9, 'do':{'tool':'put'}},
                   {'id':'a', 'kind':'tool', 'tool':'put'}, {'id':'b', 'kind':'tool', 'tool':'put'}])");
  job.limits.parallel_max = 3;
  job.claim();
  EXPECT_EQ(job.in_flight.size(), 3u);
  while (!job.in_flight.empty()) {
    job.answer(job.in_flight.begin()->first, {.kind = OutcomeKind::success});
    EXPECT_LE(job.in_flight.size(), 3u);
  }
  EXPECT_EQ(job.status(), "completed");
}

AE_TEST("limits/a wait opens although all call slots are in use") {
  JobFixture job(
      R"([{'id':'a', 'kind':'tool', 'tool':'put'}, {'id':'b', 'kind':'tool', 'tool':'put'},
                   {'id':'w', 'kind':'wait', 'wait':{'type':'signal','key':'k'}}])");
  job.limits.parallel_max = 1;
  job.claim();
  EXPECT_EQ(job.in_flight.size(), 1u);
  EXPECT_TRUE(job.state.waits.contains("k"));
}

AE_TEST("limits/a decision adds about events_max events at most") {
  JobFixture job(
      R"([{'id':'m', 'kind':'map', 'over':'${ .input }', 'max_parallel':64, 'do':{'tool':'put'}}])",
      {.input = "[1,2,3,4,5,6,7,8,9,10]"});
  job.limits.events_max = 6;
  job.decides = false;
  job.begin_attempt();
  std::size_t rounds = 0;
  for (; rounds < 100; ++rounds) {
    const Decision decision = decide(job.state, job.context(), job.limits);
    if (decision.events.empty()) break;
    EXPECT_LE(decision.events.size(), 8u);
    job.add(decision.events);
  }
  EXPECT_EQ(job.state.calling.size(), 10u);
  EXPECT_EQ(rounds, 6u);
}

// ---------------------------------------------------------------- claims

AE_TEST("claims/attempts lost without progress end the job") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'once'}]", {.more = "{'max_attempts':3}"});
  job.claim().crash().crash();
  EXPECT_EQ(job.status(), "running");
  job.crash();
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "max_attempts");
  EXPECT_EQ(job.state.final_in_doubt.size(), 1u);
}

AE_TEST("claims/a committed command resets the count of lost attempts") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'once'},
                   {'id':'b', 'kind':'tool', 'tool':'once', 'needs':['a']}])",
                 {.more = "{'max_attempts':3}"});
  job.claim().crash().crash().ok("a").crash().crash();
  EXPECT_EQ(job.status(), "running");
  EXPECT_EQ(job.crash().status(), "failed");
}

AE_TEST("claims/processes that die while an earlier call settles do not end the job") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'buy'}]",
                 {.more = R"({'max_attempts':3, 'tools':{
      'find':{'effect':'read'},
      'buy':{'effect':'at_most_once', 'on_in_doubt':'probe', 'timeout':'2s', 'grace':'3s',
             'probe':{'tool':'find', 'happened':'${ .result }'}}}})"});
  job.claim().crash();
  const Instant settles = *job.state.settles_at(job.step("a"));
  EXPECT_LE(settles - job.now, job.limits.leased_backoff_max);
  for (int death = 0; death < 10; ++death) {
    job.after(100ms).reload();
    if (job.status() == "running") job.claim();  // its process has died
  }
  EXPECT_EQ(job.status(), "queued") << job.log_text();
  EXPECT_EQ(job.state.not_before, settles);
  EXPECT_EQ(job.state.lost_claims, 1u);
  job.after(settles - job.now);
  EXPECT_EQ(job.sent.back().tool, "find") << job.log_text();
}

AE_TEST("claims/a released job does not count as a lost attempt") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'once'}]", {.more = "{'max_attempts':1}"});
  for (int i = 0; i < 3; ++i) {
    job.begin_attempt();
    job.add({requeued_event("drain", {})});
  }
  EXPECT_EQ(job.claim().status(), "running");
}

AE_TEST("claims/an epoch that does not increase is rejected") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'once'}]");
  job.claim();
  auto same =
      apply(job.state, running_event(AttemptId("x"), 1, "w"), job.now, uncached_plan_source());
  EXPECT_FALSE(same);
}

AE_TEST("admit/each request is checked against the recorded call") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'once'}]");
  job.claim();
  const Invocation& call = *job.step("a").call;
  EXPECT_EQ(admit(job.state, {0, "once", call.arguments_hash}), Verdict::not_yet);
  EXPECT_EQ(admit(job.state, {0, "pay", call.arguments_hash}), Verdict::non_determinism);
  EXPECT_EQ(admit(job.state, {0, "once", sha256("other")}), Verdict::non_determinism);
  job.reload().begin_attempt();
  EXPECT_EQ(admit(job.state, {0, "once", job.step("a").call->arguments_hash}), Verdict::in_doubt);
  job.run_until_idle().ok("a");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(admit(job.state, {0, "once", job.step("a").call->arguments_hash}), Verdict::recorded);
}

AE_TEST("admit/a success stays recorded while the job ends, other calls are refused") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'once'}, {'id':'b', 'kind':'tool', 'tool':'once'},"
      " {'id':'c', 'kind':'tool', 'tool':'once', 'on_error':'continue'}]");
  job.claim().fails("c").ok("a").cancel();
  ASSERT_TRUE(job.state.ending.has_value());
  const auto verdict = [&](std::string_view node) {
    const Step& step = job.step(node);
    return admit(job.state, {job.index_of(node), "once", step.call->arguments_hash});
  };
  EXPECT_EQ(verdict("a"), Verdict::recorded);
  EXPECT_EQ(verdict("b"), Verdict::refuse) << "in flight, in a job that ends";
  EXPECT_EQ(verdict("c"), Verdict::refuse) << "it failed";
}

}  // namespace
}  // namespace ae::engine::testing
