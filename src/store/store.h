// Store: everything a job writes in one step goes through one verb, `commit(Batch)`.
//
// All or nothing, fenced and version-checked inside the same transaction, and durable when it answers. A store keeps
// sealed bytes and does not understand them; what a job may do next is checked by the runtime before the commit and
// stays true by `expected_seq`. Every driver passes src/store/conformance_test.h.
//
// Answers come on the loop's thread, never inside the call. Two errors are never merged:
//   unavailable      nothing changed (disk full, read-only, lost connection before the commit): try again later
//   unknown_outcome  it may or may not have happened: read back (`load`) before anything else
// Writes take effect in the order in which they were called; a read sees at least what was answered before it. Limits: an idempotency key, agent, worker, label or inbox id
// is at most 256 bytes, a job has at most 64 labels and 64 capabilities (64 bytes each, no line break); the door checks these before it calls.
// Threads: call from the loop's thread. See docs/architecture.md and docs/decisions/0005-one-verb-store.md.
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

namespace ae::store {

// Who may write: the attempt that holds the job. Epochs strictly increase per job.
struct Fence {
  AttemptId attempt;
  std::uint64_t epoch = 0;
  friend bool operator==(const Fence&, const Fence&) = default;
};

// What a claim gives. The lease is the store's clock: `lease_until` is read back from the statement that set it.
struct Lease {
  JobId job;
  Fence fence;
  Instant lease_until;
};

struct InitialClaimParams {  // for a job that is born claimed
  std::string worker;
  AttemptId attempt;  // its epoch is 1
  Duration lease;
};

// Of jobs that name no other.
inline constexpr std::string_view kDefaultQueue = "default";

// The job's row at creation. Everything here is a copy of what the log says, for finding jobs.
struct NewJob {
  std::string agent;
  std::string idempotency_key;  // "" = none; unique per agent
  Hash request_hash;  // of the creating request: the same key with another hash is a conflict
  std::vector<std::pair<std::string, std::string>> labels;
  std::int64_t priority = 0;
  std::vector<std::string> capabilities;  // what a worker must offer to claim it
  std::string queue = std::string(kDefaultQueue);
  std::optional<InitialClaimParams>
      claim;  // born claimed; whoever wants a limit of its queue kept leaves it to a claim
};

// The job's row after the commit, as the runtime derives it from the log.
struct RowState {
  std::string status = "queued";      // queued running waiting parked completed failed cancelled
  std::optional<Instant> not_before;  // not claimed earlier
  // Earliest timer, expiry, deadline: `due` lists the job then, when nobody holds it.
  std::optional<Instant> wake_at;
};

// A performed effect (split durability's phase 1; late effects). Key: (job, invocation, try); written once.
struct EffectRow {
  InvocationId invocation;
  std::uint32_t try_no = 1;
  std::string record;  // canonical JSON
};

// What is in flight under a try. Key: (job, invocation, try); a put replaces.
struct LedgerRow {
  InvocationId invocation;
  std::uint32_t try_no = 1;
  std::string state;   // INFLIGHT COMMITTED UNKNOWN FAILED
  std::string record;  // canonical JSON: attempt, deadline, process group, …
};

struct InboxEntry {
  std::uint64_t number = 0;  // given by the store; order of arrival
  std::string id;            // the writer's id: the same id again changes nothing
  std::string act;           // canonical JSON
};

struct Batch {
  // The job is new. REQUIRES: events, expected_seq 0.
  struct Create {
    NewJob job;
  };
  // This fence's claim row stands, live or expired: until another claims the job, the work is still its.
  struct Leased {
    Fence fence;
  };
  // Nobody holds it: no claim row, live or expired.
  struct Unleased {};
  // Whoever holds it: a result that came after its attempt had lost the job. REQUIRES: effects only.
  struct LateResult {
    // SHA-256 of the job's first commit, as it was read: refused with `sequence_conflict` when that is another one now
    // (values of the job were erased). nullopt = any.
    std::optional<Hash> first_commit = {};
  };
  using Authority = std::variant<Create, Leased, Unleased, LateResult>;

