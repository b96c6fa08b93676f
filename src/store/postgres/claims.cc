#include "store/postgres/claims.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "store/claim_order.h"
#include "store/postgres/statements.h"

namespace ae::store::postgres {
namespace {

using Type = Column::Type;

// The rest of a statement whose table `claimed` has place, job, attempt, epoch and lease_until:
// from its commit on only the new lease may append. The rows are locked already.
// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): a piece of SQL, put together by the compiler
#define FENCE_CLAIMED                                                                         \
  "fenced AS (UPDATE log_ends e SET attempt = c.attempt FROM claimed c WHERE e.job = c.job) " \
  "SELECT place, (SELECT job_id FROM jobs WHERE number = claimed.job), attempt, epoch, "      \
  "lease_until FROM claimed"

// A job that another transaction has locked is skipped: it is being claimed or written.
constexpr Statement kMakeDelayedEligible{
    "make_delayed_eligible",
    "WITH ripe AS MATERIALIZED (SELECT job FROM heads WHERE NOT ready AND ripe_at IS NOT NULL "
    "AND attempt IS NULL AND ripe_at <= (SELECT coalesce($1::bigint, "
    "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint)) "
    "ORDER BY ripe_at LIMIT 10000 FOR UPDATE SKIP LOCKED) "
    "UPDATE heads SET ready = true FROM ripe WHERE heads.job = ripe.job"};
constexpr Statement kMakeExpiredEligible{
    "make_expired_eligible",
    "WITH ripe AS MATERIALIZED (SELECT job FROM heads WHERE NOT ready AND ripe_at IS NOT NULL "
    "AND attempt IS NOT NULL AND ripe_at <= (SELECT coalesce($1::bigint, "
    "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint)) "
    "ORDER BY ripe_at LIMIT 10000 FOR UPDATE SKIP LOCKED) "
    "UPDATE heads SET ready = true FROM ripe WHERE heads.job = ripe.job"};
// `coalesce(ready, false)` keeps the planner from using the index of ready jobs where one job is
// looked up by its number.
//
// `kinds`: one lookup per kind. `walk`: the jobs of the matching kinds, best first; each step takes
// the best of the next jobs of each kind, and the walk ends with the last job that is taken. Only
// rows that are taken are locked. A ready job can have a valid lease if the clock was set back.
// Kind '' = the job's own columns are checked.
constexpr Statement kClaimReady{
    "claim_ready",
    "WITH RECURSIVE time AS MATERIALIZED (SELECT coalesce($1::bigint, "
    "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now), "
    "kinds AS ((SELECT kind, job FROM heads WHERE ready ORDER BY kind, priority DESC, job LIMIT 1) "
    "UNION ALL SELECT n.kind, n.job FROM kinds k CROSS JOIN LATERAL (SELECT kind, job FROM heads "
    "WHERE ready AND kind > k.kind ORDER BY kind, priority DESC, job LIMIT 1) n), "
    "fitting AS MATERIALIZED (SELECT k.kind FROM kinds k "
    "WHERE (SELECT k.kind = '' OR (($2::text[] IS NULL OR agent = ANY($2::text[])) "
    "AND capabilities <@ $4::text[]) FROM jobs WHERE number = k.job)), "
    "walk AS ((SELECT n.job, n.priority FROM fitting f CROSS JOIN LATERAL (SELECT job, priority "
    "FROM heads WHERE ready AND kind = f.kind ORDER BY priority DESC, job LIMIT 1) n "
    "ORDER BY n.priority DESC, n.job LIMIT 1) "
    "UNION ALL SELECT n.job, n.priority FROM walk w CROSS JOIN LATERAL (SELECT m.job, m.priority "
    "FROM fitting f CROSS JOIN LATERAL ("
    "(SELECT job, priority FROM heads WHERE ready AND kind = f.kind AND priority = w.priority "
    "AND job > w.job ORDER BY job LIMIT 1) UNION ALL "
    "(SELECT job, priority FROM heads WHERE ready AND kind = f.kind AND priority < w.priority "
    "ORDER BY priority DESC, job LIMIT 1) ORDER BY priority DESC, job LIMIT 1) m "
    "ORDER BY m.priority DESC, m.job LIMIT 1) n), "
    "picked AS MATERIALIZED (SELECT h.job, h.priority FROM walk w CROSS JOIN LATERAL ("
    "SELECT job, priority FROM heads WHERE job = w.job AND coalesce(ready, false) "
    "AND (lease_until IS NULL OR lease_until <= (SELECT now FROM time)) "
    "AND (SELECT (kind <> '' OR (($2::text[] IS NULL OR agent = ANY($2::text[])) "
    "AND capabilities <@ $4::text[])) AND job_id NOT IN (SELECT unnest($3::text[])) "
    "FROM jobs WHERE number = w.job) FOR UPDATE SKIP LOCKED) h "
    "CROSS JOIN LATERAL (SELECT 1 FROM log_ends WHERE job = h.job FOR UPDATE SKIP LOCKED) e "
    "WHERE (SELECT value = '' FROM meta WHERE key = 'fair_by') LIMIT $5::bigint), "
    "taken AS MATERIALIZED (SELECT job, row_number() OVER (ORDER BY priority DESC, job) AS place "
    "FROM picked), "
    "claimed AS (UPDATE heads SET epoch = heads.epoch + 1, attempt = ($6::text[])[taken.place], "
    "held_by = $7::text, lease_until = time.now + $8::bigint, ready = false, "
    "ripe_at = time.now + $8::bigint FROM taken, time WHERE heads.job = taken.job "
    "RETURNING taken.place, heads.job, heads.attempt, heads.epoch, "
    "heads.lease_until), " FENCE_CLAIMED};

// The groups from which this worker may take: one lookup each, all in one round trip.
constexpr Statement kReadyGroups{
    "ready_groups",
    "WITH RECURSIVE line AS ((SELECT queue, kind, priority, job FROM heads WHERE ready "
    "ORDER BY queue, kind, priority DESC, turn, job LIMIT 1) "
    "UNION ALL SELECT n.queue, n.kind, n.priority, n.job FROM line l CROSS JOIN LATERAL ("
    "SELECT queue, kind, priority, job FROM heads WHERE ready AND (queue, kind) > (l.queue, "
    "l.kind) "
    "ORDER BY queue, kind, priority DESC, turn, job LIMIT 1) n) "
    "SELECT l.queue, l.kind, l.priority FROM line l WHERE (SELECT l.kind = '' OR "
    "(($1::text[] IS NULL OR agent = ANY($1::text[])) AND capabilities <@ $2::text[]) "
    "FROM jobs WHERE number = l.job)"};
constexpr Statement kCountLeasedOfQueue{
    "count_leased_of_queue",
    "SELECT count(*) FROM (SELECT 1 FROM heads WHERE queue = $1::text "
    "AND attempt IS NOT NULL AND lease_until > $2::bigint "
    "LIMIT $3::bigint) AS live"};
constexpr Statement kPriorityBelow{
    "priority_below",
    "SELECT priority FROM heads WHERE ready AND queue = $1::text AND kind = $2::bytea "
    "AND priority < $3::bigint ORDER BY priority DESC LIMIT 1"};
constexpr Statement kFirstFairnessKey{
    "first_fairness_key",
    "SELECT turn FROM heads WHERE ready AND queue = $1::text AND kind = $2::bytea "
    "AND priority = $3::bigint ORDER BY turn LIMIT 1"};
constexpr Statement kFairnessKeyAfter{
    "fairness_key_after",
    "SELECT turn FROM heads WHERE ready AND queue = $1::text AND kind = $2::bytea "
    "AND priority = $3::bigint AND turn > $4::text ORDER BY turn LIMIT 1"};
// The next job that this worker may take. Jobs are locked only after they are chosen.
constexpr Statement kJobAfter{
    "job_after",
    "SELECT h.job, j.job_id FROM heads h CROSS JOIN LATERAL (SELECT job_id FROM jobs "
    "WHERE number = h.job AND job_id NOT IN (SELECT unnest($7::text[])) AND ($2::bytea <> '' OR "
    "(($8::text[] IS NULL OR agent = ANY($8::text[])) AND capabilities <@ $9::text[])) "
    "OFFSET 0) j "
    "WHERE h.ready AND h.queue = $1::text AND h.kind = $2::bytea AND h.priority = $3::bigint "
    "AND h.turn = $4::text AND h.job > $5::bigint "
    "AND (h.lease_until IS NULL OR h.lease_until <= $6::bigint) ORDER BY h.job LIMIT 1"};
constexpr Statement kLockChosen{
    "lock_chosen",
    "WITH wanted AS MATERIALIZED (SELECT number, job_id FROM jobs WHERE job_id = ANY($1::text[]) "
    "ORDER BY number + 0) "
    "SELECT w.job_id FROM wanted w CROSS JOIN LATERAL (SELECT job FROM heads WHERE job = w.number "
    "AND coalesce(ready, false) FOR UPDATE SKIP LOCKED) h "
    "CROSS JOIN LATERAL (SELECT 1 FROM log_ends WHERE job = h.job FOR UPDATE SKIP LOCKED) e"};
constexpr Statement kLastServedKey{"last_served_key",
                                   "SELECT last FROM turns WHERE priority = $1::bigint"};
constexpr Statement kPutServedKeys{
    "put_served_keys",
    "INSERT INTO turns(priority, last) SELECT * FROM unnest($1::bigint[], $2::text[]) "
    "ON CONFLICT (priority) DO UPDATE SET last = excluded.last"};
constexpr Statement kClaimChosen{
    "claim_chosen",
    "WITH chosen AS MATERIALIZED (SELECT (SELECT number FROM jobs WHERE job_id = w.id) AS number, "
    "w.attempt, w.place FROM unnest($1::text[], $2::text[]) "
    "WITH ORDINALITY AS w(id, attempt, place)), "
    "claimed AS (UPDATE heads SET epoch = heads.epoch + 1, attempt = chosen.attempt, held_by = "
    "$3::text, "
    "lease_until = $4::bigint, ready = false, ripe_at = $4::bigint FROM chosen "
    "WHERE heads.job = chosen.number "
    "RETURNING chosen.place, heads.job, heads.attempt, heads.epoch, "
    "heads.lease_until), " FENCE_CLAIMED};
#undef FENCE_CLAIMED

// Rows of place (from 1), job, attempt, epoch, lease.
std::vector<Lease> leases_of(const Rows& rows) {
  std::vector<Lease> leases(static_cast<std::size_t>(rows.size()));
  for (int i = 0; i < rows.size(); ++i) {
    leases.at(rows.count(i, 0) - 1) = {JobId(rows.text(i, 1)),
                                       Fence{AttemptId(rows.text(i, 2)), rows.count(i, 3)},
                                       rows.instant(i, 4)};
  }
  return leases;
}

struct UnlimitedClaim {
  std::vector<Lease> leases;
  std::string fair_by;  // not "": nothing was claimed, because there are fairness keys
};

Pg<UnlimitedClaim> claim_without_limits(Connection& connection, const ClaimRequest& request,
                                        std::optional<Instant> at) {
  Params params;
  params.add(at);
  if (request.agents.empty()) {
    params.add(std::nullopt);
  } else {
    params.add(column_of(Type::text, request.agents));
  }
  params.add(column_of(Type::text, request.excluded_jobs, &JobId::text))
      .add(column_of(Type::text, request.capabilities))
      .add(std::uint64_t{request.limit})
      .add(column_of(Type::text, request.attempts, &AttemptId::text))
      .add(request.worker)
      .add(std::int64_t{request.lease.count()});
  connection.add(kBegin);
  connection.add(kMakeDelayedEligible, Params().add(at));
  connection.add(kMakeExpiredEligible, Params().add(at));
  connection.add(kClaimReady, params);
  connection.add(kFairBy);
  connection.add(kCommit);
  AE_ASSIGN(const auto answers, connection.run());
  return UnlimitedClaim{leases_of(answers[3]), answers[4].text(0, 0)};
}

// The Source of ClaimOrder: each query is a lookup in an index of ready jobs.
class ReadyJobs {
 public:
  using Failure = PgError;
  struct Group {
    std::string queue, kind;
    std::int64_t priority = 0;
  };
  ReadyJobs(Connection& connection, const ClaimRequest& request, Instant now, bool fair)
      : connection_(connection), now_(now), is_fair_(fair), excluded_(request.excluded_jobs) {
    if (!request.agents.empty()) agents_ = column_of(Type::text, request.agents);
    capabilities_ = column_of(Type::text, request.capabilities);
  }

