// Tests of the runtime: late, reordered and lost messages of calls and stores; shutdown, versions,
// queues.
#include <algorithm>
#include <chrono>
#include <memory>
#include <type_traits>

#include "runtime/worker_fixture_test.h"

namespace ae::runtime::testing {
namespace {

// The trace id comes from the caller; the span id follows from job, call and try; neither is part
// of the request's identity.
AE_TEST("call/a call keeps its trace after a crash, and each try has its own span") {
  constexpr std::string_view kAsked = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  std::string key;
  for (const bool asked : {true, false}) {
    TestEnvironment env;
    std::string first;
    {
      WorkerFixture worker(env, "w1", {.owned = true});
      NewJobRequest request;
      request.job = kJob;
      request.agent = "agent";
      request.plan = plan("idempotent", kOneCall);
      if (asked) request.traceparent = kAsked, request.tracestate = "congo=x";
      ASSERT_TRUE(env.loop.await<Result<CreateResult>>(
          [&](auto done) { worker.runtime->create(request, std::move(done)); }));
      env.loop.run_ready();
      ASSERT_EQ(worker.calls.size(), 1u);
      const tools::Call& call = worker.calls[0].call;
      first = call.traceparent;
      const std::string trace = asked ? "0af7651916cd43dd8448eb211c80319c" : trace_id_of(kJob);
      EXPECT_EQ(first, traceparent(trace, span_id_of(kJob, call.invocation, 1), 1));
      EXPECT_EQ(call.tracestate, asked ? "congo=x" : "");
      if (!key.empty()) {
        EXPECT_EQ(call.key.text, key) << "no part of the key";
      }
      key = call.key.text;
    }
    WorkerFixture worker(env, "w2", {.owned = true, .seed = 1000});
    worker.runtime->start();
    env.loop.run_ready();
    ASSERT_EQ(worker.calls.size(), 1u);
    const tools::Call& again = worker.calls[0].call;
    EXPECT_EQ(again.try_no, 2u);
    EXPECT_EQ(again.traceparent.substr(0, 36), first.substr(0, 36)) << "one trace";
    EXPECT_NE(again.traceparent, first) << "a span of its own";
    EXPECT_EQ(again.traceparent.substr(36, 16), span_id_of(kJob, again.invocation, 2));
    worker.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
    EXPECT_EQ(worker.status(), "completed");
  }
}

AE_TEST("call/a try whose declaration is durable too late is not sent, the next one is") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true, .delay = 40s});
  int commits = 0;
  worker.script = [&](const store::Call& call) {
    const bool declares = call.method == Method::commit && ++commits == 2;
    return declares ? Fault::delay_answer : Fault::none;
  };
  worker.runtime->start();
  worker.create(plan("at_most_once", kOneCall));
  EXPECT_EQ(worker.calls.size(), 0u) << "the declaration is not known to be durable";
  env.loop.advance(41s);
  ASSERT_EQ(worker.calls.size(), 1u);
  EXPECT_EQ(worker.calls[0].call.try_no, 2u) << "send_by of the first one had passed";
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  EXPECT_EQ(worker.status(), "completed");
}

AE_TEST("call/a suspend during a claim or commit reduces the time to send") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = false});
  int commits = 0;
  worker.script = [&](const store::Call& call) {
    // The reply to the declaration took so long, by a clock that includes suspend, that the lease
    // may have expired.
    if (call.method == Method::commit)
      worker.faulty->set_clock_uncertainty(++commits == 2 ? 31s : 0s);
    return Fault::none;
  };
  worker.runtime->start();
  worker.create(plan("at_most_once", kOneCall));
  EXPECT_EQ(worker.calls.size(), 0u);
  env.loop.advance(5s);
  ASSERT_EQ(worker.calls.size(), 1u);
  EXPECT_EQ(worker.calls[0].call.try_no, 2u) << "the first one was withdrawn";
  EXPECT_LE(worker.calls[0].call.send_within, 30s);
  const auto read = worker.read();
  const auto ended = all_of<ToolInvocationFinished>(read.events);
  ASSERT_FALSE(ended.empty());
  ASSERT_TRUE(ended[0]->error);
  EXPECT_EQ(ended[0]->error->code, "not_sent");
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  EXPECT_EQ(worker.status(), "completed");
}

