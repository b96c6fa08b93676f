// Outcomes that are noted after a job has ended, or after a call was abandoned.
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/fixtures/job_fixture_test.h"
#include "engine/heart/ending_fixture_test.h"
#include "engine/heart/side_record.h"
#include "engine/loop/loop_fixture_test.h"
#include "inspect/trace.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

JobFixture ended() {
  JobFixture job("[{'id':'a','kind':'tool','tool':'risk'}]");
  job.claim().unknown("a");
  return job;
}

AE_TEST("note/an ended job accepts a resolution as a note and keeps its end") {
  JobFixture job = ended();
  const std::uint64_t seq = job.state.seq;
  job.send_request({.by = "ann",
                    .body = ResolveRequest{.idempotency_key = job.sent[0].key,
                                           .resolution = "happened",
                                           .result = json("{'id':7}"),
                                           .reason = "it is on the statement"}});
  ASSERT_EQ(job.refused, std::nullopt);
  EXPECT_EQ(job.reply["noted"], Value(true));
  EXPECT_EQ(job.state.seq, seq + 1);
  EXPECT_EQ(job.status(), "failed");
  const auto note = job.last<OutcomeNoted>();
  EXPECT_EQ(note.by, "ann");
  EXPECT_EQ(note.idempotency_key.text, job.sent[0].key);
  EXPECT_EQ(note.note.value, Value("it is on the statement"));
  EXPECT_EQ(note.resolution, "happened");
  EXPECT_EQ(note.result.value, json("{'id':7}"));
  const Value view = job_view(job.state)["in_doubt"].items()[0];
  EXPECT_EQ(view["noted"]["resolution"], Value("happened"));
  EXPECT_EQ(view["noted"]["by"], Value("ann"));
  EXPECT_EQ(view["actions"], json("[]"));
  EXPECT_EQ(job_view(job.state)["error"]["code"], Value("invocation_in_doubt"));
  expect_log_verifies(job);
}

AE_TEST("note/a call is noted once, and only when its outcome is unknown and settled") {
  JobFixture job = ended();
  EXPECT_EQ(job.resolve("a", "not_happened").refused, Code::not_settled);
  job.after(2min);
  EXPECT_EQ(job.resolve("a", "not_happened").refused, std::nullopt);
  EXPECT_EQ(job.resolve("a", "not_happened").refused, Code::not_in_doubt);
  EXPECT_EQ(job.resolve("a", "fail").refused, Code::job_terminal);
  EXPECT_EQ(job.count(EventType::outcome_noted), 1u);
  JobFixture known("[{'id':'a','kind':'tool','tool':'risk'}]");
  known.claim().ok("a");
  EXPECT_EQ(known.resolve("a", "happened").refused, Code::job_terminal);
}

Outcome refused() {
  return {.kind = OutcomeKind::failure, .definite = true, .error_code = "http_409"};
}

AE_TEST("note/a definite result that arrives after the end is noted once") {
  JobFixture job = ended();
  const std::uint64_t seq = job.state.seq;
  job.store_effect("a", succeeded());
  EXPECT_EQ(job.state.seq, seq + 1);
  const auto note = job.last<OutcomeNoted>();
  EXPECT_EQ(note.by, "runtime");
  EXPECT_EQ(note.idempotency_key.text, job.sent[0].key);
  EXPECT_EQ(note.resolution, "happened");
  EXPECT_EQ(note.result.value, json("{'id':7}"));
  EXPECT_EQ(job_view(job.state)["in_doubt"].items()[0]["noted"]["resolution"], Value("happened"));
  const Value trace = trace_view(job.state, job.log);
  EXPECT_EQ(trace["nodes"].items()[0]["world"], Value("changed")) << canonical(trace);
  job.store_effect("a", succeeded());
  EXPECT_EQ(job.count(EventType::outcome_noted), 1u);
  EXPECT_EQ(job.resolve("a", "not_happened").refused, Code::not_in_doubt);
  expect_log_verifies(job);
}

AE_TEST("note/a late failure is noted as not_happened, a late timeout is not noted") {
  JobFixture job = ended();
  job.store_effect("a", {.kind = OutcomeKind::timeout, .error_code = "timeout"});
  EXPECT_EQ(job.count(EventType::outcome_noted), 0u);
  JobFixture other = ended();
  other.store_effect("a", refused());
  EXPECT_EQ(other.last<OutcomeNoted>().resolution, "not_happened");
  EXPECT_EQ(trace_view(other.state, other.log)["nodes"].items()[0]["world"], Value("unchanged"));
  expect_log_verifies(other);
}

