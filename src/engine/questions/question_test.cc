// Questions during a call: the try ends, a user answers, and the same call
// continues with the answers.
#include "schema/question.h"

#include <fmt/core.h>

#include "engine/fixtures/job_fixture_test.h"
#include "engine/questions/questions.h"
#include "engine/state/checkpoint.h"
#include "inspect/verify.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

using Types = std::vector<std::string>;

constexpr std::string_view kBook = "[{'id':'a', 'kind':'tool', 'tool':'pay'}]";
constexpr std::string_view kHow =
    "{'message':'How many?', 'mode':'form', 'schema':{'type':'object', 'required':['n'],"
    " 'properties':{'n':{'type':'integer', 'minimum':1}}}}";
constexpr std::string_view kGo =
    "{'message':'Sign here', 'mode':'url', 'url':'https://sign.example/1'}";

Outcome input_required(const Value& requests, std::string_view state = "s1") {
  Value questions = Value::object({{"requests", requests}});
  if (!state.empty()) questions = questions.with("state", state);
  return {.kind = OutcomeKind::input_required, .definite = true, .result = questions};
}
Outcome ask_how(std::string_view state = "s1") {
  return input_required(Value::object({{"how", json(kHow)}}), state);
}

JobFixture job_with_question(std::string_view nodes = kBook, const JobFixtureOptions& setup = {}) {
  JobFixture job(nodes, setup);
  job.claim();
  job.answer("a", ask_how());
  return job;
}

JobFixture& fill_in(JobFixture& job, std::string_view node, std::string_view content) {
  return job.send_request({.by = "ann",
                           .body = ApproveRequest{.approval_id = job.open_request_id(node),
                                                  .decision = "approve",
                                                  .arguments = json(content)}});
}

void expect_question_proved(const JobFixture& job) {
  VerifyInput input;
  input.job = job.state.job;
  input.events = job.log;
  input.effects = job.effects;
  const Verification proved = verify(input, uncached_plan_source());
  EXPECT_TRUE(proved.ok) << canonical(proved.to_json());
}

AE_TEST("question/a question ends the try without an unknown outcome, and the job waits") {
  JobFixture job = job_with_question();
  EXPECT_EQ(job.status(), "waiting");
  EXPECT_EQ(job.types("a"), (Types{"node_started", "command_emitted", "tool_invocation_started",
                                   "tool_invocation_finished", "wait_opened", "job_waiting"}));
  const auto finished = job.last<ToolInvocationFinished>();
  EXPECT_EQ(finished.outcome, "input_required");
  EXPECT_EQ(finished.definite, true);
  EXPECT_EQ(finished.result.value["state"], "s1");
  EXPECT_FALSE(job.state.may_have_happened(job.step("a")));
  const auto wait = job.last<WaitOpened>();
  EXPECT_EQ(wait.correlation_key, fmt::format("input/{}#1", job.step("a").id.text));
  EXPECT_EQ(wait.wait_type, "human");
  EXPECT_EQ(to_text(*wait.expires_at), to_text(job.now + 24h));
  const auto listed = approvals_view(job.state);
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0]["kind"], "question");
  EXPECT_EQ(listed[0]["tool"], "pay");
  EXPECT_EQ(listed[0]["question"], json(kHow));
  EXPECT_EQ(job.state.open_tries, 0u);
}

AE_TEST("question/the next try of the same call sends the answer with the state") {
  JobFixture job = job_with_question();
  const std::string key = job.sent.back().external_key;
  fill_in(job, "a", "{'n':3}");
  ASSERT_FALSE(job.refused);
  const auto closed = job.last<WaitCompleted>();
  EXPECT_EQ(closed.outcome, "approved");
  EXPECT_EQ(closed.payload.value, json("{'action':'accept', 'content':{'n':3}}"));
  EXPECT_EQ(closed.by, "ann");
  ASSERT_EQ(job.sent.size(), 2u);
  EXPECT_EQ(job.sent[1].try_no, 2u);
  EXPECT_EQ(job.sent[1].external_key, key);
  EXPECT_EQ(inputs_of(*job.step("a").call),
            json("{'answers':{'how':{'action':'accept', 'content':{'n':3}}}, 'state':'s1'}"));
  EXPECT_EQ(job.ok("a", "{'booked':3}").status(), "completed");
  EXPECT_EQ(job.count(EventType::command_committed), 1u);
  expect_question_proved(job);
}

