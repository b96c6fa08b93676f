// BootClock: the machine's steady clock, including time in suspend. Lease, call and program
// durations are measured with it, because std::chrono::steady_clock stops while the machine is
// suspended.
//
// Threads: any.
#pragma once

#include "async/loop.h"

namespace ae::async {

// Time since boot (CLOCK_BOOTTIME). The same in every process of this boot.
class BootClock final : public SteadyClock {
 public:
  Duration since_start() override;
};

}  // namespace ae::async
