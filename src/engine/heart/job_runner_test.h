// JobRunner: does for the job of a test what a worker does: begins attempts, decides until there is
// nothing to do, and records the calls that were sent. The clock does not move.
//
// For tests only. Threads: one owner.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/fork/fork.h"
#include "engine/heart/control_request.h"
#include "engine/heart/decide.h"
#include "engine/heart/ingest.h"
#include "engine/heart/job_log_test.h"
#include "engine/heart/plan_fixture_test.h"

namespace ae::engine::testing {

using namespace std::chrono_literals;

inline constexpr std::string_view kBlind = "00112233445566778899aabbccddeeff";

struct JobFixtureOptions {
  std::string_view more = "{}";  // output, deadline, max_attempts, tools of the task graph
  std::string_view input = "{}";
  std::optional<Duration> deadline;
  std::string_view id = "job-1";
  std::string_view planned_by = "file";  // or model:NAME
  std::string_view blind = kBlind;       // "" = none, as in jobs of earlier builds
};

class JobRunner : public JobLog {
 public:
  struct SentTry {
    StepId step;
    std::uint32_t try_no = 0;
    std::string tool, external_key, key;
    Value arguments;
  };

  explicit JobRunner(std::shared_ptr<const Plan> of, const JobFixtureOptions& setup)
      : JobLog(std::move(of), setup.id) {
    NewJobEvents new_job{.agent = "tester",
                         .input = json(setup.input),
                         .labels = {},
                         .idempotency_key = {},
                         .execution_version = "v1",
                         .deadline = {},
                         .plan = plan.get()};
    new_job.now = now;
    new_job.blind = setup.blind;
    if (setup.deadline) new_job.deadline = now + *setup.deadline;
    std::vector<EventBody> first = job_events(new_job);
    for (EventBody& event : first) {
      if (auto* plan_made = std::get_if<PlanGenerated>(&event)) {
        plan_made->planned_by = std::string(setup.planned_by);
      }
    }
    add(first);
    commit();
  }

  // A fork of another job at this event of its log.
  JobRunner(const Fork& fork, std::string_view id) : JobLog(fork.plan, id) {
    add(job_events({.agent = fork.agent,
                    .input = fork.input,
                    .labels = {},
                    .idempotency_key = {},
                    .execution_version = fork.execution_version,
                    .deadline = {},
                    .plan = plan.get(),
                    .planner_version = fork.planner_version,
                    .forked_from = fork.forked_from,
                    .imported = fork.imported,
                    .blind = fork.blind_erased ? std::string(32, 'f') : fork.blind,
                    .budget = fork.budget,
                    .spent = fork.spent,
                    .now = now}));
    commit();
  }

  // Decides until there are no more events, and takes them as one commit.
  void decide_until_idle() {
    std::optional<DecisionCursor> from;
    while (decides) {
      if (auto due = state.next_due(); due && *due <= now) {
        add(apply_request(state, {.body = TimersRequest{}}, context())->events);
        from.reset();
      }
      Decision decision = decide(state, context(), limits, from ? &*from : nullptr);
      from = decision.unfinished;
      decisions++;
      work += decision.work;
      most_work = std::max(most_work, decision.work);
      decide_again_at = decision.decide_again_at;
      requested_checks = decision.confirm;
      if (decision.events.empty() && !decision.confirm.empty() && answers_checks) {
        for (const std::string& key : decision.confirm) record_check(key);
        continue;
      }
      if (decision.events.empty() && from) continue;
      if (decision.events.empty()) break;
      add(decision.events);
      for (const StepId& id : decision.perform) record_sent(id);
      if (decision.release) {
        releases++;
        if (claims_when_free && state.status == JobStatus::queued && !state.not_before)
          begin_attempt();
        break;
      }
    }
    commit();
    // A free queued job is claimed at once: these tests do not test the claimer.
    const bool free = state.status == JobStatus::queued && state.epoch > 0;
    if (free && claims_when_free && decides && (!state.not_before || *state.not_before <= now)) {
      begin_attempt();
      decide_until_idle();
    }
  }
  void begin_attempt() {
    confirmations.clear();
    attempt_count++;
    add({running_event(AttemptId(fmt::format("attempt-{}", attempt_count)), state.epoch + 1,
                       "worker", opened_at)});
    in_flight.clear();
  }
  DecisionContext context() {
    return {.now = now,
            .lease_until = now + 30s,
            .owned = owned,
            .jitter_seed = jitter_seed,
            .entropy = {jitter_seed, 1, 2, 3},
            .tool_versions = versions.empty() ? nullptr : &versions,
            .execution_version = &execution_version,
            .confirmations = &confirmations};
  }
  std::size_t tries(std::string_view node) const {
    return static_cast<std::size_t>(std::ranges::count(sent, step(node).id, &SentTry::step));
  }

  std::vector<SentTry> sent;                         // every call that was sent, in order
  std::map<std::uint32_t, std::uint32_t> in_flight;  // step → try
  DecideLimits limits;
  std::uint64_t jitter_seed = 7;
  bool owned = true;
  std::optional<Instant> opened_at;      // of the store, by the process that has the job
  bool decides = true;                   // false: events are only added
  bool claims_when_free = true;          // false: a free job stays free
  std::vector<std::string> versions;     // of the offered tools; empty = as planned
  std::string execution_version = "v1";  // that the process offers
  // The result of verifying a resource, by its id; missing = unchanged.
  std::map<std::string, CheckResult> external_checks;
  std::vector<std::string> checked;  // the ids of verified resources, in order
  bool answers_checks = true;        // false: verifiers never answer
  std::vector<std::string> requested_checks;
  Confirmations confirmations;
  std::optional<Instant> decide_again_at;
  int releases = 0;
  std::size_t decisions = 0;
  Work work = 0, most_work = 0;  // of all decisions; of one
  int attempt_count = 0;

 private:
  void record_check(const std::string& key) {
    const Change& change = state.changes.at(key);
    checked.push_back(change.resource_id);
    auto found = external_checks.find(change.resource_id);
    const CheckResult as_it_was{
        .verdict = CheckVerdict::match, .expected = {}, .observed = {}, .reason = {}};
    confirmations[key] = {change.seq, found == external_checks.end() ? as_it_was : found->second};
  }
  void record_sent(const StepId& id) {
    const std::uint32_t index = state.index_of(id);
    const Invocation& call = *state.steps[index].call;
    sent.push_back(
        {id, call.try_no, call.tool, call.external_key.text, call.key.text, call.arguments});
    in_flight[index] = call.try_no;
  }
};

}  // namespace ae::engine::testing