AE_TEST_SLOW("timer/more due jobs than one query returns are woken without waiting for the poll") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  constexpr int kJobs = 800;
  const auto waits =
      plan("idempotent", "[{'id':'t', 'kind':'wait', 'wait':{'type':'timer', 'for':'600s'}}]");
  for (int i = 0; i < kJobs; ++i) {
    NewJobRequest request;
    request.agent = "agent";
    request.plan = waits;
    ASSERT_TRUE(env.loop.await<Result<CreateResult>>(
        [&](auto done) { worker.runtime->create(request, std::move(done)); }));
  }
  const auto completed = [&] {
    auto jobs = env.loop.await<Result<std::vector<store::JobRow>>>([&](auto done) {
      worker.memory->query({.statuses = {"completed"}, .limit = kJobs}, std::move(done));
    });
    return jobs ? jobs->size() : 0;
  };
  env.loop.advance(599s);
  EXPECT_EQ(completed(), 0u);
  env.loop.advance(1500ms);
  EXPECT_EQ(completed(), std::size_t{kJobs});
}

constexpr std::string_view kManyCalls =
    "[{'id':'m', 'kind':'map', 'over':[1,2,3,4,5,6,7,8,9,10], 'max_parallel':4, "
    "'do':{'tool':'do'}},"
    " {'id':'w', 'kind':'wait', 'wait':{'type':'signal','key':'k'}, 'needs':['m']},"
    " {'id':'a', 'kind':'tool', 'tool':'do', 'needs':['w']}]";

store::LoadedJob from_checkpoint(TestEnvironment& env, WorkerFixture& worker) {
  auto loaded = env.loop.await<Result<store::LoadedJob>>(
      [&](auto done) { worker.memory->load(kJob, store::kFromCheckpoint, std::move(done)); });
  AE_CHECK(loaded.has_value());
  return *std::move(loaded);
}

void answer_all(WorkerFixture& worker) {
  for (std::size_t i = 0; i < worker.calls.size(); ++i) {
    if (worker.calls[i].done)
      worker.answer(i, {.kind = OutcomeKind::success, .result = json("'r'")});
  }
}

AE_TEST("checkpoint/an idle job has one at its last event and continues from it") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w",
                         {.owned = true, .durability = durability, .checkpoint_every = 40});
    worker.runtime->start();
    worker.create(plan("idempotent", kManyCalls));
    answer_all(worker);
    ASSERT_EQ(worker.status(), "waiting");
    const store::LoadedJob tail = from_checkpoint(env, worker);
    ASSERT_TRUE(tail.checkpoint);
    EXPECT_EQ(tail.checkpoint->seq, tail.row.last_seq) << "it is made at the last event";
    EXPECT_TRUE(tail.commits.empty());
    const engine::State whole = worker.read().state;
    EXPECT_EQ(engine::checkpoint(whole, tail.row.head), tail.checkpoint->bytes);
    ASSERT_TRUE(worker.signal("k", "s1"));
    env.loop.advance(2s);
    answer_all(worker);
    EXPECT_EQ(worker.status(), "completed");
  }
}