AE_TEST("question/a rejection and a cancel are passed to the tool, which decides") {
  for (const auto& [payload, action] : {std::pair("{'decision':'reject'}", "decline"),
                                        std::pair("{'action':'cancel'}", "cancel")}) {
    JobFixture job = job_with_question();
    job.signal(job.last<WaitOpened>().correlation_key, payload, "human");
    ASSERT_FALSE(job.refused) << payload;
    EXPECT_EQ(job.last<WaitCompleted>().outcome, "rejected");
    EXPECT_TRUE(job.reply.text("then").ends_with(" gets the rejection as the answer"));
    EXPECT_EQ(inputs_of(*job.step("a").call)["answers"]["how"],
              Value::object({{"action", action}}));
    EXPECT_EQ(job.fails("a", "tool_error").state.error->code, "tool_error");
    expect_question_proved(job);
  }
}

AE_TEST("question/an answer that violates the form is rejected, and the question stays open") {
  JobFixture job = job_with_question();
  const std::size_t before = job.log.size();
  for (const std::string_view content : {"{}", "{'n':0}", "{'n':'many'}", "7"}) {
    fill_in(job, "a", content);
    EXPECT_EQ(job.refused, Code::input_invalid) << content;
  }
  job.approve("a");
  EXPECT_EQ(job.refused, Code::input_invalid) << "no content";
  job.signal(job.last<WaitOpened>().correlation_key, "{'n':3}");
  EXPECT_EQ(job.refused, Code::input_invalid) << "no action";
  EXPECT_EQ(job.log.size(), before);
  EXPECT_EQ(job.status(), "waiting");
}

AE_TEST("question/a field must match its declared format, also by default") {
  JobFixture job(kBook);
  job.claim();
  job.answer("a",
             input_required(json("{'k':{'message':'m', 'mode':'form', 'schema':{'type':'object',"
                                 " 'properties':{'mail':{'type':'string', 'format':'email',"
                                 " 'default':'nobody'}, 'day':{'type':'string', 'format':'date'},"
                                 " 'n':{'type':'integer', 'format':'email'}}}}}")));
  const std::size_t before = job.log.size();
  for (const std::string_view content :
       {"{'mail':'ada'}", "{'mail':'ada@example.org','day':'tomorrow'}"}) {
    fill_in(job, "a", content);
    EXPECT_EQ(job.refused, Code::input_invalid) << content;
  }
  job.approve("a");
  EXPECT_EQ(job.refused, Code::input_invalid) << "defaults must match the format too";
  EXPECT_EQ(job.log.size(), before);
  fill_in(job, "a", "{'mail':'ada@example.org','day':'2026-05-02','n':3}");
  EXPECT_FALSE(job.refused);
}

AE_TEST("question/the action that approves a form has its schema") {
  JobFixture job(kBook);
  job.claim();
  job.answer("a", input_required(json("{'k':{'message':'m', 'mode':'form', 'schema':"
                                      "{'type':'object', 'required':['n']}}}")));
  const Value actions = job_view(job.state)["waits"].items().front()["actions"];
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(actions.items()[0]["act"], "approve");
  EXPECT_EQ(actions.items()[0]["arguments"]["schema"], json("{'type':'object', 'required':['n']}"));
  EXPECT_EQ(actions.items()[1]["act"], "reject");
}

AE_TEST("question/a form approved without changes has its default values") {
  JobFixture job(kBook);
  job.claim();
  job.answer("a", input_required(
                      json("{'k':{'message':'m', 'mode':'form', 'schema':{'type':'object',"
                           " 'properties':{'n':{'type':'integer', 'default':2},"
                           " 'e':{'type':'string', 'enum':['x','y'], 'enumNames':['X','Y']}}}}}")));
  job.approve("a");
  ASSERT_FALSE(job.refused);
  EXPECT_EQ(inputs_of(*job.step("a").call)["answers"]["k"],
            json("{'action':'accept', 'content':{'n':2}}"));
}

