// Versions of code: which one is started, trials, and the decision that moves a job.
#include "engine/version/code_version.h"

#include <stdexcept>

#include "engine/code/code_helpers_test.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kV1 = "{'version':'v1'}";
constexpr std::string_view kRoute = "{'versions': {'policy': 'route'}}";
constexpr std::string_view kStrictCode = "{'versions': {'policy': 'strict'}}";

Script two_calls(CodeContext ctx) {
  const Value first = co_await ctx.run("a", "idempotent");
  co_return co_await ctx.run("b", "idempotent", argument("n", first));
}

// Fits a job that made no more than the first call.
Script other_second_call(CodeContext ctx) {
  co_await ctx.run("a", "idempotent");
  co_return co_await ctx.run("c", "idempotent");
}

Script other_first_call(CodeContext ctx) { co_return co_await ctx.run("x", "idempotent"); }

Script throws_at_once(CodeContext ctx) {
  co_await ctx.run("a", "idempotent");
  throw std::runtime_error("broken");
}

CodeJob begun_code(std::string_view more = kRoute) {
  CodeJob job(&two_calls, kV1, {.more = more});
  job.use_version("v1", &two_calls).claim();
  return job;
}

// Another process takes it over, with other code.
CodeJob& take_over(CodeJob& job, std::string version, Program program) {
  job.reload();
  job.use_version(std::move(version), std::move(program)).claim();
  return job;
}

CodeOffers offers(std::vector<std::string> versions, Duration own_missing_for = 0s) {
  return {.nodes = {{0, {.versions = std::move(versions), .own_missing_for = own_missing_for}}},
          .policy = {}};
}

std::string chosen(const CodeJob& job, const CodeOffers& offered) {
  const CodeChoice choice = choose_version(job.state, 0, offered.nodes.at(0), offered.policy);
  if (choice.version) return *choice.version;
  return choice.again_in ? ae::to_text(*choice.again_in) : "none";
}

AE_TEST(
    "code versions/a trial that makes the recorded requests moves the job with its first step") {
  CodeJob job = begun_code();
  job.ok("code/a", "7");
  take_over(job, "v2", &other_second_call);
  EXPECT_EQ(job.state.steps[0].code->version, "v1") << "its request b is recorded";
  EXPECT_EQ(job.status(), "parked");

  CodeJob moved = begun_code();
  take_over(moved, "v2", &other_second_call).ok("code/a", "7");
  const auto decision = decision_as<VersionMoved>(moved.last<DecisionRecorded>());
  ASSERT_TRUE(decision) << moved.log_text();
  EXPECT_EQ(decision->from, "v1");
  EXPECT_EQ(decision->to, "v2");
  EXPECT_EQ(decision->requests, 1);
  EXPECT_EQ(moved.last<RoutineStarted>().version, "v2");
  EXPECT_EQ(moved.state.steps[0].code->version, "v2");
  EXPECT_EQ(moved.ok("code/c").status(), "completed") << moved.log_text();
  expect_proved(moved);
}

AE_TEST("code versions/each decision that moves a job has an id of its own") {
  CodeJob job = begun_code();
  const auto moved_id = [&] {
    const auto events = routine_started_events(job.state, job.step("code"), {.version = "v2"});
    return std::get<DecisionRecorded>(events.at(0)).decision_id.text;
  };
  const std::string first = moved_id();
  job.ok("code/a", "7");  // in the same attempt
  EXPECT_NE(moved_id(), first);
}

AE_TEST("code versions/a trial that diverges records its finding, and the job keeps its version") {
  CodeJob job = begun_code();
  take_over(job, "v2", &other_first_call);
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.last<JobParked>().reason, "non_determinism");
  EXPECT_EQ(job.last<RoutineDiverged>().version, "v2");
  EXPECT_EQ(job.state.steps[0].code->version, "v1");
  EXPECT_TRUE(job.state.steps[0].code->was_tried("v2"));
  EXPECT_EQ(job.count(EventType::decision_recorded), 0u) << job.log_text();
  for (int i = 0; i < 20; ++i) {  // more often than a job may lose its worker
    EXPECT_EQ(job.resume().status(), "parked");
  }
  EXPECT_EQ(job.count(EventType::routine_diverged), 21u);
  EXPECT_EQ(job.state.lost_claims, 1u) << "of the worker before the trial; a divergence is none";
  job.use_version("v1", &two_calls).resume().ok("code/a", "7").ok("code/b");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  expect_proved(job);
}

AE_TEST("code versions/a trial that throws at the frontier does not move the job") {
  CodeJob job(&throws_at_once, kV1, {.more = kRoute});
  job.use_version("v1", &throws_at_once).claim().ok("code/a");
  ASSERT_EQ(job.status(), "parked");
  job.use_version("v2", &throws_at_once).resume();
  EXPECT_EQ(job.status(), "parked") << job.log_text();
  EXPECT_EQ(job.last<RoutineFailed>().version, "v2");
  EXPECT_EQ(job.state.steps[0].code->version, "v1");
  EXPECT_EQ(job.count(EventType::decision_recorded), 0u);
  expect_proved(job);
}

