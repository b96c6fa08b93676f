// RunningSlot: names the job whose slice runs now, in memory that outlives the process.
//
// A job whose decision aborts or stalls the process is taken up again at each start and stops all others, because nothing of
// that slice is in the log. The slot is a page of a file that is mapped into memory: the kernel keeps what was stored there
// when the process is killed. A slice begins with a copy of the name and ends with one store; neither is a system call.
// The next process reads the name and records the death in the job's log (runtime/process_death.h).
// Stored: 8 bytes `ae-run-1`, 8 bytes length of the name (little-endian; 0 = no slice runs), the name: job, attempt and epoch,
// one a line. Threads: the loop's. See docs/decisions/0064-worn-out-jobs.md.
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

  // Borrows the memory. While it names a job of an earlier process, nothing else is written to it. REQUIRES: kBytes.
  explicit RunningSlot(std::span<std::byte> memory);

  // Whose slice ran when an earlier process died; nullopt: none, or its death is recorded.
  const std::optional<SliceName>& interrupted() const { return interrupted_; }
  // The death is recorded, or cannot be: from now on slices of this process are named.
  void clear_interrupted();

  static bool has_interrupted_slice(std::span<const std::byte> memory);
  static std::string name_of(const JobId& job, const store::Fence& fence);

  // A slice of the job for as long as this object lives. One inside of another names its own job until it ends.
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
