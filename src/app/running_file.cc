#include "app/running_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

namespace ae::app {
namespace {

constexpr std::chrono::milliseconds kLockPause(5);

std::unexpected<Error> cannot(const std::string& what, const std::string& path, int error) {
  return fail(Code::unavailable, "cannot {} {}: {}", what, path, std::strerror(error));
}

}  // namespace

Result<std::unique_ptr<RunningFile>> RunningFile::open(const std::string& path,
                                                       Duration lock_wait) {
  constexpr std::size_t kBytes = runtime::RunningSlot::kBytes;
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return cannot("open", path, errno);
  const auto close = [fd](auto failure) {
    ::close(fd);
    return failure;
  };
  const auto until = std::chrono::steady_clock::now() + lock_wait;
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK || std::chrono::steady_clock::now() >= until) {
      return close(cannot("lock", path, errno));
    }
    std::this_thread::sleep_for(kLockPause);
  }
  // Allocates disk space now: a write to a page without it would kill the process (SIGBUS).
  if (const int error = ::posix_fallocate(fd, 0, kBytes); error != 0) {
    return close(cannot("make space for", path, error));
  }
  void* const at = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return close(cannot("map", path, errno));
  return std::unique_ptr<RunningFile>(
      new RunningFile(fd, std::span(static_cast<std::byte*>(at), kBytes)));
}

Result<std::unique_ptr<RunningFile>> RunningFile::open_any(const std::string& path) {
  std::unique_ptr<RunningFile> empty;
  Error last{Code::unavailable, "no file is free"};
  for (int i = 0; i < kRunningFilesMax; ++i) {
    const std::string one = fmt::format("{}.{}", path, i);
    // Files are numbered without gaps: after the first missing one there are no more.
    const bool made = ::access(one.c_str(), F_OK) == 0;
    if (!made && empty) return empty;
    auto opened = open(one);
    if (!opened) {
      last = opened.error();
      continue;
    }
    if (!made || runtime::RunningSlot::has_interrupted_slice((*opened)->bytes())) return opened;
    if (!empty) empty = std::move(*opened);
  }
  if (empty) return empty;
  return std::unexpected(last);
}

RunningFile::~RunningFile() {
  ::munmap(bytes_.data(), bytes_.size());
  ::close(fd_);
}

}  // namespace ae::app
