// The copy of a store: VACUUM INTO reads one snapshot and writes a fresh, compact file.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "store/sqlite/database.h"
#include "store/sqlite/schema.h"
#include "store/sqlite/sqlite_store.h"

namespace ae::store {
namespace {

Status sync_path(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC);
  const bool synced = fd >= 0 && ::fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (synced) return {};
  return fail(Code::unavailable, "cannot make " + path + " durable: " + std::strerror(error));
}

Status copy(const std::string& path, const std::string& to) {
  const auto run = [&]() -> sqlite::Sql<Status> {
    AE_ASSIGN(auto db, sqlite::Database::open({.path = path, .read_only = true}));
    if (auto fine = sqlite::check_schema(db, path); !fine) return fine;
    AE_ASSIGN(auto vacuum, db.prepare("VACUUM INTO ?1"));
    AE_TRY(vacuum.run(std::string_view(to)));
    return Status();
  };
  auto done = run();
  if (!done) return fail(Code::unavailable, "backup of " + path + ": " + done.error().text());
  return *std::move(done);
}

}  // namespace

Status backup_sqlite(const std::string& path, const std::string& to) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return fail(Code::not_found, "no store at " + path);
  // Made by us, so that its mode is ours; VACUUM INTO takes an empty file.
  const int fd = ::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0 && errno == EEXIST) {
    return fail(Code::already_exists, to + " exists already: choose another file");
  }
  if (fd < 0) return fail(Code::unavailable, "cannot make " + to + ": " + std::strerror(errno));
  ::close(fd);
  auto done = copy(path, to);
  if (done) done = sync_path(to, O_RDONLY);
  const std::string folder = std::filesystem::absolute(to).parent_path();
  if (done) done = sync_path(folder, O_RDONLY | O_DIRECTORY);
  if (!done) std::filesystem::remove(to, error);
  return done;
}

}  // namespace ae::store
