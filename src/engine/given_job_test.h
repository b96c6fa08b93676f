// GivenJob: a job for tests of the heart: given a plan, when the world answers, then this stands in the log.
//
//   GivenJob job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
//   job.claim().ok("a", "{'id':7}");
//   EXPECT_EQ(job.status(), "completed");
//
// JSON may be written with ' for ". The plan can use the tools of kTools without declaring them. Every event is
// checked against the event table and applied when it is added; `claim`, `ok`, `signal`, … go on until the job has
// nothing more to say, which is one commit. The clock moves only by `after`. For tests only. Threads: one owner.
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

#include "core/json.h"
#include "engine/absorb.h"
#include "engine/decide.h"
#include "engine/fork.h"
#include "engine/state.h"
#include "engine/verify.h"

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

// A tool's policy as a plan holds it; what `changes` names is replaced.
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

inline constexpr std::string_view kBlind = "00112233445566778899aabbccddeeff";

struct GivenSetup {
  std::string_view more = "{}";  // output, deadline, max_attempts, tools of the task graph
  std::string_view input = "{}";
  std::optional<Duration> deadline;
  std::string_view id = "job-1";
  std::string_view planned_by = "file";  // or model:NAME
  std::string_view blind = kBlind;       // "" = none, as in jobs of earlier builds
};

class GivenJob {
 public:
  struct Sent {
    StepId step;
    std::uint32_t try_no = 0;
    std::string tool, external_key, key;
    Value arguments;
  };

  explicit GivenJob(std::string_view nodes, const GivenSetup& setup = {})
      : GivenJob(compiled(graph(nodes, setup.more)), setup) {}
  explicit GivenJob(std::shared_ptr<const Plan> of, const GivenSetup& setup = {})
      : plan(std::move(of)) {
    state.job = JobId(std::string(setup.id));
    NewJobEvents born{.agent = "tester",
                      .input = json(setup.input),
                      .labels = {},
                      .idempotency_key = {},
                      .execution_version = "v1",
                      .deadline = {},
                      .plan = plan.get()};
    born.now = now;
    born.blind = setup.blind;
    if (setup.deadline) born.deadline = now + *setup.deadline;
    std::vector<EventDraft> first = job_events(born);
    for (EventDraft& draft : first) {
      if (draft.type != EventType::plan_generated) continue;
      draft.payload = draft.payload.with("planned_by", setup.planned_by);
    }
    add(first);
    commit();
  }

