// Loop, Clock, RandomSource: the seams between the program and the machine it runs on.
//
// The runtime is written against these three and the Store; production gives it the real ones (src/net,
// boot_clock.h), the simulator its own, where one thread and one seed decide everything. No system calls here.
// Threads: Loop::post and SteadyClock any, the rest the loop's own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/time.h"

namespace ae::async {

using Task = std::move_only_function<void()>;

// How an asynchronous operation answers: called once, on the loop's thread, never from inside the call that
// started the operation.
template <class T>
using Done = std::move_only_function<void(T)>;

class Clock {
 public:
  virtual ~Clock() = default;
  // Wall time: for what is stored and shown, and (as the store's clock) for leases, timers and deadlines.
  virtual Instant now() = 0;
};

// A steady clock that counts suspend, for measuring durations and a call's own limits.
class SteadyClock {
 public:
  virtual ~SteadyClock() = default;
  virtual Duration since_start() = 0;
};

// Where ids, salts and jitter come from. In production from the kernel's generator.
class RandomSource {
 public:
  virtual ~RandomSource() = default;
  virtual std::uint64_t next() = 0;
};

// A timer that has not fired yet can be forgotten.
using TimerId = std::uint64_t;

class Loop {
 public:
  virtual ~Loop() = default;
  // From any thread. Tasks of one thread run in their order.
  virtual void post(Task task) = 0;
  // Runs `task` when the steady clock has gone on by `delay` (at once when <= 0, but never inside this call).
  virtual TimerId after(Duration delay, Task task) = 0;
  virtual void cancel(TimerId timer) = 0;
};

}  // namespace ae::async
