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
// Writes take effect in the order in which they were called. A read sees at least what was answered
// before it. Limits: an idempotency key, agent, worker, label or inbox id has at most 256 bytes; a
// job has at most 64 labels and 64 capabilities (64 bytes each, no line break). The API checks
// these limits before it calls.
// Threads: call from the loop's thread. See docs/architecture.md and
// docs/decisions/0005-one-verb-store.md.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "async/loop.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/time.h"
#include "log/seal.h"
#include "store/audit.h"
#include "store/pending.h"

namespace ae::store {

// Who may write: the attempt that holds the job's lease. Epochs strictly increase per job.
struct Fence {
  AttemptId attempt;
  std::uint64_t epoch = 0;
  friend bool operator==(const Fence&, const Fence&) = default;
};

// The answer to a claim. The store's clock measures the lease: `lease_until` is read back from the
// statement that set it.
struct Lease {
  JobId job;
  Fence fence;
  Instant lease_until;
};

struct InitialClaimParams {  // for a job that is created with a lease
  std::string worker;
  AttemptId attempt;  // its epoch is 1
  Duration lease;
};

// The queue of a job that names none.
inline constexpr std::string_view kDefaultQueue = "default";

// The job's row at creation: a copy of fields of the log, for queries.
struct NewJob {
  std::string agent;
  std::string idempotency_key;  // "" = none; unique per agent
  Hash request_hash;  // of the creating request: the same key with another hash is a conflict
  std::vector<std::pair<std::string, std::string>> labels;
  std::int64_t priority = 0;
  std::vector<std::string> capabilities;  // what a worker must offer to claim it
  std::string queue = std::string(kDefaultQueue);
  // Create with a lease. This ignores the limit of the queue; a job that must respect it is created
  // without a lease and claimed later.
  std::optional<InitialClaimParams> claim;
};

// The job's row after the commit, as the runtime derives it from the log.
struct RowState {
  std::string status = "queued";      // queued running waiting parked completed failed cancelled
  std::optional<Instant> not_before;  // not claimed earlier
  // Earliest timer, expiry or deadline: `list_due` returns the job from then on, unless it is
  // leased.
  std::optional<Instant> wake_at;
  PendingKinds pending = 0;  // what an operator is asked for
};

// A recorded effect (first commit of a split step; late results). Key: (job, invocation, try);
// written once.
struct EffectRow {
  InvocationId invocation;
  std::uint32_t try_no = 1;
  std::string record;  // canonical JSON
};

// A try in flight. Key: (job, invocation, try); a put replaces.
struct LedgerRow {
  InvocationId invocation;
  std::uint32_t try_no = 1;
  std::string state;   // INFLIGHT COMMITTED UNKNOWN FAILED
  std::string record;  // canonical JSON: attempt, deadline, process group, …
};

struct InboxEntry {
  std::uint64_t number = 0;  // assigned by the store in order of arrival
  std::string id;            // the writer's id: the same id again changes nothing
  std::string request;       // control request: canonical JSON
};

// The reply to a consumed entry, for whoever sent the request: canonical JSON. The store keeps the
// newest kInboxRepliesMax replies of all jobs.
struct InboxReply {
  std::uint64_t number = 0;  // of the entry
  std::string reply;
};
inline constexpr std::uint64_t kInboxRepliesMax = 100'000;

// What became of an entry. Neither pending nor replied to: its reply is gone, or there was none.
struct InboxEntryState {
  bool pending = false;
  std::optional<std::string> reply;
};

struct Batch {
  // The job is new. REQUIRES: events, expected_seq 0.
  struct Create {
    NewJob job;
  };
  // The job's claim row has this fence. The lease may have expired: until another worker claims the
  // job, the fence stays valid.
  struct Leased {
    Fence fence;
  };
  // No worker holds the job: there is no claim row, live or expired.
  struct Unleased {};
  // Any state of the lease: a result that arrived after its attempt had lost the job. REQUIRES:
  // effects only.
  struct LateResult {
    // SHA-256 of the job's first commit, as it was read. If it has changed since (values of the job
    // were redacted), the batch is refused with `sequence_conflict`. nullopt = any.
    std::optional<Hash> first_commit = {};
  };
  using Authority = std::variant<Create, Leased, Unleased, LateResult>;

