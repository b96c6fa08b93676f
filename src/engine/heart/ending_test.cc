// Jobs with one unknown outcome end: by cancel, deadline, lost attempts or completion.
#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "engine/fixtures/job_fixture_test.h"
#include "engine/heart/ending_fixture_test.h"
#include "engine/heart/side_record.h"
#include "engine/loop/loop_fixture_test.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

constexpr std::string_view kOneStep = "[{'id':'a','kind':'tool','tool':'do'}]";

JobFixture one_tool(std::string_view tool, std::optional<Duration> deadline = {}) {
  const std::string more =
      "{'tools':{'undo':{'effect':'idempotent'},'do':" + std::string(tool) + "}}";
  JobFixture job(kOneStep, {.more = more, .deadline = deadline});
  job.waits_for_settling = true;
  return job;
}

constexpr std::string_view kUndoable =
    "{'effect':'at_most_once','on_in_doubt':'park','compensate':{'tool':'undo'}}";
constexpr std::string_view kResent =
    "{'effect':'idempotent','retry':{'max_attempts':2,'retry_on':['timeout']},"
    "'dedupe_window':'1h','compensate':{'tool':'undo'}}";

constexpr std::string_view kChanging =
    "{'tools':{'undo':{'effect':'idempotent'},"
    "'mark':{'effect':'idempotent','changes':[{'type':'doc','id':'${ .result.id }','op':'edit',"
    "'version':'${ .result.v }'}]},"
    "'sign':{'effect':'at_most_once','on_in_doubt':'park','changes':[{'type':'doc',"
    "'id':'${ .result.id }','op':'edit','version':'${ .result.v }'}]},"
    "'slow':{'effect':'at_most_once','on_in_doubt':'park','timeout':'600s'},"
    "'book':{'effect':'idempotent','retry':{'max_attempts':3,'retry_on':['timeout']},"
    "'compensate':{'tool':'undo'}}}}";

AE_TEST("ending/a deadline ends a job that is parked for resolve after its process died") {
  JobFixture job("[{'id':'a','kind':'tool','tool':'pay'}]", {.deadline = 1h});
  const EventBody resumed{JobResumed{.by = "runtime"}};
  job.claim().reload();
  job.add({requeued_event(kProcessDied, std::nullopt)});
  job.claim();
  ASSERT_EQ(job.state.parked_until, "resolve") << job.log_text();
  ASSERT_EQ(job.state.process_deaths, 1u);
  State parked = job.folded(job.log.size());
  EXPECT_FALSE(apply(parked, resumed, job.now, uncached_plan_source())) << "the job does not end";
  job.after(2h);
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  EXPECT_EQ(job.last<JobResumed>().by, "runtime");
  EXPECT_EQ(job.last<JobFailed>().code, "deadline_exceeded");
  EXPECT_EQ(listed(job), std::set{job.sent[0].key});
  expect_log_verifies(job);
  JobFixture waiting_job = one_tool(kUndoable);
  waiting_job.claim();
  crash_and_claim(waiting_job).cancel();  // parked again, for a call that could be undone
  State waits = waiting_job.folded(waiting_job.log.size());
  EXPECT_FALSE(apply(waits, resumed, waiting_job.now, uncached_plan_source()))
      << "an operator must resolve the call";
}

AE_TEST("ending/a deadline passes while a change is unknown and another call is resent") {
  JobFixture job(
      "[{'id':'w','kind':'tool','tool':'mark'},{'id':'x','kind':'tool','tool':'sign','needs':['w']}"
      ","
      "{'id':'y','kind':'tool','tool':'book','needs':['w']}]",
      {.more = kChanging, .deadline = 1h});
  job.claim().ok("w", "{'id':'d','v':1}").times_out("y").crash();
  ASSERT_EQ(job.state.parked_until, "resolve") << job.log_text();
  job.after(2h);
  ASSERT_EQ(job.tries("y"), 2u) << job.log_text();
  job.ok("y");
  ASSERT_EQ(job.status(), "parked") << "x is resolved before y is compensated\n" << job.log_text();
  job.resolve("x", "fail").ok("y/compensate");
  EXPECT_EQ(job.last<JobFailed>().code, "deadline_exceeded") << job.log_text();
  EXPECT_EQ(listed(job), std::set{job.state.key_of(job.step("x")).text.string()});
  expect_log_verifies(job);
}