AE_TEST("question/several questions are asked one after the other") {
  JobFixture job(kBook);
  job.claim();
  job.answer("a", input_required(Value::object({{"go", json(kGo)}, {"how", json(kHow)}})));
  EXPECT_EQ(approvals_view(job.state)[0]["question"], json(kGo));
  const std::string first = job.open_request_id("a");
  job.approve("a");
  ASSERT_EQ(job.status(), "waiting");
  EXPECT_NE(job.open_request_id("a"), first);
  EXPECT_EQ(approvals_view(job.state)[0]["question"], json(kHow));
  fill_in(job, "a", "{'n':1}");
  EXPECT_EQ(inputs_of(*job.step("a").call)["answers"],
            json("{'go':{'action':'accept'}, 'how':{'action':'accept', 'content':{'n':1}}}"));
  EXPECT_EQ(job.sent.size(), 2u);
  EXPECT_EQ(job.ok("a").status(), "completed");
  expect_question_proved(job);
}

AE_TEST("question/a tool that only returns a state is called again after a pause") {
  JobFixture job(kBook);
  job.claim();
  job.answer("a", input_required(Value::object({}), "later"));
  EXPECT_EQ(job.status(), "running");
  EXPECT_EQ(job.sent.size(), 1u);
  const auto decision = job.last<DecisionRecorded>();
  EXPECT_EQ(decision.kind, "retry");
  EXPECT_EQ(decision.reason, "input_required");
  job.after(10s);
  ASSERT_EQ(job.sent.size(), 2u) << job.log_text();
  EXPECT_EQ(inputs_of(*job.step("a").call), json("{'answers':{}, 'state':'later'}"));
  EXPECT_EQ(job.ok("a").status(), "completed");
  expect_question_proved(job);
}

AE_TEST("question/the newest round counts, and the number of rounds is limited") {
  JobFixture job = job_with_question();
  for (std::uint32_t round = 2; round <= kQuestionRoundsMax; ++round) {
    fill_in(job, "a", fmt::format("{{'n':{}}}", round));
    job.answer("a", ask_how(fmt::format("s{}", round)));
    ASSERT_EQ(job.status(), "waiting") << round;
  }
  fill_in(job, "a", "{'n':99}");
  EXPECT_EQ(inputs_of(*job.step("a").call).text("state"), "s16");
  job.answer("a", ask_how("more"));
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "input_required");
  expect_question_proved(job);
}

AE_TEST("question/each round of answers counts as a call in the budget, its retries do not") {
  JobFixture job = job_with_question("[{'id':'a', 'kind':'tool', 'tool':'put'}]",
                                     {.more = "{'budget':{'tool_calls':2}}"});
  EXPECT_EQ(job.state.budget.spent.tool_calls, 1u);
  fill_in(job, "a", "{'n':3}");
  ASSERT_EQ(job.sent.size(), 2u) << job.log_text();
  EXPECT_EQ(job.state.budget.reserved.tool_calls, 1u);
  job.fails("a", "connect").after(10s);
  ASSERT_EQ(job.sent.size(), 3u) << job.log_text();
  job.answer("a", ask_how("s2"));
  EXPECT_EQ(job.state.budget.spent.tool_calls, 2u);
  fill_in(job, "a", "{'n':4}");
  EXPECT_EQ(job.state.parked_until, "budget") << job.log_text();
  EXPECT_EQ(job.sent.size(), 3u);
  job.raise("{'tool_calls':3}");
  ASSERT_EQ(job.sent.size(), 4u) << job.log_text();
  EXPECT_EQ(inputs_of(*job.step("a").call).text("state"), "s2");
  EXPECT_EQ(job.ok("a").status(), "completed");
  EXPECT_EQ(job.state.budget.spent.tool_calls, 3u);
  expect_question_proved(job);
}

AE_TEST("question/the pauses for a tool that only returns a state grow and are limited in number") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'put'}]");
  job.claim();
  std::vector<Duration> pauses;
  for (std::uint32_t round = 1; round <= kQuestionRoundsMax; ++round) {
    job.answer("a", input_required(Value::object({}), "later"));
    const auto decision = job.last<DecisionRecorded>();
    ASSERT_EQ(decision.kind, "retry") << round;
    pauses.push_back(*decision.not_before - job.now);
    job.after(1min);
    ASSERT_EQ(job.sent.size(), round + 1u) << job.log_text();
  }
  EXPECT_GT(pauses.back(), 5 * pauses.front());
  EXPECT_EQ(job.step("a").call->counted_tries, 1u) << "tries that ask are not counted";
  job.answer("a", input_required(Value::object({}), "later"));
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "input_required");
  expect_question_proved(job);
}

