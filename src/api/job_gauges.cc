// JobGauges: numbers of jobs by state, counted at most once in kGaugesTtl.
#include "api/job_gauges.h"

#include <utility>

#include "api/jobs.h"
#include "api/stuck.h"

namespace ae::api {
namespace {

constexpr std::size_t kCountedMax = 10'000;  // rows read per number
constexpr Duration kGaugesTtl = std::chrono::seconds(5);

// Adds the stalled jobs with the status number `status`, of running and queued, and those after it.
// `after`: a cursor.
void count_stuck_after(ApiContext& api, std::shared_ptr<StuckCount> count, std::size_t status,
                       std::string after, async::Done<Status> then) {
  constexpr std::string_view kCountedStatuses[] = {"running", "queued"};
  if (status == std::size(kCountedStatuses)) return then({});
  if (count->rows_read >= kCountedMax) {
    count->capped = true;
    return then({});
  }
  store::Filter filter = count->filter;
  filter.statuses = {std::string(kCountedStatuses[status])};
  apply_cursor(after, filter);
  filter.limit = kJobsMax;
  if (status == 1) filter.updated_before = api.store.now() - kStuckAfter + Duration(1);
  api.store.query(
      std::move(filter), [&api, alive = api.alive.watch(), count, status,
                          then = std::move(then)](Result<std::vector<store::JobRow>> rows) mutable {
        if (!alive) return;
        if (!rows) return then(std::unexpected(rows.error()));
        const Instant now = api.store.now();
        for (const store::JobRow& row : *rows) {
          count->jobs += find_stuck_reason(row, now, kStuckAfter, count->offers) ? 1 : 0;
        }
        count->rows_read += rows->size();
        const bool more = rows->size() == kJobsMax;
        std::string last = more ? cursor_of(rows->back()) : "";
        count_stuck_after(api, count, more ? status : status + 1, std::move(last), std::move(then));
      });
}

}  // namespace

WorkerOffer own_offer(const runtime::Runtime& runtime) {
  const runtime::RuntimeOptions& us = runtime.options();
  return {us.agents, runtime.offered(), us.has_agents};
}

std::vector<WorkerOffer> worker_offers(const ApiContext& api, const store::JobStats& job_stats) {
  std::vector<WorkerOffer> all;
  for (const auto& [name, worker] : job_stats.workers) {
    if (worker.announcement.empty()) continue;
    if (auto offer = worker_offer(worker.announcement)) all.push_back(*std::move(offer));
  }
  // In a single-owner store workers are not announced.
  if (api.store.owned() && api.options.runs && api.runtime.options().may_claim) {
    all.push_back(own_offer(api.runtime));
  }
  return all;
}

void count_stuck(ApiContext& api, std::shared_ptr<StuckCount> count, async::Done<Status> then) {
  count_stuck_after(api, std::move(count), 0, {}, std::move(then));
}

void with_gauges(ApiContext& api, std::move_only_function<void(const JobGauges*)> then) {
  if (api.gauges && api.steady.since_start() - api.gauges->taken_at < kGaugesTtl) {
    return then(api.gauges.get());
  }
  api.store.count_jobs([&api, alive = api.alive.watch(),
                        then = std::move(then)](Result<store::JobStats> job_stats) mutable {
    if (!alive) return;
    if (!job_stats) return then(nullptr);
    auto fresh = std::make_shared<JobGauges>();
    fresh->job_stats = *std::move(job_stats);
    fresh->offers = worker_offers(api, fresh->job_stats);
    auto count = std::make_shared<StuckCount>();
    count->offers = fresh->offers;
    count_stuck(api, count,
                [&api, fresh, count, then = std::move(then)](const Status& counted) mutable {
                  if (!counted) return then(nullptr);
                  fresh->stuck = fresh->job_stats.statuses["parked"] + count->jobs;
                  fresh->taken_at = api.steady.since_start();
                  api.gauges = fresh;
                  then(fresh.get());
                });
  });
}

}  // namespace ae::api
