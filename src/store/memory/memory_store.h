// MemoryStore: the store as plain data structures, and the reference model for the other drivers.
//
// For `--store memory:`, tests and the simulator. Deterministic: a call changes the data at once
// and posts its answer to the loop. Its MemoryDisk can outlive it: a second store on the same disk
// is the same store after a process crash. A copy of a disk is a backup.
// Threads: the loop's thread only.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "async/loop.h"
#include "store/store.h"

namespace ae::store {

class MemoryDisk {
 public:
  MemoryDisk();
  ~MemoryDisk();
  MemoryDisk(const MemoryDisk& other);
  MemoryDisk& operator=(const MemoryDisk& other);

 private:
  friend class MemoryStore;
  struct Data;
  std::unique_ptr<Data> data_;
};

class MemoryStore final : public Store {
 public:
  struct Options {
    bool owned = true;  // one process owns it: opening it ends all earlier leases
    // Label of the fairness key; "" = claims are by age alone; nullopt = unchanged.
    std::optional<std::string> fair_by = {};
  };

  // Borrows all three. Only one store at a time may use a disk, unless it is not owned (several
  // workers share it).
  MemoryStore(async::Loop& loop, async::Clock& clock, MemoryDisk& disk, Options options);
  MemoryStore(async::Loop& loop, async::Clock& clock, MemoryDisk& disk);
  // With its own disk.
  MemoryStore(async::Loop& loop, async::Clock& clock);
  ~MemoryStore() override;

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
  void load_window(JobId job, WindowRequest window, async::Done<Result<LogWindow>> done) override;
  void read_inbox_entry(JobId job, std::string id,
                        async::Done<Result<InboxEntryState>> done) override;
  void query(Filter filter, async::Done<Result<std::vector<JobRow>>> done) override;
  void list_ended(EndedFilter filter, async::Done<Result<EndedPage>> done) override;
  void prune(Pruning pruning, async::Done<Result<bool>> done) override;
  void redact(Redaction redaction, async::Done<Result<void>> done) override;
  void erase_dropped_values(async::Done<Result<std::vector<ResidualCopy>>> done) override;
  void append_audit_entry(AuditEntry entry, async::Done<Result<void>> done) override;
  void read_audit_log(std::uint64_t after, async::Done<Result<AuditLog>> done) override;
  void count_jobs(async::Done<Result<JobStats>> done) override;
  void count_matching(CountFilter filter, async::Done<Result<JobCounts>> done) override;
  void announce(std::string worker, std::string announcement, Duration ttl) override;
  Instant now() override;
  bool owned() const override;
  std::optional<Instant> opened_at() const override { return opened_at_; }

 private:
  using Data = MemoryDisk::Data;
  class ReadyJobs;
  template <class T>
  void answer(async::Done<T> done, T value) {
    loop_.post(
        [done = std::move(done), value = std::move(value)]() mutable { done(std::move(value)); });
  }

  async::Loop& loop_;
  async::Clock& clock_;
  std::unique_ptr<MemoryDisk> own_disk_;
  Data& data_;
  const Options options_;
  const std::optional<Instant> opened_at_;
};

}  // namespace ae::store
