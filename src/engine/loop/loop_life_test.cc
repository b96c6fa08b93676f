// Loops with crashes, unknown outcomes, cancels, pauses, forks and re-plans.
#include <fmt/core.h>

#include "engine/loop/loop_fixture_test.h"
#include "engine/state/checkpoint.h"
#include "inspect/trace.h"
#include "inspect/view.h"

namespace ae::engine::testing {
namespace {

AE_TEST("loop/a turn takes the same space in the log, however long the conversation is") {
  JobFixture job = loop_job(", 'max_turns': 300");
  job.claim();
  std::vector<std::size_t> bytes;
  for (int turn = 0; turn < 200; ++turn) {
    const std::size_t before = job.log.size();
    const std::string at = fmt::format("chat/{}", turn);
    job.ok(at, tool_calls_answer({{"a", "look", "{'q': 1}"}})).ok(at + "/0", "'found'");
    std::size_t written = 0;
    for (std::size_t i = before; i < job.log.size(); ++i) {
      written += canonical(payload_json(job.log[i].body)).size();
    }
    bytes.push_back(written);
  }
  EXPECT_LT(bytes[198], bytes[10] + 64);
  const Value messages = request(job, "chat/200")["messages"];
  EXPECT_EQ(messages.size(), 2u + 200u * 2u);
  job.ok("chat/200", text_answer("Enough"));
  EXPECT_EQ(job.status(), "completed");
  expect_verified(job);
}

AE_TEST("loop/a crash at any event repeats no recorded call and sends the same messages") {
  JobFixture whole = loop_job();
  const auto run = [](JobFixture& job) {
    for (int guard = 0; guard < 50 && !is_terminal(job.state.status); ++guard) {
      ASSERT_FALSE(job.in_flight.empty()) << job.log_text();
      const std::uint32_t index = job.in_flight.begin()->first;
      const Step& step = job.state.steps[index];
      std::string answer = "'found'";
      if (step.is_turn()) {
        answer = step.turn == 0
                     ? tool_calls_answer(
                           {{"a", "look", "{'q': 1}"}, {"b", "put", "{'v': 1}"}, {"c", "nope"}})
                 : step.turn == 1 ? tool_calls_answer({{"a", "put", "{'v': 1}"}})
                                  : text_answer("Done");
      }
      job.answer(index, {.kind = OutcomeKind::success, .result = json(answer)});
    }
  };
  whole.claim();
  run(whole);
  ASSERT_EQ(whole.status(), "completed");
  const auto finished = [](const std::vector<Event>& log) {
    return std::ranges::count(log, EventType::tool_invocation_finished, &Event::type);
  };
  for (std::size_t kept = 2; kept < whole.log.size(); ++kept) {
    JobFixture job = loop_job();
    job.log.assign(whole.log.begin(), whole.log.begin() + static_cast<std::ptrdiff_t>(kept));
    const auto answered = finished(job.log);
    job.state = job.folded(kept);
    job.attempt_count = 1;
    job.claim();
    run(job);
    ASSERT_EQ(job.status(), "completed") << "cut at " << kept << "\n" << job.log_text();
    EXPECT_EQ(static_cast<std::int64_t>(job.sent.size()), 6 - answered) << "cut at " << kept;
    EXPECT_EQ(canonical(job.state.result), canonical(whole.state.result));
    EXPECT_EQ(request(job, "chat/2"), request(whole, "chat/2"));
    expect_verified(job);
  }
}

AE_TEST("loop/a checkpoint at any event folds to the same state") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0", tool_calls_answer({{"a", "look", "{'q': 1}"}, {"b", "refund", "{}"}}));
  job.ok("chat/0/0", "1").approve("chat/0/1").ok("chat/0/1", "2").ok("chat/1", text_answer("ok"));
  ASSERT_EQ(job.status(), "completed") << job.log_text();
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

AE_TEST("loop/an unknown call parks the job, and its resolved result is sent to the model") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0", tool_calls_answer({{"a", "pay", "{'sum': 5}"}}));
  job.crash();
  EXPECT_EQ(job.status(), "parked") << job.log_text();
  EXPECT_EQ(job.tries("chat/0/0"), 1u);
  job.waits_for_settling = true;
  job.resolve("chat/0/0", "happened", "'receipt'");
  EXPECT_EQ(last_message(job, "chat/1")["content"], Value("receipt"));
  job.ok("chat/1", text_answer("Paid"));
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.tries("chat/0/0"), 1u);
  expect_verified(job);
}

