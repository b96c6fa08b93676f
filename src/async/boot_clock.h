// BootClock: the machine's steady clock, suspend included. Whatever measures how long a lease, a call or a program has had
// reads this one; std::chrono::steady_clock stands still while the machine sleeps.
//
// Threads: any.
#pragma once

#include "async/loop.h"

namespace ae::async {

// Since the machine's start: CLOCK_BOOTTIME. The same in every process of this boot.
class BootClock final : public SteadyClock {
 public:
  Duration since_start() override;
};

}  // namespace ae::async