  JobId job;
  Authority authority;
  // Last seq of the log before this commit (not checked for LateResult).
  std::uint64_t expected_seq = 0;
  // nullopt: no events, only the rows below change. REQUIRES: first_seq == expected_seq + 1
  std::optional<SealedBatch> sealed;
  // Written when `sealed` is set. REQUIRES: a commit that leaves a job neither queued nor running
  // also releases it (or is made without a lease): a blocked job with a lease could never wake up.
  RowState row;
  std::vector<EffectRow> effects;
  // Refused with `sequence_conflict` if one of these is recorded: a commit that decides an unknown
  // outcome lists its try here, so the decision and the result exclude each other. Load the job
  // again and decide again.
  std::vector<std::pair<InvocationId, std::uint32_t>> effects_absent;
  std::vector<LedgerRow> ledger_put;
  std::vector<std::pair<InvocationId, std::uint32_t>> ledger_erase;
  // Numbers of the entries that this commit consumes, ascending. A number that is gone is ignored.
  std::vector<std::uint64_t> inbox_consumed;
  // Replies to some of them, ascending.
  std::vector<InboxReply> inbox_replies;
  // Releases the lease (Leased). Refused with `inbox_pending` while other entries are left.
  bool release = false;
  // The release leaves the entries for the next lease holder: the job is parked before they are
  // applied.
  bool keeps_inbox = false;
  // Number of the last entry that was read. If a later one exists, the batch is refused with
  // `inbox_pending`: some decisions (opening a wait, an expiry) must not overtake an accepted
  // entry.
  std::optional<std::uint64_t> inbox_read_through;
  // Replaces the job's signed head, a side record that contains its own seq. The store does not
  // interpret it.
  std::optional<std::string> signed_head;
  // Replaces the job's checkpoint: its state after this commit, stored under the last seq.
  // REQUIRES: Leased.
  std::optional<std::string> checkpoint;
  // Written to the store's audit log with this commit; not written if the batch is refused or
  // `is_duplicate`.
  std::optional<AuditEntry> audit;
  // Failpoints to hit once the rows are written: before the COMMIT if there are events, else after
  // it. The names have static storage ("effect.after_put", "ledger.after_commit").
  std::vector<std::string_view> failpoints;
};

// Redaction of values of a job: its commits without them, and the new contents of its side records.
struct Redaction {
  JobId job;
  struct Commit {
    std::uint64_t first_seq = 0;
    Hash expected_hash;       // SHA-256 of the stored bytes
    std::string bytes;        // the same events, sealed, without the values
    std::vector<Hash> blobs;  // blobs that these bytes reference, each once
  };
  std::vector<Commit> commits;
  std::vector<EffectRow> effects;  // all effects of the job, with their new records
  AuditEntry audit;
};

// A place in the store's files that may still contain redacted values.
struct ResidualCopy {
  std::string what, where;
  std::string why;  // why it may, and how to remove them
};

// Jobs to delete, with everything that belongs to them.
struct Pruning {
  struct Job {
    JobId job;
    std::uint64_t last_seq = 0;  // as it was read
    Hash head;
    // Contents of the job as they were archived (content_hash_of in store/rules.h); nullopt = not
    // compared.
    std::optional<Hash> content_hash;
  };
  std::vector<Job> jobs;  // REQUIRES: at least one, each once, at most kPruneJobsMax
  AuditEntry audit;
};
inline constexpr std::size_t kPruneJobsMax = 64;

struct CommitResult {
  std::uint64_t last_seq = 0;  // of the log after this commit (without events: its current end)
  bool is_duplicate = false;   // the same bytes were already stored: nothing was written
  // Create only: the job that was created with this idempotency key, and its request hash; nothing
  // was written.
  std::optional<JobId> existing;
  std::optional<Hash> existing_request;
  // Create with a claim (is_duplicate: only if that claim still holds).
  std::optional<Lease> lease;
};

// A job's current row.
struct JobRow {
  JobId id;
  std::uint64_t number = 0;  // order of creation; never reused in this store
  std::string agent;
  std::string status;
  std::string idempotency_key;
  std::vector<std::pair<std::string, std::string>> labels;
  std::int64_t priority = 0;
  std::vector<std::string> capabilities;
  std::string queue = std::string(kDefaultQueue);
  Instant created_at, updated_at;  // of the first and the last event
  std::uint64_t last_seq = 0;
  Hash head;  // hash of the last event
  std::optional<Instant> not_before, wake_at;
  PendingKinds pending = 0;
  std::optional<Fence> claim;  // live or expired
  std::string claim_worker;
  std::optional<Instant> lease_until;
};

struct Checkpoint {
  std::uint64_t seq = 0;  // the last event that it covers: always the last of a commit
  std::string bytes;
};

struct LoadedJob {
  JobRow row;
  // Sealed bytes in order, starting with the commit that contains `from_seq`.
  std::vector<std::string> commits;
  std::vector<Blob> blobs;         // every blob that these commits reference, each once
  std::vector<EffectRow> effects;  // by invocation and try
  std::vector<LedgerRow> ledger;   // by invocation and try
  std::vector<InboxEntry> inbox;   // not consumed yet, in order
  std::optional<std::string> signed_head;
  std::optional<Checkpoint> checkpoint;  // of loads from 1 or from the checkpoint
  // Of loads from 1, from the job's row; nullopt: the store has no such column.
  std::optional<Hash> request_hash;
  std::optional<std::uint64_t> commit_count;
};

// A `from_seq`: the checkpoint and the commits after it; without a checkpoint the same as 1.
inline constexpr std::uint64_t kFromCheckpoint = 0;
// A `from_seq`: the row, and the first commit with its blobs. The cost does not depend on the
// length of the log.
inline constexpr std::uint64_t kFirstCommit = UINT64_MAX;

struct Filter {
  std::string status, agent;  // "" = any
  std::vector<std::pair<std::string, std::string>> labels;
  std::string after;  // page cursor: a job id of an earlier answer ("" = from the newest)
  // Number of the job `after`: also valid when that job has been deleted.
  std::optional<std::uint64_t> after_number;
  std::optional<Instant> updated_before;  // last write was before this
  PendingKinds pending = 0;               // jobs that may have one of these open; 0 = any job
  std::size_t limit = 100;
};

// Jobs that have ended, that no worker holds, and whose last event is older than `before`.
struct EndedFilter {
  Instant before;
  std::vector<std::string> statuses;  // of completed failed cancelled; empty = all three
  std::string agent;                  // "" = any
  std::vector<std::pair<std::string, std::string>> labels;
  std::uint64_t after = 0;  // only jobs with a higher number
  std::size_t limit = 100;
};
// A page scans at most this many rows. The scan ends at a page whose rows were all created at or
// after `before`, so one job with a wrong clock does not hide others.
inline constexpr std::size_t kEndedScanMax = 1024;
struct EndedPage {
  std::vector<JobRow> rows;           // oldest first
  std::optional<std::uint64_t> next;  // `after` of the next page; nullopt = last page
};

struct QueueLimit {
  std::string queue;
  std::size_t limit = 1;  // maximum of live claims of its jobs, of all workers
};

struct ClaimRequest {
  std::string worker;
  std::size_t limit = 1;
  Duration lease;
  std::vector<std::string> agents;        // only jobs of these; empty = any
  std::vector<std::string> capabilities;  // what the worker offers: only jobs that require no more
  // Fresh attempt ids, at most one is used per job. REQUIRES: size() >= limit
  std::vector<AttemptId> attempts;
  std::vector<JobId> excluded_jobs;  // jobs that this worker cannot run (needs_version)
  std::vector<QueueLimit> queues;  // checked in the claim's transaction; other queues have no limit
};

// Job counts at one moment. They are read from indexes and stop at kJobCountMax.
inline constexpr std::uint64_t kJobCountMax = 100'000;
struct JobStats {
  std::map<std::string, std::uint64_t> statuses;  // of queued, running, waiting, parked
  std::map<std::string, std::uint64_t> ready;     // claimable now, by queue
  struct Worker {
    std::uint64_t live = 0, expired = 0;  // jobs that it holds: lease valid; lease expired
    std::string announcement;             // its announcement; "" = none, or expired
  };
  std::map<std::string, Worker> workers;  // workers that hold a job or have an announcement
};

// A notification from another process. Hints are best effort: they can be lost and guarantee
// nothing.
struct Hint {
  std::vector<JobId> idle;        // jobs that ended or wait; empty = another kind of hint
  std::optional<JobId> inbox_of;  // job with a new inbox entry; nullopt = a job may be claimable
  struct Needs {
    std::string agent;
    std::vector<std::string> capabilities;
  };
  std::optional<Needs> needs;  // what the claimable job requires; nullopt = unknown
};

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
  // an earlier one with its id. Fails with not_held (no claim
  // row: commit as Unleased instead) · not_found · unavailable · unknown_outcome.
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
  // The entry with this id. Fails with not_found · unavailable.
  virtual void read_inbox_entry(JobId job, std::string id,
                                async::Done<Result<InboxEntryState>> done) = 0;
  // Newest first. An unknown `after` without its number is not_found.
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
