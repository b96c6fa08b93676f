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
    auto count = std::make_shared<StuckCount>();
    count->offers = fresh->offers;
    count_stuck(count, 0, {},
                [this, fresh, count, then = std::move(then)](const Status& counted) mutable {
                  if (!counted) return then(nullptr);
                  fresh->stuck = fresh->job_stats.statuses["parked"] + count->jobs;
                  fresh->taken_at = steady_.since_start();
                  gauges_ = fresh;
                  then(fresh.get());
                });
  });
}

// Only rows are read, no logs.
void Api::count_stuck(std::shared_ptr<StuckCount> count, std::size_t status, std::string after,
                      async::Done<Status> then) {
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
  if (status == 1) filter.updated_before = store_.now() - kStuckAfter + Duration(1);
  store_.query(std::move(filter),
               [this, alive = alive_.watch(), count, status,
                then = std::move(then)](Result<std::vector<store::JobRow>> rows) mutable {
                 if (!alive) return;
                 if (!rows) return then(std::unexpected(rows.error()));
                 const Instant now = store_.now();
                 for (const store::JobRow& row : *rows) {
                   count->jobs += find_stuck_reason(row, now, kStuckAfter, count->offers) ? 1 : 0;
                 }
                 count->rows_read += rows->size();
                 const bool more = rows->size() == kJobsMax;
                 std::string last = more ? cursor_of(rows->back()) : "";
                 count_stuck(count, more ? status : status + 1, std::move(last), std::move(then));
               });
}

}  // namespace ae::api
