// Tests of redact with forks: the checks before the first write, and the contents of the result.
#include "runtime/service/redact.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "runtime/row.h"
#include "runtime/service/prune.h"
#include "runtime/worker_fixture_test.h"

namespace ae::runtime::testing {
namespace {

constexpr std::string_view kTwoSecretCalls =
    "[{'id':'a', 'kind':'tool', 'tool':'do', 'args':{'to':'${ .input }'}},"
    " {'id':'b', 'kind':'tool', 'tool':'do', 'needs':['a'], 'args':{'to':'${ .input }'}}]";
const JobId kFork("job-2");

// One worker, and a job of two calls, of which the first is not answered yet.
struct RedactFixture {
  explicit RedactFixture() : worker(env, "w", {.owned = true}) {
    worker.runtime->start();
    NewJobRequest request;
    request.job = kJob;
    request.agent = "agent";
    request.plan = plan("idempotent", kTwoSecretCalls);
    request.input = json("'ada@x.org'");
    const auto made = env.loop.await<Result<CreateResult>>(
        [&](auto done) { worker.runtime->create(request, std::move(done)); });
    AE_CHECK(made.has_value(), made ? "" : made.error().message);
    settle();
  }

  void settle() {
    for (int i = 0; i < 20; ++i) env.loop.advance(100ms);
  }
  // Answers all pending calls until no new one starts.
  void end_all() {
    for (; answered < worker.calls.size(); settle()) answer_one();
  }
  void answer_one() {
    worker.answer(answered++, {.kind = OutcomeKind::success, .result = json("'ada@x.org'")});
  }
  void fork(const JobId& origin, const JobId& job, std::uint64_t at = 2) {
    const auto made = env.loop.await<Result<ForkResult>>([&](auto done) {
      ForkRequest request;
      request.origin = origin;
      request.at = at;
      request.job = job;
      request.repeat_all = true;
      worker.runtime->fork(std::move(request), std::move(done));
    });
    AE_CHECK(made.has_value(), made ? "" : made.error().message);
    AE_CHECK(made->repeated.empty());
  }
  Result<RedactResult> redact(RedactRequest request) {
    request.by = request.reason = "test";
    return env.loop.await<Result<RedactResult>>(
        [&](auto done) { runtime::redact(*worker.faulty, request, std::move(done)); });
  }
  Runtime::JobSnapshot read(const JobId& job) {
    auto read = env.loop.await<Result<Runtime::JobSnapshot>>(
        [&](auto done) { worker.runtime->read(job, std::move(done)); });
    AE_CHECK(read.has_value(), read ? "" : read.error().message);
    return *std::move(read);
  }
  JobCreated job_created(const JobId& job) { return job_created_of(read(job).events.front()); }
  std::size_t erased(const JobId& job) { return redacted_values(read(job).events).size(); }

  TestEnvironment env;
  WorkerFixture worker;
  std::size_t answered = 0;
};

AE_TEST("redact/with --tree no fork is redacted before the job itself has ended") {
  RedactFixture e;
  e.fork(kJob, kFork);
  e.settle();
  ASSERT_EQ(e.worker.calls.size(), 2u) << "the first call of both jobs";
  e.worker.answer(1, {.kind = OutcomeKind::success, .result = json("1")});
  e.settle();
  e.worker.answer(2, {.kind = OutcomeKind::success, .result = json("2")});
  e.settle();
  ASSERT_EQ(e.read(kFork).row.status, "completed");
  ASSERT_EQ(e.read(kJob).row.status, "running");
  const auto refused = e.redact({.job = kJob, .all = true, .tree = true});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::not_settled);
  EXPECT_EQ(e.erased(kFork), 0u) << "the fork's values are still there";
  e.answer_one();
  e.settle();
  e.worker.answer(3, {.kind = OutcomeKind::success, .result = json("2")});
  e.settle();
  const auto done = e.redact({.job = kJob, .all = true, .tree = true});
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_GT(e.erased(kFork), 0u);
  EXPECT_GT(e.erased(kJob), 0u);
}

AE_TEST("redact/with --tree the forks of a pruned job keep their values") {
  RedactFixture e;
  e.end_all();
  e.env.loop.advance(2h);
  e.fork(kJob, kFork);
  e.settle();
  e.end_all();
  const auto pruned = e.env.loop.await<Result<PruneResult>>([&](auto done) {
    runtime::prune(*e.worker.faulty, {.older_than = 1h}, {}, std::move(done));
  });
  ASSERT_TRUE(pruned) << pruned.error().message;
  ASSERT_EQ(pruned->jobs, 1u);
  const auto refused = e.redact({.job = kJob, .all = true, .tree = true});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::not_found);
  EXPECT_EQ(e.erased(kFork), 0u);
}

bool lists(const RedactResult& redacted, std::string_view what, const JobId& job) {
  return std::ranges::any_of(redacted.retained, [&](const RetainedValue& one) {
    return one.what == what && one.where == "job " + job.text;
  });
}