AE_TEST("note/two unknown tries are noted as not_happened only when both failed definitely") {
  JobFixture job("[{'id':'a','kind':'tool','tool':'do'}]",
                 {.more = "{'tools':{'do':{'effect':'idempotent','on_in_doubt':'fail',"
                          "'retry':{'max_attempts':2,'retry_on':['timeout']}}}}"});
  job.claim();
  const SentTry first = sent_try_of(job.state, job.step("a"));
  job.times_out("a").after(20s);
  ASSERT_EQ(job.tries("a"), 2u) << job.log_text();
  const SentTry second = sent_try_of(job.state, job.step("a"));
  job.times_out("a");
  ASSERT_EQ(job.status(), "failed") << job.log_text();
  const auto record = [&](const SentTry& sent) {
    return canonical(effect_record(job.state.job, sent, refused(), job.now, Arrival::late));
  };
  const std::string one = record(first), two = record(second);
  const auto notes = [&](const std::vector<StoredEffect>& effects) {
    const auto events = import_stored_effects(job.state, effects);
    AE_CHECK(events.has_value());
    return events->size();
  };
  EXPECT_EQ(notes({{first.invocation, 1, one}}), 0u) << "the second try may have happened";
  EXPECT_EQ(notes({{first.invocation, 2, two}}), 0u) << "the first try may have happened";
  EXPECT_EQ(notes({{first.invocation, 1, one}, {first.invocation, 2, two}}), 1u);
}

AE_TEST("note/a late result of an erased job is noted without its value") {
  JobFixture job = ended();
  const SentTry sent = sent_try_of(job.state, job.step("a"));
  const std::string record =
      canonical(effect_record(job.state.job, sent, succeeded(), job.now, Arrival::late));
  job.state.blind_erased = true;
  const auto events = import_stored_effects(job.state, {{sent.invocation, 1, record}});
  ASSERT_TRUE(events && events->size() == 1);
  EXPECT_EQ(std::get<OutcomeNoted>(events->front()).resolution, "happened");
  EXPECT_TRUE(std::get<OutcomeNoted>(events->front()).result.is_null());
}

AE_TEST("note/a late result is noted from an erased effect record without its value") {
  JobFixture job = ended();
  const SentTry sent = sent_try_of(job.state, job.step("a"));
  const auto record = erased_effect(
      effect_location(job.state.job, sent.invocation, 1),
      canonical(effect_record(job.state.job, sent, succeeded(), job.now, Arrival::late)));
  ASSERT_TRUE(record) << record.error().message;
  const auto events = import_stored_effects(job.state, {{sent.invocation, 1, *record}});
  ASSERT_TRUE(events && events->size() == 1);
  EXPECT_EQ(std::get<OutcomeNoted>(events->front()).resolution, "happened");
  EXPECT_TRUE(std::get<OutcomeNoted>(events->front()).result.is_null());
}

AE_TEST("note/a late result of an abandoned call is noted while the job continues") {
  JobFixture job(kRiskThenWait);
  job.claim().unknown("a").store_effect("a", succeeded());
  ASSERT_EQ(job.status(), "waiting") << job.log_text();
  EXPECT_EQ(job.count(EventType::outcome_noted), 1u);
  EXPECT_EQ(unknown_call_of(job)["noted"]["by"], Value("runtime"));
  job.signal("k").store_effect("a", succeeded());
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.count(EventType::outcome_noted), 1u);
  expect_log_verifies(job);
}

AE_TEST("note/a late result of a call that a new plan dropped is noted") {
  JobFixture job(kRiskThenWait);
  job.claim();
  const SentTry sent = sent_try_of(job.state, job.step("a"));
  job.unknown("a")
      .replan(compiled(graph("[{'id':'z','kind':'wait','wait':{'type':'signal','key':'z'}}]")),
              {"a"})
      .store_effect(sent, succeeded());
  EXPECT_EQ(unknown_call_of(job)["noted"]["resolution"], Value("happened"));
  expect_log_verifies(job);
}

}  // namespace
}  // namespace ae::engine::testing
