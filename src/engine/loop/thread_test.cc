// Threads: a loop answers, and waits for the next message.
#include <fmt/core.h>

#include <random>
#include <set>

#include "engine/loop/loop_fixture_test.h"
#include "engine/loop/thread.h"
#include "engine/state/checkpoint.h"
#include "inspect/view.h"

namespace ae::engine::testing {
namespace {

JobFixture thread_job(std::string_view more = "", JobFixtureOptions setup = {}) {
  return loop_job(fmt::format(", 'thread': true{}", more), setup);
}

JobFixture& send_message(JobFixture& job, std::string_view text, std::string_view id) {
  return job.message(kThreadChannel, fmt::format("'{}'", text), id);
}

JobFixture& end(JobFixture& job, std::string_view id = "end") {
  return job.send_request(
      {.id = std::string(id),
       .body = MessageRequest{.channel = std::string(kThreadChannel), .control = "end"}});
}

std::vector<std::string> contents(const JobFixture& job, std::string_view turn) {
  std::vector<std::string> all;
  const Value messages = request(job, turn)["messages"];
  for (const Value& message : messages.items()) {
    all.push_back(fmt::format("{}: {}", message.text("role"), message.text("content")));
  }
  return all;
}

AE_TEST("thread/an answer does not end the job: it waits for a message") {
  JobFixture job = thread_job();
  job.claim().ok("chat/0", text_answer("Hi"));
  EXPECT_EQ(job.status(), "waiting") << job.log_text();
  EXPECT_EQ(job.last<JobWaiting>().reason, "message_awaited");
  const Value view = job_view(job.state);
  EXPECT_EQ(view["waiting"]["channel"], Value("thread"));
  EXPECT_EQ(canonical(view["thread"]),
            R"({"answer":{"finish_reason":"stop","text":"Hi","turns":1},"ending":false,)"
            R"("exchanges":1,"waiting":true})");
  EXPECT_EQ(job.types("chat"), (std::vector<std::string>{"node_started", "decision_recorded",
                                                         "wait_opened", "job_waiting"}));
  expect_verified(job);
}

AE_TEST("thread/a message begins the next exchange with the whole conversation") {
  JobFixture job = thread_job();
  job.claim().ok("chat/0", text_answer("Hi"));
  send_message(job, "And now?", "m1");
  EXPECT_EQ(contents(job, "chat/1"), (std::vector<std::string>{"system: Be kind", "user: Hello",
                                                               "assistant: Hi", "user: And now?"}));
  EXPECT_EQ(canonical(job.step("chat/1").call->arguments["messages"]),
            R"([{"content":"And now?","role":"user"}])");
  job.ok("chat/1", tool_calls_answer({{"a", "look"}})).ok("chat/1/0", "'found'");
  job.ok("chat/2", text_answer("There"));
  EXPECT_EQ(job.status(), "waiting");
  EXPECT_EQ(job_view(job.state)["thread"]["answer"]["text"], Value("There"));
  EXPECT_EQ(job_view(job.state)["thread"]["exchanges"], Value(2));
  send_message(job, "Bye", "m2");
  EXPECT_EQ(contents(job, "chat/3").back(), "user: Bye");
  EXPECT_EQ(contents(job, "chat/3").size(), 8u);
  expect_verified(job);
}

AE_TEST("thread/a message with the same id has no effect") {
  JobFixture job = thread_job();
  job.claim().ok("chat/0", text_answer("Hi"));
  send_message(job, "More", "m1");
  const Value first = job.reply;
  const std::size_t events = job.log.size();
  send_message(job, "More", "m1");
  EXPECT_EQ(job.log.size(), events);
  EXPECT_EQ(job.reply, first.with("duplicate", true));
  job.ok("chat/1", text_answer("Yes"));
  send_message(job, "Other text", "m1");
  EXPECT_EQ(job.reply, first.with("duplicate", true));
  EXPECT_EQ(job.status(), "waiting");
  EXPECT_EQ(job.count(EventType::agent_message), 1u);
  EXPECT_EQ(job.state.find_step(job.state.part_step_id(job.step("chat"), 2, kNoTurn)), nullptr);
  expect_verified(job);
}

AE_TEST("thread/messages that come while it works are taken in order, one for each exchange") {
  JobFixture job = thread_job();
  job.claim();
  send_message(job, "one", "m1");
  send_message(job, "two", "m2");
  send_message(job, "one", "m1");
  job.ok("chat/0", text_answer("A"));
  EXPECT_EQ(contents(job, "chat/1").back(), "user: one");
  job.ok("chat/1", text_answer("B"));
  EXPECT_EQ(contents(job, "chat/2").back(), "user: two");
  job.ok("chat/2", text_answer("C"));
  EXPECT_EQ(job.status(), "waiting") << job.log_text();
  EXPECT_EQ(job.count(EventType::wait_opened), 3u);
  expect_verified(job);
}

AE_TEST("thread/its end completes the job with the last answer") {
  JobFixture job = thread_job();
  job.claim().ok("chat/0", text_answer("Hi"));
  send_message(job, "More", "m1").ok("chat/1", text_answer("Done"));
  job.claims_when_free = false;
  end(job);
  EXPECT_EQ(canonical(job.reply),
            R"({"accepted":true,"channel":"thread","control":"end","message_id":"end"})");
  send_message(job, "Too late", "m2");
  EXPECT_EQ(job.refused, Code::job_terminal);
  end(job);
  EXPECT_EQ(job.reply["duplicate"], Value(true));
  job.claim();
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.state.result["chat"]["text"], Value("Done"));
  EXPECT_EQ(job.state.result["chat"]["turns"], Value(2));
  expect_verified(job);
}

AE_TEST("thread/an end during a turn comes after the answer, and after earlier messages") {
  JobFixture job = thread_job();
  job.claim();
  send_message(job, "one", "m1");
  end(job);
  EXPECT_FALSE(job.refused);
  EXPECT_TRUE(job_view(job.state)["thread"]["ending"].as_bool());
  send_message(job, "two", "m2");
  EXPECT_EQ(job.refused, Code::job_terminal);
  end(job, "again");
  EXPECT_EQ(job.refused, Code::job_terminal);
  job.ok("chat/0", text_answer("A"));
  EXPECT_EQ(contents(job, "chat/1").back(), "user: one");
  job.ok("chat/1", text_answer("B"));
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.result["chat"]["text"], Value("B"));
  expect_verified(job);
}

