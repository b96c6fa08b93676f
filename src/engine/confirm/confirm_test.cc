// Confirmation: another attempt takes over a job with external changes and verifies
// them; the job continues, fails, or asks an operator. One test for each promise, and
// one for each moment of a crash.
#include <fmt/core.h>

#include "engine/confirm/confirm.h"
#include "engine/fixtures/job_fixture_test.h"
#include "engine/state/checkpoint.h"
#include "inspect/trace.h"
#include "inspect/verify.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

// A tool that makes a charge, and its verification.
std::string charging(std::string_view verify, std::string_view more = "") {
  std::string tool =
      "{'tools': {'charge': {'effect': 'idempotent', 'changes': [{'type': 'charge', 'id': "
      "'${ .result.id }', 'op': 'create', 'version': '${ .result.version }', 'etag': "
      "'${ .result.etag }', 'ref': '${ .result.url }'}]";
  if (!verify.empty()) tool += ", 'verify': " + std::string(verify);
  return tool + std::string(more) + "}}}";
}

constexpr std::string_view kStrict = "{'by': 'http_etag'}";
constexpr std::string_view kWarn = "{'by': 'http_etag', 'mode': 'warn'}";
constexpr std::string_view kHuman = "{'by': 'http_etag', 'mode': 'human'}";
constexpr std::string_view kMade =
    "{'id': 'ch_1', 'version': 3, 'etag': 'v1', 'url': 'http://shop/ch_1'}";
constexpr std::string_view kTwoNodes =
    "[{'id': 'a', 'kind': 'tool', 'tool': 'charge'},"
    " {'id': 'b', 'kind': 'tool', 'tool': 'put', 'needs': ['a']}]";

CheckResult mismatch(std::string observed = "v2") {
  return {.verdict = CheckVerdict::mismatch,
          .expected = "v1",
          .observed = std::move(observed),
          .reason = {}};
}
CheckResult unreachable() {
  return {
      .verdict = CheckVerdict::unreachable, .expected = {}, .observed = {}, .reason = "no answer"};
}

// A job whose first call has changed a resource, and whose second call is in flight.
JobFixture charged(std::string_view verify, std::string_view more = "") {
  const std::string tools = charging(verify, more);
  JobFixture job(kTwoNodes, {.more = tools});
  job.claim().ok("a", kMade);
  return job;
}

std::vector<std::string> tail(const JobFixture& job, std::size_t from) {
  const auto all = job.types();
  return {all.begin() + static_cast<std::ptrdiff_t>(from), all.end()};
}

void expect_confirm_proved(const JobFixture& job) {
  const State again = job.folded(job.log.size());
  EXPECT_EQ(state_view(again), state_view(job.state));
  const std::string bytes = checkpoint(job.state, {});
  auto restored = restore(job.state.job, job.state.seq, bytes, uncached_plan_source());
  ASSERT_TRUE(restored);
  EXPECT_EQ(state_view(restored->state), state_view(job.state));
  EXPECT_EQ(checkpoint(restored->state, {}), bytes);
  const Verification proof = verify(
      {.job = job.state.job, .events = job.log, .effects = job.effects}, uncached_plan_source());
  EXPECT_TRUE(proof.replay.ok) << proof.replay.detail;
  EXPECT_TRUE(proof.state_machine.ok) << proof.state_machine.detail;
  EXPECT_TRUE(proof.ledger.ok) << proof.ledger.detail;
}

AE_TEST("confirm/a change is recorded between the end of its call and the commit") {
  JobFixture job = charged(kStrict);
  const auto types = job.types("a");
  const std::vector<std::string> expected{
      "node_started",  "command_emitted",   "tool_invocation_started", "tool_invocation_finished",
      "state_changed", "command_committed", "node_finished",           "step_committed"};
  EXPECT_EQ(types, expected);
  const auto changed = job.last<StateChanged>();
  EXPECT_EQ(changed.resource_type, "charge");
  EXPECT_EQ(changed.resource_id, "ch_1");
  EXPECT_EQ(changed.operation, "create");
  EXPECT_EQ(changed.version, "3");
  EXPECT_EQ(changed.etag, "v1");
  EXPECT_EQ(changed.external_ref, "http://shop/ch_1");
  expect_confirm_proved(job);
}

