// RunningFile: a memory-mapped file in which this process records the job whose slice runs
// (runtime/running_slot.h).
//
// A process locks its file for its lifetime; the kernel releases the lock when the process dies and
// keeps the page. A single-owner store has one file. A shared store has one per process of this
// machine: a new process takes an unlocked file, preferably one that names a job.
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

inline constexpr int kRunningFilesMax = 64;  // per shared store and machine

class RunningFile {
 public:
  // Fails with unavailable (it cannot be created, there is no disk space, or another process holds
  // it). Waits up to `lock_wait` for the lock: a program that the previous process was starting
  // when it was killed keeps the lock until its execve.
  static Result<std::unique_ptr<RunningFile>> open(const std::string& path,
                                                   Duration lock_wait = {});
  // Opens one of `<path>.0`, `<path>.1`, …
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
