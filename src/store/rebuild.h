// Rebuild: compares or rewrites the data of a store that is derived from its logs.
//
// The log is authoritative. Of a job, only the id in its row, its commits and their blobs are
// trusted. The other columns (docs/data.md, "what follows from the log") are compared with a
// Projection and rewritten where they differ. Data that is not derived from the log is never
// touched: claims, effects, calls in flight, the inbox, signed heads.
// A driver keeps the bytes and does not interpret them: the caller opens them and computes the
// Projection (runtime/service/rebuild.h).
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

// The commits of a job, in the order in which they were written, and side records.
struct StoredLog {
  JobId job;
  std::vector<std::string> commits;
  // The recorded end of the log; nullopt = not recorded. It proves that a truncated log is
  // incomplete, so it is not overwritten from one.
  struct End {
    std::uint64_t last_seq = 0;
    Hash head;
  };
  std::optional<End> end;
  std::optional<std::string> signed_head;
  std::optional<Checkpoint> checkpoint;
};

// The data that is derived from a log.
struct Projection {
  JobId job;
  std::string agent, idempotency_key;
  // nullopt: the input is redacted; the stored hash stays.
  std::optional<Hash> request_hash;
  // Compared regardless of their order.
  std::vector<std::pair<std::string, std::string>> labels;
  std::int64_t priority = 0;
  std::vector<std::string> capabilities;
  std::string queue = std::string(kDefaultQueue);
  std::string forked_from;  // "" = not a fork
  Instant created_at, updated_at;
  RowState row;
  Summary summary;
  std::uint64_t epoch = 0;  // of the last attempt in the log; the stored epoch must not be lower
  std::uint64_t last_seq = 0;
  Hash head;
  struct Commit {
    std::uint64_t first_seq = 0, last_seq = 0;
    std::vector<Hash> blobs;  // in order, each once
  };
  std::vector<Commit> commits;
  // nullopt: none is required. A missing one is written, but is not reported as a difference.
  std::optional<Checkpoint> checkpoint;
};

struct Difference {
  std::string table, column;    // "" = the whole row
  std::string stored, derived;  // as SQL literals; "" = no row
};

// Store contents that no version of Aetheris writes.
struct Damage {
  std::string code, message;  // what it is, and what to do about it
};
// `what`: a trigger or rule with its name. `drop`: the statement that removes it.
Damage foreign_trigger(const std::string& what, const std::string& table, const std::string& drop);
Damage broken_meta(const std::string& key, const std::string& value);
// True for 32 hex digits, the format of a store's id.
bool is_store_id(std::string_view text);

class Rebuild {
 public:
  virtual ~Rebuild() = default;

  virtual Result<std::uint64_t> count_jobs() = 0;  // number of jobs
  // The next job, in order of creation; nullopt after the last. Fails with unavailable.
  virtual Result<std::optional<JobId>> next_job() = 0;
  // Fails with not_found · unavailable.
  virtual Result<StoredLog> read(const JobId& job) = 0;
  // Fails with log_corrupt if it is missing · unavailable.
  virtual Result<std::string> blob(const Hash& hash) = 0;

  // Compares; in a store that is opened for writing, also rewrites what differs. REQUIRES:
  // `expected` was computed from the StoredLog that `read` returned last. Fails with
  // idempotency_conflict (another job's log has the same key) · unavailable.
  virtual Result<std::vector<Difference>> reconcile(const Projection& expected, Instant now) = 0;
  // The same for rows that belong to no job.
  virtual Result<std::vector<Difference>> reconcile_store_rows() = 0;
  // Damage that concerns no job: triggers, and rows of `meta`. Fails with unavailable.
  virtual Result<std::vector<Damage>> find_damage() = 0;
  // Adds to the store's audit log with the next `commit`; does nothing when only comparing.
  virtual Status append_audit_entry(const AuditEntry& entry) = 0;
  // Makes the rewritten rows durable; before that nothing is changed. Call it often to keep
  // transactions small.
  virtual Status commit() = 0;
};

}  // namespace ae::store
