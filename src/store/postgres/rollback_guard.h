// RollbackGuard: remembers the last write of this process to a shared store, to detect a rollback
// of the store.
//
// A server that was restored from a backup, or a standby that took over without the last commits,
// responds normally. So each process remembers the last job row that it wrote (its epoch and last
// seq never decrease) and checks that it still exists: at the start, on every new connection, and
// every few seconds. It also saves this mark to a file on its machine, about once a second. The
// first process that finds a loss records it in the store, and then all processes stop.
// A row that was deleted with its job (store/postgres/prune.h) is not a loss: the audit log
// contains the deletion, and that entry becomes the remembered mark.
// Stored: rows of `meta`: `loss` (the detected loss; writes are refused), `timeline` (absent = the
// store's id), `timelines` (earlier ones, one per line, ended by accepted losses), `accepting` (not
// every job has been parked yet). The file: one line of text with a checksum. See
// docs/decisions/0035-backup-and-restore.md.
// Threads: any.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "base/time.h"
#include "store/audit.h"
#include "store/postgres/connection.h"
#include "store/postgres/schema.h"

namespace ae::store::postgres {

// The last write of this process: a job's row or, with an empty `job`, an entry of the audit log.
struct HighWaterMark {
  JobId job;
  std::uint64_t number = 0;  // 0 = unknown (saved by an older version)
  std::uint64_t epoch = 0, last_seq = 0;
  AuditHead audit;
  friend bool operator==(const HighWaterMark&, const HighWaterMark&) = default;
};

// The state of the store, as its own rows record it.
struct StoreIdentity {
  std::string timeline;
  std::vector<std::string> earlier_timelines;
  std::string loss;
  bool accepting = false;
};
Result<StoreIdentity> read_store_identity(Connection& connection, const std::string& store_id);

class RollbackGuard {
 public:
  // `folder`: where the mark is saved; "" = nowhere. `accepts`: a loss is being accepted by this
  // process.
  RollbackGuard(std::string store_id, const std::string& folder, bool accepts);
  ~RollbackGuard();  // saves the mark

  // Checks that the remembered write still exists. Fails with store_rolled_back (first check) ·
  // store_stopped (later: this process knows writes that the store has lost, and must be restarted)
  // · unavailable.
  Status check(Connection& connection);
  // The same for a store that is being opened; records nothing in the store. Fails with
  // store_rolled_back · unavailable.
  Status check_unopened(Connection& connection);
  // Remembers a write of this process. Call it once the write is durable.
  void record_write(const HighWaterMark& high_water_mark);

  // Describes the loss of a store that is being opened, if there is one.
  Result<std::optional<std::string>> find_loss(Connection& connection,
                                               const StoreIdentity& identity);
  // Accepts a loss: a new timeline and an audit entry. Until `finish_accepting` no other process
  // opens the store.
  Status accept(Connection& connection, const std::string& loss, Instant at, const std::string& by);
  // Accepts a move without loss: an audit entry and the new location.
  static Status accept_move(Connection& connection, const std::string& why, Instant at,
                            const std::string& by);
  std::string timeline() const;

 private:
  struct SavedMark {
    std::string timeline;
    HighWaterMark high_water_mark;
  };
  static std::optional<std::string> compare(const StoreIdentity& identity, const SavedMark& saved,
                                            const std::optional<HighWaterMark>& current);
  static Result<std::optional<HighWaterMark>> current(Connection& connection,
                                                      const HighWaterMark& high_water_mark);
  static Result<std::optional<HighWaterMark>> find_prune_entry(
      Connection& connection, const HighWaterMark& high_water_mark);
  std::optional<SavedMark> read() const;
  void save();

  const std::string store_id_, path_;
  const bool is_accepting_;
  mutable std::mutex mutex_;
  std::string timeline_;            // guarded by mutex_; "" before the first check
  std::optional<SavedMark> saved_;  // guarded by mutex_
  std::optional<Error> stopped_;    // guarded by mutex_
  bool changed_ = false;            // guarded by mutex_: the saved file is older
  std::chrono::steady_clock::time_point save_at_{};
};

// Call when every unfinished job is parked: the store opens normally again.
Pg<void> finish_accepting(Connection& connection);

}  // namespace ae::store::postgres
