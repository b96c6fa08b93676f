// LockFile: one process owns a store. `<path>.lock`, locked by the kernel as long as the owner lives; it holds the
// owner's pid for messages only. The database file itself is locked too (flock, which does not meet the locks that sqlite
// takes by fcntl), because the same file may be reached by a path with another `.lock` beside it. Threads: values.
#pragma once

#include <string>
#include <utility>

#include "base/error.h"

namespace ae::store::sqlite {

class LockFile {
 public:
  // Fails with store_locked (another owner lives; names its pid) · unavailable.
  static Result<LockFile> acquire(const std::string& path);
  // The database file itself. REQUIRES: `<path>.lock` is ours, no connection of this process has the file open, and this
  // lives longer than all of them: closing a descriptor of the file drops their locks. Fails with store_locked · unavailable.
  static Result<LockFile> lock_database(const std::string& path);
  // Does somebody hold it now? Who cannot tell says yes. Whoever takes it in this very moment is refused.
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
