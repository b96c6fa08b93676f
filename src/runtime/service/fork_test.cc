// Tests of forks, replacement plans, probes and compensations.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "runtime/lost_lease_fixture_test.h"
#include "runtime/worker_fixture_test.h"

namespace ae::runtime::testing {
namespace {

AE_TEST("plan/a job without a plan in its log fails with plan_missing") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  const auto of = plan("idempotent", kOneCall);
  std::vector<EventBody> events = engine::job_events(
      {.agent = "agent", .input = json("1"), .execution_version = "v1", .plan = of.get()});
  events.pop_back();
  ASSERT_TRUE(std::holds_alternative<JobCreated>(events.back()));
  auto sealed = seal({.job = kJob,
                      .first_seq = 1,
                      .prev_hash = Hash{},
                      .first_id = uuid_v7(1, 2, 3),
                      .created_at = env.loop.now(),
                      .attempt_id = std::nullopt,
                      .salt_seed_a = 4,
                      .salt_seed_b = 5},
                     events);
  ASSERT_TRUE(sealed);
  store::Batch batch;
  batch.job = kJob;
  batch.authority = store::Batch::Create{store::NewJob{.agent = "agent"}};
  batch.sealed = std::move(*sealed);
  auto put = env.loop.await<Result<store::CommitResult>>(
      [&](auto done) { worker.memory->commit(batch, std::move(done)); });
  ASSERT_TRUE(put);
  worker.runtime->start();
  env.loop.advance(10s);
  const auto read = worker.read();
  EXPECT_EQ(read.state.status, engine::JobStatus::failed);
  ASSERT_TRUE(read.state.error);
  EXPECT_EQ(read.state.error->code, "plan_missing");
  EXPECT_EQ(read.events.size(), 2u);
  EXPECT_EQ(read.row.status, "failed");
  EXPECT_TRUE(worker.calls.empty());
}

AE_TEST(
    "probe/a call is probed only after its deadline and grace period, even in its own process") {
  TestEnvironment env;
  WorkerFixture worker(env, "only", {.owned = true});
  worker.runtime->start();
  worker.create(
      plan_with_probe_and_undo("[{'id':'a', 'kind':'tool', 'tool':'do'},"
                               "{'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}}]"));
  ASSERT_EQ(worker.calls.size(), 1u);
  worker.answer(0, {.kind = OutcomeKind::timeout, .error_code = "timeout"});
  EXPECT_EQ(worker.status(), "queued");
  ASSERT_TRUE(worker.signal("k", "1"));  // claimed at once, by a new attempt of the same process
  env.loop.advance(45s);
  EXPECT_EQ(worker.calls.size(), 1u) << "deadline 20 s, grace 30 s";
  env.loop.advance(10s);
  ASSERT_EQ(worker.calls.size(), 2u);
  EXPECT_EQ(worker.calls[1].call.tool, "ask");
  EXPECT_EQ(worker.calls[1].call.args["key"], Value(worker.calls[0].call.external_key.text));
  EXPECT_EQ(worker.calls[1].call.timeout, 10s);
  worker.answer(1, {.kind = OutcomeKind::success, .result = json("'done'")});
  EXPECT_EQ(worker.status(), "completed");
}

AE_TEST("undo/a waiting job that is cancelled is claimed and compensated") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture worker(env, "only", {.owned = true, .durability = durability});
    worker.runtime->start();
    worker.create(plan_with_probe_and_undo(
        "[{'id':'a', 'kind':'tool', 'tool':'do'},"
        "{'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}, 'needs':['a']}]"));
    worker.answer(0, {.kind = OutcomeKind::success, .result = json("5")});
    EXPECT_EQ(worker.status(), "waiting");
    ASSERT_TRUE(worker.submit({.body = engine::CancelRequest{}}));
    ASSERT_EQ(worker.calls.size(), 2u);
    EXPECT_EQ(worker.calls[1].call.tool, "undo");
    EXPECT_EQ(worker.calls[1].call.args, json("{'what':5}"));
    worker.answer(1, {.kind = OutcomeKind::success});
    EXPECT_EQ(worker.status(), "cancelled");
    EXPECT_EQ(worker.read().state.undone.size(), 1u);
  }
}

