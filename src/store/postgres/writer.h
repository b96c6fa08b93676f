// Writer: the thread of this process that writes a PostgreSQL store. All queued writes share one
// transaction, in the order in which they were requested, and are answered by one post to the loop.
//
// Group commit: a refused write is an answer and does not affect the others. A failure before the
// COMMIT has changed nothing: after a deadlock or a concurrent insert the whole group is retried;
// after any other failure the writes are retried one by one, so that those that can succeed do. A
// connection that is lost during a COMMIT is `unknown_outcome`.
// Threads: its own; `write` from the loop's thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "async/loop.h"
#include "store/postgres/db_clock.h"
#include "store/postgres/session.h"
#include "store/postgres/writes.h"

namespace ae::store::postgres {

struct WriterLimits {
  std::size_t group_writes = 512;
  std::size_t group_bytes = 8u << 20;
  int tries = 8;  // of a transaction that met a conflict
};

struct WriterStats {
  std::atomic<std::uint64_t> writes{0}, groups{0}, retried{0}, reconnects{0};
};

class Writer {
 public:
  Writer(async::Loop& loop, Session session, DatabaseClock& clock, std::string channel,
         const WriterLimits& limits);
  ~Writer();  // completes queued writes

  void write(std::unique_ptr<Write> write);
  const WriterStats& stats() const { return stats_; }
  // The server process of our connection: its notifications are our own.
  int backend_pid() const { return backend_pid_; }

 private:
  using Group = std::vector<std::unique_ptr<Write>>;
  enum class CommitOutcome { committed, nothing, conflict, unknown };
  struct Attempt {
    CommitOutcome outcome = CommitOutcome::nothing;
    Error error{};
    bool connection_lost = false;
  };

  void run();
  Group next_group();  // REQUIRES: mutex_
  void process(Group group);
  Attempt attempt(const Group& group, std::size_t first, std::size_t count);
  Attempt attempt_with_retries(const Group& group, std::size_t first, std::size_t count);
  Attempt run_group(Connection& connection, const Group& group, std::size_t first,
                    std::size_t count);
  Attempt run_standalone(Connection& connection, Write& write);
  Attempt failed(Connection& connection, const PgError& error, bool may_be_committed);
  void finish(const Group& group, std::size_t first, std::size_t count, const Attempt& attempt);

  async::Loop& loop_;
  Session session_;
  DatabaseClock& clock_;
  const std::string channel_;
  const WriterLimits limits_;
  WriterStats stats_;
  std::atomic<int> backend_pid_{0};

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::unique_ptr<Write>> queue_;  // guarded by mutex_
  bool stop_ = false;                         // guarded by mutex_
  std::thread thread_;
};

}  // namespace ae::store::postgres