AE_TEST("confirm/the attempt that made a change does not verify it") {
  JobFixture job = charged(kStrict);
  job.ok("b");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_TRUE(job.checked.empty());
  EXPECT_EQ(job.count(EventType::confirmation_checked), 0u);
}

AE_TEST("confirm/after a crash changes are verified once, before anything new starts") {
  JobFixture job = charged(kStrict);
  const std::size_t before = job.log.size();
  job.crash();
  const std::vector<std::string> expected{"job_running", "confirmation_checked",
                                          "decision_recorded", "tool_invocation_finished",
                                          "tool_invocation_started"};
  EXPECT_EQ(tail(job, before), expected) << job.log_text();
  EXPECT_EQ(job.last<ConfirmationChecked>().verdict, "match");
  job.ok("b");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.checked, std::vector<std::string>{"ch_1"});
  expect_confirm_proved(job);
}

AE_TEST("confirm/a job without changes records no verification") {
  JobFixture job("[{'id': 'a', 'kind': 'tool', 'tool': 'put'}]");
  job.claim().crash().ok("a");
  EXPECT_EQ(job.count(EventType::confirmation_checked), 0u);
  EXPECT_EQ(job.count(EventType::decision_recorded), 0u);
}

AE_TEST("confirm/strict mode: a changed resource fails the job, and nothing new starts") {
  JobFixture job = charged(kStrict);
  job.external_checks["ch_1"] = mismatch();
  const std::size_t calls = job.sent.size();
  job.crash();
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.sent.size(), calls);
  const auto end = job.last<JobFailed>();
  EXPECT_EQ(end.code, "confirmation_failed");
  EXPECT_EQ(end.node_id, "a");
  EXPECT_NE(end.error.value.as_string().find("\"v1\" was recorded, \"v2\" is there now"),
            std::string_view::npos)
      << end.error.value.as_string();
  EXPECT_EQ(end.in_doubt.json().size(), 1u);  // the call in flight
  expect_confirm_proved(job);
}

AE_TEST("confirm/warn mode: the mismatch is recorded and the job continues") {
  JobFixture job = charged(kWarn);
  job.external_checks["ch_1"] = mismatch();
  job.crash().ok("b");
  EXPECT_EQ(job.status(), "completed");
  const auto checked = job.last<ConfirmationChecked>();
  EXPECT_EQ(checked.verdict, "mismatch");
  EXPECT_EQ(checked.detail.json().text("mode"), "warn");
  EXPECT_EQ(checked.detail.json().text("observed"), "v2");
  expect_confirm_proved(job);
}

AE_TEST("confirm/the mode of the plan applies to tools without a mode") {
  JobFixture job(kTwoNodes, {.more = "{'confirm': 'warn', " + charging(kStrict).substr(1)});
  EXPECT_EQ(job.plan->tools[job.plan->nodes[0].tool].confirm, ConfirmMode::warn);
  JobFixture own(kTwoNodes, {.more = "{'confirm': 'warn', " + charging(kHuman).substr(1)});
  EXPECT_EQ(own.plan->tools[own.plan->nodes[0].tool].confirm, ConfirmMode::human);
}

AE_TEST("confirm/human mode: the job parks, is listed for approval and continues when accepted") {
  JobFixture job = charged(kHuman);
  job.external_checks["ch_1"] = mismatch();
  job.crash();
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.state.parked_reason, "replay_verification_human_required");
  EXPECT_EQ(job.state.parked_until, "confirmation");
  const auto approvals = approvals_view(job.state);
  ASSERT_EQ(approvals.size(), 1u);
  EXPECT_EQ(approvals[0].text("kind"), "confirmation");
  EXPECT_EQ(approvals[0].text("tool"), "charge");
  EXPECT_EQ(approvals[0]["resources"].items()[0].text("observed"), "v2");
  expect_confirm_proved(job);

  job.confirm("a", "accept", "it was us");
  EXPECT_FALSE(job.refused);
  const auto decision = job.all<DecisionRecorded>().at(2);
  EXPECT_EQ(decision.state, "accept");
  EXPECT_EQ(decision.by, "ann");
  EXPECT_EQ(decision.reason, "it was us");
  EXPECT_TRUE(decision.at);
  job.ok("b");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  expect_confirm_proved(job);
}

