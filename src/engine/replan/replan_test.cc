// Re-plans: a job continues under another plan, with everything that both have in common.
#include <fmt/core.h>

#include <set>

#include "engine/fixtures/dice_test.h"
#include "engine/fixtures/job_fixture_test.h"
#include "engine/fixtures/random_plan_test.h"
#include "engine/fixtures/random_walk_test.h"
#include "engine/fixtures/random_world_test.h"
#include "engine/replan/replan.h"
#include "engine/state/checkpoint.h"
#include "inspect/trace.h"
#include "inspect/verify.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

constexpr std::string_view kA =
    "{'id':'a','kind':'tool','tool':'put','args':{'n':'${ .input.x }'}}";
constexpr std::string_view kB =
    "{'id':'b','kind':'wait','wait':{'type':'signal','key':'b'},'needs':['a']}";
constexpr std::string_view kC =
    "{'id':'c','kind':'tool','tool':'pay','args':{'a':'${ .steps.a }'},'needs':['a','b']}";

std::string nodes(std::initializer_list<std::string_view> all) {
  std::string text = "[";
  for (const std::string_view one : all) text += (text.size() > 1 ? "," : "") + std::string(one);
  return text + "]";
}

std::shared_ptr<const Plan> plan_of(std::initializer_list<std::string_view> all,
                                    std::string_view more = "{}") {
  return compiled(graph(nodes(all), more));
}

// a is done, b waits.
JobFixture waiting() {
  JobFixture job(nodes({kA, kB, kC}), {.input = "{'x':1}"});
  job.claim().ok("a", "'A'");
  AE_CHECK(job.status() == "waiting", job.log_text());
  return job;
}

void expect_replan_proved(const JobFixture& job) {
  VerifyInput input;
  input.job = job.state.job;
  input.events = job.log;
  const Verification all = verify(input, uncached_plan_source());
  EXPECT_TRUE(all.ok) << canonical(all.to_json()) << "\n" << job.log_text();
  EXPECT_EQ(state_view(job.folded(job.log.size())), state_view(job.state));
  auto restored =
      restore(job.state.job, job.state.seq, checkpoint(job.state, Hash{}), uncached_plan_source());
  ASSERT_TRUE(restored) << restored.error().message;
  EXPECT_EQ(state_view(restored->state), state_view(job.state));
  (void)trace_view(job.state, job.log);
}

AE_TEST("replan/the same plan drops an imported result once, and never an own one") {
  JobFixture own = waiting();
  own.replan(own.plan, {"a"});
  EXPECT_EQ(own.reply["unchanged"], Value(true));
  JobFixture job(*own.fork(own.seq_of(EventType::step_committed, "a")), "job-2");
  const StepId before = job.step("a").id;
  job.replan(job.plan, {"a"});
  ASSERT_FALSE(job.refused) << job.refusal;
  EXPECT_NE(job.step("a").id, before);
  EXPECT_EQ(job.claim().sent.size(), 1u) << job.log_text();
  EXPECT_EQ(job.ok("a", "'B'").step("a").result, Value("B"));
  const std::size_t events = job.log.size();
  job.replan(job.plan, {"a"});
  EXPECT_EQ(job.reply["unchanged"], Value(true));
  EXPECT_EQ(job.log.size(), events);
  EXPECT_EQ(job.signal("b").ok("c").status(), "completed") << job.log_text();
  expect_replan_proved(job);
}

AE_TEST("replan/a repeated request is recognized, even if it drops a node that is gone") {
  JobFixture job = waiting();
  const auto other = plan_of({"{'id':'z','kind':'tool','tool':'put'}"});
  job.replan(other, {"a"});
  ASSERT_FALSE(job.refused) << job.refusal;
  const std::size_t events = job.log.size();
  job.replan(other, {"a"});
  EXPECT_FALSE(job.refused) << job.refusal;
  EXPECT_EQ(job.reply["unchanged"], Value(true));
  EXPECT_EQ(job.log.size(), events);
}

