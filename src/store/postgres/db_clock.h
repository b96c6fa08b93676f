// DatabaseClock: what time it is in the database, as this process knows it.
//
// Every answer that brings the database's time says between which two instants of our own clock it was read. That clock
// counts suspend: a machine that slept, before, between or after the two, knows how late it has become.
// From them come two bounds. `now` is never ahead of the database by more than the clocks drift apart between two answers,
// and behind it by at most the fastest answer since: for timers and stamps, which may be late, never early. `latest` is
// never behind it: it counts from the send of the question that was asked last (SPEC §6), as if the database had answered
// at once; what must not be done after an instant asks this one. Fences, leases and expiries are judged by the database.
// Threads: any.
#pragma once

#include <cstdint>
#include <mutex>

#include "async/loop.h"
#include "base/time.h"

namespace ae::store::postgres {

class DatabaseClock {
 public:
  // `steady` is borrowed. REQUIRES: it counts suspend.
  explicit DatabaseClock(async::SteadyClock& steady) : steady_(steady) {}

  // Taken before a question is sent.
  Duration before_request() const { return steady_.since_start(); }
  // The database said `database_time`, after our asking and before this call.
  void on_response(Instant database_time, Duration sent_at) {
    const std::int64_t low = database_time.us - steady_.since_start().count();
    const std::int64_t high = database_time.us - sent_at.count();
    const std::lock_guard lock(mutex_);
    // Below what is possible, or above it (its clock was set back): the new answer is right.
    if (!is_known_ || offset_ < low || offset_ > high) offset_ = low;
    // Answers come on several connections: one that took long says less than one that was asked for after it.
    if (!is_known_ || sent_at >= latest_sent_at_) {
      latest_offset_ = high;
      latest_sent_at_ = sent_at;
    }
    is_known_ = true;
  }
  Instant now() const { return at(&DatabaseClock::offset_); }
  Instant latest() const { return at(&DatabaseClock::latest_offset_); }

 private:
  Instant at(const std::int64_t DatabaseClock::* offset) const {
    const std::lock_guard lock(mutex_);
    return {steady_.since_start().count() + this->*offset};
  }
  async::SteadyClock& steady_;
  mutable std::mutex mutex_;
  std::int64_t offset_ = 0, latest_offset_ = 0;  // guarded by mutex_
  Duration latest_sent_at_{};                    // guarded by mutex_
  bool is_known_ = false;                        // guarded by mutex_
};

}  // namespace ae::store::postgres