AE_TEST("ending/a deadline ends a parked job of a shared store although a call is still open") {
  JobFixture job(
      "[{'id':'w','kind':'tool','tool':'mark'},{'id':'x','kind':'tool','tool':'sign','needs':['w']}"
      ","
      "{'id':'z','kind':'tool','tool':'slow','needs':['w']}]",
      {.more = kChanging, .deadline = 5min});
  job.owned = false;
  job.claim().ok("w", "{'id':'d','v':1}").crash().after(61s);
  ASSERT_EQ(job.state.parked_until, "resolve") << job.log_text();
  job.after(5min);
  EXPECT_EQ(job.status(), "running") << "a worker must claim the job to end it\n" << job.log_text();
  job.after(10min);
  EXPECT_EQ(job.status(), "failed") << job.log_text();
}

AE_TEST("ending/a cancelled job parks for an unknown call that can be compensated") {
  JobFixture job = one_tool(kUndoable);
  job.claim();
  crash_and_claim(job).cancel();
  ASSERT_EQ(job.status(), "parked") << job.log_text();
  EXPECT_EQ(job.state.parked_until, "resolve");
  job.resolve("a", "happened", "'A'").ok("a/compensate");
  EXPECT_EQ(job.status(), "cancelled");
  EXPECT_EQ(job.last<JobCancelled>().compensated.json().size(), 1u);
  EXPECT_TRUE(job.last<JobCancelled>().in_doubt.is_null());
}

AE_TEST("ending/a cancel with compensate: false ends at once and lists the unknown call") {
  JobFixture job = one_tool(kUndoable);
  job.claim();
  crash_and_claim(job).cancel("", false);
  EXPECT_EQ(job.status(), "cancelled") << job.log_text();
  EXPECT_EQ(listed(job), std::set{job.sent[0].key});
}

AE_TEST("ending/with on_in_doubt: fail a cancel ends at once and lists the unknown call") {
  JobFixture job =
      one_tool("{'effect':'at_most_once','on_in_doubt':'fail','compensate':{'tool':'undo'}}");
  job.claims_when_free = false;
  job.claim().reload();
  job.add({requeued_event("drain", std::nullopt)});
  job.cancel();
  EXPECT_EQ(job.status(), "cancelled") << job.log_text();
  EXPECT_EQ(listed(job), std::set{job.sent[0].key});
}

AE_TEST("ending/a resend keeps the keys and the arguments of the call") {
  JobFixture job = one_tool(kResent);
  job.claim();
  crash_and_claim(job).cancel();
  ASSERT_EQ(job.sent.size(), 2u) << job.log_text();
  EXPECT_EQ(job.sent[1].external_key, job.sent[0].external_key);
  EXPECT_EQ(job.sent[1].arguments, job.sent[0].arguments);
  EXPECT_EQ(job.sent[1].try_no, 2u);
}

AE_TEST("ending/a resend respects max_attempts, the dedupe window and the tool version") {
  {
    JobFixture job = one_tool(kResent);  // 2 tries
    job.claim().times_out("a").after(1s).times_out("a");
    EXPECT_EQ(job.status(), "parked") << job.log_text();
    job.cancel();
    EXPECT_EQ(job.tries("a"), 2u) << job.log_text();
    EXPECT_EQ(job.status(), "parked");
  }
  {
    JobFixture job = one_tool(kResent, 2h);
    job.claim();
    crash_and_claim(job).after(3h);
    EXPECT_EQ(job.tries("a"), 1u) << "the dedupe window has passed";
    EXPECT_EQ(job.status(), "parked") << job.log_text();
  }
  {
    JobFixture job = one_tool(kResent);
    job.claim();
    crash_and_claim(job);
    job.versions.assign(job.state.plan->tools.size(), "fedcba9876543210");
    job.cancel();
    EXPECT_EQ(job.tries("a"), 1u) << "the tool has changed";
    EXPECT_EQ(job.status(), "parked") << job.log_text();
  }
}