AE_TEST("replan/a request to drop a kept result counts as applied when it is dropped") {
  JobFixture own = waiting();
  JobFixture job(*own.fork(own.seq_of(EventType::step_committed, "a")), "job-2");
  const auto other = plan_of({kA, kB});
  job.replan(other);
  ASSERT_FALSE(job.refused) << job.refusal;
  const ControlRequest request{
      .body = PlanRequest{.task_graph = other->task_graph, .drop = Value::array({Value("a")})}};
  const auto before = apply_request(job.state, request, job.context());
  ASSERT_TRUE(before) << before.error().message;
  EXPECT_FALSE(before->events.empty()) << "the plan is the job's, and a is kept";
  job.replan(other, {"a"});
  const auto after = apply_request(job.state, request, job.context());
  ASSERT_TRUE(after) << after.error().message;
  EXPECT_TRUE(after->events.empty());
  EXPECT_EQ(after->answer["unchanged"], Value(true));
}

AE_TEST("replan/a replan to the current plan changes nothing") {
  JobFixture job = waiting();
  const std::size_t events = job.log.size();
  job.replan(job.plan);
  EXPECT_EQ(job.reply["unchanged"], Value(true));
  EXPECT_EQ(job.log.size(), events);
}

AE_TEST("replan/completed and waiting nodes keep their step ids, the others start again") {
  JobFixture job = waiting();
  const StepId a = job.step("a").id, b = job.step("b").id, c = job.step("c").id;
  job.replan(plan_of({kA, kB,
                      "{'id':'c','kind':'tool','tool':'pay','args':{'new':'${ .steps.a }'},"
                      "'needs':['a','b']}"}));
  ASSERT_FALSE(job.refused);
  EXPECT_EQ(job.reply["plan"], Value(1));
  EXPECT_EQ(job.status(), "waiting") << job.log_text();
  EXPECT_EQ(job.step("a").id, a);
  EXPECT_EQ(job.step("b").id, b);
  EXPECT_NE(job.step("c").id, c);
  EXPECT_EQ(job.state.path_of(job.step("a")), "0/0");
  EXPECT_EQ(job.state.path_of(job.step("c")), "1/2");
  job.signal("b", "1");
  EXPECT_EQ(job.sent.back().arguments, json("{'new':'A'}"));
  job.ok("c", "'paid'");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.sent.size(), 2u);
  expect_replan_proved(job);
}

AE_TEST("replan/the log has the requester and the replaced plan") {
  JobFixture job = waiting();
  const std::string before = to_hex(job.plan->hash);
  job.replan(plan_of({kA, kB}));
  const auto decision = job.last<DecisionRecorded>();
  EXPECT_EQ(decision.kind, "re_plan");
  EXPECT_EQ(decision.by, "someone");
  EXPECT_EQ(decision.payload.value["replaces"], Value(before));
  EXPECT_EQ(job.last<PlanGenerated>().carried.json().size(), 2u);
  job.signal("b", "1");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.result, json("{'b':1}"));
  expect_replan_proved(job);
}

AE_TEST("replan/nodes may change their positions") {
  JobFixture job = waiting();
  const StepId a = job.step("a").id;
  job.replan(plan_of({"{'id':'z','kind':'tool','tool':'look','needs':['a']}", kC, kB, kA}));
  EXPECT_EQ(job.step("a").id, a);
  EXPECT_EQ(job.state.path_of(job.step("a")), "0/0");
  EXPECT_EQ(job.state.path_of(job.step("z")), "1/0");
  EXPECT_EQ(job.status(), "running") << "the new node starts at once";
  job.ok("z").signal("b", "1").ok("c", "2");
  EXPECT_EQ(job.status(), "completed");
  expect_replan_proved(job);
}

AE_TEST("replan/changed arguments are a new node whose old effect must be dropped by name") {
  JobFixture job = waiting();
  const auto other = plan_of({"{'id':'a','kind':'tool','tool':'put','args':{'n':2}}", kB, kC});
  const std::size_t events = job.log.size();
  job.replan(other);
  EXPECT_EQ(job.refused, Code::plan_invalid);
  EXPECT_EQ(job.log.size(), events);
  job.replan(other, {"a"});
  ASSERT_FALSE(job.refused);
  EXPECT_EQ(job.sent.back().arguments, json("{'n':2}"));
  EXPECT_EQ(job.last<PlanGenerated>().drop.json(), json("['a']"));
  EXPECT_FALSE(job.state.waits.contains("b")) << "its dependency runs again";
  job.ok("a", "'A2'");
  EXPECT_TRUE(job.state.waits.contains("b#1")) << "a key names one wait permanently\n"
                                               << job.log_text();
  job.signal("b#1", "1").ok("c");
  EXPECT_EQ(job.status(), "completed");
  expect_replan_proved(job);
}

