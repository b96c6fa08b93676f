#include "store/sqlite/database.h"

#include <fmt/core.h>
#include <sqlite3.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace ae::store::sqlite {
namespace {

// errno of the last failed system call on the file: writes go to the WAL, checkpoints to the
// database file.
int os_errno_of(sqlite3* db, int which_file) {
  sqlite3_file* file = nullptr;
  int os_errno = 0;
  if (sqlite3_file_control(db, "main", which_file, static_cast<void*>(&file)) == SQLITE_OK &&
      file != nullptr && file->pMethods != nullptr) {
    file->pMethods->xFileControl(file, SQLITE_FCNTL_LAST_ERRNO, &os_errno);
  }
  return os_errno;
}

SqlError error_of(sqlite3* db, int which_file = SQLITE_FCNTL_JOURNAL_POINTER) {
  SqlError error{sqlite3_extended_errcode(db), 0, sqlite3_errmsg(db)};
  const int primary = error.code & 0xff;
  if (primary == SQLITE_IOERR) error.os_errno = os_errno_of(db, which_file);
  // For the shared index (-shm) and missing files, SQLite stores errno elsewhere. (For writes,
  // `disk_full` relies on the file's own errno.)
  if (error.os_errno == 0 && error.code != SQLITE_IOERR_WRITE &&
      (primary == SQLITE_IOERR || primary == SQLITE_CANTOPEN)) {
    error.os_errno = sqlite3_system_errno(db);
  }
  return error;
}

bool means_full(int os_errno) {
  return os_errno == ENOSPC || os_errno == EDQUOT || os_errno == EFBIG;
}

}  // namespace

bool SqlError::disk_full() const {
  // A write beyond a quota or the file-size limit is reported as IOERR_WRITE. (An IOERR of the
  // shared index can occur after the commit frame is in the WAL, so it is not counted here.)
  return (code & 0xff) == SQLITE_FULL || (code == SQLITE_IOERR_WRITE && means_full(os_errno));
}

bool SqlError::no_space() const {
  const int primary = code & 0xff;
  return disk_full() ||
         ((primary == SQLITE_IOERR || primary == SQLITE_CANTOPEN) && means_full(os_errno));
}

bool SqlError::corrupt() const { return (code & 0xff) == SQLITE_CORRUPT; }

bool SqlError::damaged() const { return corrupt() || (code & 0xff) == SQLITE_NOTADB; }

bool SqlError::busy() const {
  const int primary = code & 0xff;
  return primary == SQLITE_BUSY || primary == SQLITE_LOCKED;
}

bool SqlError::io() const { return (code & 0xff) == SQLITE_IOERR && !disk_full(); }

std::string SqlError::text() const {
  std::string text = message;
  if (os_errno != 0) text += fmt::format(" ({})", std::strerror(os_errno));
  if (disk_full()) return "no space left for the store: free some; work resumes automatically";
  if (busy()) return fmt::format("another program has locked the store's file: {}", text);
  switch (code & 0xff) {
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
      return fmt::format("the store's file or folder cannot be written: {}", text);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return fmt::format("the store's file is damaged: {}; restore a backup", text);
    default:
      return text;
  }
}

Statement::~Statement() { sqlite3_finalize(statement_); }

Sql<void> Statement::finish() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_DONE) [[likely]] {
    sqlite3_reset(statement_);
    return {};
  }
  AE_CHECK(code != SQLITE_ROW, sqlite3_sql(statement_));
  SqlError error = error_of(db_);
  sqlite3_reset(statement_);
  return std::unexpected(std::move(error));
}

Sql<bool> Statement::next() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return std::unexpected(error_of(db_));
}

void Statement::reset() { sqlite3_reset(statement_); }

bool Statement::is_null(int column) const {
  return sqlite3_column_type(statement_, column) == SQLITE_NULL;
}
std::int64_t Statement::integer(int column) const {
  return sqlite3_column_int64(statement_, column);
}
std::string_view Statement::bytes(int column) const {
  const void* data = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  if (data == nullptr) return {};
  return {static_cast<const char*>(data), static_cast<std::size_t>(size)};
}
Hash Statement::hash(int column) const {
  Hash hash;
  const std::string_view raw = bytes(column);
  std::memcpy(hash.bytes.data(), raw.data(), std::min(raw.size(), hash.bytes.size()));
  return hash;
}
std::optional<Instant> Statement::maybe_instant(int column) const {
  if (is_null(column)) return std::nullopt;
  return instant(column);
}

