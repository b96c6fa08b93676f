// Operators resolve calls with an unknown outcome: happened, not_happened and fail.
#include <fmt/core.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "engine/fixtures/job_fixture_test.h"
#include "engine/heart/tool_step_fixture_test.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

// A complete response: its try is settled, and its outcome is unknown.
Outcome complete_500() {
  return {.kind = OutcomeKind::unknown,
          .settled = true,
          .error_code = "http_500",
          .error_message = "the server answered 500"};
}

AE_TEST("resolve/happened uses the given result and calls nothing") {
  JobFixture job(one("pay"));
  job.claim().crash().resolve("a", "happened", "{'id':7}");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.result, json("{'a':{'id':7}}"));
  EXPECT_EQ(job.tries("a"), 1u);
  EXPECT_EQ(job.last<ToolInvocationFinished>().outcome, "unknown");
  EXPECT_EQ(job.last<CommandCommitted>().result.value, json("{'id':7}"));
  EXPECT_EQ(job.last<DecisionRecorded>().by, "someone");
}

AE_TEST("resolve/happened after a timeout does not close the try twice") {
  JobFixture job(one("pay"));
  job.claim().times_out("a").resolve("a", "happened", "7");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.count(EventType::tool_invocation_finished), 1u);
}

AE_TEST("resolve/not_happened permits one new try under the same keys") {
  JobFixture job(one("pay"));
  job.claim().crash();
  job.waits_for_settling = true;
  job.resolve("a", "not_happened");
  EXPECT_EQ(job.tries("a"), 2u);
  EXPECT_EQ(job.sent[1].external_key, job.sent[0].external_key);
  EXPECT_EQ(job.ok("a", "8").status(), "completed");
}

AE_TEST("resolve/a call resolved as not_happened stays known if the new try never arrives") {
  JobFixture job("[{'id':'a','kind':'tool','tool':'wire'}]",
                 {.more = "{'tools': {'wire': {'effect': 'at_most_once', 'on_in_doubt': 'park',"
                          "'retry': {'max_attempts': 3, 'retry_on': ['connect']}}}}"});
  job.waits_for_settling = true;
  job.claim().crash().resolve("a", "not_happened");
  ASSERT_EQ(job.sent.size(), 2u) << "the first try was open until then\n" << job.log_text();
  job.fails("a", "connect");
  EXPECT_EQ(job.count(EventType::wait_opened), 1u) << "no second resolution is needed\n"
                                                   << job.log_text();
  job.after(10s);
  ASSERT_EQ(job.sent.size(), 3u) << job.log_text();
  EXPECT_EQ(job.ok("a").status(), "completed");
}

AE_TEST("resolve/not_happened is rejected before the call has settled, and the view shows when") {
  for (const bool owned : {true, false}) {
    JobFixture job(one("pay"));
    job.owned = owned;
    job.claim().after(2s).crash().after(45s);  // on a shared store: until the lease has ended
    ASSERT_EQ(job.status(), "parked") << job.log_text();
    const Instant settles = owned ? *job.opened_at + 60s : job.step("a").call->deadline + 30s;
    EXPECT_EQ(job_view(job.state)["in_doubt"].items()[0]["resolvable_at"], Value(to_text(settles)));
    job.now = settles - 1ms;
    job.resolve("a", "not_happened");
    EXPECT_EQ(job.refused, Code::not_settled);
    EXPECT_NE(job.refusal.find(to_text(settles)), std::string::npos) << job.refusal;
    EXPECT_EQ(job.status(), "parked");
    job.now = settles;
    job.resolve("a", "not_happened");
    EXPECT_EQ(job.refused, std::nullopt);
    EXPECT_EQ(job.tries("a"), 2u);
  }
}

AE_TEST("resolve/not_happened is accepted at once after a complete response") {
  JobFixture job(one("pay"));
  job.claim().answer("a", complete_500());
  ASSERT_EQ(job.status(), "parked") << "the outcome is unknown nevertheless\n" << job.log_text();
  EXPECT_EQ(job_view(job.state)["in_doubt"].items()[0]["resolvable_at"], Value(to_text(job.now)));
  EXPECT_EQ(job.resolve("a", "not_happened").refused, std::nullopt);
  EXPECT_EQ(job.tries("a"), 2u);
}