AE_TEST("replan/the trace shows dropped steps and the plan that dropped them") {
  JobFixture job = waiting();
  const StepId first = job.step("a").id;
  const Value before = trace_view(job.state, job.log);
  EXPECT_EQ(before["dropped"], json("[]"));
  EXPECT_TRUE(before["nodes"].items()[0]["dropped_by"].is_null());
  job.replan(plan_of({"{'id':'a','kind':'tool','tool':'put','args':{'n':2}}", kB}), {"a"});
  job.ok("a", "'A2'").signal("b#1", "1");
  EXPECT_EQ(job.status(), "completed");
  const Value trace = trace_view(job.state, job.log);
  EXPECT_EQ(trace["nodes"].size(), 2u);
  ASSERT_EQ(trace["dropped"].size(), 2u) << "the open wait too; c had not started";
  const Value a = trace["dropped"].items()[0], b = trace["dropped"].items()[1];
  EXPECT_EQ(a.text("step_id"), first.text);
  EXPECT_EQ(a.text("node_id"), "a");
  EXPECT_EQ(a.text("status"), "done");
  EXPECT_EQ(a["result"], Value("A"));
  EXPECT_EQ(a.text("world"), "changed");
  EXPECT_EQ(a["effect"]["arguments"], json("{'n':1}"));
  EXPECT_EQ(a["dropped_by"], Value(1));
  EXPECT_EQ(a["effect"]["invocation_id"], trace["effects"].items()[0]["effect_id"]);
  EXPECT_EQ(trace["effects"].items()[0].text("node_id"), "a");
  EXPECT_EQ(b.text("status"), "not_run");
  EXPECT_EQ(trace["totals"]["tries"], Value(2)) << "all calls that were sent";
  expect_replan_proved(job);
}

AE_TEST("replan/the trace names the dropping plan of each step") {
  JobFixture job = waiting();
  job.replan(plan_of({"{'id':'a','kind':'tool','tool':'put','args':{'n':2}}", kB}), {"a"});
  job.ok("a", "'A2'");
  job.replan(plan_of({"{'id':'a','kind':'tool','tool':'put','args':{'n':3}}"}), {"a"});
  job.ok("a", "'A3'");
  const Value trace = trace_view(job.state, job.log);
  std::string log_text;
  for (const Value& one : trace["dropped"].items()) {
    log_text += fmt::format("{}{} ", one.text("node_id"), one["dropped_by"].as_int());
  }
  EXPECT_EQ(log_text, "a1 b1 a2 b2 ");
  EXPECT_EQ(trace["totals"]["tries"], Value(3));
}

AE_TEST("replan/arguments that evaluate to the same value are equal, however written") {
  JobFixture job = waiting();
  const StepId a = job.step("a").id;
  job.replan(
      plan_of({"{'id':'a','kind':'tool','tool':'put','args':{'n':1},'when':'${ true }'}", kB}));
  ASSERT_FALSE(job.refused);
  EXPECT_EQ(job.step("a").id, a);
}

AE_TEST("replan/reads are dropped without being named") {
  JobFixture job(
      "[{'id':'r','kind':'tool','tool':'look'},"
      "{'id':'b','kind':'wait','wait':{'type':'signal','key':'b'},'needs':['r']}]");
  job.claim().ok("r").replan(
      plan_of({"{'id':'b','kind':'wait','wait':{'type':'signal','key':'c'}}"}));
  ASSERT_FALSE(job.refused);
  EXPECT_EQ(job.status(), "waiting");
  EXPECT_TRUE(job.state.waits.contains("c"));
  EXPECT_EQ(job.state.closed_waits.at("b").outcome, "cancelled");
  expect_replan_proved(job);
}

