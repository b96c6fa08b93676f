#include "store/postgres/job_stats.h"

#include <map>
#include <utility>

#include "store/postgres/statements.h"

namespace ae::store::postgres {
namespace {

static_assert(kJobCountMax == 100'000, "the statements below count so far");

// Each count reads an index and stops at 100,000.
constexpr Statement kCountByStatus{
    "count_by_status",
    "SELECT s.status, (SELECT count(*) FROM (SELECT 1 FROM heads WHERE status = s.status "
    "AND status <> 'completed' LIMIT 100000) AS counted) "
    "FROM unnest(ARRAY['queued', 'running', 'waiting', 'parked']) AS s(status)"};
constexpr Statement kCountReadyByQueue{
    "count_ready_by_queue",
    "SELECT queue, count(*) FROM (SELECT queue FROM heads WHERE ready AND attempt IS NULL "
    "LIMIT 100000) AS counted GROUP BY queue ORDER BY queue"};
constexpr Statement kCountLeasedByWorker{
    "count_leased_by_worker",
    "SELECT held_by, count(*), count(*) FILTER (WHERE lease_until > (SELECT coalesce($1::bigint, "
    "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint))) "
    "FROM (SELECT held_by, lease_until FROM heads WHERE attempt IS NOT NULL LIMIT 100000) AS "
    "counted "
    "GROUP BY held_by ORDER BY held_by"};
constexpr Statement kReadAnnouncements{
    "read_announcements",
    "SELECT worker, says FROM workers WHERE until > (SELECT coalesce($1::bigint, "
    "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint)) ORDER BY worker LIMIT 10000"};

// Announcements need not be durable. Workers without one for a day are deleted.
constexpr const char* kAnnounce =
    "WITH time AS MATERIALIZED (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint "
    "AS now), gone AS (DELETE FROM workers USING time WHERE until < now - 86400000000 "
    "AND worker <> $1::text) "
    "INSERT INTO workers(worker, until, says) SELECT $1::text, now + $3::bigint, $2::bytea "
    "FROM time ON CONFLICT (worker) DO UPDATE SET until = excluded.until, says = excluded.says";

}  // namespace

std::vector<Statement> job_stats_statements() {
  return {kCountByStatus, kCountReadyByQueue, kCountLeasedByWorker, kReadAnnouncements};
}

Pg<JobStats> count_jobs(Connection& connection, std::optional<Instant> at) {
  connection.add(kBeginSnapshot);
  connection.add(kCountByStatus);
  connection.add(kCountReadyByQueue);
  connection.add(kCountLeasedByWorker, Params().add(at));
  connection.add(kReadAnnouncements, Params().add(at));
  connection.add(kCommit);
  auto run_result = connection.run();
  if (!run_result) return std::unexpected(connection.roll_back(std::move(run_result).error()));
  const std::vector<Rows>& answers = *run_result;
  JobStats job_stats;
  for (int i = 0; i < answers[1].size(); ++i) {
    job_stats.statuses[answers[1].text(i, 0)] = answers[1].count(i, 1);
  }
  for (int i = 0; i < answers[2].size(); ++i) {
    job_stats.ready[answers[2].text(i, 0)] = answers[2].count(i, 1);
  }
  for (int i = 0; i < answers[3].size(); ++i) {
    JobStats::Worker& worker = job_stats.workers[answers[3].text(i, 0)];
    worker.live = answers[3].count(i, 2);
    worker.expired = answers[3].count(i, 1) - worker.live;
  }
  for (int i = 0; i < answers[4].size(); ++i) {
    job_stats.workers[answers[4].text(i, 0)].announcement = answers[4].text(i, 1);
  }
  return job_stats;
}

Pg<void> announce(Connection& connection, const std::string& worker,
                  const std::string& announcement, Duration ttl) {
  connection.add_unprepared("BEGIN");
  connection.add_unprepared("SELECT set_config('synchronous_commit', 'off', true)");
  Params params;
  params.add(worker).add(Bytes{announcement}).add(std::int64_t{ttl.count()});
  connection.add_unprepared(kAnnounce, params);
  connection.add_unprepared("COMMIT");
  auto run_result = connection.run();
  if (!run_result) return std::unexpected(connection.roll_back(std::move(run_result).error()));
  return {};
}

}  // namespace ae::store::postgres