AE_TEST("question/an unanswered question expires, and the tool receives a cancel") {
  JobFixture job =
      job_with_question(kBook, {.more = "{'tools':{'pay':{'effect':'at_most_once',"
                                        " 'on_in_doubt':'park', 'ask_expires':'2h'}}}"});
  EXPECT_EQ(to_text(*job.last<WaitOpened>().expires_at), to_text(job.now + 2h));
  job.after(2h);
  EXPECT_EQ(job.last<WaitCompleted>().outcome, "timed_out");
  EXPECT_EQ(inputs_of(*job.step("a").call)["answers"]["how"], json("{'action':'cancel'}"));
  EXPECT_EQ(job.sent.size(), 2u);
  EXPECT_EQ(job.ok("a").status(), "completed");
  expect_question_proved(job);
}

AE_TEST("question/a crash while a question is open changes nothing, a lost next try is unknown") {
  JobFixture job = job_with_question();
  job.reload();
  EXPECT_EQ(job.status(), "waiting");
  fill_in(job, "a", "{'n':3}");
  ASSERT_EQ(job.sent.size(), 2u);
  job.reload().claim();
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.state.parked_until, "resolve");
  job.resolve("a", "happened", "{'booked':3}");
  EXPECT_EQ(job.status(), "completed");
  expect_question_proved(job);
}

AE_TEST("question/a later try sends the same answers again") {
  JobFixture job = job_with_question("[{'id':'a', 'kind':'tool', 'tool':'put'}]");
  fill_in(job, "a", "{'n':3}");
  const Value inputs = inputs_of(*job.step("a").call);
  job.fails("a", "connect").after(10s);
  ASSERT_EQ(job.sent.size(), 3u);
  EXPECT_EQ(inputs_of(*job.step("a").call), inputs);
  job.unknown("a").after(10s);
  ASSERT_EQ(job.sent.size(), 4u) << "tries that ask are not counted";
  EXPECT_EQ(inputs_of(*job.step("a").call), inputs);
  EXPECT_EQ(job.ok("a").status(), "completed");
  expect_question_proved(job);
}

AE_TEST("question/an answer is not sent to another version of the tool") {
  JobFixture job = job_with_question();
  job.versions.assign(job.plan->tools.size(), "ffffffffffffffff");
  fill_in(job, "a", "{'n':3}");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "tool_changed");
  EXPECT_EQ(job.sent.size(), 1u);
}

AE_TEST("question/a repeated answer is a duplicate, and a different one is not applied") {
  JobFixture job = job_with_question();
  const std::string key(job.last<WaitOpened>().correlation_key);
  job.signal(key, "{'action':'accept', 'content':{'n':3}}");
  ASSERT_FALSE(job.refused);
  const std::size_t before = job.log.size();
  job.signal(key, "{'action':'accept', 'content':{'n':3}}");
  EXPECT_EQ(job.reply["duplicate"], Value(true));
  EXPECT_EQ(job.reply["applied"], Value(true));
  job.signal(key, "{'action':'accept', 'content':{'n':4}}");
  EXPECT_EQ(job.reply["applied"], Value(false));
  EXPECT_EQ(job.log.size(), before);
}

AE_TEST("question/a cancelled job withdraws its question and calls nothing again") {
  JobFixture job = job_with_question();
  job.cancel();
  EXPECT_EQ(job.status(), "cancelled");
  EXPECT_EQ(job.sent.size(), 1u);
  EXPECT_TRUE(approvals_view(job.state).empty());
  EXPECT_EQ(job.state.final_in_doubt, Value()) << "no outcome is unknown";
  expect_question_proved(job);
}

AE_TEST("question/a paused job accepts an answer and continues after the pause") {
  JobFixture job = job_with_question();
  job.pause();
  EXPECT_EQ(job.status(), "parked");
  fill_in(job, "a", "{'n':3}");
  ASSERT_FALSE(job.refused);
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.sent.size(), 1u);
  job.resume();
  EXPECT_EQ(job.sent.size(), 2u);
  EXPECT_EQ(job.ok("a").status(), "completed");
  expect_question_proved(job);
}

AE_TEST("question/other branches continue while a question is open") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'pay'}, {'id':'b', 'kind':'tool', 'tool':'put'}]");
  job.claim();
  job.answer("a", ask_how());
  EXPECT_EQ(job.status(), "running");
  job.ok("b");
  EXPECT_EQ(job.status(), "waiting");
  fill_in(job, "a", "{'n':3}");
  EXPECT_EQ(job.ok("a").status(), "completed");
  expect_question_proved(job);
}

