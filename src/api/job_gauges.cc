// JobGauges: numbers of jobs by state, counted at most once in kGaugesTtl.
#include "api/job_gauges.h"

#include <utility>

#include "api/request_context.h"
#include "api/stuck.h"

namespace ae::api {
namespace {

constexpr std::size_t kCountedMax = 10'000;  // rows read per number
constexpr Duration kGaugesTtl = std::chrono::seconds(5);

}  // namespace

void Api::gauges(std::move_only_function<void(const JobGauges*)> then) {
  if (gauges_ && steady_.since_start() - gauges_->taken_at < kGaugesTtl) {
    return then(gauges_.get());
  }
  store_.count_jobs([this, alive = alive_.watch(),
                     then = std::move(then)](Result<store::JobStats> job_stats) mutable {
    if (!alive) return;
    if (!job_stats) return then(nullptr);
    auto fresh = std::make_shared<JobGauges>();
    fresh->job_stats = *std::move(job_stats);
    fresh->offers = worker_offers(fresh->job_stats);
    fresh->stuck = fresh->job_stats.statuses["parked"];
    count_stuck(std::move(fresh), 0, {}, std::move(then));
  });
}

// Of jobs that are not parked: only rows are read, no logs.
void Api::count_stuck(std::shared_ptr<JobGauges> fresh, std::size_t status, std::string after,
                      std::move_only_function<void(const JobGauges*)> then) {
  constexpr std::string_view kCountedStatuses[] = {"running", "queued"};
  if (status == std::size(kCountedStatuses) || fresh->rows_read >= kCountedMax) {
    fresh->taken_at = steady_.since_start();
    gauges_ = fresh;
    return then(fresh.get());
  }
  store::Filter filter;
  filter.statuses = {std::string(kCountedStatuses[status])};
  apply_cursor(after, filter);
  filter.limit = kJobsMax;
  if (status == 1) filter.updated_before = store_.now() - kStuckAfter + Duration(1);
  store_.query(std::move(filter),
               [this, alive = alive_.watch(), fresh, status,
                then = std::move(then)](Result<std::vector<store::JobRow>> rows) mutable {
                 if (!alive) return;
                 if (!rows) return then(nullptr);
                 const Instant now = store_.now();
                 for (const store::JobRow& row : *rows) {
                   fresh->stuck += find_stuck_reason(row, now, kStuckAfter, fresh->offers) ? 1 : 0;
                 }
                 fresh->rows_read += rows->size();
                 const bool more = rows->size() == kJobsMax;
                 std::string last = more ? cursor_of(rows->back()) : "";
                 count_stuck(fresh, more ? status : status + 1, std::move(last), std::move(then));
               });
}

}  // namespace ae::api
