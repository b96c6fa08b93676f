// A planner: its model's answer becomes the plan of the job, once, with granted tools only.
#include "engine/planner/planner.h"

#include <fmt/core.h>

#include "engine/loop/loop_fixture_test.h"
#include "engine/state/checkpoint.h"
#include "inspect/view.h"

namespace ae::engine::testing {
namespace {

// Single quotes for double ones, in a string inside JSON.
std::string answer(std::string_view nodes, std::string_view more = "") {
  std::string text = fmt::format("{{'nodes': {}{}}}", nodes, more);
  std::ranges::replace(text, '\'', '"');
  return canonical(Value::object({{"text", text}, {"finish_reason", "stop"}}));
}

std::shared_ptr<const Plan> planner(std::string_view more = "", std::string_view whole = kTools) {
  Value made = json(
      "{'tool': 'model:main', 'model': 'small', 'told': 'Plan it with ${ }',"
      " 'prompt': '${ .input.message }', 'tools': ['look', 'put', 'refund', 'exact', 'pay'],"
      " 'max_nodes': 3, 'repair': 1" +
      std::string(more) + "}");
  if (made.find("schema") == nullptr) made = made.with("schema", planner_schema());
  const Value node = Value::object({{"id", "planner"}, {"kind", "planner"}, {"planner", made}});
  return compiled(graph("[]", whole).with("nodes", Value::array({node})));
}
JobFixture plans(std::string_view more = "", std::string_view whole = kTools) {
  return JobFixture(planner(more, whole), {.input = "{'message': 'Go', 'n': 7}"});
}

// One node finds something, the next one stores it.
std::string two() {
  const Value nodes = Value::array(
      {Value::object({{"id", "find"}, {"tool", "look"}, {"args", R"({"q":"${ .input.n }"})"}}),
       Value::object({{"id", "save"},
                      {"tool", "put"},
                      {"needs", Value::array({"find"})},
                      {"args", R"({"v":"${ .steps.find }"})"}})});
  return canonical(Value::object({{"text", canonical(Value::object({{"nodes", nodes}}))}}));
}
std::string a_plan(std::initializer_list<Value> nodes, const Value& output = {}) {
  Value plan = Value::object({{"nodes", Value::array(std::vector<Value>(nodes))}});
  if (!output.is_null()) plan = plan.with("output", output);
  return canonical(Value::object({{"text", canonical(plan)}}));
}
Value node(std::string_view text) { return json(text); }

AE_TEST("planner/the answer of the model becomes the plan in its commit and is executed") {
  JobFixture job = plans();
  job.claim();
  EXPECT_EQ(canonical(request(job, "planner/0")["messages"]),
            R"([{"content":"Plan it with ${ }","role":"system"},{"content":"Go","role":"user"}])");
  EXPECT_EQ(request(job, "planner/0")["schema"], planner_schema());
  EXPECT_EQ(request(job, "planner/0").find("tools"), nullptr);
  const std::size_t before = job.log.size();
  const std::string invocation = job.step("planner/0").call->id.text;
  const Hash arguments_hash = job.step("planner/0").call->arguments_hash;
  job.ok("planner/0", two());
  std::vector<std::string> types;
  for (std::size_t i = before; i < job.log.size(); ++i) types.emplace_back(event_name(job.log[i]));
  const auto made = std::ranges::find(types, "plan_generated");
  ASSERT_NE(made, types.end()) << job.log_text();
  EXPECT_LT(std::ranges::find(types, "command_committed"), made);
  const auto plan = job.last<PlanGenerated>();
  EXPECT_EQ(plan.planned_by, "model:main/" + invocation);
  EXPECT_EQ(plan.decision_locked, true);
  EXPECT_EQ(plan.plan_input_hash, arguments_hash);
  EXPECT_EQ(plan.carried.json().size(), 1u);
  EXPECT_EQ(job.state.plan_number, 1u);
  EXPECT_TRUE(job.state.planned_by_model);
  EXPECT_EQ(job.sent.back().tool, "look");
  EXPECT_EQ(canonical(job.sent.back().arguments), R"({"q":7})");
  EXPECT_EQ(job.state.path_of(job.step("find")), "1/1");
  EXPECT_EQ(job.state.path_of(job.step("planner")), "0/0");
  job.ok("find", "'it'").ok("save", "'kept'");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(canonical(job.state.result), R"({"save":"kept"})");
  expect_verified(job);
}

AE_TEST("planner/an invalid plan is repaired once, a second one fails with plan_invalid") {
  const char* wrong[] = {
      "[{'id': 'a', 'tool': 'once'}]",                           // not granted
      "[{'id': 'a', 'tool': 'model:main'}]",                     // not a tool
      "[{'id': 'a', 'tool': 'look', 'needs': ['b']}]",           // there is no b
      "[{'id': 'a', 'tool': 'look', 'wait_for': '1s'}]",         // two kinds
      "[{'id': 'a'}]",                                           // none
      "[{'id': 'planner', 'tool': 'look'}]",                     // the planner's name
      "[{'id': 'a', 'tool': 'look', 'args': '[1]'}]",            // not an object
      "[{'id': 'a', 'tool': 'look', 'args': '{'}]",              // not JSON
      "[{'id': 'a', 'tool': 'exact'}]",                          // breaks the args_schema
      "[{'id': 'a', 'tool': 'look', 'when': 'maybe'}]",          // not a condition
      "[{'id': 'a', 'tool': 'look', 'when': '${ .env.KEY }'}]",  // no such root
      "[{'id': 'a', 'wait_for': '1s'}, {'id': 'b', 'tool': 'look'}, {'id': 'c'}, {'id': 'd'}]",
  };
  for (const char* nodes : wrong) {
    JobFixture job = plans();
    job.claim().ok("planner/0", answer(nodes));
    const Value choice = job.last<DecisionRecorded>().payload.value;
    EXPECT_TRUE(choice.text("repair").starts_with("makes no plan: ")) << nodes << canonical(choice);
    EXPECT_EQ(job.sent.size(), 2u) << nodes;
    job.ok("planner/1", answer(nodes));
    EXPECT_EQ(job.status(), "failed") << nodes;
    EXPECT_EQ(job.state.error->code, "plan_invalid") << nodes;
    EXPECT_EQ(job.count(EventType::plan_generated), 1u);
    expect_verified(job);
  }
  JobFixture repaired = plans();
  repaired.claim().ok("planner/0", answer("[{'id': 'a', 'tool': 'once'}]")).ok("planner/1", two());
  EXPECT_EQ(repaired.sent.back().tool, "look");
  repaired.ok("find").ok("save");
  EXPECT_EQ(repaired.status(), "completed");
  expect_verified(repaired);
}

AE_TEST("planner/a generated plan may wait, map, branch, tolerate failures and set an output") {
  JobFixture job = plans();
  job.claim().ok(
      "planner/0",
      a_plan(
          {node("{'id': 'rest', 'wait_for': '30s'}"),
           node("{'id': 'each', 'tool': 'put', 'map': '${ [1, 2] }', 'as': 'one'}")
               .with("args", R"({"v":"${ .one }"})")
               .with("needs", Value::array({"rest"})),
           node("{'id': 'never', 'tool': 'put', 'when': '${ .input.n > 8 }', 'on_error': 'fail'}")},
          R"({"all":"${ .steps.each }"})"));
  EXPECT_EQ(job.status(), "waiting") << job.log_text();
  job.after(31s).ok("each/0", "'a'").ok("each/1", "'b'");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(canonical(job.state.result), R"({"all":["a","b"]})");
  expect_verified(job);
}

AE_TEST("planner/a crash at any event repeats no recorded call and gives the same plan") {
  const auto run = [](JobFixture& job) {
    for (int guard = 0; guard < 20 && !is_terminal(job.state.status); ++guard) {
      ASSERT_FALSE(job.in_flight.empty()) << job.log_text();
      const std::uint32_t index = job.in_flight.begin()->first;
      const Step& step = job.state.steps[index];
      std::string turn_answer = "'x'";
      if (step.is_turn())
        turn_answer = step.turn == 0 ? answer("[{'id': 'a', 'tool': 'once'}]") : two();
      job.answer(index, {.kind = OutcomeKind::success,
                         .result = *parse_json(step.is_turn() ? turn_answer : "1")});
    }
  };
  JobFixture whole = plans();
  whole.claim();
  run(whole);
  ASSERT_EQ(whole.status(), "completed") << whole.log_text();
  for (std::size_t kept = 2; kept < whole.log.size(); ++kept) {
    JobFixture job = plans();
    job.log.assign(whole.log.begin(), whole.log.begin() + static_cast<std::ptrdiff_t>(kept));
    const auto answered =
        std::ranges::count(job.log, EventType::tool_invocation_finished, &Event::type);
    job.state = job.folded(kept);
    job.attempt_count = 1;
    job.claim();
    run(job);
    ASSERT_EQ(job.status(), "completed") << "cut at " << kept << "\n" << job.log_text();
    EXPECT_EQ(static_cast<std::int64_t>(job.sent.size()), 4 - answered) << "cut at " << kept;
    EXPECT_EQ(job.count(EventType::plan_generated), 2u);
    EXPECT_EQ(job.last<PlanGenerated>().plan_hash, whole.last<PlanGenerated>().plan_hash);
    expect_verified(job);
  }
}

AE_TEST("planner/a log with another plan than the answer gives is rejected") {
  JobFixture job = plans();
  job.claim().ok("planner/0", two());
  const auto at = std::ranges::find_if(job.log, [&](const Event& event) {
    return event.type == EventType::plan_generated && event.seq > 2;
  });
  ASSERT_NE(at, job.log.end());
  const auto other =
      plan_from_answer(*planner(), *parse_json(answer("[{'id': 'a', 'tool': 'pay'}]")));
  ASSERT_TRUE(other) << other.error().message;
  const auto refused = [&](const PlanGenerated& event) {
    State state = job.folded(at->seq - 1);
    return !apply(state, event, job.now, uncached_plan_source());
  };
  const PlanGenerated good = std::get<PlanGenerated>(at->body);
  EXPECT_FALSE(refused(good));
  PlanGenerated wrong = good;
  wrong.task_graph = (*other)->task_graph;
  wrong.plan_hash = (*other)->hash;
  wrong.decision_id = (*other)->decision;
  EXPECT_TRUE(refused(wrong));
  wrong = good;
  wrong.planned_by = "model:main/0123456789abcdef";
  EXPECT_TRUE(refused(wrong));
  State done = job.folded(at->seq - 1);
  const auto ended = apply(done, JobCompleted{}, job.now, uncached_plan_source());
  ASSERT_FALSE(ended) << "its plan is not generated yet";
  EXPECT_NE(ended.error().message.find("plan is to follow"), std::string::npos);
  State early = job.folded(at->seq - 2);
  EXPECT_FALSE(apply(early, good, job.now, uncached_plan_source()))
      << "its planner is not finished";
}

AE_TEST("planner/a plan of a newer planner version returns needs_version") {
  JobFixture job = plans();
  job.claim().ok("planner/0", two());
  std::vector<Event> log = job.log;
  for (Event& event : log) {
    auto* made = std::get_if<PlanGenerated>(&event.body);
    if (made != nullptr && event.seq != 2) made->planner_version = "model/2";
  }
  const auto folded = fold(job.state.job, log, uncached_plan_source());
  ASSERT_FALSE(folded);
  EXPECT_EQ(folded.error().code, Code::needs_version);
}

AE_TEST("planner/an answer can be erased after its plan was made, and the job stays the same") {
  JobFixture job = plans();
  job.claim().ok("planner/0", two()).ok("find", "'it'").ok("save", "'kept'");
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  std::vector<Event> log = job.log;
  each<ToolInvocationFinished>(log, [&](ToolInvocationFinished& event) {
    if (event.step_id == job.step("planner/0").id) event.result = erased_value();
  });
  const auto folded = fold(job.state.job, log, uncached_plan_source());
  ASSERT_TRUE(folded) << folded.error().message;
  EXPECT_EQ(folded->status, JobStatus::completed);
  EXPECT_EQ(folded->result, job.state.result);
}

AE_TEST("planner/a tool without the granted capability is denied, in a fork too") {
  constexpr std::string_view kGrants =
      "{'grants': ['reads'], 'tools': {'model:main': {'effect': 'read', 'provider': 'openai'},"
      " 'look': {'effect': 'read', 'capabilities': ['reads']},"
      " 'put': {'effect': 'idempotent', 'capabilities': ['writes']},"
      " 'refund': {'effect': 'idempotent'}, 'exact': {'effect': 'read'}}}";
  JobFixture job = plans("", kGrants);
  job.claim().ok("planner/0", two()).ok("find", "1");
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  EXPECT_EQ(job.state.error->code, "denied");
  EXPECT_EQ(std::ranges::count(job.sent, std::string("put"), &JobFixture::SentTry::tool), 0);
  expect_verified(job);
  const auto from = job.fork(job.seq_of(EventType::node_finished, "find"));
  ASSERT_TRUE(from);
  JobFixture fork(*from, "job-2");
  EXPECT_EQ(fork.last<PlanGenerated>().planned_by, "model:main");
  fork.claim();
  EXPECT_EQ(fork.state.error->code, "denied") << fork.log_text();
}

AE_TEST("planner/a new plan by an operator starts the planner again") {
  JobFixture job = plans();
  job.claim().ok("planner/0",
                 a_plan({node("{'id': 'find', 'tool': 'look'}"),
                         node("{'id': 'rest', 'wait_for': '1h', 'needs': ['find']}")}));
  job.ok("find", "1");
  EXPECT_EQ(job.status(), "waiting") << job.log_text();
  job.replan(planner(", 'max_tokens': 9"));
  EXPECT_FALSE(job.refused) << job.log_text();
  EXPECT_EQ(job.state.plan_number, 2u);
  EXPECT_FALSE(job.state.planned_by_model);
  job.ok("planner/0", two());
  EXPECT_EQ(job.state.plan_number, 3u) << job.log_text();
  job.ok("find", "2").ok("save", "3");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  expect_verified(job);
}

AE_TEST("planner/a checkpoint at any event folds to the same state") {
  JobFixture job = plans();
  job.claim().ok("planner/0", two()).ok("find", "1").ok("save", "2");
  for (std::size_t at = 2; at <= job.log.size(); ++at) {
    const std::string bytes = checkpoint(job.folded(at), {});
    auto restored = restore(job.state.job, at, bytes, uncached_plan_source());
    ASSERT_TRUE(restored) << at;
    State state = std::move(restored->state);
    for (std::size_t i = at; i < job.log.size(); ++i) {
      const Event& event = job.log[i];
      ASSERT_TRUE(apply(state, event.body, event.created_at, uncached_plan_source()));
    }
    EXPECT_EQ(state_view(state), state_view(job.state)) << at;
  }
}

AE_TEST("planner/a planner is the first node of its plan and its options are validated") {
  const Value one = planner()->task_graph["nodes"].items()[0];
  const Value look = json("{'id': 'a', 'kind': 'tool', 'tool': 'look'}");
  const auto compiles = [&](std::vector<Value> nodes) {
    return Plan::compile(graph("[]", kTools).with("nodes", Value::array(std::move(nodes))));
  };
  EXPECT_TRUE(compiles({one}));
  EXPECT_TRUE(compiles({one, look}));
  EXPECT_FALSE(compiles({look, one}));
  const Value bad = one.with("planner", one["planner"].with("max_nodes", 0));
  EXPECT_FALSE(compiles({bad}));
}

}  // namespace
}  // namespace ae::engine::testing
