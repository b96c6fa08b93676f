// Repair: a model whose answer breaks its schema receives the error, once, in a recorded turn.
#include <fmt/core.h>

#include "base/utf8.h"
#include "engine/loop/loop_fixture_test.h"
#include "engine/state/checkpoint.h"
#include "inspect/trace.h"
#include "inspect/view.h"

namespace ae::engine::testing {
namespace {

constexpr std::string_view kRepair =
    ", 'schema': {'type': 'object', 'required': ['n']}, 'repair': 1";
constexpr std::string_view kGood = R"({"text": "{\"n\": 1}", "finish_reason": "stop"})";
constexpr std::string_view kWrong = R"({"text": "{\"m\": 1}", "finish_reason": "stop"})";

// A node of kind llm, and a tool that gets its result.
JobFixture repairable_job(std::string_view more = ", 'repair': 1") {
  return JobFixture(
      "[{'id': 'read', 'kind': 'llm', 'tool': 'model:main', 'args': {'model': 'small',"
      " 'max_tokens': 64, 'messages': [{'role': 'system', 'content': 'Be exact'},"
      " {'role': 'user', 'content': 'About ${ .input.message }'}],"
      " 'schema': {'type': 'object', 'required': ['n']}}" +
          std::string(more) +
          "}, {'id': 'then', 'kind': 'tool', 'tool': 'put', 'needs': ['read'],"
          " 'args': {'n': '${ .steps.read.json.n }'}}]",
      {.more = kTools, .input = "{'message': 'rain'}"});
}

void expect_completed(const JobFixture& job) {
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  expect_verified(job);
}
void expect_failed(const JobFixture& job, std::string_view words) {
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  ASSERT_TRUE(job.state.error);
  EXPECT_EQ(job.state.error->code, "tool_output_invalid");
  EXPECT_NE(job.state.error->message.find(words), std::string::npos) << job.state.error->message;
  expect_verified(job);
}

AE_TEST("repair/an invalid answer is recorded, and the model receives the error and a retry") {
  JobFixture job = loop_job(kRepair);
  job.claim();
  EXPECT_EQ(request(job, "chat/0")["repair"], Value(true));
  job.ok("chat/0", text_answer("no JSON"));
  EXPECT_EQ(job.step("chat/0").result.text("text"), "no JSON");
  const Value choice = job.last<DecisionRecorded>().payload.value;
  EXPECT_TRUE(choice.text("repair").starts_with("is invalid JSON: ")) << canonical(choice);
  EXPECT_EQ(canonical(last_message(job, "chat/1", 2)),
            R"({"content":"no JSON","role":"assistant"})");
  const Value message = last_message(job, "chat/1");
  EXPECT_EQ(message["role"], Value("user"));
  EXPECT_TRUE(
      message.text("content").starts_with("This answer cannot be used: it is invalid JSON: "));
  job.ok("chat/1", kGood);
  EXPECT_EQ(canonical(job.state.result["chat"]["json"]), R"({"n":1})");
  EXPECT_EQ(job.state.result["chat"]["turns"], Value(2));
  expect_completed(job);
}

// The same job with a changed choice of the first turn, continued from there.
JobFixture with_choice(const JobFixture& whole, const auto& change) {
  JobFixture job = loop_job(kRepair);
  const auto choice = std::ranges::find_if(whole.log, [](const Event& event) {
    const auto* decision = as<DecisionRecorded>(event);
    return decision != nullptr && decision->kind == "tool_choice";
  });
  AE_CHECK(choice != whole.log.end());
  job.log.assign(whole.log.begin(), choice);
  job.state = job.folded(job.log.size());
  job.attempt_count = 1;
  auto other = std::get<DecisionRecorded>(choice->body);
  other.payload = change(other.payload.value);
  job.add({other});
  job.run_until_idle();
  return job;
}

AE_TEST("repair/verify accepts other wording of another version but not another choice") {
  JobFixture whole = loop_job(kRepair);
  whole.claim().ok("chat/0", text_answer("no JSON"));
  JobFixture job =
      with_choice(whole, [](const Value& p) { return p.with("repair", "is gibberish"); });
  EXPECT_NE(last_message(job, "chat/1").text("content").find("is gibberish"),
            std::string_view::npos);
  expect_completed(job.ok("chat/1", kGood));

  JobFixture calls = loop_job(kRepair);
  calls.claim().ok("chat/0", tool_calls_answer({{"a", "nothing"}}));
  const auto reworded = [](std::string_view code) {
    return [=](const Value& p) {
      const Value refused = Value::object({{"code", code}, {"message", "no such thing"}});
      return p.with("calls", Value::array({p["calls"].items()[0].with("refused", refused)}));
    };
  };
  expect_completed(with_choice(calls, reworded("tool_not_granted")).ok("chat/1", kGood));
  const JobFixture other = with_choice(calls, reworded("input_invalid"));
  EXPECT_FALSE(verify({.job = other.state.job, .events = other.log, .last_seq = {}, .head = {}},
                      uncached_plan_source())
                   .replay.ok);
}