AE_TEST("confirm/an accepted mismatch is not raised again, a different one is") {
  JobFixture job = charged(kHuman);
  job.external_checks["ch_1"] = mismatch();
  job.crash().confirm("a", "accept").crash();
  EXPECT_EQ(job.status(), "running") << job.log_text();
  EXPECT_EQ(job.last<ConfirmationChecked>().detail.json()["accepted"], Value(true));
  job.external_checks["ch_1"] = mismatch("v3");
  job.crash();
  EXPECT_EQ(job.status(), "parked");
  expect_confirm_proved(job);
}

AE_TEST("confirm/human mode: a fail decision ends the job") {
  JobFixture job = charged(kHuman);
  job.external_checks["ch_1"] = mismatch();
  job.crash().confirm("a", "fail", "not ours");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.last<JobFailed>().code, "confirmation_failed");
  EXPECT_NE(job.last<JobFailed>().error.value.as_string().find("by ann: not ours"),
            std::string_view::npos);
  expect_confirm_proved(job);
}

AE_TEST("confirm/a mismatch can be answered as an approval or by the name of its node") {
  JobFixture job = charged(kHuman);
  job.external_checks["ch_1"] = mismatch();
  job.crash().answer_approval(job.step("a").id.text, "approve");
  EXPECT_EQ(job.status(), "running") << job.log_text();
  JobFixture other = charged(kHuman);
  other.external_checks["ch_1"] = mismatch();
  other.crash().send_request(
      {.body = ResolveRequest{.idempotency_key = "a", .resolution = "fail"}});
  EXPECT_EQ(other.status(), "failed");
}

AE_TEST("confirm/an answer without an open confirmation is rejected") {
  JobFixture job = charged(kHuman);
  job.crash().confirm("a", "accept");
  EXPECT_EQ(job.refused, Code::not_in_doubt);
  job.external_checks["ch_1"] = mismatch();
  job.crash();
  job.confirm("a", "happened");
  EXPECT_EQ(job.refused, Code::input_invalid);
  job.confirm("b", "accept");
  EXPECT_EQ(job.refused, Code::not_in_doubt);
  job.resume();
  EXPECT_EQ(job.refused, Code::not_paused);
  EXPECT_EQ(job.status(), "parked");
}

AE_TEST("confirm/an unreachable verifier parks the job in every mode and never fails it") {
  for (const std::string_view verify : {kStrict, kWarn, kHuman}) {
    JobFixture job = charged(verify);
    job.external_checks["ch_1"] = unreachable();
    job.crash();
    EXPECT_EQ(job.status(), "parked");
    EXPECT_EQ(job.state.parked_reason, "verifier_unreachable");
    EXPECT_EQ(job.state.parked_until, "resume");
    job.resume();  // checks again
    EXPECT_EQ(job.status(), "parked");
    job.external_checks.clear();
    job.resume();
    EXPECT_EQ(job.status(), "running") << job.log_text();
    expect_confirm_proved(job);
  }
}

AE_TEST("confirm/a job parked for confirmation by an earlier build can be resumed") {
  JobFixture job = charged(kStrict);
  job.external_checks["ch_1"] = unreachable();
  job.crash();
  ASSERT_EQ(job.last<JobParked>().until, "resume");
  std::get<JobParked>(job.log.back().body).until = "confirmation";
  job.state = job.folded(job.log.size());
  ASSERT_TRUE(job.state.awaits_confirmation());
  job.external_checks.clear();
  EXPECT_FALSE(job.resume().refused) << job.refusal;
  EXPECT_EQ(job.status(), "running") << job.log_text();
  expect_confirm_proved(job);
}

