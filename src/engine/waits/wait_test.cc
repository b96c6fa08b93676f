// Waits: timers, signals, expiry, keys; blocked jobs; the deadline; cancel.
#include <fmt/core.h>

#include "engine/fixtures/job_fixture_test.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

using Types = std::vector<std::string>;

constexpr std::string_view kSignal =
    "[{'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}}]";

std::string wait(std::string_view members) {
  return "[{'id':'w', 'kind':'wait', 'wait':{" + std::string(members) + "}}]";
}

// ---------------------------------------------------------------- signals

AE_TEST("wait/a signal completes the wait with its payload") {
  JobFixture job(kSignal);
  job.claim();
  EXPECT_EQ(job.status(), "waiting");
  EXPECT_EQ(job.types("w"), (Types{"node_started", "wait_opened", "job_waiting"}));
  EXPECT_EQ(job.releases, 1);
  job.signal("k", "{'yes':1}");
  EXPECT_EQ(job.reply["delivered"], Value(true));
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.result, json("{'w':{'yes':1}}"));
}

AE_TEST("wait/a job that received a signal can be claimed") {
  JobFixture job(kSignal);
  job.claim();
  job.claims_when_free = false;
  EXPECT_EQ(job.signal("k").status(), "queued");
}

AE_TEST("wait/a running job applies a signal for an open wait at once") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'put'},
                   {'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}}])");
  job.claim().signal("k", "1");
  EXPECT_EQ(job.status(), "running");
  EXPECT_EQ(job.ok("a", "2").state.result, json("{'a':2,'w':1}"));
}

AE_TEST("wait/a second signal is a duplicate and returns the first") {
  JobFixture job(R"([{'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}},
                   {'id':'v', 'kind':'wait', 'wait':{'type':'signal', 'key':'l'}}])");
  job.claim().signal("k", "1");
  const std::size_t events = job.log.size();
  job.signal("k", "1");
  EXPECT_EQ(job.reply["duplicate"], Value(true));
  EXPECT_EQ(job.reply["applied"], Value(true));
  job.signal("k", "2");
  EXPECT_EQ(job.reply["applied"], Value(false));
  EXPECT_EQ(job.reply["payload"], Value(1));
  EXPECT_EQ(job.log.size(), events);
}

AE_TEST("wait/a duplicate is recognized after the job has ended") {
  JobFixture job(kSignal);
  job.claim().signal("k", "1").signal("k", "1");
  EXPECT_EQ(job.refused, std::nullopt);
  EXPECT_EQ(job.reply["duplicate"], Value(true));
}

AE_TEST("wait/a signal without a matching wait is wait_mismatch and writes nothing") {
  JobFixture job(kSignal);
  job.claim();
  const std::size_t events = job.log.size();
  EXPECT_EQ(job.signal("x").refused, Code::wait_mismatch);
  EXPECT_EQ(job.signal("").refused, Code::wait_mismatch);
  EXPECT_EQ(job.signal("k", "1", "webhook").refused, Code::wait_mismatch);
  EXPECT_EQ(job.log.size(), events);
  EXPECT_EQ(job.signal("k", "1", "signal").refused, std::nullopt);
}

AE_TEST("wait/a signal to an ended job returns job_terminal") {
  JobFixture job(kSignal);
  job.claim().cancel();
  EXPECT_EQ(job.signal("other").refused, Code::job_terminal);
}

AE_TEST("wait/a signal after a cancel is reported as not applied") {
  JobFixture job(kSignal);
  job.claim().cancel().signal("k", "null");
  EXPECT_EQ(job.reply["duplicate"], Value(true));
  EXPECT_EQ(job.reply["applied"], Value(false));
  EXPECT_EQ(job.reply["outcome"], "cancelled");
}

AE_TEST("wait/a wait without a key uses its step_id") {
  JobFixture job(wait("'type':'webhook'"));
  job.claim();
  EXPECT_TRUE(job.state.waits.contains(job.step("w").id.text));
}

AE_TEST("wait/a correlation key cannot be used twice in a job") {
  JobFixture job(R"([{'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}},
                   {'id':'v', 'kind':'wait', 'needs':['w'], 'wait':{'type':'signal', 'key':'k'}}])");
  job.claim().signal("k");
  EXPECT_EQ(job.state.error->code, "correlation_key_reused");
}