AE_TEST("replan/a replan is refused during an open or unknown call and after the end") {
  JobFixture calling(nodes({kA, kB}), {.input = "{'x':1}"});
  const auto other = plan_of({kA});
  calling.claim().replan(other);
  EXPECT_EQ(calling.refused, Code::call_pending);
  JobFixture doubt("[{'id':'p','kind':'tool','tool':'pay'}]");
  doubt.claim().times_out("p").replan(other);
  EXPECT_EQ(doubt.refused, Code::call_pending);
  JobFixture again("[{'id':'p','kind':'tool','tool':'put'}]");
  again.claim().times_out("p").replan(other);
  EXPECT_EQ(again.refused, Code::call_pending) << "the call is to be resent and may have happened";
  JobFixture over(nodes({kA}), {.input = "{'x':1}"});
  over.claim().ok("a").replan(plan_of({kA, kB}));
  EXPECT_EQ(over.refused, Code::job_terminal);
}

AE_TEST("replan/an invalid plan changes nothing") {
  JobFixture job = waiting();
  const std::size_t events = job.log.size();
  job.send_request({.body = PlanRequest{.task_graph = json("{'schema':1,'nodes':3}")}});
  EXPECT_EQ(job.refused, Code::plan_invalid);
  job.replan(plan_of({kA, kB}), {"missing"});
  EXPECT_EQ(job.refused, Code::plan_invalid);
  EXPECT_EQ(job.log.size(), events);
}

AE_TEST("replan/a job in back-off continues under the new plan at once and keeps its try") {
  JobFixture job("[{'id':'p','kind':'tool','tool':'put'}]");
  job.claim().fails("p", "connect");
  ASSERT_EQ(to_text(job.step("p").phase), "backoff");
  const StepId p = job.step("p").id;
  job.replan(
      plan_of({"{'id':'q','kind':'tool','tool':'look'}", "{'id':'p','kind':'tool','tool':'put'}"}));
  ASSERT_FALSE(job.refused);
  EXPECT_EQ(job.step("p").id, p);
  EXPECT_EQ(job.step("p").call->try_no, 1u);
  job.ok("q").after(60s).ok("p");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.tries("p"), 2u);
  expect_replan_proved(job);
}

AE_TEST("replan/a paused job accepts a new plan and stays paused") {
  JobFixture job = waiting();
  job.pause().replan(plan_of({kA, "{'id':'c','kind':'tool','tool':'pay','needs':['a']}"}));
  ASSERT_FALSE(job.refused);
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.count(EventType::tool_invocation_started), 1u);
  job.resume();
  EXPECT_EQ(job.sent.back().tool, "pay");
  job.ok("c");
  EXPECT_EQ(job.status(), "completed");
  expect_replan_proved(job);
}

AE_TEST("replan/a running map is carried over with its items") {
  constexpr std::string_view kMap =
      "{'id':'m','kind':'map','over':'${ .input.list }','max_parallel':1,"
      "'do':{'tool':'put','args':{'v':'${ .item }'}}}";
  JobFixture job(nodes({kMap}), {.input = "{'list':[1,2,3]}"});
  job.claim().ok("m/0", "'A'").fails("m/1", "connect");
  const StepId first = job.step("m/0").id;
  job.replan(plan_of({"{'id':'z','kind':'tool','tool':'look'}", kMap}));
  ASSERT_FALSE(job.refused) << job.log_text();
  EXPECT_EQ(job.step("m/0").id, first);
  job.ok("z").after(60s).ok("m/1", "'B'").ok("m/2", "'C'");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.step("m").result, json("['A','B','C']"));
  expect_replan_proved(job);
}

AE_TEST("replan/a plan without the map must drop the effects of its items") {
  constexpr std::string_view kMap =
      "{'id':'m','kind':'map','over':'${ .input.list }','max_parallel':1,"
      "'do':{'tool':'put','args':{'v':'${ .item }'}}}";
  JobFixture job(nodes({kMap}), {.input = "{'list':[1,2,3]}"});
  job.claim().ok("m/0", "'A'").fails("m/1", "connect");
  const auto next = plan_of({"{'id':'z','kind':'tool','tool':'look'}"});
  EXPECT_EQ(job.replan(next).refused, Code::plan_invalid);
  job.replan(next, {"m"}).ok("z");
  EXPECT_EQ(job.status(), "completed");
  expect_replan_proved(job);
}

