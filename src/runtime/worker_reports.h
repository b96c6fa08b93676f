// WorkerReports: what workers have reported about calls that an earlier process of this server gave
// to them (docs/worker-protocol.md, `left`).
//
// They are kept for kKept, at most kBytesMax of them. For a new one the oldest reports of the key
// that has most are forgotten, so one key cannot displace the reports of all others. A report is
// kept as a whole: without a part of it, calls that the worker received would count as not sent.
// Threads: values; the loop's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "base/time.h"
#include "engine/state/invocation.h"
#include "routines/routine.h"

namespace ae::runtime {

struct WorkerReport {
  std::set<routines::CallName> received;
  Instant at, covers_from;  // the store's clock: it has all calls that ended after covers_from
};

class WorkerReports {
 public:
  static constexpr Duration kKept = std::chrono::minutes(10);
  static constexpr std::size_t kBytesMax = 64u << 20;

  explicit WorkerReports(std::size_t bytes_max = kBytesMax) : bytes_max_(bytes_max) {}

  // Replaces the worker's earlier report, and forgets old ones. nullptr: it is too large.
  const WorkerReport* add(const engine::WorkerName& worker, WorkerReport report);
  // Notes that the worker reports how this call ended. False: its report does not list the call, or
  // its end was reported before.
  bool add_end(const engine::WorkerName& worker, const routines::CallName& call);

  template <class Use>
  void for_each(Use use) const {
    for (const auto& [worker, entry] : entries_) use(worker, entry.report);
  }
  std::size_t size() const { return entries_.size(); }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Entry {
    WorkerReport report;
    std::set<routines::CallName> ended;  // of `received`
    std::size_t bytes = 0;
  };
  using Entries = std::map<engine::WorkerName, Entry>;
  Entries::iterator remove(Entries::iterator entry);
  Entries::iterator oldest_of_largest_key();

  std::size_t bytes_max_;
  std::size_t bytes_ = 0;  // of all entries
  Entries entries_;
};

// What was reported about the calls of one job.
struct ReportedCalls {
  std::set<InvocationId> held;  // their outcomes come: decisions leave them alone
  std::set<std::pair<InvocationId, std::uint32_t>> not_received;
};

}  // namespace ae::runtime
