// JobFixture: a job for tests of the engine: with a plan and given outcomes, what is in the log?
//
//   JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
//   job.claim().ok("a", "{'id':7}");
//   EXPECT_EQ(job.status(), "completed");
//
// JSON may be written with ' for ". The plan can use the tools of kTools without declaring them.
// Every event is checked against the event table and applied when it is added. `claim`, `ok`,
// `signal`, … decide until the job has no more events, which is one commit. The clock moves only by
// `after`. For tests only. Threads: one owner.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/fork/fork.h"
#include "engine/heart/decide.h"
#include "engine/heart/ingest.h"
#include "engine/state/state.h"
#include "inspect/verify.h"
#include "json/json.h"

namespace ae {
inline void PrintTo(const Value& value, std::ostream* out) { *out << canonical(value); }
}  // namespace ae

namespace ae::engine::testing {

using namespace std::chrono_literals;

inline Value json(std::string_view text) {
  std::string quoted(text);
  std::ranges::replace(quoted, '\'', '"');
  auto value = parse_json(quoted);
  AE_CHECK(value.has_value(), quoted + ": " + (value ? "" : value.error().message));
  return *value;
}

// A tool's policy in a plan; members of `changes` replace the defaults.
inline Value tool_policy(std::string_view effect, std::string_view on_in_doubt,
                         const Value& changes = {}) {
  Value policy = json(R"({'timeout': '30s', 'grace': '30s', 'dedupe_window': '24h',
      'version': '0123456789abcdef',
      'retry': {'max_attempts': 1, 'initial_backoff': '200ms', 'max_backoff': '10s',
                'multiplier': 2, 'retry_on': ['connect']}})");
  policy = policy.with("effect", effect).with("on_in_doubt", on_in_doubt);
  if (!changes.is_object()) return policy;
  for (const auto& [key, value] : changes.members()) {
    Value merged = value;
    if (key == "retry") {
      merged = policy["retry"];
      for (const auto& [name, part] : value.members()) merged = merged.with(name, part);
    }
    policy = policy.with(key, merged);
  }
  return policy;
}

inline Value usual_tools() {
  const Value thrice =
      json("{'retry': {'max_attempts': 3, 'retry_on': ['connect', 'timeout', '5xx', 'unknown']}}");
  return Value::object({{"look", tool_policy("read", "resend", thrice)},
                        {"put", tool_policy("idempotent", "resend", thrice)},
                        {"once", tool_policy("idempotent", "resend")},
                        {"pay", tool_policy("at_most_once", "park")},
                        {"risk", tool_policy("at_most_once", "fail")}});
}

// {"nodes": …, "tools": …}: a whole task graph from its nodes; `more` adds members and tools.
inline Value graph(std::string_view nodes, std::string_view more = "{}") {
  Value graph = Value::object({{"nodes", json(nodes)}, {"schema", 1}});
  Value tools = usual_tools();
  const Value extra = json(more);
  for (const auto& [key, value] : extra.members()) {
    if (key != "tools") {
      graph = graph.with(key, value);
      continue;
    }
    for (const auto& [name, changes] : value.members()) {
      tools = tools.with(name, tool_policy(changes.text("effect", "idempotent"),
                                           changes.text("on_in_doubt", "resend"), changes));
    }
  }
  return graph.with("tools", tools);
}

inline std::shared_ptr<const Plan> compiled(const Value& graph) {
  auto plan = Plan::compile(graph);
  AE_CHECK(plan.has_value(), plan ? "" : plan.error().message);
  return *plan;
}

// Calls visit(event) for each event of type E, as its struct.
template <class E>
void each(auto& events, const auto& visit) {
  for (auto& event : events) {
    if (auto* body = std::get_if<E>(&event.body)) visit(*body);
  }
}

// The placeholder of an erased value.
inline Erasable erased_value() {
  Erasable gone(Value::object({{"$redacted", std::string(64, 'a')}}));
  gone.erased = true;
  return gone;
}

inline constexpr std::string_view kBlind = "00112233445566778899aabbccddeeff";

