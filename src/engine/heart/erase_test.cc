// All values of an ended job are erased: it can still be folded, displayed and
// verified, and no value is left.
#include <algorithm>

#include "engine/fixtures/code_log_test.h"
#include "engine/fixtures/stored_job_test.h"
#include "engine/loop/loop_fixture_test.h"
#include "engine/state/retained_value.h"
#include "inspect/trace.h"
#include "inspect/view.h"

namespace ae::engine::testing {
namespace {

constexpr std::string_view kSecret = "ada@x.org";
constexpr std::string_view kInput =
    "{'mail': 'ada@x.org', 'no': false, 'people': ['ada@x.org', 'bob@x.org'], 'yes': true}";

std::vector<Event> erased_log(const JobFixture& job, bool keep_blind = false) {
  StoredJob stored(job);
  stored.redact(job.state.job, [&](const Event& event, std::string_view field) {
    return retention_reason(event, field).empty() && !(keep_blind && field == "blind");
  });
  return stored.opened(job.state.job).events;
}

std::string shown(const JobId& job, const std::vector<Event>& log) {
  std::string all;
  for (const Event& event : log) all += canonical(envelope(job, event)) + "\n";
  return all;
}

// It can be folded and verified, and contains no value.
std::vector<Event> expect_erased(const JobFixture& job, bool keep_blind = false) {
  const JobId& id = job.state.job;
  EXPECT_TRUE(is_terminal(job.state.status)) << job.log_text();
  const std::vector<Event> log = erased_log(job, keep_blind);
  const std::string text = shown(id, log);
  EXPECT_NE(shown(id, job.log).find(kSecret), std::string::npos)
      << "the secret was never in the log";
  EXPECT_EQ(text.find(kSecret), std::string::npos) << text;
  const auto state = fold(id, log, uncached_plan_source());
  EXPECT_TRUE(state) << (state ? "" : state.error().message) << "\n" << job.log_text();
  if (!state) return log;
  EXPECT_EQ(state->status, job.state.status);
  EXPECT_EQ(state->steps.size(), job.state.steps.size());
  EXPECT_EQ(canonical(state_view(*state)).find(kSecret), std::string::npos);
  VerifyInput input;
  input.job = id;
  input.events = log;
  const Verification proof = verify(input, uncached_plan_source());
  EXPECT_TRUE(proof.ok) << canonical(proof.to_json()) << "\n" << job.log_text();
  return log;
}

AE_TEST("erase/the question of a wait of code, and its data") {
  CodeLog job;
  job.claim().wait("sign", {.type = WaitType::human,
                            .key = "k",
                            .question = "Pay ada@x.org?",
                            .data = json("{'to':'ada@x.org'}")});
  job.signal("k", "{'decision':'approve'}");
  job.returns("1");
  expect_erased(job);
}

constexpr std::string_view kNodes =
    R"([{'id':'a', 'kind':'tool', 'tool':'put', 'args':{'to':'${ .input.mail }'}},
        {'id':'b', 'kind':'tool', 'tool':'put', 'needs':['a'], 'when':'${ .input.yes }'},
        {'id':'c', 'kind':'tool', 'tool':'put', 'needs':['a'], 'when':'${ .input.no }'},
        {'id':'m', 'kind':'map', 'over':'${ .input.people }', 'max_parallel':2,
         'do':{'tool':'put', 'args':{'p':'${ .item }'}}}])";

AE_TEST("erase/a plan with branches and a map keeps its structure and no values") {
  JobFixture job(kNodes, {.more = "{'output':'${ .steps }'}", .input = kInput});
  job.claim().ok("a", "'ada@x.org'").ok("m/0", "'ada@x.org'").ok("m/1", "2").ok("b", "1");
  const std::vector<Event> log = expect_erased(job);
  std::size_t branches = 0, maps = 0;
  each<DecisionRecorded>(log, [&](const DecisionRecorded& event) {
    if (event.kind != "branch") return;
    branches += event.payload.value.is_bool() ? 1 : 0;
    maps += event.payload.erased && event.payload.value_or_retained()["items"] == Value(2) ? 1 : 0;
  });
  EXPECT_EQ(branches, 2u);
  EXPECT_EQ(maps, 1u);
}

AE_TEST("erase/a map without items and a map with a failed item can be erased") {
  JobFixture none(
      R"([{'id':'m', 'kind':'map', 'over':'${ .input.none }', 'max_parallel':1, 'do':{'tool':'put'}}])",
      {.input = "{'none': [], 'mail': 'ada@x.org'}"});
  none.claim();
  expect_erased(none);
  JobFixture failed(R"([{'id':'m', 'kind':'map', 'over':'${ .input.people }', 'max_parallel':1,
                      'do':{'tool':'once', 'args':{'p':'${ .item }'}}}])",
                    {.input = kInput});
  failed.claim().fails("m/0", "connect");
  expect_erased(failed);
}

AE_TEST("erase/a loop keeps the names of the tools that its model chose") {
  JobFixture job = loop_job("", {.input = "{'message': 'write to ada@x.org'}"});
  job.claim().ok("chat/0", tool_calls_answer({{"ada@x.org", "look", "{'q': 'ada@x.org'}"},
                                              {"b", "ada@x.org", "{}"},
                                              {"c", "put", "{'q': 'ada@x.org'}"}}));
  job.ok("chat/0/0", "'ada@x.org'")
      .ok("chat/0/2", "'ada@x.org'")
      .ok("chat/1", text_answer("ada@x.org"));
  expect_erased(job);
}

