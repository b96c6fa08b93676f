// PostgresStore: the store of many processes on many machines, in one PostgreSQL database.
//
// One connection writes with group commit, in pipeline mode: a group is one transaction of two round trips, durable
// (synchronous_commit) before it answers. Two read, one for the loads of jobs and one for questions, which also listens
// for hints of other processes. The one clock is the database's. A connection that is lost comes back by itself.
// Threads: the loop's thread; answers are posted to the loop. See docs/decisions/0030-postgres-layout.md.
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
  std::string url;  // as libpq reads it: postgres://USER@HOST/DATABASE?…
  async::Loop& loop;
  std::string schema = "aetheris";  // the store's tables stand in it
  // From now on claims take turns between the values of this label; "" = by age alone; nullopt = as the store says.
  std::optional<std::string> fair_by = {};
  bool create = true;      // makes the tables, or brings them up to date
  bool read_only = false;  // makes no tables; every write answers `unavailable`
  std::string rollback_guard_dir =
      {};  // a folder: what it had come to is remembered there too; "" = only by this process
  // What it has lost since is accepted: it opens, its jobs are to be parked, then `finish_accepting`.
  bool accept_loss = false;
  bool is_loss_certain =
      false;  // … also when nothing is remembered that is missing: it was restored from a backup
  // … or nothing has been done elsewhere since it was copied here: its jobs go on. Refused when something is remembered
  // that is missing.
  bool nothing_lost = false;
  std::string accepted_by = {};
  bool allow_no_fsync = false;  // for tests: a server that may lose what it has confirmed
  std::chrono::milliseconds connect_timeout{5000};
  std::chrono::milliseconds response_timeout{9000};  // of silence; then the connection is given up
  std::chrono::milliseconds plan_max_age{5000};      // then statements are planned anew
  std::size_t rewrite_bytes = 64u << 20;  // `erase_dropped_values` rewrites tables up to this size
  std::size_t group_writes = 512;         // at most this many writes ride one transaction …
  std::size_t group_bytes = 8u << 20;     // … and about this many bytes
  // Of a test, in place of the database's. Borrowed; read on the loop's thread.
  async::Clock* clock = nullptr;
};

struct PostgresStats {
  std::uint64_t writes = 0, groups = 0;  // since it was opened
  std::uint64_t retried = 0;             // transactions that met another and were tried again
  std::uint64_t reconnects = 0;          // connections of the writer
};

// Has this store lost something that is remembered in this folder, or that others have found missing? Fails with
// store_rolled_back when it has; what cannot be read is for others to say.
Status check_rollback(const std::string& url, const std::string& guard_dir);

// Brings a store up to this program's layout, all or nothing, or makes one; waits for others that do. Fails with
// needs_version (made by a newer program), and as PostgresStore::open.
Result<Migration> migrate_postgres(const std::string& url, const MigrationOptions& options = {},
                                   const std::string& schema = "aetheris");

class PostgresStore final : public Store {
 public:
  // Fails with store_rolled_back (to write: it has lost something that is remembered) · unsupported (a replica, older than 13, not UTF-8, fsync=off, a pooler in transaction mode) ·
  // usage (not an address) · needs_version (made by a newer program) · not_found (nothing is made, and there is no
  // store) · unavailable.
  static Result<std::unique_ptr<PostgresStore>> open(const PostgresOptions& options);
  ~PostgresStore() override;  // finishes what was asked; those answers are still posted

  // Also fails with input_invalid: a text that PostgreSQL cannot keep (a NUL character).
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
  void announce(std::string worker, std::string says, Duration ttl) override;
  void on_hint(std::function<void(const Hint&)> callback) override;
  // The database's time, never ahead of it and behind it by at most the fastest answer (postgres/db_clock.h).
  Instant now() override;
  Instant latest_now() override;
  bool owned() const override { return false; }
  std::optional<Instant> opened_at() const override { return std::nullopt; }

  PostgresStats stats() const;
  // Was something lost, and accepted with this opening or one before, and not finished?
  bool accepting() const;
  const std::string& identity() const;  // of the store: 32 hex digits
  // 32 hex digits; another one after each loss that was accepted.
  std::string timeline() const;
  // Every job that had not ended has been parked: from now on the store is opened as any other.
  void finish_accepting(async::Done<Result<void>> done);

 private:
  struct Impl;
  explicit PostgresStore(std::unique_ptr<Impl> parts);
  std::optional<Instant> time() const;  // of a test

  std::unique_ptr<Impl> impl_;
};

}  // namespace ae::store
