// Tests of verify: what a log proves, and which proof each kind of change breaks.
#include "inspect/verify.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <variant>

#include "engine/fixtures/stored_job_test.h"
#include "engine/heart/side_record.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

VerifyInput verified_input(const JobFixture& job) {
  VerifyInput input;
  input.job = job.state.job;
  input.events = job.log;
  return input;
}
Verification verified_log(const VerifyInput& input) {
  return verify(input, uncached_plan_source());
}
Verification verified_log(const JobFixture& job) { return verified_log(verified_input(job)); }

// A job with retries, a crash, a map, a branch, a wait and a human answer.
JobFixture rich_plan_job() {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'put', 'args':{'n':'${ .input.n }'}},
      {'id':'p', 'kind':'tool', 'tool':'pay', 'needs':['a'], 'args':{'n':'${ .steps.a }'}},
      {'id':'s', 'kind':'tool', 'tool':'pay', 'when':'${ .input.n > 5 }'},
      {'id':'m', 'kind':'map', 'over':'${ .input.list }', 'max_parallel':2, 'needs':['a'],
       'do':{'tool':'once', 'args':{'i':'${ .index }'}}},
      {'id':'w', 'kind':'wait', 'needs':['m'], 'wait':{'type':'signal','key':'k-${ .input.n }'}}])",
                 {.more = "{'output':'${ .steps }'}", .input = "{'n':1,'list':[4,5,6]}"});
  job.claim().fails("a", "connect").after(10s).ok("a", "'A'").crash();
  job.ok("m/1", "2").ok("m/0", "1").ok("m/2", "3").signal("k-1", "'go'");
  job.resolve("p", "happened", "'paid'");
  return job;
}

// ---------------------------------------------------------------- valid logs

AE_TEST("verify/an unmodified log passes every proof") {
  const JobFixture job = rich_plan_job();
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  const Verification all = verified_log(job);
  EXPECT_TRUE(all.ok) << canonical(all.to_json());
  EXPECT_EQ(all.head, "unsigned");
  EXPECT_EQ(all.ledger.detail, "ledger: derived; 5 calls, 8 tries, none pending");
  EXPECT_EQ(all.replay.detail, "5 calls match the plan");
}

AE_TEST("verify/the result has the form that the API documents") {
  const Value json = verified_log(rich_plan_job()).to_json();
  EXPECT_EQ(json["ok"], Value(true));
  EXPECT_EQ(json["head"], "unsigned");
  for (const char* name : {"execution_hash", "event_chain", "ledger", "replay", "state_machine"}) {
    EXPECT_EQ(json["proofs"][name]["ok"], Value(true)) << name;
    EXPECT_TRUE(json["proofs"][name]["detail"].is_string()) << name;
  }
}

AE_TEST("verify/the log of a running job passes, and its pending calls are listed") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  EXPECT_TRUE(verified_log(job).ok);
  const Verification all = verified_log(job.claim());
  EXPECT_TRUE(all.ok);
  EXPECT_EQ(all.pending, std::vector<std::string>{job.sent[0].key});
  EXPECT_NE(all.ledger.detail.find("pending: " + job.sent[0].key), std::string::npos);
}

AE_TEST("verify/every prefix of an unmodified log at a commit passes") {
  const JobFixture job = rich_plan_job();
  for (const std::size_t events : job.commits) {
    VerifyInput input = verified_input(job);
    input.events.resize(events);
    const Verification all = verified_log(input);
    EXPECT_TRUE(all.ok) << events << " " << canonical(all.to_json());
  }
}

AE_TEST("verify/the logs of failed and cancelled jobs pass") {
  JobFixture failed(
      "[{'id':'a', 'kind':'tool', 'tool':'risk'}, {'id':'b', 'kind':'tool', 'tool':'put'}]");
  failed.claim().unknown("a").times_out("b");
  EXPECT_TRUE(verified_log(failed).ok) << canonical(verified_log(failed).to_json());
  JobFixture cancelled("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  cancelled.claim().crash().cancel();
  EXPECT_TRUE(verified_log(cancelled).ok) << canonical(verified_log(cancelled).to_json());
}

AE_TEST("verify/the execution hash covers the plan and the result types of its steps") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'put'}, {'id':'b', 'kind':'tool', 'tool':'put',"
      " 'when':false}]");
  job.claim().ok("a");
  EXPECT_EQ(
      verified_log(job).execution_hash_hex,
      to_hex(sha256(fmt::format("aetheris.execution.v1\n{}\n0/0 side_effect_committed\n0/1 pure\n",
                                to_hex(job.plan->hash)))));
}