JobFixture& interrupt(JobFixture& job, std::string_view id = "stop") {
  return job.send_request(
      {.id = std::string(id),
       .body = MessageRequest{.channel = std::string(kThreadChannel), .control = "interrupt"}});
}

AE_TEST("thread/an interrupt during the model's call keeps its answer and makes no call") {
  JobFixture job = thread_job();
  interrupt(job.claim());
  EXPECT_EQ(canonical(job.reply), R"({"accepted":true,"channel":"thread","control":"interrupt",)"
                                  R"("message_id":"stop"})");
  job.ok("chat/0", tool_calls_answer({{"a", "put"}, {"b", "look"}}));
  ASSERT_EQ(job.status(), "waiting") << job.log_text();
  EXPECT_EQ(job.sent.size(), 1u);
  EXPECT_EQ(job_view(job.state)["thread"]["answer"]["interrupted"], Value(true));
  send_message(job, "Something else", "m1");
  EXPECT_EQ(contents(job, "chat/1").back(), "user: Something else");
  EXPECT_EQ(last_message(job, "chat/1", 2)["error"], Value(true));
  EXPECT_EQ((*parse_json(last_message(job, "chat/1", 2).text("content")))["error"].text("code"),
            "interrupted");
  job.ok("chat/1", text_answer("Yes"));
  EXPECT_EQ(job_view(job.state)["thread"]["answer"]["interrupted"], Value());
  expect_verified(job);
}

AE_TEST("thread/an interrupt awaits the calls that were made, and makes no other one") {
  JobFixture job = thread_job();
  job.claim().ok("chat/0",
                 tool_calls_answer({{"a", "put"}, {"b", "put"}, {"c", "put"}, {"d", "put"}}));
  send_message(interrupt(job), "Next", "m1");
  EXPECT_EQ(job.in_flight.size(), 2u);
  job.ok("chat/0/1", "2").ok("chat/0/0", "1");
  EXPECT_EQ(contents(job, "chat/1").back(), "user: Next") << job.log_text();
  EXPECT_EQ(last_message(job, "chat/1", 5)["content"], Value("1"));
  EXPECT_EQ(last_message(job, "chat/1", 2)["error"], Value(true));
  EXPECT_EQ(job.sent.size(), 4u);
  expect_verified(job);
  auto fork = job.fork(job.state.seq);
  ASSERT_TRUE(fork.has_value()) << fork.error().message;
  JobFixture next(*fork, "job-2");
  next.claim();
  EXPECT_EQ(contents(next, "chat/1"), contents(job, "chat/1"));
  expect_verified(next);
}

