// SystemClock, SystemRandom: the production implementations of the interfaces in async/loop.h.
//
// Threads: the clocks from any thread; SystemRandom from one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "async/boot_clock.h"
#include "async/loop.h"

namespace ae::net {

// The limit of open files and connections of this process (RLIMIT_NOFILE).
std::size_t descriptors_max();
// Raises the soft limit to the hard limit, 65,536 at most; never lowers it. Returns the previous
// limit: child processes do not expect more, so they are started with it.
std::size_t raise_descriptor_limit();
// Returns freed memory, which allocators keep, to the system. Takes milliseconds per GiB.
void trim_heap();
// While it exists, freed memory is returned to the system at once. The allocator returns it later
// otherwise, and only while the program goes on to free memory. The option is one per process: use
// it on the thread of the loop only, for the release of large buffers.
class EagerRelease {
 public:
  EagerRelease();
  ~EagerRelease();
  EagerRelease(const EagerRelease&) = delete;
  EagerRelease& operator=(const EagerRelease&) = delete;

 private:
  long delay_ = 0;  // the allocator's, in ms
};
// True for an errno that means a temporary shortage of the machine or process.
bool is_resource_shortage(int error);

// Environment variable for tests: names a file with an integer, microseconds added to the wall
// time. Read at each call of now(); no number: nothing is added.
inline constexpr const char* kClockOffsetFile = "AETHERIS_CLOCK_OFFSET_FILE";

// Wall time, CLOCK_REALTIME, in microseconds.
class SystemClock final : public async::Clock {
 public:
  SystemClock();
  Instant now() override;

 private:
  std::string offset_file_;  // "" = no offset
};

using BootClock = async::BootClock;  // since boot, including suspend

// The kernel's generator, read 1 KiB at a time; returned numbers are erased from the buffer.
class SystemRandom final : public async::RandomSource {
 public:
  std::uint64_t next() override;

 private:
  std::array<std::uint64_t, 128> buffer_{};
  std::size_t left_ = 0;
};

}  // namespace ae::net
