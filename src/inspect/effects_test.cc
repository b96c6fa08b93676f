// Tests of the effects in a log, of the schemas that calls record, and of drift.
#include "inspect/effects.h"

#include <fmt/core.h>

#include "engine/fixtures/job_fixture_test.h"
#include "inspect/drift.h"
#include "inspect/trace.h"
#include "inspect/verify.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

// "kind type" of each effect, in order.
std::vector<std::string> effects_of(const JobFixture& job) {
  std::vector<std::string> all;
  const Value trace = trace_view(job.state, job.log);
  for (const Value& one : trace["effects"].items()) {
    all.push_back(fmt::format("{} {}", one.text("kind"), one.text("type")));
  }
  return all;
}

Value drift_of(const JobFixture& job) { return trace_view(job.state, job.log)["drift"]; }

using Names = std::vector<std::string>;

constexpr std::string_view kModel =
    "{'tools':{'model:main':{'effect':'read','provider':'openai',"
    "'retry':{'max_attempts':3,'retry_on':['timeout']}}}}";

std::string model_call(std::string_view id, std::string_view model, std::string_view needs = "[]") {
  return "{'id':'" + std::string(id) +
         "','kind':'llm','tool':'model:main','needs':" + std::string(needs) + ",'args':{'model':'" +
         std::string(model) + "','messages':[{'role':'user','content':'x'}]}}";
}

AE_TEST("effects/calls, models, random values and timers are effects, each with its kind") {
  JobFixture job("[{'id':'a','kind':'tool','tool':'put'}," + model_call("n", "small", "['a']") +
                     ",{'id':'t','kind':'wait','wait':{'type':'timer','for':'1h'},'needs':['n']}]",
                 {.more = kModel});
  job.claim().fails("a", "connect").after(1min).ok("a").ok("n", "{'text':'hi'}").after(2h);
  ASSERT_EQ(job.status(), "completed");
  EXPECT_EQ(effects_of(job), (Names{"tool tool_invocation_finished", "random random_recorded",
                                    "tool tool_invocation_finished", "llm tool_invocation_finished",
                                    "time timer_fired"}));
  const Value first = trace_view(job.state, job.log)["effects"].items()[0];
  EXPECT_EQ(first["effect_id"], job.step("a").call->id.text);
  EXPECT_EQ(first["try"], Value(1));
  EXPECT_EQ(job.log[static_cast<std::size_t>(first["seq"].as_int()) - 1].type,
            EventType::tool_invocation_finished);
}

AE_TEST("effects/a human answer is one effect: to a wait, a call or an unknown outcome") {
  JobFixture wait(
      "[{'id':'w','kind':'wait','wait':{'type':'human','key':'k'}},"
      " {'id':'s','kind':'wait','wait':{'type':'signal','key':'s'}}]");
  wait.claim().approve("w").signal("s");
  EXPECT_EQ(effects_of(wait), (Names{"human wait_completed"})) << "a signal is not a human answer";
  JobFixture call("[{'id':'a','kind':'tool','tool':'buy'}]",
                  {.more = "{'tools':{'buy':{'approval':'required'}}}"});
  call.claim();
  EXPECT_EQ(effects_of(call), Names{}) << "the call is not answered yet";
  call.approve("a").ok("a");
  EXPECT_EQ(effects_of(call), (Names{"human decision_recorded", "tool tool_invocation_finished"}));
  JobFixture doubt("[{'id':'a','kind':'tool','tool':'pay'}]");
  doubt.claim().unknown("a").resolve("a", "happened", "1");
  EXPECT_EQ(effects_of(doubt), (Names{"tool tool_invocation_finished", "human decision_recorded"}));
  JobFixture late("[{'id':'w','kind':'wait','wait':{'type':'human','key':'k','expires':'1h'}}]");
  late.claim().after(2h);
  EXPECT_EQ(effects_of(late), (Names{"time timer_fired"})) << "the wait expired";
}

