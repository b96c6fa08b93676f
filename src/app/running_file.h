// RunningFile: the page of a file in which this process names the job whose slice runs (runtime/running_slot.h).
//
// A process holds the lock of its file for as long as it lives; the kernel drops the lock with the process, and keeps what was
// stored in the page. A store of one owner has one file, one that processes share has one for each of them on this machine:
// who begins takes a file that no process holds, and one that names a job before one that names none.
// Threads: one owner.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"
#include "base/time.h"
#include "runtime/running_slot.h"

namespace ae::app {

inline constexpr int kRunningFilesMax = 64;  // of one shared store on one machine

class RunningFile {
 public:
  // Fails with unavailable (it cannot be made, no space for it, each is held by another process).
  // Waits up to `lock_wait` for the lock: a program that the previous process was starting when it was killed keeps
  // the lock until its execve.
  static Result<std::unique_ptr<RunningFile>> open(const std::string& path,
                                                   Duration lock_wait = {});
  // One of `<path>.0`, `<path>.1`, …
  static Result<std::unique_ptr<RunningFile>> open_any(const std::string& path);
  ~RunningFile();
  RunningFile(const RunningFile&) = delete;
  RunningFile& operator=(const RunningFile&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  RunningFile(int fd, std::span<std::byte> bytes) : fd_(fd), bytes_(bytes) {}

  int fd_;
  std::span<std::byte> bytes_;
};

}  // namespace ae::app