AE_TEST("wait/two waits that open together cannot share a key") {
  JobFixture job(R"([{'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}},
                   {'id':'v', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}}])");
  job.claim();
  EXPECT_EQ(job.state.error->code, "correlation_key_reused");
  EXPECT_EQ(job.last<JobFailed>().node_id, "v");
}

AE_TEST("wait/keys of the runtime are reserved") {
  for (const std::string_view key : {"resolve/x", "approval/x"}) {
    JobFixture job(wait(fmt::format("'type':'signal', 'key':'{}'", key)));
    EXPECT_EQ(job.claim().state.error->code, "correlation_key_reused");
  }
}

AE_TEST("wait/a key may be computed and must be a string") {
  JobFixture job(wait("'type':'signal', 'key':'order-${ .input.n }'"), {.input = "{'n':5}"});
  job.claim();
  EXPECT_TRUE(job.state.waits.contains("order-5"));
  JobFixture number(wait("'type':'signal', 'key':'${ .input.n }'"), {.input = "{'n':5}"});
  EXPECT_EQ(number.claim().state.error->code, "expression_failed");
}

// ---------------------------------------------------------------- timers and expiry

AE_TEST("timer/a timer fires once and never early") {
  JobFixture job(wait("'type':'timer', 'for':'90s'"));
  job.claim();
  EXPECT_EQ(job.status(), "waiting");
  EXPECT_EQ(job.state.next_due(), job.now + 90s);
  job.after(89s);
  EXPECT_EQ(job.status(), "waiting");
  job.after(2s);
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.result, json("{'w':null}"));
  EXPECT_EQ(job.count(EventType::timer_fired), 1u);
  EXPECT_EQ(to_text(job.last<TimerFired>().due_at), "2026-01-01T00:01:30.000000Z");
  EXPECT_EQ(job.last<TimerFired>().value.value, "2026-01-01T00:01:31.000000Z");
}

AE_TEST("timer/a timer fires without a later one that is not yet due") {
  JobFixture job(
      "[{'id':'a','kind':'wait','wait':{'type':'timer','for':'90s'}},"
      "{'id':'b','kind':'wait','wait':{'type':'timer','for':'90500ms'}}]");
  job.claim();
  job.after(90s);
  EXPECT_EQ(job.count(EventType::timer_fired), 1u);
  job.after(500ms);
  EXPECT_EQ(job.count(EventType::timer_fired), 2u);
}

AE_TEST("timer/a timer keeps its due time after a restart") {
  JobFixture job(wait("'type':'timer', 'for':'90s'"));
  job.claim().reload();
  EXPECT_EQ(job.state.next_due(), job.now + 90s);
}

AE_TEST("timer/a timer waits until an instant and fires at once if it has passed") {
  JobFixture job(wait("'type':'timer', 'until':'2026-01-02T00:00:00Z'"));
  EXPECT_EQ(job.claim().status(), "waiting");
  EXPECT_EQ(job.after(24h).status(), "completed");
  JobFixture past(wait("'type':'timer', 'until':'2020-01-01T00:00:00Z'"));
  EXPECT_EQ(past.claim().run_until_idle().status(), "completed");
}

AE_TEST("timer/an invalid computed duration fails the node") {
  JobFixture job(wait("'type':'timer', 'for':'${ .input }'"), {.input = "'soon'"});
  EXPECT_EQ(job.claim().state.error->code, "expression_failed");
}

AE_TEST("timer/a timer cannot be signalled") {
  JobFixture job(wait("'type':'timer', 'for':'90s'"));
  job.claim().signal(job.step("w").id.text);
  EXPECT_EQ(job.refused, Code::wait_mismatch);
}

AE_TEST("expiry/an expired wait fails the node") {
  JobFixture job(wait("'type':'signal', 'key':'k', 'expires':'1h'"));
  job.claim().after(1h);
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "wait_expired");
  EXPECT_EQ(job.last<WaitCompleted>().outcome, "timed_out");
}

AE_TEST("expiry/an expired wait with on_expire: continue completes as timed out") {
  JobFixture job(wait("'type':'signal', 'key':'k', 'expires':'1h', 'on_expire':'continue'"));
  job.claim().after(1h);
  EXPECT_EQ(job.state.result, json("{'w':{'timed_out':true}}"));
}

