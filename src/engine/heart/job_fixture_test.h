// JobFixture: a job for tests of the engine: with a plan and given outcomes, what is in the log?
//
//   JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
//   job.claim().ok("a", "{'id':7}");
//   EXPECT_EQ(job.status(), "completed");
//
// `claim`, `ok`, `signal`, … decide until the job has no more events, which is one commit. The clock
// moves only by `after`. Its parts: plans (plan_fixture_test.h), the log (job_log_test.h), and the
// worker (job_runner_test.h). For tests only. Threads: one owner.
//
// Long: one short function for each thing that can happen to a job.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/fork/fork.h"
#include "engine/heart/control_request.h"
#include "engine/heart/ingest.h"
#include "engine/heart/job_runner_test.h"
#include "engine/heart/plan_fixture_test.h"
#include "inspect/verify.h"
#include "json/json.h"

namespace ae::engine::testing {

class JobFixture : public JobRunner {
 public:
  explicit JobFixture(std::string_view nodes, const JobFixtureOptions& setup = {})
      : JobFixture(compiled(graph(nodes, setup.more)), setup) {}
  explicit JobFixture(std::shared_ptr<const Plan> of, const JobFixtureOptions& setup = {})
      : JobRunner(std::move(of), setup) {}
  // A fork of another job at this event of its log.
  JobFixture(const Fork& fork, std::string_view id) : JobRunner(fork, id) {}
  Result<Fork> fork(std::uint64_t at) const {
    return fork_at(state, log, at, uncached_plan_source());
  }

  // ---- outcomes and crashes

  JobFixture& claim() {
    begin_attempt();
    return run_until_idle();
  }
  // The process dies: calls in flight never return. The log is read again and a new attempt begins.
  JobFixture& crash() {
    reload();
    return claim();
  }
  // The process dies, and no worker claims the job yet.
  JobFixture& reload() {
    log.resize(commits.back());
    state = folded(log.size());
    in_flight.clear();
    confirmations.clear();
    if (owned) opened_at = now;  // by the next process
    return *this;
  }
  JobFixture& ok(std::string_view node, std::string_view result = "null") {
    return answer(node, {.kind = OutcomeKind::success, .result = json(result)});
  }
  JobFixture& fails(std::string_view node, std::string_view code = "http_400") {
    return answer(node, Outcome{.kind = OutcomeKind::failure,
                                .definite = true,
                                .error_code = std::string(code),
                                .error_message = "the tool failed"});
  }
  JobFixture& times_out(std::string_view node) {
    return answer(node, {.kind = OutcomeKind::timeout,
                         .error_code = "timeout",
                         .error_message = "no answer in time"});
  }
  JobFixture& unknown(std::string_view node, std::string_view code = "unknown") {
    return answer(node, {.kind = OutcomeKind::unknown,
                         .error_code = std::string(code),
                         .error_message = "the connection was lost"});
  }
  JobFixture& answer(std::string_view node, const Outcome& outcome) {
    return answer(index_of(node), outcome);
  }
  // The effect store has this outcome of the newest try, and the log does not: imports it.
  JobFixture& store_effect(std::string_view node, const Outcome& outcome,
                           Arrival arrival = Arrival::late) {
    return store_effect(engine::sent_try_of(state, step(node)), outcome, arrival);
  }
  JobFixture& store_effect(const engine::SentTry& of, const Outcome& outcome,
                           Arrival arrival = Arrival::late) {
    const std::string record = canonical(effect_record(state.job, of, outcome, now, arrival));
    auto events = import_stored_effects(state, {{of.invocation, of.try_no, record}});
    AE_CHECK(events.has_value());
    const bool first = std::ranges::none_of(effects, [&](const VerifyInput::Effect& one) {
      return one.invocation == of.invocation && one.try_no == of.try_no;
    });
    if (first) effects.push_back({of.invocation, of.try_no, record});
    add(*events);
    return run_until_idle();
  }
  JobFixture& answer(std::uint32_t step, const Outcome& outcome) {
    add(record_outcome(state, step, outcome, now));
    in_flight.erase(step);
    return run_until_idle();
  }
  JobFixture& after(Duration span) {
    now = now + span;
    return run_until_idle();
  }

  // ---- control requests; `reply` is the answer, `refused` the error