  JobId job;
  Authority authority;
  std::uint64_t expected_seq =
      0;  // last seq of the log before this commit (not asked of LateResult)
  std::optional<SealedBatch> sealed;  // no events: only the rows below change.
                                      // REQUIRES: first_seq == expected_seq + 1
  // Written when `sealed` is set. REQUIRES: a commit that leaves a job neither queued nor running also releases it
  // (or comes without a claim): a blocked job that somebody holds could never be woken.
  RowState row;
  std::vector<EffectRow> effects;
  // Refused with `sequence_conflict` when one of these is recorded: whoever decides an unknown call closes its slot in
  // the transaction that sees it empty. Read again and decide anew.
  std::vector<std::pair<InvocationId, std::uint32_t>> effects_absent;
  std::vector<LedgerRow> ledger_put;
  std::vector<std::pair<InvocationId, std::uint32_t>> ledger_erase;
  // Numbers of the entries this commit consumes, in order; one that is gone is passed over.
  std::vector<std::uint64_t> inbox_consumed;
  // Give the claim back (Leased). Refused with `inbox_pending` while entries are left.
  bool release = false;
  // The release leaves the entries where they are, for the next claim: of a job that is parked before they are taken in.
  bool keeps_inbox = false;
  // What this commit decides must not pass by an accepted entry (a wait that opens, an expiry): refused with
  // `inbox_pending` when there is one above this number, the last that was read.
  std::optional<std::uint64_t> inbox_read_through;
  // Stands beside the job and replaces what stood there; says itself what it covers. The store does not look inside.
  std::optional<std::string> signed_head;
  // The same, of the log as it stands after this commit, whose last seq it is kept under. REQUIRES: Leased.
  std::optional<std::string> checkpoint;
  // Written to the store's audit log with this commit; not when the batch is refused or `is_duplicate`.
  std::optional<AuditEntry> audit;
  // AE_POINTs to hit once the rows are written: before the COMMIT when there are events, after it when not.
  // Names with static storage ("effect.after_put", "ledger.after_commit").
  std::vector<std::string_view> failpoints;
};

// Values of a job that are dropped: its commits without them, and what stood beside the log because of them.
struct Redaction {
  JobId job;
  struct Commit {
    std::uint64_t first_seq = 0;
    Hash expected_hash;       // SHA-256 of the bytes that stand there
    std::string bytes;        // the same events, sealed, without the values
    std::vector<Hash> blobs;  // that these bytes name, each once
  };
  std::vector<Commit> commits;
  std::vector<EffectRow> effects;  // all of the job, as they are to stand
  AuditEntry audit;
};

// A place in the store's files that may still hold values that were dropped.
struct ResidualCopy {
  std::string what, where;
  std::string why;  // … and what removes them
};

// Jobs that go, with everything that belongs to them.
struct Pruning {
  struct Job {
    JobId job;
    std::uint64_t last_seq = 0;  // as it was read …
    Hash head;
    std::optional<Hash>
        content_hash;  // … and what was kept of it elsewhere (content_hash_of in store/rules.h)
  };
  std::vector<Job> jobs;  // REQUIRES: at least one, each once, at most kPruneJobsMax
  AuditEntry audit;
};
inline constexpr std::size_t kPruneJobsMax = 64;

struct CommitResult {
  std::uint64_t last_seq = 0;  // of the log after this commit (or as it stands, without events)
  bool is_duplicate = false;   // these very bytes were already there: nothing written again
  // Create only: this idempotency key made that job, with this request hash; nothing written.
  std::optional<JobId> existing;
  std::optional<Hash> existing_request;
  // Create with a claim (repeated: if that claim still stands).
  std::optional<Lease> lease;
};

// A job's row as it stands.
struct JobRow {
  JobId id;
  std::uint64_t number = 0;  // order of creation; never given to another job of this store
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
  std::vector<std::string>
      commits;              // sealed bytes, in order, from the commit that holds `from_seq`
  std::vector<Blob> blobs;  // every value that stands apart and that these commits hold, once each
  std::vector<EffectRow> effects;  // by invocation and try
  std::vector<LedgerRow> ledger;   // by invocation and try
  std::vector<InboxEntry> inbox;   // not yet taken, in order
  std::optional<std::string> signed_head;
  std::optional<Checkpoint> checkpoint;  // of loads from 1 or from the checkpoint
  // Of loads from 1, as the rows have it; nullopt: this store has no such column.
  std::optional<Hash> request_hash;
  std::optional<std::uint64_t> commit_count;
};

// A `from_seq`: only what came after the checkpoint, and the checkpoint; without one the same as 1.
inline constexpr std::uint64_t kFromCheckpoint = 0;
// A `from_seq`: the first commit alone with its values, and of all else only the row. It costs the same however long the log is.
inline constexpr std::uint64_t kFirstCommit = UINT64_MAX;

struct Filter {
  std::string status, agent;  // "" = any
  std::vector<std::pair<std::string, std::string>> labels;
  std::string after;  // page cursor: a job id of an earlier answer ("" = from the newest)
  std::optional<std::uint64_t> after_number;  // its number: counts also when the job is gone
  std::optional<Instant> updated_before;      // nothing was written to it since
  std::size_t limit = 100;
};

// Jobs that have ended, that nobody holds, and whose last event is older than `before`.
struct EndedFilter {
  Instant before;
  std::vector<std::string> statuses;  // of completed failed cancelled; empty = all three
  std::string agent;                  // "" = any
  std::vector<std::pair<std::string, std::string>> labels;
  std::uint64_t after = 0;  // behind the job with this number
  std::size_t limit = 100;
};
// A page looks at so many rows at most, whatever it finds. The walk ends where all of them are of jobs made since `before`:
// one whose clock was wrong hides no other.
inline constexpr std::size_t kEndedScanMax = 1024;
struct EndedPage {
  std::vector<JobRow> rows;           // oldest first
  std::optional<std::uint64_t> next;  // `after` of the next page; nullopt = there is none
};

struct QueueLimit {
  std::string queue;
  std::size_t limit = 1;  // live claims of its jobs at once, whoever holds them
};

struct ClaimRequest {
  std::string worker;
  std::size_t limit = 1;
  Duration lease;
  std::vector<std::string> agents;        // only jobs of these; empty = any
  std::vector<std::string> capabilities;  // what the worker offers: only jobs that need no more
  std::vector<AttemptId>
      attempts;  // fresh attempt ids, one per job at most. REQUIRES: size() >= limit
  std::vector<JobId> excluded_jobs;  // jobs this worker cannot run (needs_version): left to others
  std::vector<QueueLimit> queues;    // kept in the transaction that claims; other queues have none
};

// How many jobs stand where, as of one moment; counted from indexes, and never further than kJobCountMax.
inline constexpr std::uint64_t kJobCountMax = 100'000;
struct JobStats {
  std::map<std::string, std::uint64_t> statuses;  // of queued, running, waiting, parked
  std::map<std::string, std::uint64_t> ready;     // that a claim would take, by queue
  struct Worker {
    std::uint64_t live = 0, expired = 0;  // jobs that it holds; whose lease has run out
    std::string says;  // what it announced of itself; "" = nothing, or too long ago
  };
  std::map<std::string, Worker> workers;  // whoever holds a job, or has announced itself
};

// What another process has done, said early; every hint may be lost, and none is a promise.
struct Hint {
  std::vector<JobId> idle;        // they have ended or wait; empty = something else
  std::optional<JobId> inbox_of;  // its inbox has got an entry; nullopt = something may be claimed
  struct Needs {
    std::string agent;
    std::vector<std::string> capabilities;
  };
  std::optional<Needs> needs;  // by whom; nullopt = perhaps by anybody
};

class Store {
 public:
  virtual ~Store() = default;