AE_TEST("verify/jobs with the same steps share an execution hash, whatever the results and order") {
  const std::string_view plan =
      "[{'id':'m', 'kind':'map', 'over':'${ .input }', 'max_parallel':2, 'do':{'tool':'put'}}]";
  JobFixture one(plan, {.input = "[1,2]"});
  one.claim().ok("m/0", "7").ok("m/1");
  JobFixture other(plan, {.input = "[3,4]", .id = "job-2"});
  other.claim().times_out("m/1").ok("m/0").crash().after(10s).ok("m/1");
  EXPECT_EQ(verified_log(one).execution_hash_hex, verified_log(other).execution_hash_hex);
  JobFixture shorter(plan, {.input = "[1]"});
  shorter.claim().ok("m/0");
  EXPECT_NE(verified_log(one).execution_hash_hex, verified_log(shorter).execution_hash_hex);
}

// ---------------------------------------------------------------- chain

AE_TEST("verify/the stored form is opened and passes") {
  const JobFixture job = rich_plan_job();
  const StoredJob stored(job);
  VerifyInput input = stored.opened(job.state.job);
  input.last_seq = job.log.size();
  input.head = stored.head;
  const Verification all = verified_log(input);
  EXPECT_TRUE(all.ok) << canonical(all.to_json());
  EXPECT_EQ(all.root_hash_hex, to_hex(stored.head));
}

AE_TEST("verify/a changed byte in any commit is reported as altered") {
  const JobFixture job = rich_plan_job();
  const StoredJob stored(job);
  for (std::size_t commit = 0; commit < stored.commits.size(); ++commit) {
    for (const std::size_t part : {3U, 2U, 1U}) {
      StoredJob changed = stored;
      std::string& bytes = changed.commits[commit];
      bytes[bytes.size() * part / 4] = static_cast<char>(bytes[bytes.size() * part / 4] ^ 1);
      VerifyInput input = changed.opened(job.state.job);
      input.last_seq = job.log.size();
      const Verification all = verified_log(input);
      EXPECT_FALSE(all.ok);
      EXPECT_EQ(all.head, "altered") << commit << " " << part;
      EXPECT_FALSE(all.event_chain.ok);
    }
  }
}

AE_TEST("verify/a missing tail is reported as truncated, a missing middle as altered") {
  const JobFixture job = rich_plan_job();
  StoredJob tail(job), middle(job);
  tail.commits.pop_back();
  VerifyInput input = tail.opened(job.state.job);
  input.last_seq = job.log.size();
  EXPECT_EQ(verified_log(input).head, "truncated");
  middle.commits.erase(middle.commits.begin() + 2);
  EXPECT_EQ(verified_log(middle.opened(job.state.job)).head, "altered");
}

AE_TEST("verify/a head that differs from the recorded one is reported as altered") {
  const JobFixture job = rich_plan_job();
  VerifyInput input = verified_input(job);
  input.last_seq = job.log.size();
  input.head = sha256("other");
  EXPECT_EQ(verified_log(input).head, "altered");
  input.head.reset();
  input.last_seq = 3;
  EXPECT_EQ(verified_log(input).head, "altered");
}

AE_TEST("verify/an empty log passes no proof") {
  const Verification all = verify({.job = JobId("j")}, uncached_plan_source());
  EXPECT_FALSE(all.ok);
  EXPECT_FALSE(all.event_chain.ok);
  EXPECT_FALSE(all.execution_hash.ok);
}

AE_TEST("verify/the log of a newer program is not reported as altered") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'put'}]");
  VerifyInput input = verified_input(job);
  input.open_error = Error{Code::needs_version, "event 3 is newer"};
  EXPECT_FALSE(verified_log(input).ok);
  EXPECT_EQ(verified_log(input).head, "unsigned");
}

// ---------------------------------------------------------------- other proofs

// Changes the first event of a type, after skipping `skip` of them.
template <class T>
VerifyInput with_plan_change(const JobFixture& job, const std::function<void(T&)>& change,
                             int skip = 0) {
  VerifyInput input = verified_input(job);
  for (Event& event : input.events) {
    T* const body = std::get_if<T>(&event.body);
    if (body == nullptr || skip-- > 0) continue;
    change(*body);
    return input;
  }
  ADD_FAILURE() << "no such event";
  return input;
}
using Started = ToolInvocationStarted;

