// Loops: messages to the model, requested calls, and the end of a loop.
#include <fmt/core.h>

#include <set>

#include "engine/loop/loop_fixture_test.h"
#include "inspect/view.h"

namespace ae::engine::testing {
namespace {

AE_TEST("loop/an answer without tool calls ends the loop, and its text is the result") {
  JobFixture job = loop_job();
  job.claim();
  EXPECT_EQ(canonical(request(job, "chat/0")["messages"]),
            R"([{"content":"Be kind","role":"system"},{"content":"Hello","role":"user"}])");
  job.ok("chat/0", text_answer("Hi"));
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(canonical(job.state.result),
            R"({"chat":{"finish_reason":"stop","text":"Hi","turns":1}})");
  EXPECT_EQ(job.types("chat"),
            (std::vector<std::string>{"node_started", "decision_recorded", "node_finished"}));
  expect_verified(job);
}

AE_TEST("loop/a turn is recorded before its calls, and each call is a command of its own") {
  JobFixture job = loop_job();
  job.claim();
  const std::size_t before = job.log.size();
  job.ok("chat/0", tool_calls_answer({{"a", "look", "{'q': 1}"}, {"b", "put", "{'v': 2}"}}));
  std::vector<std::string> types;
  for (std::size_t i = before; i < job.log.size(); ++i) {
    types.emplace_back(event_name(job.log[i]));
  }
  EXPECT_EQ(types,
            (std::vector<std::string>{
                "tool_invocation_finished", "command_committed", "node_finished", "step_committed",
                "decision_recorded", "node_started", "command_emitted", "tool_invocation_started",
                "node_started", "command_emitted", "tool_invocation_started"}));
  const auto choice = job.last<DecisionRecorded>();
  EXPECT_EQ(choice.kind, "tool_choice");
  EXPECT_EQ(canonical(choice.payload.value["calls"]),
            R"([{"id":"a","name":"look"},{"id":"b","name":"put"}])");
  EXPECT_EQ(choice.payload.value.text("of"), job.step("chat/0").call->id.text);
  EXPECT_EQ(job.state.path_of(job.step("chat/0")), "0/0/0");
  EXPECT_EQ(job.state.path_of(job.step("chat/0/1")), "0/0/0/1");
  EXPECT_EQ(job.step("chat/0").id, step_id(job.state.job, job.plan->decision, "0/0/0", "llm"));
  EXPECT_EQ(job.step("chat/0/1").id, step_id(job.state.job, job.plan->decision, "0/0/0/1", "tool"));
  EXPECT_EQ(canonical(job.step("chat/0/1").call->arguments), R"({"v":2})");
}

AE_TEST("loop/tool results are sent to the model in the order of the requests") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0",
                 tool_calls_answer({{"a", "look", "{'q': 1}"}, {"b", "put", "{'v': 2}"}}));
  job.ok("chat/0/1", "{'done': true}").ok("chat/0/0", "'found'");
  const Value messages = request(job, "chat/1")["messages"];
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(canonical(messages.items()[2]), R"({"content":"","role":"assistant","tool_calls":[)"
                                            R"({"arguments":{"q":1},"id":"a","name":"look"},)"
                                            R"({"arguments":{"v":2},"id":"b","name":"put"}]})");
  EXPECT_EQ(canonical(messages.items()[3]), R"({"call_id":"a","content":"found","role":"tool"})");
  EXPECT_EQ(canonical(messages.items()[4]),
            R"({"call_id":"b","content":"{\"done\":true}","role":"tool"})");
  job.ok("chat/1", text_answer("Done"));
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.result["chat"]["turns"], Value(2));
  expect_verified(job);
}

AE_TEST("loop/at most parallel_tools calls of a turn are in flight") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0",
                 tool_calls_answer({{"a", "look"}, {"b", "look"}, {"c", "look"}, {"d", "look"}}));
  EXPECT_EQ(job.in_flight.size(), 2u);
  job.ok("chat/0/1", "2");
  EXPECT_EQ(job.in_flight.size(), 2u);
  EXPECT_EQ(job.tries("chat/0/2"), 1u);
  job.ok("chat/0/2", "3").ok("chat/0/0", "1").ok("chat/0/3", "4");
  EXPECT_EQ(last_message(job, "chat/1", 4)["content"], Value("1"));
  EXPECT_EQ(last_message(job, "chat/1", 1)["content"], Value("4"));
}

