// Transaction: one transaction for a group of writes: what they read, decide and write.
//
// First every write declares its reads. One round trip locks the rows of all jobs (`heads` and
// `log_ends`, in order of their numbers) and reads the rest under the lock. Then the writes decide
// one after the other; each sees the decisions before it. Last, one round trip writes everything,
// one statement per table, followed by the COMMIT.
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
#include "store/batch_failpoints.h"
#include "store/postgres/connection.h"
#include "store/postgres/hints.h"
#include "store/postgres/plain_commits.h"
#include "store/postgres/rollback_guard.h"
#include "store/store.h"

namespace ae::store::postgres {

// The kind of a job: a hash of its requirements. Stored: the first 16 bytes of a SHA-256, or '' =
// not computed.
std::string kind_of(const std::string& agent, const std::vector<std::string>& capabilities);

class Transaction {
 public:
  struct HeartbeatRequest {
    std::vector<std::pair<JobId, Fence>> jobs;
    Duration lease;
  };

  // ---- declare reads, before `read`
  void declare_reads(const Batch& batch);
  void declare_inbox_read(const JobId& job);
  void declare_reads(const JobId& job);
  void declare_audit_read() { is_audit_declared_ = true; }
  // Counts the leased jobs of the limited queues; other claims with limits wait until the end of
  // the transaction. `at`: as in WriteWithResult.
  void declare_leased_counts(const ClaimRequest& request, std::optional<Instant> at);

  // BEGIN, the locks, and the declared reads.
  Pg<void> read(Connection& connection);
  Instant now() const { return now_; }  // the database's, after the locks were acquired

  // ---- the writes; the result is the answer to the caller
  struct Answer {
    Result<CommitResult> result;
    bool written = false;
  };
  Answer commit(const Batch& batch, BatchFailpoints& failpoints, Instant now);
  Result<void> put_inbox(const JobId& job, const InboxEntry& entry);
  Result<std::optional<Lease>> claim_job(const JobId& job, const ClaimRequest& request,
                                         Instant now);
  std::vector<std::optional<Instant>> heartbeat(const HeartbeatRequest& held, Instant now);

  void append_audit_entry(const AuditEntry& entry);
  // The end of the audit log, including appended entries. REQUIRES: declare_audit_read.
  const AuditHead& audit_log_end() const { return audit_head_; }

  // ---- adds all statements and the COMMIT; answers the index of the COMMIT
  std::size_t send(Connection& connection);
  // One of the written job rows, to be remembered when it is durable; nullopt: no job row was
  // written.
  std::optional<HighWaterMark> high_water_mark() const;
  // Adds the rows of the jobs that it left with a lease, and removes the others.
  void update(WrittenRows& rows) const;
  // Hints for other processes, to be sent with the commit.
  const HintBatch& hints() const { return hints_; }

 private:
  using Slot = std::pair<std::string, std::uint32_t>;  // invocation, try
  struct Commit {
    std::uint64_t first_seq = 0;
    std::string_view bytes;  // borrowed from the batch
  };
  struct Job {
    std::int64_t number = 0;
    std::string agent, worker, queue, fairness_key;
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
    bool is_new = false;                         // created by this transaction
    bool head_changed = false;                   // its row of `heads` must be written
    bool end_changed = false;                    // its row of `log_ends` must be written
    std::map<std::uint64_t, std::string> inbox;  // number → id, as read
    std::vector<InboxEntry> new_inbox_entries;   // by this transaction; not numbered yet
    std::set<Slot> effects;                      // known to be recorded
    std::vector<Commit> commits;                 // of this transaction

    std::optional<Fence> claim() const;
    void become_eligible();  // updates `ready` and `ripe_at` after a change of state or lease
  };
  struct Key {
    JobId job;
    Hash request_hash;
    std::uint64_t last_seq = 0;
  };
  using AgentKey = std::pair<std::string, std::string>;

  Job* find(const JobId& id);
  void add_reads(Connection& connection);
  void read_jobs(const Rows& rows);
  Pg<void> read_existing_commits(Connection& connection);
  bool is_committed(const JobId& id, const Job& job, const SealedBatch& sealed) const;
  std::optional<Error> find_refusal(const Batch& batch, const Job& job);
  Status check_sender(const HeldJob& sender);
  bool has_unread_inbox(const Batch& batch, const Job& job) const;
  Answer create(const Batch& batch, BatchFailpoints& failpoints, Instant now);
  std::optional<Result<CommitResult>> find_repeated_create(const Batch& batch,
                                                           const NewJob& new_job);
  Answer append_batch(const Batch& batch, BatchFailpoints& failpoints, Instant now);
  void put_inbox(const InboxPut& put, Instant now);
  static void add_to_inbox(Job& job, const InboxEntry& entry);
  void append(const SealedBatch& sealed, const RowState& row, Job& job);
  void write_rows(const Batch& batch, Job& job);
  Lease acquire(const JobId& id, Job& job, const std::string& worker, const AttemptId& attempt,
                Instant until);
  void send_new_jobs(Connection& connection, std::size_t& statements);
  void send_heads(Connection& connection, std::size_t& statements);
  void send_log_ends(Connection& connection, std::size_t& statements);
  void send_commits(Connection& connection, std::size_t& statements);
  void send_effects(Connection& connection, std::size_t& statements);
  void send_inbox(Connection& connection, std::size_t& statements);
  void send_audit(Connection& connection, std::size_t& statements);
  void send_side_records(Connection& connection, std::size_t& statements);

  // declared
  std::vector<std::pair<std::int64_t, const InboxReply*>> inbox_replies_;  // by job
  std::set<std::string> declared_jobs_, declared_inboxes_;
  std::set<AgentKey> declared_keys_;
  std::set<std::pair<std::string, Slot>> declared_effects_;
  std::set<Hash> declared_blobs_;
  std::vector<std::pair<JobId, const SealedBatch*>> declared_commits_;
  std::vector<JobId> declared_first_commits_;  // jobs whose first commit is read
  std::size_t creates_ = 0;
  bool is_audit_declared_ = false;
  std::set<std::string> declared_queues_;
  std::optional<Instant> leased_counted_at_;

  // read
  Instant now_;
  std::unordered_map<JobId, Job> jobs_;
  std::map<AgentKey, Key> keys_;
  std::set<Hash> existing_blobs_;
  std::map<std::pair<std::string, std::uint64_t>, std::string> existing_commits_;
  std::map<std::string, std::size_t> leased_counts_;  // by queue, of the declared ones
  std::string fair_by_;
  AuditHead audit_head_;
  std::vector<std::int64_t> numbers_;  // unused numbers for new jobs

  // to be written
  struct NewRow {
    std::int64_t number = 0;
    const Batch* batch = nullptr;
  };
  struct CommitRow {
    std::int64_t job = 0;
    const SealedBatch* sealed = nullptr;
  };
  std::vector<NewRow> new_jobs_;
  std::vector<CommitRow> commits_;
  std::map<Hash, std::string_view> blobs_;
  std::vector<std::pair<std::int64_t, const EffectRow*>> effects_;
  std::map<std::pair<std::int64_t, Slot>, const LedgerRow*> ledger_;  // nullptr: erased
  std::vector<std::pair<std::int64_t, std::uint64_t>> newly_served_;
  std::map<std::int64_t, const std::string*> signed_heads_;
  std::map<std::int64_t, const Summary*> new_summaries_, summaries_;  // of new and of other jobs
  std::map<std::int64_t, std::pair<std::uint64_t, const std::string*>> checkpoints_;
  std::vector<AuditRow> audit_;
  HintBatch hints_;
};

}  // namespace ae::store::postgres