// The cost of a signal that wakes a job with a long log.
AE_TEST_SLOW("checkpoint/a request to a job with a long log does not read all of it") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  std::string over;
  for (int i = 0; i < 2400; ++i) over += (i == 0 ? "" : ",") + std::to_string(i);
  worker.create(
      plan("idempotent",
           "[{'id':'m', 'kind':'map', 'over':[" + over +
               "], 'max_parallel':64, 'do':{'tool':'do'}},"
               " {'id':'w', 'kind':'wait', 'wait':{'type':'signal','key':'k'}, 'needs':['m']}]"));
  while (!worker.calls.empty()) {
    PendingCall next = std::move(worker.calls.front());
    worker.calls.pop_front();
    next.done({.kind = OutcomeKind::success, .result = json("{'item':'of a list'}")});
    env.loop.run_ready();
  }
  ASSERT_EQ(worker.status(), "waiting");
  const store::LoadedJob tail = from_checkpoint(env, worker);
  ASSERT_GT(tail.row.last_seq, 15'000u);
  ASSERT_TRUE(tail.checkpoint);
  EXPECT_LT(tail.row.last_seq - tail.checkpoint->seq, 2'500u);
  const auto took = [&](auto ask) {
    const auto begin = std::chrono::steady_clock::now();
    ask();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
        .count();
  };
  const double whole = took([&] { static_cast<void>(worker.read()); });
  const double act = took([&] { EXPECT_FALSE(worker.signal("no such key", "s0")); });
  std::printf("%llu events: the whole log %.1f ms, an act %.1f ms, a checkpoint of %zu bytes\n",
              static_cast<unsigned long long>(tail.row.last_seq), whole, act,
              tail.checkpoint->bytes.size());
  EXPECT_LT(act * 5, whole);
}

AE_TEST("runtime/a plan is compiled once per plan cache") {
  TestEnvironment env;
  engine::PlanCache plans;
  WorkerFixture first(env, "first", {.seed = 1, .plans = &plans});
  WorkerFixture second(env, "second", {.seed = 1'000'001, .plans = &plans});
  first.runtime->start();
  const auto made = plan("idempotent", kTwoWaits);
  first.create(made);
  ASSERT_EQ(first.status(), "waiting");
  EXPECT_EQ(first.read().state.plan, made);
  EXPECT_EQ(second.read().state.plan, made);
  WorkerFixture apart(env, "apart", {.seed = 2'000'001});
  EXPECT_NE(apart.read().state.plan, made);
  EXPECT_EQ(apart.read().state.plan->hash, made->hash);
}

AE_TEST("checkpoint/a damaged or mismatched one is ignored") {
  TestEnvironment env;
  std::optional<WorkerFixture> worker;
  worker.emplace(env, "w", WorkerFixture::Setup{.owned = true, .checkpoint_every = 1'000'000});
  worker->runtime->start();
  worker->create(plan("idempotent", kOneCall));
  const auto read = worker->read();
  ASSERT_TRUE(read.row.claim);
  store::Batch batch;
  batch.job = kJob;
  batch.authority = store::Batch::Leased{*read.row.claim};
  batch.expected_seq = read.row.last_seq;
  for (const std::string& bytes :
       {std::string("nonsense"), engine::checkpoint(read.state, sha256("another head"))}) {
    batch.checkpoint = bytes;
    auto put = env.loop.await<Result<store::CommitResult>>(
        [&](auto done) { worker->memory->commit(batch, std::move(done)); });
    ASSERT_TRUE(put);
    WorkerFixture next(env, "next", {.owned = false, .seed = 77});
    auto state = env.loop.await<Result<Runtime::JobSnapshot>>(
        [&](auto done) { next.runtime->read_state(kJob, std::move(done)); });
    ASSERT_TRUE(state) << state.error().message;
    EXPECT_EQ(engine::checkpoint(state->state, Hash{}), engine::checkpoint(read.state, Hash{}));
  }
}

AE_TEST("shutdown/a job that is ending finishes its call first") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("at_most_once", kOneCall));
  ASSERT_TRUE(worker.submit({.body = engine::CancelRequest{}}));
  bool stopped = false;
  worker.runtime->stop(10s, [&] { stopped = true; });
  env.loop.advance(1s);
  EXPECT_FALSE(stopped) << "it waits for its call";
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  env.loop.advance(1s);
  EXPECT_TRUE(stopped);
  const auto read = worker.read();
  EXPECT_EQ(read.state.status, engine::JobStatus::cancelled);
  EXPECT_TRUE(read.state.steps[0].committed) << "and its effect is recorded";
}

AE_TEST("shutdown/a compensating job is released after its call and continues elsewhere") {
  TestEnvironment env;
  WorkerFixture first(env, "first", {.owned = true});
  first.runtime->start();
  first.create(
      plan_with_probe_and_undo("[{'id':'a', 'kind':'tool', 'tool':'do'},"
                               "{'id':'b', 'kind':'tool', 'tool':'do', 'needs':['a']},"
                               "{'id':'c', 'kind':'tool', 'tool':'do', 'needs':['b']}]"));
  first.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  first.answer(1, {.kind = OutcomeKind::success, .result = json("2")});
  first.answer(2, {.kind = OutcomeKind::failure, .definite = true, .error_code = "no"});
  ASSERT_EQ(first.calls.size(), 4u);
  bool stopped = false;
  first.runtime->stop(10s, [&] { stopped = true; });
  env.loop.advance(1s);
  EXPECT_FALSE(stopped) << "it waits for its call";
  first.answer(3, {.kind = OutcomeKind::success});
  env.loop.advance(1s);
  EXPECT_TRUE(stopped);
  EXPECT_EQ(first.calls.size(), 4u) << "no other call starts";
  WorkerFixture second(env, "second", {.owned = true, .seed = 1'000'001});
  second.runtime->start();
  env.loop.advance(1s);
  ASSERT_EQ(second.calls.size(), 1u);
  EXPECT_EQ(second.calls[0].call.args, json("{'what':1}"));
  second.answer(0, {.kind = OutcomeKind::success});
  EXPECT_EQ(second.status(), "failed");
  EXPECT_EQ(second.read().state.undone.size(), 2u);
}