AE_TEST("confirm/an unreachable resource can be accepted, and is verified when reachable again") {
  JobFixture job = charged(kStrict);
  job.external_checks["ch_1"] = unreachable();
  job.crash().confirm("a", "accept");
  EXPECT_EQ(job.status(), "parked") << "only `resume` ends a park until resume";
  job.resume();
  EXPECT_EQ(job.status(), "running") << job.log_text();
  job.external_checks["ch_1"] = mismatch();
  job.crash();
  EXPECT_EQ(job.status(), "failed");
}

AE_TEST("confirm/a change without a verifier is shown as unconfirmed") {
  JobFixture job = charged("");
  job.crash();
  EXPECT_EQ(job.status(), "running");
  EXPECT_TRUE(job.checked.empty());
  EXPECT_EQ(job.last<ConfirmationChecked>().verdict, "unconfirmed");
  const Value shown = job_view(job.state)["changes"].items()[0];
  EXPECT_EQ(shown.text("verdict"), "unconfirmed");
  const Value node = trace_view(job.state, job.log)["nodes"].items()[0];
  EXPECT_EQ(node["changes"].items()[0].text("verdict"), "unconfirmed");
  expect_confirm_proved(job);
}

AE_TEST("confirm/only the last change of a resource is verified, by its own tool") {
  JobFixture job(
      "[{'id': 'a', 'kind': 'tool', 'tool': 'charge'},"
      " {'id': 'b', 'kind': 'tool', 'tool': 'amend', 'needs': ['a']},"
      " {'id': 'c', 'kind': 'tool', 'tool': 'put', 'needs': ['b']}]",
      {.more = "{'tools': {'charge': {'changes': [{'type': 't', 'id': 'x', 'op': 'create'}], "
               "'verify': {'by': 'http_etag'}},"
               " 'amend': {'changes': [{'type': 't', 'id': 'x', 'op': 'update', 'etag': '${ "
               ".result }'}], 'verify': {'by': 'http_etag', 'mode': 'warn'}}}}"});
  job.claim().ok("a").ok("b", "'v2'");
  job.external_checks["x"] = mismatch();
  job.crash();
  EXPECT_EQ(job.checked.size(), 1u);
  EXPECT_EQ(job.count(EventType::confirmation_checked), 1u);
  EXPECT_EQ(job.status(), "running");  // by the second tool's mode
  EXPECT_EQ(job.state.changes.begin()->second.etag, "v2");
  expect_confirm_proved(job);
}

AE_TEST("confirm/a resource that the job changes again is raised again") {
  JobFixture job(
      "[{'id': 'a', 'kind': 'tool', 'tool': 'charge'},"
      " {'id': 'b', 'kind': 'tool', 'tool': 'charge', 'needs': ['a']},"
      " {'id': 'c', 'kind': 'tool', 'tool': 'put', 'needs': ['b']}]",
      {.more = charging(kHuman)});
  job.claim().ok("a", kMade);
  job.external_checks["ch_1"] = mismatch();
  job.crash().confirm("a", "accept").ok("b", kMade);
  job.crash();
  EXPECT_EQ(job.status(), "parked") << job.log_text();
}

AE_TEST("confirm/a change that cannot be evaluated fails the node, and the call counts as done") {
  const std::string tools = charging(kStrict, ", 'compensate': {'tool': 'put'}");
  JobFixture job(kTwoNodes, {.more = tools});
  job.claim().ok("a", "{'no': 'id'}");
  const auto end = job.all<NodeFinished>().at(0);
  EXPECT_EQ(end.error->code, "tool_output_invalid");
  EXPECT_NE(end.error->message.value.as_string().find("changes[0]"), std::string_view::npos)
      << end.error->message.value.as_string();
  EXPECT_EQ(end.result_type, "compensatable_failure");
  EXPECT_EQ(job.tries("a"), 1u);
  job.ok("a/compensate");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.last<JobFailed>().code, "tool_output_invalid");
  expect_confirm_proved(job);
}

