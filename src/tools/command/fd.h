// Fd: an owned file descriptor; and the pipes, sockets and files that a supervisor inherits.
//
// Errors: a call that fails returns a closed Fd, or an incomplete pair, and sets errno.
#pragma once

#include <unistd.h>

#include <string_view>
#include <utility>

namespace ae::tools {

// A file descriptor that is closed on destruction.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Fd& operator=(Fd&& o) noexcept {
    std::swap(fd_, o.fd_);
    return *this;
  }
  ~Fd() { close(); }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// The two ends of a pipe or socket; the child's is the one that a supervisor inherits.
struct FdPair {
  Fd parent_end, child_end;
  bool ok() const { return parent_end.ok() && child_end.ok(); }
};

// A sealed memory file with `bytes`, positioned at its beginning.
Fd make_sealed_file(const char* name, std::string_view bytes);
// Our end is non-blocking.
FdPair open_read_pipe();
FdPair open_write_pipe();
// Keeps the boundaries of messages.
FdPair open_socket_pair();

}  // namespace ae::tools