AE_TEST("undo/a cancel without compensation stops a compensation in progress") {
  TestEnvironment env;
  WorkerFixture worker(env, "only", {.owned = true});
  worker.runtime->start();
  worker.create(plan_with_probe_and_undo(
      "[{'id':'a', 'kind':'tool', 'tool':'do'},"
      "{'id':'b', 'kind':'tool', 'tool':'do', 'needs':['a']},"
      "{'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}, 'needs':['b']}]"));
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  worker.answer(1, {.kind = OutcomeKind::success, .result = json("2")});
  ASSERT_TRUE(worker.submit({.body = engine::CancelRequest{}}));
  ASSERT_EQ(worker.calls.size(), 3u);
  ASSERT_TRUE(worker.submit({.body = engine::CancelRequest{.compensate = false}}));
  worker.answer(2, {.kind = OutcomeKind::success});
  EXPECT_EQ(worker.status(), "cancelled");
  EXPECT_EQ(worker.calls.size(), 3u);
  const auto state = worker.read().state;
  EXPECT_EQ(state.undone.size(), 1u);
  EXPECT_EQ(state.undoable.size(), 1u);
}

AE_TEST("undo/a job that fails on an expired wait is compensated") {
  TestEnvironment env;
  WorkerFixture worker(env, "only", {.owned = true});
  worker.runtime->start();
  worker.create(
      plan_with_probe_and_undo("[{'id':'a', 'kind':'tool', 'tool':'do'},"
                               "{'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k', "
                               "'expires':'1m'}, 'needs':['a']}]"));
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  env.loop.advance(61s);
  ASSERT_EQ(worker.calls.size(), 2u) << "the wait has expired, the node failed";
  worker.answer(1, {.kind = OutcomeKind::success});
  EXPECT_EQ(worker.status(), "failed");
  EXPECT_EQ(worker.read().state.undone.size(), 1u);
}

AE_TEST("undo/a lease lost during compensation leaves the rest to the next lease holder") {
  TestEnvironment env;
  WorkerFixture first(env, "first", {.seed = 1}), second(env, "second", {.seed = 1'000'001});
  first.runtime->start();
  first.create(
      plan_with_probe_and_undo("[{'id':'a', 'kind':'tool', 'tool':'do'},"
                               "{'id':'b', 'kind':'tool', 'tool':'do', 'needs':['a']}]"));
  first.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  first.answer(1, {.kind = OutcomeKind::failure, .definite = true, .error_code = "no"});
  ASSERT_EQ(first.calls.size(), 3u);
  EXPECT_EQ(first.calls[2].call.tool, "undo");
  first.script = without_heartbeat;
  env.loop.advance(20s);
  second.runtime->start();
  env.loop.advance(120s);
  ASSERT_EQ(second.calls.size(), 1u);
  EXPECT_EQ(second.calls[0].call.external_key, first.calls[2].call.external_key);
  first.answer(2, {.kind = OutcomeKind::success});
  second.answer(0, {.kind = OutcomeKind::success});
  EXPECT_EQ(second.status(), "failed");
  EXPECT_EQ(second.read().state.undone.size(), 1u);
}

constexpr std::string_view kTwoCalls =
    "[{'id':'a', 'kind':'tool', 'tool':'do', 'args':{'n':1}},"
    " {'id':'b', 'kind':'tool', 'tool':'do', 'args':{'n':'${ .steps.a }'}, 'needs':['a']}]";

Result<ForkResult> fork(TestEnvironment& env, WorkerFixture& worker, ForkRequest request) {
  request.origin = kJob;
  std::optional<Result<ForkResult>> forked;
  worker.runtime->fork(std::move(request),
                       [&](Result<ForkResult> made) { forked = std::move(made); });
  env.loop.advance(500ms);  // a commit with an unknown outcome is retried
  AE_CHECK(forked.has_value(), "no result");
  return *std::move(forked);
}

Runtime::JobSnapshot read_of(TestEnvironment& env, WorkerFixture& worker, const char* job) {
  auto read = env.loop.await<Result<Runtime::JobSnapshot>>(
      [&](auto done) { worker.runtime->read(JobId(job), std::move(done)); });
  AE_CHECK(read.has_value(), read ? "" : read.error().message);
  return *std::move(read);
}

