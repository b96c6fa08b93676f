// Stuck: which jobs do not go on by themselves, why, and what would help.
//
//   a park          somebody has to act: a call in doubt, a pause, a confirmation, a version
//   lease_expired   whoever held it is gone for longer than it should be, and nobody has taken it over
//   no_worker       it could have been claimed for long, and no worker that we know of offers what it needs
//   needs_version   the same, for want of the version that the job belongs to
// A wait (for a timer, a signal, a person) is none of these, and neither is a job that stands in line while workers that
// could take it are busy. Threads: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/time.h"
#include "core/value.h"
#include "runtime/versions.h"
#include "store/store.h"

namespace ae::api {

using runtime::worker_offer;
using runtime::WorkerOffer;

struct Stuck {
  std::string reason;  // parked lease_expired no_worker needs_version
  Instant since;
  std::vector<std::string> missing;  // capabilities that no worker offers
  std::string message;
};
// `older_than`: how long a job may stand still before it counts, but for a parked one.
std::optional<Stuck> stuck(const store::JobRow& row, Instant now, Duration older_than,
                           const std::vector<WorkerOffer>& offers);
// A job that could go on, in a store that one process alone can run, and none does: at once.
Stuck unattended(const store::JobRow& row);
std::vector<Value> unattended_commands(const store::JobRow& row);
// The same as the job's page says it: {message, commands}.
Value unattended_json(const store::JobRow& row);
// In the same form, for a store whose one owner offers `offers`: why it cannot take the job; nullopt: it can.
std::optional<Value> not_offered_json(const store::JobRow& row,
                                      const std::vector<WorkerOffer>& offers);

}  // namespace ae::api
