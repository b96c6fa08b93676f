// Connection: libpq in pipeline mode with RAII, types and errors as values. Added statements share
// one round trip.
//
// Parameters and results are binary. Statements are prepared at their first use. A lost connection
// stays lost: its owner opens another.
// Threads: a connection and its results belong to one thread at a time; every call blocks, at most
// for `response_timeout` without data from the server.
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
#include "base/inline_text.h"
#include "base/time.h"

struct pg_conn;
struct pg_result;

namespace ae::store::postgres {

struct PgError {
  std::string sqlstate;  // "" if the server sent none
  std::string message;
  bool connection_lost = false;      // the connection is gone, or must not be used again
  std::size_t failed_statement = 0;  // index of the added statement that failed, from 0
  // The connection was lost during a COMMIT: its outcome is unknown.
  bool may_be_committed = false;

  // The whole transaction can be retried: a deadlock, a serialization failure, or a row that was
  // inserted meanwhile.
  bool is_transient() const;
  std::string text() const;  // a readable sentence
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
  template <std::size_t Size>
  Params& add(const InlineText<Size>& text) {
    return add(text.view());
  }
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

// One column of many rows: an array in the server's binary format.
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
  template <std::size_t Size>
  void add(const InlineText<Size>& text) {
    add(text.view());
  }
  void add(const char*) = delete;  // it would convert to bool
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
