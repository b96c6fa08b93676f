// Writer: writes a store in groups, on its own thread (store/group_writer.h). All writes of a group
// share one transaction and one fsync.
//
// Group commit: a refused write is an answer and does not affect the others. When the database
// fails (a full disk), the transaction is rolled back and the writes are retried one by one, so
// that those that fit succeed. A COMMIT that fails with an I/O error is `unknown_outcome`, and
// nothing is written or read after it: only a restart can determine what is on disk.
// Checkpoints: only this connection makes them (SQLite 3.40.1 must not have two), at a size limit
// and when idle.
// Threads: its own; `write` from the loop's thread.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "async/loop.h"
#include "store/group_writer.h"
#include "store/sqlite/database.h"
#include "store/sqlite/tables.h"
#include "store/store.h"

namespace ae::store::sqlite {

// A write: created on the loop's thread, applied on the writer's, answered on the loop's.
class Write {
 public:
  virtual ~Write() = default;
  virtual std::size_t bytes() const { return 0; }
  // Inside a transaction; keeps the answer for later. May be called again after a rollback.
  virtual Sql<void> apply(Tables& tables) = 0;
  // The transaction is durable: hit failpoints, free memory.
  virtual void committed() = 0;
  // True for a write without a transaction that erases redacted values from the files;
  // set_residual_copies gets the places that may still contain some.
  virtual bool is_erase() const { return false; }
  virtual void set_residual_copies(std::vector<ResidualCopy> copies) { static_cast<void>(copies); }
  // Replaces the answer by an error: nothing happened, or the outcome is unknown.
  virtual void fail(const Error& error) = 0;
  virtual void answer() = 0;
};

struct WriterLimits {
  std::size_t group_writes = 1024;
  std::size_t group_bytes = 8u << 20;
  std::size_t wal_bytes = 16u << 20;     // checkpoint when the WAL has grown by this
  std::chrono::milliseconds idle{1000};  // then the WAL is emptied
  // How long to wait for another program's lock on the file.
  std::chrono::milliseconds busy{5000};
  // `erase_dropped_values` rewrites a file up to this size.
  std::size_t rewrite_bytes = 64u << 20;
  std::chrono::milliseconds readers{2000};  // and waits this long for its readers
};

// The store's file and its position file.
struct StoreFile {
  std::string path;
  PositionFile position_file;
  std::chrono::milliseconds save_interval{1000};  // minimum interval while there are writes
};

struct WriterStats {
  std::atomic<std::uint64_t> writes{0}, groups{0}, wal_bytes{0};
};

class Writer {
 public:
  // REQUIRES: tables opened on *db. Its destructor completes queued writes and empties the WAL.
  Writer(async::Loop& loop, std::unique_ptr<Database> db, Tables tables, const WriterLimits& limits,
         StoreFile place);
  void write(std::unique_ptr<Write> write) { group_writer_->write(std::move(write)); }
  // The answer of all calls after an I/O error.
  std::optional<Error> stopped() const;
  const WriterStats& stats() const { return stats_; }

 private:
  using Thread = GroupWriter<Writer, Write>;
  using Group = Thread::Group;
  friend Thread;
  enum class CommitOutcome { committed, rolled_back, unknown, refused, erased };
  struct Attempt {
    CommitOutcome outcome;
    SqlError error;
  };

  // As GroupWriter requires them.
  static bool is_alone(const Write& write) { return write.is_erase(); }
  static std::vector<Group> divide(Group group);  // one transaction for all
  Attempt attempt(const Group& group, std::size_t first, std::size_t count);
  static bool may_split(const Attempt& attempt);
  void finish(Write& write, const Attempt& attempt);
  void on_written(const Group& group);
  void on_answered(bool is_erase);
  std::optional<std::chrono::milliseconds> idle_time() const;
  void on_idle();

  void stop_writing(const SqlError& error);
  void stop(Error error);
  void checkpoint(bool truncate);
  void update_file_stamp();
  std::optional<Error> find_replacement();
  void save_position(bool now);
  void erase_dropped_values(Write& write);
  std::optional<ResidualCopy> rewrite();
  std::optional<ResidualCopy> empty_wal();

  std::unique_ptr<Database> db_;
  Tables tables_;
  Statement begin_, commit_, rollback_;
  const WriterLimits limits_;
  StoreFile store_file_;
  struct FileStamp {  // of the file, after our last write to it
    std::uint64_t device = 0, inode = 0;
    std::int64_t size = 0, changed_ns = 0;
    bool operator==(const FileStamp&) const = default;
  };
  static std::optional<FileStamp> read_file_stamp(const std::string& path);
  FileStamp file_;
  std::uint64_t saved_position_ = 0;  // position
  std::chrono::steady_clock::time_point save_position_at_{};
  WriterStats stats_;
  std::size_t wal_pages_ = 0;        // as of the last commit
  std::size_t checkpointed_at_ = 0;  // wal_pages_ at the last checkpoint

  mutable std::mutex mutex_;
  std::optional<Error> stopped_;          // guarded by mutex_
  std::unique_ptr<Thread> group_writer_;  // last: it uses all others
};

}  // namespace ae::store::sqlite
