// A store brought up to date without being worked on.
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

constexpr std::chrono::milliseconds kLook{50};

// As it stands now, whoever owns it.
Result<Migration> look(const std::string& path) {
  Migration found{.from = 0, .to = kLayout};
  if (file_is_gone(path)) return std::unexpected(all_lost(path));
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return found;
  auto db = Database::open({.path = path, .read_only = true});
  if (!db) return std::unexpected(cannot_open(path, db.error()));
  AE_ASSIGN(const bool gone, no_tables(*db, path));
  if (gone) return std::unexpected(all_lost(path));
  AE_ASSIGN(found.from, layout_of(*db, path));
  return found;
}

Result<Migration> migrate(const std::string& path) {
  if (file_is_gone(path)) return std::unexpected(all_lost(path));
  AE_TRY(make_file(path));
  AE_ASSIGN(const LockFile file_lock, LockFile::hold(path));
  auto db = Database::open({.path = path});
  if (!db) return std::unexpected(cannot_open(path, db.error()));
  Migration done{.from = 0, .to = kLayout};
  AE_ASSIGN(done.from, layout_of(*db, path));
  AE_TRY(prepare_schema(*db, path));
  return done;
}

}  // namespace

Result<Migration> migrate_sqlite(const std::string& given, const MigrationWish& wish) {
  const std::string path = real_file(given);
  AE_TRY(check_file(path));
  const auto give_up = std::chrono::steady_clock::now() + wish.patience;
  for (;;) {
    AE_ASSIGN(const Migration found, look(path));
    if (wish.check_only || !found.due()) return found;
    AE_TRY(make_folder(path));
    const auto lock = LockFile::take(lock_path(path));
    if (lock) return migrate(path);
    const bool waits = lock.error().code == Code::store_locked;
    if (!waits || std::chrono::steady_clock::now() >= give_up) {
      return std::unexpected(lock.error());
    }
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace ae::store
