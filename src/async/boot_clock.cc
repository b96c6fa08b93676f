// The only system call of this module: a steady clock that includes suspend.
#include "async/boot_clock.h"

#include <time.h>

#include "base/error.h"

namespace ae::async {

Duration BootClock::since_start() {
  timespec t{};
  AE_CHECK(clock_gettime(CLOCK_BOOTTIME, &t) == 0, "this kernel has no such clock");
  return Duration(std::int64_t{t.tv_sec} * 1'000'000 + t.tv_nsec / 1000);
}

}  // namespace ae::async
