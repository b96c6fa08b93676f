// UnixPath: shortens a socket's path below the kernel's limit (107 bytes) via an open directory.
//
// Internal to this module. Threads: a value.
#pragma once

#include <string>

namespace ae::net {

class UnixPath {
 public:
  explicit UnixPath(const std::string& path);
  ~UnixPath();
  UnixPath(const UnixPath&) = delete;
  UnixPath& operator=(const UnixPath&) = delete;

  // Names the same file while this object exists. May still be too long if shortening failed.
  const std::string& usable() const { return usable_; }

 private:
  std::string usable_;
  int folder_ = -1;
};

}  // namespace ae::net