AE_TEST("question/an item of a failed map withdraws its question") {
  JobFixture job(
      "[{'id':'m', 'kind':'map', 'over':'${ .input.l }', 'max_parallel':2,"
      " 'do':{'tool':'pay', 'args':{'n':'${ .item }'}}}]",
      {.input = "{'l':[1,2]}"});
  job.claim();
  job.answer(job.index_of("m/0"), ask_how());
  job.fails("m/1", "http_402");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "http_402");
  EXPECT_EQ(job.count(EventType::wait_completed), 1u);
  EXPECT_EQ(job.last<WaitCompleted>().outcome, "cancelled");
  expect_question_proved(job);
}

AE_TEST("question/an unsupported kind of question is a failure") {
  JobFixture job(kBook);
  job.claim();
  job.answer("a", input_required(json("{'k':{'mode':'sampling', 'message':'m'}}")));
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "input_required");
}

AE_TEST("question/keys of the runtime are reserved, also in old plans") {
  JobFixture job(
      "[{'id':'w', 'kind':'wait', 'wait':{'type':'human', 'key':'input/0123456789abcdef#1'}}]");
  job.claim();
  EXPECT_EQ(job.state.error->code, "correlation_key_reused");
  JobFixture other("[{'id':'w', 'kind':'wait', 'wait':{'type':'human', 'key':'input/x#1'}}]");
  other.claim();
  EXPECT_EQ(other.status(), "waiting") << "as in older plans";
}

AE_TEST("question/a recorded question that is not in the log is imported") {
  JobFixture job(kBook);
  job.claim();
  job.decides = false;
  job.reload();
  job.decides = true;
  job.store_effect("a", ask_how(), Arrival::in_time);
  EXPECT_EQ(job.last<ToolInvocationFinished>().caught_up, true);
  EXPECT_EQ(job.last<WaitOpened>().reason, "input_required");
  expect_question_proved(job);
}

AE_TEST("question/a late question decides its unknown call and is asked") {
  JobFixture job(kBook);
  job.claim().crash();
  ASSERT_EQ(job.state.parked_until, "resolve");
  job.store_effect("a", ask_how());
  EXPECT_EQ(job.last<ToolInvocationFinished>().outcome, "input_required");
  EXPECT_EQ(job.status(), "waiting") << job.log_text();
  EXPECT_EQ(job.last<WaitOpened>().reason, "input_required");
  fill_in(job, "a", "{'n':3}");
  ASSERT_EQ(job.sent.size(), 2u) << job.log_text();
  EXPECT_EQ(job.ok("a", "{'booked':3}").status(), "completed");
  expect_question_proved(job);
}

AE_TEST("question/a late question after a not_happened resolution is asked") {
  JobFixture job(kBook);
  job.claim().crash().after(2min);
  ASSERT_EQ(job.state.parked_until, "resolve");
  job.decides = false;
  job.resolve("a", "not_happened");
  ASSERT_FALSE(job.refused);
  job.decides = true;
  job.store_effect("a", ask_how());
  EXPECT_EQ(job.status(), "waiting") << job.log_text();
  fill_in(job, "a", "{'n':3}");
  ASSERT_EQ(job.sent.size(), 2u) << job.log_text();
  EXPECT_EQ(job.ok("a", "{'booked':3}").status(), "completed");
  expect_question_proved(job);
}

AE_TEST("question/a checkpoint at any event folds to the same state") {
  JobFixture job = job_with_question();
  fill_in(job, "a", "{'n':3}");
  job.ok("a", "{'booked':3}");
  for (std::size_t n = 1; n <= job.log.size(); ++n) {
    const State then = job.folded(n);
    if (!then.plan) continue;
    auto back = restore(job.state.job, n, checkpoint(then, Hash{}), uncached_plan_source());
    ASSERT_TRUE(back.has_value()) << n;
    for (std::size_t i = n; i < job.log.size(); ++i) {
      ASSERT_TRUE(
          apply(back->state, job.log[i].body, job.log[i].created_at, uncached_plan_source()))
          << n;
    }
    EXPECT_EQ(state_view(back->state), state_view(job.state)) << n;
  }
}

}  // namespace
}  // namespace ae::engine::testing
