// Forks of loops: an unfinished or failed loop continues with its completed turns, and
// repeats no recorded call.
#include <set>

#include "engine/loop/loop_fixture_test.h"
#include "engine/state/checkpoint.h"
#include "inspect/trace.h"
#include "inspect/view.h"

namespace ae::engine::testing {
namespace {

void expect_whole_loop(const JobFixture& job) {
  expect_verified(job);
  EXPECT_EQ(state_view(job.folded(job.log.size())), state_view(job.state));
  auto restored =
      restore(job.state.job, job.state.seq, checkpoint(job.state, Hash{}), uncached_plan_source());
  ASSERT_TRUE(restored) << restored.error().message;
  EXPECT_EQ(state_view(restored->state), state_view(job.state));
}

Fork retried_loop(const JobFixture& job) {
  const auto point = retry_point(job.state, job.log);
  AE_CHECK(point.has_value(), job.log_text());
  auto fork = job.fork(*point);
  AE_CHECK(fork.has_value(), fork ? "" : fork.error().message);
  return *std::move(fork);
}

// A loop whose model is unreachable at its third turn.
JobFixture job_with_unreachable_model(std::string_view more = "", JobFixtureOptions setup = {}) {
  JobFixture job = loop_job(more, setup);
  job.claim().ok("chat/0",
                 tool_calls_answer({{"a", "put", "{'v': 1}"}, {"b", "nope"}, {"c", "pay", "{}"}}));
  job.ok("chat/0/0", "'one'").ok("chat/0/2", "'paid'");
  job.ok("chat/1", tool_calls_answer({{"d", "look"}})).fails("chat/1/0").fails("chat/2", "connect");
  AE_CHECK(job.status() == "failed", job.log_text());
  return job;
}

std::string tools_sent(const JobFixture& job) {
  std::string text;
  for (const JobFixture::SentTry& one : job.sent) text += (text.empty() ? "" : " ") + one.tool;
  return text;
}

AE_TEST("loop fork/a retry after an unreachable model repeats no recorded call") {
  JobFixture reference = loop_job();
  reference.claim().ok(
      "chat/0", tool_calls_answer({{"a", "put", "{'v': 1}"}, {"b", "nope"}, {"c", "pay", "{}"}}));
  reference.ok("chat/0/0", "'one'").ok("chat/0/2", "'paid'");
  reference.ok("chat/1", tool_calls_answer({{"d", "look"}})).fails("chat/1/0");
  const Value undisturbed = request(reference, "chat/2");
  reference.ok("chat/2", text_answer("Done"));

  JobFixture origin = job_with_unreachable_model();
  const Fork fork = retried_loop(origin);
  EXPECT_TRUE(fork.effects.empty()) << canonical(Value::array(fork.effects));
  JobFixture job(fork, "job-2");
  expect_whole_loop(job);
  job.claim();
  ASSERT_EQ(tools_sent(job), "model:main") << job.log_text();
  EXPECT_EQ(request(job, "chat/2"), undisturbed);
  EXPECT_EQ(job.step("chat/2").call->arguments, origin.sent.back().arguments);
  EXPECT_NE(job.sent[0].key, origin.sent.back().key);
  EXPECT_NE(job.sent[0].external_key, origin.sent.back().external_key);
  EXPECT_EQ(job.step("chat/0/0").id, origin.step("chat/0/0").id);
  expect_whole_loop(job);
  job.ok("chat/2", text_answer("Done"));
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.state.result, reference.state.result);
  const Value loop = trace_view(job.state, job.log)["nodes"].items()[0];
  const Value calls = loop["items"].items()[0]["calls"];
  ASSERT_EQ(calls.size(), 3u) << "the trace has the calls of the origin";
  EXPECT_EQ(calls.items()[1]["error"].text("code"), "tool_not_granted");
  EXPECT_EQ(job.state.result["chat"]["turns"], Value(3));
  expect_whole_loop(job);
}

AE_TEST("loop fork/a fork at any event makes only unrecorded calls and lists what it repeats") {
  JobFixture origin = job_with_unreachable_model();
  for (std::uint64_t at = 2; at <= origin.log.size(); ++at) {
    SCOPED_TRACE(at);
    const auto fork = origin.fork(at);
    ASSERT_TRUE(fork) << fork.error().message;
    JobFixture job(*fork, "job-2");
    expect_whole_loop(job);
    std::set<std::string> listed;
    for (const Value& effect : fork->effects) listed.emplace(effect.text("step_id"));
    for (const std::string_view call : {"chat/0/0", "chat/0/2"}) {
      const StepId& id = origin.step(call).id;
      EXPECT_EQ(job.state.find_step(id) != nullptr, !listed.contains(id.text)) << call;
    }
    job.claim();
    expect_whole_loop(job);
    const auto has_call = [&](std::uint32_t turn, std::uint32_t nth = kNoTurn) {
      return std::ranges::any_of(job.state.steps, [&](const Step& one) {
        return one.turn == turn && one.nth == nth && one.call && one.call->open;
      });
    };
    if (has_call(0)) {
      job.ok("chat/0",
             tool_calls_answer({{"a", "put", "{'v': 1}"}, {"b", "nope"}, {"c", "pay", "{}"}}));
    }
    if (has_call(0, 0)) job.ok("chat/0/0", "'one'");
    if (has_call(0, 2)) job.ok("chat/0/2", "'paid'");
    if (has_call(1)) job.ok("chat/1", tool_calls_answer({{"d", "look"}}));
    if (has_call(1, 0)) job.fails("chat/1/0");
    job.ok("chat/2", text_answer("Done"));
    EXPECT_EQ(job.status(), "completed") << job.log_text();
    EXPECT_EQ(job.state.result["chat"]["turns"], Value(3));
    expect_whole_loop(job);
  }
}

AE_TEST("loop fork/a crash at any commit does not change the result") {
  JobFixture origin = job_with_unreachable_model();
  for (int crash = 0; crash < 4; ++crash) {
    SCOPED_TRACE(crash);
    JobFixture job(retried_loop(origin), "job-2");
    if (crash == 0) job.reload();
    job.claim();
    if (crash == 1) job.crash();
    job.ok("chat/2", tool_calls_answer({{"e", "put", "{'v': 2}"}}));
    if (crash == 2) job.crash();
    job.ok("chat/2/0", "'two'");
    if (crash == 3) job.crash();
    job.ok("chat/3", text_answer("Done"));
    EXPECT_EQ(job.status(), "completed") << job.log_text();
    EXPECT_EQ(job.state.result["chat"]["turns"], Value(4));
    EXPECT_EQ(tools_sent(job).find("pay"), std::string::npos);
    expect_whole_loop(job);
  }
}

AE_TEST("loop fork/a fork of a fork continues where the first fork stopped") {
  JobFixture origin = job_with_unreachable_model();
  JobFixture second(retried_loop(origin), "job-2");
  second.claim()
      .ok("chat/2", tool_calls_answer({{"e", "put", "{'v': 2}"}}))
      .ok("chat/2/0", "'two'");
  second.fails("chat/3");
  ASSERT_EQ(second.status(), "failed");
  const Fork fork = retried_loop(second);
  EXPECT_TRUE(fork.effects.empty()) << canonical(Value::array(fork.effects));
  JobFixture third(fork, "job-3");
  third.claim();
  ASSERT_EQ(tools_sent(third), "model:main");
  EXPECT_EQ(third.step("chat/0/0").id, origin.step("chat/0/0").id);
  EXPECT_EQ(third.step("chat/2/0").id, second.step("chat/2/0").id);
  EXPECT_EQ(request(third, "chat/3")["messages"].size(), 10u);
  third.ok("chat/3", text_answer("Done"));
  EXPECT_EQ(third.status(), "completed");
  expect_whole_loop(third);
}

AE_TEST("loop fork/an answer that failed the loop is requested again, earlier ones are not") {
  const std::string_view schema = ", 'schema': {'type': 'object', 'required': ['n']}";
  JobFixture origin = loop_job(schema);
  origin.claim()
      .ok("chat/0", tool_calls_answer({{"a", "put"}}))
      .ok("chat/0/0", "1")
      .ok("chat/1", text_answer("no"));
  ASSERT_EQ(origin.status(), "failed") << origin.log_text();
  const Fork fork = retried_loop(origin);
  EXPECT_TRUE(fork.effects.empty());
  JobFixture job(fork, "job-2");
  job.claim();
  ASSERT_EQ(tools_sent(job), "model:main");
  EXPECT_EQ(job.step("chat/1").turn, 1u);
  job.ok("chat/1", R"({"text": "{\"n\": 1}", "finish_reason": "stop"})");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.state.result["chat"]["json"], json("{'n': 1}"));
  expect_whole_loop(job);

  JobFixture long_one = loop_job(", 'max_turns': 2");
  long_one.claim().ok("chat/0", tool_calls_answer({{"a", "put"}})).ok("chat/0/0", "1");
  long_one.ok("chat/1", tool_calls_answer({{"b", "put"}}));
  ASSERT_EQ(long_one.state.error->code, "turns_limit");
  JobFixture again(retried_loop(long_one), "job-2");
  again.claim();
  ASSERT_EQ(tools_sent(again), "model:main");
  again.ok("chat/1", text_answer("Done"));
  EXPECT_EQ(again.status(), "completed") << again.log_text();
  expect_whole_loop(again);
}

AE_TEST("loop fork/a loop that ran out of turns continues under a plan with more turns") {
  JobFixture origin = loop_job(", 'max_turns': 2");
  origin.claim().ok("chat/0", tool_calls_answer({{"a", "put"}})).ok("chat/0/0", "1");
  origin.ok("chat/1", tool_calls_answer({{"b", "put"}}));
  ASSERT_EQ(origin.state.error->code, "turns_limit");
  JobFixture job(retried_loop(origin), "job-2");
  const std::string more =
      "[{'id': 'y', 'kind': 'tool', 'tool': 'look'}, " + chat_node(", 'max_turns': 9").substr(1);
  job.replan(compiled(graph(more, kTools)));
  ASSERT_FALSE(job.refused) << job.log_text();
  expect_whole_loop(job);
  job.claim().ok("y");
  EXPECT_EQ(tools_sent(job), "look model:main");
  job.ok("chat/1", tool_calls_answer({{"b", "put"}}))
      .ok("chat/1/0", "2")
      .ok("chat/2", text_answer("Done"));
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.state.result["chat"]["turns"], Value(3));
  EXPECT_EQ(tools_sent(job), "look model:main put model:main");
  expect_whole_loop(job);
  // Another system prompt is another loop: its effects must be named.
  JobFixture other(retried_loop(origin), "job-3");
  std::string kinder = chat_node(", 'max_turns': 2");
  kinder.replace(kinder.find("Be kind"), 7, "Be rude");
  other.replan(compiled(graph(kinder, kTools)));
  EXPECT_EQ(other.refused, Code::plan_invalid);
  other.replan(compiled(graph(kinder, kTools)), {"chat"});
  EXPECT_FALSE(other.refused);
  other.claim();
  EXPECT_EQ(tools_sent(other), "model:main");
  EXPECT_EQ(other.state.steps.size(), 2u) << "the turns of the first plan are dropped";
  expect_whole_loop(other);
}

