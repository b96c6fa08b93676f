// Connection: libpq in pipeline mode with RAII, results and errors as values. Added statements
// share one round trip.
//
// Parameters (params.h) and results (rows.h) are binary. Statements are prepared at their first
// use. A lost connection stays lost: its owner opens another.
// Threads: a connection and its results belong to one thread at a time; every call blocks, at most
// for `response_timeout` without data from the server.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "store/postgres/params.h"
#include "store/postgres/pg_error.h"
#include "store/postgres/rows.h"

struct pg_conn;
struct pg_result;

namespace ae::store::postgres {

struct Statement {
  const char* name;
  const char* sql;
};

// True if libpq accepts it as a connection string.
bool is_connection_string(const std::string& url);

class Connection {
 public:
  struct Options {
    std::string url;  // a libpq connection string
    std::chrono::milliseconds connect_timeout{5000};
    std::chrono::milliseconds response_timeout{9000};  // without data; then it is lost
  };
  static Pg<Connection> open(const Options& options);
  Connection(Connection&&) noexcept = default;
  Connection& operator=(Connection&&) noexcept = default;

  // Adds the next statement of the round trip. REQUIRES: the statement lives as long as the
  // connection.
  void add(const Statement& statement, const Params& params = {});
  // The same for a statement that is used once.
  void add_unprepared(const std::string& sql, const Params& params = {});
  // Sends the added statements and returns their results, in order. After an error no later
  // statement was run.
  // If the server warns during a COMMIT (its wait for a standby was cancelled), the commit is not
  // durable as configured: the connection counts as lost, and the commit may have happened.
  Pg<std::vector<Rows>> run();
  // Ends the transaction after this error, unless the connection is lost; returns the error.
  PgError roll_back(PgError error);

  bool lost() const;
  bool is_closed_by_server() const;  // the server has closed it; checked without a request
  int socket() const;
  int server_version() const;  // 150004 = 15.4
  int backend_pid() const;     // process id of the server's backend, as announced at the start
  // Passes on the notifications received so far; does not wait. False: the connection is lost.
  bool drain_notifications(
      const std::function<void(std::string_view payload, int backend_pid)>& on_notification);

 private:
  struct ConnectionDeleter {
    void operator()(pg_conn* connection) const;
  };
  struct PendingStatement {
    const Statement* prepares = nullptr;  // set for a PREPARE: its result is not returned
  };
  explicit Connection(pg_conn* connection, std::chrono::milliseconds response_timeout)
      : connection_(connection), response_timeout_(response_timeout) {}
  static void note(void* warning, const pg_result* notice);
  void track_transaction(std::string_view sql);
  PgError last_error(bool connection_lost) const;
  void on_send_failed();
  std::optional<PgError> wait();
  std::optional<PgError> collect(std::vector<Rows>& answers);

  // The last warning since the last reset; shared with libpq.
  std::unique_ptr<std::optional<std::string>> last_warning_ =
      std::make_unique<std::optional<std::string>>();
  std::unique_ptr<pg_conn, ConnectionDeleter> connection_;
  std::chrono::milliseconds response_timeout_;
  std::unordered_set<const Statement*> prepared_;
  std::unordered_set<const Statement*> preparing_;
  std::vector<PendingStatement> pending_;
  std::optional<PgError> send_error_;
  bool is_in_transaction_ = false;     // statements added now are inside a transaction
  bool is_autocommit_ = false;         // a statement of this round trip is outside a transaction
  std::optional<std::size_t> commit_;  // index of the COMMIT in pending_
};

}  // namespace ae::store::postgres
