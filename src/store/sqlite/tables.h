// Tables: the SQL of each write. Every call happens inside a transaction of the Writer.
//
// The state of leased jobs is cached in memory, which is safe because there is one writer: a commit
// checks its fence and seq there and touches two rows. Call `clear_cache()` after any rollback.
// Every check comes before the first write: a refused call has written nothing. Its methods are in
// tables.cc (commits and the inbox), statements.cc, job_cache.cc, claims.cc, redaction.cc,
// prune.cc. Threads: the writer's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "store/batch_failpoints.h"
#include "store/rules.h"
#include "store/sqlite/database.h"
#include "store/sqlite/position_file.h"
#include "store/sqlite/skip_list.h"
#include "store/store.h"

namespace ae::store::sqlite {

// The queries of a claim over the ready jobs (store/claim_order.h). Each is one index lookup.
struct ClaimStatements {
  // The first job of the next group: with other requirements in this queue, else of the next queue.
  // (A row-value comparison would scan the current group.)
  static constexpr const char* kNeedsAfter =
      "SELECT queue, agent, capabilities, priority FROM jobs WHERE ready = 1 AND queue = ?1 "
      "AND agent = ?2 AND capabilities > ?3 ORDER BY capabilities, priority DESC LIMIT 1";
  static constexpr const char* kAgentAfter =
      "SELECT queue, agent, capabilities, priority FROM jobs WHERE ready = 1 AND queue = ?1 "
      "AND agent > ?2 ORDER BY agent, capabilities, priority DESC LIMIT 1";
  static constexpr const char* kQueueAfter =
      "SELECT queue, agent, capabilities, priority FROM jobs WHERE ready = 1 AND queue > ?1 "
      "ORDER BY queue, agent, capabilities, priority DESC LIMIT 1";
  static constexpr const char* kCountLeased =
      "SELECT count(*) FROM (SELECT 1 FROM jobs WHERE queue = ?1 AND attempt IS NOT NULL "
      "AND lease_until > ?2 LIMIT ?3)";
  static constexpr const char* kPriorityBelow =
      "SELECT priority FROM jobs WHERE ready = 1 AND queue = ?1 AND agent = ?2 "
      "AND capabilities = ?3 AND priority < ?4 ORDER BY priority DESC LIMIT 1";
  static constexpr const char* kFirstFairnessKey =
      "SELECT turn FROM jobs WHERE ready = 1 AND queue = ?1 AND agent = ?2 "
      "AND capabilities = ?3 AND priority = ?4 ORDER BY turn LIMIT 1";
  static constexpr const char* kFairnessKeyAfter =
      "SELECT turn FROM jobs WHERE ready = 1 AND queue = ?1 AND agent = ?2 "
      "AND capabilities = ?3 AND priority = ?4 AND turn > ?5 ORDER BY turn LIMIT 1";
  static constexpr const char* kJobAfter =
      "SELECT id, job_id, lease_until FROM jobs WHERE ready = 1 AND queue = ?1 AND agent = ?2 "
      "AND capabilities = ?3 AND priority = ?4 AND turn = ?5 AND id > ?6 ORDER BY id LIMIT 1";
  static constexpr const char* kAll[] = {kNeedsAfter,       kAgentAfter,    kQueueAfter,
                                         kCountLeased,      kPriorityBelow, kFirstFairnessKey,
                                         kFairnessKeyAfter, kJobAfter};
};

class Tables {
 public:
  static Sql<Tables> open(Database& db);  // borrows db; REQUIRES: prepare_schema

  // The outer error is the database's: the transaction must be rolled back. The inner one is the
  // answer.
  template <class T>
  using SqlResult = Sql<Result<T>>;

  struct Commit {
    Result<CommitResult> result;
    bool written = false;
  };
  Sql<Commit> commit(const Batch& batch, BatchFailpoints& failpoints, Instant now);
  SqlResult<void> redact(const Redaction& redaction);
  // As Store::prune; false: only a part of the blob references was indexed.
  SqlResult<bool> prune(const Pruning& pruning);
  Sql<void> append_audit_entry(const AuditEntry& entry);
  SqlResult<void> put_inbox(const JobId& job, const InboxEntry& entry);
  SqlResult<std::vector<Lease>> claim(const ClaimRequest& request, Instant now);
  SqlResult<std::optional<Lease>> claim_job(const JobId& job, const ClaimRequest& request,
                                            Instant now);
  SqlResult<std::vector<std::optional<Instant>>> heartbeat(
      const std::vector<std::pair<JobId, Fence>>& held, Duration lease, Instant now);
  // Ends every lease: this process is now the owner.
  Sql<void> end_leases();
  // The store's recorded position. REQUIRES: called once, before the first write.
  void set_position(const StorePosition& at) {
    position_ = at;
    next_ = at.number;
  }
  // Sets the label of the fairness key ("" = claims are by age alone); nullopt = as stored.
  Sql<void> set_fairness_label(const std::optional<std::string>& label);

