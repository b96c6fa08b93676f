// FuzzJob: a job from which fuzzers of the engine start: every kind of node, an unknown outcome, an
// approval, a message, a retry. Threads: one.
#pragma once

#include <chrono>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/heart/decide.h"
#include "engine/heart/ingest.h"
#include "engine/state/state.h"
#include "json/json.h"

namespace ae::engine {

class FuzzJob {
 public:
  FuzzJob() {
    state.job = JobId("job-1");
    const auto plan = Plan::compile(parse_json(kGraph).value());
    AE_CHECK(plan.has_value(), plan ? "" : plan.error().message);
    const Value input = parse_json(R"({"list":[4,5.5,"x",null],"n":1})").value();
    add(job_events({.agent = "tester",
                    .input = input,
                    .labels = Value::object({{"made", "here"}}),
                    .idempotency_key = "key",
                    .execution_version = "v1",
                    .deadline = now + std::chrono::hours(5),
                    .plan = plan->get()}));
    add({running_event(AttemptId("attempt-1"), 1, "worker")});
    run_until_idle();
    complete_call("a", {.kind = OutcomeKind::success, .result = Value("done")});
    complete_call("p",
                  {.kind = OutcomeKind::unknown, .error_code = "reset", .error_message = "lost"});
    complete_call("r", {.kind = OutcomeKind::failure,
                        .definite = true,
                        .retryable = true,
                        .error_code = "connect",
                        .error_message = "nobody there"});
    send_request({.id = "m-1", .body = MessageRequest{.channel = "news", .payload = Value(7)}});
    send_request(
        {.id = "s-1", .body = SignalRequest{.correlation_key = "k", .payload = Value("go")}});
    now = now + std::chrono::minutes(2);
    send_request({.body = TimersRequest{}});
  }

  // The rest of the job: a crash, decisions of operators, and the end.
  void finish() {
    add({running_event(AttemptId("attempt-2"), state.epoch + 1, "worker")});
    run_until_idle();
    for (const Node& node : state.plan->nodes) {
      const Step& step = state.steps[node.index];
      if (!step.call || !state.may_have_happened(step)) continue;
      send_request({.by = "ann",
                    .body = ResolveRequest{.idempotency_key = step.call->key.text,
                                           .resolution = "happened",
                                           .result = Value("paid")}});
    }
    send_request({.by = "ann", .body = PauseRequest{.reason = "lunch"}});
    send_request({.by = "ann", .body = ResumeRequest{}});
    send_request({.by = "ann", .body = CancelRequest{.reason = "enough"}});
  }

  State state;
  std::vector<Event> log;  // without hashes
  Instant now{1'700'000'000'000'000};

 private:
  static constexpr std::string_view kGraph = R"({"nodes":[
      {"id":"a","kind":"tool","tool":"put","args":{"n":"${ .input.n }"}},
      {"id":"p","kind":"tool","tool":"pay","needs":["a"],"args":{"n":"${ .steps.a }"}},
      {"id":"r","kind":"tool","tool":"put","on_error":"continue"},
      {"id":"q","kind":"tool","tool":"ask","when":"${ .input.n == 1 }"},
      {"id":"m","kind":"map","over":"${ .input.list }","max_parallel":2,"on_item_error":"collect",
       "do":{"tool":"put","args":{"i":"${ .index }"}}},
      {"id":"w","kind":"wait","wait":{"type":"signal","key":"k","expires":"9h"}},
      {"id":"h","kind":"wait","wait":{"type":"human","on_reject":"continue"}},
      {"id":"n","kind":"wait","wait":{"type":"message","channel":"news"}},
      {"id":"t","kind":"wait","wait":{"type":"timer","for":"1m"}}],
      "output":"${ .steps }","schema":1,"tools":{
      "put":{"dedupe_window":"24h","effect":"idempotent","grace":"30s","on_in_doubt":"resend",
      "retry":{"initial_backoff":"200ms","max_attempts":3,"max_backoff":"10s","multiplier":2,
      "retry_on":["connect"]},"timeout":"30s","version":"0123456789abcdef"},
      "ask":{"approval":"required","dedupe_window":"24h","effect":"idempotent","grace":"30s",
      "on_in_doubt":"resend","retry":{"initial_backoff":"200ms","max_attempts":1,
      "max_backoff":"10s","multiplier":2,"retry_on":["connect"]},"timeout":"30s",
      "version":"0123456789abcdef"},
      "pay":{"dedupe_window":"24h","effect":"at_most_once","grace":"30s","on_in_doubt":"park",
      "retry":{"initial_backoff":"200ms","max_attempts":1,"max_backoff":"10s","multiplier":2,
      "retry_on":["connect"]},"timeout":"30s","version":"0123456789abcdef"}}})";

  DecisionContext context() const {
    return {.now = now, .lease_until = now + std::chrono::seconds(30)};
  }
  void add(const std::vector<EventBody>& drafts) {
    for (const EventBody& draft : drafts) {
      const Status applied = apply(state, draft, now, uncached_plan_source());
      AE_CHECK(applied.has_value(), applied ? "" : applied.error().message);
      Event event;
      event.seq = state.seq;
      event.type = type_of(draft);
      event.created_at = now;
      event.attempt_id = state.attempt;
      event.schema = schema_of(draft);
      event.body = draft;
      log.push_back(std::move(event));
    }
  }
  void run_until_idle() {
    while (!is_terminal(state.status)) {
      const Decision decision = decide(state, context());
      if (decision.events.empty()) return;
      add(decision.events);
    }
  }
  void complete_call(std::string_view node, const Outcome& outcome) {
    const std::uint32_t step = state.plan->by_id.at(std::string(node));
    if (!state.is_live(state.steps[step])) return;
    add(record_outcome(state, step, outcome, now));
    run_until_idle();
  }
  void send_request(const ControlRequest& request) {
    if (auto applied = apply_request(state, request, context())) add(applied->events);
    run_until_idle();
  }
};

}  // namespace ae::engine