AE_TEST("ending/a call of another worker is not resent before its grace period ends") {
  JobFixture job = one_tool(kResent);
  job.owned = false;
  job.claim();
  crash_and_claim(job).cancel();
  EXPECT_EQ(job.tries("a"), 1u) << job.log_text();
  job.after(39s);
  EXPECT_EQ(job.tries("a"), 1u) << job.log_text();
  job.after(2s);  // the lease and the grace period
  EXPECT_EQ(job.tries("a"), 2u) << job.log_text();
  job.ok("a").ok("a/compensate");
  EXPECT_EQ(job.status(), "cancelled");
}

AE_TEST("ending/an unknown call without compensation does not delay the end") {
  JobFixture job("[{'id':'a','kind':'tool','tool':'do'},{'id':'p','kind':'tool','tool':'pay'}]",
                 {.more = "{'tools':{'undo':{'effect':'idempotent'},'do':{'effect':'at_most_once',"
                          "'on_in_doubt':'park','compensate':{'tool':'undo'}}}}"});
  job.waits_for_settling = true;
  job.claim();
  crash_and_claim(job).cancel();
  ASSERT_EQ(job_view(job.state)["in_doubt"].size(), 1u) << "only `a` needs a resolution";
  job.resolve("a", "not_happened");
  EXPECT_EQ(job.status(), "cancelled") << job.log_text();
  EXPECT_EQ(listed(job), std::set{job.state.key_of(job.step("p")).text.string()});
}

AE_TEST("ending/a job that waits only for an unknown call keeps the reason of its end") {
  JobFixture job = one_tool(kResent);
  job.limits.lost_claims_max = 3;
  job.claim().crash().crash().crash();
  ASSERT_TRUE(job.state.ending.has_value()) << job.log_text();
  EXPECT_EQ(job.state.ending->code, "max_attempts");
  job.crash().crash().crash();
  EXPECT_EQ(job.status(), "parked") << "the call that ends each attempt needs an operator\n"
                                    << job.log_text();
  job.resolve("a", "not_happened");
  EXPECT_EQ(job.last<JobFailed>().code, "max_attempts") << job.log_text();
}

AE_TEST("ending/a completed job lists the calls whose outcome stayed unknown") {
  const std::pair<std::string_view, std::string_view> places[] = {
      {"[{'id':'a','kind':'tool','tool':'risk','on_error':'continue'}]", "a"},
      {"[{'id':'a','kind':'map','over':[1],'max_parallel':1,'do':{'tool':'risk'},'on_item_error':'"
       "collect'}]",
       "a/0"}};
  for (const auto& [nodes, call] : places) {
    JobFixture job(nodes);
    job.claim().unknown(call);
    ASSERT_EQ(job.status(), "completed") << job.log_text();
    EXPECT_EQ(listed(job), std::set{job.sent[0].key});
    EXPECT_EQ(schema_of(job.last<JobCompleted>()), 2);
    ASSERT_EQ(job_view(job.state)["in_doubt"].size(), 1u);
    expect_log_verifies(job);
  }
}

AE_TEST("ending/a job that continues after a loop with an unknown call lists it at the end") {
  JobFixture job(
      "[{'id':'chat','kind':'loop','on_error':'continue','loop':{'tool':'model:main',"
      "'model':'small','prompt':'Hi','tools':['risk'],'max_turns':5,'parallel_tools':1}}]",
      {.more = kTools});
  job.claim().ok("chat/0", tool_calls_answer({{"c1", "risk"}})).unknown("chat/0/0");
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(listed(job), std::set{job.sent[1].key});
}

AE_TEST("ending/a call resolved as fail is listed when the job completes") {
  JobFixture job("[{'id':'a','kind':'tool','tool':'pay','on_error':'continue'}]");
  job.claim().unknown("a").resolve("a", "fail");
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(listed(job), std::set{job.sent[0].key});
  EXPECT_EQ(job_view(job.state)["in_doubt"].items()[0]["reason"], Value("unknown"));
}

