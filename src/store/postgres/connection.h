// Connection: libpq in pipeline mode with owners, types and errors as values. What is added rides one round trip.
//
// Everything goes and comes in binary. Statements are prepared when they are first used. A connection that is lost
// stays lost: whoever owns it opens another.
// Threads: a connection and what it answers belong to one thread at a time; every call blocks, in silence up to `response_timeout`.
#pragma once

#include <chrono>
#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/time.h"

struct pg_conn;
struct pg_result;

namespace ae::store::postgres {

struct PgError {
  std::string sqlstate;  // "" when the server did not say it
  std::string message;
  bool lost = false;   // the connection is gone, or must not be used any more
  std::size_t at = 0;  // which of the statements that were added failed, from 0
  bool may_be_committed =
      false;  // lost when a COMMIT was under way: nobody knows what became of it

  // The whole transaction may be tried again: a deadlock, a serialization failure, a row that came meanwhile.
  bool is_transient() const;
  std::string text() const;  // a sentence for a person
};

template <class T>
using Pg = std::expected<T, PgError>;

struct Statement {
  const char* name;
  const char* sql;
};

struct Bytes {  // sent as bytea; a string_view is sent as text
  std::string_view bytes;
};

// The parameters of one statement, in order.
class Params {
 public:
  Params& add(std::int64_t value);
  Params& add(std::uint64_t value) { return add(static_cast<std::int64_t>(value)); }
  Params& add(Instant value) { return add(value.us); }
  Params& add(std::string_view text);
  Params& add(const std::string& text) { return add(std::string_view(text)); }
  Params& add(const char* text) { return add(std::string_view(text)); }
  Params& add(Bytes bytes) { return add(bytes.bytes); }
  Params& add(std::nullopt_t);
  template <class T>
  Params& add(const std::optional<T>& value) {
    return value ? add(*value) : add(std::nullopt);
  }
  template <class Array>
    requires requires(const Array& array) { array.encoded(); }
  Params& add(const Array& array) {
    return add_encoded(array.encoded());
  }

 private:
  friend class Connection;
  Params& add_encoded(std::string bytes);
  std::vector<std::optional<std::string>> values_;
};

// A column of many rows: an array in the server's binary form.
class Column {
 public:
  enum class Type : std::uint32_t { boolean = 16, bytes = 17, integer = 20, text = 25 };
  explicit Column(Type type) : type_(type) {}

  void add(bool value);
  void add(std::int64_t value);
  void add(std::uint64_t value) { add(static_cast<std::int64_t>(value)); }
  void add(Instant value) { add(value.us); }
  void add(std::string_view bytes);
  void add(const std::string& text) { add(std::string_view(text)); }
  void add(const char*) = delete;  // it would be a bool
  void add(const Hash& hash);
  void add(std::nullopt_t);
  template <class T>
  void add(const std::optional<T>& value) {
    if (value) {
      add(*value);
    } else {
      add(std::nullopt);
    }
  }
  bool empty() const { return count_ == 0; }
  std::string encoded() const;

 private:
  Type type_;
  std::uint32_t count_ = 0;
  bool nulls_ = false;
  std::string body_;
};

class Rows {
 public:
  explicit Rows(pg_result* result) : result_(result) {}
  Rows(Rows&& other) noexcept : result_(std::exchange(other.result_, nullptr)) {}
  Rows& operator=(Rows&& other) noexcept {
    std::swap(result_, other.result_);
    return *this;
  }
  ~Rows();

  int size() const;
  bool empty() const { return size() == 0; }
  bool is_null(int row, int column) const;
  bool boolean(int row, int column) const;
  std::int64_t integer(int row, int column) const;  // of an int8
  std::uint64_t count(int row, int column) const {
    return static_cast<std::uint64_t>(integer(row, column));
  }
  std::string_view bytes(int row, int column) const;  // of a text or bytea
  std::string text(int row, int column) const { return std::string(bytes(row, column)); }
  Hash hash(int row, int column) const;
  Instant instant(int row, int column) const { return {integer(row, column)}; }
  std::optional<Instant> maybe_instant(int row, int column) const;

 private:
  pg_result* result_;
};

// Does libpq understand it?
bool is_connection_string(const std::string& url);

class Connection {
 public:
  struct Options {
    std::string url;  // as libpq reads it
    std::chrono::milliseconds connect_timeout{5000};
    std::chrono::milliseconds response_timeout{9000};  // of silence; then it is lost
  };
  static Pg<Connection> open(const Options& options);
  Connection(Connection&&) noexcept = default;
  Connection& operator=(Connection&&) noexcept = default;

  // The next statement of the round trip. REQUIRES: the statement lives as long as the connection.
  void add(const Statement& statement, const Params& params = {});
  // The same of one that is asked once.
  void add_unprepared(const std::string& sql, const Params& params = {});
  // Sends what was added and gives the answers, in order. After an error nothing behind it was run.
  // A server that warns while it commits (it waited for a standby, and was told not to) has not done what was asked of it:
  // the connection counts as lost, and the commit may stand.
  Pg<std::vector<Rows>> run();

  bool lost() const;
  bool is_closed_by_server() const;  // the server has closed it; said without asking the server
  int socket() const;
  int server_version() const;  // 150004 = 15.4
  int backend_pid() const;     // the server's process that was named to us at the start
  // What has been notified since; reads what has come, without waiting. False: the connection is lost.
  bool drain_notifications(
      const std::function<void(std::string_view payload, int backend_pid)>& take);

 private:
  struct ConnectionDeleter {
    void operator()(pg_conn* connection) const;
  };
  struct PendingStatement {
    const Statement* prepares = nullptr;  // its answer is nobody's
  };
  explicit Connection(pg_conn* connection, std::chrono::milliseconds response_timeout)
      : connection_(connection), response_timeout_(response_timeout) {}
  static void note(void* warning, const pg_result* notice);
  void track_transaction(std::string_view sql);
  PgError last_error(bool lost) const;
  void on_send_failed();
  std::optional<PgError> wait();
  std::optional<PgError> collect(std::vector<Rows>& answers);

  // The last warning since somebody looked, shared with libpq.
  std::unique_ptr<std::optional<std::string>> last_warning_ =
      std::make_unique<std::optional<std::string>>();
  std::unique_ptr<pg_conn, ConnectionDeleter> connection_;
  std::chrono::milliseconds response_timeout_;
  std::unordered_set<const Statement*> prepared_;
  std::unordered_set<const Statement*> preparing_;
  std::vector<PendingStatement> pending_;
  std::optional<PgError> send_error_;
  bool is_in_transaction_ = false;  // what is added now is inside of a transaction
  bool is_autocommit_ = false;      // a statement of this round trip is not: its end commits that
  std::optional<std::size_t> commit_;  // where the COMMIT stands in pending_
};

}  // namespace ae::store::postgres
