// DatabaseClock: this process's estimate of the database's time.
//
// Every response with the database's time also gives the two instants of our own clock between
// which it was read. Our clock counts suspend, so a suspended machine knows how much time has
// passed.
// Two bounds follow. `now` is ahead of the database at most by the drift of the clocks between two
// responses, and behind it by at most the fastest response since. It is for timers and timestamps,
// which may be late but not early. `latest` is never behind: it counts from the send time of the
// latest request (SPEC §6), as if the database had responded at once. Use it for actions that must
// not happen after an instant. The database itself checks fences, leases and expiries.
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

  // Call before a request is sent.
  Duration before_request() const { return steady_.since_start(); }
  // The database reported `database_time`, between `sent_at` and this call.
  void on_response(Instant database_time, Duration sent_at) {
    const std::int64_t low = database_time.us - steady_.since_start().count();
    const std::int64_t high = database_time.us - sent_at.count();
    const std::lock_guard lock(mutex_);
    // Outside of the possible range (for example, its clock was set back): the new response is
    // right.
    if (!is_known_ || offset_ < low || offset_ > high) offset_ = low;
    // Responses arrive on several connections: a slow one is less exact than one that was requested
    // later.
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
