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
  std::uint64_t stuck = 0, rows_read = 0;  // number of jobs; of rows
  Duration taken_at{};                     // by the steady clock
};

}  // namespace ae::api
