// Store: the storage interface. Everything a job writes in one step goes through `commit(Batch)`.
//
// A commit is atomic, checks the fence and the version in the same transaction, and is durable when
// it answers. A store keeps sealed bytes and does not interpret them. The runtime checks before the
// commit what a job may do next; `expected_seq` keeps that check valid. Every driver passes
// src/store/conformance_test.h.
//
// Answers come on the loop's thread, never inside the call. Two errors are never merged:
//   unavailable      nothing changed (disk full, read-only, connection lost before COMMIT): retry
//   unknown_outcome  it may or may not have happened: read back (`load`) before anything else
// Commits of one job take effect in the order in which they were called; other writes may overtake
// each other until they are answered. A read sees at least what was answered before it. Limits: an
// idempotency key, agent, worker, label or inbox id has at most 256 bytes; a job has at most 64
// labels and 64 capabilities (64 bytes each, no line break). The API checks these limits before it
// calls.
// Threads: call from the loop's thread. See docs/architecture.md and
// docs/decisions/0005-one-verb-store.md.
//
// The value types are in headers by concept, which this one includes: claims.h, rows.h, batch.h,
// loads.h, lists.h, maintenance.h, hint.h, audit.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "async/loop.h"
#include "base/error.h"
#include "base/ids.h"
#include "base/time.h"
#include "store/audit.h"
#include "store/batch.h"
#include "store/claims.h"
#include "store/hint.h"
#include "store/lists.h"
#include "store/loads.h"
#include "store/maintenance.h"
#include "store/pending.h"
#include "store/rows.h"

namespace ae::store {

class Store {
 public:
  virtual ~Store() = default;

  // A batch whose sealed bytes are already stored at that place answers `is_duplicate`, regardless
  // of who holds the job now. Otherwise the authority is checked, then the seq, then the inbox.
  // Fails with stale_attempt (not held by this fence) · held (Unleased, but a claim row exists) ·
  // sequence_conflict (expected_seq is not the last) · not_found · already_exists (Create: this job
  // id) · inbox_pending · unavailable · unknown_outcome.
  virtual void commit(Batch batch, async::Done<Result<CommitResult>> done) = 0;

  // Durably enqueues a control request for the lease holder. An id that is already in the inbox
  // changes nothing; the log contains the ids of consumed entries. A new entry deletes the reply to
  // an earlier one with its id. Fails with not_held (no claim row: commit as Unleased instead) ·
  // stale_attempt (of its sender) · not_found · unavailable · unknown_outcome.
  virtual void put_inbox(JobId job, InboxEntry entry, async::Done<Result<void>> done) = 0;

  // Claims queued or running jobs that have no lease (not_before passed) or an expired one. Order:
  // highest priority, then the next fairness key if the store has a fairness label, then oldest
  // (store/claim_order.h). Never waiting, parked or ended jobs, nor jobs of a queue that is at its
  // limit.
  virtual void claim(ClaimRequest request, async::Done<Result<std::vector<Lease>>> done) = 0;
  // One particular job, under the same rules; nullopt when it cannot be claimed now.
  virtual void claim_job(JobId job, ClaimRequest request,
                         async::Done<Result<std::optional<Lease>>> done) = 0;
  // Extends to now + lease. Never revives an expired or released lease (nullopt for those). Answers
  // in the order of `held`.
  virtual void heartbeat(std::vector<std::pair<JobId, Fence>> held, Duration lease,
                         async::Done<Result<std::vector<std::optional<Instant>>>> done) = 0;

  // Jobs without a lease whose wake_at has passed. At most `limit`, earliest first.
  virtual void list_due(std::size_t limit, async::Done<Result<std::vector<JobId>>> done) = 0;
  // The earliest wake_at of a job without a lease (can be in the past: due now), or future
  // not_before. Call it before `claim`, which takes the jobs whose not_before has passed. nullopt =
  // nothing is scheduled.
  virtual void next_due(async::Done<Result<std::optional<Instant>>> done) = 0;

