#include "tools/command/fd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cerrno>

namespace ae::tools {
namespace {

// Moves a descriptor above the numbers that a supervisor's files get, so that dup2 overwrites none
// of them.
Fd move_above_stdio(Fd fd) {
  return fd.ok() && fd.get() < 10 ? Fd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 10)) : std::move(fd);
}

}  // namespace

Fd make_sealed_file(const char* name, std::string_view bytes) {
  Fd fd = move_above_stdio(Fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  while (fd.ok() && !bytes.empty()) {
    const ssize_t n = ::write(fd.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Fd();
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  if (fd.ok() && (::lseek(fd.get(), 0, SEEK_SET) != 0 ||
                  ::fcntl(fd.get(), F_ADD_SEALS,
                          F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0)) {
    return Fd();
  }
  return fd;
}

FdPair open_read_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return {};
  FdPair pair{Fd(fds[0]), move_above_stdio(Fd(fds[1]))};
  if (::fcntl(fds[0], F_SETFL, O_NONBLOCK) != 0) return {};
  return pair;
}

FdPair open_write_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return {};
  FdPair pair{Fd(fds[1]), move_above_stdio(Fd(fds[0]))};
  if (::fcntl(fds[1], F_SETFL, O_NONBLOCK) != 0) return {};
  return pair;
}

FdPair open_socket_pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) return {};
  return {Fd(fds[0]), move_above_stdio(Fd(fds[1]))};
}

}  // namespace ae::tools
