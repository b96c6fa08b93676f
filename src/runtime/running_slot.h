// RunningSlot: names the job whose slice is running, in memory that outlives the process.
//
// A job whose decision aborts or hangs the process would be claimed again at each start and block
// all other jobs, because nothing of that slice is in the log. The slot is a page of a
// memory-mapped file: the kernel keeps its contents when the process is killed. A slice begins with
// a copy of the name and ends with one store; neither is a system call. The next process reads the
// name and records the death in the job's log (runtime/scheduler/process_death.h).
// Stored: 8 bytes `ae-run-1`, 8 bytes length of the name (little-endian; 0 = no slice is running),
// the name: job, attempt and epoch, one per line. Threads: the loop's. See
// docs/decisions/0064-worn-out-jobs.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/ids.h"
#include "store/store.h"

namespace ae::runtime {

class RunningSlot {
 public:
  static constexpr std::size_t kBytes = 1024;

  struct SliceName {
    JobId job;
    store::Fence fence;
  };

  // Borrows the memory. While it names a job of an earlier process, nothing else is written to it.
  // REQUIRES: at least kBytes.
  explicit RunningSlot(std::span<std::byte> memory);

  // The slice that was running when an earlier process died; nullopt: none, or cleared.
  const std::optional<SliceName>& interrupted() const { return interrupted_; }
  // The death is recorded, or cannot be: slices of this process are named again.
  void clear_interrupted();

  static bool has_interrupted_slice(std::span<const std::byte> memory);
  static std::string name_of(const JobId& job, const store::Fence& fence);

  // Marks a slice of the job as running while this object lives. A nested slice names its own job
  // until it ends.
  class Slice {
   public:
    // Borrows both; `slot` may be null.
    Slice(RunningSlot* slot, const std::string& name);
    ~Slice();
    Slice(const Slice&) = delete;
    Slice& operator=(const Slice&) = delete;

   private:
    RunningSlot* slot_;
    const std::string* outer_;
  };

 private:
  void set_running(const std::string* name);
  void store_length(std::uint64_t length);

  std::span<std::byte> memory_;
  std::optional<SliceName> interrupted_;
  const std::string* running_ = nullptr;
};

}  // namespace ae::runtime
