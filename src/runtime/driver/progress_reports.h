// ProgressReports: the newest progress report of each call in flight, until it may be recorded.
// Knows only calls that have reported.
//
// Threads: the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "json/value.h"

namespace ae::runtime {

class ProgressReports {
 public:
  struct Report {
    StepId step;
    std::uint32_t try_no;
    Value value;
  };

  bool empty() const { return calls_.empty(); }
  void on_ended(const StepId& step) { calls_.erase(step); }
  // Replaces the pending report of the call, which was sent at `sent`. Returns true if there was
  // none: its write must be scheduled. REQUIRES: the try is in flight; on_ended was called for the
  // earlier ones.
  bool add(Report report, Instant sent);
  void drop_pending();
  // Removes and returns the pending reports that may be recorded now, and those of finished calls.
  std::vector<Report> take_due(Instant now, const std::function<bool(const StepId&)>& is_finished);
  // When the next pending report may be recorded; nullopt: none is pending.
  std::optional<Instant> next_at() const;

 private:
  struct Call {
    std::uint32_t try_no = 0;
    Instant sent;
    std::optional<Instant> last_recorded;
    std::optional<Value> pending;
    Instant may_record_at() const;
  };
  std::map<StepId, Call> calls_;
};

}  // namespace ae::runtime
