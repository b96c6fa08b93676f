// SqliteStore: the embedded store, one file that one process owns.
//
// One thread writes with group commit, durable (WAL, synchronous=FULL) before it answers; two read, one for the
// loads of jobs and one for questions, so that a job's load does not wait behind a search. Opening it as owner ends
// every earlier lease. Files: <path>, <path>-wal, <path>-shm, and <path>.lock, which the owner holds locked as it does <path>;
// <path> is the file behind symbolic links.
// Threads: the loop's thread; answers are posted to the loop. See docs/decisions/0006-sqlite-layout.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "async/loop.h"
#include "store/migration.h"
#include "store/store.h"

namespace ae::store {

struct SqliteOptions {
  std::string path;  // folders that are missing are made, mode 0700; the file 0600
  async::Loop& loop;
  async::Clock& clock;
  // From now on claims take turns between the values of this label; "" = by age alone; nullopt = as the store says.
  std::optional<std::string> fair_by = {};
  // What it has lost since it was last here is accepted: it opens, its jobs are to be parked, then `finish_accepting`.
  bool accept_loss = false;
  bool is_loss_certain =
      false;  // … also when nothing is remembered that is missing: it was restored from a backup
  // … or nothing has been done elsewhere since the backup that this file is: its jobs go on. Refused when something is
  // remembered that is missing.
  bool nothing_lost = false;
  std::string accepted_by = {};
  bool read_only = false;  // takes no lock, ends no lease; every write answers `unavailable`
  std::size_t group_writes = 1024;       // at most this many writes ride one transaction …
  std::size_t group_bytes = 8u << 20;    // … and about this many bytes
  std::size_t wal_bytes = 16u << 20;     // the WAL is copied back when it has grown by this
  std::chrono::milliseconds idle{1000};  // after this long without a write the WAL is emptied
  std::chrono::milliseconds busy{
      5000};  // how long another program's lock on the file is waited for
  std::size_t rewrite_bytes = 64u << 20;  // `erase_dropped_values` rewrites a file up to this size
  std::chrono::milliseconds readers{2000};  // how long it waits for readers of the WAL
  std::string vfs;                          // sqlite's file layer; "" = the system's (tests)
};

struct SqliteStats {
  std::uint64_t writes = 0, groups = 0;  // since it was opened
  std::uint64_t wal_bytes = 0;           // now
};

// Bytes that are written, and about how many there will be.
using CopyProgress = std::function<void(std::uint64_t done, std::uint64_t of)>;

// Copies a store to a new file, whole and as of one moment, also while its owner works; the file is there when all of it
// is durable. Fails with already_exists · not_found · unavailable. (Copying the file itself while somebody writes gives a
// damaged store.)
Status backup_sqlite(const std::string& path, const std::string& to,
                     const CopyProgress& progress = {});

// Puts a copy where no store is, brought up to date. What was done after it was made is not in it: it is refused
// (store_rolled_back) until that is accepted, unless somebody says that nothing was done.
struct RestoreOptions {
  bool nothing_lost = false;
  Instant now;     // for the audit log, with …
  std::string by;  // … who says so
  // Of the copy, before it gets its place: its failure is the restore's. Opens it for reading only.
  std::function<Status(const std::string& copy)> verify_audit_log;
  CopyProgress progress;
};
// Fails with already_exists (a store is there) · store_locked · not_found · log_corrupt (the backup is damaged) ·
// needs_version · unavailable.
Status restore_sqlite(const std::string& from, const std::string& path,
                      const RestoreOptions& options);

// Brings a store up to this program's layout, in one transaction, or makes one; waits for who owns it, if it is to be
// changed. Fails with store_locked (names the pid) · needs_version (made by a newer program) · unavailable.
Result<Migration> migrate_sqlite(const std::string& path, const MigrationOptions& options = {});

// Has this store lost something that is remembered beside its file? Fails with store_rolled_back when it has, and as
// check_file; what cannot be read is for others to say.
Status check_for_lost_writes(const std::string& path);

class SqliteStore final : public Store {
 public:
  // Fails with store_locked (the message has the owner's pid) · store_rolled_back (to write: it has lost something that
  // is remembered beside the file) · needs_version (made by a newer program) · not_found
  // (read_only, and there is no store) · usage (not a regular file) · unavailable (no such folder, not writable, another program's file, damaged).
  static Result<std::unique_ptr<SqliteStore>> open(const SqliteOptions& options);
  ~SqliteStore() override;  // finishes what was asked; those answers are still posted

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
  Instant now() override;
  bool owned() const override;
  std::optional<Instant> opened_at() const override;

  SqliteStats stats() const;
  // Was something lost, and accepted with this opening or one before, and not finished?
  bool accepting() const;
  // Was the whole store lost, and is it an empty one since this opening accepted that?
  bool was_recreated() const;
  const std::string& timeline()
      const;  // 32 hex digits; another one after each loss that was accepted
  // Every job that had not ended has been parked: from now on the store is opened as any other.
  void finish_accepting(async::Done<Result<void>> done);

 private:
  struct Impl;
  explicit SqliteStore(std::unique_ptr<Impl> parts);

  std::unique_ptr<Impl> impl_;
};

}  // namespace ae::store