AE_TEST("expiry/a signal before the expiry completes the wait") {
  JobFixture job(wait("'type':'signal', 'key':'k', 'expires':'1h'"));
  job.claim().signal("k", "1").after(1h);
  EXPECT_EQ(job.state.result, json("{'w':1}"));
}

// ---------------------------------------------------------------- job_waiting

AE_TEST("blocked/job_waiting describes the first open wait and lists all of them") {
  JobFixture job(R"([{'id':'v', 'kind':'wait', 'wait':{'type':'timer', 'for':'1h'}},
                   {'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'a', 'expires':'2h'}}])");
  job.claim();
  const auto event = job.last<JobWaiting>();
  EXPECT_EQ(event.node_id, "v");
  EXPECT_EQ(event.wait_type, "timer");
  EXPECT_EQ(event.waits.json().size(), 2u);
}

AE_TEST("blocked/job_waiting has the reason and the resumption context") {
  constexpr std::pair<const char*, const char*> kReasons[] = {
      {"{'type':'timer','for':'1h'}", "timer_pending"},
      {"{'type':'human','key':'k'}", "human_answer_required"},
      {"{'type':'message','channel':'c'}", "message_awaited"},
      {"{'type':'signal','key':'k'}", "signal_awaited"},
      {"{'type':'webhook','key':'k'}", "signal_awaited"}};
  for (const auto& [wait, reason] : kReasons) {
    JobFixture job("[{'id':'w','kind':'wait','wait':" + std::string(wait) +
                   "}, {'id':'z','kind':'tool','tool':'put','needs':['w']}]");
    job.claim();
    const auto event = job.last<JobWaiting>();
    EXPECT_EQ(event.reason, reason);
    EXPECT_EQ(event.resumption_context.read().value(),
              (ResumptionContext{
                  .decision_id = job.plan->decision, .nodes_left = 2, .open_waits = 1, .plan = 0}));
  }
  JobFixture job("[{'id':'a','kind':'tool','tool':'buy'}]",
                 {.more = "{'tools':{'buy':{'approval':'required'}}}"});
  EXPECT_EQ(job.claim().last<JobWaiting>().reason, "approval_required");
}

AE_TEST("blocked/a job with an unknown call and an open wait is waiting, not parked") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'pay'},
                   {'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}}])");
  job.claim().times_out("a");
  EXPECT_EQ(job.status(), "waiting");
  EXPECT_EQ(job.last<JobWaiting>().node_id, "w");
  job.signal("k");
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.resolve("a", "happened").status(), "completed");
}

AE_TEST("blocked/a completed wait wakes the job, and the remaining waits block it again") {
  JobFixture job(R"([{'id':'v', 'kind':'wait', 'wait':{'type':'signal', 'key':'a'}},
                   {'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'b'}}])");
  job.claim().signal("b", "2");
  EXPECT_EQ(job.status(), "waiting");
  EXPECT_EQ(job.count(EventType::job_waiting), 2u);
  EXPECT_EQ(job.signal("a", "1").state.result, json("{'v':1,'w':2}"));
}

AE_TEST("blocked/after one of several unknown calls is resolved the job parks for the rest") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'pay'}, {'id':'b', 'kind':'tool', 'tool':'pay'}]");
  job.claim().crash();
  EXPECT_EQ(job.status(), "parked");
  job.resolve("a", "happened", "1");
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.count(EventType::job_parked), 2u);
  EXPECT_EQ(job.resolve("b", "happened", "2").state.result, json("{'a':1,'b':2}"));
}

AE_TEST("blocked/job_waiting lists at most 64 waits") {
  std::string nodes = "[";
  for (int i = 0; i < 300; ++i) {
    nodes += (i ? ",{'id':'w" : "{'id':'w") + std::to_string(i) +
             "', 'kind':'wait', 'wait':{'type':'signal'}}";
  }
  JobFixture job(nodes + "]");
  job.claim();
  EXPECT_EQ(job.state.waits.size(), 300u);
  EXPECT_EQ(job.last<JobWaiting>().waits.json().size(), 64u);
}

// ---------------------------------------------------------------- deadline

AE_TEST("deadline/a deadline ends a waiting job") {
  JobFixture job(kSignal, {.deadline = 1h});
  job.claim();
  EXPECT_EQ(job.state.next_due(), job.now + 1h);
  job.after(1h);
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "deadline_exceeded");
  EXPECT_EQ(job.last<WaitCompleted>().outcome, "cancelled");
}