  Pg<std::vector<Group>> groups() {
    AE_ASSIGN(const Rows rows, query(kReadyGroups, Params().add(agents_).add(capabilities_)));
    std::vector<Group> groups;
    groups.reserve(static_cast<std::size_t>(rows.size()));
    for (int i = 0; i < rows.size(); ++i) {
      groups.push_back({rows.text(i, 0), rows.text(i, 1), rows.integer(i, 2)});
    }
    return groups;
  }
  Pg<std::size_t> count_leased(const std::string& queue, std::size_t enough) {
    AE_ASSIGN(const Rows rows,
              query(kCountLeasedOfQueue, Params().add(queue).add(now_).add(std::uint64_t{enough})));
    return rows.count(0, 0);
  }
  Pg<std::optional<std::int64_t>> priority_below(const Group& group, std::int64_t priority) {
    AE_ASSIGN(const Rows rows, query(kPriorityBelow, at(group).add(priority)));
    if (rows.empty()) return std::nullopt;
    return rows.integer(0, 0);
  }
  Pg<std::optional<std::string>> fairness_key_after(
      const Group& group, std::int64_t priority, const std::optional<std::string>& fairness_key) {
    if (!fairness_key) return text(kFirstFairnessKey, at(group).add(priority));
    return text(kFairnessKeyAfter, at(group).add(priority).add(*fairness_key));
  }
  Pg<std::optional<ReadyJob>> job_after(const Group& group, std::int64_t priority,
                                        const std::string& fairness_key, std::int64_t number) {
    AE_ASSIGN(const Rows rows,
              query(kJobAfter, at(group)
                                   .add(priority)
                                   .add(fairness_key)
                                   .add(number)
                                   .add(now_)
                                   .add(column_of(Type::text, excluded_, &JobId::text))
                                   .add(agents_)
                                   .add(capabilities_)));
    if (rows.empty()) return std::nullopt;
    return ReadyJob{JobId(rows.text(0, 1)), rows.integer(0, 0), true};
  }
  Pg<std::optional<std::string>> last_served_key_at(std::int64_t priority) {
    if (!is_fair_) return std::nullopt;
    return text(kLastServedKey, Params().add(priority));
  }
  bool is_fair() const { return is_fair_; }

