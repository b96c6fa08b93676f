// GET /api/job-counts: numbers of jobs, for a client that shows them beside a list. They are read
// from indexes of the store, never from logs, and kept for kCountsTtl.
#include <utility>

#include "api/job_filter.h"
#include "api/job_gauges.h"
#include "api/operations.h"
#include "api/request_context.h"
#include "api/request_kinds.h"
#include "inspect/aliases.h"
#include "log/field_names.h"

namespace ae::api {
namespace {

constexpr Duration kCountsTtl = std::chrono::seconds(1);
constexpr std::size_t kCountsKeptMax = 64;

// The response; collects the names of the counts that are lower bounds.
class CountsBody {
 public:
  void note_bound(std::string_view name, const store::JobCount& count) {
    if (count.capped) lower_bounds_.emplace_back(name);
  }
  Value number(std::string_view name, const store::JobCount& count) {
    note_bound(name, count);
    return Value(count.jobs);
  }
  Value take(Instant now, std::vector<Member> members) && {
    members.emplace_back("as_of", to_text(now));
    members.emplace_back("capped", !lower_bounds_.empty());
    members.emplace_back("lower_bounds", Value::array(std::move(lower_bounds_)));
    return Value::object(std::move(members));
  }

 private:
  std::vector<Value> lower_bounds_;
};

Value counts_body(Instant now, const store::JobCounts& counts, const store::JobCount& stuck) {
  CountsBody body;
  std::vector<Member> statuses, requests;
  for (const auto& [status, count] : counts.statuses) {
    statuses.emplace_back(status, body.number(status, count));
  }
  // All kinds are counted in one scan.
  for (const auto& [name, kind] : kRequestKinds) {
    requests.emplace_back(name, Value(counts.pending.at(kind).jobs));
  }
  const store::JobCount& in_doubt = counts.pending.at(store::pending::unknown_outcome);
  body.note_bound("open_requests", in_doubt);
  std::vector<Member> members{
      {"statuses", Value::object(std::move(statuses))},
      {"open_requests", Value::object(std::move(requests))},
      {field::in_doubt, body.number(field::in_doubt, in_doubt)},
      {engine::plain_name::kStalled, body.number(engine::plain_name::kStalled, stuck)}};
  body.note_bound("stuck", stuck);  // the alias
  return engine::with_aliases(std::move(body).take(now, std::move(members)));
}

store::JobCount sum_of(const store::JobCounts& counts,
                       std::initializer_list<const char*> statuses) {
  store::JobCount sum;
  for (const char* status : statuses) {
    const store::JobCount& count = counts.statuses.at(status);
    sum.jobs += count.jobs;
    sum.capped = sum.capped || count.capped;
  }
  return sum;
}

void count_stuck_matching(ApiContext& api, const store::CountFilter& filter,
                          async::Done<Result<store::JobCount>> then) {
  auto count = std::make_shared<StuckCount>();
  count->filter = store::Filter{.agent = filter.agent,
                                .queue = filter.queue,
                                .labels = filter.labels,
                                .created_from = filter.created_from};
  api.store.count_jobs([&api, alive = api.alive.watch(), count,
                        then = std::move(then)](Result<store::JobStats> job_stats) mutable {
    if (!alive) return;
    if (!job_stats) return then(std::unexpected(job_stats.error()));
    count->offers = worker_offers(api, *job_stats);
    count_stuck(api, count, [count, then = std::move(then)](const Status& counted) mutable {
      if (!counted) return then(std::unexpected(counted.error()));
      then(store::JobCount{count->jobs, count->capped});
    });
  });
}

}  // namespace

void operations::job_counts(ApiContext& api, RequestPtr ctx) {
  auto filter = count_filter(ctx->query, api.store.now());
  if (!filter) return ctx->refuse(filter.error());
  std::string key = target({}, ctx->request.query);
  if (const auto kept = api.counts.find(key);
      kept != api.counts.end() && api.steady.since_start() - kept->second.taken_at < kCountsTtl) {
    return ctx->answer(200, kept->second.body);
  }
  const auto respond = [&api, ctx, key = std::move(key)](const store::JobCounts& counts,
                                                         const store::JobCount& stuck) {
    if (api.counts.size() >= kCountsKeptMax) api.counts.clear();
    Value body = counts_body(api.store.now(), counts, stuck);
    api.counts[key] = {body, api.steady.since_start()};
    ctx->answer(200, std::move(body));
  };
  api.store.count_matching(*filter, [&api, alive = api.alive.watch(), ctx, filter = *filter,
                                     respond](Result<store::JobCounts> counts) {
    if (!alive) return;
    if (!counts) return ctx->refuse(counts.error());
    // Without an owner, no job of the store continues.
    if (api.has_no_owner())
      return respond(*counts, sum_of(*counts, {"parked", "running", "queued"}));
    count_stuck_matching(
        api, filter, [ctx, respond, counts = *std::move(counts)](Result<store::JobCount> stuck) {
          if (!stuck) return ctx->refuse(stuck.error());
          const store::JobCount parked = sum_of(counts, {"parked"});
          respond(counts, {parked.jobs + stuck->jobs, parked.capped || stuck->capped});
        });
  });
}

}  // namespace ae::api