AE_TEST("ending/a job without unknown calls writes job_completed in schema 1") {
  JobFixture job(kOneStep, {.more = "{'tools':{'do':{}}}"});
  job.claim().ok("a");
  EXPECT_TRUE(job.last<JobCompleted>().in_doubt.is_null());
  EXPECT_EQ(schema_of(job.last<JobCompleted>()), 1);
}

AE_TEST("ending/a waiting job shows an abandoned call and does not park for it") {
  JobFixture job(kRiskThenWait);
  job.claim().unknown("a");
  ASSERT_EQ(job.status(), "waiting") << job.log_text();
  const Value unknown_call = unknown_call_of(job);
  EXPECT_EQ(unknown_call["given_up"], Value(true));
  EXPECT_EQ(unknown_call["idempotency_key"], Value(job.sent[0].key));
  EXPECT_EQ(unknown_call["actions"], json("[]"));
  job.pause();
  EXPECT_EQ(job_view(job.state)["parked"]["action"],
            json("{'act':'resume','arguments':{'job_id':'job-1'},'choices':[]}"));
  job.resume().signal("k");
  EXPECT_EQ(listed(job), std::set{job.sent[0].key});
}

AE_TEST("ending/unknown calls are listed before abandoned ones") {
  JobFixture job(
      "[{'id':'a','kind':'tool','tool':'risk','on_error':'continue'},"
      "{'id':'b','kind':'tool','tool':'pay','needs':['a']}]");
  job.claim().unknown("a").unknown("b");
  ASSERT_EQ(job.status(), "parked") << job.log_text();
  const Value view = job_view(job.state);
  ASSERT_EQ(view["in_doubt"].size(), 2u);
  EXPECT_EQ(view["in_doubt"].items()[0]["node_id"], Value("b"));
  EXPECT_EQ(view["in_doubt"].items()[0]["given_up"], Value(false));
  EXPECT_EQ(view["in_doubt"].items()[1]["node_id"], Value("a"));
  EXPECT_EQ(view["parked"]["action"], view["in_doubt"].items()[0]["actions"].items()[0]);
}

AE_TEST("ending/an abandoned call that a new plan drops is still listed") {
  JobFixture job(kRiskThenWait);
  job.claim();
  const SentTry sent = sent_try_of(job.state, job.step("a"));
  job.unknown("a").replan(
      compiled(graph("[{'id':'z','kind':'wait','wait':{'type':'signal','key':'z'}}]")), {"a"});
  ASSERT_EQ(job.refused, std::nullopt) << job.refusal;
  ASSERT_EQ(job.status(), "waiting") << job.log_text();
  const std::string key = job.sent[0].key;
  Value unknown_call = unknown_call_of(job);
  EXPECT_EQ(unknown_call["idempotency_key"], Value(key));
  EXPECT_EQ(unknown_call["tool"], Value("risk"));
  EXPECT_EQ(unknown_call["node_id"], Value("a"));
  EXPECT_EQ(unknown_call["arguments"], json("{'n':1}"));
  EXPECT_EQ(unknown_call["given_up"], Value(true));
  expect_log_verifies(job);
  job.reload().signal("z");
  ASSERT_EQ(job.status(), "completed");
  EXPECT_EQ(listed(job), std::set{key});
  expect_log_verifies(job);
  const auto text_answer = [&](std::string_view resolution) {
    return job
        .send_request(
            {.body = ResolveRequest{.idempotency_key = key, .resolution = std::string(resolution)}})
        .refused;
  };
  EXPECT_EQ(text_answer("not_happened"), Code::not_settled);
  job.after(2min);
  EXPECT_EQ(text_answer("not_happened"), std::nullopt);
  EXPECT_EQ(unknown_call_of(job)["noted"]["resolution"], Value("not_happened"));
  job.store_effect(sent, succeeded());
  EXPECT_EQ(job.count(EventType::outcome_noted), 1u) << "one note for each call";
  expect_log_verifies(job);
}

}  // namespace
}  // namespace ae::engine::testing