  // A fork of another job, at this event of its log; `fork` is what follows from there.
  GivenJob(const Fork& fork, std::string_view id) : plan(fork.plan) {
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
                    .blind = fork.blind_gone ? std::string(32, 'f') : fork.blind,
                    .budget = fork.budget,
                    .spent = fork.spent,
                    .now = now}));
    commit();
  }
  Result<Fork> fork(std::uint64_t at) const { return fork_at(state, log, at, compile_each_time()); }
  // The first event of this type that is about this node.
  std::uint64_t seq_of(EventType type, std::string_view node) const {
    const auto found = std::ranges::find_if(log, [&](const Event& event) {
      return event.type == type && event.payload.text("step_id") == step(node).id.text;
    });
    AE_CHECK(found != log.end(), std::string(node) + "\n" + story());
    return found->seq;
  }

  // ---- what happens

  GivenJob& claim() {
    begin_attempt();
    return go();
  }
  // The process dies: what was in flight is heard of no more. The log is read again and a new attempt begins.
  GivenJob& crash() {
    reload();
    return claim();
  }
  // The process dies, and nobody claims the job yet.
  GivenJob& reload() {
    log.resize(commits.back());
    state = folded(log.size());
    in_flight.clear();
    confirmations.clear();
    if (owned) opened_at = now;  // by the next process
    return *this;
  }
  GivenJob& ok(std::string_view node, std::string_view result = "null") {
    return answer(node, {.kind = OutcomeKind::success, .result = json(result)});
  }
  GivenJob& fails(std::string_view node, std::string_view code = "http_400") {
    return answer(node, Outcome{.kind = OutcomeKind::failure,
                                .definite = true,
                                .error_code = std::string(code),
                                .error_message = "the tool said so"});
  }
  GivenJob& times_out(std::string_view node) {
    return answer(node, {.kind = OutcomeKind::timeout,
                         .error_code = "timeout",
                         .error_message = "no answer in time"});
  }
  GivenJob& unknown(std::string_view node, std::string_view code = "unknown") {
    return answer(node, {.kind = OutcomeKind::unknown,
                         .error_code = std::string(code),
                         .error_message = "the connection was lost"});
  }
  GivenJob& answer(std::string_view node, const Outcome& outcome) {
    return answer(index_of(node), outcome);
  }
  // The effect store holds this of the newest try, and the log does not: what follows from that.
  GivenJob& kept(std::string_view node, const Outcome& outcome, Arrival arrival = Arrival::late) {
    return kept(engine::sent_of(state, step(node)), outcome, arrival);
  }
  GivenJob& kept(const engine::Sent& of, const Outcome& outcome, Arrival arrival = Arrival::late) {
    const std::string record = canonical(effect_record(state.job, of, outcome, now, arrival));
    auto events = catch_up(state, {{of.invocation, of.try_no, record}});
    AE_CHECK(events.has_value());
    const bool first = std::ranges::none_of(effects, [&](const VerifyInput::Effect& one) {
      return one.invocation == of.invocation && one.try_no == of.try_no;
    });
    if (first) effects.push_back({of.invocation, of.try_no, record});
    add(*events);
    return go();
  }
  GivenJob& answer(std::uint32_t step, const Outcome& outcome) {
    add(absorb(state, step, outcome, now));
    in_flight.erase(step);
    return go();
  }
  GivenJob& after(Duration span) {
    now = now + span;
    return go();
  }

  // ---- what somebody outside wants; `said` is the answer, `refused` the error

  GivenJob& signal(std::string_view key, std::string_view payload = "null",
                   std::string_view type = "") {
    return act({.kind = Act::Kind::signal,
                .correlation_key = std::string(key),
                .wait_type = std::string(type),
                .payload = json(payload)});
  }
  GivenJob& cancel(std::string_view reason = "", std::optional<bool> compensate = {}) {
    return act({.kind = Act::Kind::cancel,
                .by = "someone",
                .reason = std::string(reason),
                .compensate = compensate});
  }
  GivenJob& resolve(std::string_view node, std::string_view resolution,
                    std::optional<std::string_view> result = std::nullopt) {
    Act what{.kind = Act::Kind::resolve,
             .by = "someone",
             .idempotency_key = state.key_of(step(node)).text,
             .resolution = std::string(resolution)};
    const bool waits = patient && resolution == "not_happened" && step(node).call;
    if (const auto settles = waits ? state.settles_at(step(node)) : std::nullopt) {
      now = std::max(now, *settles);
    }
    if (result) what.result = json(*result);
    return act(what);
  }
  // A signal that need not be waited for yet.
  GivenJob& early(std::string_view key, std::string_view payload, std::string_view id,
                  std::string_view type = "") {
    return act({.kind = Act::Kind::signal,
                .id = std::string(id),
                .correlation_key = std::string(key),
                .wait_type = std::string(type),
                .buffer = true,
                .payload = json(payload)});
  }
  GivenJob& message(std::string_view channel, std::string_view payload, std::string_view id) {
    return act({.kind = Act::Kind::message,
                .id = std::string(id),
                .payload = json(payload),
                .channel = std::string(channel)});
  }
  // Somebody answers what a confirmation showed of a step's changes.
  GivenJob& confirm(std::string_view node, std::string_view resolution,
                    std::string_view note = "") {
    return act({.kind = Act::Kind::resolve,
                .by = "ann",
                .reason = std::string(note),
                .resolution = std::string(resolution),
                .step_id = step(node).id.text});
  }
  // Another plan for the job; `drop` names nodes whose effects are let go.
  GivenJob& replan(std::shared_ptr<const Plan> next, const std::vector<std::string>& drop = {}) {
    std::vector<Value> names(drop.begin(), drop.end());
    act({.kind = Act::Kind::plan,
         .by = "someone",
         .payload = Value::object(
             {{"drop", Value::array(std::move(names))}, {"task_graph", next->task_graph}})});
    if (!refused) plan = std::move(next);
    return *this;
  }
  // A process tells the job which versions it offers.
  GivenJob& offer() { return act({.kind = Act::Kind::version, .by = "worker-2"}); }
  GivenJob& pause() { return act({.kind = Act::Kind::pause, .by = "someone"}); }
  GivenJob& resume() { return act({.kind = Act::Kind::resume, .by = "someone"}); }
  // Somebody lets the job use more; limits as they are stored.
  GivenJob& raise(std::string_view to) {
    return act({.kind = Act::Kind::budget, .by = "ann", .payload = json(to)});
  }
  // Somebody answers what is asked at a node, by its id among the approvals.
  GivenJob& approve(std::string_view node, std::string_view decision = "approve") {
    return answer_approval(asked(node), decision);
  }
  GivenJob& reject(std::string_view node) { return approve(node, "reject"); }
  GivenJob& answer_approval(std::string_view id, std::string_view decision) {
    return act({.kind = Act::Kind::signal,
                .by = "ann",
                .wait_type = "human",
                .approval = std::string(id),
                .payload = Value::object({{"decision", decision}})});
  }
  // The id of what is asked at a node; "" = nothing is.
  std::string asked(std::string_view node) const {
    for (const auto& [key, wait] : state.waits) {
      if (wait.step == index_of(node)) return state.approval_id(wait);
    }
    return {};
  }
  GivenJob& act(const Act& what) {
    said = {};
    refused.reset();
    auto taken = take_in(state, what, stamp());
    if (!taken) {
      refused = taken.error().code;
      refusal = taken.error().message;
      return *this;
    }
    said = taken->answer;
    add(taken->events);
    return go();
  }

  // ---- how it is done

  // Asks what follows until nothing is left to say, and takes that as one commit.
  GivenJob& go() {
    std::optional<Unfinished> from;
    while (decides) {
      if (auto due = state.next_due(); due && *due <= now) {
        add(take_in(state, {.kind = Act::Kind::timers}, stamp())->events);
        from.reset();
      }
      Decision decision = decide(state, stamp(), limits, from ? &*from : nullptr);
      from = decision.unfinished;
      decisions++;
      work += decision.work;
      most_work = std::max(most_work, decision.work);
      ask_again = decision.ask_again;
      to_look_at = decision.confirm;
      if (decision.events.empty() && !decision.confirm.empty() && looks) {
        for (const std::string& key : decision.confirm) looked_at(key);
        continue;
      }
      if (decision.events.empty() && from) continue;
      if (decision.events.empty()) break;
      add(decision.events);
      for (const StepId& id : decision.perform) performed(id);
      if (decision.release) {
        releases++;
        if (claims_again && state.status == JobStatus::queued && !state.not_before) begin_attempt();
        break;
      }
    }
    commit();
    // Who is free and queued is claimed at once: nobody tests the claimer here.
    const bool free = state.status == JobStatus::queued && state.epoch > 0;
    if (free && claims_again && decides && (!state.not_before || *state.not_before <= now)) {
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
  void add(const std::vector<EventDraft>& drafts) {
    for (const EventDraft& draft : drafts) {
      const EventKind* kind = event_kind(draft.type);
      auto well_formed = check_payload(*kind, draft.payload);
      EXPECT_TRUE(well_formed) << (well_formed ? "" : well_formed.error().message);
      auto applied = apply(state, draft, now, compile_each_time());
      AE_CHECK(applied.has_value(), applied ? "" : applied.error().message + "\n" + story());
      Event event;
      event.seq = state.seq;
      event.type = draft.type;
      event.created_at = now;
      if (!state.attempt.empty()) event.attempt_id = state.attempt;
      event.schema = schema_of(*event_kind(draft.type), draft.payload);
      event.payload = draft.payload;
      log.push_back(std::move(event));
    }
  }
  Stamp stamp() {
    return {.now = now,
            .lease_until = now + 30s,
            .owned = owned,
            .chance = chance,
            .entropy = {chance, 1, 2, 3},
            .tool_versions = versions.empty() ? nullptr : &versions,
            .execution_version = &execution_version,
            .confirmations = &confirmations};
  }
  State folded(std::size_t events) const {
    const std::vector<Event> part(log.begin(), log.begin() + static_cast<std::ptrdiff_t>(events));
    auto folded = fold(state.job, part, compile_each_time());
    AE_CHECK(folded.has_value(), folded ? "" : folded.error().message);
    return std::move(*folded);
  }

  // ---- what there is

  std::string_view status() const { return to_text(state.status); }
  // "node", "node/3" for an item of a map or a turn of a loop, "node/3/0" for a call of that turn; with "/probe" or "/compensate" what stands beside it.
  std::uint32_t index_of(std::string_view name) const {
    for (const std::string_view side : {"/probe", "/compensate"}) {
      if (!name.ends_with(side)) continue;
      const Step& of = step(name.substr(0, name.size() - side.size()));
      const std::uint32_t index = side == "/probe" ? of.probe : of.undo;
      AE_CHECK(index != kNoStep, std::string(name) + "\n" + story());
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
    AE_CHECK(found != state.steps.end(), std::string(name) + "\n" + story());
    return static_cast<std::uint32_t>(found - state.steps.begin());
  }
  const Step& step(std::string_view name) const { return state.steps[index_of(name)]; }
  // The types of all events, or of those of a step, in order.
  std::vector<std::string> types(std::string_view node = "") const {
    std::vector<std::string> types;
    for (const Event& event : log) {
      if (node.empty() || event.payload.text("step_id") == step(node).id.text) {
        types.emplace_back(event_name(event));
      }
    }
    return types;
  }
  std::vector<Value> payloads(EventType type) const {
    std::vector<Value> payloads;
    for (const Event& event : log) {
      if (event.type == type) payloads.push_back(event.payload);
    }
    return payloads;
  }
  Value last(EventType type) const {
    auto all = payloads(type);
    return all.empty() ? Value() : all.back();
  }
  std::size_t count(EventType type) const { return payloads(type).size(); }
  std::size_t tries(std::string_view node) const {
    return static_cast<std::size_t>(std::ranges::count(sent, step(node).id, &Sent::step));
  }
  std::string story() const {
    std::string story;
    for (const Event& event : log) {
      story += std::to_string(event.seq) + " " + std::string(event_name(event)) + " " +
               canonical(event.payload).substr(0, 160) + "\n";
    }
    return story;
  }

  std::shared_ptr<const Plan> plan;
  State state;
  std::vector<Event> log;
  std::vector<VerifyInput::Effect> effects;          // what `kept` put beside it
  std::vector<std::size_t> commits;                  // events in the log after each
  std::vector<Sent> sent;                            // every call that went out, in order
  std::map<std::uint32_t, std::uint32_t> in_flight;  // step → try
  Instant now = *instant_from_text("2026-01-01T00:00:00Z");
  DecideLimits limits;
  std::uint64_t chance = 7;
  std::string refusal;  // the message of `refused`
  bool owned = true;
  std::optional<Instant> opened_at;      // the store, by the process that has the job
  bool patient = false;                  // who says not_happened waits until the call has settled
  bool decides = true;                   // false: events are only added
  bool claims_again = true;              // false: a job that is free stays free
  std::vector<std::string> versions;     // of the tools offered; empty = as planned
  std::string execution_version = "v1";  // that the process offers
  // What a look at a resource shows, by its id; nothing here = it is as it was.
  std::map<std::string, Sighting> outside;
  std::vector<std::string> looked;  // the ids of resources that were looked at, in order
  bool looks = true;                // false: whoever looks never answers
  std::vector<std::string> to_look_at;
  Confirmations confirmations;
  std::optional<Instant> ask_again;
  Value said;
  std::optional<Code> refused;
  int releases = 0;
  std::size_t decisions = 0;
  Work work = 0, most_work = 0;  // of all decisions; of one
  int attempt_count = 0;

 private:
  void commit() {
    if (commits.empty() || commits.back() != log.size()) commits.push_back(log.size());
  }
  void looked_at(const std::string& key) {
    const Change& change = state.changes.at(key);
    looked.push_back(change.resource_id);
    auto found = outside.find(change.resource_id);
    const Sighting as_it_was{.sight = Sight::match, .expected = {}, .observed = {}, .reason = {}};
    confirmations[key] = {change.seq, found == outside.end() ? as_it_was : found->second};
  }
  void performed(const StepId& id) {
    const std::uint32_t index = state.by_id.at(id);
    const Invocation& call = *state.steps[index].call;
    sent.push_back(
        {id, call.try_no, call.tool, call.external_key.text, call.key.text, call.arguments});
    in_flight[index] = call.try_no;
  }
};

}  // namespace ae::engine::testing
