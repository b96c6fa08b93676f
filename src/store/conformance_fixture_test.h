// ConformanceFixture: the fixture of the conformance tests: a driver, a loop, and a method for each
// call.
//
// A call runs the loop until the store answers.
// Threads: the test's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/conformance_values_test.h"
#include "store/store.h"
#include "testing/test.h"
#include "testing/test_loop.h"

namespace ae::store::conformance {

// A driver under test. `restart` closes the store and opens it again on the same data.
class StoreDriver {
 public:
  virtual ~StoreDriver() = default;
  virtual Store& store() = 0;
  virtual void restart() = 0;
  // The same store with this label as fairness key.
  virtual Store* fair_by(const std::string& label) = 0;
};
using Factory = std::function<std::unique_ptr<StoreDriver>(testing::TestLoop&)>;

struct ConformanceFixture {
  testing::TestLoop loop;
  std::unique_ptr<StoreDriver> store_driver;

  explicit ConformanceFixture(const Factory& factory) : store_driver(factory(loop)) {}
  Store& store() { return store_driver->store(); }

  // ---- building batches

  Batch create(std::string id, NewJob job = {}, RowState row = {}) {
    if (job.agent.empty()) job.agent = "refund";
    Batch b{.job = JobId(id), .authority = Batch::Create{std::move(job)}};
    b.sealed = sealed(id, 1, 2);
    b.row = std::move(row);
    return b;
  }
  Batch create_claimed(std::string id, std::string attempt = "A1", NewJob job = {}) {
    job.claim = InitialClaimParams{
        .worker = "w1", .attempt = AttemptId(std::move(attempt)), .lease = kLease};
    return create(std::move(id), std::move(job), {.status = "running"});
  }
  Batch append(std::string id, Batch::Authority authority, std::uint64_t expected,
               std::string status = "running", std::string_view tag = "a") {
    Batch b{.job = JobId(id), .authority = std::move(authority), .expected_seq = expected};
    b.sealed = sealed(id, expected + 1, 1, tag);
    b.row.status = std::move(status);
    return b;
  }
  Batch rows_only(std::string id, Batch::Authority authority, std::uint64_t expected) {
    return {
        .job = JobId(std::move(id)), .authority = std::move(authority), .expected_seq = expected};
  }
  static Batch::Authority leased(std::string_view attempt = "A1", std::uint64_t epoch = 1) {
    return Batch::Leased{fence(attempt, epoch)};
  }
  static Batch::Authority unleased() { return Batch::Unleased{}; }
  static ClaimRequest claim_request(std::string attempt, std::size_t limit = 1) {
    ClaimRequest r{.worker = "w2", .limit = limit, .lease = kLease, .attempts = {}};
    for (std::size_t i = 0; i < limit; ++i) {
      r.attempts.emplace_back(limit == 1 ? attempt : attempt + std::to_string(i));
    }
    return r;
  }

  // ---- calls

  Result<CommitResult> commit(Batch b) {
    return loop.await<Result<CommitResult>>(
        [&](auto done) { store().commit(std::move(b), std::move(done)); });
  }
  Result<void> put(std::string_view job, std::string_view id, std::string_view request = "{}") {
    return loop.await<Result<void>>([&](auto done) {
      store().put_inbox(JobId(std::string(job)),
                        {.id = std::string(id), .request = std::string(request)}, std::move(done));
    });
  }
  Result<std::vector<Lease>> claim(ClaimRequest request) {
    return loop.await<Result<std::vector<Lease>>>(
        [&](auto done) { store().claim(std::move(request), std::move(done)); });
  }
  Result<std::optional<Lease>> claim_job(std::string_view job, ClaimRequest request) {
    return loop.await<Result<std::optional<Lease>>>([&](auto done) {
      store().claim_job(JobId(std::string(job)), std::move(request), std::move(done));
    });
  }
  Result<std::vector<std::optional<Instant>>> heartbeat(
      std::vector<std::pair<JobId, Fence>> held_jobs, Duration lease = kLease) {
    return loop.await<Result<std::vector<std::optional<Instant>>>>(
        [&](auto done) { store().heartbeat(std::move(held_jobs), lease, std::move(done)); });
  }
  Result<std::vector<JobId>> list_due(std::size_t limit = 100) {
    return loop.await<Result<std::vector<JobId>>>(
        [&](auto done) { store().list_due(limit, std::move(done)); });
  }
  Result<std::optional<Instant>> next_due() {
    return loop.await<Result<std::optional<Instant>>>(
        [&](auto done) { store().next_due(std::move(done)); });
  }
  Result<LoadedJob> load(std::string_view job, std::uint64_t from_seq = 1) {
    return loop.await<Result<LoadedJob>>(
        [&](auto done) { store().load(JobId(std::string(job)), from_seq, std::move(done)); });
  }
  Result<LogWindow> load_window(std::string_view job, WindowRequest window) {
    return loop.await<Result<LogWindow>>(
        [&](auto done) { store().load_window(JobId(std::string(job)), window, std::move(done)); });
  }
  Result<std::vector<JobRow>> query(Filter filter = {}) {
    return loop.await<Result<std::vector<JobRow>>>(
        [&](auto done) { store().query(std::move(filter), std::move(done)); });
  }