  // Locks them. False: another transaction has locked or claimed some; these are excluded from then
  // on.
  Pg<bool> lock(const std::vector<JobId>& chosen) {
    if (chosen.empty()) return true;
    AE_ASSIGN(const Rows rows,
              query(kLockChosen, Params().add(column_of(Type::text, chosen, &JobId::text))));
    std::set<std::string> locked;
    for (int i = 0; i < rows.size(); ++i) locked.insert(rows.text(i, 0));
    for (const JobId& job : chosen) {
      if (!locked.contains(job.text)) excluded_.push_back(job);
    }
    return locked.size() == chosen.size();
  }

 private:
  static Params at(const Group& group) {
    Params params;
    params.add(group.queue).add(Bytes{group.kind});
    return params;
  }
  Pg<Rows> query(const Statement& statement, const Params& params) {
    connection_.add(statement, params);
    AE_ASSIGN(auto answers, connection_.run());
    return std::move(answers[0]);
  }
  Pg<std::optional<std::string>> text(const Statement& statement, const Params& params) {
    AE_ASSIGN(const Rows rows, query(statement, params));
    if (rows.empty()) return std::nullopt;
    return rows.text(0, 0);
  }

  Connection& connection_;
  const Instant now_;
  const bool is_fair_;
  std::vector<JobId> excluded_;
  std::optional<Column> agents_;
  Column capabilities_{Type::text};
};

struct Chosen {
  std::vector<JobId> jobs;
  std::map<std::int64_t, std::string> served_keys;
};

// Jobs are locked after all are chosen. If another transaction has one of them, the choice is
// repeated without that one, so claims do not block each other.
Pg<Chosen> choose_jobs(ReadyJobs& ready, const ClaimRequest& request) {
  for (;;) {
    ClaimOrder order(ready, request);
    AE_ASSIGN(std::vector<JobId> jobs, order.choose_jobs());
    AE_ASSIGN(const bool is_locked, ready.lock(jobs));
    if (is_locked) return Chosen{std::move(jobs), order.served_keys()};
  }
}

Pg<std::vector<Lease>> claim_by_group(Connection& connection, const ClaimRequest& request,
                                      std::optional<Instant> at) {
  connection.add(kBegin);
  connection.add(kLockClaims);
  connection.add(kServerTime);
  connection.add(kMakeDelayedEligible, Params().add(at));
  connection.add(kMakeExpiredEligible, Params().add(at));
  connection.add(kFairBy);
  AE_ASSIGN(const auto answers, connection.run());
  const Instant now = at.value_or(answers[2].instant(0, 0));
  ReadyJobs ready(connection, request, now, !answers[5].bytes(0, 0).empty());
  AE_ASSIGN(const Chosen chosen, choose_jobs(ready, request));
  Column priorities(Type::integer), served_keys(Type::text);
  for (const auto& [priority, fairness_key] : chosen.served_keys) {
    priorities.add(priority);
    served_keys.add(fairness_key);
  }
  if (!priorities.empty())
    connection.add(kPutServedKeys, Params().add(priorities).add(served_keys));
  std::vector<AttemptId> attempts(request.attempts.begin(),
                                  request.attempts.begin() + static_cast<long>(chosen.jobs.size()));
  connection.add(kClaimChosen, Params()
                                   .add(column_of(Type::text, chosen.jobs, &JobId::text))
                                   .add(column_of(Type::text, attempts, &AttemptId::text))
                                   .add(request.worker)
                                   .add(now + request.lease));
  connection.add(kCommit);
  AE_ASSIGN(const auto written, connection.run());
  return leases_of(written[written.size() - 2]);
}

}  // namespace

std::vector<Statement> claim_statements() {
  return {kMakeDelayedEligible, kMakeExpiredEligible, kClaimReady,
          kReadyGroups,         kCountLeasedOfQueue,  kPriorityBelow,
          kFirstFairnessKey,    kFairnessKeyAfter,    kJobAfter,
          kLockChosen};
}

Pg<std::vector<Lease>> claim(Connection& connection, const ClaimRequest& request,
                             std::optional<Instant> at) {
  if (request.queues.empty()) {
    AE_ASSIGN(UnlimitedClaim claim_without_limits, claim_without_limits(connection, request, at));
    if (claim_without_limits.fair_by.empty()) return std::move(claim_without_limits.leases);
  }
  return claim_by_group(connection, request, at);
}

}  // namespace ae::store::postgres
