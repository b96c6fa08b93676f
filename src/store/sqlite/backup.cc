// Backup and restore of a store: VACUUM INTO reads one snapshot and writes a fresh, compact file.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "store/sqlite/audit_table.h"
#include "store/sqlite/database.h"
#include "store/sqlite/files.h"
#include "store/sqlite/lock_file.h"
#include "store/sqlite/loss.h"
#include "store/sqlite/schema.h"
#include "store/sqlite/sqlite_store.h"

namespace ae::store {

using namespace sqlite;  // NOLINT: as in sqlite_store.cc

namespace {

std::uint64_t size_of(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  return error ? 0 : size;
}

// Creates an empty file with our mode; VACUUM INTO accepts an empty file.
Status create_private_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) {
    return fail(Code::unavailable, "cannot make {}: {}", path, std::strerror(errno));
  }
  ::close(fd);
  return {};
}

// `no_writer`: no process writes it, and no file is created beside it.
struct Source {
  std::string path;
  bool no_writer = false;
  std::string_view instead = "restore a backup";  // remedy if it is damaged
};

Error damaged(const Source& source, const std::string& how) {
  return {Code::log_corrupt,
          fmt::format("{} is damaged ({}): {}", source.path, how, source.instead)};
}

Status copy(const Source& source, const std::string& to, const CopyProgress& progress) {
  const std::string& path = source.path;
  const std::uint64_t total = size_of(path) + size_of(path + "-wal");
  const auto run = [&]() -> Sql<Status> {
    AE_ASSIGN(auto db,
              Database::open({.path = path, .read_only = true, .immutable = source.no_writer}));
    // Is it a database at all, and are its tables named?
    AE_TRY(db.integer("SELECT count(*) FROM sqlite_schema"));
    if (auto layout = layout_of(db, path); !layout) {
      return Status(std::unexpected(std::move(layout).error()));
    } else if (*layout == 0) {
      return Status(fail(Code::not_found, "{} holds no store yet", path));
    }
    if (progress) db.set_progress_callback([&] { progress(size_of(to), total); });
    AE_ASSIGN(auto vacuum, db.prepare("VACUUM INTO ?1"));
    AE_TRY(vacuum.run(std::string_view(to)));
    return Status();
  };
  auto done = run();
  if (!done && done.error().damaged()) {
    return std::unexpected(damaged(source, done.error().message));
  }
  if (!done) return fail(Code::unavailable, "copy of {}: {}", path, done.error().text());
  return *std::move(done);
}

Error already_exists_error(const std::string& path) {
  return {Code::already_exists, fmt::format("{} exists already: choose another file", path)};
}

bool file_exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::symlink_status(path, error));
}

// Runs `work` on a temporary file beside `to`, which is then renamed to `to`; on failure it is
// removed.
template <class Work>
Status write_then_rename(const std::string& to, Work work) {
  const std::string part = fmt::format("{}.part-{}", to, ::getpid());
  AE_TRY(create_private_file(part));
  Status done = work(part);
  if (done) done = sync_file(part);
  if (done) done = move_durably(part, to);
  std::error_code ignored;
  for (const char* end : {"", "-wal", "-shm", "-journal"}) {
    std::filesystem::remove(part + end, ignored);
  }
  return done;
}

// Checks `db`, a copy of the source: the copy is damaged if the source is.
Status check_integrity(Database& db, const Source& source) {
  const auto run = [&]() -> Sql<Status> {
    AE_ASSIGN(auto check, db.prepare("PRAGMA integrity_check(1)"));
    Rows row(check);
    AE_ASSIGN(const bool some, row.next());
    const std::string message = some ? row->text(0) : "nothing";
    if (message == "ok") return Status();
    return Status(std::unexpected(damaged(source, message)));
  };
  auto done = run();
  if (!done) return std::unexpected(damaged(source, done.error().message));
  return *std::move(done);
}

// Starts a new timeline, unless nothing was lost: the store refuses to open until the loss is
// accepted.
Status mark_restored(Database& db, const std::string& path, const RestoreOptions& options) {
  const auto run = [&]() -> Sql<void> {
    AE_ASSIGN(const StoreIdentity identity, read_store_identity(db));
    StorePosition recorded = identity.at;
    const auto position_file = PositionFile(position_path(path)).read();
    if (position_file && position_file->store == identity.at.store) recorded = *position_file;
    AE_TRY(db.execute("BEGIN IMMEDIATE"));
    AE_TRY(append_audit(db, {.at = options.now,
                             .by = options.by,
                             .act = "restore",
                             .job = {},
                             .detail = Value::object({{"nothing_lost", options.nothing_lost},
                                                      {kPositionKey, identity.at.number},
                                                      {"timeline", identity.at.timeline}})}));
    AE_TRY(unmark_backup(db));
    if (!options.nothing_lost) AE_TRY(begin_timeline(db, identity, recorded));
    return db.execute("COMMIT");
  };
  if (const auto done = run(); !done) return std::unexpected(cannot_open(path, done.error()));
  return {};
}

// A backup could repeat later work: it refuses to open until it is restored or an operator accepts
// the loss.
Status mark_copy(const std::string& part) {
  const auto run = [&]() -> Sql<void> {
    AE_ASSIGN(Database db, Database::open({.path = part}));
    return mark_backup(db);
  };
  if (const auto done = run(); !done) return std::unexpected(cannot_open(part, done.error()));
  return {};
}

Status prepare_copy(const std::string& part, const Source& source, const std::string& path,
                    const RestoreOptions& options) {
  auto db = Database::open({.path = part});
  if (!db) return std::unexpected(cannot_open(part, db.error()));
  AE_TRY(check_integrity(*db, source));
  AE_TRY(prepare_schema(*db, part));
  AE_TRY(mark_restored(*db, path, options));
  if (const auto done = db->checkpoint(true); !done) {
    return std::unexpected(cannot_open(part, done.error()));
  }
  return {};
}

}  // namespace

Status backup_sqlite(const std::string& given, const std::string& to,
                     const CopyProgress& progress) {
  const std::string path = resolve_symlinks(given);
  AE_TRY(check_file(path));
  if (!file_exists(path)) return fail(Code::not_found, "no store at {}", path);
  if (file_exists(to)) return std::unexpected(already_exists_error(to));
  return write_then_rename(to, [&](const std::string& part) -> Status {
    AE_TRY(copy({.path = path}, part, progress));
    return mark_copy(part);
  });
}

Status restore_sqlite(const std::string& from, const std::string& given,
                      const RestoreOptions& options) {
  const std::string path = resolve_symlinks(given);
  AE_TRY(check_file(path));
  AE_TRY(check_file(resolve_symlinks(from)));
  if (!file_exists(from)) return fail(Code::not_found, "no backup at {}", from);
  AE_TRY(create_parent_folder(path));
  AE_ASSIGN(const LockFile lock, LockFile::acquire(lock_path(path)));
  for (const char* end : {"", "-wal", "-shm"}) {
    if (!file_exists(path + end)) continue;
    return fail(Code::already_exists,
                "{}{} exists already: move it away first, with "
                "its -wal and -shm, and leave {} where it is",
                path, end, position_path(path));
  }
  return write_then_rename(path, [&](const std::string& part) -> Status {
    const Source source{.path = from,
                        .no_writer = size_of(from + "-wal") == 0,
                        .instead = "take an earlier backup"};
    AE_TRY(copy(source, part, options.progress));
    AE_TRY(prepare_copy(part, source, path, options));
    return options.verify_audit_log ? options.verify_audit_log(part) : Status();
  });
}

}  // namespace ae::store