  virtual void load(JobId job, std::uint64_t from_seq, async::Done<Result<LoadedJob>> done) = 0;
  // The cost depends on the window, not on the length of the log. Fails with not_found ·
  // log_corrupt (a commit is missing) · unavailable.
  virtual void load_window(JobId job, WindowRequest window,
                           async::Done<Result<LogWindow>> done) = 0;
  // The entry with this id. Fails with not_found · unavailable.
  virtual void read_inbox_entry(JobId job, std::string id,
                                async::Done<Result<InboxEntryState>> done) = 0;
  // In the order of the filter. An unknown `after` without its number is not_found. A job that
  // changes between two pages in the order `changed` moves to the first page.
  virtual void query(Filter filter, async::Done<Result<std::vector<JobRow>>> done) = 0;
  // Reads job rows in order of creation; reads no events.
  virtual void list_ended(EndedFilter filter, async::Done<Result<EndedPage>> done) = 0;

  // Replaces commits by ones with the same events and fewer values, deletes the job's checkpoint
  // and the blobs that no commit of any job references any more, replaces its effect records and
  // writes the audit entry, atomically. Bytes that are already stored are accepted; if all are,
  // nothing is written. Before a blob is deleted, other jobs are searched for references to it; in
  // SQLite that reads the commits of the whole store.
  // Fails with held (a worker holds the job) · sequence_conflict (other bytes are stored, or
  // another effect: load again) · not_found · unavailable · unknown_outcome.
  virtual void redact(Redaction redaction, async::Done<Result<void>> done) = 0;
  // Removes redacted values that the store's files still contain, in a write-ahead log or old
  // pages. Takes a few seconds at most. Answers the places that may still contain some; it does not
  // know of which job.
  // Fails with unavailable · store_stopped.
  virtual void erase_dropped_values(async::Done<Result<std::vector<ResidualCopy>>> done) = 0;
  // Deletes these jobs (rows, logs, side records, and blobs that no other job references) and
  // writes the audit entry, in one transaction. Its cost depends on the size of these jobs, not of
  // the store. Their ids and idempotency keys can be reused. Answers false if nothing was deleted
  // because the store has only extended its index of blob references (each commit is indexed once):
  // call again.
  // Fails with sequence_conflict (a job has changed since it was read, or has not ended) · held ·
  // not_found · unavailable · unknown_outcome.
  virtual void prune(Pruning pruning, async::Done<Result<bool>> done) = 0;
  // Appends to the audit log. Fails with unavailable · unknown_outcome.
  virtual void append_audit_entry(AuditEntry entry, async::Done<Result<void>> done) = 0;
  // The entries above `after` and the end of the log, read at one moment. With `after` 0 the log
  // can be verified (store/audit.h).
  virtual void read_audit_log(std::uint64_t after, async::Done<Result<AuditLog>> done) = 0;

  virtual void count_jobs(async::Done<Result<JobStats>> done) = 0;
  // The cost is bounded, whatever the number of jobs.
  virtual void count_matching(CountFilter filter, async::Done<Result<JobCounts>> done) = 0;
  // Publishes a worker's announcement to the processes that share the store, for `ttl`. The worker
  // repeats it before that; losing one does no harm. A store with one process ignores it.
  virtual void announce(std::string worker, std::string announcement, Duration ttl) {
    static_cast<void>(worker), static_cast<void>(announcement), static_cast<void>(ttl);
  }

  // Sets the callback for hints of other processes. It runs on the loop's thread. A store with one
  // writer has no hints.
  virtual void on_hint(std::function<void(const Hint&)> callback) { static_cast<void>(callback); }

  virtual Instant now() = 0;  // the one clock of leases, timers and deadlines
  // Upper bound of that clock's current value, for actions that must not start after an instant.
  // Later than now() if the clock is on another machine. Includes suspend time.
  virtual Instant latest_now() { return now(); }
  // True when opening this store ended all earlier leases: one process owns it (SPEC §6).
  virtual bool owned() const = 0;
  // When this process opened the store, by its clock, after every earlier owner had ended; nullopt
  // = the store is shared or read-only.
  virtual std::optional<Instant> opened_at() const = 0;
};

}  // namespace ae::store