// A loop next to a tool node.
JobFixture beside_pay() {
  JobFixture job("[{'id': 'b', 'kind': 'tool', 'tool': 'pay'}, " + chat_node().substr(1),
                 {.more = kTools, .input = "{'message': 'Hello'}"});
  job.claim();
  return job;
}

AE_TEST("loop fork/a retry keeps a loop whose job failed at a parallel node") {
  JobFixture origin = beside_pay();
  origin.ok("chat/0", tool_calls_answer({{"a", "put", "{'v': 1}"}}))
      .ok("chat/0/0", "'one'")
      .fails("b");
  origin.ok("chat/1", tool_calls_answer({{"c", "put", "{'v': 2}"}}));
  ASSERT_EQ(origin.status(), "failed") << origin.log_text();
  const Fork fork = retried_loop(origin);
  EXPECT_TRUE(fork.effects.empty()) << canonical(Value::array(fork.effects));
  JobFixture job(fork, "job-2");
  expect_whole_loop(job);
  job.claim().ok("b");
  EXPECT_EQ(tools_sent(job), "pay put") << "both turns are kept, and the missing call is made";
  job.ok("chat/1/0", "'two'").ok("chat/2", text_answer("Done"));
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(tools_sent(job), "pay put model:main");
  expect_whole_loop(job);
}