  // Writes the next position. Call it when a transaction has changed something.
  Sql<void> advance();
  // The position of the last committed transaction. Call `mark_committed` after each COMMIT.
  const StorePosition& position() const { return position_; }
  void mark_committed() { position_.number = next_; }
  Sql<void> finish_accepting();

  void clear_cache();

 private:
  class ReadyJobs;
  struct Job {
    std::int64_t id = 0;
    std::string agent;
    std::vector<std::string> capabilities;
    std::string queue;
    std::uint64_t last_seq = 0;
    std::uint64_t commits = 0;
    SkipList skip_list;
    std::uint64_t epoch = 0;
    std::optional<AttemptId> attempt;
    std::string worker;
    std::optional<Instant> lease_until;
    RowState row;

    std::optional<Fence> claim() const;
  };

  explicit Tables(Database& db) : db_(&db) {}

  Sql<void> prepare_commits();
  Sql<void> prepare_side_rows();
  Sql<void> prepare_claims();
  Sql<void> prepare_transactions();

  Sql<Job*> find(const JobId& id);  // nullptr: no such job. Valid until the next call
  Sql<void> read_skip_list(Job& job, std::int64_t last_commit);
  Sql<bool> is_below_queue_limit(const ClaimRequest& request, const std::string& queue,
                                 Instant now);
  void evict_if_idle(const JobId& id);  // evicts a job without a lease from the cache
  Sql<std::int64_t> commit_at(const Job& job, std::uint64_t first_seq);  // row id; 0 = none
  Sql<bool> is_committed(const Job& job, const SealedBatch& sealed);
  Sql<std::optional<Result<void>>> answer_redact(const Redaction& redaction, const Job& job,
                                                 std::vector<std::int64_t>& commits);
  // Deletes the blobs for which `named_by`, a query with the hash as ?1 for references, returns no
  // row.
  Sql<void> drop_blobs(const std::unordered_set<Hash>& hashes, std::string_view named_by);
  struct PruneTarget {
    std::int64_t id = 0;
    std::vector<std::int64_t> commits;
  };
  Sql<bool> index_values();
  Sql<std::optional<PruneCandidate>> read_prune_candidate(const Pruning::Job& requested,
                                                          PruneTarget& target);
  Sql<void> delete_job(const PruneTarget& target, std::unordered_set<Hash>& named);
  Sql<void> preserve_job_numbers(std::int64_t last_job);
  Sql<std::optional<std::int64_t>> next_number();
  Sql<bool> has_unread_inbox(const Job& job, const Batch& batch);
  Sql<std::optional<Error>> find_refusal(const Batch& batch, const Job& job);

  Sql<Commit> create(const Batch& batch, Instant now);
  Sql<Status> check_sender(const HeldJob& sender);
  Sql<std::optional<Result<CommitResult>>> find_repeated_create(const Batch& batch,
                                                                const NewJob& requested);
  Sql<Commit> append_batch(const Batch& batch, Instant now);
  Sql<void> insert_job(const Batch& batch, const NewJob& requested, Job& job);
  Sql<void> write(const Batch& batch, Job& job);
  Sql<void> append(const SealedBatch& sealed, Job& job);
  Sql<void> write_rows(const Batch& batch, const Job& job);
  Sql<void> put_inbox(const InboxPut& put, Instant now);
  Sql<std::string> put_blobs(const SealedBatch& sealed);
  Sql<void> write_state(const Job& job);
  Sql<Lease> acquire(const JobId& id, Job& job, const std::string& worker, const AttemptId& attempt,
                     Instant until);

  Database* db_;
  StorePosition position_;
  std::uint64_t next_ = 0;
  std::string fair_by_;                  // a label; "" = no fairness keys
  std::unordered_map<JobId, Job> jobs_;  // leased jobs
  std::unordered_set<Hash> blobs_;       // known to be stored; bounded
  // A deleted job number above all existing ones; 0 = none; nullopt: not read yet.
  std::optional<std::int64_t> last_number_;

  Statement find_job_, commit_pointers_, commit_bytes_, find_key_;
  Statement insert_job_, insert_label_, insert_head_, update_head_, insert_commit_, update_state_;
  Statement put_signed_head_, put_summary_, put_checkpoint_;
  Statement insert_blob_, put_effect_, find_effect_, put_ledger_, erase_ledger_;
  Statement put_inbox_, delete_inbox_, inbox_numbers_;
  Statement put_reply_, delete_reply_, drop_old_replies_;
  Statement needs_after_, agent_after_, queue_after_, count_leased_, priority_below_,
      first_fairness_key_, fairness_key_after_, job_after_;
  Statement last_served_key_, put_served_key_, put_position_;
  Statement make_delayed_eligible_, make_expired_eligible_, update_lease_, end_leased_, end_ready_;
  Statement savepoint_, rollback_savepoint_, release_savepoint_;
};

}  // namespace ae::store::sqlite
