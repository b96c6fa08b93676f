// Tests of what wakes a worker before its next poll: hints, heartbeats and timers.
#include <memory>
#include <utility>

#include "runtime/worker_fixture_test.h"

namespace ae::runtime::testing {
namespace {

AE_TEST("hint/a hint triggers a claim or an inbox read before the next poll") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = false});
  worker.runtime->start();
  env.loop.run_ready();
  WorkerFixture other(env, "other", {.owned = false});  // runs nothing
  NewJobRequest request;
  request.job = kJob;
  request.agent = "agent";
  request.plan = plan("idempotent", kWaitAndCall);
  request.start_here = false;
  ASSERT_TRUE(env.loop.await<Result<CreateResult>>(
      [&](auto done) { other.runtime->create(request, std::move(done)); }));
  env.loop.run_ready();
  EXPECT_FALSE(worker.runtime->is_leased(kJob)) << "there was no hint";
  worker.faulty->hint({});
  env.loop.run_ready();
  ASSERT_TRUE(worker.runtime->is_leased(kJob));
  const engine::ControlRequest cancel{.id = "c1", .body = engine::CancelRequest{}};
  const std::size_t before = worker.read().events.size();
  ASSERT_TRUE(other.submit(cancel)) << "in the inbox, as another worker holds the lease";
  EXPECT_EQ(worker.read().events.size(), before);
  worker.faulty->hint({.inbox_of = kJob});
  env.loop.run_ready();
  EXPECT_GT(worker.read().events.size(), before);
}

AE_TEST("hint/a hint for jobs that this worker cannot run triggers no claim") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = false});
  int may_claim = 0;
  worker.script = [&](const store::Call& call) {
    may_claim += call.method == Method::claim ? 1 : 0;
    return Fault::none;
  };
  worker.runtime->offer({"agent"}, {{"agent", "7"}});
  worker.runtime->start();
  env.loop.run_ready();
  const int before = may_claim;
  const auto create = [&](const std::string& agent, std::vector<std::string> needed) {
    NewJobRequest request;
    request.agent = agent;
    request.plan = plan("idempotent", kWaitAndCall);
    request.required_capabilities = std::move(needed);
    request.start_here = false;
    const auto made = env.loop.await<Result<CreateResult>>(
        [&](auto done) { worker.runtime->create(request, std::move(done)); });
    EXPECT_TRUE(made);
    env.loop.run_ready();
    return made ? made->job : JobId();
  };
  const JobId needy = create("agent", {"gpu"});
  create("another", {});
  const auto cancelled = env.loop.await<Result<Value>>([&](auto done) {
    worker.runtime->submit_request(needy, {.id = "p", .body = engine::PauseRequest{}},
                                   std::move(done));
  });
  EXPECT_TRUE(cancelled);
  worker.faulty->hint({.inbox_of = {}, .needs = store::Hint::Needs{"another", {}}});
  worker.faulty->hint({.inbox_of = {}, .needs = store::Hint::Needs{"agent", {"gpu"}}});
  env.loop.run_ready();
  EXPECT_EQ(may_claim, before);
  worker.faulty->hint({.inbox_of = {}, .needs = store::Hint::Needs{"agent", {}}});
  env.loop.run_ready();
  EXPECT_EQ(may_claim, before + 1);
  const JobId ours = create("agent", {});
  EXPECT_TRUE(worker.runtime->is_leased(ours));
}

// The pending claim read the store before the job existed, and returns no job.
AE_TEST("hint/a hint during a pending claim triggers another claim") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = false, .delay = 100ms});
  int may_claim = 0;
  worker.script = [&](const store::Call& call) {
    const bool first = call.method == Method::claim && ++may_claim == 1;
    return first ? Fault::delay_answer : Fault::none;
  };
  worker.runtime->start();
  WorkerFixture other(env, "other", {.owned = false});  // runs nothing
  NewJobRequest request;
  request.job = kJob;
  request.agent = "agent";
  request.plan = plan("idempotent", kWaitAndCall);
  request.start_here = false;
  ASSERT_TRUE(env.loop.await<Result<CreateResult>>(
      [&](auto done) { other.runtime->create(request, std::move(done)); }));
  worker.faulty->hint({});
  env.loop.run_ready();
  ASSERT_FALSE(worker.runtime->is_leased(kJob)) << "the first claim is not answered yet";
  env.loop.advance(150ms);
  EXPECT_TRUE(worker.runtime->is_leased(kJob)) << "before the next poll";
}

AE_TEST("hint/an inbox entry whose hint was lost is found at the next heartbeat") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = false});
  worker.runtime->start();
  worker.create(plan("idempotent", kWaitAndCall));
  WorkerFixture other(env, "other", {.owned = false});
  ASSERT_TRUE(other.submit({.id = "c1", .body = engine::CancelRequest{}}));
  const std::size_t before = worker.read().events.size();
  env.loop.advance(10s);
  EXPECT_GT(worker.read().events.size(), before);
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

}  // namespace
}  // namespace ae::runtime::testing