AE_TEST("shutdown/a shutdown ends in time when the store cannot be written") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("at_most_once", kOneCall));
  worker.script = [](const store::Call& call) {
    return call.method == Method::commit ? Fault::fail_before : Fault::none;
  };
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  bool stopped = false;
  worker.runtime->stop(10s, [&] { stopped = true; });
  env.loop.advance(9s);
  EXPECT_FALSE(stopped);
  env.loop.advance(2s);
  EXPECT_TRUE(stopped);
  EXPECT_EQ(worker.read().state.open_tries, 1u) << "the outcome of the call is unknown, not lost";
}

AE_TEST("store/an outage is reported once, not once per retry") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.script = [](const store::Call& call) {
    return call.method == Method::claim ? Fault::fail_before : Fault::none;
  };
  worker.runtime->start();
  env.loop.advance(20s);
  EXPECT_EQ(worker.outages, "out ");
  worker.script = [](const store::Call&) { return Fault::none; };
  env.loop.advance(20s);
  EXPECT_EQ(worker.outages, "out back ") << "the end is reported too";
  EXPECT_EQ(worker.warnings.size(), 0u);
}

AE_TEST("store/an outage is detected also by a process that claims nothing") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.may_claim = false});
  worker.script = [](const store::Call& call) {
    return call.method == Method::list_due ? Fault::fail_before : Fault::none;
  };
  worker.runtime->start();
  env.loop.advance(5s);
  EXPECT_EQ(worker.outages, "out ");
  worker.script = [](const store::Call&) { return Fault::none; };
  env.loop.advance(5s);
  EXPECT_EQ(worker.outages, "out back ");
}

AE_TEST("versions/a worker without the job's tool releases it once without writing") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.create(plan("idempotent", kOneCall));
  worker.runtime.reset();
  worker.calls.clear();
  WorkerFixture other(env, "other", {.owned = true, .seed = 99});
  other.tool_registry = ToolRegistry();
  const auto before = other.read().row.last_seq;
  other.runtime->start();
  env.loop.advance(60s);
  const auto read = other.read();
  EXPECT_EQ(read.row.last_seq, before);
  EXPECT_FALSE(read.row.claim);
  ASSERT_TRUE(other.runtime->refusal_of(kJob));
  EXPECT_EQ(other.runtime->refusal_of(kJob)->code, Code::needs_version);
  EXPECT_EQ(std::ranges::count_if(
                other.warnings,
                [](const std::string& text) { return text.find("cannot run") != text.npos; }),
            1)
      << "it is tried once";
}

// Measures how long a job occupies the loop, with a clock that counts its reads by the runtime: the
// longest interval between two commits or two ticks of another timer.
class SliceRecorder {
 public:
  static constexpr Duration kEach = 20ms;

  SliceRecorder(TestEnvironment& env, WorkerFixture& worker) : env_(env) {
    env.steady.step_per_reading = kEach;
    worker.script = [this](const store::Call& call) {
      if (call.method == Method::commit) {
        commits_++;
        record();
      }
      return Fault::none;
    };
    tick();
  }
  int commits() const { return commits_; }
  // The clock is read before and after a decision, and by the timers of the runtime.
  void expect_slices() const {
    EXPECT_LE(longest_, 50ms + 3 * kEach);
    EXPECT_GE(env_.steady.spent(), 4 * longest_) << "there is more to do than a slice holds";
    EXPECT_GE(env_.steady.spent(), 500ms) << "the runtime reads the clock with each decision";
  }

 private:
  void record() {
    longest_ = std::max(longest_, env_.steady.spent() - last_spent_);
    last_spent_ = env_.steady.spent();
  }
  void tick() {
    record();
    env_.loop.after(1ms, [this] { tick(); });
  }

  TestEnvironment& env_;
  Duration last_spent_{}, longest_{};
  int commits_ = 0;
};

AE_TEST("decide/a long decision yields the loop after each slice of 50 ms") {
  std::string nodes;
  for (int i = 0; i < 5'000; ++i) {
    nodes += std::string(i > 0 ? "," : "") + "{'id':'n" + std::to_string(i) +
             "', 'kind':'tool', 'tool':'do', 'when':'${ false }'}";
  }
  TestEnvironment env;
  WorkerFixture worker(env, "worker", {});
  SliceRecorder turns(env, worker);
  worker.runtime->start();
  worker.create(plan("idempotent", "[" + nodes + "]"));
  env.loop.advance(5s);
  EXPECT_EQ(worker.status(), "completed");
  turns.expect_slices();
  EXPECT_GE(turns.commits(), 6) << "each slice is committed, not only each 4,096 events";
}