AE_TEST("repair/a log in which a loop succeeds with an invalid answer is rejected") {
  JobFixture job = loop_job(kRepair);
  job.claim().ok("chat/0", kGood);
  expect_completed(job);
  const auto with = [&](const Erasable& answer) {
    std::vector<Event> forged = job.log;
    each<ToolInvocationFinished>(forged,
                                 [&](ToolInvocationFinished& event) { event.result = answer; });
    const auto folded = fold(job.state.job, forged, uncached_plan_source());
    return folded ? std::string() : folded.error().message;
  };
  EXPECT_EQ(with(*parse_json(kGood)), "");
  const std::string wrong = with(*parse_json(kWrong));
  EXPECT_NE(wrong.find("not what its plan wants"), std::string::npos) << wrong;
  EXPECT_EQ(with(erased_value()), "") << "erased";
}

AE_TEST("repair/a second answer that violates the schema fails the loop") {
  JobFixture job = loop_job(kRepair);
  job.claim().ok("chat/0", text_answer("no JSON")).ok("chat/1", kWrong);
  EXPECT_EQ(job.sent.size(), 2u);
  expect_failed(job, "breaks the schema");
}

AE_TEST("repair/a repair allows one turn above max_turns, without further tool calls") {
  JobFixture job = loop_job(std::string(kRepair) + ", 'max_turns': 1");
  job.claim().ok("chat/0", text_answer("no JSON")).ok("chat/1", kGood);
  expect_completed(job);
  JobFixture more = loop_job(std::string(kRepair) + ", 'max_turns': 1");
  more.claim().ok("chat/0", text_answer("no JSON")).ok("chat/1", tool_calls_answer({{"a", "put"}}));
  EXPECT_EQ(more.state.error->code, "turns_limit") << more.log_text();
  EXPECT_EQ(more.sent.size(), 2u);
  expect_verified(more);
}

AE_TEST("repair/tools may be called after a repair, and a loop is repaired only once") {
  JobFixture job = loop_job(kRepair);
  job.claim().ok("chat/0", tool_calls_answer({{"a", "look"}})).ok("chat/0/0", "1");
  job.ok("chat/1", text_answer("no JSON"))
      .ok("chat/2", tool_calls_answer({{"b", "put"}}))
      .ok("chat/2/0", "2");
  EXPECT_EQ(last_message(job, "chat/3")["content"], Value("2"));
  EXPECT_EQ(request(job, "chat/3")["messages"].size(), 2u + 2u + 2u + 2u);
  job.ok("chat/3", text_answer("still none"));
  expect_failed(job, "is invalid JSON");
}

AE_TEST("repair/a refused or truncated answer is not repaired") {
  for (const char* answer :
       {"{'text': '', 'refusal': 'I will not'}", "{'text': 'x', 'finish_reason': 'length'}",
        "{'text': 'x', 'finish_reason': 'content_filter'}",
        "{'text': 'x', 'finish_reason': 'refusal'}"}) {
    JobFixture job = loop_job(kRepair);
    job.claim().ok("chat/0", answer);
    EXPECT_EQ(job.sent.size(), 1u) << answer;
    expect_failed(job, "is invalid JSON");
  }
}

AE_TEST("repair/without repair an answer that violates the schema fails at once") {
  JobFixture job = loop_job(", 'schema': {'type': 'object'}");
  job.claim();
  EXPECT_EQ(request(job, "chat/0").find("repair"), nullptr);
  job.ok("chat/0", text_answer("no JSON"));
  EXPECT_EQ(job.sent.size(), 1u);
  expect_failed(job, "is invalid JSON");
}

AE_TEST("repair/a long error message to the model is cut at a character boundary") {
  std::string pattern;
  for (int i = 0; i < 700; ++i) pattern += "é";
  JobFixture job = loop_job(fmt::format(", 'repair': 1, 'schema': {{'enum': ['{}']}}", pattern));
  job.claim().ok("chat/0", R"({"text": "\")" + pattern + R"(x\""})");
  const Value choice = job.last<DecisionRecorded>().payload.value;
  EXPECT_LE(choice.text("repair").size(), kRepairMax);
  EXPECT_TRUE(is_utf8(choice.text("repair")));
  job.ok("chat/1", R"({"text": "\")" + pattern + R"(\""})");
  expect_completed(job);
}

