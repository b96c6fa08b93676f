// Loop, Clock, SteadyClock, RandomSource: the seams between the program and the machine it runs on.
//
// The runtime uses only these interfaces and the Store. Production passes the real ones (src/net,
// boot_clock.h). The simulator passes its own: one thread and one seed determine everything. No
// system calls here.
// Threads: any for Loop::post and SteadyClock; the loop's for the rest.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/time.h"

namespace ae::async {

using Task = std::move_only_function<void()>;

// The completion callback of an asynchronous operation: called once, on the loop's thread, never
// from inside the call that started the operation.
template <class T>
using Done = std::move_only_function<void(T)>;

class Clock {
 public:
  virtual ~Clock() = default;
  // Wall time: for stored and displayed times, and (as the store's clock) for leases, timers and
  // deadlines.
  virtual Instant now() = 0;
};

// A steady clock that includes suspend: measures durations and the time limits of calls.
class SteadyClock {
 public:
  virtual ~SteadyClock() = default;
  virtual Duration since_start() = 0;
};

// Source of ids, salts and jitter. In production: the kernel's generator.
class RandomSource {
 public:
  virtual ~RandomSource() = default;
  virtual std::uint64_t next() = 0;
};

// Identifies a timer that can be cancelled until it fires.
using TimerId = std::uint64_t;

class Loop {
 public:
  virtual ~Loop() = default;
  // From any thread. Tasks of one thread run in their order.
  virtual void post(Task task) = 0;
  // Runs `task` once the steady clock has advanced by `delay`; if `delay` <= 0, as soon as
  // possible, but never inside this call.
  virtual TimerId after(Duration delay, Task task) = 0;
  virtual void cancel(TimerId timer) = 0;
};

}  // namespace ae::async
