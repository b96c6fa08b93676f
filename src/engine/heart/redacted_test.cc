// Erased values, and values that only look erased: any tool, model, user or input may
// contain {"$redacted": …}.
#include "log/redacted.h"

#include <algorithm>

#include "engine/fixtures/stored_job_test.h"
#include "engine/loop/loop_fixture_test.h"
#include "engine/state/checkpoint.h"
#include "inspect/view.h"

namespace ae::engine::testing {
namespace {

constexpr std::string_view kLooks =
    "{'$redacted': 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'}";

constexpr std::string_view kChain = R"([{'id':'a', 'kind':'tool', 'tool':'look'},
    {'id':'b', 'kind':'tool', 'tool':'put', 'needs':['a'], 'args':{'of':'${ .steps.a }'}},
    {'id':'c', 'kind':'tool', 'tool':'once', 'needs':['b'], 'args':{'of':'${ .input }'}}])";

// A job as read from its store: every value has its salt, except erased ones.
struct Logged {
  State state;
  std::vector<Event> log;

  VerifyInput input() const {
    VerifyInput input;
    input.job = state.job;
    input.events = log;
    return input;
  }
  Verification proof() const { return verify(input(), uncached_plan_source()); }
  Result<Fork> fork() const { return fork_at(state, log, log.size(), uncached_plan_source()); }
  Fork retried() const {
    const auto point = retry_point(state, log);
    AE_CHECK(point.has_value(), "a failed job");
    auto fork = fork_at(state, log, *point, uncached_plan_source());
    AE_CHECK(fork.has_value(), fork ? "" : fork.error().message);
    return *std::move(fork);
  }
  const Step& step(const StepId& id) const { return *state.find_step(id); }
};

Logged logged(const StoredJob& stored, const JobFixture& job) {
  auto log = stored.opened(job.state.job).events;
  auto state = fold(job.state.job, log, uncached_plan_source());
  AE_CHECK(state.has_value(), state ? "" : state.error().message);
  return {*std::move(state), std::move(log)};
}
Logged read_back(const JobFixture& job) { return logged(StoredJob(job), job); }

// The same with these values of these events erased; `node` = "": of all nodes.
Logged erased_field(const JobFixture& job, EventType type, std::string_view field,
                    std::string_view node = {}) {
  const std::string step = node.empty() ? StepId().text : job.step(node).id.text;
  StoredJob stored(job);
  stored.redact(job.state.job, [&](const Event& event, std::string_view value) {
    return event.type == type && value == field && (step.empty() || step_of(event) == step);
  });
  return logged(stored, job);
}

// Each command is compared with its plan.
void expect_compared(const JobFixture& job) {
  const Verification all = read_back(job).proof();
  EXPECT_TRUE(all.ok) << canonical(all.to_json()) << job.log_text();
  EXPECT_NE(all.replay.detail.find(" the plan"), std::string::npos) << all.replay.detail;
}

JobFixture looks_erased() {
  JobFixture job(kChain, {.input = kLooks});
  job.claim().ok("a", kLooks).ok("b", kLooks).fails("c");
  AE_CHECK(job.status() == "failed", job.log_text());
  return job;
}

AE_TEST("redacted/a job whose values only look erased can be forked, retried and verified") {
  const JobFixture job = looks_erased();
  expect_compared(job);
  const Logged read = read_back(job);
  const auto fork = read.fork();
  ASSERT_TRUE(fork) << fork.error().message;
  EXPECT_FALSE(fork->input_erased);
  for (const Fork& from : {*fork, read.retried()}) {
    JobFixture next(from, "job-2");
    next.claim();
    ASSERT_EQ(next.sent.size(), 1u) << next.log_text();
    EXPECT_EQ(next.sent[0].arguments["of"], json(kLooks));
    next.ok("c", kLooks);
    EXPECT_EQ(next.status(), "completed") << next.log_text();
    expect_compared(next);
  }
}

AE_TEST("redacted/forged arguments are detected although the values look erased") {
  const JobFixture job = looks_erased();
  const std::uint64_t seq = job.seq_of(EventType::tool_invocation_started, "c");
  const Value other = json("{'of': 'another'}");
  VerifyInput input = read_back(job).input();
  auto& forged = std::get<ToolInvocationStarted>(input.events[seq - 1].body);
  forged.arguments = other;
  forged.arguments_hash = sha256(canonical(other));
  const Verification all = verify(input, uncached_plan_source());
  EXPECT_FALSE(all.replay.ok) << all.replay.detail;
  EXPECT_NE(all.replay.detail.find("other arguments"), std::string::npos) << all.replay.detail;

  // Arguments that look erased are compared too, as long as they have their salt.
  forged = std::get<ToolInvocationStarted>(job.log[seq - 1].body);
  forged.arguments = json(kLooks);
  EXPECT_FALSE(verify(input, uncached_plan_source()).ledger.ok);
}

AE_TEST("redacted/a changed effect record is detected although the values look erased") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'put'}, {'id':'b', 'kind':'tool', 'tool':'put'}]");
  job.claim();
  const auto record = [&](const Value& result) {
    return canonical(effect_record(job.state.job, sent_try_of(job.state, job.step("a")),
                                   {.kind = OutcomeKind::success, .result = result}, job.now));
  };
  const std::string good = record(json(kLooks)), other = record("other");
  const InvocationId invocation = job.step("a").call->id;
  job.ok("a", kLooks).ok("b");
  VerifyInput input = read_back(job).input();
  input.effects = {{invocation, 1, good}};
  EXPECT_TRUE(verify(input, uncached_plan_source()).ledger.ok);
  input.effects[0].record = other;
  EXPECT_FALSE(verify(input, uncached_plan_source()).ledger.ok);
  // The record may belong to an erased result.
  input.events = erased_field(job, EventType::tool_invocation_finished, "result", "a").log;
  EXPECT_TRUE(verify(input, uncached_plan_source()).ledger.ok);
}

