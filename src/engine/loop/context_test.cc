// What the requests of a loop with a context policy contain, and what stays in its state.
#include "engine/loop/context.h"

#include <fmt/core.h>

#include <algorithm>
#include <random>
#include <set>

#include "engine/heart/evaluate.h"
#include "engine/loop/loop_fixture_test.h"
#include "engine/replan/replan.h"
#include "engine/state/checkpoint.h"
#include "inspect/view.h"

namespace ae::engine::testing {
namespace {

constexpr std::string_view kTruncate = ", 'context': {'limit': 1000, 'policy': 'truncate'}";
constexpr std::string_view kSummarize =
    ", 'context': {'limit': 1000, 'policy': 'summarize', 'tool': 'model:main', 'model': 'brief'}";

JobFixture context_job(std::string_view policy, std::string_view more = ", 'max_turns': 900") {
  return loop_job(std::string(policy) + std::string(more));
}

void send(JobFixture& job, int n, std::size_t size) {
  job.message("thread", fmt::format("'m{} {}'", n, std::string(size, 'x')), fmt::format("id{}", n));
}

std::string plain_answer(std::string_view text) {
  return fmt::format("{{'text': '{}', 'finish_reason': 'stop'}}", text);
}

// Each tool message follows the assistant message with its call, and each call has its result.
void expect_whole(const Value& messages, const std::string& at) {
  std::set<std::string> open;
  for (const Value& message : messages.items()) {
    if (message.text("role") == "tool") {
      EXPECT_EQ(open.erase(std::string(message.text("call_id"))), 1u) << at;
      continue;
    }
    EXPECT_TRUE(open.empty()) << at;
    const Value& calls = message["tool_calls"];
    for (std::size_t i = 0; calls.is_array() && i < calls.size(); ++i) {
      open.emplace(calls.items()[i].text("id"));
    }
  }
  EXPECT_TRUE(open.empty()) << at;
}

std::uint64_t tokens_of(const Value& request) { return estimate_input_tokens(request); }

std::vector<std::int64_t> recorded_starts(const JobFixture& job) {
  std::vector<std::int64_t> starts;
  for (const auto& started : job.all<ToolInvocationStarted>()) {
    const Value& from = started.arguments.value["from"];
    if (started.try_no == 1 && from.is_integer()) starts.push_back(from.as_int());
  }
  return starts;
}

AE_TEST("context/a long loop leaves out its oldest turns, and keeps its task and system prompt") {
  JobFixture job = context_job(kTruncate);
  job.claim();
  const std::string result = "'" + std::string(300, 'r') + "'";
  for (int turn = 0; turn < 40; ++turn) {
    const std::string at = fmt::format("chat/{}", turn);
    const Value sent = request(job, at);
    EXPECT_LE(tokens_of(sent), 1000u) << at;
    expect_whole(sent["messages"], at);
    EXPECT_EQ(sent["messages"].items()[0].text("content"), "Be kind");
    EXPECT_EQ(sent["messages"].items()[1].text("content"), "Hello");
    job.ok(at, tool_calls_answer({{"a", "look", "{'q': 1}"}, {"b", "look", "{'q': 2}"}}));
    job.ok(at + "/0", result).ok(at + "/1", result);
  }
  job.ok("chat/40", text_answer("Done"));
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.result["chat"]["turns"], Value(41));
  const std::vector<std::int64_t> starts = recorded_starts(job);
  EXPECT_GT(starts.size(), 3u);
  EXPECT_TRUE(std::ranges::is_sorted(starts, std::less_equal<>()));
  expect_verified(job);
}

AE_TEST("context/a thread leaves out whole exchanges first") {
  JobFixture job = context_job(kTruncate, ", 'thread': true");
  job.claim().ok("chat/0", plain_answer("a0"));
  for (int n = 1; n <= 30; ++n) {
    send(job, n, 400);
    const std::string at = fmt::format("chat/{}", n);
    const Value messages = request(job, at)["messages"];
    EXPECT_LE(tokens_of(request(job, at)), 1000u);
    EXPECT_EQ(messages.items()[0].text("content"), "Be kind");
    EXPECT_EQ(messages.items()[1].text("role"), "user");
    EXPECT_TRUE(messages.items().back().text("content").starts_with(fmt::format("m{} ", n)));
    job.ok(at, plain_answer(fmt::format("a{}", n)));
    ASSERT_EQ(job.status(), "waiting");
  }
  EXPECT_GT(recorded_starts(job).size(), 3u);
  expect_verified(job);
}

AE_TEST("context/the reported usage decides, not the estimate") {
  JobFixture job = context_job(kTruncate, ", 'thread': true");
  job.claim().ok("chat/0", text_answer("a"));
  send(job, 1, 30);
  EXPECT_EQ(request(job, "chat/1")["messages"].size(), 4u);
  job.ok("chat/1", "{'text': 'b', 'usage': {'input_tokens': 900, 'output_tokens': 20}}");
  send(job, 2, 30);
  EXPECT_EQ(request(job, "chat/2")["messages"].size(), 2u);
  EXPECT_EQ(recorded_starts(job), std::vector<std::int64_t>{2});
  expect_verified(job);
}

AE_TEST("context/an exchange that does not fit fails before it is sent") {
  for (const std::string_view policy : {kTruncate, kSummarize}) {
    JobFixture job = context_job(policy, ", 'thread': true");
    job.claim().ok("chat/0", text_answer("a"));
    const std::size_t sent = job.sent.size();
    send(job, 1, 4000);
    EXPECT_EQ(job.status(), "failed");
    EXPECT_EQ(job.state.error->code, "context_exceeded");
    EXPECT_EQ(job.sent.size(), sent) << "also no summary";
    expect_verified(job);
    auto fork = job.fork(job.state.seq);
    ASSERT_TRUE(fork.has_value()) << fork.error().message;
    JobFixture next(*fork, "job-2");
    next.claim();
    EXPECT_EQ(next.sent.size(), 0u) << "the answered exchange is kept, and so is the message";
    EXPECT_EQ(next.state.error->code, "context_exceeded");
  }
  JobFixture prompt =
      loop_job(kTruncate, {.input = fmt::format("{{'message': '{}'}}", std::string(4000, 'x'))});
  prompt.claim();
  EXPECT_EQ(prompt.state.error->code, "context_exceeded");
  EXPECT_EQ(prompt.sent.size(), 0u);
  JobFixture result = context_job(kTruncate);
  result.claim().ok("chat/0", tool_calls_answer({{"a", "look"}}));
  result.ok("chat/0/0", "'" + std::string(4000, 'r') + "'");
  EXPECT_EQ(result.state.error->code, "context_exceeded");
  expect_verified(result);
}

// A thread before the answer of its first summary. The result: the turn that follows.
int begin_summary(JobFixture& job) {
  job.claim();
  int turn = 0;
  while (job.step("chat").loop->summary == kNoStep && turn < 20) {
    job.ok(fmt::format("chat/{}", turn++), plain_answer("ok"));
    send(job, turn, 400);
  }
  return turn;
}

AE_TEST("context/a summary takes the place of what is left out") {
  JobFixture job = context_job(kSummarize, ", 'thread': true");
  const int turn = begin_summary(job);
  const std::string summary = fmt::format("chat/{}/summary", turn);
  const Value summary_request = request(job, summary);
  EXPECT_EQ(summary_request.text("model"), "brief");
  EXPECT_EQ(summary_request["max_tokens"], Value(250));
  EXPECT_NE(summary_request["messages"].items()[1].text("content").find("Hello"),
            std::string::npos);
  job.ok(summary, plain_answer("They said hello"));
  const std::string at = fmt::format("chat/{}", turn);
  const Value messages = request(job, at)["messages"];
  EXPECT_TRUE(messages.items()[1].text("content").ends_with("They said hello"));
  EXPECT_TRUE(messages.items().back().text("content").starts_with(fmt::format("m{} ", turn)));
  job.ok(at, plain_answer("then"));
  send(job, turn + 1, 10);
  const Value next = request(job, fmt::format("chat/{}", turn + 1))["messages"];
  EXPECT_EQ(next.items()[1], messages.items()[1]);
  EXPECT_EQ(next.size(), messages.size() + 2);
  expect_verified(job);
}

AE_TEST("context/a turn has the summary that its model gave, and no other") {
  JobFixture job = context_job(kSummarize, ", 'thread': true");
  const int turn = begin_summary(job);
  job.ok(fmt::format("chat/{}/summary", turn), plain_answer("They said hello"));
  const Event declared = *std::ranges::find_if(job.log, [](const Event& event) {
    const auto* started = as<ToolInvocationStarted>(event);
    return started != nullptr && started->arguments.value.find("summary") != nullptr;
  });
  const auto recorded = *as<ToolInvocationStarted>(declared);
  const auto from = static_cast<std::uint32_t>(recorded.arguments.value["from"].as_int());
  const auto applied = [&](const TurnExtras& extras) {
    State state = job.folded(declared.seq - 1);
    ToolInvocationStarted event = recorded;
    const auto other = turn_arguments_of(state, state.steps[job.index_of("chat")],
                                         static_cast<std::uint32_t>(turn), extras);
    AE_CHECK(other.has_value());
    event.arguments.value = *other;
    event.arguments_hash = *hash_from_hex(state.hash_of(*other));
    const auto done = apply(state, event, declared.created_at, uncached_plan_source());
    return done ? std::string("applied") : std::string(code_name(done.error().code));
  };
  EXPECT_EQ(applied({.from = from, .summary = "They said hello"}), "applied");
  EXPECT_EQ(applied({.from = from}), "applied") << "another version may not use it";
  EXPECT_EQ(applied({.from = from, .summary = "They said nothing"}), "log_corrupt");
  EXPECT_EQ(applied({.from = from - 1, .summary = "They said hello"}), "log_corrupt");
}

AE_TEST("context/a summary whose call is not declared yet has the same arguments") {
  JobFixture job = context_job(kSummarize, ", 'thread': true");
  const std::string path = fmt::format("chat/{}/summary", begin_summary(job));
  const auto started = std::ranges::find_if(job.log, [&](const Event& event) {
    const auto* node = as<NodeStarted>(event);
    return node != nullptr && node->step_id == job.step(path).id;
  });
  ASSERT_NE(started, job.log.end());
  const State state = job.folded(started->seq);
  const auto arguments = arguments_of(state, *state.find_step(job.step(path).id));
  ASSERT_TRUE(arguments.has_value()) << arguments.error().message;
  EXPECT_EQ(canonical(*arguments), canonical(job.step(path).call->arguments));
}

AE_TEST("context/without a usable summary the messages are only left out") {
  for (const bool refused : {false, true}) {
    JobFixture job = context_job(kSummarize);
    job.claim();
    const std::string result = "'" + std::string(1200, 'r') + "'";
    std::string summary;
    for (int turn = 0; turn < 6; ++turn) {
      const std::string at = fmt::format("chat/{}", turn);
      if (job.step("chat").loop->summary != kNoStep) {
        summary = at + "/summary";
        if (refused) {
          job.fails(summary);
        } else {
          job.ok(summary, plain_answer(""));
        }
      }
      EXPECT_LE(tokens_of(request(job, at)), 1000u);
      EXPECT_TRUE(job.step(at).call->arguments["summary"].is_null());
      job.ok(at, tool_calls_answer({{"a", "look"}})).ok(at + "/0", result);
    }
    EXPECT_FALSE(summary.empty());
    EXPECT_FALSE(recorded_starts(job).empty());
    expect_verified(job);
  }
}

// A process that reads the log sends the same requests, also if the policy would decide otherwise.
AE_TEST("context/requests depend on the log alone") {
  for (const std::string_view policy : {kTruncate, kSummarize}) {
    for (unsigned seed = 0; seed < 3; ++seed) {
      std::mt19937 random(seed);
      JobFixture job = context_job(policy, ", 'thread': true");
      job.claim();
      for (int n = 0, number = 0; n < 120 && job.status() != "failed"; ++n) {
        if (job.in_flight.empty()) {
          if (job.status() == "waiting") {
            send(job, ++number, random() % 600);
          } else if (job.status() == "queued") {
            job.claim();
          }
          continue;
        }
        const std::uint32_t index = job.in_flight.begin()->first;
        const Step& step = job.state.steps[index];
        if (!step.is_loop_call()) {
          const auto sent = sent_request(job.state, step);
          ASSERT_TRUE(sent.has_value()) << sent.error().message;
          EXPECT_LE(tokens_of(*sent), 1000u);
          expect_whole((*sent)["messages"], fmt::format("{} {}", seed, n));
          const State folded = job.folded(job.log.size());
          const Step* const again = folded.find_step(step.id);
          ASSERT_NE(again, nullptr);
          EXPECT_EQ(canonical(*sent_request(folded, *again)), canonical(*sent));
          const auto restored = restore(job.state.job, job.state.seq, checkpoint(job.state, Hash()),
                                        uncached_plan_source());
          ASSERT_TRUE(restored.has_value());
          EXPECT_EQ(canonical(state_view(restored->state)), canonical(state_view(job.state)));
        }
        if (random() % 10 == 0) {
          job.crash();
          continue;
        }
        const std::string text(random() % 200, 'y');
        const bool fails = step.is_summary() && random() % 3 == 0;
        const bool calls = step.is_turn() && random() % 2 == 0;
        const Value answer = json(step.is_loop_call() ? "'" + text + "'"
                                  : calls             ? tool_calls_answer({{"a", "look"}})
                                                      : plain_answer("y" + text));
        job.answer(index, {.kind = fails ? OutcomeKind::failure : OutcomeKind::success,
                           .definite = fails,
                           .result = fails ? Value() : answer,
                           .error_code = fails ? "http_400" : ""});
      }
      const std::vector<std::int64_t> starts = recorded_starts(job);
      EXPECT_FALSE(starts.empty()) << seed;
      EXPECT_TRUE(std::ranges::is_sorted(starts, std::less_equal<>())) << seed;
      expect_verified(job);
    }
  }
}

// Another version may estimate otherwise.
AE_TEST("context/the recorded turn counts, not the one that the policy would choose now") {
  JobFixture job = context_job(kTruncate, ", 'thread': true");
  job.claim().ok("chat/0", plain_answer("a0"));
  for (int n = 1; recorded_starts(job).empty(); ++n) {
    if (n > 1) job.ok(fmt::format("chat/{}", n - 1), plain_answer("ok"));
    send(job, n, 400);
    ASSERT_LT(n, 20);
  }
  const auto declared = std::ranges::find_if(job.log, [](const Event& event) {
    const auto* started = as<ToolInvocationStarted>(event);
    return started != nullptr && started->arguments.value.find("from") != nullptr;
  });
  auto event = *as<ToolInvocationStarted>(*declared);
  State state = job.folded(declared->seq - 1);
  const Step& loop = state.steps[job.index_of("chat")];
  const auto turn = state.find_step(event.step_id)->turn;
  const auto from = static_cast<std::uint32_t>(event.arguments.value["from"].as_int());
  ASSERT_GT(from, 1u);
  const auto other = turn_arguments_of(state, loop, turn, TurnExtras{.from = from - 1});
  ASSERT_TRUE(other.has_value());
  event.arguments.value = *other;
  event.arguments_hash = *hash_from_hex(state.hash_of(*other));
  ASSERT_TRUE(apply(state, event, declared->created_at, uncached_plan_source()));
  EXPECT_EQ(state.steps[job.index_of("chat")].loop->context.from, from - 1);
  const auto sent = sent_request(state, *state.find_step(event.step_id));
  ASSERT_TRUE(sent.has_value()) << sent.error().message;
  EXPECT_EQ((*sent)["messages"].size(),
            request(job, fmt::format("chat/{}", turn))["messages"].size() + 2);
  event.arguments.value = other->with("from", std::uint64_t{turn} + 1);
  State again = job.folded(declared->seq - 1);
  EXPECT_FALSE(apply(again, event, declared->created_at, uncached_plan_source()));
}

AE_TEST("context/a turn costs the same after 200 turns, in the log and in the state") {
  JobFixture job = context_job(kTruncate, ", 'thread': true");
  job.claim().ok("chat/0", plain_answer("a"));
  std::vector<std::size_t> bytes, states, steps;
  for (int n = 1; n <= 300; ++n) {
    const std::size_t before = job.log.size();
    send(job, n, 60);
    job.ok(fmt::format("chat/{}", n), plain_answer("answer"));
    std::size_t written = 0;
    for (std::size_t i = before; i < job.log.size(); ++i) {
      written += canonical(payload_json(job.log[i].body)).size();
    }
    bytes.push_back(written);
    states.push_back(checkpoint(job.state, {}).size());
    steps.push_back(job.state.steps.size());
  }
  const auto most = [](const std::vector<std::size_t>& all, std::size_t from, std::size_t to) {
    return *std::ranges::max_element(all.begin() + static_cast<std::ptrdiff_t>(from),
                                     all.begin() + static_cast<std::ptrdiff_t>(to));
  };
  EXPECT_LE(most(bytes, 200, 300), most(bytes, 20, 120) + 64);
  EXPECT_LE(most(steps, 200, 300), most(steps, 100, 200) + 2);
  // The ids of all messages are kept, and the state has nothing else that grows.
  EXPECT_LE(most(states, 200, 300), most(states, 100, 200) + 100 * 120);
  EXPECT_GT(job.step("chat").loop->first_turn, 200u);
  expect_verified(job);
}

AE_TEST("context/an effect stays in the state, so that another plan must name it") {
  JobFixture job = context_job(kTruncate);
  job.claim();
  const std::string result = "'" + std::string(300, 'r') + "'";
  job.ok("chat/0", tool_calls_answer({{"a", "put"}})).ok("chat/0/0", result);
  for (int turn = 1; turn < 90; ++turn) {
    const std::string at = fmt::format("chat/{}", turn);
    job.ok(at, tool_calls_answer({{"a", "look", "{'q': 1}"}})).ok(at + "/0", result);
  }
  EXPECT_LT(job.state.steps.size(), 150u) << "reads are dropped";
  const auto is_kept = [&](const Step& step) { return is_effect(job.state, step); };
  EXPECT_EQ(std::ranges::count_if(job.state.steps, is_kept), 1);
  expect_verified(job);
}

AE_TEST("context/a fork has the turns that its origin left out") {
  JobFixture job = context_job(kTruncate, ", 'thread': true");
  job.claim().ok("chat/0", plain_answer("a"));
  for (int n = 1; n <= 100; ++n) {
    send(job, n, 400);
    job.ok(fmt::format("chat/{}", n), plain_answer("answer"));
  }
  ASSERT_GT(job.step("chat").loop->first_turn, 0u);
  auto forked = job.fork(job.log.size());
  ASSERT_TRUE(forked.has_value()) << forked.error().message;
  JobFixture again(*forked, "job-2");
  again.claim();
  ASSERT_EQ(again.status(), "waiting") << again.log_text();
  send(again, 1, 20);
  const Value sent = request(again, "chat/101");
  EXPECT_LE(tokens_of(sent), 1000u);
  expect_verified(again);
}

}  // namespace
}  // namespace ae::engine::testing
