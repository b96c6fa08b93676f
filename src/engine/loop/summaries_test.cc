// Which values `redact` erases with a message: the summaries that repeat it.
#include "engine/loop/summaries.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "engine/fixtures/stored_job_test.h"
#include "engine/loop/loop_fixture_test.h"

namespace ae::engine::testing {
namespace {

using Values = std::set<std::pair<std::uint64_t, std::string>>;

// A thread that has ended, with some summaries: "summary of turn N" is in turn N.
JobFixture summarized_thread() {
  JobFixture job = loop_job(
      ", 'thread': true, 'context': {'limit': 1000, 'policy': 'summarize', 'tool': 'model:main',"
      " 'model': 'brief'}");
  job.claim();
  for (int turn = 0; turn < 30; ++turn) {
    if (job.step("chat").loop->summary != kNoStep) {
      job.ok(fmt::format("chat/{}/summary", turn),
             fmt::format("{{'text': 'summary of turn {}', 'finish_reason': 'stop'}}", turn));
    }
    job.ok(fmt::format("chat/{}", turn),
           fmt::format("{{'text': 'answer {}', 'finish_reason': 'stop'}}", turn));
    job.message("thread", fmt::format("'m{} {}'", turn + 1, std::string(400, 'x')),
                fmt::format("id{}", turn + 1));
  }
  job.cancel();
  AE_CHECK(!job.in_flight.empty(), job.log_text());
  job.ok("chat/30", "{'text': 'answer 30', 'finish_reason': 'stop'}");
  AE_CHECK(is_terminal(job.state.status), job.log_text());
  return job;
}

std::vector<Event> events_of(const JobFixture& job) {
  return StoredJob(job).opened(job.state.job).events;
}

State whole(const JobFixture& job, const std::vector<Event>& events) {
  IncrementalFold folding(job.state.job, events, uncached_plan_source(), true);
  while (folding.next()) {
  }
  auto state = std::move(folding).take();
  AE_CHECK(state.has_value(), state ? "" : state.error().message);
  return *std::move(state);
}

// The first event whose payload contains the text.
std::uint64_t seq_with(const std::vector<Event>& events, EventType type, std::string_view text) {
  const auto found = std::ranges::find_if(events, [&](const Event& event) {
    return event.type == type && canonical(payload_json(event.body)).find(text) != text.npos;
  });
  return found == events.end() ? 0 : found->seq;
}

struct Used {
  std::uint32_t turn = 0, from = 0;
};
std::vector<Used> summaries_in(const std::vector<Event>& events, const State& all) {
  std::vector<Used> used;
  for (const Event& event : events) {
    const auto* started = as<ToolInvocationStarted>(event);
    if (!started || started->arguments.value.find("summary") == nullptr) continue;
    used.push_back({all.find_step(started->step_id)->turn,
                    static_cast<std::uint32_t>(started->arguments.value["from"].as_int())});
  }
  return used;
}

// The numbers of the turns whose summary is among the values.
std::set<std::uint32_t> turns_of(const Values& values, const std::vector<Event>& events,
                                 const State& all) {
  std::set<std::uint32_t> turns;
  for (const auto& [seq, field] : values) {
    const auto* started = as<ToolInvocationStarted>(events[seq - 1]);
    if (started) turns.insert(all.find_step(started->step_id)->turn);
  }
  return turns;
}

AE_TEST("summaries/a message is in the first summary that covers it, and in all later ones") {
  const JobFixture job = summarized_thread();
  const std::vector<Event> events = events_of(job);
  const State all = whole(job, events);
  const std::vector<Used> used = summaries_in(events, all);
  ASSERT_GE(used.size(), 3u);
  for (std::uint32_t turn = 1; turn < 30; ++turn) {
    std::set<std::uint32_t> expected;
    for (const Used& one : used) {
      if (one.from > turn) expected.insert(one.turn);
    }
    for (const auto type : {EventType::agent_message, EventType::tool_invocation_finished}) {
      const bool is_message = type == EventType::agent_message;
      const std::string text =
          is_message ? fmt::format("m{} ", turn) : fmt::format("answer {}\"", turn);
      const std::uint64_t seq = seq_with(events, type, text);
      ASSERT_GT(seq, 0u) << text;
      EXPECT_EQ(turns_of(summaries_of(all, events, {seq}), events, all), expected) << text;
    }
  }
}

AE_TEST("summaries/a summary repeats the one before it, and the text in its turn") {
  const JobFixture job = summarized_thread();
  const std::vector<Event> events = events_of(job);
  const State all = whole(job, events);
  const std::vector<Used> used = summaries_in(events, all);
  ASSERT_GE(used.size(), 3u);
  const std::string text = fmt::format("summary of turn {}", used[1].turn);
  const std::uint64_t answer = seq_with(events, EventType::tool_invocation_finished, text);
  const std::uint64_t turn = seq_with(events, EventType::tool_invocation_started, text);
  std::set<std::uint32_t> later;
  for (std::size_t i = 1; i < used.size(); ++i) later.insert(used[i].turn);
  for (const std::uint64_t seq : {answer, turn}) {
    EXPECT_EQ(turns_of(summaries_of(all, events, {seq}), events, all), later);
  }
}

AE_TEST("summaries/without its summaries the log is folded and verified, and has no text of them") {
  const JobFixture job = summarized_thread();
  const std::vector<Event> events = events_of(job);
  const State all = whole(job, events);
  const std::uint64_t message = seq_with(events, EventType::agent_message, "m1 ");
  const Values values = summaries_of(all, events, {message});
  StoredJob stored(job);
  stored.redact(job.state.job, [&](const Event& event, std::string_view field) {
    return event.seq == message || values.contains({event.seq, std::string(field)});
  });
  const std::vector<Event> left = stored.opened(job.state.job).events;
  for (const Event& event : left) {
    EXPECT_EQ(canonical(payload_json(event.body)).find("summary of turn"), std::string::npos)
        << event.seq;
  }
  VerifyInput input;
  input.job = job.state.job;
  input.events = left;
  const Verification proof = verify(input, uncached_plan_source());
  EXPECT_TRUE(proof.ok) << canonical(proof.to_json());
  EXPECT_TRUE(fold(job.state.job, left, uncached_plan_source()));
}

AE_TEST("summaries/an input and a log without summaries name none") {
  const JobFixture job = summarized_thread();
  const std::vector<Event> events = events_of(job);
  EXPECT_TRUE(has_summaries(events));
  EXPECT_TRUE(summaries_of(whole(job, events), events, {1}).empty());
  JobFixture plain = loop_job();
  plain.claim().ok("chat/0", text_answer("Done"));
  EXPECT_FALSE(has_summaries(events_of(plain)));
}

}  // namespace
}  // namespace ae::engine::testing
