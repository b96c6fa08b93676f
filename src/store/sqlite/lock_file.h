// LockFile: makes one process the owner of a store. The kernel holds the lock on `<path>.lock`
// while the owner lives; the file contains the owner's pid for messages only. The database file
// itself is locked too (flock, which does not conflict with the fcntl locks of SQLite), because the
// file may be reachable by a path with another `.lock` beside it. Threads: values.
#pragma once

#include <string>
#include <utility>

#include "base/error.h"

namespace ae::store::sqlite {

class LockFile {
 public:
  // Fails with store_locked (another owner lives; names its pid) · unavailable.
  static Result<LockFile> acquire(const std::string& path);
  // Locks the database file itself. REQUIRES: we hold `<path>.lock`, no connection of this process
  // has the file open, and this object outlives all of them: closing a descriptor of the file drops
  // their locks. Fails with store_locked · unavailable.
  static Result<LockFile> lock_database(const std::string& path);
  // True if a process holds the lock, or if that cannot be determined. An `acquire` at the same
  // moment can fail.
  static bool is_locked(const std::string& path);
  LockFile() = default;
  LockFile(LockFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  LockFile& operator=(LockFile&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~LockFile();

 private:
  explicit LockFile(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace ae::store::sqlite