AE_TEST("decide/calls that a used-up budget blocks are evaluated in slices") {
  // Only the last call needs an approval, which is known only after all have been evaluated; each
  // evaluation takes the work of one decision.
  std::string nodes;
  for (int i = 0; i < 40; ++i) {
    nodes += std::string(i > 0 ? "," : "") + "{'id':'n" + std::to_string(i) +
             "', 'kind':'tool', 'tool':'do', 'args':{'v':'${ if (\\\"a\\\" * 4000000 | "
             "contains(\\\"b\\\")) then 0 else " +
             std::to_string(i) + " end }'}}";
  }
  const Value simple = plan("idempotent", "[" + nodes + "]")->task_graph;
  const Value rules = json("[{'action':'require_approval', 'when':'${ .args.v == 39 }'}]");
  const Value tool = simple["tools"]["do"].with("rules", rules);
  const auto compiled = engine::Plan::compile(
      simple.with("tools", Value::object({{"do", tool}})).with("budget", json("{'tool_calls':0}")));
  ASSERT_TRUE(compiled) << compiled.error().message;
  TestEnvironment env;
  WorkerFixture worker(env, "worker", {});
  SliceRecorder turns(env, worker);
  worker.runtime->start();
  worker.create(*compiled);
  env.loop.advance(5s);
  const auto read = worker.read();
  EXPECT_EQ(read.state.parked_until, "budget");
  EXPECT_EQ(read.state.waits.size(), 1U);
  EXPECT_TRUE(worker.calls.empty());
  turns.expect_slices();
}

AE_TEST("versions/a worker of another version continues and records the mismatch") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.create(plan("idempotent", kOneCall));
  worker.runtime.reset();
  worker.calls.clear();
  WorkerFixture other(env, "other", {.owned = true, .seed = 99, .version = "0.2.0"});
  other.runtime->start();
  env.loop.advance(2s);
  const auto read = other.read();
  const auto noted = all_of<VersionMismatched>(read.events);
  ASSERT_EQ(noted.size(), 1u);
  EXPECT_EQ(noted[0]->job_version, "0.1.0");
  EXPECT_EQ(noted[0]->worker_version, "0.2.0");
  EXPECT_EQ(noted[0]->attempt_id, read.state.attempt.text);
}

static_assert(!std::is_copy_constructible_v<tools::Permit> &&
                  !std::is_copy_assignable_v<tools::Permit> &&
                  !std::is_default_constructible_v<tools::Permit> &&
                  !std::is_constructible_v<tools::Permit, InvocationId, std::uint32_t>,
              "only the ledger makes permits");

AE_TEST("ledger/a try left open by a crash stays unknown when the next one succeeds") {
  TestEnvironment env;
  std::optional<WorkerFixture> worker;
  worker.emplace(env, "first",
                 WorkerFixture::Setup{.owned = true, .durability = Durability::split});
  worker->create(
      plan("idempotent",
           "[{'id':'a', 'kind':'tool', 'tool':'do'},"
           " {'id':'t', 'kind':'wait', 'needs':['a'], 'wait':{'type':'timer','for':'5s'}},"
           " {'id':'b', 'kind':'tool', 'tool':'do', 'needs':['t']}]"));
  worker->runtime.reset();  // dies during the call
  WorkerFixture next(env, "next", {.owned = true, .durability = Durability::split, .seed = 99});
  next.runtime->start();
  env.loop.advance(2s);
  ASSERT_EQ(next.calls.size(), 1u);
  next.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  env.loop.advance(10s);  // the job becomes idle, is woken and claimed again
  next.answer(1, {.kind = OutcomeKind::success, .result = json("2")});
  auto loaded = env.loop.await<Result<store::LoadedJob>>(
      [&](auto done) { next.memory->load(kJob, 1, std::move(done)); });
  ASSERT_TRUE(loaded);
  std::vector<std::string> states;
  for (const store::LedgerRow& row : loaded->ledger) {
    states.push_back(std::to_string(row.try_no) + " " + row.state);
  }
  std::ranges::sort(states);
  EXPECT_EQ(states, (std::vector<std::string>{"1 COMMITTED", "1 UNKNOWN", "2 COMMITTED"}));
}

// A commit with one event of a type that no version has: everything except its last 32 bytes is
// read before it is rejected.
std::string unknown_event(std::uint64_t seq) {
  std::string bytes(1, '\x01');
  bytes.append(16, '\0');             // first event id
  bytes.append(8, '\0');              // created_at
  bytes += std::string("\0\x01", 2);  // no attempt, one event
  put_varint(seq, bytes);
  bytes += "\x7f\x01";  // type 127, schema 1
  put_text("", bytes);
  return bytes.append(32, '\0');
}