AE_TEST("confirm/the result of a happened resolution determines the recorded change") {
  JobFixture doubt(
      "[{'id': 'a', 'kind': 'tool', 'tool': 'sell'}]",
      {.more = "{'tools': {'sell': {'effect': 'at_most_once', 'on_in_doubt': 'park', "
               "'changes': [{'type': 't', 'id': '${ .result.id }', 'op': 'sell'}]}}}"});
  doubt.waits_for_settling = true;
  doubt.claim().unknown("a");
  doubt.resolve("a", "happened", "{}");
  EXPECT_EQ(doubt.refused, Code::input_invalid);
  doubt.resolve("a", "happened", "{'id': 7}");
  EXPECT_EQ(doubt.status(), "completed") << doubt.log_text();
  EXPECT_EQ(doubt.last<StateChanged>().resource_id, "7");
  expect_confirm_proved(doubt);
}

// ---------------------------------------------------------------- crashes

AE_TEST("confirm/a crash before the verifier answers makes the next attempt verify again") {
  JobFixture job = charged(kStrict);
  job.answers_checks = false;
  job.crash();
  EXPECT_EQ(job.requested_checks.size(), 1u);
  EXPECT_EQ(job.sent.size(), 2u);  // nothing new
  EXPECT_EQ(job.count(EventType::confirmation_checked), 0u);
  job.answers_checks = true;
  job.crash();
  EXPECT_EQ(job.checked.size(), 1u);
  EXPECT_EQ(job.sent.size(), 3u);
  job.ok("b");
  EXPECT_EQ(job.status(), "completed");
  expect_confirm_proved(job);
}

AE_TEST("confirm/a crash after the verification makes the next attempt verify again") {
  JobFixture job = charged(kStrict);
  job.crash().crash().crash().ok("b");
  EXPECT_EQ(job.checked.size(), 3u);
  EXPECT_EQ(job.count(EventType::confirmation_checked), 3u);
  EXPECT_EQ(job.status(), "completed");
  expect_confirm_proved(job);
}

AE_TEST("confirm/a confirmed job can be continued from every prefix of its log") {
  JobFixture whole = charged(kHuman);
  whole.external_checks["ch_1"] = mismatch();
  whole.crash().confirm("a", "accept").ok("b");
  ASSERT_EQ(whole.status(), "completed");
  for (const std::size_t at : whole.commits) {
    JobFixture job(whole.plan);
    job.log.assign(whole.log.begin(), whole.log.begin() + static_cast<std::ptrdiff_t>(at));
    job.commits = {at};
    job.state = job.folded(at);
    job.attempt_count = 100;
    job.external_checks["ch_1"] = mismatch();
    const JobStatus status = job.state.status;
    if (is_terminal(status)) continue;
    if (status == JobStatus::queued || status == JobStatus::running) job.claim();
    for (int i = 0; i < 9 && !is_terminal(job.state.status); ++i) {
      if (job.state.awaits_confirmation()) {
        job.confirm("a", "accept");
      } else if (!job.in_flight.empty()) {
        const std::uint32_t step = job.in_flight.begin()->first;
        job.answer(step,
                   {.kind = OutcomeKind::success, .result = step == 0 ? json(kMade) : Value()});
      }
    }
    EXPECT_EQ(job.status(), "completed") << at << "\n" << job.log_text();
    expect_confirm_proved(job);
  }
}

AE_TEST("confirm/a cancel, a deadline and a pause discard a running verification") {
  JobFixture cancelled = charged(kStrict);
  cancelled.answers_checks = false;
  cancelled.crash().cancel();
  EXPECT_EQ(cancelled.status(), "cancelled");
  const std::string tools = charging(kStrict);
  JobFixture late(kTwoNodes, {.more = tools, .deadline = 60s});
  late.claim().ok("a", kMade);
  late.answers_checks = false;
  late.crash().after(61s);
  EXPECT_EQ(late.last<JobFailed>().code, "deadline_exceeded");
  JobFixture paused = charged(kStrict);
  paused.answers_checks = false;
  paused.crash().pause();
  EXPECT_EQ(paused.status(), "parked");
  EXPECT_TRUE(paused.state.is_paused());
  paused.answers_checks = true;
  paused.resume();
  EXPECT_EQ(paused.checked.size(), 1u);
  EXPECT_EQ(paused.status(), "running");
}