AE_TEST("loop/a call that stays unknown ends the loop, so that no model repeats it") {
  JobFixture given_up = loop_job();
  given_up.claim().ok("chat/0", tool_calls_answer({{"a", "pay", "{'sum': 5}"}})).crash();
  given_up.waits_for_settling = true;
  given_up.resolve("chat/0/0", "fail");
  EXPECT_EQ(given_up.status(), "failed") << given_up.log_text();
  EXPECT_EQ(given_up.state.error->code, "invocation_in_doubt");
  EXPECT_EQ(given_up.last<JobFailed>().in_doubt.json().size(), 1u);
  JobFixture by_policy = loop_job();
  by_policy.claim().ok("chat/0", tool_calls_answer({{"a", "risk", "{}"}})).unknown("chat/0/0");
  EXPECT_EQ(by_policy.status(), "failed");
  EXPECT_EQ(by_policy.state.error->code, "invocation_in_doubt");
  expect_verified(by_policy);
}

AE_TEST("loop/a call resolved as not_happened is repeated under its keys") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0", tool_calls_answer({{"a", "pay", "{'sum': 5}"}})).crash();
  job.waits_for_settling = true;
  job.resolve("chat/0/0", "not_happened");
  ASSERT_EQ(job.tries("chat/0/0"), 2u) << job.log_text();
  job.ok("chat/0/0", "1").ok("chat/1", text_answer("Paid"));
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.sent[1].external_key, job.sent[2].external_key);
  expect_verified(job);
}

AE_TEST("loop/a turn whose answer was lost is requested again with the same conversation") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0", tool_calls_answer({{"a", "look", "{}"}})).ok("chat/0/0", "1");
  const Value first = request(job, "chat/1");
  job.crash();
  EXPECT_EQ(job.tries("chat/1"), 2u);
  EXPECT_EQ(job.tries("chat/0"), 1u);
  EXPECT_EQ(request(job, "chat/1"), first);
  job.ok("chat/1", text_answer("ok"));
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job_view(job.state)["usage"]["model_calls"], Value(3));
  expect_verified(job);
}

AE_TEST("loop/a cancel during a turn starts nothing, awaits sent calls and compensates") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0",
                 tool_calls_answer({{"a", "book", "{}"}, {"b", "look", "{}"}, {"c", "put", "{}"}}));
  job.ok("chat/0/0", "'seat'").cancel("enough");
  EXPECT_EQ(job.status(), "running");
  job.ok("chat/0/1", "1").ok("chat/0/2", "2");
  ASSERT_EQ(job.sent.back().tool, "put");
  EXPECT_EQ(canonical(job.sent.back().arguments), R"({"of":"seat"})");
  job.ok("chat/0/0/compensate", "1");
  EXPECT_EQ(job.status(), "cancelled") << job.log_text();
  EXPECT_EQ(job.last<JobCancelled>().compensated.json().items()[0]["turn"], Value(0));
  EXPECT_EQ(job.tries("chat/0"), 1u);
  expect_verified(job);
}

AE_TEST("loop/a deadline ends a loop during a turn") {
  JobFixture job = loop_job("", {.deadline = 60s});
  job.claim().ok("chat/0", tool_calls_answer({{"a", "refund", "{}"}}));
  EXPECT_EQ(job.status(), "waiting");
  job.after(61s);
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  EXPECT_EQ(job.state.error->code, "deadline_exceeded");
  EXPECT_EQ(job.sent.size(), 1u);
  expect_verified(job);
}