AE_TEST("verify/a row that contradicts the log in time, request or commits is detected") {
  const JobFixture job = rich_plan_job();
  VerifyInput input = verified_input(job);
  const auto& created = std::get<JobCreated>(job.log.front().body);
  const Hash request = sha256("the request");
  const VerifyInput::Row row{.status = std::string(job.status()),
                             .agent = created.agent,
                             .idempotency_key = or_empty(created.idempotency_key),
                             .labels = {},
                             .created_at = job.log.front().created_at,
                             .request_hash = request,
                             .computed_request_hash = request,
                             .commits = 3,
                             .commits_read = 3};
  input.row = row;
  EXPECT_TRUE(verified_log(input).ok) << canonical(verified_log(input).to_json());
  input.row->created_at = Instant{row.created_at->us + 1};
  EXPECT_TRUE(verified_log(input).ok) << "earlier builds wrote this";
  for (const std::int64_t damaged : {std::int64_t{0}, INT64_MAX, INT64_MIN}) {
    input.row->created_at = Instant{damaged};
    EXPECT_FALSE(verified_log(input).ok) << damaged;
  }
  EXPECT_NE(verified_log(input).state_machine.detail.find("created_at"), std::string::npos);
  input.row = row;
  input.row->request_hash = sha256("another");
  EXPECT_NE(verified_log(input).state_machine.detail.find("request_hash"), std::string::npos);
  input.row->computed_request_hash = std::nullopt;
  EXPECT_TRUE(verified_log(input).ok) << "the input was redacted";
  input.row = row;
  input.row->commits = 4;
  EXPECT_NE(verified_log(input).state_machine.detail.find("commits"), std::string::npos);
}

AE_TEST("verify/an event that the state does not permit fails the state machine proof") {
  VerifyInput input = verified_input(rich_plan_job());
  input.events.erase(input.events.begin() + 2);  // job_running
  for (std::size_t i = 0; i < input.events.size(); ++i) input.events[i].seq = i + 1;
  const Verification all = verified_log(input);
  EXPECT_FALSE(all.state_machine.ok);
  EXPECT_FALSE(all.ok);
}

AE_TEST("verify/changed arguments fail the ledger proof") {
  const Verification all = verified_log(with_plan_change<Started>(
      rich_plan_job(), [](auto& call) { call.arguments = json("{'n':2}"); }));
  EXPECT_FALSE(all.ledger.ok);
  EXPECT_NE(all.ledger.detail.find("arguments_hash"), std::string::npos);
}

// Arguments with consistent hashes and keys: only the plan shows that they are wrong.
AE_TEST("verify/consistent arguments that differ from the plan fail the replay proof") {
  const JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay', 'args':{'n':'${ .input.n }'}}]",
                       {.input = "{'n':1}"});
  JobFixture forged("[{'id':'a', 'kind':'tool', 'tool':'pay', 'args':{'n':'${ .input.n }'}}]",
                    {.input = "{'n':2}"});
  forged.claim().ok("a");
  VerifyInput input = verified_input(forged);
  input.events[0] = job.log[0];
  const Verification all = verified_log(input);
  EXPECT_TRUE(all.ledger.ok) << all.ledger.detail;
  EXPECT_TRUE(all.state_machine.ok);
  EXPECT_FALSE(all.replay.ok);
  EXPECT_NE(all.replay.detail.find("event 6 (tool_invocation_started)"), std::string::npos);
}

AE_TEST("verify/a branch that differs from its expression fails the replay proof") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay', 'when':'${ .input.n > 5 }'}]",
                 {.input = "{'n':1}"});
  job.claim();
  VerifyInput input = verified_input(job);
  std::get<JobCreated>(input.events[0].body).input = json("{'n':9}");
  EXPECT_FALSE(verified_log(input).replay.ok);
}

AE_TEST("verify/a result that differs from the output expression fails the replay proof") {
  const Verification all = verified_log(with_plan_change<JobCompleted>(
      rich_plan_job(), [](auto& end) { end.result = json("'more'"); }));
  EXPECT_FALSE(all.replay.ok);
  EXPECT_TRUE(all.ledger.ok);
}

