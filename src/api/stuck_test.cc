// Which jobs count as stalled, as a table: rows, available workers, and the reported reason.
#include "api/stuck.h"

#include <fmt/core.h>

#include <chrono>
#include <string>

#include "testing/test.h"

namespace ae::api {
namespace {

using std::chrono::minutes;

constexpr Instant kNow{1'000'000'000'000};
constexpr Duration kOlder = minutes(5);

store::JobRow row(std::string status, Duration unchanged_for) {
  store::JobRow row;
  row.id = JobId("j");
  row.agent = "refund";
  row.status = std::move(status);
  row.created_at = row.updated_at = kNow - unchanged_for;
  return row;
}

std::string stuck_text(const store::JobRow& row, const std::vector<WorkerOffer>& offers) {
  const auto why = find_stuck_reason(row, kNow, kOlder, offers);
  if (!why) return "-";
  std::string text = fmt::format("{} {}, for {}m, missing", why->reason, why->message,
                                 (kNow - why->since) / minutes(1));
  for (const std::string& one : why->missing) text += " " + one;
  return text;
}

AE_TEST("stuck/waiting, ended and queued jobs with a suitable worker are not stuck") {
  const std::vector<WorkerOffer> any{{{}, {}}};
  for (const char* status : {"waiting", "completed", "failed", "cancelled"}) {
    EXPECT_EQ(stuck_text(row(status, minutes(600)), any), "-") << status;
    EXPECT_EQ(stuck_text(row(status, minutes(600)), {}), "-") << status;
  }
  EXPECT_EQ(stuck_text(row("queued", minutes(600)), any), "-");
  EXPECT_EQ(stuck_text(row("queued", minutes(600)), {{{"other"}, {}}, {{"refund"}, {"gpu"}}}), "-");
}

AE_TEST("stuck/a job without a suitable worker reports what is missing") {
  store::JobRow job = row("queued", minutes(7));
  EXPECT_EQ(stuck_text(job, {}), "no_worker no worker is running, for 7m, missing");
  EXPECT_EQ(stuck_text(job, {{{"other"}, {}}}),
            "no_worker no worker runs the agent refund, for 7m, missing");
  job.capabilities = {"eu", "gpu"};
  EXPECT_EQ(stuck_text(job, {{{}, {"eu"}}, {{}, {}}, {{"other"}, {"eu", "gpu"}}}),
            "no_worker no worker has gpu, for 7m, missing gpu");
  EXPECT_EQ(stuck_text(job, {{{}, {"gpu", "eu"}}}), "-");
  job.capabilities = {"execution_version:refund=2"};
  EXPECT_EQ(stuck_text(job, {{{}, {"execution_version:refund=1"}}}),
            "needs_version no worker has the version refund=2, for 7m, missing "
            "execution_version:refund=2");
}

AE_TEST("stuck/a queued job is stuck only after the limit, counted from not_before") {
  EXPECT_EQ(stuck_text(row("queued", minutes(4)), {}), "-");
  store::JobRow job = row("queued", minutes(60));
  job.not_before = kNow - minutes(4);
  EXPECT_EQ(stuck_text(job, {}), "-");
  job.not_before = kNow + minutes(4);
  EXPECT_EQ(stuck_text(job, {}), "-");
  job.not_before = kNow - minutes(6);
  EXPECT_EQ(stuck_text(job, {}), "no_worker no worker is running, for 6m, missing");
}

AE_TEST("stuck/a job is stuck when its lease expired longer ago than the limit") {
  store::JobRow job = row("running", minutes(60));
  job.claim = store::Fence{AttemptId("A"), 1};
  job.claim_worker = "w1";
  job.lease_until = kNow + minutes(1);
  EXPECT_EQ(stuck_text(job, {}), "-") << "the lease is valid";
  job.lease_until = kNow - minutes(4);
  EXPECT_EQ(stuck_text(job, {}), "-") << "another worker may still take it over";
  job.lease_until = kNow - minutes(9);
  EXPECT_EQ(stuck_text(job, {{{}, {}}}), "lease_expired its worker w1 is gone, for 9m, missing");
  job.capabilities = {"gpu"};
  EXPECT_EQ(stuck_text(job, {{{}, {}}}),
            "lease_expired its worker w1 is gone, and no worker has gpu, for 9m, missing gpu");
}

AE_TEST("stuck/a lease that a new owner ended dates from the last update of the job") {
  store::JobRow job = row("running", minutes(9));
  job.claim = store::Fence{AttemptId("A"), 1};
  job.claim_worker = "w1";
  job.lease_until = Instant{0};
  EXPECT_EQ(stuck_text(job, {{{}, {}}}), "lease_expired its worker w1 is gone, for 9m, missing");
}

AE_TEST("stuck/a job of a store without an owner is stuck at once, with its last worker") {
  store::JobRow job = row("running", minutes(0));
  job.claim = store::Fence{AttemptId("A"), 1};
  job.claim_worker = "host:7";
  const StuckReason left = unattended_reason(job);
  EXPECT_EQ(left.message, "no process runs jobs of this store; host:7, its last worker, is gone");
  EXPECT_EQ(left.since, job.updated_at);
  EXPECT_EQ(unattended_json(job)["commands"].items()[0], Value("aetheris run FILE --job-id j"));
}

AE_TEST("stuck/a parked job is stuck at once, whatever the workers") {
  EXPECT_EQ(stuck_text(row("parked", minutes(0)), {{{}, {}}}), "parked , for 0m, missing");
}

AE_TEST("stuck/the offer of a worker is parsed; an invalid one is ignored") {
  const auto offer = worker_offer(R"({"agents": ["a", 1], "offers": ["gpu"], "more": 2})");
  ASSERT_TRUE(offer.has_value());
  EXPECT_EQ(offer->agents, std::vector<std::string>{"a"});
  EXPECT_EQ(offer->offers, std::vector<std::string>{"gpu"});
  for (const char* bad : {"", "[]", "{", R"({"agents": "a", "offers": []})", R"({"agents": []})"}) {
    EXPECT_FALSE(worker_offer(bad).has_value()) << bad;
  }
}

}  // namespace
}  // namespace ae::api