AE_TEST("loop fork/a retry of a failed loop keeps what a parallel node committed later") {
  JobFixture origin = beside_pay();
  origin.ok("chat/0", tool_calls_answer({{"a", "put", "{'v': 1}"}})).ok("chat/0/0", "'one'");
  origin.fails("chat/1", "connect").ok("b", "'paid'");
  ASSERT_EQ(origin.status(), "failed") << origin.log_text();
  const Fork fork = retried_loop(origin);
  EXPECT_TRUE(fork.effects.empty()) << canonical(Value::array(fork.effects));
  JobFixture job(fork, "job-2");
  // Also under a plan that changes the loop's limit.
  job.replan(compiled(graph(
      "[{'id': 'b', 'kind': 'tool', 'tool': 'pay'}, " + chat_node(", 'max_turns': 9").substr(1),
      kTools)));
  ASSERT_FALSE(job.refused) << job.log_text();
  job.claim().ok("chat/1", text_answer("Done"));
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(tools_sent(job), "model:main");
  expect_whole_loop(job);
}

AE_TEST("loop fork/a call whose tool asked an unanswered question is made again") {
  JobFixture origin = loop_job();
  origin.claim().ok("chat/0", tool_calls_answer({{"a", "risk"}, {"b", "put"}}));
  origin.answer("chat/0/1",
                {.kind = OutcomeKind::input_required,
                 .definite = true,
                 .result = json("{'requests': {'how': {'message': 'How many?', 'mode': 'form',"
                                " 'schema': {'type': 'object', 'properties': {'n': {'type':"
                                " 'integer'}}}}}}")});
  ASSERT_EQ(origin.state.waits.size(), 1u) << origin.log_text();
  origin.times_out("chat/0/0");
  ASSERT_EQ(origin.status(), "failed") << origin.log_text();
  JobFixture job(retried_loop(origin), "job-2");
  job.claim();
  EXPECT_EQ(tools_sent(job), "risk put");
  expect_whole_loop(job);
}