AE_TEST("thread/an interrupt withdraws approvals") {
  JobFixture job = thread_job();
  job.claim().ok("chat/0", tool_calls_answer({{"a", "refund"}}));
  interrupt(job);
  ASSERT_EQ(job.status(), "waiting") << job.log_text();
  EXPECT_EQ(job.last<JobWaiting>().reason, "message_awaited");
  send_message(job, "No refunds", "m1");
  EXPECT_EQ(last_message(job, "chat/1", 2)["error"], Value(true));
  EXPECT_EQ(job.sent.size(), 2u);
  auto fork = job.fork(job.state.seq);
  ASSERT_TRUE(fork.has_value()) << fork.error().message;
  JobFixture next(*fork, "job-2");
  next.claim();
  EXPECT_EQ(contents(next, "chat/1"), contents(job, "chat/1"));
  expect_verified(job);
}

AE_TEST("thread/an interrupt between two exchanges has no effect, and an end can follow one") {
  JobFixture job = thread_job();
  job.claim().ok("chat/0", text_answer("Hi"));
  const std::size_t events = job.log.size();
  interrupt(job);
  EXPECT_EQ(job.reply["applied"], Value(false));
  EXPECT_EQ(job.log.size(), events);
  send_message(job, "More", "m1");
  end(interrupt(job));
  job.ok("chat/1", tool_calls_answer({{"a", "put"}}));
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.state.result["chat"]["interrupted"], Value(true));
  expect_verified(job);
  JobFixture plain = loop_job();
  interrupt(plain.claim());
  EXPECT_EQ(plain.refused, Code::input_invalid);
}

AE_TEST("thread/a message has a text") {
  JobFixture job = thread_job();
  job.claim().ok("chat/0", text_answer("Hi"));
  for (const std::string_view payload : {"null", "''"}) {
    job.message(kThreadChannel, payload, "m1");
    EXPECT_EQ(job.refused, Code::input_invalid) << payload;
  }
  job.message(kThreadChannel, "{'message': 'in an object'}", "m1");
  EXPECT_EQ(contents(job, "chat/1").back(), "user: in an object");
  job.ok("chat/1", text_answer("Yes"));
  job.message(kThreadChannel, "{'n': 1}", "m2");
  EXPECT_EQ(contents(job, "chat/2").back(), R"(user: {"n":1})");
  expect_verified(job);
}

AE_TEST("thread/a message on another channel is kept, and only threads end by a message") {
  JobFixture job = thread_job();
  job.claim().ok("chat/0", text_answer("Hi"));
  job.message("news", "'x'", "m1");
  EXPECT_EQ(job.status(), "waiting");
  job.send_request({.id = "e", .body = MessageRequest{.channel = "news", .control = "end"}});
  EXPECT_EQ(job.refused, Code::input_invalid);
  JobFixture plain = loop_job();
  end(plain.claim());
  EXPECT_EQ(plain.refused, Code::input_invalid);
  end(job);
  EXPECT_EQ(canonical(job.last<JobCompleted>().undelivered.json()),
            R"([{"channel":"news","message_id":"m1"}])");
}

AE_TEST("thread/max_turns and repair count for each exchange") {
  JobFixture job =
      thread_job(", 'max_turns': 1, 'schema': {'type': 'object', 'required': ['n']}, 'repair': 1");
  job.claim().ok("chat/0", text_answer("no JSON"));
  job.ok("chat/1", R"({"text": "{\"n\": 1}", "finish_reason": "stop"})");
  ASSERT_EQ(job.status(), "waiting") << job.log_text();
  send_message(job, "again", "m1").ok("chat/2", text_answer("no JSON"));
  job.ok("chat/3", R"({"text": "{\"n\": 2}", "finish_reason": "stop"})");
  ASSERT_EQ(job.status(), "waiting");
  EXPECT_EQ(job_view(job.state)["thread"]["answer"]["json"]["n"], Value(2));
  send_message(job, "calls", "m2").ok("chat/4", tool_calls_answer({{"a", "look"}}));
  EXPECT_EQ(job.state.error->code, "turns_limit");
  expect_verified(job);
}