AE_TEST("repair/an llm node is asked once more and returns its last answer") {
  JobFixture job = repairable_job();
  job.claim();
  EXPECT_EQ(canonical(request(job, "read/0")["messages"]),
            R"([{"content":"Be exact","role":"system"},{"content":"About rain","role":"user"}])");
  EXPECT_EQ(request(job, "read/0")["max_tokens"], Value(64));
  job.ok("read/0", kWrong).ok("read/1", kGood);
  EXPECT_EQ(job.step("read").result.text("finish_reason"), "stop");
  EXPECT_EQ(canonical(job.step("read").result["json"]), R"({"n":1})");
  EXPECT_EQ(canonical(job.sent.back().arguments), R"({"n":1})");
  EXPECT_EQ(job.state.kind_of(job.step("read")), NodeKind::llm);
  EXPECT_EQ(job.state.path_of(job.step("read/1")), "0/0/1");
  expect_completed(job.ok("then"));
  const Value node = trace_view(job.state, job.log)["nodes"].items()[0];
  EXPECT_EQ(node["items"].size(), 2u);
  EXPECT_TRUE(node["model"].is_null()) << "the turns have the model";
}

AE_TEST("repair/a valid first answer is not repaired, a second invalid one fails") {
  JobFixture job = repairable_job();
  job.claim().ok("read/0", kGood).ok("then");
  EXPECT_EQ(job.sent.size(), 2u);
  expect_completed(job);
  JobFixture twice = repairable_job();
  twice.claim().ok("read/0", kWrong).ok("read/1", kWrong);
  expect_failed(twice, "breaks the schema");
  JobFixture plain = repairable_job("");
  plain.claim();
  EXPECT_EQ(plain.step("read").phase, StepPhase::calling) << "a single call without turns";
  EXPECT_EQ(canonical(request(plain, "read")["schema"]), R"({"required":["n"],"type":"object"})");
}

AE_TEST("repair/a crash at any event repeats no recorded call and sends the same messages") {
  const auto run = [](JobFixture& job) {
    for (int guard = 0; guard < 20 && !is_terminal(job.state.status); ++guard) {
      ASSERT_FALSE(job.in_flight.empty()) << job.log_text();
      const std::uint32_t index = job.in_flight.begin()->first;
      const Step& step = job.state.steps[index];
      std::string answer = "null";
      if (step.is_turn()) answer = step.turn == 0 ? text_answer("no JSON") : std::string(kGood);
      job.answer(index, {.kind = OutcomeKind::success, .result = json(answer)});
    }
  };
  JobFixture whole = repairable_job();
  whole.claim();
  run(whole);
  ASSERT_EQ(whole.status(), "completed");
  for (std::size_t kept = 2; kept < whole.log.size(); ++kept) {
    JobFixture job = repairable_job();
    job.log.assign(whole.log.begin(), whole.log.begin() + static_cast<std::ptrdiff_t>(kept));
    const auto answered =
        std::ranges::count(job.log, EventType::tool_invocation_finished, &Event::type);
    job.state = job.folded(kept);
    job.attempt_count = 1;
    job.claim();
    run(job);
    ASSERT_EQ(job.status(), "completed") << "cut at " << kept << "\n" << job.log_text();
    EXPECT_EQ(static_cast<std::int64_t>(job.sent.size()), 3 - answered) << "cut at " << kept;
    EXPECT_EQ(request(job, "read/1"), request(whole, "read/1"));
    EXPECT_EQ(canonical(job.state.result), canonical(whole.state.result));
    expect_verified(job);
  }
}

AE_TEST("repair/a checkpoint at any event folds to the same state") {
  JobFixture job = loop_job(kRepair);
  job.claim().ok("chat/0", text_answer("no JSON")).ok("chat/1", tool_calls_answer({{"a", "look"}}));
  job.ok("chat/1/0", "1").ok("chat/2", kGood);
  expect_completed(job);
  for (std::size_t at = 2; at <= job.log.size(); ++at) {
    const std::string bytes = checkpoint(job.folded(at), {});
    auto restored = restore(job.state.job, at, bytes, uncached_plan_source());
    ASSERT_TRUE(restored) << at;
    State state = std::move(restored->state);
    EXPECT_EQ(checkpoint(state, {}), bytes);
    for (std::size_t i = at; i < job.log.size(); ++i) {
      const Event& event = job.log[i];
      ASSERT_TRUE(apply(state, event.body, event.created_at, uncached_plan_source()));
    }
    EXPECT_EQ(state_view(state), state_view(job.state)) << at;
  }
}

AE_TEST("repair/a pause takes effect before the repair, which is sent after resume") {
  JobFixture job = loop_job(kRepair);
  job.claim().pause().ok("chat/0", text_answer("no JSON"));
  EXPECT_EQ(job.status(), "parked") << job.log_text();
  EXPECT_EQ(job.sent.size(), 1u);
  job.resume();
  EXPECT_EQ(job.tries("chat/1"), 1u);
  expect_completed(job.ok("chat/1", kGood));
}

