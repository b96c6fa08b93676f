// Stuck: which jobs are stalled, why, and which command helps.
//
//   parked          an operator must act: an unknown outcome, a pause, a verification, a version
//   lease_expired   the lease expired too long ago, and no worker has claimed the job
//   no_worker       the job has been claimable for long, and no known worker offers what it needs
//   needs_version   the same: no worker offers the version of the job
// A job that waits for a timer, a signal or a user is not stalled. Neither is a queued job while
// the workers that could run it are busy. Threads: pure functions.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "json/value.h"
#include "runtime/scheduler/versions.h"
#include "store/store.h"

namespace ae::api {

using runtime::worker_offer;
using runtime::WorkerOffer;

// The default of `older_than`: how long a job without progress is tolerated.
constexpr Duration kStuckAfter = std::chrono::minutes(5);
// A capability that starts with this names an execution version.
constexpr std::string_view kVersionPrefix = "execution_version:";

struct StuckReason {
  std::string reason;  // parked lease_expired no_worker needs_version
  Instant since;
  std::vector<std::string> missing;  // capabilities that no worker offers
  std::string message;
};
// A parked job is reported at once, whatever `older_than`.
std::optional<StuckReason> find_stuck_reason(const store::JobRow& row, Instant now,
                                             Duration older_than,
                                             const std::vector<WorkerOffer>& offers);
// For a runnable job in a single-owner store without an owner; reported at once.
StuckReason unattended_reason(const store::JobRow& row);
std::vector<Value> unattended_commands(const store::JobRow& row);
// The same for the job's page: {message, commands}.
Value unattended_json(const store::JobRow& row);
// The same for a store whose only owner offers `offers`: why it cannot run the job; nullopt: it
// can.
std::optional<Value> not_offered_json(const store::JobRow& row,
                                      const std::vector<WorkerOffer>& offers);

}  // namespace ae::api
