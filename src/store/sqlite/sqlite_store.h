// SqliteStore: the embedded store, one file owned by one process.
//
// One thread writes with group commit, durable (WAL, synchronous=FULL) before it answers. Two
// threads read, one for job loads and one for queries, so that a load does not wait for a search.
// Opening as owner ends all earlier leases. Files: <path>, <path>-wal, <path>-shm and <path>.lock;
// the owner locks <path>.lock and <path>. Symbolic links in <path> are resolved.
// Threads: the loop's thread; answers are posted to the loop. See
// docs/decisions/0006-sqlite-layout.md.
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
  std::string path;  // missing folders are created with mode 0700, the file with 0600
  async::Loop& loop;
  async::Clock& clock;
  // Label of the fairness key; "" = claims are by age alone; nullopt = as stored.
  std::optional<std::string> fair_by = {};
  // Accept the loss of writes since the store was last open: it opens, the caller parks its jobs
  // and calls `finish_accepting`.
  bool accept_loss = false;
  // With accept_loss: even if no loss is detected (the file was restored from a backup).
  bool is_loss_certain = false;
  // With accept_loss: nothing was done elsewhere since this backup was made, so its jobs continue.
  // Refused if a loss is detected.
  bool nothing_lost = false;
  std::string accepted_by = {};
  bool read_only = false;                // no lock, leases stay; writes fail with `unavailable`
  std::size_t group_writes = 1024;       // most writes in one transaction
  std::size_t group_bytes = 8u << 20;    // approximate bytes of one transaction
  std::size_t wal_bytes = 16u << 20;     // checkpoint after the WAL has grown by this
  std::chrono::milliseconds idle{1000};  // without a write for this long: empty the WAL
  // How long to wait for another program's lock on the file.
  std::chrono::milliseconds busy{5000};
  std::size_t rewrite_bytes = 64u << 20;  // `erase_dropped_values` rewrites a file up to this size
  std::chrono::milliseconds readers{2000};  // how long it waits for readers of the WAL
  std::string vfs;                          // SQLite's VFS; "" = the system's (tests)
};

struct SqliteStats {
  std::uint64_t writes = 0, groups = 0;  // since it was opened
  std::uint64_t wal_bytes = 0;           // now
};

// Bytes written so far, and the approximate total.
using CopyProgress = std::function<void(std::uint64_t done, std::uint64_t of)>;

// Copies a snapshot of a store to a new file, also while its owner is running. The file appears
// when it is complete and durable. Fails with already_exists · not_found · unavailable. (Copying
// the file directly during writes gives a damaged store.)
Status backup_sqlite(const std::string& path, const std::string& to,
                     const CopyProgress& progress = {});

// Restores a backup at a path without a store and migrates it. Writes after the backup are lost:
// opening fails with store_rolled_back until the loss is accepted, or the restore sets
// nothing_lost.
struct RestoreOptions {
  bool nothing_lost = false;
  Instant now;     // for the audit log
  std::string by;  // author in the audit log
  // Called with the copy before it gets its name; opens it read-only. Its failure is the failure of
  // the restore.
  std::function<Status(const std::string& copy)> verify_audit_log;
  CopyProgress progress;
};
// Fails with already_exists (a store is there) · store_locked · not_found · log_corrupt (the backup
// is damaged) · needs_version · unavailable.
Status restore_sqlite(const std::string& from, const std::string& path,
                      const RestoreOptions& options);

// Creates a store or migrates it to this program's layout, in one transaction. If a change is
// pending, waits for the owner to exit. Fails with store_locked (names the pid) · needs_version
// (made by a newer program) · unavailable.
Result<Migration> migrate_sqlite(const std::string& path, const MigrationOptions& options = {});

// Fails with store_rolled_back if the store is behind its position file or gone, and as check_file.
// An unreadable store passes: opening it reports the error.
Status check_for_lost_writes(const std::string& path);

class SqliteStore final : public Store {
 public:
  // Fails with store_locked (the message has the owner's pid) · store_rolled_back (for writing: it
  // has lost writes that its position file includes) · needs_version (made by a newer program) ·
  // not_found (read_only, and there is no store) · usage (not a regular file) · unavailable (no
  // such folder, not writable, another program's file, damaged).
  static Result<std::unique_ptr<SqliteStore>> open(const SqliteOptions& options);
  ~SqliteStore() override;  // completes pending calls; their answers are still posted

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
  Instant now() override;
  bool owned() const override;
  std::optional<Instant> opened_at() const override;

  SqliteStats stats() const;
  // True if a loss was accepted by this or an earlier opening and `finish_accepting` has not run.
  bool accepting() const;
  // True if the whole store was lost, and this opening accepted that and created an empty one.
  bool was_recreated() const;
  // 32 hex digits; changes with each accepted loss.
  const std::string& timeline() const;
  // Call when every unfinished job is parked: the store opens normally again.
  void finish_accepting(async::Done<Result<void>> done);

 private:
  struct Impl;
  explicit SqliteStore(std::unique_ptr<Impl> parts);
  std::optional<Error> stopped() const;

  std::unique_ptr<Impl> impl_;
};

}  // namespace ae::store