AE_TEST("verify/a second success fails the ledger proof") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'put'}, {'id':'b', 'kind':'tool', 'tool':'put'}]");
  job.claim().ok("a");
  VerifyInput input = verified_input(job);
  Event again = input.events[9];
  ASSERT_EQ(again.type, EventType::tool_invocation_finished);
  again.seq = input.events.size() + 1;
  input.events.push_back(again);
  EXPECT_FALSE(verified_log(input).ledger.ok);

  VerifyInput resolved = verified_input(job);
  Event happened = *std::ranges::find(resolved.events, EventType::command_committed, &Event::type);
  const auto& before = std::get<CommandCommitted>(happened.body);
  happened.body = CommandCommitted{.command_id = before.command_id,
                                   .node_id = before.node_id,
                                   .result = Value("another"),
                                   .step_id = before.step_id};
  happened.seq = resolved.events.size() + 1;
  resolved.events.push_back(happened);
  const Verification all = verified_log(resolved);
  EXPECT_FALSE(all.ledger.ok);
  EXPECT_NE(all.ledger.detail.find("is a second success"), std::string::npos) << all.ledger.detail;
}

AE_TEST("verify/a try that ends twice fails the ledger proof") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'put'}]");
  job.claim().fails("a", "connect");
  VerifyInput input = verified_input(job);
  Event again = *std::ranges::find(input.events, EventType::tool_invocation_finished, &Event::type);
  again.seq = input.events.size() + 1;
  input.events.push_back(again);
  const Verification all = verified_log(input);
  EXPECT_FALSE(all.ledger.ok);
  EXPECT_NE(all.ledger.detail.find("has ended"), std::string::npos) << all.ledger.detail;
}

AE_TEST("verify/keys that differ from their parts fail the ledger proof") {
  const std::string other(64, 'a');
  EXPECT_FALSE(verified_log(with_plan_change<Started>(rich_plan_job(), [&](auto& call) {
                 call.idempotency_key = IdempotencyKey(other);
               })).ledger.ok);
  EXPECT_FALSE(verified_log(with_plan_change<Started>(rich_plan_job(), [&](auto& call) {
                 call.arguments_hash = *hash_from_hex(other);
               })).ledger.ok);
  EXPECT_FALSE(
      verified_log(with_plan_change<Started>(
                       rich_plan_job(),
                       [](auto& call) { call.external_key = ExternalKey("aetheris:other"); }, 1))
          .ledger.ok);
}

AE_TEST("verify/a terminal event lists exactly the calls whose outcome the log leaves unknown") {
  const auto failed_call_job = [](bool continues) {
    JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'" +
                   std::string(continues ? ", 'on_error':'continue'" : "") + "}]");
    job.claim().crash().resolve("a", "fail");
    return job;
  };
  for (const bool continues : {true, false}) {
    const JobFixture job = failed_call_job(continues);
    const auto lists = [&](const Value& calls) {
      const auto list = [&](auto& end) { end.in_doubt.json() = calls; };
      return continues ? with_plan_change<JobCompleted>(job, list)
                       : with_plan_change<JobFailed>(job, list);
    };
    EXPECT_TRUE(verified_log(verified_input(job)).ledger.ok);
    const std::string key = job.step("a").call->key.text, other(64, 'a');
    EXPECT_TRUE(verified_log(lists(Value::array({key}))).ledger.ok) << job.log_text();
    for (const Value& wrong : {Value(), Value::array({}), Value::array({other}),
                               Value::array({key, other}), Value::array({key, key})}) {
      const Verification all = verified_log(lists(wrong));
      EXPECT_FALSE(all.ledger.ok) << canonical(wrong);
      EXPECT_NE(all.ledger.detail.find("lists other calls than those"), std::string::npos)
          << all.ledger.detail;
    }
  }
  // A version with only schema 1 listed none.
  VerifyInput older =
      with_plan_change<JobCompleted>(failed_call_job(true), [](auto& end) { end.in_doubt = {}; });
  older.events.back().schema = 1;
  EXPECT_TRUE(verified_log(older).ledger.ok);
}

AE_TEST("verify/a call with another effect class than the plan's fails the replay proof") {
  EXPECT_FALSE(verified_log(with_plan_change<Started>(rich_plan_job(), [](auto& call) {
                 call.effect_class = "read";
               })).replay.ok);
}