AE_TEST("confirm/a cancel and a deadline end a job that is parked for confirmation") {
  JobFixture job = charged(kHuman);
  job.external_checks["ch_1"] = mismatch();
  job.crash().cancel();
  EXPECT_EQ(job.status(), "cancelled") << job.log_text();
  EXPECT_TRUE(approvals_view(job.state).empty());
  const std::string tools = charging(kHuman, ", 'compensate': {'tool': 'put'}");
  JobFixture late(kTwoNodes, {.more = tools, .deadline = 60s});
  late.claim().ok("a", kMade);
  late.external_checks["ch_1"] = mismatch();
  late.crash();
  ASSERT_EQ(late.status(), "parked");
  late.waits_for_settling = true;
  late.after(61s).resolve("b", "not_happened").ok("a/compensate");  // undone first
  EXPECT_EQ(late.status(), "failed") << late.log_text();
  EXPECT_EQ(late.last<JobFailed>().code, "deadline_exceeded");
  expect_confirm_proved(late);
}

AE_TEST("confirm/after a fail decision the job ends once the calls of a dead process settle") {
  JobFixture job = charged(kHuman);
  job.external_checks["ch_1"] = mismatch();
  job.owned = false;
  job.crash();
  ASSERT_EQ(job.status(), "parked");
  job.confirm("a", "fail");
  EXPECT_EQ(job.status(), "running") << "a worker must claim the job to end it: " << job.log_text();
  job.after(10min);
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  EXPECT_EQ(job.last<JobFailed>().code, "confirmation_failed");
  expect_confirm_proved(job);
}

// A second call of the job on the same resource, whose outcome is unknown after a crash.
constexpr std::string_view kTwice =
    "[{'id': 'a', 'kind': 'tool', 'tool': 'charge', 'args': {'n': 1}},"
    " {'id': 'b', 'kind': 'tool', 'tool': 'charge', 'args': {'n': 2}, 'needs': ['a']},"
    " {'id': 'c', 'kind': 'tool', 'tool': 'put', 'needs': ['b']}]";
constexpr std::string_view kMadeAgain = "{'id': 'ch_1', 'version': 4, 'etag': 'v2'}";

AE_TEST("confirm/an own unknown call on the resource is settled before the verification") {
  const std::string tools = charging(kStrict);
  JobFixture job(kTwice, {.more = tools});
  job.claim().ok("a", kMade);
  job.external_checks["ch_1"] = mismatch("v2");  // by b
  job.crash();
  EXPECT_EQ(job.status(), "running") << job.log_text();
  EXPECT_EQ(job.tries("b"), 2u) << "it is settled first";
  job.ok("b", kMadeAgain).ok("c");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  expect_confirm_proved(job);
}

AE_TEST("confirm/an unknown call that cannot be resent is resolved before the verification") {
  std::string tools = charging(kStrict);
  constexpr std::string_view kEffect = "'effect': 'idempotent'";
  tools.replace(tools.find(kEffect), kEffect.size(),
                "'effect': 'at_most_once', 'on_in_doubt': 'park'");
  for (const bool happened : {true, false}) {
    JobFixture job(kTwice, {.more = tools});
    job.waits_for_settling = true;
    job.claim().ok("a", kMade);
    if (happened) job.external_checks["ch_1"] = mismatch("v2");
    job.crash();
    EXPECT_EQ(job.status(), "parked") << job.log_text();
    EXPECT_TRUE(job.checked.empty());
    if (happened) {
      job.external_checks["ch_1"] = {
          .verdict = CheckVerdict::match, .expected = "v2", .observed = "v2", .reason = {}};
      job.resolve("b", "happened", kMadeAgain);
    } else {
      job.resolve("b", "not_happened").ok("b", kMadeAgain);
    }
    EXPECT_EQ(job.checked.size(), 1u) << job.log_text();
    job.ok("c");
    EXPECT_EQ(job.status(), "completed") << job.log_text();
    expect_confirm_proved(job);
  }
}