AE_TEST("loop/two equal calls in two turns are two commands with two keys") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0", tool_calls_answer({{"a", "put", "{'v': 1}"}, {"b", "put", "{'v': 1}"}}));
  job.ok("chat/0/0", "1").ok("chat/0/1", "1");
  job.ok("chat/1", tool_calls_answer({{"a", "put", "{'v': 1}"}}));
  job.ok("chat/1/0", "1").ok("chat/2", text_answer("ok"));
  std::set<std::string> keys, external;
  for (const auto& sent : job.sent) {
    if (sent.tool != "put") continue;
    keys.insert(sent.key);
    external.insert(sent.external_key);
  }
  EXPECT_EQ(keys.size(), 3u);
  EXPECT_EQ(external.size(), 3u);
  EXPECT_EQ(job.status(), "completed");
  expect_verified(job);
}

AE_TEST("loop/a tool that is not granted is not called, and the model receives an error") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0", tool_calls_answer({{"a", "once", "{}"}, {"b", "model:main", "{}"}}));
  EXPECT_EQ(job.sent.size(), 2u) << "two turns of the model";
  for (const auto& sent : job.sent) EXPECT_EQ(sent.tool, "model:main");
  const Value message = last_message(job, "chat/1", 2);
  EXPECT_EQ(message["error"], Value(true));
  EXPECT_EQ(parse_json(message.text("content"))->operator[]("error").text("code"),
            "tool_not_granted");
  EXPECT_EQ(last_message(job, "chat/1")["call_id"], Value("b"));
  EXPECT_EQ(job.count(EventType::command_emitted), 2u);
  job.ok("chat/1", text_answer("Sorry"));
  EXPECT_EQ(job.status(), "completed");
  expect_verified(job);
}

AE_TEST("loop/invalid arguments are reported to the model and not sent") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0",
                 "{'text': '', 'tool_calls': [{'id': 'a', 'name': 'exact', 'arguments': {'n': "
                 "'x'}}, {'id': 'b', 'name': 'exact', 'malformed': '{oops'},"
                 " {'id': 'c', 'name': 'exact', 'arguments': {'n': 3}}]}");
  ASSERT_EQ(job.in_flight.size(), 1u);
  EXPECT_EQ(job.sent.back().tool, "exact");
  EXPECT_EQ(canonical(job.sent.back().arguments), R"({"n":3})");
  job.ok("chat/0/2", "'good'");
  for (const std::size_t back : {3u, 2u}) {
    const Value message = last_message(job, "chat/1", back);
    EXPECT_EQ((*parse_json(message.text("content")))["error"].text("code"), "input_invalid");
  }
  const Value assistant_message = request(job, "chat/1")["messages"].items()[2];
  EXPECT_EQ(assistant_message["tool_calls"].items()[1]["malformed"], Value("{oops"));
  EXPECT_EQ(last_message(job, "chat/1")["content"], Value("good"));
  expect_verified(job.ok("chat/1", text_answer("ok")));
}

AE_TEST("loop/the reason why arguments are invalid JSON is sent if it was recorded") {
  JobFixture job = loop_job();
  job.claim().ok(
      "chat/0",
      "{'text': '', 'tool_calls': [{'id': 'a', 'name': 'exact', 'malformed': '{oops'}, "
      "{'id': 'b', 'name': 'exact', 'malformed': '{oops', 'invalid': 'no key at byte 1'}]}");
  const auto error_message = [&](std::size_t back) {
    const Value message = last_message(job, "chat/1", back);
    return std::string((*parse_json(message.text("content")))["error"].text("message"));
  };
  EXPECT_EQ(error_message(2), "the arguments must be a JSON object")
      << "an answer without a recorded reason";
  EXPECT_EQ(error_message(1), "the arguments must be a JSON object: no key at byte 1");
  const Value assistant_message = request(job, "chat/1")["messages"].items()[2];
  EXPECT_EQ(assistant_message["tool_calls"].items()[1].find("invalid"), nullptr)
      << "it is not part of the answer";
  expect_verified(job.ok("chat/1", text_answer("ok")));
}

AE_TEST("loop/the model receives a tool's failure after its tries, and the loop continues") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0", tool_calls_answer({{"a", "look", "{}"}}));
  job.fails("chat/0/0", "http_503").after(20s).fails("chat/0/0", "http_503").after(20s);
  EXPECT_EQ(job.tries("chat/0/0"), 3u);
  job.fails("chat/0/0", "http_503");
  const Value message = last_message(job, "chat/1");
  EXPECT_EQ(message["error"], Value(true));
  EXPECT_EQ(message["content"],
            Value(R"({"error":{"code":"http_503","message":"the tool failed"}})"));
  job.ok("chat/1", text_answer("It is down"));
  EXPECT_EQ(job.status(), "completed");
  expect_verified(job);
}