AE_TEST("fork/a running job is forked without being changed, and both complete") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {});
  worker.runtime->start();
  worker.create(plan("at_most_once", kTwoCalls));
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  ASSERT_EQ(worker.calls.size(), 2u);
  const auto before = worker.read();
  ForkRequest request{.at = before.row.last_seq, .job = JobId("job-2")};
  const auto refused = fork(env, worker, request);
  ASSERT_TRUE(refused);
  ASSERT_EQ(refused->repeated.size(), 1u);
  EXPECT_EQ(refused->repeated[0]["state"], Value("in_doubt"));
  request.repeat = {std::string(refused->repeated[0].text("idempotency_key"))};
  const auto made = fork(env, worker, request);
  ASSERT_TRUE(made);
  EXPECT_TRUE(made->repeated.empty());
  EXPECT_EQ(worker.read().row.last_seq, before.row.last_seq);
  EXPECT_EQ(worker.read().row.claim, before.row.claim);
  env.loop.advance(2s);
  ASSERT_EQ(worker.calls.size(), 3u) << "a is not called again";
  EXPECT_EQ(worker.calls[2].call.job, JobId("job-2"));
  EXPECT_EQ(worker.calls[2].call.args, worker.calls[1].call.args);
  EXPECT_NE(worker.calls[2].call.external_key, worker.calls[1].call.external_key);
  worker.answer(1, {.kind = OutcomeKind::success, .result = json("8")});
  worker.answer(2, {.kind = OutcomeKind::success, .result = json("9")});
  env.loop.advance(2s);
  EXPECT_EQ(worker.read().state.result, json("{'b':8}"));
  EXPECT_EQ(read_of(env, worker, "job-2").state.result, json("{'b':9}"));
}

AE_TEST("fork/a fork with a lost commit result creates one job, and its id cannot be reused") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {});
  worker.create(plan("idempotent", kOneCall));
  worker.answer(0, {.kind = OutcomeKind::failure, .definite = true, .error_code = "http_400"});
  ASSERT_EQ(worker.status(), "failed");
  bool once = true;
  worker.script = [&](const store::Call& call) {
    return call.method == Method::commit && std::exchange(once, false) ? Fault::fail_after
                                                                       : Fault::none;
  };
  const auto made = fork(env, worker, {.job = JobId("job-2")});  // retry
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(read_of(env, worker, "job-2").state.forked_from.value().job_id, "job-1");
  const auto again = fork(env, worker, {.job = JobId("job-2")});
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, Code::already_exists);
  ForkRequest keyed{.idempotency_key = "k"};
  const auto first = fork(env, worker, keyed);
  const auto second = fork(env, worker, keyed);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->created.job, second->created.job);
  EXPECT_TRUE(second->created.existing);
  keyed.input = json("{'other':1}");
  EXPECT_EQ(fork(env, worker, keyed).error().code, Code::idempotency_conflict);
}

engine::ControlRequest plan_request(std::string_view effect, std::string_view nodes) {
  return {.body = engine::PlanRequest{.task_graph = plan(effect, nodes)->task_graph}};
}

AE_TEST("replan/a waiting job gets a new plan at once and is claimed under it") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.durability = durability});
    worker.runtime->start();
    worker.create(
        plan("at_most_once", "[{'id':'w','kind':'wait','wait':{'type':'signal','key':'k'}}]"));
    ASSERT_EQ(worker.status(), "waiting");
    const auto result = worker.submit(plan_request("at_most_once", kOneCall));
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_EQ((*result)["plan"], Value(1));
    env.loop.advance(2s);
    ASSERT_EQ(worker.calls.size(), 1u);
    EXPECT_EQ(worker.submit(plan_request("idempotent", kTwoCalls)).error().code,
              Code::call_pending);
    worker.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
    env.loop.advance(2s);
    EXPECT_EQ(worker.status(), "completed");
    EXPECT_EQ(worker.read().state.result, json("{'a':7}"));
  }
}

AE_TEST("replan/the lease holder applies a new plan and continues under it") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.durability = durability});
    worker.runtime->start();
    worker.create(plan("at_most_once", kTwoCalls));
    worker.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
    // Not sent, so a retry follows soon: the job stays leased, and nothing is in flight.
    worker.answer(1, {.kind = OutcomeKind::failure,
                      .definite = true,
                      .retryable = true,
                      .error_code = "not_sent"});
    ASSERT_TRUE(worker.runtime->is_leased(kJob));
    const auto result = worker.submit_and_wait(
        plan_request("at_most_once",
                     "[{'id':'a', 'kind':'tool', 'tool':'do', 'args':{'n':1}},"
                     " {'id':'c', 'kind':'tool', 'tool':'do', "
                     "'args':{'other':'${ .steps.a }'}, 'needs':['a']}]"));
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_EQ((*result)["accepted"], Value()) << canonical(*result);
    EXPECT_EQ(result->text("plan_hash"), to_hex(worker.read().state.plan->hash))
        << canonical(*result);
    env.loop.advance(2s);
    ASSERT_EQ(worker.calls.size(), 3u) << "a is not called again";
    EXPECT_EQ(worker.calls[2].call.args, json("{'other':7}"));
    worker.answer(2, {.kind = OutcomeKind::success, .result = json("9")});
    env.loop.advance(2s);
    EXPECT_EQ(worker.status(), "completed");
    const auto read = worker.read();
    EXPECT_EQ(read.state.plan_number, 1u);
    EXPECT_EQ(read.state.result, json("{'c':9}"));
    EXPECT_EQ(read.state.lost_claims, 0u);
  }
}