void Statement::bind(int index, std::int64_t value) {
  sqlite3_bind_int64(statement_, index, value);
}
void Statement::bind(int index, std::string_view text) {
  const char* data = text.data() == nullptr ? "" : text.data();
  sqlite3_bind_text64(statement_, index, data, text.size(), SQLITE_STATIC, SQLITE_UTF8);
}
void Statement::bind(int index, Bytes bytes) {
  const char* data = bytes.bytes.data() == nullptr ? "" : bytes.bytes.data();
  sqlite3_bind_blob64(statement_, index, data, bytes.bytes.size(), SQLITE_STATIC);
}
void Statement::bind(int index, const Hash& hash) {
  sqlite3_bind_blob64(statement_, index, hash.bytes.data(), hash.bytes.size(), SQLITE_STATIC);
}
void Statement::bind(int index, std::nullopt_t) { sqlite3_bind_null(statement_, index); }

Sql<Database> Database::open(const Options& options) {
  std::string uri = "file:";
  for (const char c : options.path) {
    if (c == '?' || c == '#' || c == '%') {
      static constexpr char kDigits[] = "0123456789ABCDEF";
      const auto byte = static_cast<unsigned char>(c);
      uri += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      uri += c;
    }
  }
  if (options.immutable) uri += "?immutable=1";
  const int flags = SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_URI | SQLITE_OPEN_EXRESCODE |
                    (options.read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE);
  sqlite3* raw = nullptr;
  const int code = sqlite3_open_v2(uri.c_str(), &raw, flags,
                                   options.vfs.empty() ? nullptr : options.vfs.c_str());
  Database db(raw);
  if (code != SQLITE_OK) {
    if (raw == nullptr) return std::unexpected(SqlError{code, 0, sqlite3_errstr(code)});
    return std::unexpected(error_of(raw));
  }
  db.set_busy_timeout(options.busy);
  if (options.read_only) db.disable_checkpoint_on_close();
  return db;
}

void Database::close() {
  if (db_ == nullptr) return;
  const int code = sqlite3_close(std::exchange(db_, nullptr));
  AE_CHECK(code == SQLITE_OK, "a statement outlives its connection");
}

Sql<Statement> Database::prepare(std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v3(db_, sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  if (code != SQLITE_OK) return std::unexpected(error_of(db_));
  return Statement(db_, statement);
}

Sql<void> Database::execute(const char* sql) {
  if (sqlite3_exec(db_, sql, nullptr, nullptr, nullptr) != SQLITE_OK) {
    return std::unexpected(error_of(db_));
  }
  return {};
}

Sql<std::int64_t> Database::integer(std::string_view sql) {
  AE_ASSIGN(Statement statement, prepare(sql));
  AE_ASSIGN(const bool found, statement.next());
  return found ? statement.integer(0) : 0;
}

std::int64_t Database::last_rowid() const { return sqlite3_last_insert_rowid(db_); }
std::int64_t Database::changes() const { return sqlite3_total_changes64(db_); }
bool Database::in_transaction() const { return sqlite3_get_autocommit(db_) == 0; }
void Database::set_busy_timeout(std::chrono::milliseconds timeout) {
  sqlite3_busy_timeout(db_, static_cast<int>(timeout.count()));
}

Sql<void> Database::checkpoint(bool truncate) {
  const int mode = truncate ? SQLITE_CHECKPOINT_TRUNCATE : SQLITE_CHECKPOINT_PASSIVE;
  const int code = sqlite3_wal_checkpoint_v2(db_, nullptr, mode, nullptr, nullptr);
  if (code != SQLITE_OK) return std::unexpected(error_of(db_, SQLITE_FCNTL_FILE_POINTER));
  return {};
}

void Database::track_wal_pages(std::size_t* pages) {
  const auto hook = [](void* to, sqlite3*, const char*, int count) {
    *static_cast<std::size_t*>(to) = static_cast<std::size_t>(count);
    return SQLITE_OK;
  };
  sqlite3_wal_hook(db_, hook, pages);  // replaces the automatic checkpoint
}

void Database::set_progress_callback(std::function<void()> callback) {
  constexpr int kInstructions = 10'000;
  progress_callback_ = std::make_unique<std::function<void()>>(std::move(callback));
  sqlite3_progress_handler(
      db_, kInstructions,
      [](void* to) {
        (*static_cast<std::function<void()>*>(to))();
        return 0;
      },
      progress_callback_.get());
}

void Database::disable_checkpoint_on_close() {
  sqlite3_db_config(db_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
}

}  // namespace ae::store::sqlite