const JobId kThird("job-3");

AE_TEST("redact/the result lists every job that keeps the blind, also the origin and other forks") {
  RedactFixture e;
  e.end_all();
  e.fork(kJob, kFork);
  e.settle();
  e.fork(kJob, kThird);
  e.settle();
  e.end_all();
  // Both times: the second run writes nothing and can no longer compare the blinds.
  for (int i = 0; i < 2; ++i) {
    const auto done = e.redact({.job = kFork, .all = true});
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(done->erased.empty(), i == 1);
    EXPECT_TRUE(lists(*done, "blind", kJob));
    EXPECT_TRUE(lists(*done, "blind", kThird));
    EXPECT_FALSE(lists(*done, "copies of values", kThird)) << "it is no fork of this job";
  }
  const auto all = e.redact({.job = kJob, .all = true, .tree = true});
  ASSERT_TRUE(all) << all.error().message;
  EXPECT_EQ(all->forks.size(), 1u);
  for (const JobId& job : {kJob, kFork, kThird}) EXPECT_FALSE(lists(*all, "blind", job));
  const auto again = e.redact({.job = kFork, .all = true});
  ASSERT_TRUE(again);
  for (const JobId& job : {kJob, kThird}) EXPECT_FALSE(lists(*again, "blind", job));
}

AE_TEST("redact/a single value with --keep-forks lists the forks' copies and their blind") {
  RedactFixture e;
  e.end_all();
  e.fork(kJob, kFork);
  e.settle();
  e.end_all();
  const auto done =
      e.redact({.job = kJob, .values = {{.seq = 1, .field = "input"}}, .keep_forks = true});
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_TRUE(lists(*done, "copies of values", kFork));
  EXPECT_TRUE(lists(*done, "blind", kFork));
}

AE_TEST("redact/a fork with only its blind left is redacted with the tree") {
  RedactFixture e;
  e.end_all();
  e.fork(kJob, kFork);
  e.settle();
  e.end_all();
  const auto fork = e.redact({.job = kFork, .all = true, .keep_blind = true});
  ASSERT_TRUE(fork) << fork.error().message;
  ASSERT_FALSE(e.job_created(kFork).blind.erased);
  const auto refused = e.redact({.job = kJob, .all = true});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::input_invalid);
  EXPECT_NE(refused.error().message.find(kFork.text), std::string::npos);
  const auto tree = e.redact({.job = kJob, .all = true, .tree = true});
  ASSERT_TRUE(tree) << tree.error().message;
  ASSERT_EQ(tree->forks.size(), 1u);
  EXPECT_EQ(tree->forks[0].erased, (std::vector<ValueName>{{.seq = 1, .field = "blind"}}));
  EXPECT_TRUE(e.job_created(kFork).blind.erased);
}

AE_TEST("redact/with --keep-blind a fork with only its blind left is not listed for values") {
  RedactFixture e;
  e.end_all();
  e.fork(kJob, kFork);
  e.settle();
  e.end_all();
  ASSERT_TRUE(e.redact({.job = kFork, .all = true, .keep_blind = true}));
  const auto done = e.redact({.job = kJob, .all = true, .keep_blind = true});
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_TRUE(lists(*done, "blind", kFork)) << "the fork has the same one";
  EXPECT_FALSE(lists(*done, "copies of values", kFork));
}

AE_TEST("redact/a fork made between the read of the audit log and the write is listed") {
  RedactFixture e;
  e.end_all();
  e.worker.script = [](const store::Call& call) {
    return call.method == Method::redact ? Fault::delay : Fault::none;
  };
  std::optional<Result<RedactResult>> answer;
  RedactRequest request{.job = kJob, .all = true};
  request.by = request.reason = "test";
  runtime::redact(*e.worker.faulty, request,
                  [&](Result<RedactResult> redacted) { answer = std::move(redacted); });
  e.env.loop.run_ready();
  ASSERT_FALSE(answer) << "its write is in flight";
  e.fork(kJob, kFork);
  e.settle();
  ASSERT_TRUE(answer && answer->has_value()) << (answer ? (*answer).error().message : "");
  EXPECT_FALSE((*answer)->erased.empty());
  EXPECT_FALSE(e.job_created(kFork).input.erased) << "it was made before the write";
  EXPECT_TRUE(lists(**answer, "copies of values", kFork));
}

AE_TEST("redact/an unreadable audit log after the write does not fail the redaction") {
  RedactFixture e;
  e.end_all();
  std::size_t reads = 0;
  e.worker.script = [&](const store::Call& call) {
    return call.method == Method::read_audit_log && ++reads == 2 ? Fault::fail_before : Fault::none;
  };
  const auto done = e.redact({.job = kJob, .all = true});
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(reads, 2u);
  EXPECT_TRUE(std::ranges::any_of(done->retained, [](const RetainedValue& one) {
    return one.where == "forks made during the redaction";
  }));
}

}  // namespace
}  // namespace ae::runtime::testing
