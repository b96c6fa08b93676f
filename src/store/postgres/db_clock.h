// DatabaseClock: what time it is in the database, as this process knows it.
//
// Every answer that brings the database's time says between which two instants of our steady clock it was read. We keep
// the largest offset that all of them allow from below: the estimate is never ahead of the database by more than the
// clocks drift apart between two answers, and behind it by at most the fastest answer since. Fences, leases and
// expiries are judged by the database alone; this is for timers, stamps and for asking in time.
// Threads: any.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

#include "core/time.h"

namespace ae::store::postgres {

class DatabaseClock {
 public:
  using Steady = std::chrono::steady_clock;

  // The database said `said`, between our sending and our receiving.
  void heard(Instant said, Steady::time_point sent, Steady::time_point received) {
    const std::int64_t low = said.us - us(received), high = said.us - us(sent);
    const std::lock_guard lock(mutex_);
    // Below what is possible, or above it (its clock was set back): the new answer is right.
    if (!known_ || offset_ < low || offset_ > high) offset_ = low;
    known_ = true;
  }
  Instant now() const { return now(Steady::now()); }
  Instant now(Steady::time_point at) const {
    const std::lock_guard lock(mutex_);
    return {us(at) + offset_};
  }

 private:
  static std::int64_t us(Steady::time_point at) {
    return std::chrono::duration_cast<std::chrono::microseconds>(at.time_since_epoch()).count();
  }
  mutable std::mutex mutex_;
  std::int64_t offset_ = 0;  // guarded by mutex_
  bool known_ = false;       // guarded by mutex_
};

}  // namespace ae::store::postgres
