// Tests of checkpoints, cached jobs and cached plans.
#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <optional>

#include "runtime/job_cache.h"
#include "runtime/worker_fixture_test.h"

namespace ae::runtime::testing {
namespace {

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
    const Value& covered = std::get<StateCheckpointed>(record.body).detail.json();
    EXPECT_EQ(covered["seq"], Value(record.seq - 1));
    EXPECT_EQ(covered.text("hash"), to_hex(read.events[record.seq - 2].hash));
    EXPECT_EQ(record.prev_hash, read.events[record.seq - 2].hash);
  }
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

AE_TEST("job_cache/a cached job is read from its last known event on, also by its lease holder") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TestEnvironment env;
    WorkerFixture worker(env, "w", {.owned = true, .durability = durability});
    std::vector<std::uint64_t> loads;
    worker.script = [&](const store::Call& call) {
      if (call.method == Method::load) loads.push_back(call.from_seq);
      return Fault::none;
    };
    worker.runtime->start();
    worker.create(plan("idempotent", kTwoWaits));
    ASSERT_EQ(worker.status(), "waiting");
    const std::uint64_t cached = worker.read().row.last_seq;
    loads.clear();
    ASSERT_TRUE(worker.signal("j", "s1"));
    env.loop.advance(1s);
    ASSERT_EQ(worker.status(), "waiting");
    ASSERT_GE(loads.size(), 2u) << "one load for the request, one for the lease holder";
    EXPECT_EQ(loads[0], cached + 1);
    EXPECT_GT(loads[1], cached);
    EXPECT_FALSE(worker.signal("no such key", "s2"));
    ASSERT_TRUE(worker.signal("k", "s3"));
    env.loop.advance(1s);
    EXPECT_EQ(worker.status(), "completed");
  }
}

AE_TEST("job_cache/events of other workers are applied to a cached job") {
  TestEnvironment env;
  WorkerFixture first(env, "first", {.seed = 1});
  WorkerFixture second(env, "second", {.seed = 1'000'001});
  first.runtime->start();
  first.create(plan("idempotent", kTwoWaits));
  ASSERT_EQ(first.status(), "waiting");
  second.runtime->start();
  ASSERT_TRUE(second.signal("j", "s1"));
  env.loop.advance(30s);
  const auto again = first.signal("j", "s2");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ((*again)["duplicate"], Value(true));
  ASSERT_TRUE(first.signal("k", "s3"));
  env.loop.advance(30s);
  EXPECT_EQ(first.status(), "completed");
}

AE_TEST("job_cache/a log that does not contain the cached head is read completely") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = false});
  worker.create(plan("idempotent", kTwoWaits));
  worker.runtime->start();
  env.loop.advance(1s);
  ASSERT_EQ(worker.status(), "waiting");
  CachedJob other{.state = worker.read().state, .head = sha256("another log")};
  engine::PlanCache plans;
  auto loaded_state = env.loop.await<Result<LoadedState>>([&](auto done) {
    load_state(*worker.memory, kJob, plans, std::move(other), std::move(done));
  });
  ASSERT_TRUE(loaded_state);
  ASSERT_TRUE(loaded_state->state);
  const auto whole = env.loop.await<Result<store::LoadedJob>>(
      [&](auto done) { worker.memory->load(kJob, 1, std::move(done)); });
  EXPECT_EQ(loaded_state->loaded.commits, whole->commits);
  EXPECT_EQ(loaded_state->state->status, engine::JobStatus::waiting);
}

AE_TEST("job_cache/the cache is bounded in bytes and evicts the least recently used job") {
  JobCache cache;
  const auto cached = [](std::size_t bytes) {
    CachedJob one;
    one.bytes = bytes;
    return one;
  };
  cache.insert(JobId("too large"), cached(JobCache::kJobBytesMax + 1));
  EXPECT_FALSE(cache.extract(JobId("too large")));
  const std::size_t fit = JobCache::kBytesMax / JobCache::kJobBytesMax;
  for (std::size_t i = 0; i <= fit; ++i) {
    cache.insert(JobId(fmt::format("j{}", i)), cached(JobCache::kJobBytesMax));
    if (i > 0) cache.insert(JobId("j0"), *cache.extract(JobId("j0")));
  }
  EXPECT_TRUE(cache.extract(JobId("j0")));
  EXPECT_FALSE(cache.extract(JobId("j1")));
  EXPECT_TRUE(cache.extract(JobId("j2")));
  EXPECT_FALSE(cache.extract(JobId("j2"))) << "it was extracted";
}

}  // namespace
}  // namespace ae::runtime::testing