AE_TEST("resolve/not_happened of a read is rejected until the call has settled") {
  for (const bool lost : {true, false}) {
    JobFixture job(one("look"));
    job.claim();
    if (!lost) job.times_out("a");
    job.reload();
    job.versions.assign(job.plan->tools.size(), "ffffffffffffffff");
    job.claim().after(1s);
    ASSERT_EQ(job.status(), "parked") << job.log_text();
    const Instant settles = job.step("a").call->deadline + 30s;
    ASSERT_LT(job.now, settles);
    EXPECT_EQ(job.resolve("a", "not_happened").refused, Code::not_settled);
    job.now = settles;
    EXPECT_EQ(job.resolve("a", "not_happened").refused, std::nullopt);
    EXPECT_EQ(job.tries("a"), 2u);
  }
}

AE_TEST("resolve/not_happened counts from the check of the operator, not from its application") {
  JobFixture job(one("pay"));
  job.claim().crash();
  const Instant settles = *job.state.settles_at(job.step("a"));
  const auto resolve_at = [&](std::string resolution, Instant checked_at) {
    const ControlRequest request{.by = "someone",
                                 .checked_at = checked_at,
                                 .body = ResolveRequest{.idempotency_key = job.sent[0].key,
                                                        .resolution = std::move(resolution)}};
    return job.send_request(*ControlRequest::from_json(request.to_json()))
        .refused;  // as kept in the inbox
  };
  EXPECT_EQ(resolve_at("not_happened", settles + 1h), Code::not_settled) << "a clock that is ahead";
  job.now = settles + 60s;
  EXPECT_EQ(resolve_at("not_happened", settles - 1ms), Code::not_settled)
      << "the check was too early";
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(resolve_at("not_happened", settles), std::nullopt);
  EXPECT_EQ(job.tries("a"), 2u);
}

AE_TEST("resolve/not_happened from a check before the newest try is rejected, even if settled") {
  JobFixture job(one("pay"));
  job.claim().times_out("a");
  const Instant settles = *job.state.settles_at(job.step("a"));
  const auto resolve_at = [&](Instant checked_at) {
    return job
        .send_request({.by = "someone",
                       .checked_at = checked_at,
                       .body = ResolveRequest{.idempotency_key = job.sent[0].key,
                                              .resolution = "not_happened"}})
        .refused;
  };
  job.now = settles + 60s;
  ASSERT_EQ(resolve_at(settles + 20s), std::nullopt);
  ASSERT_EQ(job.tries("a"), 2u);
  job.answer("a", complete_500());
  ASSERT_EQ(job.state.settles_at(job.step("a")), std::nullopt);
  EXPECT_EQ(resolve_at(settles + 10s), Code::not_settled) << "another operator checked before it";
  job.after(1s);
  EXPECT_EQ(resolve_at(job.now), std::nullopt);
}

AE_TEST("resolve/not_happened from a check before the newest try was sent is rejected") {
  JobFixture job(one("pay"));
  job.claim().times_out("a");
  const Instant settles = *job.state.settles_at(job.step("a"));
  const auto resolve_at = [&](Instant checked_at) {
    return job
        .send_request({.by = "someone",
                       .checked_at = checked_at,
                       .body = ResolveRequest{.idempotency_key = job.sent[0].key,
                                              .resolution = "not_happened"}})
        .refused;
  };
  job.now = settles + 60s;
  ASSERT_EQ(resolve_at(job.now), std::nullopt);
  const Instant decided = job.now;
  job.now = decided + 5s;  // the second try is declared, sent and answered
  job.answer("a", complete_500());
  ASSERT_EQ(job.status(), "parked") << job.log_text();
  job.after(1s);
  EXPECT_EQ(resolve_at(decided + 1ms), Code::not_settled)
      << "between the decision and the next try";
  EXPECT_EQ(resolve_at(decided + 5s - 1us), Code::not_settled) << "before it was answered";
  EXPECT_EQ(resolve_at(decided + 5s), std::nullopt);
}

