// Writer: writes a PostgreSQL store in groups, on its own thread (store/group_writer.h). The plain
// commits of a group are one statement (plain_commits.h); its other writes share one transaction.
//
// Group commit: a refused write is an answer and does not affect the others. A failure before the
// COMMIT has changed nothing: after a deadlock or a concurrent insert the whole group is retried;
// after any other failure the writes are retried one by one, so that those that can succeed do. A
// connection that is lost during a COMMIT is `unknown_outcome`.
// Threads: its own; `write` from the loop's thread.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "async/loop.h"
#include "store/group_writer.h"
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
  std::atomic<std::uint64_t> writes{0}, plain{0}, groups{0}, retried{0}, reconnects{0};
};

class Writer {
 public:
  Writer(async::Loop& loop, Session session, DatabaseClock& clock, std::string channel,
         const WriterLimits& limits);
  void write(std::unique_ptr<Write> write) { group_writer_->write(std::move(write)); }
  const WriterStats& stats() const { return stats_; }
  // The server process of our connection: its notifications are our own.
  int backend_pid() const { return backend_pid_; }

 private:
  using Thread = GroupWriter<Writer, Write>;
  using Group = Thread::Group;
  friend Thread;
  enum class CommitOutcome { committed, nothing, conflict, unknown };
  struct Attempt {
    CommitOutcome outcome = CommitOutcome::nothing;
    Error error{};
    bool connection_lost = false;
  };

  // As GroupWriter requires them.
  static bool is_alone(const Write& write) { return write.is_standalone(); }
  std::vector<Group> divide(Group group) const;
  Attempt attempt(const Group& group, std::size_t first, std::size_t count);
  bool may_split(const Attempt& attempt) const;
  void finish(Write& write, const Attempt& attempt);
  void on_written(const Group& group);
  void on_answered(bool) {}
  std::optional<std::chrono::milliseconds> idle_time() const { return std::nullopt; }
  void on_idle() {}

  bool is_plain(const Write& write) const;
  Attempt attempt_once(const Group& group, std::size_t first, std::size_t count);
  Attempt run_group(Connection& connection, const Group& group, std::size_t first,
                    std::size_t count);
  std::optional<Attempt> run_plain(Connection& connection, const Group& group, std::size_t first,
                                   std::size_t count);
  Attempt run_standalone(Connection& connection, Write& write);
  Attempt failed(Connection& connection, const PgError& error, bool may_be_committed);

  Session session_;
  DatabaseClock& clock_;
  WrittenRows written_rows_;
  const std::string channel_;
  const WriterLimits limits_;
  WriterStats stats_;
  std::atomic<int> backend_pid_{0};

  std::unique_ptr<Thread> group_writer_;  // last: it uses all others
};

}  // namespace ae::store::postgres