AE_TEST("confirm/while a call needs a resolution, no other unknown call is resent") {
  std::string tools = charging(kStrict);
  constexpr std::string_view kEffect = "'effect': 'idempotent'";
  tools.replace(tools.find(kEffect), kEffect.size(),
                "'effect': 'at_most_once', 'on_in_doubt': 'park'");
  JobFixture job(
      "[{'id': 'a', 'kind': 'tool', 'tool': 'charge', 'args': {'n': 1}},"
      " {'id': 'b', 'kind': 'tool', 'tool': 'charge', 'args': {'n': 2}, 'needs': ['a']},"
      " {'id': 'c', 'kind': 'tool', 'tool': 'put', 'needs': ['a']}]",
      {.more = tools});
  job.waits_for_settling = true;
  job.claim().ok("a", kMade);
  ASSERT_EQ(job.tries("c"), 1u);
  job.crash();
  EXPECT_EQ(job.status(), "parked") << job.log_text();
  EXPECT_EQ(job.tries("c"), 1u) << "nothing is sent before the verification";
  job.resolve("b", "not_happened").ok("b", kMade).ok("c");
  EXPECT_EQ(job.checked.size(), 1u) << job.log_text();
  EXPECT_EQ(job.tries("c"), 2u);
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  expect_confirm_proved(job);
}

AE_TEST("confirm/a job that fails its verification compensates its steps") {
  JobFixture job = charged(kStrict, ", 'compensate': {'tool': 'put'}");
  job.external_checks["ch_1"] = mismatch();
  job.ok("b");
  EXPECT_EQ(job.status(), "completed");
  JobFixture broken = charged(kStrict, ", 'compensate': {'tool': 'put'}");
  broken.external_checks["ch_1"] = mismatch();
  broken.waits_for_settling = true;
  broken.crash().resolve("b", "not_happened").ok("a/compensate");
  EXPECT_EQ(broken.status(), "failed") << broken.log_text();
  EXPECT_EQ(broken.last<JobFailed>().code, "confirmation_failed");
  EXPECT_EQ(broken.last<JobFailed>().compensated.json().size(), 1u);
  expect_confirm_proved(broken);
}

AE_TEST("confirm/a job that is ending compensates without a verification") {
  JobFixture job = charged(kStrict, ", 'compensate': {'tool': 'put'}");
  job.external_checks["ch_1"] = mismatch();
  job.fails("b");
  ASSERT_EQ(job.in_flight.size(), 1u);
  job.crash().ok("a/compensate");
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  EXPECT_TRUE(job.checked.empty());
  EXPECT_EQ(job.last<JobFailed>().code, "http_400");
  expect_confirm_proved(job);
}

AE_TEST("confirm/the change of a lost call is verified when its result is imported") {
  const std::string tools = charging(kStrict);
  JobFixture job(kTwoNodes, {.more = tools});
  job.claim();
  const engine::SentTry sent = engine::sent_try_of(job.state, job.step("a"));
  job.external_checks["ch_1"] = mismatch();
  job.reload();
  job.begin_attempt();
  job.store_effect(sent, {.kind = OutcomeKind::success, .result = json(kMade)}, Arrival::in_time);
  EXPECT_EQ(job.checked.size(), 1u) << job.log_text();
  EXPECT_EQ(job.status(), "failed");
  expect_confirm_proved(job);
}