AE_TEST("effects/an operator's confirmation is a human effect, the answer of a probe is not") {
  JobFixture checked(
      "[{'id':'a','kind':'tool','tool':'make'},"
      " {'id':'b','kind':'tool','tool':'put','needs':['a']}]",
      {.more = "{'tools':{'make':{'changes':[{'type':'f','id':'x','op':'create',"
               "'version':'1'}],'verify':{'by':'file','mode':'human'}}}}"});
  checked.external_checks["x"] = {
      .verdict = CheckVerdict::mismatch, .expected = "1", .observed = "2", .reason = {}};
  checked.claim().ok("a").crash();
  ASSERT_EQ(checked.status(), "parked") << checked.log_text();
  EXPECT_EQ(effects_of(checked), (Names{"tool tool_invocation_finished"}));
  checked.confirm("a", "accept");
  ASSERT_EQ(checked.refused, std::nullopt);
  EXPECT_EQ(effects_of(checked).back(), "human decision_recorded") << checked.log_text();
  JobFixture probed(
      "[{'id':'a','kind':'tool','tool':'buy'}]",
      {.more = "{'tools':{'buy':{'effect':'at_most_once','on_in_doubt':'probe','probe':"
               "{'tool':'look','happened':'${ .result }'}}}}"});
  probed.claim().times_out("a").after(71s).ok("a/probe", "7");
  ASSERT_EQ(probed.status(), "completed");
  EXPECT_EQ(effects_of(probed),
            (Names{"tool tool_invocation_finished", "tool tool_invocation_finished"}));
}

// ---------------------------------------------------------------- drift

AE_TEST("schema/each try records the hash of the schema of its arguments, if there is one") {
  JobFixture job("[{'id':'a','kind':'tool','tool':'t'},{'id':'b','kind':'tool','tool':'put'}]",
                 {.more = "{'tools':{'t':{'retry':{'max_attempts':2,'retry_on':['connect']},"
                          "'args_schema':{'type':'object'}}}}"});
  job.claim().fails("a", "connect").after(1min).ok("a").ok("b");
  std::size_t with_schema = 0;
  for (const Event& event : job.log) {
    const auto* started = as<ToolInvocationStarted>(event);
    if (started == nullptr) continue;
    if (started->tool_name == "put") {
      EXPECT_FALSE(started->request_schema_hash);
      continue;
    }
    with_schema++;
    EXPECT_EQ(started->request_schema_hash, sha256(R"({"type":"object"})"));
  }
  EXPECT_EQ(with_schema, 2u) << "in each try";
  VerifyInput input;
  input.job = job.state.job;
  input.events = job.log;
  EXPECT_TRUE(verify(input, uncached_plan_source()).ok);
  for (Event& event : input.events) {
    auto* started = std::get_if<ToolInvocationStarted>(&event.body);
    if (started != nullptr && started->tool_name == "t") started->request_schema_hash = sha256("b");
  }
  EXPECT_FALSE(verify(input, uncached_plan_source()).replay.ok);
}

AE_TEST("drift/a job whose tools and models do not change has no drift") {
  JobFixture job("[{'id':'a','kind':'tool','tool':'put'}," + model_call("n", "small") + "]",
                 {.more = kModel});
  job.claim().ok("a").ok("n", "{'text':'x','model':'small-1'}");
  EXPECT_EQ(drift_of(job), json("[]"));
}

AE_TEST("drift/a tool that has changed since the plan is shown once, at its first call") {
  JobFixture job(
      "[{'id':'a','kind':'tool','tool':'put'},"
      " {'id':'w','kind':'wait','needs':['a'],'wait':{'type':'signal','key':'k'}},"
      " {'id':'b','kind':'tool','tool':'put','needs':['w']},"
      " {'id':'c','kind':'tool','tool':'put','needs':['b']}]");
  job.claim().ok("a");
  job.versions.assign(job.plan->tools.size(), "ffffffffffffffff");
  job.signal("k").ok("b").ok("c");
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  const Value drift = drift_of(job);
  ASSERT_EQ(drift.size(), 1u) << canonical(drift);
  const Value& one = drift.items()[0];
  EXPECT_EQ(one["tool"], "put");
  EXPECT_EQ(one["what"], "tool_version");
  EXPECT_EQ(one["from"], "0123456789abcdef");
  EXPECT_EQ(one["to"], "ffffffffffffffff");
  EXPECT_EQ(node_of(job.log[static_cast<std::size_t>(one["seq"].as_int()) - 1]), "b");
  EXPECT_EQ(node_of(job.log[static_cast<std::size_t>(one["since"].as_int()) - 1]), "a");
  const Value trace = trace_view(job.state, job.log);
  EXPECT_EQ(trace["nodes"].items()[2]["tries"].items()[0]["tool_version"], "ffffffffffffffff");
}

