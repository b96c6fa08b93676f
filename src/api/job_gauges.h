// JobGauges: numbers of jobs in a store, for /metrics. Only for the .cc files of this module.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "api/api_context.h"
#include "api/stuck.h"
#include "store/store.h"

namespace ae::api {

struct JobGauges {
  store::JobStats job_stats;
  std::vector<WorkerOffer> offers;
  std::uint64_t stuck = 0;
  Duration taken_at{};  // by the steady clock
};
// Counted now, or a few seconds ago. nullptr: the store fails.
void with_gauges(ApiContext& api, std::move_only_function<void(const JobGauges*)> then);

// What this process offers, if it claims jobs.
WorkerOffer own_offer(const runtime::Runtime& runtime);
// What the known workers offer, and this process if it owns the store.
std::vector<WorkerOffer> worker_offers(const ApiContext& api, const store::JobStats& job_stats);

// A count of the running and queued jobs that are stalled.
struct StuckCount {
  store::Filter filter;  // which jobs are counted
  std::vector<WorkerOffer> offers;
  std::uint64_t jobs = 0, rows_read = 0;
  bool capped = false;  // not all rows were read
};
// Only rows are read, no logs. Fails with the error of the store.
void count_stuck(ApiContext& api, std::shared_ptr<StuckCount> count, async::Done<Status> then);

}  // namespace ae::api
