// Probes: a tool that only reads checks the outcome of a call (SPEC §6). The plan of this file has
// one call, `pay`, whose tool is probed by `find`.
#include <fmt/core.h>

#include "engine/fixtures/job_fixture_test.h"
#include "inspect/trace.h"
#include "inspect/verify.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

constexpr std::string_view kProbedNodes =
    "[{'id':'pay','kind':'tool','tool':'buy','args':{'n':5}}]";
constexpr std::string_view kProbedTools = R"({'tools': {
    'find': {'effect': 'read', 'retry': {'max_attempts': 2, 'retry_on': ['connect', 'timeout']}},
    'buy': {'effect': 'at_most_once', 'on_in_doubt': 'probe',
            'probe': {'tool': 'find', 'args': {'key': '${ .call.external_key }', 'n': '${ .args.n }'},
                      'happened': '${ .result.charge }'}},
    'set': {'effect': 'idempotent', 'on_in_doubt': 'probe', 'dedupe_window': '1h',
            'retry': {'max_attempts': 2, 'retry_on': ['timeout']},
            'probe': {'tool': 'find', 'happened': '${ .result }'}}}})";

JobFixture paying(std::string_view nodes = kProbedNodes) {
  return JobFixture(nodes, {.more = kProbedTools});
}

void expect_probe_proved(const JobFixture& job) {
  VerifyInput input;
  input.job = job.state.job;
  input.events = job.log;
  input.effects = job.effects;
  const Verification all = verify(input, uncached_plan_source());
  EXPECT_TRUE(all.ok) << canonical(all.to_json()) << "\n" << job.log_text();
  EXPECT_EQ(state_view(job.folded(job.log.size())), state_view(job.state));
}

AE_TEST("plan/a probe must be a read, a compensation must not, and both see only the call") {
  const auto compiles = [](std::string_view tool) {
    return Plan::compile(graph("[{'id':'a','kind':'tool','tool':'t'}]",
                               "{'tools': {'t': " + std::string(tool) + "}}"))
        .has_value();
  };
  const std::string probed = "{'effect':'at_most_once','on_in_doubt':'probe','probe':";
  EXPECT_TRUE(compiles(probed + "{'tool':'look','happened':'${ .result }'}}"));
  EXPECT_FALSE(compiles(probed + "{'tool':'put','happened':'${ .result }'}}")) << "not a read";
  EXPECT_FALSE(compiles(probed + "{'tool':'look'}}"));
  EXPECT_FALSE(compiles(probed + "{'tool':'look','happened':'yes'}}"));
  EXPECT_FALSE(compiles(probed + "{'tool':'gone','happened':'${ .result }'}}"));
  EXPECT_FALSE(
      compiles(probed + "{'tool':'look','args':{'x':'${ .result }'},'happened':'${ .result }'}}"));
  EXPECT_FALSE(compiles("{'effect':'at_most_once','on_in_doubt':'probe'}"));
  EXPECT_FALSE(
      compiles("{'effect':'at_most_once','on_in_doubt':'park',"
               "'probe':{'tool':'look','happened':'${ .result }'}}"));
  EXPECT_FALSE(
      compiles("{'effect':'read','on_in_doubt':'probe',"
               "'probe':{'tool':'look','happened':'${ .result }'}}"));
  EXPECT_TRUE(compiles("{'compensate':{'tool':'put','args':{'x':'${ .result.id }'}}}"));
  EXPECT_FALSE(compiles("{'compensate':{'tool':'look'}}")) << "a read compensates nothing";
  EXPECT_FALSE(compiles("{'effect':'read','compensate':{'tool':'put'}}"));
  EXPECT_FALSE(compiles("{'compensate':{'tool':'put','args':{'x':'${ .steps.a }'}}}"));
  EXPECT_FALSE(compiles("{'compensate':{'tool':'put','happened':'${ .result }'}}"));
}