// A call with an unknown outcome, on a shared store: its first try had more time to be sent than the
// second, because the lease of the second was nearer to its end.
JobFixture tried_near_the_end_of_a_lease() {
  JobFixture job("[{'id':'a','kind':'tool','tool':'set'}]",
                 {.more = "{'tools': {'set': {'effect': 'idempotent', 'on_in_doubt': 'park',"
                          "'dedupe_window': '1h', 'retry': {'max_attempts': 2,"
                          "'retry_on': ['timeout', 'connect']}}}}"});
  job.owned = false;
  job.claim().times_out("a");
  const Instant first = job.step("a").call->deadline;
  job.lease_left = 1s;
  job.after(2s);
  AE_CHECK(job.tries("a") == 2 && job.step("a").call->deadline < first);
  return job;
}

AE_TEST("resolve/not_happened waits for each try, also one with a later deadline than the newest") {
  enum class Newest { times_out, is_refused, is_answered, is_lost };
  for (const Newest newest :
       {Newest::times_out, Newest::is_refused, Newest::is_answered, Newest::is_lost}) {
    JobFixture job = tried_near_the_end_of_a_lease();
    const Instant settles = job.all<ToolInvocationStarted>().front().deadline + 30s;
    if (newest == Newest::times_out) job.times_out("a");
    if (newest == Newest::is_refused) job.fails("a", "connect");
    if (newest == Newest::is_answered) job.answer("a", complete_500());
    if (newest == Newest::is_lost) job.crash().after(settles - job.now - 1s);
    ASSERT_EQ(job.status(), "parked") << job.log_text();
    EXPECT_EQ(job_view(job.state)["in_doubt"].items()[0]["resolvable_at"], Value(to_text(settles)));
    job.now = settles - 1us;
    EXPECT_EQ(job.resolve("a", "not_happened").refused, Code::not_settled) << job.log_text();
    job.pause().resume().reload();
    EXPECT_EQ(job.resolve("a", "not_happened").refused, Code::not_settled) << job.log_text();
    job.now = settles;
    EXPECT_EQ(job.resolve("a", "not_happened").refused, std::nullopt);
  }
}

AE_TEST("resolve/not_happened waits for each try after the end of the job too") {
  JobFixture job = tried_near_the_end_of_a_lease();
  const Instant settles = job.all<ToolInvocationStarted>().front().deadline + 30s;
  job.times_out("a").cancel();
  ASSERT_EQ(job.status(), "cancelled") << job.log_text();
  job.now = settles - 1us;
  EXPECT_EQ(job.resolve("a", "not_happened").refused, Code::not_settled) << job.log_text();
  job.now = settles;
  EXPECT_EQ(job.resolve("a", "not_happened").refused, std::nullopt);
}

AE_TEST("resolve/not_happened from a check between the end of one try and the next is rejected") {
  JobFixture job("[{'id':'a','kind':'tool','tool':'set'}]",
                 {.more = "{'tools': {'set': {'effect': 'idempotent', 'on_in_doubt': 'park',"
                          "'dedupe_window': '1h', 'retry': {'max_attempts': 2,"
                          "'initial_backoff': '5m', 'max_backoff': '5m',"
                          "'retry_on': ['timeout']}}}}"});
  job.claim().times_out("a").after(300s);
  ASSERT_EQ(job.tries("a"), 2u) << job.log_text();
  const Instant first_settles = job.all<ToolInvocationStarted>().front().deadline + 30s;
  ASSERT_LT(first_settles, job.now);
  const Instant answered = job.now + 1s;
  job.now = answered;
  job.answer("a", complete_500());
  const auto resolve_at = [&](Instant checked_at) {
    return job
        .send_request({.checked_at = checked_at,
                       .body = ResolveRequest{.idempotency_key = job.sent[0].key,
                                              .resolution = "not_happened"}})
        .refused;
  };
  EXPECT_EQ(resolve_at(first_settles), Code::not_settled) << "the second try was not sent yet";
  EXPECT_EQ(resolve_at(answered - 1us), Code::not_settled);
  EXPECT_EQ(resolve_at(answered), std::nullopt) << "no try may still arrive";
}

