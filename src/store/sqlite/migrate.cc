// Migration of a store without opening it for work.
#include <filesystem>
#include <thread>

#include "store/sqlite/files.h"
#include "store/sqlite/lock_file.h"
#include "store/sqlite/loss.h"
#include "store/sqlite/schema.h"
#include "store/sqlite/sqlite_store.h"

namespace ae::store {

using namespace sqlite;  // NOLINT: as in sqlite_store.cc

namespace {

constexpr std::chrono::milliseconds kPollInterval{50};

// The current layout, regardless of the owner.
Result<Migration> read_migration(const std::string& path) {
  Migration found{.from = 0, .to = kLayout};
  if (is_file_missing(path)) return std::unexpected(store_missing(path));
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return found;
  auto db = Database::open({.path = path, .read_only = true});
  if (!db) return std::unexpected(cannot_open(path, db.error()));
  AE_ASSIGN(const bool no_tables, has_no_tables(*db, path));
  if (no_tables) return std::unexpected(store_missing(path));
  AE_ASSIGN(found.from, layout_of(*db, path));
  return found;
}

Result<Migration> migrate(const std::string& path) {
  if (is_file_missing(path)) return std::unexpected(store_missing(path));
  AE_TRY(create_database_file(path));
  AE_ASSIGN(const LockFile file_lock, LockFile::lock_database(path));
  auto db = Database::open({.path = path});
  if (!db) return std::unexpected(cannot_open(path, db.error()));
  Migration done{.from = 0, .to = kLayout};
  AE_ASSIGN(done.from, layout_of(*db, path));
  AE_TRY(prepare_schema(*db, path));
  return done;
}

}  // namespace

Result<Migration> migrate_sqlite(const std::string& given, const MigrationOptions& options) {
  const std::string path = resolve_symlinks(given);
  AE_TRY(check_file(path));
  const auto deadline = std::chrono::steady_clock::now() + options.lock_timeout;
  for (;;) {
    AE_ASSIGN(const Migration found, read_migration(path));
    if (options.check_only || !found.is_pending()) return found;
    AE_TRY(create_parent_folder(path));
    const auto lock = LockFile::acquire(lock_path(path));
    if (lock) return migrate(path);
    const bool waits = lock.error().code == Code::store_locked;
    if (!waits || std::chrono::steady_clock::now() >= deadline) {
      return std::unexpected(lock.error());
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

}  // namespace ae::store