AE_TEST("code versions/a park ends when a version is offered that was not tried") {
  CodeJob job = begun_code();
  take_over(job, "v2", &other_first_call);
  ASSERT_EQ(job.status(), "parked");
  const auto offer = [&](CodeOffers offered) {
    job.offers = std::move(offered);
    return job.offer().reply["resumed"] == Value(true);
  };
  EXPECT_FALSE(offer(offers({})));
  EXPECT_FALSE(offer(offers({"v2"}))) << "it diverged";
  EXPECT_EQ(chosen(job, offers({"v2", "v3"})), "v3");
  job.use_version("v3", &other_first_call);
  EXPECT_TRUE(offer(offers({"v2", "v3"})));
  EXPECT_EQ(job.last<RoutineDiverged>().version, "v3");
  EXPECT_FALSE(offer(offers({"v2", "v3"})));
  EXPECT_EQ(chosen(job, offers({"v1", "v2", "v3"})), "v1") << "its own version was not tried";
  job.use_version("v1", &two_calls);
  EXPECT_TRUE(offer(offers({"v1", "v2", "v3"})));
  EXPECT_FALSE(offer(offers({"v4"}))) << "it is parked no more";
  job.ok("code/a", "7");
  EXPECT_TRUE(job.state.steps[0].code->tried.empty()) << "the job went on";
  expect_proved(job);
}

AE_TEST("code versions/a strict job is not resumed for another version of its code") {
  CodeJob job = begun_code(kStrictCode);
  take_over(job, "v1", &other_first_call);
  ASSERT_EQ(job.last<JobParked>().reason, "non_determinism");
  job.offers = offers({"v1", "v2"});
  EXPECT_EQ(job.offer().reply["resumed"], Value(false));
}

AE_TEST("code versions/route: the job's version, and another one after the wait") {
  const CodeJob job = begun_code();
  EXPECT_EQ(chosen(job, offers({"v1", "v2"})), "v1");
  EXPECT_EQ(chosen(job, offers({"v2"}, 10s)), ae::to_text(Duration(290s)));
  EXPECT_EQ(chosen(job, offers({}, 10s)), "none");
  EXPECT_EQ(chosen(job, offers({"v2", "v3"}, 300s)), "v3");
  EXPECT_EQ(chosen(begun_code("{'versions': {'policy': 'route', 'wait': '0ms'}}"), offers({"v2"})),
            "v2");
}

AE_TEST("code versions/strict and warn") {
  const CodeJob strict = begun_code(kStrictCode);
  EXPECT_EQ(chosen(strict, offers({"v2", "v1"})), "v1");
  EXPECT_EQ(chosen(strict, offers({"v2"}, 24h)), "none");
  const CodeJob warn = begun_code("{}");
  EXPECT_EQ(chosen(warn, offers({"v1", "v2"})), "v2");
  EXPECT_EQ(chosen(warn, offers({"v1"})), "v1");
  CodeOffers of_process = offers({"v1", "v2"});
  of_process.policy = VersionPolicy::warn;
  EXPECT_EQ(chosen(strict, of_process), "v2") << "the policy of the process holds instead";
}

AE_TEST("code versions/warn: the job's own version is started after another one diverged") {
  CodeJob job = begun_code("{}");
  job.reload();
  job.falls_back = true;
  job.use_version("v2", &other_first_call).claim();
  EXPECT_EQ(job.status(), "running") << job.log_text();
  EXPECT_EQ(job.count(EventType::routine_diverged), 1u);
  const OfferedCode both{.versions = {"v1", "v2"}, .own_missing_for = {}};
  EXPECT_EQ(choose_version(job.state, 0, both, {}).version, "v1");
  EXPECT_TRUE(has_fallback(job.state, 0, "v2", both, {}));
  EXPECT_FALSE(has_fallback(job.state, 0, "v1", both, {}));
  EXPECT_FALSE(has_fallback(job.state, 0, "v2", both, VersionPolicy::route));
  EXPECT_FALSE(has_fallback(job.state, 0, "v2", {.versions = {"v2"}, .own_missing_for = {}}, {}));
}

AE_TEST("code versions/a version that did not fit is not tried again while the own one is absent") {
  CodeJob job = begun_code("{}");
  job.reload();
  job.falls_back = true;
  job.use_version("v2", &other_first_call).claim();
  ASSERT_EQ(job.count(EventType::routine_diverged), 1u);
  job.reload();  // its state is that of the log
  EXPECT_EQ(chosen(job, offers({"v2"}, 1s)), ae::to_text(Duration(299s)));
  EXPECT_EQ(chosen(job, offers({"v1", "v2"})), "v1");
  EXPECT_EQ(chosen(job, offers({"v2", "v3"}, 1s)), "v3");
  EXPECT_EQ(chosen(job, offers({"v2"}, 300s)), "v2") << "its finding parks the job";
}

