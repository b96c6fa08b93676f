// Reader: runs queries on a connection and thread of its own, so that they do not wait for writes
// or other readers.
//
// Every answer uses short transactions. A long log is read in pages, which is consistent because
// logs are append-only. Jobs that are deleted or redacted meanwhile are read again.
// Threads: its own; `enqueue` from the loop's thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "store/log_window.h"
#include "store/sqlite/database.h"
#include "store/store.h"

namespace ae::store::sqlite {

// A read transaction that ends with the scope.
class Snapshot {
 public:
  Snapshot(Statement& begin, Statement& end) : begin_(begin), end_(end) {}
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;
  ~Snapshot();
  Sql<void> open();

 private:
  Statement& begin_;
  Statement& end_;
  bool open_ = false;
};

// The statements of a reading connection.
class ReadStatements {
 public:
  static Sql<ReadStatements> open(Database db);

  Sql<Result<LoadedJob>> load(const JobId& job, std::uint64_t from_seq);
  Sql<Result<LogWindow>> load_window(const JobId& job, const WindowRequest& window);
  Sql<Result<std::vector<JobRow>>> query(const Filter& filter);
  Sql<EndedPage> list_ended(const EndedFilter& filter);
  Sql<std::vector<JobId>> list_due(std::size_t limit, Instant now);
  Sql<std::optional<Instant>> next_due(Instant now);
  Sql<AuditLog> read_audit_log(std::uint64_t after);
  Sql<Result<InboxEntryState>> read_inbox_entry(const JobId& job, const std::string& id);
  Sql<JobStats> count_jobs(Instant now);
  Sql<JobCounts> count_matching(const CountFilter& filter);

 private:
  struct JobLocation {
    std::int64_t id = 0;
    std::int64_t last_commit = 0;
    JobRow row;
  };
  explicit ReadStatements(Database db) : db_(std::move(db)) {}

  Sql<std::optional<JobLocation>> find(const JobId& job);
  Sql<JobRow> read_row(Statement& row);
  Sql<bool> is_deleted(const JobLocation& found);
  Sql<Result<LoadedJob>> load(const JobId& job, std::uint64_t from_seq, int tries);
  Sql<Result<LoadedJob>> load_first(const JobId& job);
  Sql<bool> read_first(const JobLocation& found, LoadedJob& into);
  // These answer whether all blobs were found.
  Sql<bool> read_commits(const JobLocation& found, std::uint64_t from_seq, LoadedJob& into);
  Sql<std::int64_t> step_back(std::int64_t commits, std::size_t bytes_max, const JobLocation& found,
                              std::uint64_t from_seq, LoadedJob& into, std::vector<Hash>& blobs);
  Sql<bool> read_remaining_commits(const JobLocation& found, std::uint64_t from_seq,
                                   LoadedJob& into);
  Sql<bool> read_blobs(const std::vector<Hash>& hashes, std::vector<Blob>& into);
  // A commit of a window; `id` 0: it is missing, or its pointers are damaged.
  struct LinkedSpan {
    std::int64_t id = 0, prev = 0, jump = 0;
    CommitSpan span;
  };
  Sql<LinkedSpan> read_span(const JobLocation& found, std::int64_t commit);
  Sql<LinkedSpan> find_commit(const JobLocation& found, std::uint64_t seq);
  Sql<void> read_rows(const JobLocation& found, LoadedJob& into);

  Database db_;
  Statement begin_, end_;
  Statement find_, labels_, commit_, commit_span_, blob_, effects_, ledger_, inbox_, inbox_entry_,
      signed_head_, request_, checkpoint_;
  Statement due_, next_wake_, next_eligible_, number_, job_exists_;
};

class Reader {
 public:
  using ReadTask = std::move_only_function<void(ReadStatements&)>;

  explicit Reader(ReadStatements statements);
  ~Reader();  // runs the queued tasks first
  void enqueue(ReadTask task);

 private:
  void run();

  ReadStatements statements_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<ReadTask> tasks_;  // guarded by mutex_
  bool stop_ = false;           // guarded by mutex_
  std::thread thread_;
};

}  // namespace ae::store::sqlite