AE_TEST("loop fork/an unknown call is listed before it is repeated, and its turn is kept") {
  JobFixture origin = loop_job();
  origin.claim().ok("chat/0", tool_calls_answer({{"a", "risk"}, {"b", "put"}}));
  origin.ok("chat/0/1", "1").times_out("chat/0/0");
  ASSERT_EQ(origin.status(), "failed") << origin.log_text();
  const Fork fork = retried_loop(origin);
  ASSERT_EQ(fork.effects.size(), 1u);
  EXPECT_EQ(fork.effects[0]["step_id"], Value(origin.step("chat/0/0").id.text));
  EXPECT_EQ(fork.effects[0].text("state"), "in_doubt");
  JobFixture job(fork, "job-2");
  job.claim();
  ASSERT_EQ(tools_sent(job), "risk");
  job.ok("chat/0/0", "7");
  EXPECT_EQ(last_message(job, "chat/1", 2)["content"], Value("7"));
  EXPECT_EQ(last_message(job, "chat/1", 1)["content"], Value("1"));
  job.ok("chat/1", text_answer("Done"));
  EXPECT_EQ(job.status(), "completed");
  expect_whole_loop(job);
}

AE_TEST("loop fork/a fork continues before the first turn with a compensated call") {
  JobFixture origin = loop_job();
  origin.claim().ok("chat/0", tool_calls_answer({{"a", "put"}})).ok("chat/0/0", "1");
  origin.ok("chat/1", tool_calls_answer({{"b", "book"}, {"c", "put"}})).ok("chat/1/0", "'seat'");
  origin.ok("chat/1/1", "2").ok("chat/2", tool_calls_answer({{"d", "put"}})).ok("chat/2/0", "3");
  origin.fails("chat/3").ok("chat/1/0/compensate");
  ASSERT_EQ(origin.status(), "failed") << origin.log_text();
  const Fork fork = retried_loop(origin);
  ASSERT_EQ(fork.effects.size(), 2u) << canonical(Value::array(fork.effects));
  EXPECT_EQ(fork.effects[0].text("state"), "undone");
  EXPECT_EQ(fork.effects[1]["step_id"], Value(origin.step("chat/2/0").id.text));
  JobFixture job(fork, "job-2");
  job.claim();
  EXPECT_EQ(tools_sent(job), "book");
  job.ok("chat/1/0", "'seat 2'");
  EXPECT_EQ(tools_sent(job), "book model:main");
  job.ok("chat/2", text_answer("Done"));
  EXPECT_EQ(job.status(), "completed");
  expect_whole_loop(job);
}