AE_TEST("code versions/what was tried is tried again at once when an operator resumes the job") {
  const auto tried_again = [](bool by_operator) {
    CodeJob job = begun_code();
    take_over(job, "v2", &other_first_call);
    EXPECT_EQ(job.status(), "parked");
    job.offers = offers({"v2", "v3"});
    auto folded = fold(job.state.job, job.log, uncached_plan_source());
    AE_CHECK(folded.has_value());
    const ControlRequest request = by_operator
                                       ? ControlRequest{.by = "ann", .body = ResumeRequest{}}
                                       : ControlRequest{.by = "worker-2", .body = VersionRequest{}};
    DecisionContext context{.now = job.now, .lease_until = job.now};
    context.code_offers = &*job.offers;
    const auto applied = apply_request(*folded, request, context);
    AE_CHECK(applied.has_value() && applied->events.size() == 1);
    AE_CHECK(apply(*folded, applied->events[0], job.now, uncached_plan_source()).has_value());
    const OfferedCode left{.versions = {"v2"}, .own_missing_for = 1s};  // v3 has gone
    return choose_version(*folded, 0, left, {}).version.value_or("none");
  };
  EXPECT_EQ(tried_again(true), "v2");
  EXPECT_EQ(tried_again(false), "none");
}

AE_TEST("code versions/a log in which other code ran without a decision is refused") {
  CodeJob job = begun_code();
  const RoutineStarted started{.attempt_id = job.state.attempt.text,
                               .node_id = "code",
                               .step_id = job.step("code").id,
                               .version = "v2"};
  const auto apply_to_copy = [&](const EventBody& event) {
    auto folded = fold(job.state.job, job.log, uncached_plan_source());
    AE_CHECK(folded.has_value());
    return apply(*folded, event, job.now, uncached_plan_source());
  };
  const DecisionRecorded place{.decision_id = decision_at(job.state, "code#version/9/v2"),
                               .node_id = "code",
                               .step_id = job.step("code").id};
  EXPECT_EQ(apply_to_copy(started).error().code, Code::log_corrupt);
  for (const VersionMoved& wrong : {VersionMoved{.from = "v2", .requests = 0, .to = "v3"},
                                    VersionMoved{.from = "v1", .requests = 0, .to = "v1"},
                                    VersionMoved{.from = "v1", .requests = -1, .to = "v2"}}) {
    EXPECT_FALSE(apply_to_copy(decision_event(wrong, place)));
  }
  EXPECT_TRUE(
      apply_to_copy(decision_event(VersionMoved{.from = "v1", .requests = 0, .to = "v2"}, place)));
}

// ---------------------------------------------------------------- calls of a worker

Script one_mail(CodeContext ctx) { co_return co_await ctx.run("mail", "at_most_once"); }

CodeJob mailing() {
  CodeJob job(&one_mail, kV1, {.more = kRoute});
  job.worker = WorkerName{.key = "k1", .name = "host:1:abc"};
  job.claim();
  return job;
}

AE_TEST("code workers/the log names the worker that a function was given to") {
  CodeJob job = mailing();
  ASSERT_TRUE(job.step("code/mail").call) << job.log_text();
  ASSERT_TRUE(job.step("code/mail").call->worker) << job.log_text();
  EXPECT_EQ(job.step("code/mail").call->worker->name, "host:1:abc");
  EXPECT_EQ(job.step("code/mail").call->worker->key, "k1");
  expect_every_prefix(job);
  job.unknown("code/mail");
  EXPECT_TRUE(job.step("code/mail").call->worker) << "it may report a late success";
  expect_proved(job);
}

AE_TEST("code workers/a new process waits for reports before it asks an operator") {
  CodeJob job = mailing();
  job.reload();
  job.functions_held_until = job.now + 20s;
  job.claim();
  EXPECT_NE(job.status(), "parked") << job.log_text();
  job.after(19s);
  EXPECT_NE(job.status(), "parked");
  CodeJob silent = mailing();
  silent.reload();
  silent.functions_held_until = silent.now + 20s;
  silent.claim().after(20s);
  EXPECT_EQ(silent.status(), "parked") << "no report came";

  job.held_calls.insert(job.step("code/mail").call->id);
  job.after(5s);
  EXPECT_EQ(job.status(), "queued") << "the worker still performs it";
  job.store_effect("code/mail", {.kind = OutcomeKind::success, .result = json("'sent'")});
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.sent.size(), 1u);
  expect_proved(job);
}

AE_TEST("code workers/a call that its worker did not receive is sent again") {
  CodeJob job = mailing();
  job.reload();
  job.functions_held_until = job.now + 20s;
  job.claim();
  job.store_effect("code/mail", {.kind = OutcomeKind::failure,
                                 .definite = true,
                                 .retryable = true,
                                 .error_code = "not_sent",
                                 .error_message = "the worker had not received it"});
  EXPECT_EQ(job.sent.size(), 2u) << job.log_text();
  job.ok("code/mail");
  EXPECT_EQ(job.status(), "completed");
  expect_proved(job);
}

AE_TEST("code workers/a call that no worker was given is not waited for") {
  CodeJob job(&one_mail, kV1, {.more = kRoute});
  job.use_version("v1", &one_mail).claim().reload();
  job.functions_held_until = job.now + 20s;
  EXPECT_EQ(job.claim().status(), "parked") << job.log_text();
}

}  // namespace
}  // namespace ae::engine::testing
