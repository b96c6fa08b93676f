// Shared by the tests of code.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/fixtures/code_fixture_test.h"
#include "engine/state/checkpoint.h"
#include "inspect/verify.h"
#include "inspect/view.h"

namespace ae::engine::testing {

// Arguments with one member.
inline Value argument(std::string_view name, Value value) {
  return Value::object({{std::string(name), std::move(value)}});
}

inline NewWait signal_wait(std::string_view key) {
  NewWait wait;
  wait.type = WaitType::signal;
  wait.key = key;
  return wait;
}
inline NewWait human_wait(std::string_view key) {
  NewWait wait;
  wait.type = WaitType::human;
  wait.key = key;
  return wait;
}
inline NewWait timer_wait(Duration lasts) {
  NewWait wait;
  wait.type = WaitType::timer;
  wait.lasts = lasts;
  return wait;
}
inline NewWait message_wait(std::string_view channel) {
  NewWait wait;
  wait.type = WaitType::message;
  wait.channel = channel;
  return wait;
}

// The start of a request as `decide` records it.
inline NodeStarted started(const CodeJob& job, std::string_view position, NodeKind kind,
                           std::string_view tool = {}) {
  return {.kind = to_text(kind),
          .node_id = "code",
          .position = std::string(position),
          .step_id = job.state.request_step_id(job.step("code"), position, kind),
          .tool_name = none_if_empty(tool),
          .try_no = 1};
}

// Is the event impossible after the first `events`? 0: after all of the log.
inline bool is_corrupt(const CodeJob& job, const EventBody& event, std::size_t events = 0) {
  State state = job.folded(events == 0 ? job.log.size() : events);
  const auto applied = apply(state, event, job.now, uncached_plan_source());
  return !applied && applied.error().code == Code::log_corrupt;
}
// Is the newest event like this one impossible in its place, once it is changed?
template <class E>
bool is_corrupt_instead(const CodeJob& job, E event, const auto& change) {
  std::size_t at = job.log.size();
  while (at > 0 && !(job.log[at - 1].body == EventBody(event))) at--;
  AE_CHECK(at > 0, job.log_text());
  change(event);
  return is_corrupt(job, event, at - 1);
}

inline void expect_proved(const CodeJob& job) {
  VerifyInput input;
  input.job = job.state.job;
  input.events = job.log;
  input.effects = job.effects;
  const Verification all = verify(input, uncached_plan_source());
  EXPECT_TRUE(all.ok) << canonical(all.to_json()) << "\n" << job.log_text();
  EXPECT_EQ(state_view(job.folded(job.log.size())), state_view(job.state));
}

// A checkpoint at every event, and its tail, give the state of the whole log.
inline void expect_every_prefix(const CodeJob& job) {
  const State whole = job.folded(job.log.size());
  const std::string bytes = checkpoint(whole, Hash{});
  for (std::size_t at = 2; at <= job.log.size(); ++at) {
    auto restored =
        restore(job.state.job, at, checkpoint(job.folded(at), Hash{}), uncached_plan_source());
    ASSERT_TRUE(restored) << restored.error().message;
    State state = std::move(restored->state);
    for (std::size_t i = at; i < job.log.size(); ++i) {
      ASSERT_TRUE(apply(state, job.log[i].body, job.log[i].created_at, uncached_plan_source()));
    }
    ASSERT_EQ(checkpoint(state, Hash{}), bytes) << "from event " << at << "\n" << job.log_text();
  }
}

// The process dies, whatever the job does; the next routine replays.
inline CodeJob& lose(CodeJob& job) {
  if (job.state.status == JobStatus::running) {
    job.crash();
  } else {
    job.reload();
  }
  return job;
}

}  // namespace ae::engine::testing
