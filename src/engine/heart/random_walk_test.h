// advance_randomly: makes one random thing happen to a job: an outcome, a signal, an answer, time.
//
// For tests only. Threads: one owner.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <iterator>
#include <string>

#include "engine/heart/dice_test.h"
#include "engine/heart/job_fixture_test.h"
#include "engine/heart/random_world_test.h"
#include "engine/heart/request.h"

namespace ae::engine::testing {

// A message or an early answer arrives before its wait. Each has the same content as the later one.
inline void send_early(JobFixture& job, Dice& dice) {
  const Node& node = job.plan->nodes[dice.below(job.plan->nodes.size())];
  if (node.kind != NodeKind::wait || node.wait_type == WaitType::timer) return;
  if (node.wait_type == WaitType::message) {
    job.message("channel-" + node.id, "'said'", "m");
    return;
  }
  const bool human = node.wait_type == WaitType::human;
  job.signal_early("key-" + node.id,
                   human ? "{'decision':'approve'}" : fmt::format("'key-{}'", node.id), "e");
}

// Changes a resource externally, or makes its verification fail.
inline void change_externally(JobFixture& job, Dice& dice) {
  job.external_checks.clear();
  for (const auto& [key, change] : job.state.changes) {
    if (!dice.one_in(8)) continue;
    const CheckVerdict verdict =
        dice.one_in(3) ? CheckVerdict::unreachable : CheckVerdict::mismatch;
    job.external_checks[change.resource_id] = {
        .verdict = verdict,
        .expected = change.version,
        .observed = verdict == CheckVerdict::mismatch ? "other" : "",
        .reason = {}};
  }
}

// Answers a failed verification of the first escalated step.
inline void answer_confirmation(JobFixture& job, Dice& dice) {
  for (const auto& [key, change] : job.state.changes) {
    if (!change.escalated) continue;
    job.send_request({.by = "ann",
                      .body = ResolveRequest{.step_id = job.state.steps[change.step].id.text,
                                             .resolution = dice.one_in(4) ? "fail" : "accept"}});
    return;
  }
}

// Makes one random thing happen: an outcome, a signal, an answer, time. False: the job has ended.
inline bool advance_randomly(JobFixture& job, RandomWorld& world, Dice& dice) {
  if (is_terminal(job.state.status)) return false;
  if (dice.one_in(5)) send_early(job, dice);
  if (job.state.is_paused()) {
    if (dice.one_in(2)) job.resume();
  } else if (dice.one_in(12)) {
    job.pause();
  }
  if (job.state.awaits_confirmation() && dice.one_in(2)) answer_confirmation(job, dice);
  if (is_terminal(job.state.status)) return false;
  const std::size_t calls = job.in_flight.size(), waits = job.state.waits.size();
  const std::uint64_t chosen = dice.below(calls + waits + 1);
  if (chosen < calls) {
    auto it = job.in_flight.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(chosen));
    const std::uint32_t step = it->first;
    job.answer(step, world.perform(*job.state.steps[step].call));
  } else if (chosen < calls + waits) {
    auto it = job.state.waits.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(chosen - calls));
    const Wait wait = it->second;
    const std::string key = it->first;
    if (wait.resolve) {
      job.send_request(world.answer(*job.state.steps[wait.step].call));
    } else if (wait.type == WaitType::signal) {
      job.send_request({.body = SignalRequest{.correlation_key = key, .payload = Value(key)}});
    } else if (wait.type == WaitType::human) {
      job.answer_approval(job.state.approval_id(wait), "approve");
    } else if (wait.type == WaitType::message) {
      // A second wait, under another plan, gets a new message.
      const bool was_sent = job.state.message_keys.contains(message_key(wait.channel, {}, "m"));
      job.message(wait.channel, "'said'",
                  was_sent ? "m" + job.state.steps[wait.step].id.text : "m");
    }
  } else {
    job.after(20s);
  }
  return true;
}

}  // namespace ae::engine::testing