AE_TEST("deadline/a deadline ends a queued or parked job") {
  JobFixture queued(kSignal, {.deadline = 1h});
  EXPECT_EQ(queued.after(1h).state.error->code, "deadline_exceeded");
  JobFixture parked("[{'id':'a', 'kind':'tool', 'tool':'pay'}]", {.deadline = 1h});
  parked.claim().crash();
  ASSERT_EQ(parked.status(), "parked");
  parked.after(1h);
  EXPECT_EQ(parked.state.error->code, "deadline_exceeded");
  EXPECT_EQ(parked.state.final_in_doubt.size(), 1u);
}

AE_TEST("deadline/a deadline awaits the calls in flight and starts nothing") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'pay'},
                   {'id':'b', 'kind':'tool', 'tool':'pay', 'needs':['a']}])",
                 {.deadline = 1h});
  job.claim().after(1h);
  EXPECT_EQ(job.status(), "running");
  EXPECT_EQ(job.ok("a").status(), "failed");
  EXPECT_EQ(job.tries("b"), 0u);
  EXPECT_EQ(job.step("a").result_type, ResultType::side_effect_committed);
}

AE_TEST("deadline/no timer is scheduled past the deadline, which fires first") {
  JobFixture job(wait("'type':'timer', 'for':'2h'"), {.deadline = 1h});
  job.claim();
  EXPECT_EQ(to_text(*job.last<WaitOpened>().due_at), "2026-01-01T01:00:00.000000Z");
  job.after(1h);
  EXPECT_EQ(job.state.error->code, "deadline_exceeded");
  EXPECT_EQ(job.last<WaitCompleted>().outcome, "cancelled");
  EXPECT_EQ(job.count(EventType::timer_fired), 1u);
}

// ---------------------------------------------------------------- cancel

AE_TEST("cancel/a cancel of a queued job ends it in the same commit") {
  JobFixture job(kSignal);
  job.cancel("enough");
  EXPECT_EQ(job.status(), "cancelled");
  EXPECT_EQ(job.commits.size(), 2u);
  EXPECT_EQ(job.last<JobCancelled>().reason, "enough");
  EXPECT_EQ(job.last<JobCancelled>().by, "someone");
}

AE_TEST("cancel/a cancel closes open waits") {
  JobFixture job(kSignal);
  job.claim().cancel();
  EXPECT_EQ(job.status(), "cancelled");
  EXPECT_EQ(job.last<WaitCompleted>().outcome, "cancelled");
}

AE_TEST("cancel/a cancel awaits the calls in flight") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'pay'}, {'id':'b', 'kind':'tool', 'tool':'pay'}]");
  job.claim().cancel();
  EXPECT_EQ(job.status(), "running");
  job.ok("a", "1");
  EXPECT_EQ(job.status(), "running");
  job.fails("b", "not_sent");
  EXPECT_EQ(job.status(), "cancelled");
  EXPECT_EQ(job.sent.size(), 2u);
  EXPECT_TRUE(job.last<JobCancelled>().in_doubt.is_null());
}

AE_TEST("cancel/a cancel lists the calls that stay unknown") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'pay'}, {'id':'b', 'kind':'tool', 'tool':'put'}]");
  job.claim().cancel().times_out("a").times_out("b");
  EXPECT_EQ(job.status(), "cancelled");
  EXPECT_EQ(job.state.final_in_doubt.size(), 2u);
}

AE_TEST("cancel/a cancel closes and lists unknown calls") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  job.claim().crash().cancel();
  EXPECT_EQ(job.status(), "cancelled");
  EXPECT_EQ(job.last<ToolInvocationFinished>().outcome, "unknown");
  ASSERT_EQ(job.state.final_in_doubt.size(), 1u);
  EXPECT_EQ(job.state.final_in_doubt.items()[0], job.sent[0].key);
}

AE_TEST("cancel/a cancel closes open calls after a crash") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'put'}]");
  job.claim().cancel().crash();
  EXPECT_EQ(job.status(), "cancelled");
  EXPECT_EQ(job.tries("a"), 1u);
  EXPECT_EQ(job.state.final_in_doubt.size(), 1u);
}