  // Fails with stale_attempt (not held by this fence) · held (Unleased, but a claim row exists) · sequence_conflict
  // (expected_seq is not the last) · not_found · already_exists (Create: this job id) · inbox_pending · unavailable ·
  // unknown_outcome. A batch whose sealed bytes already stand at that place answers `is_duplicate`, whoever holds the job
  // by now: that is a statement about the past. Then authority is looked at, then seq, then the inbox.
  virtual void commit(Batch batch, async::Done<Result<CommitResult>> done) = 0;

  // Durable post for whoever holds the job. An id that is waiting already changes nothing; one that was taken is in the
  // log, which knows it. Fails with not_held (no claim row: commit as Unleased instead) · not_found · unavailable ·
  // unknown_outcome.
  virtual void put_inbox(JobId job, InboxEntry entry, async::Done<Result<void>> done) = 0;

  // Queued or running jobs that nobody holds (not_before passed), and those whose lease has run out; highest priority,
  // then, where the store takes turns between the values of a label, the next value, then oldest (store/claim_order.h).
  // Never waiting, parked or ended ones, and none of a queue that is at its limit.
  virtual void claim(ClaimRequest request, async::Done<Result<std::vector<Lease>>> done) = 0;
  // One particular job, under the same rules; empty when it cannot be claimed now.
  virtual void claim_job(JobId job, ClaimRequest request,
                         async::Done<Result<std::optional<Lease>>> done) = 0;
  // Extends to now + lease; never revives an expired or released one (nullopt for those). Same order as asked.
  virtual void heartbeat(std::vector<std::pair<JobId, Fence>> held, Duration lease,
                         async::Done<Result<std::vector<std::optional<Instant>>>> done) = 0;

