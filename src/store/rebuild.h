// Rebuild: what a store keeps beside its logs and could make anew from them, compared or written.
//
// The log decides. Of a job only the name of its row, its commits and their blobs are believed; what the rows say of it
// (docs/data.md, "what follows from the log") is compared with a Projection and, where it differs, written. What does not
// follow from the log is never touched: claims, effects, calls in flight, the inbox, signed heads.
// A driver keeps the bytes and does not understand them: whoever opens them makes the Projection (runtime/rebuild.h).
// Threads: one; every call blocks. See docs/data.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/time.h"
#include "store/store.h"

namespace ae::store {

// A job as its commits have it, in the order in which they were written.
struct StoredLog {
  JobId job;
  std::vector<std::string> commits;
  // Where the store knows the log to end; nullopt = it does not say. What it says is a witness against a log that has
  // lost its end, and not to be overwritten by one.
  struct End {
    std::uint64_t last_seq = 0;
    Hash head;
  };
  std::optional<End> end;
  std::optional<std::string> signed_head;
  std::optional<Checkpoint> checkpoint;
};

// What follows from a log.
struct Projection {
  JobId job;
  std::string agent, idempotency_key;
  std::optional<Hash>
      request_hash;  // nullopt: the input has been redacted; what stands there stays
  std::vector<std::pair<std::string, std::string>>
      labels;  // compared without regard to their order
  std::int64_t priority = 0;
  std::vector<std::string> capabilities;
  std::string queue = std::string(kDefaultQueue);
  Instant created_at, updated_at;
  RowState row;
  std::uint64_t epoch = 0;  // of the last attempt that the log knows: no later one has a lower
  std::uint64_t last_seq = 0;
  Hash head;
  struct Commit {
    std::uint64_t first_seq = 0, last_seq = 0;
    std::vector<Hash> blobs;  // in order, each once
  };
  std::vector<Commit> commits;
  // nullopt: there need not be one. One that is missing is made, and is no difference to who only compares.
  std::optional<Checkpoint> checkpoint;
};

struct Difference {
  std::string table, column;    // "" = the whole row
  std::string stored, derived;  // as SQL writes them; "" = no row
};

// What no version of ours wrote into a store.
struct Damage {
  std::string code, message;  // what it is, and what to do about it
};
// `what`: a trigger or rule with its name. `drop`: the statement that removes it.
Damage foreign_trigger(const std::string& what, const std::string& table, const std::string& drop);
Damage broken_meta(const std::string& key, const std::string& value);
// 32 hex digits, as the id of a store.
bool is_store_id(std::string_view text);

class Rebuild {
 public:
  virtual ~Rebuild() = default;

  virtual Result<std::uint64_t> jobs() = 0;  // how many
  // The next job, in order of creation; nullopt after the last. Fails with unavailable.
  virtual Result<std::optional<JobId>> next() = 0;
  // Fails with not_found · unavailable.
  virtual Result<StoredLog> read(const JobId& job) = 0;
  // Fails with log_corrupt when it is missing · unavailable.
  virtual Result<std::string> blob(const Hash& hash) = 0;

  // Compares; a store that was opened to write also writes what differs. REQUIRES: `wanted` was made of the StoredLog
  // that `read` gave last. Fails with idempotency_conflict (another job's log has the key too) · unavailable.
  virtual Result<std::vector<Difference>> reconcile(const Projection& wanted, Instant now) = 0;
  // The same with rows of no job.
  virtual Result<std::vector<Difference>> reconcile_rest() = 0;
  // What is wrong with the store and with no row of a job: triggers, and rows of `meta`. Fails with unavailable.
  virtual Result<std::vector<Damage>> damage() = 0;
  // Adds to the store's audit log, with the next `commit`; nothing when it only compares.
  virtual Status append_audit_entry(const AuditEntry& entry) = 0;
  // Makes durable what was settled; until then nothing of it is there. It is called often enough to keep it small.
  virtual Status commit() = 0;
};

}  // namespace ae::store