AE_TEST("erase/a loop with a repair turn can be erased") {
  JobFixture job = loop_job(", 'schema': {'type': 'object', 'required': ['n']}, 'repair': 1",
                            {.input = "{'message': 'ada@x.org'}"});
  job.claim().ok("chat/0", text_answer("ada@x.org")).ok("chat/1", text_answer(R"({\'n\': 1})"));
  expect_erased(job);
}

AE_TEST("erase/a job without a blind can be erased and is stored in schema 1") {
  JobFixture job(kNodes, {.input = kInput, .blind = ""});
  job.claim().ok("a", "'ada@x.org'").ok("m/0", "1").ok("m/1", "2").ok("b", "1");
  const auto log = expect_erased(job);
  EXPECT_EQ(log.front().schema, 1);
}

AE_TEST("erase/with a blind, no hash confirms a guess of an erased value") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'put', 'args':{'to':'${ .input.mail }'}}])",
                 {.input = kInput});
  job.claim().ok("a", "'ada@x.org'");
  const std::string text = shown(job.state.job, expect_erased(job));
  for (const std::string& guess : {canonical(json(kInput)), canonical(json("{'to':'ada@x.org'}")),
                                   std::string("\"ada@x.org\""), std::string(kSecret)}) {
    EXPECT_EQ(text.find(to_hex(sha256(guess))), std::string::npos) << guess;
  }
  const StepId step = job.step("a").id;
  EXPECT_EQ(text.find(idempotency_key(job.state.job, step, "put",
                                      canonical(json("{'to':'ada@x.org'}")), "")
                          .text),
            std::string::npos);
  // A job without a blind keeps them.
  JobFixture bare(R"([{'id':'a', 'kind':'tool', 'tool':'put', 'args':{'to':'${ .input.mail }'}}])",
                  {.input = kInput, .blind = ""});
  bare.claim().ok("a", "1");
  EXPECT_NE(shown(bare.state.job, erased_log(bare)).find(to_hex(sha256(canonical(json(kInput))))),
            std::string::npos);
}

AE_TEST("erase/without the blind, verify reports that hashes are not recomputed") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'put', 'args':{'to':'${ .input.mail }'}}])",
                 {.input = kInput});
  job.claim().ok("a", "1");
  StoredJob stored(job);
  stored.redact(job.state.job,
                [](const Event&, std::string_view field) { return field == "blind"; });
  VerifyInput input = stored.opened(job.state.job);
  const Verification proof = verify(input, uncached_plan_source());
  EXPECT_TRUE(proof.ok) << canonical(proof.to_json());
  for (const Proof* one : {&proof.ledger, &proof.replay}) {
    EXPECT_NE(one->detail.find("hashes not recomputed: the blind is gone"), std::string::npos)
        << one->detail;
  }
  // The equality of values in two events is still verified.
  each<ToolInvocationStarted>(input.events, [](ToolInvocationStarted& call) {
    call.invocation_id = InvocationId("0123456789abcdef");
  });
  EXPECT_FALSE(verify(input, uncached_plan_source()).ledger.ok);
}

AE_TEST("erase/a fork without the blind imports by step and compares no arguments") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'put', 'args':{'to':'${ .input.mail }'}},
                   {'id':'b', 'kind':'tool', 'tool':'once', 'needs':['a']}])",
                 {.input = kInput});
  job.claim().ok("a", "1").fails("b");
  StoredJob stored(job);
  stored.redact(job.state.job,
                [](const Event&, std::string_view field) { return field == "blind"; });
  const auto log = stored.opened(job.state.job).events;
  const auto state = fold(job.state.job, log, uncached_plan_source());
  ASSERT_TRUE(state) << state.error().message;
  const auto fork = fork_at(*state, log, log.size(), uncached_plan_source());
  ASSERT_TRUE(fork) << fork.error().message;
  EXPECT_TRUE(fork->blind_erased);
  JobFixture next(*fork, "job-2");
  EXPECT_NE(next.state.blind, std::string(kBlind));
  EXPECT_EQ(next.step("a").imported->arguments_hash, "");
  next.claim();
  ASSERT_EQ(next.sent.size(), 1u) << next.log_text();
  next.ok("b", "2");
  EXPECT_EQ(next.status(), "completed");
  expect_verified(next);
}

AE_TEST("erase/a fork inherits the blind of its origin, or has none") {
  for (const std::string_view blind : {kBlind, std::string_view()}) {
    JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'put'}, {'id':'b', 'kind':'tool',
                     'tool':'once', 'needs':['a']}])",
                   {.input = kInput, .blind = blind});
    job.claim().ok("a", "1").fails("b");
    const auto log = StoredJob(job).opened(job.state.job).events;
    const auto fork = fork_at(job.state, log, log.size(), uncached_plan_source());
    ASSERT_TRUE(fork) << fork.error().message;
    JobFixture next(*fork, "job-2");
    EXPECT_EQ(next.state.blind, blind);
    EXPECT_EQ(next.step("a").imported->arguments_hash, to_hex(job.step("a").call->arguments_hash));
  }
}

AE_TEST("erase/a fork that needs an erased map list is rejected") {
  JobFixture map(R"([{'id':'m', 'kind':'map', 'over':'${ .input.people }', 'max_parallel':1,
                   'do':{'tool':'once', 'args':{'p':'${ .item }'}}}])",
                 {.input = kInput});
  map.claim().ok("m/0", "1").fails("m/1", "connect");
  const auto log = erased_log(map);
  const auto state = fold(map.state.job, log, uncached_plan_source());
  ASSERT_TRUE(state) << state.error().message;
  const auto fork = fork_at(*state, log, log.size(), uncached_plan_source());
  ASSERT_FALSE(fork);
  EXPECT_NE(fork.error().message.find("has been erased"), std::string::npos);
}

}  // namespace
}  // namespace ae::engine::testing