AE_TEST("resolve/the time of the check does not matter for happened and fail") {
  for (const std::string resolution : {"happened", "fail"}) {
    JobFixture job(one("pay"));
    job.claim().crash();
    job.send_request(
        {.checked_at = job.step("a").call->deadline - 1h,
         .body = ResolveRequest{.idempotency_key = job.sent[0].key, .resolution = resolution}});
    EXPECT_EQ(job.refused, std::nullopt) << resolution;
  }
}

AE_TEST("resolve/fail fails the node and lists the unknown call") {
  JobFixture job(one("pay"));
  job.claim().crash().resolve("a", "fail");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "invocation_in_doubt");
  EXPECT_EQ(job.last<WaitCompleted>().outcome, "rejected");
  EXPECT_EQ(job.state.final_in_doubt.size(), 1u);
}

AE_TEST("resolve/a lost new try parks again under its own correlation key") {
  JobFixture job(one("pay"));
  job.claim().crash();
  job.waits_for_settling = true;
  job.resolve("a", "not_happened").crash();
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.last<WaitOpened>().correlation_key, fmt::format("resolve/{}#2", job.sent[0].key));
  job.resolve("a", "happened", "9");
  EXPECT_EQ(job.status(), "completed");
}

AE_TEST("resolve/a resolution of an earlier try does not apply to a later one") {
  JobFixture job(one("pay"));
  job.claim().crash().after(60s);
  ControlRequest first{.body = ResolveRequest{.idempotency_key = job.sent[0].key,
                                              .resolution = "not_happened",
                                              .try_no = 1}};
  // By another operator, waiting in the inbox.
  ControlRequest second = *ControlRequest::from_json(first.to_json());
  second.id = "second";
  job.send_request(first).crash();
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.send_request(second).refused, Code::not_in_doubt);
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.sent.size(), 2u);
}

AE_TEST("resolve/a definite failure of the new try follows the retry policy") {
  JobFixture job(one("pay"));
  job.claim().times_out("a");
  job.waits_for_settling = true;
  job.resolve("a", "not_happened").fails("a", "http_402");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "http_402");
  EXPECT_TRUE(job.last<JobFailed>().in_doubt.is_null());
}

AE_TEST("resolve/a unique prefix of a key of at least 8 characters is accepted") {
  JobFixture job(one("pay"));
  job.claim().crash();
  const std::string key = job.sent[0].key;
  const auto with = [&](std::string part) {
    job.send_request(
        {.body = ResolveRequest{.idempotency_key = std::move(part), .resolution = "fail"}});
    return job.refused;
  };
  EXPECT_EQ(with(key.substr(0, 7)), Code::not_in_doubt);
  EXPECT_EQ(with("ffff" + key.substr(4)), Code::not_in_doubt);
  EXPECT_EQ(with(key.substr(0, 8)), std::nullopt);
  EXPECT_EQ(with(key), Code::job_terminal);
}

AE_TEST("resolve/an invalid resolution is rejected") {
  JobFixture job(one("pay"));
  job.claim().crash();
  EXPECT_EQ(job.resolve("a", "maybe").refused, Code::input_invalid);
  EXPECT_EQ(job.resolve("a", "fail", "7").refused, Code::input_invalid);
  EXPECT_EQ(job.signal("resolve/" + job.sent[0].key).refused, Code::wait_mismatch);
  EXPECT_EQ(job.status(), "parked");
}

AE_TEST("resolve/other branches continue while a call is unknown") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'pay'}, {'id':'b', 'kind':'tool', 'tool':'put'},"
      " {'id':'c', 'kind':'tool', 'tool':'put', 'needs':['b']}]");
  job.claim().times_out("a");
  EXPECT_EQ(job.status(), "running");
  job.ok("b");
  EXPECT_EQ(job.status(), "running");
  job.ok("c");
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.resolve("a", "happened").status(), "completed");
}

}  // namespace
}  // namespace ae::engine::testing