AE_TEST("probe/no probe is sent while a pause is requested") {
  JobFixture job = paying();
  job.claim().after(71s).pause().times_out("pay");
  EXPECT_EQ(job.sent.size(), 1u) << job.log_text();
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.last<JobParked>().until, "resume");
  job.resume();
  ASSERT_EQ(job.sent.size(), 2u) << job.log_text();
  EXPECT_EQ(job.sent[1].tool, "find");
  job.ok("pay/probe", "{'charge':7}");
  EXPECT_EQ(job.status(), "completed");
  expect_probe_proved(job);
}

AE_TEST("probe/a timed-out call is probed after its deadline and grace period, not before") {
  JobFixture job = paying();
  job.claim().times_out("pay");
  EXPECT_EQ(job.sent.size(), 1u);
  EXPECT_EQ(job.status(), "queued") << "no worker holds the job meanwhile";
  EXPECT_EQ(to_text(*job.last<JobRequeued>().not_before),
            to_text(job.state.steps[0].call->deadline + 30s));
  job.after(69s);
  EXPECT_EQ(job.sent.size(), 1u);
  job.after(2s);
  ASSERT_EQ(job.sent.size(), 2u) << job.log_text();
  EXPECT_EQ(job.sent[1].tool, "find");
  EXPECT_EQ(job.sent[1].arguments, Value::object({{"key", job.sent[0].external_key}, {"n", 5}}));
  EXPECT_NE(job.sent[1].external_key, job.sent[0].external_key);
  EXPECT_EQ(job.state.path_of(job.step("pay/probe")), "0/0/probe/1");
}

AE_TEST("probe/a positive answer is the result of the call, which is not repeated") {
  JobFixture job = paying();
  job.claim().times_out("pay").after(80s).ok("pay/probe", "{'charge':{'id':7}}");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.state.result, json("{'pay':{'id':7}}"));
  const auto decision = job.all<DecisionRecorded>().back();
  EXPECT_EQ(decision.kind, "in_doubt");
  EXPECT_EQ(decision.state, "happened");
  EXPECT_EQ(decision.by, "probe");
  EXPECT_EQ(job.tries("pay"), 1u);
  expect_probe_proved(job);
}

AE_TEST("probe/a null answer permits one new try under the same keys") {
  JobFixture job = paying();
  job.claim().times_out("pay").after(80s).ok("pay/probe", "{'charge':null}");
  ASSERT_EQ(job.tries("pay"), 2u);
  EXPECT_EQ(job.sent[2].external_key, job.sent[0].external_key);
  EXPECT_EQ(job.sent[2].key, job.sent[0].key);
  EXPECT_EQ(job.sent[2].try_no, 2u);
  job.ok("pay", "1");
  EXPECT_EQ(job.status(), "completed");
  expect_probe_proved(job);
}

AE_TEST("probe/null answers permit as many tries as the tool has, then the job parks") {
  JobFixture job = paying();
  job.claim().times_out("pay").after(80s).ok("pay/probe", "{'charge':null}");
  job.times_out("pay").after(80s);
  EXPECT_EQ(job.status(), "parked") << job.log_text();
  EXPECT_EQ(job.state.parked_until, "resolve");
  job.resolve("pay", "happened", "2");
  EXPECT_EQ(job.status(), "completed");
  expect_probe_proved(job);
}

AE_TEST("probe/a probe that fails permanently leaves the call to an operator") {
  JobFixture job = paying();
  job.claim().times_out("pay").after(80s).fails("pay/probe", "http_404");
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.last<WaitOpened>().reason, "the probe failed (http_404)");
  job.resolve("pay", "not_happened").ok("pay");
  EXPECT_EQ(job.status(), "completed");
  expect_probe_proved(job);
}

AE_TEST("probe/a probe without an answer is retried by its own policy, then the job parks") {
  JobFixture job = paying();
  job.claim().times_out("pay").after(80s).times_out("pay/probe").after(1s);
  EXPECT_EQ(job.tries("pay/probe"), 2u);
  job.times_out("pay/probe");
  EXPECT_EQ(job.status(), "parked") << job.log_text();
  expect_probe_proved(job);
}

AE_TEST("probe/an answer that `happened` cannot evaluate leaves the call to an operator") {
  JobFixture job = paying();
  job.claim().times_out("pay").after(80s).ok("pay/probe", "[1]");
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.last<WaitOpened>().reason, "the probe failed (expression_failed)");
  expect_probe_proved(job);
}

