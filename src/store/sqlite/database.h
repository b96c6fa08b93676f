// Database: a SQLite connection and its statements, with RAII, types and errors as values.
//
// Threads: a connection and its statements belong to one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/hash.h"
#include "base/inline_text.h"
#include "base/time.h"

struct sqlite3;
struct sqlite3_stmt;

namespace ae::store::sqlite {

struct SqlError {
  int code = 0;      // extended result code
  int os_errno = 0;  // of the failed system call, or 0
  std::string message;

  bool disk_full() const;    // nothing of this transaction was committed
  bool no_space() const;     // no disk space; the commit may exist
  bool busy() const;         // another program has locked the file
  bool io() const;           // an I/O error: it is unknown what is durable
  bool corrupt() const;      // the file's contents are not what was written
  bool damaged() const;      // corrupt, or not a database
  std::string text() const;  // a readable sentence
};

template <class T>
using Sql = std::expected<T, SqlError>;

struct Bytes {  // bound as a BLOB; a string_view is bound as TEXT
  std::string_view bytes;
};

class Statement {
 public:
  Statement() = default;
  Statement(sqlite3* db, sqlite3_stmt* statement) : db_(db), statement_(statement) {}
  Statement(Statement&& other) noexcept { swap(other); }
  Statement& operator=(Statement&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Statement();

  // Runs a statement that returns no rows. Texts and bytes are borrowed for the call.
  template <class... Args>
  Sql<void> run(const Args&... args) {
    int index = 0;
    (bind(++index, args), ...);
    return finish();
  }
  // Starts one that returns rows: `while (next())`, then `reset()` (Rows does it). Bound values are
  // borrowed until then.
  template <class... Args>
  void start(const Args&... args) {
    int index = 0;
    (bind(++index, args), ...);
  }
  template <class T>
  void set(int index, const T& value) {
    bind(index, value);
  }
  Sql<bool> next();
  void reset();

  bool is_null(int column) const;
  std::int64_t integer(int column) const;
  std::uint64_t count(int column) const { return static_cast<std::uint64_t>(integer(column)); }
  std::string_view bytes(int column) const;  // of a TEXT or BLOB; valid until the next step
  std::string text(int column) const { return std::string(bytes(column)); }
  Hash hash(int column) const;
  Instant instant(int column) const { return {integer(column)}; }
  std::optional<Instant> maybe_instant(int column) const;

 private:
  void swap(Statement& other) noexcept {
    std::swap(db_, other.db_);
    std::swap(statement_, other.statement_);
  }
  void bind(int index, std::int64_t value);
  void bind(int index, std::uint64_t value) { bind(index, static_cast<std::int64_t>(value)); }
  void bind(int index, std::uint32_t value) { bind(index, static_cast<std::int64_t>(value)); }
  void bind(int index, std::string_view text);
  void bind(int index, const std::string& text) { bind(index, std::string_view(text)); }
  template <std::size_t Size>
  void bind(int index, const InlineText<Size>& text) {
    bind(index, text.view());
  }
  void bind(int index, Bytes bytes);
  void bind(int index, const Hash& hash);
  void bind(int index, Instant instant) { bind(index, instant.us); }
  void bind(int index, std::nullopt_t);
  template <class T>
  void bind(int index, const std::optional<T>& value) {
    if (value) {
      bind(index, *value);
    } else {
      bind(index, std::nullopt);
    }
  }
  Sql<void> finish();

  sqlite3* db_ = nullptr;
  sqlite3_stmt* statement_ = nullptr;
};

// Resets a started statement at the end of the scope.
class Rows {
 public:
  template <class... Args>
  explicit Rows(Statement& statement, const Args&... args) : statement_(statement) {
    statement_.start(args...);
  }
  ~Rows() { statement_.reset(); }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;
  Sql<bool> next() { return statement_.next(); }
  Statement* operator->() { return &statement_; }

 private:
  Statement& statement_;
};

class Database {
 public:
  struct Options {
    std::string path;
    bool read_only = false;
    bool immutable = false;  // no writers: no lock, no -shm file (for a read-only folder)
    std::string vfs;         // "" = the system's
    std::chrono::milliseconds busy{5000};
  };
  static Sql<Database> open(const Options& options);
  Database() = default;
  Database(Database&& other) noexcept
      : db_(std::exchange(other.db_, nullptr)),
        progress_callback_(std::move(other.progress_callback_)) {}
  Database& operator=(Database&& other) noexcept {
    std::swap(db_, other.db_);
    std::swap(progress_callback_, other.progress_callback_);
    return *this;
  }
  ~Database() { close(); }
  void close();  // REQUIRES: no open statements

  Sql<Statement> prepare(std::string_view sql);
  Sql<void> execute(const char* sql);
  Sql<std::int64_t> integer(std::string_view sql);  // first column of the first row; 0 without rows

  std::int64_t last_rowid() const;
  bool in_transaction() const;
  std::int64_t changes() const;  // rows written since the connection was opened
  void set_busy_timeout(std::chrono::milliseconds timeout);
  // Keeps `*pages` at the number of pages in the WAL. Borrowed.
  void track_wal_pages(std::size_t* pages);
  // Copies the WAL into the database file; `truncate` also empties it, unless a reader blocks that.
  Sql<void> checkpoint(bool truncate);
  // Sets a callback that is called periodically while a statement runs, until the connection
  // closes.
  void set_progress_callback(std::function<void()> callback);
  void disable_checkpoint_on_close();  // no checkpoint when this connection closes

 private:
  explicit Database(sqlite3* db) : db_(db) {}
  sqlite3* db_ = nullptr;
  std::unique_ptr<std::function<void()>> progress_callback_;
};

}  // namespace ae::store::sqlite