AE_TEST("replan/a plan is refused if a call began before the lease holder read it") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.durability = durability, .delay = 2s});
    worker.runtime->start();
    worker.create(plan("at_most_once", kOneCall));
    answer_not_sent(worker, 0);
    // The commit that declares the next try is in flight: a reader of the log does not see it.
    bool slow = true;
    worker.script = [&](const store::Call& call) {
      const bool now = call.method == Method::commit && std::exchange(slow, false);
      return now ? Fault::delay : Fault::none;
    };
    env.loop.advance(300ms);
    ASSERT_FALSE(slow);
    ASSERT_EQ(worker.calls.size(), 1u);
    const auto result = worker.submit_and_wait(plan_request("idempotent", kTwoCalls));
    ASSERT_FALSE(result) << canonical(*result);
    EXPECT_EQ(result.error().code, Code::call_pending);
    ASSERT_EQ(worker.calls.size(), 2u);
    worker.answer(1, {.kind = OutcomeKind::success, .result = json("7")});
    env.loop.advance(2s);
    EXPECT_EQ(worker.status(), "completed");
    EXPECT_EQ(worker.read().state.plan_number, 0u);
  }
}

AE_TEST("replan/a plan that the lease holder cannot commit returns unknown_outcome") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {});
  worker.runtime->start();
  worker.create(plan("at_most_once", kOneCall));
  answer_not_sent(worker, 0);
  worker.script = [](const store::Call& call) {
    return call.method == Method::commit ? Fault::fail_before : Fault::none;
  };
  env.loop.advance(300ms);
  const auto result = worker.submit_and_wait(plan_request("idempotent", kTwoCalls));
  ASSERT_FALSE(result) << canonical(*result);
  EXPECT_EQ(result.error().code, Code::unknown_outcome);
}

AE_TEST("replan/a signal accepted while a plan is pending is applied") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.durability = durability});
    worker.runtime->start();
    worker.create(plan("at_most_once", kWaitAndCall));
    answer_not_sent(worker, 0);
    std::vector<Result<Value>> results;
    const auto keep = [&](Result<Value> answer) { results.push_back(std::move(answer)); };
    worker.runtime->submit_request(kJob, plan_request("at_most_once", kOneCall), keep);
    worker.runtime->submit_request(
        kJob,
        {.id = "s1", .body = engine::SignalRequest{.correlation_key = "k", .payload = json("1")}},
        keep);
    env.loop.advance(2s);
    ASSERT_EQ(results.size(), 2u);
    for (const auto& answer : results) {
      ASSERT_TRUE(answer) << answer.error().message;
      EXPECT_EQ(answer->find("accepted"), nullptr) << canonical(*answer);
    }
    const auto read = worker.read();
    EXPECT_EQ(read.state.plan_number, 1u);
    EXPECT_EQ(read.state.closed_waits.at("k").outcome, "signalled");
  }
}

constexpr std::string_view kTwoCallsFixed =
    "[{'id':'a', 'kind':'tool', 'tool':'do', 'args':{'n':1}},"
    " {'id':'b', 'kind':'tool', 'tool':'do', 'args':{'n':'${ .steps.a + 1 }'}, 'needs':['a']}]";

AE_TEST("fork/a retry with a changed plan keeps committed steps and runs the changed ones") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.durability = durability});
    worker.runtime->start();
    worker.create(plan("at_most_once", kTwoCalls));
    worker.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
    worker.answer(1, {.kind = OutcomeKind::failure, .definite = true, .error_code = "http_400"});
    ASSERT_EQ(worker.status(), "failed");
    ForkRequest request{.job = JobId("job-2"), .by = "ann"};
    request.task_graph = plan("at_most_once", kTwoCallsFixed)->task_graph;
    const auto made = fork(env, worker, request);
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_EQ(made->changes, json("[{'change':'changed','fields':['args'],'path':'nodes.b'}]"));
    env.loop.advance(2s);
    ASSERT_EQ(worker.calls.size(), 3u) << "a is not called again";
    EXPECT_EQ(worker.calls[2].call.args, json("{'n':8}"));
    worker.answer(2, {.kind = OutcomeKind::success, .result = json("9")});
    env.loop.advance(2s);
    const auto read = read_of(env, worker, "job-2");
    EXPECT_EQ(read.state.result, json("{'b':9}"));
    EXPECT_EQ(read.state.plan_number, 1u);
  }
}