  JobFixture& signal(std::string_view key, std::string_view payload = "null",
                     std::string_view type = "") {
    return send_request({.body = SignalRequest{.correlation_key = std::string(key),
                                               .wait_type = std::string(type),
                                               .payload = json(payload)}});
  }
  JobFixture& cancel(std::string_view reason = "", std::optional<bool> compensate = {}) {
    return send_request(
        {.by = "someone",
         .body = CancelRequest{.reason = std::string(reason), .compensate = compensate}});
  }
  JobFixture& resolve(std::string_view node, std::string_view resolution,
                      std::optional<std::string_view> result = std::nullopt) {
    ResolveRequest request{.idempotency_key = state.key_of(step(node)).text,
                           .resolution = std::string(resolution)};
    const bool waits = waits_for_settling && resolution == "not_happened" && step(node).call;
    if (const auto settles = waits ? state.settles_at(step(node)) : std::nullopt) {
      now = std::max(now, *settles);
    }
    if (result) request.result = json(*result);
    return send_request({.by = "someone", .body = std::move(request)});
  }
  // A signal that may arrive before its wait.
  JobFixture& signal_early(std::string_view key, std::string_view payload, std::string_view id,
                           std::string_view type = "") {
    return send_request({.id = std::string(id),
                         .body = SignalRequest{.correlation_key = std::string(key),
                                               .wait_type = std::string(type),
                                               .buffer = true,
                                               .payload = json(payload)}});
  }
  JobFixture& message(std::string_view channel, std::string_view payload, std::string_view id) {
    return send_request(
        {.id = std::string(id),
         .body = MessageRequest{.channel = std::string(channel), .payload = json(payload)}});
  }
  // An operator answers a failed verification of a step's changes.
  JobFixture& confirm(std::string_view node, std::string_view resolution,
                      std::string_view note = "") {
    return send_request({.by = "ann",
                         .body = ResolveRequest{.step_id = step(node).id.text,
                                                .resolution = std::string(resolution),
                                                .reason = std::string(note)}});
  }
  // Another plan for the job; `drop` names nodes whose effects are abandoned.
  JobFixture& replan(std::shared_ptr<const Plan> next, const std::vector<std::string>& drop = {}) {
    std::vector<Value> names(drop.begin(), drop.end());
    send_request({.by = "someone",
                  .body = PlanRequest{.task_graph = next->task_graph,
                                      .drop = Value::array(std::move(names))}});
    if (!refused) plan = std::move(next);
    return *this;
  }
  // A process offers its versions to the job.
  JobFixture& offer() { return send_request({.by = "worker-2", .body = VersionRequest{}}); }
  JobFixture& pause() { return send_request({.by = "someone", .body = PauseRequest{}}); }
  JobFixture& resume() { return send_request({.by = "someone", .body = ResumeRequest{}}); }
  // Raises the job's budget; limits as they are stored.
  JobFixture& raise(std::string_view to) {
    return send_request(
        {.by = "ann", .body = BudgetRequest{.limits = limits_of(json(to)).value()}});
  }
  // Answers an open approval or question of a node, by its id in the list of approvals.
  JobFixture& approve(std::string_view node, std::string_view decision = "approve") {
    return answer_approval(open_request_id(node), decision);
  }
  JobFixture& reject(std::string_view node) { return approve(node, "reject"); }
  JobFixture& answer_approval(std::string_view id, std::string_view decision) {
    return send_request(
        {.by = "ann",
         .body = SignalRequest{.approval = std::string(id),
                               .wait_type = "human",
                               .payload = Value::object({{"decision", decision}})}});
  }
  // The id of the open approval or question of a node; "" = none.
  std::string open_request_id(std::string_view node) const {
    for (const auto& [key, wait] : state.waits) {
      if (wait.step == index_of(node)) return state.approval_id(wait);
    }
    return {};
  }
  JobFixture& send_request(const ControlRequest& request) {
    reply = {};
    refused.reset();
    auto applied = apply_request(state, request, context());
    if (!applied) {
      refused = applied.error().code;
      refusal = applied.error().message;
      return *this;
    }
    reply = applied->answer;
    add(applied->events);
    return run_until_idle();
  }

  JobFixture& run_until_idle() {
    decide_until_idle();
    return *this;
  }

  std::vector<VerifyInput::Effect> effects;  // records added by `store_effect`
  bool waits_for_settling = false;  // `not_happened` is decided only after the call has settled
  Value reply;
  std::optional<Code> refused;
  std::string refusal;  // the message of `refused`
};

}  // namespace ae::engine::testing
