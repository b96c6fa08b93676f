// What was erased from a log, and what only looks so: a tool, a model, a person or an input may say {"$redacted": …} too.
#include "core/redacted.h"

#include <algorithm>

#include "engine/checkpoint.h"
#include "engine/loop_job_test.h"
#include "engine/stored_job_test.h"
#include "engine/view.h"

namespace ae::engine::testing {
namespace {

constexpr std::string_view kLooks =
    "{'$redacted': 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'}";

constexpr std::string_view kChain = R"([{'id':'a', 'kind':'tool', 'tool':'look'},
    {'id':'b', 'kind':'tool', 'tool':'put', 'needs':['a'], 'args':{'of':'${ .steps.a }'}},
    {'id':'c', 'kind':'tool', 'tool':'once', 'needs':['b'], 'args':{'of':'${ .input }'}}])";

Verification proof(const JobId& job, const std::vector<Event>& log) {
  VerifyInput input;
  input.job = job;
  input.events = log;
  return verify(input, compile_each_time());
}

// The job as it is read from its store: every value has its salt.
GivenJob read_back(GivenJob job) {
  job.log = Stored(job).opened(job.state.job).events;
  job.state = job.folded(job.log.size());
  return job;
}

// The same when values of these fields of these events were erased.
GivenJob erased(GivenJob job, EventType type, std::string_view field, std::string_view node = {}) {
  const std::string step = node.empty() ? std::string() : job.step(node).id.text;
  Stored stored(job);
  stored.redact(job.state.job, [&](const Event& event, std::string_view value) {
    return event.type == type && value == field &&
           (step.empty() || event.payload.text("step_id") == step);
  });
  job.log = stored.opened(job.state.job).events;
  job.state = job.folded(job.log.size());
  return job;
}

Fork retried(const GivenJob& job) {
  const auto point = retry_point(job.state, job.log);
  AE_CHECK(point.has_value(), job.story());
  auto fork = job.fork(*point);
  AE_CHECK(fork.has_value(), fork ? "" : fork.error().message);
  return *std::move(fork);
}

// Each command is compared with its plan.
void expect_compared(const GivenJob& job) {
  const Verification all = proof(job.state.job, job.log);
  EXPECT_TRUE(all.ok) << canonical(all.to_json()) << job.story();
  EXPECT_NE(all.replay.detail.find("with the arguments it gives"), std::string::npos)
      << all.replay.detail;
}

GivenJob looks_erased() {
  GivenJob job(kChain, {.input = kLooks});
  job.claim().ok("a", kLooks).ok("b", kLooks).fails("c");
  AE_CHECK(job.status() == "failed", job.story());
  return read_back(std::move(job));
}

AE_TEST("redacted/a job whose values only look erased is forked, tried again and proved") {
  const GivenJob job = looks_erased();
  expect_compared(job);
  const auto fork = job.fork(job.log.size());
  ASSERT_TRUE(fork) << fork.error().message;
  EXPECT_FALSE(fork->input_erased);
  for (const Fork& from : {*fork, retried(job)}) {
    GivenJob next(from, "job-2");
    next.claim();
    ASSERT_EQ(next.sent.size(), 1u) << next.story();
    EXPECT_EQ(next.sent[0].arguments["of"], json(kLooks));
    next.ok("c", kLooks);
    EXPECT_EQ(next.status(), "completed") << next.story();
    expect_compared(read_back(std::move(next)));
  }
}

AE_TEST("redacted/arguments that are forged are found in a job whose values only look erased") {
  const GivenJob job = looks_erased();
  const std::uint64_t seq = job.seq_of(EventType::tool_invocation_started, "c");
  const Value other = json("{'of': 'another'}");
  std::vector<Event> log = job.log;
  Value& forged = log[seq - 1].payload;
  forged = forged.with("arguments", other).with("arguments_hash", to_hex(sha256(canonical(other))));
  const Verification all = proof(job.state.job, log);
  EXPECT_FALSE(all.replay.ok) << all.replay.detail;
  EXPECT_NE(all.replay.detail.find("other arguments"), std::string::npos) << all.replay.detail;

  // Nor is one found by its own looks.
  log = job.log;
  log[seq - 1].payload = log[seq - 1].payload.with("arguments", json(kLooks));
  EXPECT_FALSE(proof(job.state.job, log).ledger.ok);
}

AE_TEST(
    "redacted/an effect that is not the log's is found in a job whose values only look erased") {
  GivenJob job(
      "[{'id':'a', 'kind':'tool', 'tool':'put'}, {'id':'b', 'kind':'tool', 'tool':'put'}]");
  job.claim();
  const auto record = [&](const Value& result) {
    return canonical(effect_record(job.state.job, sent_of(job.state, job.step("a")),
                                   {.kind = OutcomeKind::success, .result = result}, job.now));
  };
  const std::string good = record(json(kLooks)), other = record("other");
  const InvocationId invocation = job.step("a").call->id;
  job.ok("a", kLooks).ok("b");
  const GivenJob read = read_back(job);
  VerifyInput input;
  input.job = read.state.job;
  input.events = read.log;
  input.effects = {{invocation, 1, good}};
  EXPECT_TRUE(verify(input, compile_each_time()).ledger.ok);
  input.effects[0].record = other;
  EXPECT_FALSE(verify(input, compile_each_time()).ledger.ok);
  // Of a result that is erased, the record's is not known to be another.
  input.events = erased(job, EventType::tool_invocation_finished, "result", "a").log;
  EXPECT_TRUE(verify(input, compile_each_time()).ledger.ok);
}