AE_TEST("loop/a pause parks the loop between its calls, and it resumes where it stopped") {
  JobFixture job = loop_job();
  job.claim().ok(
      "chat/0", tool_calls_answer({{"a", "look", "{}"}, {"b", "look", "{}"}, {"c", "look", "{}"}}));
  job.pause().ok("chat/0/0", "1");
  EXPECT_EQ(job.status(), "running");
  job.ok("chat/0/1", "2");
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.sent.size(), 3u);
  job.resume();
  EXPECT_EQ(job.tries("chat/0/2"), 1u);
  job.ok("chat/0/2", "3").ok("chat/1", text_answer("ok"));
  EXPECT_EQ(job.status(), "completed");
  expect_verified(job);
}

AE_TEST("loop/a log that calls a tool that was not chosen or granted is rejected") {
  JobFixture job = loop_job();
  job.decides = false;
  job.claim();
  job.decides = true;
  job.run_until_idle().ok("chat/0", text_answer("Hi"));
  JobFixture forged = loop_job();
  forged.claim();
  forged.decides = false;
  forged.ok("chat/0", tool_calls_answer({{"a", "look", "{}"}}));
  for (const EventBody& draft : decide(forged.state, forged.context(), forged.limits).events) {
    forged.add({draft});
  }
  Decision choice = decide(forged.state, forged.context(), forged.limits);
  ASSERT_TRUE(std::holds_alternative<DecisionRecorded>(choice.events[0]));
  auto wrong = std::get<DecisionRecorded>(choice.events[0]);
  wrong.payload = json("{'turn': 0, 'of': '" + forged.step("chat/0").call->id.text +
                       "', 'calls': [{'id': 'a', 'name': 'once'}]}");
  State other = forged.folded(forged.log.size());
  EXPECT_FALSE(apply(other, wrong, forged.now, uncached_plan_source()));
}

AE_TEST("loop/a fork after a loop imports it whole and does not list its calls") {
  JobFixture job(chat_node().substr(0, chat_node().size() - 1) +
                     ", {'id': 'z', 'kind': 'tool', 'tool': 'put', 'needs': ['chat']}]",
                 {.more = kTools, .input = "{'message': 'Hello'}"});
  job.claim().ok("chat/0", tool_calls_answer({{"a", "put", "{'v': 1}"}, {"b", "nope"}}));
  job.ok("chat/0/0", "1").ok("chat/1", text_answer("ok"));
  const auto whole = job.fork(job.seq_of(EventType::node_finished, "chat"));
  ASSERT_TRUE(whole);
  ASSERT_EQ(whole->effects.size(), 1u);
  EXPECT_EQ(whole->effects[0].text("node_id"), "z");
  JobFixture fork(*whole, "job-2");
  fork.claim();
  ASSERT_EQ(fork.sent.size(), 1u);
  EXPECT_EQ(fork.sent[0].tool, "put");
  fork.ok("z");
  EXPECT_EQ(fork.status(), "completed");
  EXPECT_EQ(fork.state.result, json("{'z': null}"));
  expect_verified(fork);
  // An unfinished loop continues, and its effects are not listed (loop_fork_test.cc).
  const auto half = job.fork(job.seq_of(EventType::node_finished, "chat/0/0"));
  ASSERT_TRUE(half);
  ASSERT_EQ(half->effects.size(), 1u);
  EXPECT_EQ(half->effects[0].text("node_id"), "z");
  JobFixture on(*half, "job-3");
  on.claim();
  EXPECT_EQ(on.sent.size(), 1u);
  EXPECT_EQ(on.step("chat/1").turn, 1u);
}

