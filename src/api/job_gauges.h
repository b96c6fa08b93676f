// JobGauges: numbers of jobs in a store, for /metrics. Only for the .cc files of this module.
#pragma once

#include <cstdint>
#include <vector>

#include "api/api.h"
#include "api/stuck.h"
#include "store/store.h"

namespace ae::api {

struct Api::JobGauges {
  store::JobStats job_stats;
  std::vector<WorkerOffer> offers;
  std::uint64_t stuck = 0;
  Duration taken_at{};  // by the steady clock
};

// A count of the running and queued jobs that are stalled.
struct Api::StuckCount {
  store::Filter filter;  // which jobs are counted
  std::vector<WorkerOffer> offers;
  std::uint64_t jobs = 0, rows_read = 0;
  bool capped = false;  // not all rows were read
};

}  // namespace ae::api