AE_TEST("redacted/a loop whose calls and answer only look erased goes on in a fork") {
  GivenJob origin = talk();
  origin.claim().ok("chat/0", wants({{"a", "look", kLooks}, {"b", "put", kLooks}}));
  origin.ok("chat/0/0", kLooks).ok("chat/0/1", kLooks).fails("chat/1", "connect");
  ASSERT_EQ(origin.status(), "failed") << origin.story();
  const GivenJob read = read_back(origin);
  expect_compared(read);
  GivenJob fork(retried(read), "job-2");
  fork.claim();
  ASSERT_EQ(fork.sent.size(), 1u) << fork.story();
  fork.ok("chat/1", says("Done"));
  EXPECT_EQ(fork.status(), "completed") << fork.story();
  expect_compared(read_back(std::move(fork)));
}

AE_TEST("redacted/an erased result, input or argument is known by its salt, in a checkpoint too") {
  const GivenJob job = looks_erased();
  const GivenJob gone = erased(job, EventType::tool_invocation_finished, "result", "a");
  EXPECT_TRUE(gone.step("a").erased);
  EXPECT_FALSE(gone.step("b").erased);
  auto restored =
      restore(gone.state.job, gone.state.seq, checkpoint(gone.state, Hash{}), compile_each_time());
  ASSERT_TRUE(restored) << restored.error().message;
  EXPECT_TRUE(restored->state.steps[0].erased);
  EXPECT_EQ(gone.fork(gone.log.size()).error().code, Code::input_invalid);
  const Verification all = proof(gone.state.job, gone.log);
  EXPECT_TRUE(all.ok) << canonical(all.to_json());
  EXPECT_NE(all.replay.detail.find("redacted"), std::string::npos) << all.replay.detail;

  const GivenJob born = erased(job, EventType::job_created, "input");
  const auto fork = born.fork(born.log.size());
  ASSERT_TRUE(fork) << fork.error().message;
  EXPECT_TRUE(fork->input_erased);
  EXPECT_TRUE(proof(born.state.job, born.log).ok);
  EXPECT_EQ(erased_values(born.log[0]), std::vector<std::string>{"input"});

  const GivenJob asked = erased(job, EventType::tool_invocation_started, "arguments", "b");
  EXPECT_TRUE(asked.step("b").call->erased);
  EXPECT_TRUE(proof(asked.state.job, asked.log).ok);
  EXPECT_TRUE(asked.fork(asked.log.size()));
}

AE_TEST("redacted/what is made of an erased value is no ground for a fork either") {
  GivenJob map(R"([{'id':'m', 'kind':'map', 'over':[1,2], 'do':{'tool':'put'}},
                   {'id':'z', 'kind':'tool', 'tool':'once', 'needs':['m']}])");
  map.claim().ok("m/0", "1").ok("m/1", "2").fails("z");
  EXPECT_TRUE(read_back(map).fork(map.log.size()));
  const GivenJob item = erased(map, EventType::tool_invocation_finished, "result", "m/1");
  EXPECT_TRUE(item.step("m").erased);
  EXPECT_EQ(item.fork(item.log.size()).error().code, Code::input_invalid);

  GivenJob told(R"([{'id':'w', 'kind':'wait', 'wait':{'type':'message', 'channel':'c'}},
                    {'id':'z', 'kind':'tool', 'tool':'once', 'needs':['w']}])");
  told.message("c", "'hello'", "1").claim().fails("z");
  ASSERT_EQ(told.status(), "failed") << told.story();
  EXPECT_TRUE(read_back(told).fork(told.log.size()));
  const GivenJob message = erased(told, EventType::agent_message, "payload");
  EXPECT_TRUE(message.step("w").erased);
  EXPECT_EQ(message.fork(message.log.size()).error().code, Code::input_invalid);

  // A fork's own log, of which what it was given is erased.
  GivenJob chain(kChain);
  chain.claim().ok("a", "1").ok("b", "2").fails("c");
  GivenJob fork(retried(chain), "job-2");
  fork.claim().fails("c");
  EXPECT_TRUE(read_back(fork).fork(fork.log.size()));
  const GivenJob given = erased(fork, EventType::fork_imported, "results");
  EXPECT_TRUE(given.step("a").erased);
  EXPECT_EQ(given.fork(given.log.size()).error().code, Code::input_invalid);
  EXPECT_TRUE(proof(given.state.job, given.log).ok);
}

}  // namespace
}  // namespace ae::engine::testing