AE_TEST("confirm/many resources are verified in parts and each once") {
  JobFixture job(
      "[{'id': 'a', 'kind': 'map', 'over': '${ .input.list }', 'max_parallel': 64, 'do': {'tool': "
      "'make', 'args': {'id': '${ .item }'}}},"
      " {'id': 'b', 'kind': 'tool', 'tool': 'put', 'needs': ['a']}]",
      {.more = "{'tools': {'make': {'changes': [{'type': 't', 'id': '${ .args.id }', 'op': "
               "'create'}], 'verify': {'by': 'file'}}}}",
       .input = fmt::format("{{'list': {}}}", [] {
         std::string list = "[0";
         for (int i = 1; i < 600; ++i) list += fmt::format(",{}", i);
         return list + "]";
       }())});
  job.claim();
  while (!job.in_flight.empty() && job.in_flight.begin()->first != 1) {
    job.answer(job.in_flight.begin()->first, {.kind = OutcomeKind::success});
  }
  job.crash();
  EXPECT_EQ(job.checked.size(), 600u);
  EXPECT_EQ(job.count(EventType::confirmation_checked), 600u);
  EXPECT_EQ(job.count(EventType::decision_recorded), 4u);  // the map's, and three
  job.ok("b");
  EXPECT_EQ(job.status(), "completed");
}

AE_TEST("confirm/a change found by a probe is verified before anything starts") {
  JobFixture job(
      "[{'id': 'a', 'kind': 'tool', 'tool': 'sell'},"
      " {'id': 'b', 'kind': 'tool', 'tool': 'put'},"
      " {'id': 'c', 'kind': 'tool', 'tool': 'put', 'needs': ['a']}]",
      {.more = "{'tools': {'find': {'effect': 'read', 'on_in_doubt': 'resend'}, 'sell': {'effect': "
               "'at_most_once', 'on_in_doubt': 'probe', 'probe': {'tool': 'find', 'happened': '${ "
               ".result }'}, 'changes': [{'type': 't', 'id': '${ .result }', 'op': 'sell'}], "
               "'verify': {'by': 'file'}}}}"});
  job.limits.parallel_max = 1;  // b waits for a free slot
  job.claim().crash().after(60s);
  job.external_checks["x"] = mismatch();
  const std::size_t sent = job.sent.size();
  job.ok("a/probe", "'x'");
  EXPECT_EQ(job.checked.size(), 1u) << job.log_text();
  EXPECT_EQ(job.sent.size(), sent);
  EXPECT_EQ(job.status(), "failed");
  expect_confirm_proved(job);
}

AE_TEST("confirm/a log in which a step starts before the verification is rejected") {
  JobFixture job = charged(kStrict);
  std::vector<Event> forged = job.log;
  job.crash();
  for (std::size_t i = forged.size(); i < job.log.size(); ++i) {
    const EventType type = job.log[i].type;
    if (type == EventType::confirmation_checked || type == EventType::decision_recorded) continue;
    forged.push_back(job.log[i]);
  }
  const auto folded = fold(job.state.job, forged, uncached_plan_source());
  ASSERT_FALSE(folded);
  EXPECT_NE(folded.error().message.find("not confirmed"), std::string::npos);
}

AE_TEST("confirm/a log with erased decisions still folds") {
  JobFixture job = charged(kHuman);
  job.external_checks["ch_1"] = mismatch();
  job.crash().confirm("a", "accept").ok("b");
  ASSERT_EQ(job.status(), "completed");
  std::vector<Event> redacted = job.log;
  each<DecisionRecorded>(redacted, [](DecisionRecorded& event) { event.payload = erased_value(); });
  const auto folded = fold(job.state.job, redacted, uncached_plan_source());
  ASSERT_TRUE(folded) << folded.error().message;
  EXPECT_EQ(folded->status, JobStatus::completed);
}

AE_TEST("confirm/verify rejects a log with a changed change") {
  JobFixture job = charged(kStrict);
  each<StateChanged>(job.log, [](StateChanged& event) { event.etag = "v9"; });
  const Verification proof = verify(
      {.job = job.state.job, .events = job.log, .effects = job.effects}, uncached_plan_source());
  EXPECT_FALSE(proof.replay.ok);
  EXPECT_NE(proof.replay.detail.find("is not what `changes` gives"), std::string::npos)
      << proof.replay.detail;
}

}  // namespace
}  // namespace ae::engine::testing