AE_TEST("replan/an open approval is carried over if the call is the same") {
  constexpr std::string_view kTool =
      "{'tools':{'sign':{'effect':'idempotent','approval':'required'}}}";
  constexpr std::string_view kSign = "{'id':'s','kind':'tool','tool':'sign','args':{'n':1}}";
  JobFixture job(nodes({kSign}), {.more = kTool});
  job.claim();
  const std::string request_id = job.open_request_id("s");
  job.replan(plan_of({kSign, "{'id':'t','kind':'tool','tool':'put','needs':['s']}"}, kTool));
  ASSERT_FALSE(job.refused);
  EXPECT_EQ(job.open_request_id("s"), request_id);
  job.approve("s").ok("s").ok("t");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  expect_replan_proved(job);
  JobFixture other(nodes({kSign}), {.more = kTool});
  other.claim().replan(plan_of({"{'id':'s','kind':'tool','tool':'sign','args':{'n':2}}"}, kTool));
  ASSERT_FALSE(other.refused);
  EXPECT_NE(other.open_request_id("s"), request_id) << "another call, another request";
  expect_replan_proved(other);
}

constexpr std::string_view kReplanUndo = R"({'tools': {
    'unbook': {'effect': 'idempotent'},
    'book': {'effect': 'idempotent', 'compensate': {'tool': 'unbook', 'args': {'id': '${ .result }'}}}}})";
constexpr std::string_view kReplanBook = "{'id':'a','kind':'tool','tool':'book','args':{'n':1}}";

AE_TEST("replan/carried steps are compensated when the job fails under the new plan") {
  JobFixture job(nodes({kReplanBook, kB}), {.more = kReplanUndo});
  job.claim()
      .ok("a", "'A'")
      .replan(plan_of({"{'id':'z','kind':'tool','tool':'put','needs':['a']}", kReplanBook},
                      kReplanUndo));
  ASSERT_FALSE(job.refused);
  job.fails("z");
  EXPECT_EQ(job.sent.back().tool, "unbook") << job.log_text();
  EXPECT_EQ(job.sent.back().arguments, json("{'id':'A'}"));
  job.crash().ok("a/compensate");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.last<JobFailed>().compensated.json().size(), 1u);
  EXPECT_EQ(job.state.path_of(job.step("a/compensate")), "0/0/compensate");
  expect_replan_proved(job);
}

AE_TEST("replan/a dropped effect is not compensated") {
  JobFixture job(nodes({kReplanBook, kB}), {.more = kReplanUndo});
  job.claim()
      .ok("a", "'A'")
      .replan(plan_of({"{'id':'z','kind':'tool','tool':'put'}"}, kReplanUndo), {"a"});
  job.fails("z");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.count(EventType::step_compensated), 0u);
  expect_replan_proved(job);
}

AE_TEST("replan/a dropped node with the same call runs again under a new key") {
  JobFixture job = waiting();
  const std::string key = job.sent[0].key;
  job.replan(plan_of({kA, kB}), {"a"});
  ASSERT_FALSE(job.refused);
  ASSERT_EQ(job.sent.size(), 2u);
  EXPECT_NE(job.sent[1].key, key);
  EXPECT_NE(job.sent[1].external_key, job.sent[0].external_key);
  expect_replan_proved(job);
}

AE_TEST("replan/a second replan may return to the first plan") {
  JobFixture job = waiting();
  const auto first = job.plan;
  const StepId a = job.step("a").id, c = job.step("c").id;
  job.replan(plan_of({kA, kB})).replan(first);
  ASSERT_FALSE(job.refused);
  EXPECT_EQ(job.state.plan_number, 2u);
  EXPECT_EQ(job.step("a").id, a);
  EXPECT_NE(job.step("c").id, c) << "its path has another plan number";
  job.signal("b", "1").ok("c");
  EXPECT_EQ(job.status(), "completed");
  expect_replan_proved(job);
}

AE_TEST("replan/a crash after a replan keeps the new plan") {
  JobFixture job = waiting();
  job.replan(plan_of({kA, "{'id':'c','kind':'tool','tool':'put','needs':['a']}"})).crash();
  EXPECT_EQ(job.tries("c"), 2u) << "the call was in flight: it is sent again under its key";
  job.ok("c");
  EXPECT_EQ(job.status(), "completed");
  expect_replan_proved(job);
}