AE_TEST("thread/a cancelled job closes its wait") {
  JobFixture job = thread_job();
  job.claim().ok("chat/0", text_answer("Hi")).cancel("enough");
  EXPECT_EQ(job.status(), "cancelled") << job.log_text();
  expect_verified(job);
}

AE_TEST("thread/a deadline ends it while it waits") {
  JobFixture job = thread_job("", {.deadline = std::chrono::hours(1)});
  job.claim().ok("chat/0", text_answer("Hi")).after(std::chrono::hours(2));
  EXPECT_EQ(job.state.error->code, "deadline_exceeded") << job.log_text();
  expect_verified(job);
}

AE_TEST("thread/a pause during a turn keeps its messages") {
  JobFixture job = thread_job();
  job.claim().pause();
  send_message(job, "next", "m1");
  job.ok("chat/0", text_answer("A"));
  EXPECT_EQ(job.status(), "parked") << job.log_text();
  job.resume();
  EXPECT_EQ(contents(job, "chat/1").back(), "user: next");
  expect_verified(job);
}

AE_TEST("thread/an approval is requested inside of an exchange") {
  JobFixture job = thread_job();
  job.claim().ok("chat/0", text_answer("Hi"));
  send_message(job, "Pay it back", "m1").ok("chat/1", tool_calls_answer({{"a", "refund"}}));
  EXPECT_EQ(job.last<JobWaiting>().reason, "approval_required");
  send_message(job, "Please", "m2");
  EXPECT_EQ(job.status(), "waiting");
  job.approve("chat/1/0").ok("chat/1/0", "'paid'").ok("chat/2", text_answer("Paid"));
  EXPECT_EQ(contents(job, "chat/3").back(), "user: Please");
  expect_verified(job);
}

AE_TEST("thread/a fork and a retry keep the messages") {
  JobFixture job = thread_job();
  job.claim().ok("chat/0", text_answer("Hi"));
  send_message(job, "More", "m1");
  const std::uint64_t in_turn = job.state.seq;
  job.fails("chat/1");
  ASSERT_EQ(job.status(), "failed");
  for (const std::uint64_t at : {in_turn, job.state.seq}) {
    auto fork = job.fork(at);
    ASSERT_TRUE(fork.has_value()) << fork.error().message;
    JobFixture next(*fork, "job-2");
    next.claim();
    EXPECT_EQ(contents(next, "chat/1").back(), "user: More");
    next.ok("chat/1", text_answer("Yes"));
    EXPECT_EQ(next.status(), "waiting") << next.log_text();
    send_message(next, "m1 again", "m1");
    EXPECT_EQ(contents(next, "chat/2").size(), 6u);
    expect_verified(next);
    auto second = next.fork(next.state.seq);
    ASSERT_TRUE(second.has_value()) << second.error().message;
    JobFixture last(*second, "job-3");
    last.claim();
    EXPECT_EQ(contents(last, "chat/2").size(), 6u);
    expect_verified(last);
  }
}

// Each exchange adds the same number of events, and bytes that do not depend on those before it.
AE_TEST("thread/an exchange costs the same however long the conversation is") {
  JobFixture job = thread_job();
  job.claim().ok("chat/0", text_answer("Hi"));
  std::set<std::size_t> events, bytes;
  for (int n = 1; n <= 60; ++n) {
    const std::size_t before = job.log.size();
    send_message(job, fmt::format("message {:03}", n), fmt::format("m{:03}", n));
    job.ok(fmt::format("chat/{}", n), text_answer(fmt::format("answer {:03}", n)));
    ASSERT_EQ(job.status(), "waiting");
    events.insert(job.log.size() - before);
    std::size_t size = 0;
    for (std::size_t i = before; i < job.log.size(); ++i) {
      const auto* started = as<ToolInvocationStarted>(job.log[i]);
      if (started != nullptr) size += canonical(started->arguments.value).size();
    }
    if (n >= 10 && n < 40) bytes.insert(size);
  }
  EXPECT_EQ(events.size(), 1u);
  EXPECT_LE(bytes.size(), 2u);  // the number of messages has one digit more
  EXPECT_EQ(job.state.closed_waits.size(), 0u);
  expect_verified(job);
}

