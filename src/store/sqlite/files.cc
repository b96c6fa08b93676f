#include "store/sqlite/files.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace ae::store::sqlite {
namespace {

// Advice about a file or folder that could not be created. REQUIRES: errno is still set by that
// failure.
const char* advice() {
  return errno == ENOSPC || errno == EDQUOT ? "; free some space on that disk"
                                            : "; is the folder writable?";
}

Status sync_path(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC);
  const bool synced = fd >= 0 && ::fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (synced) return {};
  return fail(Code::unavailable, "cannot make {} durable: {}", path, std::strerror(error));
}

}  // namespace

std::string resolve_symlinks(const std::string& path) {
  constexpr int kLinksMax = 40;  // as the kernel
  std::filesystem::path file(path);
  std::error_code error;
  for (int links = 0; links < kLinksMax && std::filesystem::is_symlink(file, error); ++links) {
    const auto target = std::filesystem::read_symlink(file, error);
    if (error) break;
    file = file.parent_path() / target;  // an absolute target replaces it
  }
  return file.string();
}

std::string canonical_path(const std::string& path) {
  std::error_code error;
  if (path.empty()) return path;
  const auto absolute = std::filesystem::absolute(resolve_symlinks(path), error);
  return std::filesystem::weakly_canonical(absolute, error).string();
}

Status check_file(const std::string& path) {
  struct stat found{};
  if (::stat(path.c_str(), &found) != 0) return {};
  if (!S_ISREG(found.st_mode)) {
    return fail(Code::usage, "{}{}: a store is a file; choose another path", path,
                S_ISDIR(found.st_mode) ? " is a folder" : " is not a regular file");
  }
  if (found.st_nlink > 1) {
    return fail(Code::unavailable, Action{.act = act::kBackup},
                "the file of the store, {0}, has {1} hard links, each with a lock and a -wal of "
                "its own: remove the others (`find . -samefile {0}`), or use a copy",
                path, found.st_nlink);
  }
  return {};
}

Status create_parent_folder(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (folder.empty() || std::filesystem::exists(folder, error)) return {};
  const mode_t before = ::umask(0077);
  std::filesystem::create_directories(folder, error);
  ::umask(before);
  if (!error) return {};
  return fail(Code::unavailable, "cannot make the folder {}: {}", folder.string(), error.message());
}

Status create_database_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) {
    return fail(Code::unavailable, "cannot open the store {}: {}{}", path, std::strerror(errno),
                advice());
  }
  ::close(fd);
  return {};
}

Status sync_file(const std::string& path) { return sync_path(path, O_RDONLY); }

Status sync_folder_of(const std::string& path) {
  return sync_path(std::filesystem::absolute(path).parent_path(), O_RDONLY | O_DIRECTORY);
}

// link() fails if the target exists; rename() would replace it.
Status move_durably(const std::string& from, const std::string& to) {
  if (::link(from.c_str(), to.c_str()) != 0) {
    if (errno == EEXIST) {
      return fail(Code::already_exists, "{} exists already: choose another file", to);
    }
    return fail(Code::unavailable, "cannot make {}: {}", to, std::strerror(errno));
  }
  ::unlink(from.c_str());
  return sync_folder_of(to);
}

}  // namespace ae::store::sqlite