  // Jobs whose wake_at has passed and that nobody holds. At most `limit`, earliest first.
  virtual void list_due(std::size_t limit, async::Done<Result<std::vector<JobId>>> done) = 0;
  // When the next one is due (also a past instant: now), or becomes claimable by not_before (only a future one: ask
  // this before `claim`, which takes those that have passed); nullopt = nothing is planned.
  virtual void next_due(async::Done<Result<std::optional<Instant>>> done) = 0;

  virtual void load(JobId job, std::uint64_t from_seq, async::Done<Result<LoadedJob>> done) = 0;
  // Newest first. An unknown `after` without its number is not_found.
  virtual void query(Filter filter, async::Done<Result<std::vector<JobRow>>> done) = 0;
  // Reads rows of jobs in the order of their creation, and no event.
  virtual void list_ended(EndedFilter filter, async::Done<Result<EndedPage>> done) = 0;

  // Replaces the bytes of commits that hold the same events with fewer values, drops values that stood apart and that no
  // commit of any job names any more, and the job's checkpoint, replaces the records of its effects, and writes the audit
  // entry: all or nothing. Bytes that stand there already are fine; when all do, nothing is written. Looks at every commit
  // of the store when something stood apart.
  // Fails with held (somebody holds the job) · sequence_conflict (other bytes stand there, or another effect: load again) ·
  // not_found · unavailable · unknown_outcome.
  virtual void redact(Redaction redaction, async::Done<Result<void>> done) = 0;
  // Removes what the store's files still hold of values that were dropped before: a write-ahead log, old pages. Takes a few
  // seconds at most. Answers the places that may still hold some; it does not know of which job.
  // Fails with unavailable · store_stopped.
  virtual void erase_dropped_values(async::Done<Result<std::vector<ResidualCopy>>> done) = 0;
  // Deletes these jobs: rows, log, everything beside it, and what stood apart and no other job names; and writes the audit
  // entry: all or nothing, in one transaction that costs what the jobs hold, whatever else the store holds. Their ids and
  // idempotency keys are free again. False: nothing is deleted yet, the store has made up a part of its list of values
  // (each commit of its life is looked at once for that): ask again.
  // Fails with sequence_conflict (one is not as it was read, or has not ended) · held · not_found · unavailable ·
  // unknown_outcome.
  virtual void prune(Pruning pruning, async::Done<Result<bool>> done) = 0;
  // Adds to the audit log. Fails with unavailable · unknown_outcome.
  virtual void append_audit_entry(AuditEntry entry, async::Done<Result<void>> done) = 0;
  // The entries above `after`, and where the log ends, as of one moment. From 0 it can be proved (store/audit.h).
  virtual void read_audit_log(std::uint64_t after, async::Done<Result<AuditLog>> done) = 0;

  virtual void count_jobs(async::Done<Result<JobStats>> done) = 0;
  // What this worker says of itself, to those that share the store, for so long; said again before that, and lost without
  // harm. A store that nobody shares keeps nothing of it.
  virtual void announce(std::string worker, std::string says, Duration ttl) {
    static_cast<void>(worker), static_cast<void>(says), static_cast<void>(ttl);
  }

  // From now on other processes' hints come here, on the loop's thread. A store that nobody else writes has none.
  virtual void on_hint(std::function<void(const Hint&)> callback) { static_cast<void>(callback); }

  virtual Instant now() = 0;  // the one clock of leases, timers and deadlines
  // What that clock shows by now at the latest, for what must not be done after an instant: later than now() where the
  // clock is another machine's. Counts suspend.
  virtual Instant latest_now() { return now(); }
  // True when opening this store ended every earlier lease: one process owns it (SPEC §6).
  virtual bool owned() const = 0;
  // When this process opened it, by its clock, after every earlier owner had ended; nullopt = it is shared, or only read.
  virtual std::optional<Instant> opened_at() const = 0;
};

}  // namespace ae::store