AE_TEST("repair/a repair counts in the budget and waits for it") {
  JobFixture job(
      "[{'id': 'read', 'kind': 'llm', 'tool': 'model:main', 'repair': 1, 'args': {'model': 'small',"
      " 'messages': [{'role': 'user', 'content': 'Hello'}], 'schema': {'type': 'object'}}}]",
      {.more = "{'budget': {'model_calls': 1}, 'tools': {'model:main': {'effect': 'read',"
               " 'provider': 'openai'}}}"});
  job.claim().ok("read/0", text_answer("no JSON"));
  EXPECT_EQ(job.status(), "parked") << job.log_text();
  EXPECT_EQ(job.state.parked_until, "budget");
  EXPECT_EQ(job.sent.size(), 1u);
  EXPECT_EQ(job.state.budget.spent.model_calls, 1u);
  expect_verified(job);
}

AE_TEST("repair/a log with a repair that is not allowed is rejected") {
  JobFixture job = loop_job(", 'schema': {'type': 'object'}");
  job.claim();
  job.decides = false;
  job.ok("chat/0", "{'text': '{}'}");
  for (int i = 0; i < 2; ++i) {  // the turn ends
    for (const EventBody& draft : decide(job.state, job.context(), job.limits).events) {
      if (std::holds_alternative<DecisionRecorded>(draft)) break;
      job.add({draft});
    }
  }
  const Decision choice = decide(job.state, job.context(), job.limits);
  ASSERT_TRUE(std::holds_alternative<DecisionRecorded>(choice.events[0]));
  auto wrong = std::get<DecisionRecorded>(choice.events[0]);
  wrong.payload = wrong.payload.value.with("repair", "why");
  State other = job.folded(job.log.size());
  EXPECT_FALSE(apply(other, wrong, job.now, uncached_plan_source()));
  State same = job.folded(job.log.size());
  EXPECT_TRUE(apply(same, choice.events[0], job.now, uncached_plan_source()));
}

AE_TEST("repair/a fork imports a repaired node, and a new plan carries it over") {
  JobFixture job = repairable_job();
  job.claim().ok("read/0", kWrong).ok("read/1", kGood);
  const auto whole = job.fork(job.seq_of(EventType::node_finished, "read"));
  ASSERT_TRUE(whole);
  JobFixture fork(*whole, "job-2");
  fork.claim();
  ASSERT_EQ(fork.sent.size(), 1u);
  EXPECT_EQ(fork.sent[0].tool, "put");
  expect_completed(fork.ok("then"));
  JobFixture waits(
      "[{'id': 'read', 'kind': 'llm', 'tool': 'model:main', 'repair': 1, 'args': {'model': 'small',"
      " 'messages': [{'role': 'user', 'content': 'Hi'}], 'schema': {'type': 'object'}}},"
      " {'id': 'w', 'kind': 'wait', 'needs': ['read'], 'wait': {'type': 'signal', 'key': 'k'}}]",
      {.more = kTools});
  waits.claim().ok("read/0", text_answer("none")).ok("read/1", "{'text': '{}'}");
  const auto next = compiled(graph(
      "[{'id': 'read', 'kind': 'llm', 'tool': 'model:main', 'repair': 1, 'args': {'model': 'small',"
      " 'messages': [{'role': 'user', 'content': 'Hi'}], 'schema': {'type': 'object'}}},"
      " {'id': 'w', 'kind': 'wait', 'needs': ['read'], 'wait': {'type': 'signal', 'key': 'k'}},"
      " {'id': 'z', 'kind': 'tool', 'tool': 'look', 'needs': ['w']}]",
      kTools));
  waits.replan(next);
  EXPECT_FALSE(waits.refused) << waits.log_text();
  EXPECT_EQ(waits.sent.size(), 2u) << "no request is repeated";
  expect_completed(waits.signal("k", "1").ok("z"));
}

AE_TEST("repair/a plan with a repair without schema or with more than one is rejected") {
  const auto compiles = [](std::string_view loop) {
    return Plan::compile(graph(chat_node(loop), kTools)).has_value();
  };
  EXPECT_TRUE(compiles(kRepair));
  EXPECT_FALSE(compiles(", 'repair': 1"));
  EXPECT_FALSE(compiles(", 'schema': {'type': 'object'}, 'repair': 2"));
  EXPECT_FALSE(compiles(", 'schema': {'type': 'object'}, 'repair': 0"));
  EXPECT_FALSE(compiles(", 'schema': {'type': 'object'}, 'repair': true"));
}

}  // namespace
}  // namespace ae::engine::testing