AE_TEST("versions/a job with an unknown event type is released once and unchanged") {
  TestEnvironment env;
  std::optional<WorkerFixture> worker;
  worker.emplace(env, "w", WorkerFixture::Setup{.owned = true});
  worker->create(plan("idempotent", kOneCall));
  const auto read = worker->read();
  ASSERT_TRUE(read.row.claim);
  store::Batch batch;
  batch.job = kJob;
  batch.authority = store::Batch::Leased{*read.row.claim};
  batch.expected_seq = read.row.last_seq;
  batch.row.status = "running";
  const std::uint64_t seq = read.row.last_seq + 1;
  batch.sealed = SealedBatch{.bytes = unknown_event(seq),
                             .blobs = {},
                             .first_seq = seq,
                             .last_seq = seq,
                             .head = sha256("a newer program knows"),
                             .events = {}};
  worker->runtime.reset();
  auto put = env.loop.await<Result<store::CommitResult>>(
      [&](auto done) { worker->memory->commit(batch, std::move(done)); });
  ASSERT_TRUE(put);
  WorkerFixture other(env, "other", {.owned = true, .seed = 99});
  other.runtime->start();
  env.loop.advance(120s);
  ASSERT_TRUE(other.runtime->refusal_of(kJob));
  EXPECT_EQ(other.runtime->refusal_of(kJob)->code, Code::needs_version);
  auto loaded = env.loop.await<Result<store::LoadedJob>>(
      [&](auto done) { other.memory->load(kJob, 1, std::move(done)); });
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->row.last_seq, seq) << "nothing was appended, no attempt begun";
  EXPECT_EQ(loaded->row.status, "running") << "it did not fail";
  EXPECT_FALSE(loaded->row.claim);
  EXPECT_EQ(other.warnings.size(), 1u) << "it is claimed once";
  EXPECT_TRUE(other.calls.empty());
}

AE_TEST("ledger/a try is permitted once, and only to the attempt that declared it") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("idempotent", kOneCall));
  auto state = worker.read().state;
  Ledger first;
  EXPECT_TRUE(first.permit(state, state.steps[0]));
  EXPECT_FALSE(first.permit(state, state.steps[0])) << "a second time";
  Ledger another;
  const auto plans = [&](const Value&,
                         std::string_view) -> Result<std::shared_ptr<const engine::Plan>> {
    return state.plan;
  };
  ASSERT_TRUE(engine::apply(state, engine::running_event(AttemptId("next"), state.epoch + 1, "n"),
                            env.loop.now(), plans));
  EXPECT_FALSE(another.permit(state, state.steps[0])) << "another attempt declared it";
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  state = worker.read().state;
  EXPECT_FALSE(another.permit(state, state.steps[0])) << "it is recorded";
}

AE_TEST("ledger/a permit can be consumed once, by its own try") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("idempotent", kOneCall));
  const auto state = worker.read().state;
  const InvocationId call = state.steps[0].call->id;
  const auto permit = [&] { return *Ledger().permit(state, state.steps[0]); };
  auto used = permit();
  std::move(used).consume(call, 1);
  EXPECT_DEATH(std::move(used).consume(call, 1), "valid_");
  EXPECT_DEATH(permit().consume(call, 2), "valid_");
  EXPECT_DEATH(permit().consume(InvocationId("0123456789abcdef"), 1), "valid_");
}

AE_TEST("durability/fused makes one commit per step, split one per phase") {
  const auto commits_of = [](Durability durability, int nodes) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.owned = true, .durability = durability});
    int commits = 0;
    worker.script = [&](const store::Call& call) {
      commits += call.method == Method::commit ? 1 : 0;
      return Fault::none;
    };
    std::string chain = "[{'id':'n0', 'kind':'tool', 'tool':'do'}";
    for (int i = 1; i < nodes; ++i) {
      chain += ",{'id':'n" + std::to_string(i) + "', 'kind':'tool', 'tool':'do', 'needs':['n" +
               std::to_string(i - 1) + "']}";
    }
    worker.runtime->start();
    worker.create(plan("idempotent", chain + "]"));
    for (int i = 0; i < nodes; ++i) {
      worker.answer(static_cast<std::size_t>(i),
                    {.kind = OutcomeKind::success, .result = json("1")});
    }
    AE_CHECK(worker.status() == "completed");
    return commits;
  };
  EXPECT_EQ(commits_of(Durability::fused, 9) - commits_of(Durability::fused, 4), 5);
  // effect │ finished, command_committed │ ledger │ node_finished │ step_committed │ declaration
  EXPECT_EQ(commits_of(Durability::split, 9) - commits_of(Durability::split, 4), 5 * 6);
}

