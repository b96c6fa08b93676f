#include "store/sqlite/lock_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace ae::store::sqlite {
namespace {

std::string process_in(int fd) {
  char text[32];
  const ssize_t size = ::pread(fd, text, sizeof text, 0);
  std::string pid;
  for (ssize_t i = 0; i < size && text[i] >= '0' && text[i] <= '9'; ++i) pid += text[i];
  return pid.empty() ? "another process" : "process " + pid;
}

}  // namespace

Result<LockFile> LockFile::acquire(const std::string& path) {
  LockFile lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock.fd_ < 0) {
    const bool full = errno == ENOSPC || errno == EDQUOT;
    return fail(Code::unavailable, "cannot open the lock file {}: {}{}", path, std::strerror(errno),
                full ? "; free some space on that disk" : "; is the folder writable?");
  }
  while (::flock(lock.fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) {
      return fail(Code::store_locked,
                  "the store is in use by {} ({}): stop it first, or use its API",
                  process_in(lock.fd_), path);
    }
    return fail(Code::unavailable, "cannot lock {}: {}", path, std::strerror(errno));
  }
  const std::string pid = fmt::format("{}\n", ::getpid());
  // Only for messages: a full disk must not keep the owner from starting.
  if (::ftruncate(lock.fd_, 0) == 0) {
    [[maybe_unused]] const ssize_t written = ::pwrite(lock.fd_, pid.data(), pid.size(), 0);
  }
  return lock;
}

Result<LockFile> LockFile::lock_database(const std::string& path) {
  LockFile lock(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  while (lock.fd_ >= 0 && ::flock(lock.fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) {
      return fail(Code::store_locked,
                  "the file of the store, {}, is in use by a process that opened it by "
                  "another path: stop that one first, or use its path",
                  path);
    }
    return fail(Code::unavailable, "cannot lock {}: {}", path, std::strerror(errno));
  }
  if (lock.fd_ < 0) {
    return fail(Code::unavailable, "cannot open {}: {}", path, std::strerror(errno));
  }
  return lock;
}

bool LockFile::is_locked(const std::string& path) {
  const LockFile probe(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (probe.fd_ < 0) return errno != ENOENT;
  while (::flock(probe.fd_, LOCK_SH | LOCK_NB) != 0) {
    if (errno != EINTR) return true;
  }
  return false;
}

LockFile::~LockFile() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace ae::store::sqlite