  JobStats count_jobs() {
    auto found =
        loop.await<Result<JobStats>>([&](auto done) { store().count_jobs(std::move(done)); });
    EXPECT_TRUE(found) << (found ? "" : found.error().message);
    return found ? *std::move(found) : JobStats{};
  }

  JobCounts count_matching(CountFilter filter = {}) {
    auto found = loop.await<Result<JobCounts>>(
        [&](auto done) { store().count_matching(std::move(filter), std::move(done)); });
    EXPECT_TRUE(found) << (found ? "" : found.error().message);
    return found ? *std::move(found) : JobCounts{};
  }

  Result<void> redact(Redaction redaction) {
    return loop.await<Result<void>>(
        [&](auto done) { store().redact(std::move(redaction), std::move(done)); });
  }
  void append_audit_entry(AuditEntry entry) {
    const auto done = loop.await<Result<void>>(
        [&](auto done) { store().append_audit_entry(std::move(entry), std::move(done)); });
    EXPECT_TRUE(done);
  }
  AuditLog audit(std::uint64_t after = 0) {
    auto log = loop.await<Result<AuditLog>>(
        [&](auto done) { store().read_audit_log(after, std::move(done)); });
    EXPECT_TRUE(log) << show(log ? Result<void>() : std::unexpected(log.error()));
    return log ? *std::move(log) : AuditLog{};
  }

  // ---- helpers that fail the test on an error

  void must_commit(Batch b) {
    const auto answer = commit(std::move(b));
    EXPECT_TRUE(answer) << (answer ? "" : answer.error().message);
  }
  Code expect_refused(Batch b) {
    const auto answer = commit(std::move(b));
    EXPECT_FALSE(answer) << show(answer);
    return answer ? Code{} : answer.error().code;
  }
  JobRow row(std::string_view job) {
    auto loaded = load(job);
    EXPECT_TRUE(loaded) << show(loaded);
    return loaded ? loaded->row : JobRow{};
  }
  std::string claimed_ids(ClaimRequest request) {
    const auto leases = claim(std::move(request));
    std::string text;
    if (!leases) return show(leases);
    for (const Lease& lease : *leases) text += (text.empty() ? "" : " ") + lease.job.text;
    return text;
  }
  std::string listed_ids(Filter filter) {
    const auto rows = query(std::move(filter));
    std::string text;
    if (!rows) return show(rows);
    for (const JobRow& r : *rows) text += (text.empty() ? "" : " ") + r.id.text;
    return text;
  }
  std::string due_now(std::size_t limit = 100) {
    const auto jobs = list_due(limit);
    std::string text;
    if (!jobs) return show(jobs);
    for (const JobId& job : *jobs) text += (text.empty() ? "" : " ") + job.text;
    return text;
  }
  Instant at(Duration from_start) { return testing::TestLoop::kStart + from_start; }
};

struct Case {
  const char* sentence;
  void (*body)(ConformanceFixture&);
};

}  // namespace ae::store::conformance