AE_TEST("probe/a call left open by a crash is probed timeout and grace after the store opens") {
  JobFixture job = paying();
  job.claim().after(2s).crash();
  EXPECT_EQ(job.sent.size(), 1u) << "its request may still arrive\n" << job.log_text();
  const Instant settles = *job.opened_at + 60s;
  EXPECT_EQ(job.state.settles_at(job.step("pay")), settles);
  EXPECT_EQ(to_text(*job.last<JobRequeued>().not_before), to_text(settles));
  job.after(60s - 1ms);
  EXPECT_EQ(job.sent.size(), 1u) << job.log_text();
  job.after(1ms);
  ASSERT_EQ(job.sent.size(), 2u) << job.log_text();
  EXPECT_EQ(job.sent[1].tool, "find");
  job.ok("pay/probe", "{'charge':3}");
  EXPECT_EQ(job.state.result, json("{'pay':3}"));
  const auto types = job.types("pay");
  const std::vector<std::string> end(types.end() - 5, types.end());
  EXPECT_EQ(end,
            (std::vector<std::string>{"tool_invocation_finished", "decision_recorded",
                                      "command_committed", "node_finished", "step_committed"}));
  EXPECT_EQ(job.all<ToolInvocationFinished>().back().outcome, "unknown");
  expect_probe_proved(job);
}

AE_TEST("probe/later openings of the store do not delay the probe") {
  JobFixture job = paying();
  job.claim().after(2s).crash();
  const auto settles = job.state.settles_at(job.step("pay"));
  job.after(5s).crash();
  job.after(5s).crash();
  EXPECT_EQ(job.state.settles_at(job.step("pay")), settles) << job.log_text();
  EXPECT_EQ(job.folded(job.log.size()).settles_at(job.step("pay")), settles);
  job.now = *settles - 1ms;
  job.claim();
  EXPECT_EQ(job.sent.size(), 1u) << job.log_text();
  job.after(1ms);
  EXPECT_EQ(job.sent.size(), 2u) << job.log_text();
}

AE_TEST("probe/an opening after the send window does not extend the settling time") {
  JobFixture job = paying();
  job.claim().after(25s).crash();
  const Instant deadline = job.step("pay").call->deadline;
  EXPECT_EQ(job.state.settles_at(job.step("pay")), deadline + 30s) << "and not 60 s from now";
}

AE_TEST("probe/a call of the same process settles at its own deadline") {
  JobFixture job = paying();
  job.opened_at = job.now;
  job.claim();
  job.owned = false;  // it is claimed again, and the store was not opened in between
  job.reload().claim();
  EXPECT_EQ(job.state.settles_at(job.step("pay")), job.step("pay").call->deadline + 30s);
}

AE_TEST("probe/a complete response settles the call, which is probed at once") {
  for (const bool settled : {true, false}) {
    JobFixture job = paying();
    job.claim().answer("pay", {.kind = OutcomeKind::unknown,
                               .retryable = true,
                               .settled = settled,
                               .error_code = "http_500",
                               .error_message = "the server answered 500"});
    EXPECT_EQ(job.sent.size(), settled ? 2u : 1u) << job.log_text();
    EXPECT_EQ(job.last<ToolInvocationFinished>().settled,
              settled ? std::optional(true) : std::nullopt);
    expect_probe_proved(job);
  }
}

AE_TEST("probe/a complete response to one try does not settle an earlier one") {
  JobFixture job = paying("[{'id':'pay','kind':'tool','tool':'set'}]");
  job.claim().times_out("pay").after(1s);
  ASSERT_EQ(job.tries("pay"), 2u);
  job.answer("pay", {.kind = OutcomeKind::unknown,
                     .settled = true,
                     .error_code = "http_500",
                     .error_message = "the server answered 500"});
  EXPECT_EQ(job.sent.size(), 2u) << "the first may still arrive\n" << job.log_text();
  job.after(80s);
  EXPECT_EQ(job.sent.back().tool, "find");
  expect_probe_proved(job);
}