AE_TEST("cancel/a cancel waits for calls that another process may still make") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'put'}]");
  job.owned = false;
  job.claim().cancel().crash();
  EXPECT_EQ(job.status(), "running");
  ASSERT_EQ(job.decide_again_at, job.step("a").call->deadline);
  EXPECT_EQ(job.after(*job.decide_again_at - job.now).status(), "cancelled");
}

AE_TEST("cancel/a call resolved as not_happened is not listed as unknown") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  job.claim().crash();
  job.waits_for_settling = true;
  job.claims_when_free = false;
  job.resolve("a", "not_happened");
  ASSERT_EQ(job.status(), "queued");
  job.cancel();
  EXPECT_EQ(job.status(), "cancelled");
  EXPECT_TRUE(job.last<JobCancelled>().in_doubt.is_null());
}

AE_TEST("cancel/a second cancel changes nothing, and after the end it is job_terminal") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  job.claim().cancel().cancel();
  EXPECT_EQ(job.count(EventType::job_cancel_requested), 1u);
  job.ok("a").cancel();
  EXPECT_EQ(job.refused, Code::job_terminal);
}

AE_TEST("cancel/a job in back-off is cancelled at once") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'put'}]",
                 {.more = "{'tools':{'put':{'effect':'idempotent','retry':{'max_attempts':3,"
                          "'initial_backoff':'60s','max_backoff':'60s'}}}}"});
  job.claim().fails("a", "connect").cancel();
  EXPECT_EQ(job.status(), "cancelled");
}

// ---------------------------------------------------------------- effect records

AE_TEST("effect record/an outcome imported from the effect store equals the received one") {
  for (const Outcome& outcome :
       {Outcome{.kind = OutcomeKind::success, .result = json("{'x':1}"), .external_id = "e"},
        Outcome{.kind = OutcomeKind::failure,
                .definite = true,
                .error_code = "c",
                .error_message = "m",
                .retry_after = 3s},
        Outcome{.kind = OutcomeKind::timeout, .retryable = true, .error_code = "timeout"}}) {
    JobFixture seen("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
    JobFixture kept("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
    seen.claim().decides = false;
    kept.claim().decides = false;
    seen.answer("a", outcome);
    kept.store_effect("a", outcome, Arrival::in_time);
    auto expected = seen.last<ToolInvocationFinished>();
    expected.caught_up = true;
    expected.source = "effect_store";
    EXPECT_EQ(kept.last<ToolInvocationFinished>(), expected);
  }
}

AE_TEST("undelivered/an accepted signal that arrives while the job ends is listed") {
  for (const bool cancelled : {true, false}) {
    JobFixture job(
        "[{'id':'w', 'kind':'wait', 'wait': {'type': 'signal', 'key': 'k'}},"
        " {'id':'a', 'kind':'tool', 'tool':'put'}, {'id':'b', 'kind':'tool', 'tool':'put'}]");
    job.claim();
    cancelled ? job.cancel() : job.fails("b");
    // A call is awaited; meanwhile the inbox is read.
    const ControlRequest signal{
        .id = "s1", .by = "x", .body = SignalRequest{.correlation_key = "k"}};
    EXPECT_FALSE(apply_request(job.state, signal, job.context())) << "too late to be delivered";
    auto closed = expire_request(job.state, signal);
    ASSERT_EQ(closed.size(), 1u);
    job.add(closed);
    job.ok("a");
    if (cancelled) job.ok("b");
    ASSERT_EQ(job.status(), cancelled ? "cancelled" : "failed");
    EXPECT_EQ((cancelled ? job.last<JobCancelled>().undelivered : job.last<JobFailed>().undelivered)
                  .json(),
              json("[{'correlation_key':'k', 'signal_id':'s1'}]"));
  }
}

AE_TEST("undelivered/a cancel without accepted signals lists none") {
  JobFixture job("[{'id':'w', 'kind':'wait', 'wait': {'type': 'signal', 'key': 'k'}}]");
  job.claim().cancel();
  EXPECT_EQ(job.status(), "cancelled");
  EXPECT_TRUE(job.last<JobCancelled>().undelivered.is_null());
}

AE_TEST("limits/applied signals are counted") {
  JobFixture job("[{'id':'w', 'kind':'wait', 'wait': {'type': 'signal', 'key': 'k'}}]");
  job.claim().send_request({.id = "s", .body = SignalRequest{.correlation_key = "k"}});
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.signals, 1u);
}

}  // namespace
}  // namespace ae::engine::testing
