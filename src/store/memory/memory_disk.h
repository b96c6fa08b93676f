// MemoryDisk::Data: the jobs of a memory store and their indexes.
//
// Each method changes the data at once. Pointers to jobs are stable.
// Errors: those of the store's rules; nothing else fails.
// Threads: the loop's thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/audit.h"
#include "store/batch_failpoints.h"
#include "store/memory/memory_store.h"
#include "store/store.h"

namespace ae::store {

struct MemoryDisk::Data {
  using Slot = std::pair<std::string, std::uint32_t>;  // invocation, try

  struct Commit {
    std::uint64_t first_seq = 0;
    std::string bytes;
    std::vector<Hash> blobs;
  };

  struct Job {
    std::uint64_t number = 0;  // order of creation
    JobRow row;
    Hash request_hash;
    std::uint64_t epoch = 0;  // of the last claim
    std::vector<Commit> commits;
    std::map<Slot, std::string> effects;
    std::map<Slot, LedgerRow> ledger;
    std::map<std::uint64_t, InboxEntry> inbox;
    std::map<std::string, std::string> replies;  // by id of the entry
    std::optional<std::string> signed_head;
    std::optional<Checkpoint> checkpoint;
  };

  std::map<std::uint64_t, Job> jobs;  // by number
  std::unordered_map<JobId, Job*> by_id;
  std::map<std::pair<std::string, std::string>, std::uint64_t> by_key;  // agent, idempotency key
  std::unordered_map<Hash, std::string> blobs;
  std::uint64_t last_job = 0, last_inbox = 0;
  AuditLog audit;
  struct Announcement {
    std::string text;
    Instant until;
  };
  std::map<std::string, Announcement> announcements;  // by worker

  // Indexes: `ready` = claimable now, `eligible_at` = claimable at that instant, `wakes` = jobs
  // without a lease that have a wake_at, `held` = leased jobs.
  struct Needs {
    std::string agent;
    std::vector<std::string> capabilities;
    auto operator<=>(const Needs&) const = default;
  };
  using ReadyKey = std::tuple<std::string, Needs, std::int64_t, std::string, std::int64_t>;
  std::set<ReadyKey> ready;                             // queue, needs, -priority, key, number
  std::map<std::string, std::set<std::uint64_t>> held;  // by queue
  std::set<std::pair<Instant, std::uint64_t>> eligible_at;
  std::set<std::pair<Instant, std::uint64_t>> wakes;

  std::string fair_by;                       // a label; "" = no fairness keys
  std::map<std::int64_t, std::string> last;  // the last served fairness key, by priority

  Job* find(const JobId& id);
  // After a copy of the data.
  void fill_by_id();
  void append_audit_entry(const AuditEntry& entry);

  ReadyKey ready_key(const Job& job) const;
  // Call it before a job changes, and add_to_indexes after that.
  void remove_from_indexes(const Job& job);
  void add_to_indexes(const Job& job);
  void become_eligible(Instant now);
  void set_fairness_label(const std::string& label);
  std::size_t live(const std::string& queue, Instant now);

  Lease claim(Job& job, const std::string& worker, const AttemptId& attempt, Instant until);
  void release(Job& job);
  // Deletes the blobs that no commit of any job references.
  void drop_blobs();

  bool is_committed(const Job& job, const SealedBatch& sealed) const;
  // They set `written` if the batch has changed the data. They take bytes out of it.
  Result<CommitResult> commit(Batch& batch, BatchFailpoints& failpoints, Instant now,
                              bool& written);
  Status check_sender(const HeldJob& sender);
  void put_inbox(InboxPut& put, Instant now);
  void add_to_inbox(Job& job, InboxEntry entry);  // unless it has an entry with this id
  Result<CommitResult> create(Batch& batch, BatchFailpoints& failpoints, Instant now,
                              bool& written);
  // Takes the bytes.
  void append(Job& job, SealedBatch& sealed, const RowState& row);
  static void set_row(Job& job, const RowState& state);
};

}  // namespace ae::store
