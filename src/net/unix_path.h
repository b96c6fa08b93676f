// UnixPath: a socket's path made short enough for the kernel (107 bytes) by way of an open folder.
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

  // Names the same file while this object lives. May still be too long: then nothing could be done.
  const std::string& usable() const { return usable_; }

 private:
  std::string usable_;
  int folder_ = -1;
};

}  // namespace ae::net