AE_TEST("probe/on a shared store the probe waits for each try, also one before the newest") {
  JobFixture job = paying("[{'id':'pay','kind':'tool','tool':'set'}]");
  job.owned = false;
  job.claim().times_out("pay");
  const Instant settles = job.step("pay").call->deadline + 30s;
  job.lease_left = 1s;  // of the second try: its deadline is before that of the first
  job.after(2s).times_out("pay");
  ASSERT_EQ(job.tries("pay"), 2u) << job.log_text();
  ASSERT_LT(job.step("pay").call->deadline + 30s, settles);
  job.lease_left = 30s;
  job.now = settles - 1us;
  job.crash();
  EXPECT_EQ(job.sent.size(), 2u) << job.log_text();
  job.after(1us);
  ASSERT_EQ(job.sent.size(), 3u) << job.log_text();
  EXPECT_EQ(job.sent.back().tool, "find");
  expect_probe_proved(job);
}

AE_TEST(
    "probe/the opening of the store after a try limits it, and later tries do not change that") {
  JobFixture job = paying("[{'id':'pay','kind':'tool','tool':'set'}]");
  job.opened_at = job.now;
  job.claim().times_out("pay");
  const Instant first = job.step("pay").call->deadline;
  job.now = job.now + 50ms;  // within the backoff
  job.crash();
  const Instant opened = *job.opened_at;
  ASSERT_LT(opened + 30s, first);
  EXPECT_EQ(job.state.settles_at(job.step("pay")), opened + 60s);
  job.after(10s);
  ASSERT_EQ(job.tries("pay"), 2u) << job.log_text();
  EXPECT_EQ(job.state.settles_at(job.step("pay")), job.step("pay").call->deadline + 30s);
  job.decides = false;
  job.answer("pay", {.kind = OutcomeKind::unknown,
                     .settled = true,
                     .error_code = "http_500",
                     .error_message = "the server answered 500"});
  EXPECT_EQ(job.state.settles_at(job.step("pay")), opened + 60s) << "that of the first try";
  EXPECT_EQ(job.folded(job.log.size()).settles_at(job.step("pay")), opened + 60s);
}

AE_TEST("probe/a local program is settled when it has ended") {
  constexpr std::string_view kLocal = R"({'tools': {
    'find': {'effect': 'read'},
    'buy': {'effect': 'at_most_once', 'on_in_doubt': 'probe', 'local': true,
            'probe': {'tool': 'find', 'happened': '${ .result }'}}}})";
  for (const bool killed : {true, false}) {
    JobFixture job(kProbedNodes, {.more = kLocal});
    job.claim();
    if (killed) {
      job.unknown("pay", "signal_9");
    } else {
      job.crash();  // the next process ends its process group before it decides
    }
    ASSERT_EQ(job.sent.size(), 2u) << job.log_text();
    EXPECT_EQ(job.sent[1].tool, "find");
  }
  JobFixture shared(kProbedNodes, {.more = kLocal});
  shared.owned = false;
  shared.claim().crash().after(60s);
  EXPECT_EQ(shared.sent.size(), 1u) << "it may run on another machine\n" << shared.log_text();
  shared.after(11s);
  EXPECT_EQ(shared.sent.size(), 2u);
}

AE_TEST("probe/a local try on another machine is awaited even if the next one has ended") {
  constexpr std::string_view kAgain = R"({'tools': {
    'find': {'effect': 'read'},
    'buy': {'effect': 'idempotent', 'on_in_doubt': 'resend', 'local': true,
            'retry': {'max_attempts': 1, 'retry_on': []}}}})";
  for (const bool owned : {true, false}) {
    JobFixture job(kProbedNodes, {.more = kAgain});
    job.owned = owned;
    if (owned) job.opened_at = job.now;
    job.claim().crash().after(71s);
    ASSERT_EQ(job.tries("pay"), 2u) << job.log_text();
    job.decides = false;
    job.unknown("pay", "signal_9");
    const auto settles = job.state.settles_at(job.step("pay"));
    EXPECT_EQ(settles.has_value(), !owned) << job.log_text();
  }
  JobFixture one(kProbedNodes, {.more = kAgain});
  one.owned = false;
  one.claim();
  one.decides = false;
  one.unknown("pay", "signal_9");
  EXPECT_FALSE(one.state.settles_at(one.step("pay"))) << "its own attempt received the end";
}