AE_TEST("replan/a fork continues under a new plan with its imported results") {
  JobFixture origin = waiting();
  JobFixture job(*origin.fork(origin.log.size()), "job-2");
  job.claim();
  const StepId a = job.step("a").id;
  job.replan(plan_of({"{'id':'z','kind':'tool','tool':'look','needs':['a']}", kA}));
  ASSERT_FALSE(job.refused);
  EXPECT_EQ(job.step("a").id, a);
  job.ok("z");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.sent.size(), 1u);
  expect_replan_proved(job);
}

AE_TEST("replan/a retry under a new plan keeps what a parallel branch committed") {
  constexpr std::string_view kFails = "{'id':'f','kind':'tool','tool':'pay','args':{'n':1}}";
  constexpr std::string_view kFixed = "{'id':'f','kind':'tool','tool':'pay','args':{'n':2}}";
  constexpr std::string_view kItems =
      "{'id':'m','kind':'map','over':[1,2],'max_parallel':2,'do':{'tool':'pay'}}";
  JobFixture origin(nodes({kFails, kA, kItems}), {.input = "{'x':1}"});
  origin.claim().fails("f").ok("a", "'A'").ok("m/1", "'M'").fails("m/0");
  ASSERT_EQ(origin.status(), "failed") << origin.log_text();
  const auto fork = origin.fork(*retry_point(origin.state, origin.log));
  ASSERT_TRUE(fork && fork->effects.empty()) << origin.log_text();
  JobFixture job(*fork, "job-2");
  job.replan(plan_of({kFixed, kA, kItems}));
  ASSERT_FALSE(job.refused) << job.log_text();
  job.claim().ok("f").ok("m/0");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.sent.size(), 2u);
  expect_replan_proved(job);
  // Its committed branch differs: it must be named.
  JobFixture other(*fork, "job-3");
  other.replan(plan_of({kFixed, kItems}));
  EXPECT_EQ(other.refused, Code::plan_invalid);
}

AE_TEST("replan/a fork of a replanned job starts with the plan of its event") {
  JobFixture origin = waiting();
  const std::size_t before = origin.log.size();
  origin.replan(plan_of({kA, "{'id':'c','kind':'tool','tool':'put','needs':['a']}"})).fails("c");
  ASSERT_EQ(origin.status(), "failed");
  JobFixture early(*origin.fork(before), "job-2");
  EXPECT_EQ(early.plan->nodes.size(), 3u);
  JobFixture late(*origin.fork(origin.log.size()), "job-3");
  EXPECT_EQ(late.plan->nodes.size(), 2u);
  late.claim().ok("c");
  EXPECT_EQ(late.status(), "completed");
  EXPECT_EQ(late.sent.size(), 1u);
  expect_replan_proved(late);
}

AE_TEST("replan/an event that carries over an impossible step is rejected") {
  JobFixture job = waiting();
  const auto other = plan_of({kA, kB});
  const auto accepted = apply_request(
      job.state, {.body = PlanRequest{.task_graph = other->task_graph}}, job.context());
  ASSERT_TRUE(accepted);
  PlanGenerated good;
  for (const EventBody& event : accepted->events) {
    if (const auto* made = std::get_if<PlanGenerated>(&event)) good = *made;
  }
  const auto refused = [&](const Value& carries) {
    State state = job.folded(job.log.size());
    for (const EventBody& draft : accepted->events) {
      if (std::holds_alternative<PlanGenerated>(draft)) break;
      AE_CHECK(apply(state, draft, job.now, uncached_plan_source()).has_value());
    }
    PlanGenerated forged = good;
    forged.carried.json() = carries;
    return !apply(state, forged, job.now, uncached_plan_source()).has_value();
  };
  const auto carried = good.carried.json().items();
  EXPECT_FALSE(refused(good.carried.json()));
  EXPECT_TRUE(refused(Value::array({carried[1]}))) << "the effect of a is dropped";
  EXPECT_TRUE(refused(Value::array({carried[0]}))) << "b's wait is open";
  EXPECT_TRUE(refused(Value::array({carried[0], carried[0]})));
  EXPECT_TRUE(refused(Value::array({carried[0].with("node_id", "b"), carried[1]})));
  EXPECT_TRUE(refused(Value("no list")));
}

