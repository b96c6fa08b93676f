// Rows of a job: what a store keeps beside the log, for queries and for the next lease holder.
//
// The log decides: the job's row is derived from it. Effect records and ledger rows belong to one
// try of a call; inbox entries are control requests that no commit has consumed yet.
// Limits: those of store.h.
// Threads: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/ids.h"
#include "base/time.h"
#include "store/claims.h"
#include "store/pending.h"

namespace ae::store {

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
  std::string forked_from;  // the origin of a fork; "" = none
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

// The kind of most jobs; lists of the other kinds have an index.
inline constexpr std::string_view kPlanKind = "plan";

// What lists show of a job beyond its row, as of the last commit that changed its status or
// attempt.
struct Summary {
  std::string error;              // code of the error with which the job ended; "" = none
  std::string kind;               // as in the body
  std::uint64_t cost_micros = 0;  // of its models
  Instant changed_at;             // the last event of that commit
  std::string body;  // canonical JSON (inspect/summary.h); the store does not interpret it
  friend bool operator==(const Summary&, const Summary&) = default;
};

struct InboxEntry {
  std::uint64_t number = 0;  // assigned by the store in order of arrival
  std::string id;            // the writer's id: the same id again changes nothing
  std::string request;       // control request: canonical JSON
  // Of a put, not stored: as Batch::sender.
  std::optional<HeldJob> sender = {};
};

// An entry for the inbox of another job than that of its batch.
struct InboxPut {
  JobId job;
  InboxEntry entry;
};

// The reply to a consumed entry, for the sender of the request: canonical JSON. The store keeps the
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
  // nullopt: the row was written by an earlier layout
  std::optional<std::string> forked_from;  // "" = not a fork
  std::optional<Summary> summary;
};

struct Checkpoint {
  std::uint64_t seq = 0;  // the last event that it covers: always the last of a commit
  std::string bytes;
};

}  // namespace ae::store