struct JobFixtureOptions {
  std::string_view more = "{}";  // output, deadline, max_attempts, tools of the task graph
  std::string_view input = "{}";
  std::optional<Duration> deadline;
  std::string_view id = "job-1";
  std::string_view planned_by = "file";  // or model:NAME
  std::string_view blind = kBlind;       // "" = none, as in jobs of earlier builds
};

class JobFixture {
 public:
  struct SentTry {
    StepId step;
    std::uint32_t try_no = 0;
    std::string tool, external_key, key;
    Value arguments;
  };

  explicit JobFixture(std::string_view nodes, const JobFixtureOptions& setup = {})
      : JobFixture(compiled(graph(nodes, setup.more)), setup) {}
  explicit JobFixture(std::shared_ptr<const Plan> of, const JobFixtureOptions& setup = {})
      : plan(std::move(of)) {
    state.job = JobId(std::string(setup.id));
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
        plan_made->planned_by = setup.planned_by;
      }
    }
    add(first);
    commit();
  }

  // A fork of another job at this event of its log.
  JobFixture(const Fork& fork, std::string_view id) : plan(fork.plan) {
    state.job = JobId(std::string(id));
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
  Result<Fork> fork(std::uint64_t at) const {
    return fork_at(state, log, at, uncached_plan_source());
  }
  // The first event of this type for this node.
  std::uint64_t seq_of(EventType type, std::string_view node) const {
    const auto found = std::ranges::find_if(log, [&](const Event& event) {
      return event.type == type && step_of(event) == step(node).id.text;
    });
    AE_CHECK(found != log.end(), std::string(node) + "\n" + log_text());
    return found->seq;
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

  // ---- implementation

  // Decides until there are no more events, and takes them as one commit.
  JobFixture& run_until_idle() {
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
      return claim();
    }
    return *this;
  }
  void begin_attempt() {
    confirmations.clear();
    attempt_count++;
    add({running_event(AttemptId("attempt-" + std::to_string(attempt_count)), state.epoch + 1,
                       "worker", opened_at)});
    in_flight.clear();
  }
  void add(const std::vector<EventBody>& drafts) {
    for (const EventBody& draft : drafts) {
      auto well_formed = check_payload(*event_kind(type_of(draft)), payload_json(draft));
      EXPECT_TRUE(well_formed) << (well_formed ? "" : well_formed.error().message);
      auto applied = apply(state, draft, now, uncached_plan_source());
      AE_CHECK(applied.has_value(), applied ? "" : applied.error().message + "\n" + log_text());
      Event event;
      event.seq = state.seq;
      event.type = type_of(draft);
      event.created_at = now;
      if (!state.attempt.empty()) event.attempt_id = state.attempt;
      event.schema = schema_of(draft);
      event.body = draft;
      log.push_back(std::move(event));
    }
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
  State folded(std::size_t events) const {
    const std::vector<Event> part(log.begin(), log.begin() + static_cast<std::ptrdiff_t>(events));
    auto folded = fold(state.job, part, uncached_plan_source());
    AE_CHECK(folded.has_value(), folded ? "" : folded.error().message);
    return std::move(*folded);
  }

  // ---- inspection

  std::string_view status() const { return to_text(state.status); }
  // "node", "node/3" for an item of a map or a turn of a loop, "node/3/0" for a call of that turn;
  // with "/probe" or "/compensate" for the probe or compensation of its call.
  std::uint32_t index_of(std::string_view name) const {
    for (const std::string_view side : {"/probe", "/compensate"}) {
      if (!name.ends_with(side)) continue;
      const Step& of = step(name.substr(0, name.size() - side.size()));
      const std::uint32_t index = side == "/probe" ? of.probe : of.undo;
      AE_CHECK(index != kNoStep, std::string(name) + "\n" + log_text());
      return index;
    }
    const std::size_t slash = name.find('/');
    const Node& node = state.plan->nodes[state.plan->by_id.at(std::string(name.substr(0, slash)))];
    if (slash == std::string_view::npos) return node.index;
    const std::string_view rest = name.substr(slash + 1);
    const std::size_t second = rest.find('/');
    const auto item = static_cast<std::uint32_t>(std::stoul(std::string(rest.substr(0, second))));
    const std::uint32_t nth =
        second == std::string_view::npos
            ? kNoTurn
            : static_cast<std::uint32_t>(std::stoul(std::string(rest.substr(second + 1))));
    const auto found = std::ranges::find_if(state.steps, [&](const Step& one) {
      return one.role == Role::node && one.node == node.index &&
             ((one.item == item && nth == kNoTurn) || (one.turn == item && one.nth == nth));
    });
    AE_CHECK(found != state.steps.end(), std::string(name) + "\n" + log_text());
    return static_cast<std::uint32_t>(found - state.steps.begin());
  }
  const Step& step(std::string_view name) const { return state.steps[index_of(name)]; }
  // The types of all events, or of those of a step, in order.
  std::vector<std::string> types(std::string_view node = "") const {
    std::vector<std::string> types;
    for (const Event& event : log) {
      if (node.empty() || step_of(event) == step(node).id.text) {
        types.emplace_back(event_name(event));
      }
    }
    return types;
  }
  // The events of one type, in the order of the log.
  template <class E>
  std::vector<E> all() const {
    std::vector<E> all;
    each<E>(log, [&](const E& event) { all.push_back(event); });
    return all;
  }
  // REQUIRES: there is one.
  template <class E>
  E last() const {
    const auto events = all<E>();
    AE_CHECK(!events.empty(), std::string(event_name(E::kType)) + "\n" + log_text());
    return events.back();
  }
  std::size_t count(EventType type) const {
    return static_cast<std::size_t>(std::ranges::count(log, type, &Event::type));
  }
  std::size_t tries(std::string_view node) const {
    return static_cast<std::size_t>(std::ranges::count(sent, step(node).id, &SentTry::step));
  }
  std::string log_text() const {
    std::string log_text;
    for (const Event& event : log) {
      log_text += std::to_string(event.seq) + " " + std::string(event_name(event)) + " " +
                  canonical(payload_json(event.body)).substr(0, 160) + "\n";
    }
    return log_text;
  }

  std::shared_ptr<const Plan> plan;
  State state;
  std::vector<Event> log;
  std::vector<VerifyInput::Effect> effects;          // records added by `store_effect`
  std::vector<std::size_t> commits;                  // events in the log after each
  std::vector<SentTry> sent;                         // every call that was sent, in order
  std::map<std::uint32_t, std::uint32_t> in_flight;  // step → try
  Instant now = *instant_from_text("2026-01-01T00:00:00Z");
  DecideLimits limits;
  std::uint64_t jitter_seed = 7;
  std::string refusal;  // the message of `refused`
  bool owned = true;
  std::optional<Instant> opened_at;   // of the store, by the process that has the job
  bool waits_for_settling = false;    // `not_happened` is decided only after the call has settled
  bool decides = true;                // false: events are only added
  bool claims_when_free = true;       // false: a free job stays free
  std::vector<std::string> versions;  // of the offered tools; empty = as planned
  std::string execution_version = "v1";  // that the process offers
  // The result of verifying a resource, by its id; missing = unchanged.
  std::map<std::string, CheckResult> external_checks;
  std::vector<std::string> checked;  // the ids of verified resources, in order
  bool answers_checks = true;        // false: verifiers never answer
  std::vector<std::string> requested_checks;
  Confirmations confirmations;
  std::optional<Instant> decide_again_at;
  Value reply;
  std::optional<Code> refused;
  int releases = 0;
  std::size_t decisions = 0;
  Work work = 0, most_work = 0;  // of all decisions; of one
  int attempt_count = 0;

 private:
  void commit() {
    if (commits.empty() || commits.back() != log.size()) commits.push_back(log.size());
  }
  void record_check(const std::string& key) {
    const Change& change = state.changes.at(key);
    checked.push_back(change.resource_id);
    auto found = external_checks.find(change.resource_id);
    const CheckResult as_it_was{
        .verdict = CheckVerdict::match, .expected = {}, .observed = {}, .reason = {}};
    confirmations[key] = {change.seq, found == external_checks.end() ? as_it_was : found->second};
  }
  void record_sent(const StepId& id) {
    const std::uint32_t index = state.by_id.at(id);
    const Invocation& call = *state.steps[index].call;
    sent.push_back(
        {id, call.try_no, call.tool, call.external_key.text, call.key.text, call.arguments});
    in_flight[index] = call.try_no;
  }
};

}  // namespace ae::engine::testing