AE_TEST("loop/a new plan is accepted after the loop has ended and carries it over") {
  const std::string two =
      chat_node().substr(0, chat_node().size() - 1) +
      ", {'id': 'z', 'kind': 'wait', 'wait': {'type': 'signal', 'key': 'k'}, 'needs': ['chat']}]";
  const std::string three =
      two.substr(0, two.size() - 1) + ", {'id': 'y', 'kind': 'tool', 'tool': 'look'}]";
  JobFixture job(two, {.more = kTools, .input = "{'message': 'Hello'}"});
  job.claim().ok("chat/0", tool_calls_answer({{"a", "put", "{'v': 1}"}}));
  const auto next = compiled(graph(three, kTools));
  job.ok("chat/0/0", "1");
  job.replan(next);
  EXPECT_EQ(job.refused, Code::call_pending);
  job.ok("chat/1", text_answer("ok"));
  job.replan(next);
  EXPECT_FALSE(job.refused) << job.log_text();
  EXPECT_EQ(job.step("chat").phase, StepPhase::done);
  job.ok("y", "1").signal("k", "1");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  expect_verified(job);
}

AE_TEST("loop/the trace shows the turns of a loop and the calls of each turn") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0", tool_calls_answer({{"a", "look", "{}"}, {"b", "put", "{}"}}));
  job.ok("chat/0/0", "1").ok("chat/0/1", "2").ok("chat/1", text_answer("ok"));
  const Value trace = trace_view(job.state, job.log);
  const Value node = trace["nodes"].items()[0];
  EXPECT_EQ(node.text("kind"), "loop");
  ASSERT_EQ(node["items"].size(), 2u);
  EXPECT_EQ(node["items"].items()[1]["model"]["usage"]["input_tokens"], Value(5));
  ASSERT_EQ(node["items"].items()[0]["items"].size(), 2u);
  EXPECT_EQ(node["items"].items()[0]["items"].items()[1].text("tool"), "put");
  EXPECT_EQ(node.text("world"), "changed");
  EXPECT_EQ(trace["totals"]["tries"], Value(4));
}

AE_TEST("loop/the trace shows every requested call in order, also the refused ones") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0", tool_calls_answer({{"a", "wipe", "{'all': true}"},
                                              {"b", "look"},
                                              {"c", "exact", "{'n': 'one'}"},
                                              {"d", "look", "7"}}));
  const auto turn = [&] {
    return trace_view(job.state, job.log)["nodes"].items()[0]["items"].items()[0];
  };
  const auto joined = [&](const char* what) {
    const Value calls = turn()["calls"];
    std::string all;
    for (const Value& call : calls.items()) {
      all += (all.empty() ? "" : " ") + std::string(call.text(what));
    }
    return all;
  };
  EXPECT_EQ(joined("status"), "refused running refused refused");
  job.ok("chat/0/1", "1");
  EXPECT_EQ(joined("status"), "refused done refused refused");
  EXPECT_EQ(joined("tool"), "wipe look exact look");
  EXPECT_EQ(joined("call_id"), "a b c d");
  EXPECT_EQ(turn()["calls"].items()[0]["error"].text("code"), "tool_not_granted");
  EXPECT_EQ(turn()["calls"].items()[3]["error"].text("code"), "input_invalid");
  EXPECT_EQ(turn()["items"].size(), 1u) << "a refused call is not a step";
  EXPECT_EQ(trace_view(job.state, job.log)["totals"]["refused"], Value(3));
  const Value before = turn()["calls"];
  job.ok("chat/1", text_answer("ok"));
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(turn()["calls"], before) << "also when the loop is over";
  EXPECT_EQ(trace_view(job.state, job.log)["totals"]["tries"], Value(3));
}

AE_TEST("loop/the trace shows calls that never started") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0", tool_calls_answer({{"a", "look"}, {"b", "look"}, {"c", "put"}}));
  const auto third = [&] {
    const Value loop = trace_view(job.state, job.log)["nodes"].items()[0];
    return std::string(loop["items"].items()[0]["calls"].items()[2].text("status"));
  };
  EXPECT_EQ(third(), "pending") << "at most two in parallel";
  job.cancel().ok("chat/0/0", "1").ok("chat/0/1", "1");
  EXPECT_EQ(job.status(), "cancelled") << job.log_text();
  EXPECT_EQ(third(), "not_run");
}

}  // namespace
}  // namespace ae::engine::testing
