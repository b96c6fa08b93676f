// Transaction: what a group of writes must know of its jobs, what each of them decides, and what is written in the end.
//
// First every write says what it needs; one round trip locks the rows of all jobs (`heads`, in order of their numbers) and
// reads the rest under the lock. Then the writes decide, one after the other, on what stands here: each sees what those
// before it have decided. Last, one round trip writes all of it in a statement a table, with the COMMIT behind it.
// Nothing is sent before everything is decided, so a refused write leaves no trace.
// Threads: the writer's thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/audit.h"
#include "store/points.h"
#include "store/postgres/connection.h"
#include "store/postgres/hints.h"
#include "store/postgres/recollection.h"
#include "store/store.h"

namespace ae::store::postgres {

// Claims under limits or in turns are made one after the other, in all processes: each counts what is held.
inline constexpr const char* kOneClaimerUnderLimits =
    "SELECT pg_advisory_xact_lock(hashtextextended('aetheris claims ' || current_schema(), 0))";

// Jobs of one kind ask the same of a worker. Stored: the first 16 bytes of a SHA-256, or '' where nobody has said.
std::string kind_of(const std::string& agent, const std::vector<std::string>& capabilities);

class Transaction {
 public:
  struct Held {
    std::vector<std::pair<JobId, Fence>> jobs;
    Duration lease;
  };

  // ---- what is needed, before `read`
  void needs(const Batch& batch);
  void needs_inbox(const JobId& job);
  void needs(const JobId& job);
  void needs_audit() { audit_asked_ = true; }
  // How many jobs of the limited queues are held; nobody else claims under limits until the end. `at`: as in Answering.
  void needs_held(const ClaimRequest& request, std::optional<Instant> at);

  // BEGIN, the locks, and what was asked for.
  Pg<void> read(Connection& connection);
  Instant now() const { return now_; }  // the database's, after the locks were taken

  // ---- the writes; the answer is what the caller gets
  struct Answer {
    Result<Committed> result;
    bool written = false;
  };
  Answer commit(const Batch& batch, BatchPoints& points, Instant now);
  Result<void> put_inbox(const JobId& job, const InboxEntry& entry);
  Result<std::optional<Lease>> claim_job(const JobId& job, const ClaimRequest& request,
                                         Instant now);
  std::vector<std::optional<Instant>> heartbeat(const Held& held, Instant now);

  void record(const AuditEntry& entry);
  // Of the audit log, with what was recorded. REQUIRES: needs_audit.
  const AuditHead& audit_end() const { return audit_head_; }

  // ---- adds everything that was decided, and the COMMIT; gives its place among the statements.
  std::size_t send(Connection& connection);
  // A row as it leaves it, to be remembered once that is durable; nullopt: it left no row of a job.
  std::optional<Mark> mark() const;
  // The head of the audit log as it is kept: "seq hash". What cannot be read is an end that no log has.
  static AuditHead audit_head(std::string_view text);
  // What others may want to know once it is durable.
  const Hints& hints() const { return hints_; }

 private:
  using Slot = std::pair<std::string, std::uint32_t>;  // invocation, try
  struct Commit {
    std::uint64_t first_seq = 0;
    std::string_view bytes;  // borrowed of the batch
  };
  struct Job {
    std::int64_t number = 0;
    std::string agent, worker, queue, turn;
    std::vector<std::string> capabilities;
    std::int64_t priority = 0;
    std::uint64_t last_seq = 0;
    Instant updated_at;
    Hash head;
    std::uint64_t epoch = 0;
    std::optional<AttemptId> attempt;
    std::optional<Instant> lease_until, ripe_at;
    bool ready = false;
    RowState row;
    bool changed = false;                        // its row of `heads` is to be written
    std::map<std::uint64_t, std::string> inbox;  // number → id, as read
    std::vector<InboxEntry> posted;              // in this transaction; not yet numbered
    std::set<Slot> effects;                      // known to be recorded
    std::vector<Commit> commits;                 // of this transaction

    std::optional<Fence> claim() const;
    void ripen();  // after its state or its lease has changed
  };
  struct Key {
    JobId job;
    Hash request_hash;
    std::uint64_t last_seq = 0;
  };
  using AgentKey = std::pair<std::string, std::string>;

  Job* find(const JobId& id);
  void add_reads(Connection& connection);
  void take_jobs(const Rows& rows);
  Pg<void> read_old_commits(Connection& connection);
  bool stands(const JobId& id, const Job& job, const Sealed& sealed) const;
  std::optional<Error> refuse(const Batch& batch, const Job& job) const;
  bool inbox_left(const Batch& batch, const Job& job) const;
  Answer create(const Batch& batch, BatchPoints& points, Instant now);
  std::optional<Result<Committed>> answer_create(const Batch& batch, const NewJob& wish);
  Answer extend(const Batch& batch, BatchPoints& points);
  void append(const Sealed& sealed, const RowState& row, Job& job);
  void write_rows(const Batch& batch, Job& job);
  Lease take(const JobId& id, Job& job, const std::string& worker, const AttemptId& attempt,
             Instant until);
  void send_new_jobs(Connection& connection, std::size_t& statements);
  void send_heads(Connection& connection, std::size_t& statements);
  void send_commits(Connection& connection, std::size_t& statements);
  void send_effects(Connection& connection, std::size_t& statements);
  void send_inbox(Connection& connection, std::size_t& statements);
  void send_audit(Connection& connection, std::size_t& statements);
  void send_beside(Connection& connection, std::size_t& statements);

  // asked
  std::set<std::string> jobs_asked_, inbox_asked_;
  std::set<AgentKey> keys_asked_;
  std::set<std::pair<std::string, Slot>> effects_asked_;
  std::set<Hash> blobs_asked_;
  std::vector<std::pair<JobId, const Sealed*>> sealed_asked_;
  std::vector<JobId> first_asked_;  // first commits
  std::size_t creates_ = 0;
  bool audit_asked_ = false;
  std::set<std::string> queues_asked_;
  std::optional<Instant> held_at_;

  // read
  Instant now_;
  std::unordered_map<JobId, Job> jobs_;
  std::map<AgentKey, Key> keys_;
  std::set<Hash> blobs_there_;
  std::map<std::pair<std::string, std::uint64_t>, std::string> old_commits_;
  std::map<std::string, std::size_t> held_;  // by queue, of those that were asked
  std::string fair_by_;
  AuditHead audit_head_;
  std::vector<std::int64_t> numbers_;  // for new jobs, unused ones

  // to be written
  struct NewRow {
    std::int64_t number = 0;
    const Batch* batch = nullptr;
  };
  struct CommitRow {
    std::int64_t job = 0;
    const Sealed* sealed = nullptr;
  };
  std::vector<NewRow> new_jobs_;
  std::vector<CommitRow> commits_;
  std::map<Hash, std::string_view> blobs_;
  std::vector<std::pair<std::int64_t, const EffectRow*>> effects_;
  std::map<std::pair<std::int64_t, Slot>, const LedgerRow*> ledger_;  // nullptr: erased
  std::vector<std::pair<std::int64_t, std::uint64_t>> taken_;
  std::map<std::int64_t, const std::string*> signed_heads_;
  std::map<std::int64_t, std::pair<std::uint64_t, const std::string*>> checkpoints_;
  std::vector<AuditRow> audit_;
  Hints hints_;
};

}  // namespace ae::store::postgres