// A process that runs no attempt of the job dies unnoticed.
void crash(JobFixture& job) {
  if (job.status() == "running") {
    job.crash();
  } else {
    job.reload();
  }
}

AE_TEST("thread/a crash at any event changes nothing") {
  const auto run = [](int crash_at) {
    JobFixture job = thread_job();
    int n = 0;
    const auto step = [&](auto&& action) {
      if (n++ == crash_at) crash(job);
      action();
      if (n++ == crash_at) crash(job);
    };
    job.claim();
    step([&] { job.ok("chat/0", tool_calls_answer({{"a", "look"}})); });
    step([&] { send_message(job, "one", "m1"); });
    step([&] { job.ok("chat/0/0", "'x'"); });
    step([&] { job.ok("chat/1", text_answer("A")); });
    step([&] { job.ok("chat/2", text_answer("B")); });
    step([&] { send_message(job, "one", "m1"); });
    step([&] { send_message(job, "two", "m2"); });
    step([&] { job.ok("chat/3", text_answer("C")); });
    step([&] { end(job); });
    expect_verified(job);
    EXPECT_EQ(job.status(), "completed") << crash_at;
    return canonical(job.state.result);
  };
  const std::string undisturbed = run(-1);
  for (int at = 0; at < 16; ++at) EXPECT_EQ(run(at), undisturbed) << at;
}

// Messages, their repetitions, answers, crashes, pauses and the end in random order: the
// conversation has each message once, in the order of its arrival.
AE_TEST("thread/property: each message is answered once, in order") {
  for (unsigned seed = 0; seed < 12; ++seed) {
    std::mt19937 random(seed);
    JobFixture job = thread_job();
    job.claim();
    std::vector<std::string> sent{"Hello"};
    bool ended = false;
    for (int n = 0; n < 60 && job.status() != "completed"; ++n) {
      switch (random() % 6) {
        case 0:
        case 1: {
          const bool again = sent.size() > 1 && random() % 3 == 0;
          const std::size_t number = again ? 1 + random() % (sent.size() - 1) : sent.size();
          send_message(job, fmt::format("m{}", number), fmt::format("id{}", number));
          if (!job.refused && !again) sent.push_back(fmt::format("m{}", number));
          EXPECT_EQ(job.refused.has_value(), ended && !again) << seed;
          break;
        }
        case 2:
          crash(job);
          break;
        case 3:
          if (random() % 3 == 0) {
            interrupt(job, fmt::format("stop{}", n));
          } else if (random() % 8 == 0 && !ended) {
            end(job);
            ended = true;
          }
          break;
        default:
          if (!job.in_flight.empty()) {
            const std::uint32_t step = job.in_flight.begin()->first;
            const bool turn = job.state.steps[step].is_turn();
            job.answer(step,
                       {.kind = OutcomeKind::success,
                        .result = json(!turn               ? "'r'"
                                       : random() % 3 == 0 ? tool_calls_answer({{"a", "look"}})
                                                           : text_answer("ok"))});
          } else if (job.status() == "queued") {
            job.claim();
          }
      }
      const Step& loop = job.step("chat");
      if (job.status() == "failed") break;  // turns_limit
      if (!loop.loop || n % 8 != 0) continue;
      const auto restored = restore(job.state.job, job.state.seq, checkpoint(job.state, Hash()),
                                    uncached_plan_source());
      ASSERT_TRUE(restored.has_value()) << seed;
      EXPECT_EQ(canonical(state_view(restored->state)), canonical(state_view(job.state)));
    }
    std::vector<std::string> seen;
    for (const Event& event : job.log) {
      const auto* started = as<ToolInvocationStarted>(event);
      if (started == nullptr || started->try_no != 1) continue;
      const Value& messages = started->arguments.value["messages"];
      if (messages.is_array()) seen.emplace_back(messages.items().back().text("content"));
    }
    ASSERT_LE(seen.size(), sent.size()) << seed;
    EXPECT_TRUE(std::equal(seen.begin(), seen.end(), sent.begin())) << seed;
    expect_verified(job);
  }
}

}  // namespace
}  // namespace ae::engine::testing
