// PostgresStore: a store shared by processes on many machines, in one PostgreSQL database.
//
// One connection writes with group commit in pipeline mode: a group is one transaction of two round
// trips, durable (synchronous_commit) before it answers. Two connections read: one for job loads,
// one for queries, which also listens for hints of other processes. The only clock is the
// database's. Lost connections are reopened automatically.
// Threads: the loop's thread; answers are posted to the loop. See
// docs/decisions/0030-postgres-layout.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "async/loop.h"
#include "store/migration.h"
#include "store/store.h"

namespace ae::store {

struct PostgresOptions {
  std::string url;  // a libpq connection string: postgres://USER@HOST/DATABASE?…
  async::Loop& loop;
  std::string schema = "aetheris";  // contains the store's tables
  // Label of the fairness key; "" = claims are by age alone; nullopt = as stored.
  std::optional<std::string> fair_by = {};
  bool create = true;      // create the tables or migrate them
  bool read_only = false;  // create no tables; writes fail with `unavailable`
  // Folder of the rollback guard's file; "" = positions are only kept in memory.
  std::string rollback_guard_dir = {};
  // Accept the loss of writes: the store opens, the caller parks its jobs and calls
  // `finish_accepting`.
  bool accept_loss = false;
  // With accept_loss: even if no loss is detected (the database was restored from a backup).
  bool is_loss_certain = false;
  // With accept_loss: nothing was done elsewhere since the store was copied here, so its jobs
  // continue. Refused if a loss is detected.
  bool nothing_lost = false;
  std::string accepted_by = {};
  bool allow_no_fsync = false;  // for tests: allow a server that can lose confirmed commits
  std::chrono::milliseconds connect_timeout{5000};
  std::chrono::milliseconds response_timeout{9000};  // without data; then reconnect
  std::chrono::milliseconds plan_max_age{5000};      // then statements are planned again
  std::size_t rewrite_bytes = 64u << 20;  // `erase_dropped_values` rewrites tables up to this size
  std::size_t group_writes = 512;         // most writes in one transaction
  std::size_t group_bytes = 8u << 20;     // approximate bytes of one transaction
  // Replaces the database's clock in tests. Borrowed; read on the loop's thread.
  async::Clock* clock = nullptr;
};

struct PostgresStats {
  std::uint64_t writes = 0, groups = 0;  // since it was opened
  std::uint64_t plain = 0;               // of these writes: as one statement (plain_commits.h)
  std::uint64_t retried = 0;             // transactions retried after a conflict
  std::uint64_t reconnects = 0;          // connections of the writer
};

// Fails with store_rolled_back if the store lacks writes recorded in this folder, or another
// process has detected a loss. An unreadable store passes: opening it reports the error.
Status check_rollback(const std::string& url, const std::string& guard_dir);

// Creates a store or migrates it to this program's layout, atomically; waits for other processes
// that migrate. Fails with needs_version (made by a newer program), and as PostgresStore::open.
Result<Migration> migrate_postgres(const std::string& url, const MigrationOptions& options = {},
                                   const std::string& schema = "aetheris");

class PostgresStore final : public Store {
 public:
  // Fails with store_rolled_back (for writing: a loss was detected) · unsupported (a replica, older
  // than 13, not UTF-8, fsync=off, a pooler in transaction mode) · usage (not a connection string)
  // · needs_version (made by a newer program) · not_found (`create` is false, and there is no
  // store) · unavailable.
  static Result<std::unique_ptr<PostgresStore>> open(const PostgresOptions& options);
  ~PostgresStore() override;  // completes pending calls; their answers are still posted

  // Also fails with input_invalid: a text that PostgreSQL cannot store (a NUL character).
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
  void on_hint(std::function<void(const Hint&)> callback) override;
  // An estimate of the database's time (`now` in postgres/db_clock.h).
  Instant now() override;
  Instant latest_now() override;
  bool owned() const override { return false; }
  std::optional<Instant> opened_at() const override { return std::nullopt; }

  PostgresStats stats() const;
  // True if a loss was accepted by this or an earlier opening and `finish_accepting` has not run.
  bool accepting() const;
  const std::string& identity() const;  // of the store: 32 hex digits
  // 32 hex digits; changes with each accepted loss.
  std::string timeline() const;
  // Call when every unfinished job is parked: the store opens normally again.
  void finish_accepting(async::Done<Result<void>> done);

 private:
  struct Impl;
  explicit PostgresStore(std::unique_ptr<Impl> parts);
  std::optional<Instant> time() const;  // of a test

  std::unique_ptr<Impl> impl_;
};

}  // namespace ae::store