AE_TEST("redacted/a loop whose values only look erased continues in a fork") {
  JobFixture origin = loop_job();
  origin.claim().ok("chat/0", tool_calls_answer({{"a", "look", kLooks}, {"b", "put", kLooks}}));
  origin.ok("chat/0/0", kLooks).ok("chat/0/1", kLooks).fails("chat/1", "connect");
  ASSERT_EQ(origin.status(), "failed") << origin.log_text();
  expect_compared(origin);
  JobFixture fork(read_back(origin).retried(), "job-2");
  fork.claim();
  ASSERT_EQ(fork.sent.size(), 1u) << fork.log_text();
  fork.ok("chat/1", text_answer("Done"));
  EXPECT_EQ(fork.status(), "completed") << fork.log_text();
  expect_compared(fork);
}

AE_TEST("redacted/an erased value is recognized by its missing salt, in a checkpoint too") {
  const JobFixture job = looks_erased();
  const Logged gone = erased_field(job, EventType::tool_invocation_finished, "result", "a");
  EXPECT_TRUE(gone.step(job.step("a").id).erased);
  EXPECT_FALSE(gone.step(job.step("b").id).erased);
  auto restored = restore(gone.state.job, gone.state.seq, checkpoint(gone.state, Hash{}),
                          uncached_plan_source());
  ASSERT_TRUE(restored) << restored.error().message;
  EXPECT_TRUE(restored->state.steps[0].erased);
  EXPECT_EQ(gone.fork().error().code, Code::input_invalid);
  const Verification all = gone.proof();
  EXPECT_TRUE(all.ok) << canonical(all.to_json());
  EXPECT_NE(all.replay.detail.find("redacted"), std::string::npos) << all.replay.detail;

  const Logged with_input = erased_field(job, EventType::job_created, "input");
  const auto fork = with_input.fork();
  ASSERT_TRUE(fork) << fork.error().message;
  EXPECT_TRUE(fork->input_erased);
  EXPECT_TRUE(with_input.proof().ok);
  EXPECT_EQ(erased_fields(with_input.log[0]), std::vector<std::string>{"input"});

  const Logged with_call = erased_field(job, EventType::tool_invocation_started, "arguments", "b");
  EXPECT_TRUE(with_call.step(job.step("b").id).call->erased);
  EXPECT_TRUE(with_call.proof().ok);
  EXPECT_TRUE(with_call.fork());
}

AE_TEST("redacted/a fork from a value derived from an erased one is rejected") {
  JobFixture map(R"([{'id':'m', 'kind':'map', 'over':[1,2], 'max_parallel':2, 'do':{'tool':'put'}},
                   {'id':'z', 'kind':'tool', 'tool':'once', 'needs':['m']}])");
  map.claim().ok("m/0", "1").ok("m/1", "2").fails("z");
  EXPECT_TRUE(read_back(map).fork());
  const Logged item = erased_field(map, EventType::tool_invocation_finished, "result", "m/1");
  EXPECT_TRUE(item.step(map.step("m").id).erased);
  EXPECT_EQ(item.fork().error().code, Code::input_invalid);

  JobFixture has_message(R"([{'id':'w', 'kind':'wait', 'wait':{'type':'message', 'channel':'c'}},
                    {'id':'z', 'kind':'tool', 'tool':'once', 'needs':['w']}])");
  has_message.message("c", "'hello'", "1").claim().fails("z");
  ASSERT_EQ(has_message.status(), "failed") << has_message.log_text();
  EXPECT_TRUE(read_back(has_message).fork());
  const Logged message = erased_field(has_message, EventType::agent_message, "payload");
  EXPECT_TRUE(message.step(has_message.step("w").id).erased);
  EXPECT_EQ(message.fork().error().code, Code::input_invalid);

  // A fork's own log, with its imports erased.
  JobFixture chain(kChain);
  chain.claim().ok("a", "1").ok("b", "2").fails("c");
  JobFixture fork(read_back(chain).retried(), "job-2");
  fork.claim().fails("c");
  EXPECT_TRUE(read_back(fork).fork());
  const Logged given = erased_field(fork, EventType::fork_imported, "results");
  EXPECT_TRUE(given.step(fork.step("a").id).erased);
  EXPECT_EQ(given.fork().error().code, Code::input_invalid);
  EXPECT_TRUE(given.proof().ok);
}

// A process that crashed sends it again, also after the receiver has ended.
AE_TEST("redacted/a repeated signal is recognized although its payload was erased") {
  constexpr std::string_view kWait =
      "[{'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}}]";
  for (const bool early : {false, true}) {
    JobFixture job(kWait);
    if (!early) job.claim();
    job.signal_early("k", "'go'", "id-1");
    if (early) job.claim();
    ASSERT_EQ(job.status(), "completed");
    const auto field = early ? EventType::agent_message : EventType::wait_completed;
    const State state = erased_field(job, field, "payload").state;
    const auto applied = [&](std::string_view id, std::string_view payload) {
      const ControlRequest request{
          .id = std::string(id),
          .body = SignalRequest{.correlation_key = "k", .buffer = true, .payload = json(payload)}};
      const auto done = apply_request(state, request, {});
      return done ? done->answer["applied"] : Value(done.error().message);
    };
    EXPECT_EQ(applied("id-1", "'go'"), Value(true)) << early;
    EXPECT_EQ(applied("id-2", "'go'"), Value(false)) << early << ": of another request";
  }
}

}  // namespace
}  // namespace ae::engine::testing