AE_TEST("loop fork/rejections and edits of approvers are sent to the model unchanged") {
  JobFixture origin = loop_job();
  origin.claim().ok("chat/0",
                    tool_calls_answer({{"a", "refund", "{'n': 1}"}, {"b", "refund", "{'n': 2}"}}));
  origin.reject("chat/0/0");
  origin.send_request({.by = "ann",
                       .body = ApproveRequest{.approval_id = origin.open_request_id("chat/0/1"),
                                              .decision = "approve",
                                              .arguments = json("{'n': 3}")}});
  origin.ok("chat/0/1", "'back'");
  const Value recorded_request = request(origin, "chat/1");
  origin.fails("chat/1");
  ASSERT_EQ(origin.status(), "failed") << origin.log_text();
  const Fork fork = retried_loop(origin);
  EXPECT_TRUE(fork.effects.empty());
  JobFixture job(fork, "job-2");
  job.claim();
  ASSERT_EQ(tools_sent(job), "model:main") << job.log_text();
  EXPECT_EQ(request(job, "chat/1"), recorded_request);
  expect_whole_loop(job);
}

AE_TEST("loop fork/a fork has the rest of its origin's budget and reserves like one job") {
  JobFixtureOptions budget{.more = "", .input = "{'message': 'Hello'}"};
  const std::string more = std::string(kTools.substr(0, kTools.size() - 1)) +
                           ", 'budget': {'tokens': 100000, 'model_calls': 9, 'tool_calls': 3}}";
  budget.more = more;
  JobFixture reference = loop_job("", budget);
  reference.claim().ok("chat/0", tool_calls_answer({{"a", "put"}})).ok("chat/0/0", "1");
  JobFixture origin = loop_job("", budget);
  origin.claim()
      .ok("chat/0", tool_calls_answer({{"a", "put"}}))
      .ok("chat/0/0", "1")
      .fails("chat/1");
  JobFixture job(retried_loop(origin), "job-2");
  EXPECT_EQ(job.state.budget.spent.tool_calls, 1u);
  EXPECT_EQ(job.state.budget.spent.tokens, origin.state.budget.spent.tokens);
  job.claim();
  ASSERT_EQ(tools_sent(job), "model:main");
  EXPECT_EQ(job.step("chat/1").call->reserved.input_tokens,
            reference.step("chat/1").call->reserved.input_tokens);
  job.ok("chat/1", tool_calls_answer({{"b", "put"}, {"c", "put"}, {"d", "put"}}));
  EXPECT_EQ(tools_sent(job), "model:main put put");
  expect_whole_loop(job);
}