AE_TEST("queue/a queue runs at most its limit of jobs, and the next one starts when one ends") {
  TestEnvironment env;
  WorkerFixture worker(env, "only", {.queues = {{"narrow", 2}}});
  worker.runtime->start();
  for (int i = 0; i < 5; ++i) {
    NewJobRequest request{.job = JobId("n" + std::to_string(i)),
                          .agent = "a",
                          .plan = plan("read", kOneCall),
                          .input = Value::object({}),
                          .queue = i < 4 ? "narrow" : ""};
    const auto made = env.loop.await<Result<CreateResult>>(
        [&](auto done) { worker.runtime->create(std::move(request), std::move(done)); });
    ASSERT_TRUE(made) << made.error().message;
  }
  env.loop.run_ready();
  EXPECT_EQ(worker.calls.size(), 3u) << "two of the queue, and the one that is in none";
  EXPECT_TRUE(worker.runtime->is_leased(JobId("n4")));
  const Instant before = env.loop.now();
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  EXPECT_EQ(worker.calls.size(), 4u);
  worker.answer(1, {.kind = OutcomeKind::success, .result = json("7")});
  worker.answer(2, {.kind = OutcomeKind::success, .result = json("7")});
  worker.answer(3, {.kind = OutcomeKind::success, .result = json("7")});
  EXPECT_EQ(worker.calls.size(), 5u);
  EXPECT_EQ(env.loop.now(), before) << "no job waits for the next poll";
  const auto row = env.loop.await<Result<Runtime::JobSnapshot>>(
      [&](auto done) { worker.runtime->read(JobId("n0"), std::move(done)); });
  EXPECT_EQ(row->row.queue, "narrow");
  EXPECT_EQ(std::get<JobCreated>(row->events.front().body).queue, "narrow");
}

AE_TEST("create/a job without an id gets a UUIDv7 of the store's time") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  NewJobRequest request;
  request.agent = "agent";
  request.plan = plan("idempotent", kOneCall);
  auto made = env.loop.await<Result<CreateResult>>(
      [&](auto done) { worker.runtime->create(request, std::move(done)); });
  ASSERT_TRUE(made);
  const auto id = uuid_from_text(made->job.text);
  ASSERT_TRUE(id) << made->job.text;
  EXPECT_EQ(id->bytes[6] >> 4, 7);
  EXPECT_EQ(id->bytes[8] >> 6, 2);
  std::int64_t ms = 0;
  for (std::size_t i = 0; i < 6; ++i) ms = ms << 8 | id->bytes[i];
  EXPECT_EQ(ms, worker.memory->now().us / 1000);
}

AE_TEST("limits/a payload over 16 MiB is refused before anything is written") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("idempotent", kWaitAndCall));
  const auto seq = worker.read().row.last_seq;
  const auto result =
      worker.submit({.body = engine::SignalRequest{.correlation_key = "k",
                                                   .payload = Value(std::string(17u << 20, 'x'))}});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Code::payload_too_large);
  EXPECT_EQ(worker.read().row.last_seq, seq);
}

AE_TEST("checkpoint/the commit that makes one records it with its event") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w",
                         {.owned = true, .durability = durability, .checkpoint_every = 40});
    worker.runtime->start();
    worker.create(plan("idempotent", kManyCalls));
    answer_all(worker);
    const store::LoadedJob tail = from_checkpoint(env, worker);
    ASSERT_TRUE(tail.checkpoint);
    const auto read = worker.read();
    const auto notes = all_of(read.events, EventType::state_checkpointed);
    ASSERT_FALSE(notes.empty());
    const Event& record = *notes.back();
    EXPECT_EQ(record.seq, tail.checkpoint->seq) << "it is covered, too";
    const Value& covered = std::get<StateCheckpointed>(record.body).detail;
    EXPECT_EQ(covered["seq"], Value(record.seq - 1));
    EXPECT_EQ(covered.text("hash"), to_hex(read.events[record.seq - 2].hash));
    EXPECT_EQ(record.prev_hash, read.events[record.seq - 2].hash);
  }
}