AE_TEST("probe/the view lists the calls that are settling and until when") {
  JobFixture job = paying();
  job.claim().after(2s).crash();
  const Value settling = job_view(job.state)["settling"];
  ASSERT_EQ(settling.size(), 1u) << job.log_text();
  const Value& one = settling.items()[0];
  EXPECT_EQ(one["node_id"], Value("pay"));
  EXPECT_EQ(one["tool"], Value("buy"));
  EXPECT_EQ(one["idempotency_key"], Value(job.sent[0].key));
  EXPECT_EQ(one["until"], Value(to_text(*job.state.settles_at(job.step("pay")))));
  job.after(80s);
  EXPECT_EQ(job_view(job.state)["settling"].size(), 0u) << "its probe is in flight";
}

AE_TEST("probe/on a shared store the probe waits for the deadline and the grace period") {
  JobFixture job = paying();
  job.owned = false;
  job.claim().crash();
  EXPECT_EQ(job.sent.size(), 1u);
  job.after(69s);
  EXPECT_EQ(job.sent.size(), 1u);
  job.after(2s);
  EXPECT_EQ(job.sent.size(), 2u);
}

AE_TEST("probe/a null answer closes a call left open by a crash and sends it again") {
  JobFixture job = paying();
  job.claim().crash().after(60s).ok("pay/probe", "{'charge':null}");
  ASSERT_EQ(job.tries("pay"), 2u);
  job.ok("pay", "9");
  EXPECT_EQ(job.state.result, json("{'pay':9}"));
  expect_probe_proved(job);
}

AE_TEST("probe/an idempotent call is retried first and probed when no tries are left") {
  JobFixture job = paying("[{'id':'pay','kind':'tool','tool':'set'}]");
  job.claim().times_out("pay").after(1s);
  EXPECT_EQ(job.tries("pay"), 2u);
  job.times_out("pay").after(80s);
  EXPECT_EQ(job.sent.back().tool, "find");
  job.ok("pay/probe", "4");
  EXPECT_EQ(job.state.result, json("{'pay':4}"));
  expect_probe_proved(job);
}

AE_TEST("probe/a result in the effect store takes precedence over the probe") {
  JobFixture job = paying();
  job.claim().crash().after(60s);
  job.store_effect("pay", {.kind = OutcomeKind::success, .result = json("1")}, Arrival::in_time);
  EXPECT_EQ(job.status(), "running") << "its probe is in flight";
  job.ok("pay/probe", "{'charge':null}");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.state.result, json("{'pay':1}"));
  EXPECT_EQ(job.tries("pay"), 1u);
  expect_probe_proved(job);
}

AE_TEST("probe/a cancel during a probe closes both calls and lists the unknown one") {
  JobFixture job = paying();
  job.claim().crash().after(60s).cancel();
  EXPECT_EQ(job.status(), "running") << "a call is in flight";
  job.times_out("pay/probe");
  EXPECT_EQ(job.status(), "cancelled") << job.log_text();
  EXPECT_EQ(job.state.final_in_doubt, Value::array({Value(job.step("pay").call->key.text)}));
  expect_probe_proved(job);
}

AE_TEST("probe/an item of a map is probed on its own") {
  JobFixture job = paying(
      "[{'id':'m','kind':'map','over':[1,2],'max_parallel':2,'do':{'tool':'buy','args':{'n':'${ "
      ".item }'}}}]");
  job.claim().ok("m/0", "1").times_out("m/1").after(80s).ok("m/1/probe", "{'charge':2}");
  EXPECT_EQ(job.state.result, json("{'m':[1,2]}")) << job.log_text();
  EXPECT_EQ(job.state.path_of(job.step("m/1/probe")), "0/0/1/probe/1");
  expect_probe_proved(job);
}

