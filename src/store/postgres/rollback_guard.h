// Recollection: what a process remembers of a store that many share, so that one that went backwards is noticed.
//
// A server that was restored from a backup, or another one that took over without the last commits, answers as if nothing
// had been. So each process remembers the last row that it wrote of a job (its epoch and last seq never go down), and looks
// whether it is still there: when it begins, on every new connection, and every few seconds. What it remembers is kept in a
// file of its machine too, about once a second. Whoever finds something missing says so in the store, and then all stop.
// A row that was deleted with its job (store/postgres/prune.h) is not missing: the audit log says so, and from then on that
// entry is what is remembered.
// Stored: rows of `meta`: `lost` (what was found missing; nobody writes), `timeline` (absent = the store's id), `timelines`
// (earlier ones, one a line: what was lost of them was accepted), `accepting` (not every job has been parked yet). The file:
// one line of text with a checksum. See docs/decisions/0035-backup-and-restore.md.
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

// What this process wrote last: a job's row, or, without a job, an entry of the audit log.
struct HighWaterMark {
  JobId job;
  std::uint64_t number = 0;  // 0 = an older version kept it, and did not say
  std::uint64_t epoch = 0, last_seq = 0;
  AuditHead audit;
  friend bool operator==(const HighWaterMark&, const HighWaterMark&) = default;
};

// Where the store stands, by its own word.
struct StoreIdentity {
  std::string timeline;
  std::vector<std::string> before;
  std::string lost;
  bool accepting = false;
};
Result<StoreIdentity> read_store_identity(Connection& connection, const std::string& store_id);

class RollbackGuard {
 public:
  // `folder`: where what is remembered is kept; "" = nowhere. `accepts`: a loss is being accepted here.
  RollbackGuard(std::string store_id, const std::string& folder, bool accepts);
  ~RollbackGuard();  // keeps what is remembered

  // Is all there that is remembered? Fails with store_rolled_back (at the first look) · store_stopped (later: this process
  // holds what the store does not know, and has to begin anew) · unavailable.
  Status check(Connection& connection);
  // The same of one that is being opened, and nothing is said in the store. Fails with store_rolled_back · unavailable.
  Status check_unopened(Connection& connection);
  // What this process has written, once it is durable.
  void record_write(const HighWaterMark& high_water_mark);

  // The loss, in words, if there is one; of a store that is being opened.
  Result<std::optional<std::string>> find_loss(Connection& connection,
                                               const StoreIdentity& identity);
  // A new timeline, and an entry in the audit log; until `finish_accepting` nobody else opens the store.
  Status accept(Connection& connection, const std::string& lost, Instant at, const std::string& by);
  // Of a copy that lacks nothing: an entry in the audit log, and it goes on here.
  static Status accept_move(Connection& connection, const std::string& why, Instant at,
                            const std::string& by);
  std::string timeline() const;

 private:
  struct SavedMark {
    std::string timeline;
    HighWaterMark high_water_mark;
  };
  static std::optional<std::string> compare(const StoreIdentity& identity,
                                            const SavedMark& remembered,
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
  std::string timeline_;            // guarded by mutex_; "" before the first look
  std::optional<SavedMark> saved_;  // guarded by mutex_
  std::optional<Error> stopped_;    // guarded by mutex_
  bool changed_ = false;            // guarded by mutex_: what is kept is older
  std::chrono::steady_clock::time_point save_at_{};
};

// Every job that had not ended has been parked: the store is opened as any other.
Pg<void> finish_accepting(Connection& connection);

}  // namespace ae::store::postgres
