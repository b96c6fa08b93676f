// The machine's own clocks and chance: what production gives to the seams of async/loop.h.
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

// How many files and connections this process may have open at once (RLIMIT_NOFILE).
std::size_t descriptors_max();
// Asks for as many as it may have, up to 65,536. What stands is never lowered. The programs that it starts are not used to
// more than there were: whoever starts one gives it what this gives, the number before.
std::size_t raise_descriptor_limit();
// Returns memory that was freed to the system, which allocators keep otherwise. Takes milliseconds for each GiB.
void trim_heap();
// Is this an errno of a machine or process that has no more of something for now?
bool is_resource_shortage(int error);

// Names a file for tests that set the clock of a running process: it holds microseconds, a whole number, that are added to
// the wall time. Each look at the clock reads it; without a number in it nothing is added.
inline constexpr const char* kClockOffsetFile = "AETHERIS_CLOCK_OFFSET_FILE";

// Wall time, CLOCK_REALTIME, in microseconds.
class SystemClock final : public async::Clock {
 public:
  SystemClock();
  Instant now() override;

 private:
  std::string offset_file_;  // "" = the time is as it is
};

using BootClock = async::BootClock;  // since the machine's start, suspend included

// The kernel's generator, fetched by the kilobyte; what was handed out is forgotten here.
class SystemRandom final : public async::RandomSource {
 public:
  std::uint64_t next() override;

 private:
  std::array<std::uint64_t, 128> buffer_{};
  std::size_t left_ = 0;
};

}  // namespace ae::net