AE_TEST("probe/64 calls left open by a crash are all probed") {
  std::string nodes = "[";
  for (int i = 0; i < 80; ++i) {
    nodes += (i ? ",{'id':'n" : "{'id':'n") + std::to_string(i) +
             "','kind':'tool','tool':'buy','args':{'n':1}}";
  }
  JobFixture job = paying(nodes + "]");
  job.claim().crash().after(60s);
  for (int i = 0; i < 5000 && job.status() != "completed"; ++i) {
    ASSERT_FALSE(job.in_flight.empty()) << job.log_text();
    job.answer(job.in_flight.begin()->first,
               {.kind = OutcomeKind::success, .result = json("{'charge':1}")});
  }
  EXPECT_EQ(job.status(), "completed");
  for (int i = 0; i < 80; ++i) EXPECT_EQ(job.tries(fmt::format("n{}", i)), 1u);
  expect_probe_proved(job);
}

// The process dies after each commit; each call that was sent takes place.
AE_TEST("probe/a crash at any commit repeats the probe and pays once") {
  for (const char* answer : {"{'charge':8}", "{'charge':null}"}) {
    for (std::size_t commit = 2; commit < 12; ++commit) {
      JobFixture job = paying();
      job.claim();
      const auto live = [&](auto&& next) {
        if (is_terminal(job.state.status)) return;
        if (job.commits.size() == commit) job.crash();
        next();
      };
      for (int i = 0; i < 8; ++i) {
        live([&] {
          const auto flight = job.in_flight;
          if (flight.empty()) return (void)job.after(80s);
          const std::uint32_t step = flight.begin()->first;
          if (job.state.steps[step].role == Role::probe) {
            return (void)job.answer(step, {.kind = OutcomeKind::success, .result = json(answer)});
          }
          if (flight.begin()->second > 1) return (void)job.ok("pay", "8");
          job.times_out("pay");
        });
      }
      if (job.status() == "parked") job.resolve("pay", "happened", "8");
      ASSERT_EQ(job.status(), "completed") << commit << "\n" << job.log_text();
      EXPECT_EQ(job.state.result, json("{'pay':8}"));
      EXPECT_LE(job.tries("pay"), 2u);
      expect_probe_proved(job);
    }
  }
}

AE_TEST("probe/verify rejects a log with a changed probe result") {
  JobFixture job = paying();
  job.claim().times_out("pay").after(80s).ok("pay/probe", "{'charge':{'id':7}}");
  VerifyInput input;
  input.job = job.state.job;
  input.events = job.log;
  each<CommandCommitted>(input.events, [](CommandCommitted& event) {
    if (!event.result.is_null()) event.result = json("{'id':8}");
  });
  EXPECT_FALSE(verify(input, uncached_plan_source()).replay.ok);
}

AE_TEST("probe/the trace shows the probe and its result") {
  JobFixture job = paying();
  job.claim().times_out("pay").after(80s).ok("pay/probe", "{'charge':{'id':7}}");
  const Value node = trace_view(job.state, job.log)["nodes"].items()[0];
  EXPECT_EQ(node["world"], Value("changed"));
  ASSERT_EQ(node["probes"].size(), 1u);
  const Value& probe = node["probes"].items()[0];
  EXPECT_EQ(probe["tool"], Value("find"));
  EXPECT_EQ(probe["path"], Value("0/0/probe/1"));
  EXPECT_EQ(probe["world"], Value("unchanged"));
  EXPECT_EQ(probe["status"], Value("done"));
}

AE_TEST("probe/a probe left open by a crash is not resent by a changed tool") {
  JobFixture job = paying();
  job.claim().times_out("pay").after(71s);
  ASSERT_EQ(job.sent.size(), 2u) << job.log_text();
  job.reload();
  job.versions.assign(job.plan->tools.size(), "ffffffffffffffff");
  job.claim();
  EXPECT_EQ(job.sent.size(), 2u) << job.log_text();
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.last<WaitOpened>().step_id, job.step("pay").id);
  EXPECT_EQ(job.resolve("pay", "happened", "7").status(), "completed");
  expect_probe_proved(job);
}

}  // namespace
}  // namespace ae::engine::testing