AE_TEST("progress/reports are written once a second, and the last one before the result") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.owned = true, .durability = durability});
    worker.runtime->start();
    worker.create(plan("at_most_once", kOneCall));
    ASSERT_EQ(worker.calls.size(), 1u);
    tools::Call& call = worker.calls[0].call;
    for (int i = 0; i < 100; ++i) {
      call.progress(Value::object({{"done", i}}));
      env.loop.advance(100ms);
    }
    const auto written = all_of(worker.read().events, EventType::progress).size();
    EXPECT_GE(written, 9u);
    EXPECT_LE(written, 11u) << "once a second, of a hundred in ten";
    call.progress(Value::object({{"done", "all"}}));
    worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
    const auto read = worker.read();
    EXPECT_EQ(read.state.status, engine::JobStatus::completed);
    const auto reports = all_of(read.events, EventType::progress);
    const auto& last = std::get<Progress>(reports.back()->body);
    EXPECT_EQ(last.detail, json("{'report':{'done':'all'}, 'try':1}"));
    EXPECT_EQ(last.node_id, "a");
    EXPECT_EQ(last.step_id, read.state.steps[0].id);
    EXPECT_LT(reports.back()->seq,
              all_of(read.events, EventType::tool_invocation_finished)[0]->seq);
    call.progress(Value("too late"));
    env.loop.advance(5s);
    EXPECT_EQ(worker.read().events.size(), read.events.size());
  }
}

AE_TEST("progress/reports of a long call are written less often, and the newest is kept") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("at_most_once", kOneCall));
  tools::Call& call = worker.calls[0].call;
  constexpr int kTimes = 180;
  for (int i = 0; i < kTimes; ++i) {
    call.progress(Value(i));
    env.loop.advance(5s);
  }
  const auto read = worker.read();
  const auto reports = all_of<Progress>(read.events);
  EXPECT_LE(reports.size(), kTimes * 3u / 4) << "at the end they are 14 s apart";
  EXPECT_GE(reports.back()->detail["report"].as_int(), kTimes - 4);
}

AE_TEST("progress/a report that cannot be written does not delay the result") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.runtime->start();
  worker.create(plan("at_most_once", kOneCall));
  int commits = 0;
  worker.script = [&](const store::Call& made) {
    return made.method == Method::commit && commits++ < 3 ? Fault::fail_before : Fault::none;
  };
  worker.calls[0].call.progress(Value("half"));
  env.loop.run_ready();
  EXPECT_EQ(commits, 1);
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  env.loop.advance(1s);
  EXPECT_EQ(worker.status(), "completed");
  EXPECT_EQ(worker.calls.size(), 1u);
}

AE_TEST("progress/a worker that lost the job writes no more reports") {
  TwoWorkersFixture two("at_most_once");
  const auto events = two.second.read().events.size();
  two.first.calls[0].call.progress(Value("half"));
  two.env.loop.run_ready();
  EXPECT_EQ(two.second.read().events.size(), events);
}

AE_TEST("create/a repeated request reads only the first commit of its job") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  std::vector<std::uint64_t> loads;
  worker.script = [&](const store::Call& call) {
    if (call.method == Method::load) loads.push_back(call.from_seq);
    return Fault::none;
  };
  const auto create = [&](std::string_view input) {
    NewJobRequest request;
    request.agent = "agent";
    request.idempotency_key = "k";
    request.plan = plan("idempotent", kTwoWaits);
    request.input = json(input);
    request.start_here = false;
    return env.loop.await<Result<CreateResult>>(
        [&](auto done) { worker.runtime->create(request, std::move(done)); });
  };
  const auto made = create("1");
  ASSERT_TRUE(made) << made.error().message;
  // A commit that this build cannot open, as a later version may write it.
  const auto first = env.loop.await<Result<store::LoadedJob>>(
      [&](auto done) { worker.memory->load(made->job, 1, std::move(done)); });
  ASSERT_TRUE(first);
  const std::uint64_t last = first->row.last_seq;
  store::Batch later{.job = made->job, .authority = store::Batch::Unleased{}, .expected_seq = last};
  later.sealed.emplace();
  later.sealed->first_seq = later.sealed->last_seq = last + 1;
  later.sealed->bytes = "of a later version";
  later.row.status = "waiting";
  const auto put = env.loop.await<Result<store::CommitResult>>(
      [&](auto done) { worker.memory->commit(later, std::move(done)); });
  ASSERT_TRUE(put) << put.error().message;
  loads.clear();
  const auto again = create("1");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_TRUE(again->existing);
  EXPECT_EQ(again->job, made->job);
  EXPECT_EQ(loads, std::vector<std::uint64_t>{store::kFirstCommit});
  EXPECT_EQ(create("2").error().code, Code::idempotency_conflict);
}

}  // namespace
}  // namespace ae::runtime::testing
