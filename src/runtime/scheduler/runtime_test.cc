// Tests of the runtime: shutdown, store outages, slices, queues and creation.
#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "runtime/worker_fixture_test.h"

namespace ae::runtime::testing {
namespace {

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
  worker.create(plan("idempotent", fmt::format("[{}]", nodes)));
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
  const Value simple = plan("idempotent", fmt::format("[{}]", nodes))->task_graph;
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

AE_TEST("queue/a queue runs at most its limit of jobs, and the next one starts when one ends") {
  TestEnvironment env;
  WorkerFixture worker(env, "only", {.queues = {{"narrow", 2}}});
  worker.runtime->start();
  for (int i = 0; i < 5; ++i) {
    NewJobRequest request{.job = JobId(fmt::format("n{}", i)),
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