AE_TEST("verify/stored effects must agree with the log, or be late") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'put'}]");
  job.claim();
  const auto record = [&](std::uint32_t try_no, Outcome outcome) {
    SentTry sent = sent_try_of(job.state, job.step("a"));
    sent.try_no = try_no;
    sent.attempt = AttemptId(fmt::format("attempt-{}", try_no));
    return canonical(effect_record(job.state.job, sent, outcome, job.now));
  };
  VerifyInput::Effect effect{.invocation = job.step("a").call->id, .try_no = 1, .record = {}};
  effect.record = record(1, {.kind = OutcomeKind::success});
  VerifyInput input = verified_input(job);
  input.effects = {effect};
  EXPECT_TRUE(verified_log(input).ledger.ok);  // the outcome is not in the log yet

  job.crash().ok("a");
  input.events = job.log;
  EXPECT_TRUE(verified_log(input).ledger.ok);  // its try was closed with an unknown outcome

  input.effects[0] = {effect.invocation, 2, record(2, {.kind = OutcomeKind::success})};
  EXPECT_TRUE(verified_log(input).ledger.ok) << verified_log(input).ledger.detail;
  // Other contents, each with a valid checksum.
  for (const Outcome& other :
       {Outcome{.kind = OutcomeKind::failure}, Outcome{.kind = OutcomeKind::success, .result = 7},
        Outcome{.kind = OutcomeKind::success, .external_id = "other"},
        Outcome{.kind = OutcomeKind::success, .elapsed = 3s}}) {
    input.effects[0].record = record(2, other);
    EXPECT_FALSE(verified_log(input).ledger.ok) << input.effects[0].record;
  }
  // Without its values only the outcome is compared.
  const std::string place = effect_location(job.state.job, effect.invocation, 2);
  for (const OutcomeKind kind : {OutcomeKind::success, OutcomeKind::failure}) {
    input.effects[0].record =
        *erased_effect(place, record(2, {.kind = kind, .result = 7, .error_message = "why"}));
    EXPECT_EQ(verified_log(input).ledger.ok, kind == OutcomeKind::success)
        << input.effects[0].record;
    EXPECT_EQ(*erased_effect(place, input.effects[0].record), input.effects[0].record);
  }
  // A record of another attempt, and one of a try that never existed.
  const std::string of_first = canonical(with_checksum(
      effect_location(job.state.job, effect.invocation, 2),
      *read_side_record(effect_location(job.state.job, effect.invocation, 1), effect.record)));
  input.effects[0].record = of_first;
  EXPECT_FALSE(verified_log(input).ledger.ok);
  input.effects[0] = {effect.invocation, 3, record(3, {.kind = OutcomeKind::success})};
  EXPECT_FALSE(verified_log(input).ledger.ok);
}

AE_TEST("verify/redacted values are not compared and fail no proof") {
  const JobFixture job = rich_plan_job();
  Erasable erased = Value::object({{"$redacted", std::string(64, 'a')}});
  erased.erased = true;
  VerifyInput input =
      with_plan_change<JobCreated>(job, [&](auto& created) { created.input = erased; });
  const Verification all = verified_log(input);
  EXPECT_TRUE(all.ok) << canonical(all.to_json());
  EXPECT_NE(all.replay.detail.find("redacted"), std::string::npos);
  EXPECT_TRUE(verified_log(with_plan_change<Started>(job, [&](auto& call) {
                call.arguments = erased;
              })).ok);
}

AE_TEST("verify/a job whose call happened without a result passes and has the same state") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  job.claim().crash().resolve("a", "happened");
  ASSERT_EQ(job.status(), "completed");
  const VerifyInput stored = StoredJob(job).opened(job.state.job);
  ASSERT_EQ(stored.events.size(), job.log.size());
  const Verification all = verified_log(stored);
  EXPECT_TRUE(all.ok) << canonical(all.to_json());
  const auto folded = fold(job.state.job, stored.events, uncached_plan_source());
  ASSERT_TRUE(folded) << folded.error().message;
  EXPECT_EQ(state_view(*folded), state_view(job.state));
  const auto forked = fork_at(*folded, stored.events, stored.events.size(), uncached_plan_source());
  ASSERT_TRUE(forked);
  const JobFixture fork(*forked, "other");
  EXPECT_EQ(fork.step("a").phase, StepPhase::done) << fork.log_text();
}

}  // namespace
}  // namespace ae::engine::testing