AE_TEST("loop/tools and settings are in each request and not in the log") {
  JobFixture job = loop_job(", 'temperature': 0.5, 'max_tokens': 64, 'schema': {'type': 'object'}");
  job.claim();
  const Value model_request = request(job, "chat/0");
  EXPECT_EQ(model_request["temperature"], Value(0.5));
  EXPECT_EQ(model_request["max_tokens"], Value(64));
  EXPECT_EQ(canonical(model_request["schema"]), R"({"type":"object"})");
  ASSERT_EQ(model_request["tools"].size(), 7u);
  EXPECT_EQ(canonical(model_request["tools"].items()[0]),
            R"({"name":"look","parameters":{"type":"object"}})");
  EXPECT_EQ(model_request["tools"].items()[6].text("description"), "Exactly so");
  EXPECT_EQ(model_request["tools"].items()[6]["parameters"]["required"].items()[0], Value("n"));
  const Value recorded = job.last<ToolInvocationStarted>().arguments.value;
  EXPECT_EQ(recorded["tools"], Value(job.plan->nodes[0].loop->tools_digest));
  EXPECT_EQ(recorded["said"], Value(2));
  job.ok("chat/0", R"({"text": "{\"a\":1}"})");
  EXPECT_EQ(canonical(job.state.result["chat"]["json"]), R"({"a":1})");
  expect_verified(job);
}

AE_TEST("loop/a final answer that violates the schema fails the loop") {
  JobFixture job = loop_job(", 'schema': {'type': 'object'}");
  job.claim().ok("chat/0", text_answer("no JSON"));
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "tool_output_invalid");
  expect_verified(job);
}

AE_TEST("loop/a call that needs approval waits, others continue, and it is made once") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0", tool_calls_answer({{"a", "refund", "{'sum': 5}"}, {"b", "look", "{}"}}));
  job.ok("chat/0/1", "1");
  EXPECT_EQ(job.status(), "waiting");
  const Value approval = approvals_view(job.state).front();
  EXPECT_EQ(approval.text("tool"), "refund");
  EXPECT_EQ(canonical(approval["arguments"]), R"({"sum":5})");
  job.reload().approve("chat/0/0");
  EXPECT_EQ(job.tries("chat/0/0"), 1u);
  job.ok("chat/0/0", "'paid'");
  EXPECT_EQ(last_message(job, "chat/1", 2)["content"], Value("paid"));
  job.ok("chat/1", text_answer("Refunded"));
  EXPECT_EQ(job.status(), "completed");
  expect_verified(job);
}

AE_TEST("loop/a rejected call is never made, and the model receives the rejection") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0", tool_calls_answer({{"a", "refund", "{'sum': 5}"}}));
  job.reject("chat/0/0");
  EXPECT_EQ(job.reply.text("then"),
            "the model of node chat gets the rejection as the result of its call");
  EXPECT_EQ(job.sent.size(), 2u);
  const Value message = last_message(job, "chat/1");
  EXPECT_EQ((*parse_json(message.text("content")))["error"].text("code"), "rejected");
  job.ok("chat/1", text_answer("I may not"));
  EXPECT_EQ(job.status(), "completed");
  expect_verified(job);
}

AE_TEST("loop/with on_reject: fail a rejection ends the loop and withdraws other requests") {
  JobFixture job = loop_job(", 'on_reject': 'fail'");
  job.claim().ok("chat/0",
                 tool_calls_answer({{"a", "refund", "{'sum': 5}"}, {"b", "refund", "{'sum': 6}"}}));
  EXPECT_EQ(approvals_view(job.state).size(), 2u);
  job.reject("chat/0/0");
  EXPECT_EQ(job.reply.text("then"), "the job fails at node chat");
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  EXPECT_EQ(job.state.error->code, "rejected");
  EXPECT_EQ(job.sent.size(), 1u);
  EXPECT_TRUE(approvals_view(job.state).empty());
  expect_verified(job);
}

AE_TEST("loop/a permanent model failure fails the loop, on_error: continue tolerates it") {
  JobFixture job = loop_job();
  job.claim().fails("chat/0", "http_401");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "http_401");
  expect_verified(job);
  JobFixture on(
      "[{'id': 'chat', 'kind': 'loop', 'on_error': 'continue', 'loop':"
      " {'tool': 'model:main', 'model': 'm', 'prompt': 'Hi', 'tools': [], 'max_turns': 2,"
      " 'parallel_tools': 1}},"
      " {'id': 'then', 'kind': 'tool', 'tool': 'put', 'needs': ['chat'],"
      " 'args': {'said': '${ .steps.chat }'}}]",
      {.more = kTools});
  on.claim().fails("chat/0", "http_401");
  EXPECT_EQ(on.sent.back().arguments["said"]["error"].text("code"), "http_401");
  EXPECT_EQ(on.step("chat").phase, StepPhase::done);
}

