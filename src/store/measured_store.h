// MeasuredStore: counts the operations and failures of the store that it wraps, and measures their
// latency.
//
// Threads: the loop's.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>

#include "store/store.h"

namespace ae::store {

struct OperationLatency {
  static constexpr std::array<double, 12> kBounds{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                                                  0.05,   0.1,   0.25,   0.5,   1,    5};
  std::array<std::uint64_t, kBounds.size() + 1> buckets{};
  double sum = 0;  // seconds
  // Answers with unavailable, unknown_outcome or store_stopped.
  std::uint64_t failures = 0;
};

constexpr Duration kWriteFailureTtl = std::chrono::seconds(10);

class MeasuredStore final : public Store {
 public:
  // Borrows both; `inner` must not answer after `steady` is gone.
  MeasuredStore(Store& inner, async::SteadyClock& steady) : inner_(inner), steady_(steady) {}

  // By operation.
  const std::map<std::string_view, OperationLatency>& latencies() const { return *latencies_; }

  // True if the last write failed because the store was unavailable (for example a full disk) less
  // than kWriteFailureMemory ago.
  bool is_failing_writes() const;

  void commit(Batch batch, async::Done<Result<CommitResult>> done) override;
  void put_inbox(JobId job, InboxEntry entry, async::Done<Result<void>> done) override;
  void claim(ClaimRequest request, async::Done<Result<std::vector<Lease>>> done) override;
  void claim_job(JobId job, ClaimRequest request,
                 async::Done<Result<std::optional<Lease>>> done) override;
  void heartbeat(std::vector<std::pair<JobId, Fence>> held, Duration lease,
                 async::Done<Result<std::vector<std::optional<Instant>>>> done) override;
  void list_due(std::size_t limit, async::Done<Result<std::vector<JobId>>> done) override;
  void next_due(async::Done<Result<std::optional<Instant>>> done) override;
  void load(JobId job, std::uint64_t from_seq, async::Done<Result<LoadedJob>> done) override;
  void query(Filter filter, async::Done<Result<std::vector<JobRow>>> done) override;
  void list_ended(EndedFilter filter, async::Done<Result<EndedPage>> done) override;
  void prune(Pruning pruning, async::Done<Result<bool>> done) override;
  void redact(Redaction redaction, async::Done<Result<void>> done) override;
  void erase_dropped_values(async::Done<Result<std::vector<ResidualCopy>>> done) override;
  void append_audit_entry(AuditEntry entry, async::Done<Result<void>> done) override;
  void read_audit_log(std::uint64_t after, async::Done<Result<AuditLog>> done) override;
  void count_jobs(async::Done<Result<JobStats>> done) override;
  void announce(std::string worker, std::string announcement, Duration ttl) override;
  void on_hint(std::function<void(const Hint&)> callback) override;
  Instant now() override { return inner_.now(); }
  Instant latest_now() override { return inner_.latest_now(); }
  bool owned() const override { return inner_.owned(); }
  std::optional<Instant> opened_at() const override { return inner_.opened_at(); }

 private:
  using Latencies = std::map<std::string_view, OperationLatency>;
  template <class T>
  async::Done<Result<T>> time_call(std::string_view operation, async::Done<Result<T>> done);
  // Also records whether the write failed. For operations that write whenever they succeed.
  template <class T>
  async::Done<Result<T>> time_write(std::string_view operation, async::Done<Result<T>> done);

  Store& inner_;
  async::SteadyClock& steady_;
  std::shared_ptr<Latencies> latencies_ =
      std::make_shared<Latencies>();  // shared: answers may arrive later
  // When the last write failed; nullopt: it succeeded.
  std::shared_ptr<std::optional<Duration>> write_failed_ =
      std::make_shared<std::optional<Duration>>();
};

}  // namespace ae::store