AE_TEST("loop fork/impossible turns are rejected, or detected by verify") {
  JobFixture origin = job_with_unreachable_model();
  const Fork fork = retried_loop(origin);
  const auto good = std::get<ForkImported>(fork.imported[0]);
  const std::vector<Value> entries(good.commands.json().items().begin(),
                                   good.commands.json().items().end());
  ASSERT_EQ(entries.size(), 6u);
  const auto refused = [&](const ForkImported& event) {
    State state;
    state.job = JobId("job-9");
    for (const EventBody& one : job_events({.agent = "tester",
                                            .input = fork.input,
                                            .labels = {},
                                            .idempotency_key = {},
                                            .execution_version = "v1",
                                            .deadline = {},
                                            .plan = fork.plan.get(),
                                            .forked_from = fork.forked_from,
                                            .imported = {}})) {
      AE_CHECK(apply(state, one, Instant{}, uncached_plan_source()).has_value());
    }
    return !apply(state, event, Instant{}, uncached_plan_source()).has_value();
  };
  const auto with = [&](std::vector<Value> commands) {
    ForkImported event = good;
    event.commands.json() = Value::array(std::move(commands));
    return event;
  };
  EXPECT_FALSE(refused(good));
  EXPECT_TRUE(refused(with({entries[0], entries[0]}))) << "started twice";
  EXPECT_TRUE(refused(with({entries[1]}))) << "a turn without its loop";
  EXPECT_TRUE(refused(with({entries[0], entries[4]}))) << "the second turn first";
  EXPECT_TRUE(refused(with({entries[0], entries[1], entries[4]}))) << "before its calls are done";
  EXPECT_TRUE(refused(with({entries[0], entries[2]}))) << "a call that no answer requested";
  EXPECT_TRUE(refused(with({entries[0], entries[1], entries[2], entries[2]})));
  EXPECT_TRUE(refused(with({entries[0], entries[1], entries[2].with("turn_call", 1)})))
      << "a call that was refused";
  EXPECT_TRUE(refused(with({entries[0], entries[1], entries[2].with("tool", "pay")})));
  const Value choice = entries[1]["choice"];
  const Value other = json("[{'id': 'a', 'name': 'once'}]");
  EXPECT_TRUE(refused(with({entries[0], entries[1].with("choice", choice.with("calls", other))})))
      << "a tool that is not granted";

  const auto with_result = [&](const std::string& of, const Value& result) {
    ForkImported event = good;
    event.results = good.results.value.with(of, result);
    return event;
  };
  const auto disproved = [&](const ForkImported& event) {
    Fork forged = fork;
    forged.imported[0] = event;
    JobFixture job(forged, "job-2");
    const Verification proof =
        verify({.job = job.state.job, .events = job.log, .last_seq = {}, .head = {}},
               uncached_plan_source());
    return !proof.replay.ok;
  };
  EXPECT_FALSE(disproved(good));
  const std::string second(entries[4].text("step_id"));
  const auto step_of = [&](std::size_t i) { return std::string(entries[i].text("step_id")); };
  EXPECT_TRUE(disproved(with_result(step_of(2), "'another'")))
      << "the next turn had another message";
  EXPECT_TRUE(disproved(with_result(step_of(1), json(text_answer("No")))));
  const Value sent = good.results.value[second + "/arguments"];
  EXPECT_TRUE(disproved(with_result(second + "/arguments", sent.with("temperature", 2))));
  EXPECT_TRUE(disproved(
      with({entries[0], entries[1], entries[2].with("arguments_hash", std::string(64, 'a')),
            entries[3], entries[4], entries[5]})));
}

AE_TEST("loop fork/a completed loop is imported with its failed call") {
  JobFixture job(chat_node().substr(0, chat_node().size() - 1) +
                     ", {'id': 'z', 'kind': 'tool', 'tool': 'once', 'needs': ['chat']}]",
                 {.more = kTools, .input = "{'message': 'Hello'}"});
  job.claim()
      .ok("chat/0", tool_calls_answer({{"a", "put"}}))
      .fails("chat/0/0")
      .ok("chat/1", text_answer("ok"));
  job.fails("z");
  ASSERT_EQ(job.status(), "failed") << job.log_text();
  JobFixture fork(retried_loop(job), "job-2");
  fork.claim();
  EXPECT_EQ(tools_sent(fork), "once");
  fork.ok("z");
  EXPECT_EQ(fork.status(), "completed");
  expect_whole_loop(fork);
}

AE_TEST("loop fork/a fork from an erased answer is rejected") {
  JobFixture origin = job_with_unreachable_model();
  each<ToolInvocationStarted>(origin.log, [&](ToolInvocationStarted& call) {
    if (call.step_id == origin.step("chat/0").id) call.arguments = erased_value();
  });
  EXPECT_EQ(origin.fork(origin.log.size()).error().code, Code::input_invalid);
}

}  // namespace
}  // namespace ae::engine::testing