AE_TEST("fork/a changed plan that loses a committed effect is refused without --drop") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {});
  worker.runtime->start();
  worker.create(plan("at_most_once", kTwoCalls));
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  worker.answer(1, {.kind = OutcomeKind::failure, .definite = true, .error_code = "http_400"});
  ForkRequest request{.job = JobId("job-2"), .by = "ann"};
  request.task_graph =
      plan("at_most_once", "[{'id':'a', 'kind':'tool', 'tool':'do', 'args':{'n':2}}]")->task_graph;
  const auto refused = fork(env, worker, request);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::plan_invalid);
  request.drop = {"a"};
  ASSERT_TRUE(fork(env, worker, request));
  env.loop.advance(2s);
  ASSERT_EQ(worker.calls.size(), 3u);
  EXPECT_EQ(worker.calls[2].call.args, json("{'n':2}"));
}

AE_TEST("offers/a plan needs its tool versions, and on an owned store every tool") {
  const auto mine = plan("at_most_once", kOneCall);
  Value graph = mine->task_graph;
  const Value tool = graph["tools"]["do"];
  const auto with = [&](std::string_view name, const Value& policy) {
    const Value nodes = json(fmt::format("[{{'id':'a','kind':'tool','tool':'{}'}}]", name));
    auto made = engine::Plan::compile(
        graph.with("nodes", nodes).with("tools", Value::object({{std::string(name), policy}})));
    AE_CHECK(made.has_value(), made ? "" : made.error().message);
    return *made;
  };
  for (const bool owned : {true, false}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.owned = owned});
    EXPECT_TRUE(worker.runtime->check_can_run("agent", *mine));
    const auto newer = with("do", tool.with("version", "fedcba9876543210"));
    ASSERT_FALSE(worker.runtime->check_can_run("agent", *newer));
    EXPECT_EQ(worker.runtime->check_can_run("agent", *newer).error().code, Code::needs_version);
    EXPECT_EQ(worker.runtime->check_can_run("agent", *with("elsewhere", tool)).has_value(), !owned);
    worker.runtime->offer({"another"}, {});
    EXPECT_EQ(worker.runtime->check_can_run("agent", *mine).has_value(), !owned);
  }
}

AE_TEST("replan/a plan with a tool that this process lacks leaves the job to another one") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {});
  worker.runtime->start();
  worker.create(
      plan("at_most_once", "[{'id':'w','kind':'wait','wait':{'type':'signal','key':'k'}}]"));
  Value graph = plan("at_most_once", kOneCall)->task_graph;
  graph = graph.with("nodes", json("[{'id':'a','kind':'tool','tool':'elsewhere'}]"))
              .with("tools", Value::object({{"elsewhere", graph["tools"]["do"]}}));
  ASSERT_TRUE(worker.submit({.body = engine::PlanRequest{.task_graph = graph}}));
  env.loop.advance(5s);
  EXPECT_EQ(worker.status(), "queued");
  EXPECT_TRUE(worker.warned("cannot run the job"));
}

AE_TEST("replan/a job continues from a checkpoint made under the new plan") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.checkpoint_every = 1});
  worker.runtime->start();
  worker.create(
      plan("at_most_once", "[{'id':'w','kind':'wait','wait':{'type':'signal','key':'k'}}]"));
  ASSERT_TRUE(
      worker.submit(plan_request("at_most_once",
                                 "[{'id':'w','kind':'wait','wait':{'type':'signal','key':'k'}},"
                                 " {'id':'a','kind':'tool','tool':'do','needs':['w']}]")));
  env.loop.advance(2s);
  ASSERT_EQ(worker.status(), "waiting");
  ASSERT_TRUE(worker.signal("k", "s"));
  env.loop.advance(2s);
  ASSERT_EQ(worker.calls.size(), 1u);
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("7")});
  EXPECT_EQ(worker.status(), "completed");
}

}  // namespace
}  // namespace ae::runtime::testing