AE_TEST("loop/a retry repeats the same turn under the same key") {
  JobFixture job = loop_job();
  job.claim().fails("chat/0", "http_500").after(20s);
  EXPECT_EQ(job.tries("chat/0"), 2u);
  job.ok("chat/0", text_answer("ok"));
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.sent[0].key, job.sent[1].key);
  expect_verified(job);
}

AE_TEST("loop/calls requested in the last turn are not made") {
  JobFixture job = loop_job(", 'max_turns': 2");
  job.claim().ok("chat/0", tool_calls_answer({{"a", "put", "{'v': 1}"}})).ok("chat/0/0", "1");
  job.ok("chat/1", tool_calls_answer({{"a", "put", "{'v': 2}"}}));
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  EXPECT_EQ(job.state.error->code, "turns_limit");
  EXPECT_EQ(std::ranges::count(job.sent, std::string("put"), &JobFixture::SentTry::tool), 1);
  expect_verified(job);
}

AE_TEST("loop/an invalid answer fails the loop") {
  for (const char* answer : {"'text'", "{'text': 7}", "{'text': '', 'tool_calls': [{'id': 'a'}]}",
                             "{'text': '', 'tool_calls': 'all'}"}) {
    JobFixture job = loop_job();
    job.claim().ok("chat/0", answer);
    EXPECT_EQ(job.status(), "failed") << answer;
    EXPECT_EQ(job.state.error->code, "tool_output_invalid");
    expect_verified(job);
  }
}

AE_TEST("loop/calls above the limit of one answer are reported and not made") {
  std::string calls;
  for (std::size_t i = 0; i < kTurnCallsMax + 2; ++i) {
    calls += std::string(i == 0 ? "" : ",") + "{'name': 'look', 'arguments': {}}";
  }
  JobFixture job = loop_job();
  job.claim().ok("chat/0", fmt::format("{{'text': '', 'tool_calls': [{}]}}", calls));
  while (job.tries("chat/0") == 1 && !job.in_flight.empty() &&
         job.state.steps[job.in_flight.begin()->first].is_loop_call()) {
    job.answer(job.in_flight.begin()->first, {.kind = OutcomeKind::success, .result = Value(1)});
  }
  EXPECT_EQ(job.sent.size(), 1 + kTurnCallsMax + 1);
  EXPECT_EQ(last_message(job, "chat/1")["error"], Value(true));
  EXPECT_EQ(last_message(job, "chat/1")["call_id"], Value("call_0_129"));
}

AE_TEST("loop/a refusal of the model is a result with its text") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0", "{'text': '', 'finish_reason': 'refusal', 'refusal': 'I will not'}");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.result["chat"]["refusal"], Value("I will not"));
  EXPECT_EQ(job.state.result["chat"]["finish_reason"], Value("refusal"));
}

AE_TEST("loop/verbatim blocks of a provider are sent back in the next request") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0",
                 "{'text': 'so', 'blocks': [{'type': 'thinking', 'signature': 'x'}],"
                 " 'tool_calls': [{'id': 'a', 'name': 'look', 'arguments': {}}]}");
  job.ok("chat/0/0", "1");
  EXPECT_EQ(canonical(request(job, "chat/1")["messages"].items()[2]["blocks"]),
            R"([{"signature":"x","type":"thinking"}])");
}

AE_TEST("loop/later nodes read the result of a loop, and a skipped loop gives null") {
  const std::string nodes =
      "[{'id': 'a', 'kind': 'tool', 'tool': 'look'},"
      " {'id': 'chat', 'kind': 'loop', 'needs': ['a'], 'when': '${ .steps.a > 1 }', 'loop':"
      " {'tool': 'model:main', 'model': 'm', 'prompt': 'About ${ .steps.a }', 'tools': ['look'],"
      " 'max_turns': 2, 'parallel_tools': 1}},"
      " {'id': 'z', 'kind': 'tool', 'tool': 'put', 'needs': ['chat'],"
      " 'args': {'said': '${ .steps.chat }'}}]";
  JobFixture job(nodes, {.more = kTools});
  job.claim().ok("a", "2");
  EXPECT_EQ(request(job, "chat/0")["messages"].items()[0]["content"], Value("About 2"));
  job.ok("chat/0", text_answer("Two"));
  EXPECT_EQ(job.sent.back().arguments["said"]["text"], Value("Two"));
  expect_verified(job.ok("z"));
  JobFixture skipped(nodes, {.more = kTools});
  skipped.claim().ok("a", "1");
  EXPECT_TRUE(skipped.sent.back().arguments["said"].is_null());
}

AE_TEST("loop/an empty prompt fails the loop before a request is sent") {
  JobFixture job = loop_job("", {.input = "{'other': 1}"});
  job.claim();
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "expression_failed");
  EXPECT_TRUE(job.sent.empty());
  expect_verified(job);
}

}  // namespace
}  // namespace ae::engine::testing