AE_TEST("drift/schemas and versions that another plan changes or removes are shown") {
  const auto plan = [](std::string_view more, const char* node) {
    return compiled(
        graph("[{'id':'a','kind':'tool','tool':'t'},"
              " {'id':'" +
                  std::string(node) +
                  "','kind':'wait','needs':['a'],"
                  "  'wait':{'type':'signal'}}]",
              "{'tools':{'t':{" + std::string(more) + "}}}"));
  };
  JobFixture job(plan("'args_schema':{'type':'object'},'version':'aaaaaaaaaaaaaaaa'", "w"));
  job.claim().ok("a");
  job.replan(plan("'result_schema':{'type':'null'},'version':'bbbbbbbbbbbbbbbb'", "v"));
  ASSERT_EQ(job.refused, std::nullopt);
  std::map<std::string, Value> seen;
  const Value drift = drift_of(job);
  for (const Value& one : drift.items()) seen[std::string(one.text("what"))] = one;
  ASSERT_EQ(seen.size(), 3u) << canonical(drift);
  EXPECT_EQ(seen["tool_version"]["to"], "bbbbbbbbbbbbbbbb");
  EXPECT_EQ(seen["args_schema"]["from"], to_hex(sha256(R"({"type":"object"})")));
  EXPECT_EQ(seen["args_schema"]["to"], Value());
  EXPECT_EQ(seen["result_schema"]["from"], Value());
  EXPECT_EQ(seen["result_schema"]["to"], to_hex(sha256(R"({"type":"null"})")));
}

AE_TEST("drift/an approved call of a tool without a schema is no drift") {
  JobFixture job("[{'id':'a','kind':'tool','tool':'buy'}]",
                 {.more = "{'tools':{'buy':{'approval':'required'}}}"});
  job.claim().approve("a").ok("a");
  ASSERT_EQ(job.status(), "completed");
  EXPECT_EQ(drift_of(job), json("[]"));
}

AE_TEST("drift/a change of the requested or the answering model is shown") {
  JobFixture job("[" + model_call("one", "small") + "," + model_call("two", "small", "['one']") +
                     "," + model_call("three", "large", "['two']") + "]",
                 {.more = kModel});
  job.claim()
      .ok("one", "{'text':'1','model':'small-1'}")
      .ok("two", "{'text':'2','model':'small-2'}")
      .ok("three", "{'text':'3','model':'large-1'}");
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  const Value drift = drift_of(job);
  ASSERT_EQ(drift.size(), 2u) << canonical(drift);
  EXPECT_EQ(drift.items()[0]["what"], "answered");
  EXPECT_EQ(drift.items()[0]["from"], "small-1");
  EXPECT_EQ(drift.items()[0]["to"], "small-2");
  EXPECT_EQ(drift.items()[1]["what"], "model");
  EXPECT_EQ(drift.items()[1]["to"], "large");
}

// The planner_version of each plan of the job; "" = not recorded.
Names planners_of(const JobFixture& job) {
  Names planners;
  for (const Event& event : job.log) {
    const auto* plan = as<PlanGenerated>(event);
    if (plan != nullptr) planners.push_back(or_empty(plan->planner_version));
  }
  return planners;
}

AE_TEST("plan/a plan records its planner version, also after a replacement or a fork") {
  JobFixture job(
      "[{'id':'a','kind':'tool','tool':'put'},"
      " {'id':'w','kind':'wait','needs':['a'],'wait':{'type':'signal'}}]");
  job.claim().ok("a");
  job.replan(compiled(graph("[{'id':'a','kind':'tool','tool':'put'}]")));
  ASSERT_EQ(job.refused, std::nullopt);
  EXPECT_EQ(planners_of(job), (Names{std::string(kPlannerVersion), std::string(kPlannerVersion)}));
  const JobFixture fork(*job.fork(job.log.size()), "other");
  EXPECT_EQ(planners_of(fork), (Names{std::string(kPlannerVersion)}));
  // A fork of a log without planner_version does not invent one.
  std::get<PlanGenerated>(job.log[1].body).planner_version.reset();
  const JobFixture unknown(*job.fork(2), "third");
  EXPECT_EQ(planners_of(unknown), (Names{""}));
  EXPECT_FALSE(unknown.last<PlanGenerated>().planner_version);
}

}  // namespace
}  // namespace ae::engine::testing