// The random plan with one more node, and with some other nodes changed if `changed`.
Value next_graph(const Value& graph, Dice& dice, bool changed) {
  std::vector<Value> all;
  for (const Value& node : graph["nodes"].items()) {
    if (!changed || !dice.one_in(2)) {
      all.push_back(node);
      continue;
    }
    if (node.text("kind") == "tool") {
      all.push_back(node.with("args", Value::object({{"changed", dice.below(3)}})));
    } else {
      all.push_back(node);
    }
  }
  all.push_back(json("{'id':'extra','kind':'tool','tool':'ask','args':{'key':'x'}}"));
  return graph.with("nodes", Value::array(std::move(all)));
}

AE_TEST("property/a new plan at any moment keeps common steps, and no effect is lost silently") {
  const std::uint64_t first = first_seed();
  std::size_t accepted = 0, refused = 0, dropped = 0;
  for (std::uint64_t seed = first; seed < first + seeds(60); ++seed) {
    SCOPED_TRACE(repeat(seed, "property.a new plan*"));
    Dice dice(seed);
    const FailureMode failing = dice.one_in(2) ? FailureMode::tolerated : FailureMode::ends;
    const Value graph = random_plan(dice, failing);
    JobFixture job(compiled(graph), {.input = random_input(dice)});
    job.waits_for_settling = true;
    RandomWorld world(failing);
    job.claim();
    const bool changed = !dice.one_in(3);
    for (int rounds = 0; rounds < 3; ++rounds) {
      const std::uint64_t moments = dice.below(12);
      for (std::uint64_t i = 0; i < moments && advance_randomly(job, world, dice); ++i) {
      }
      if (is_terminal(job.state.status)) break;
      const auto next = compiled(next_graph(graph, dice, changed));
      std::map<std::string, StepId> begun;
      for (std::size_t i = 0; i < job.plan->nodes.size(); ++i) {
        const Step& step = job.state.steps[i];
        if (step.started || step.skipped) begun.emplace(job.plan->nodes[i].id, step.id);
      }
      const auto before = job.log.size();
      job.replan(next);
      if (job.refused == Code::plan_invalid) {
        ASSERT_TRUE(changed) << "all nodes are carried over when all are the same\n"
                             << job.log_text();
        ASSERT_EQ(job.log.size(), before);
        const DroppedNodes lost = replan_of(job.state, next, {})->lost;
        ASSERT_FALSE(lost.empty());
        job.replan(next, {lost.begin(), lost.end()});
        ASSERT_FALSE(job.refused) << job.log_text();
        dropped++;
      }
      if (job.refused) {
        ASSERT_TRUE(job.refused == Code::call_pending || job.refused == Code::job_terminal);
        refused++;
        continue;
      }
      accepted++;
      if (!changed) {
        for (const auto& [id, step] : begun)
          ASSERT_EQ(job.step(id).id, step) << id << job.log_text();
      }
      if (dice.one_in(2) && job.state.status == JobStatus::running) job.crash();
    }
    int steps = 0;
    while (advance_randomly(job, world, dice)) {
      ASSERT_LT(++steps, 5000) << job.log_text();
      if (dice.one_in(10) && job.state.status == JobStatus::running) job.crash();
    }
    for (const auto& [key, times] : world.performed()) ASSERT_EQ(times, 1) << key << job.log_text();
    expect_replan_proved(job);
    if (::testing::Test::HasFailure()) return;
    for (std::size_t prefix = 3; prefix < job.log.size(); prefix += 7) {
      const State then = job.folded(prefix);
      auto restored =
          restore(job.state.job, prefix, checkpoint(then, Hash{}), uncached_plan_source());
      ASSERT_TRUE(restored);
      ASSERT_EQ(checkpoint(restored->state, Hash{}), checkpoint(then, Hash{}));
    }
  }
  EXPECT_TRUE((accepted > 5 && refused > 0 && dropped > 0) || std::getenv("AETHERIS_SEED"))
      << accepted << " " << refused << " " << dropped;
}

}  // namespace
}  // namespace ae::engine::testing
