// Redaction of a job and its forks: what is checked before the first write, and what the answer lists.
#include "runtime/redact.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "core/redacted.h"
#include "runtime/desk_test.h"
#include "runtime/prune.h"

namespace ae::runtime::testing {
namespace {

constexpr std::string_view kTwoCalls =
    "[{'id':'a', 'kind':'tool', 'tool':'do', 'args':{'to':'${ .input }'}},"
    " {'id':'b', 'kind':'tool', 'tool':'do', 'needs':['a'], 'args':{'to':'${ .input }'}}]";
const JobId kFork("job-2");

// One worker, and a job of two calls that waits for the answer to the first.
struct Erasing {
  explicit Erasing() : desk(ground, "w", {.owned = true}) {
    desk.runtime->start();
    NewJobRequest request;
    request.job = kJob;
    request.agent = "agent";
    request.plan = plan("idempotent", kTwoCalls);
    request.input = json("'ada@x.org'");
    const auto made = ground.loop.await<Result<Created>>(
        [&](auto done) { desk.runtime->create(request, std::move(done)); });
    AE_CHECK(made.has_value(), made ? "" : made.error().message);
    settle();
  }

  void settle() {
    for (int i = 0; i < 20; ++i) ground.loop.advance(100ms);
  }
  // Answers every call that waits, until no new one comes.
  void end_all() {
    for (; answered < desk.calls.size(); settle()) answer_one();
  }
  void answer_one() {
    desk.answer(answered++, {.kind = OutcomeKind::success, .result = json("'ada@x.org'")});
  }
  void fork(const JobId& origin, const JobId& job, std::uint64_t at = 2) {
    const auto made = ground.loop.await<Result<Forked>>([&](auto done) {
      ForkRequest request;
      request.origin = origin;
      request.at = at;
      request.job = job;
      request.repeat_all = true;
      desk.runtime->fork(std::move(request), std::move(done));
    });
    AE_CHECK(made.has_value(), made ? "" : made.error().message);
    AE_CHECK(made->repeated.empty());
  }
  Result<Redacted> redact(RedactRequest request) {
    request.by = request.reason = "test";
    return ground.loop.await<Result<Redacted>>(
        [&](auto done) { runtime::redact(*desk.faulty, request, std::move(done)); });
  }
  Runtime::Read read(const JobId& job) {
    auto read = ground.loop.await<Result<Runtime::Read>>(
        [&](auto done) { desk.runtime->read(job, std::move(done)); });
    AE_CHECK(read.has_value(), read ? "" : read.error().message);
    return *std::move(read);
  }
  std::size_t erased(const JobId& job) { return redacted_values(read(job).events).size(); }

  Ground ground;
  Desk desk;
  std::size_t answered = 0;
};

AE_TEST("redact/with its tree, no fork is written before the job itself is known to have ended") {
  Erasing e;
  e.fork(kJob, kFork);
  e.settle();
  ASSERT_EQ(e.desk.calls.size(), 2u) << "the first call of both jobs";
  e.desk.answer(1, {.kind = OutcomeKind::success, .result = json("1")});
  e.settle();
  e.desk.answer(2, {.kind = OutcomeKind::success, .result = json("2")});
  e.settle();
  ASSERT_EQ(e.read(kFork).row.status, "completed");
  ASSERT_EQ(e.read(kJob).row.status, "running");
  const auto refused = e.redact({.job = kJob, .all = true, .tree = true});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::not_settled);
  EXPECT_EQ(e.erased(kFork), 0u) << "the fork's values are still there";
  e.answer_one();
  e.settle();
  e.desk.answer(3, {.kind = OutcomeKind::success, .result = json("2")});
  e.settle();
  const auto done = e.redact({.job = kJob, .all = true, .tree = true});
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_GT(e.erased(kFork), 0u);
  EXPECT_GT(e.erased(kJob), 0u);
}

AE_TEST("redact/with its tree, the forks of a job that was deleted keep their values") {
  Erasing e;
  e.end_all();
  e.ground.loop.advance(2h);
  e.fork(kJob, kFork);
  e.settle();
  e.end_all();
  const auto pruned = e.ground.loop.await<Result<Pruned>>(
      [&](auto done) { runtime::prune(*e.desk.faulty, {.older_than = 1h}, {}, std::move(done)); });
  ASSERT_TRUE(pruned) << pruned.error().message;
  ASSERT_EQ(pruned->jobs, 1u);
  const auto refused = e.redact({.job = kJob, .all = true, .tree = true});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::not_found);
  EXPECT_EQ(e.erased(kFork), 0u);
}

}  // namespace
}  // namespace ae::runtime::testing
