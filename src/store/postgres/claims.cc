#include "store/postgres/claims.h"

#include <algorithm>
#include <string>

#include "store/claim_order.h"
#include "store/postgres/transaction.h"

namespace ae::store::postgres {
namespace {

using Type = Column::Type;

constexpr Statement kBegin{"begin_claim", "BEGIN"};
constexpr Statement kCommit{"commit_claim", "COMMIT"};

// A job that another transaction has locked is passed over: it is being claimed, or worked on.
constexpr Statement kRipenDelayed{
    "ripen_delayed",
    "WITH ripe AS MATERIALIZED (SELECT job FROM heads WHERE NOT ready AND ripe_at IS NOT NULL "
    "AND attempt IS NULL AND ripe_at <= (SELECT coalesce($1::bigint, "
    "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint)) "
    "ORDER BY ripe_at LIMIT 10000 FOR UPDATE SKIP LOCKED) "
    "UPDATE heads SET ready = true FROM ripe WHERE heads.job = ripe.job"};
constexpr Statement kRipenLeased{
    "ripen_leased",
    "WITH ripe AS MATERIALIZED (SELECT job FROM heads WHERE NOT ready AND ripe_at IS NOT NULL "
    "AND attempt IS NOT NULL AND ripe_at <= (SELECT coalesce($1::bigint, "
    "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint)) "
    "ORDER BY ripe_at LIMIT 10000 FOR UPDATE SKIP LOCKED) "
    "UPDATE heads SET ready = true FROM ripe WHERE heads.job = ripe.job"};
// A ready job with a lease that has not run out: the clock was set back.
constexpr Statement kClaim{
    "claim",
    "WITH time AS MATERIALIZED (SELECT coalesce($1::bigint, "
    "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now), "
    "picked AS MATERIALIZED (SELECT h.job, h.priority FROM heads h "
    "WHERE h.ready AND (h.lease_until IS NULL OR h.lease_until <= (SELECT now FROM time)) "
    "AND (SELECT ($2::text[] IS NULL OR agent = ANY($2::text[])) AND NOT job_id = ANY($3::text[]) "
    "AND capabilities <@ $4::text[] FROM jobs WHERE number = h.job) "
    "AND (SELECT value = '' FROM meta WHERE key = 'fair_by') "
    "ORDER BY h.priority DESC, h.job LIMIT $5::bigint FOR UPDATE OF h SKIP LOCKED), "
    "taken AS MATERIALIZED (SELECT job, row_number() OVER (ORDER BY priority DESC, job) AS place "
    "FROM picked) "
    "UPDATE heads SET epoch = heads.epoch + 1, attempt = ($6::text[])[taken.place], "
    "worker = $7::text, lease_until = time.now + $8::bigint, ready = false, "
    "ripe_at = time.now + $8::bigint FROM taken, time WHERE heads.job = taken.job "
    "RETURNING taken.place, (SELECT job_id FROM jobs WHERE number = heads.job), heads.attempt, "
    "heads.epoch, heads.lease_until"};

constexpr Statement kFairBy{"claim_fair_by", "SELECT value FROM meta WHERE key = 'fair_by'"};
constexpr Statement kOneClaimer{"one_claimer", kOneClaimerUnderLimits};
constexpr Statement kTime{"claim_time",
                          "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"};
constexpr Statement kQueueAfter{
    "queue_after",
    "SELECT queue FROM heads WHERE ready AND queue > $1::text ORDER BY queue LIMIT 1"};
constexpr Statement kHeld{"claims_held",
                          "SELECT count(*) FROM (SELECT 1 FROM heads WHERE queue = $1::text "
                          "AND attempt IS NOT NULL AND lease_until > $2::bigint "
                          "LIMIT $3::bigint) AS live"};
constexpr Statement kPriorityBelow{
    "priority_below",
    "SELECT priority FROM heads WHERE ready AND queue = $1::text AND priority < $2::bigint "
    "ORDER BY priority DESC LIMIT 1"};
constexpr Statement kFirstTurn{
    "first_turn",
    "SELECT turn FROM heads WHERE ready AND queue = $1::text AND priority = $2::bigint "
    "ORDER BY turn LIMIT 1"};
constexpr Statement kTurnAfter{
    "turn_after",
    "SELECT turn FROM heads WHERE ready AND queue = $1::text AND priority = $2::bigint "
    "AND turn > $3::text ORDER BY turn LIMIT 1"};
constexpr Statement kJobAfter{
    "job_after",
    "WITH next AS MATERIALIZED (SELECT job, lease_until FROM heads WHERE ready "
    "AND queue = $1::text AND priority = $2::bigint AND turn = $3::text AND job > $4::bigint "
    "ORDER BY job LIMIT 1 FOR UPDATE SKIP LOCKED) "
    "SELECT n.job, j.job_id, j.agent, n.lease_until, array_to_string(j.capabilities, E'\\n') "
    "FROM next n CROSS JOIN LATERAL (SELECT * FROM jobs WHERE number = n.job OFFSET 0) j"};
constexpr Statement kLastTurn{"last_turn", "SELECT last FROM turns WHERE priority = $1::bigint"};
constexpr Statement kPutTurns{
    "put_turns",
    "INSERT INTO turns(priority, last) SELECT * FROM unnest($1::bigint[], $2::text[]) "
    "ON CONFLICT (priority) DO UPDATE SET last = excluded.last"};
constexpr Statement kTake{
    "take_chosen",
    "WITH chosen AS MATERIALIZED (SELECT (SELECT number FROM jobs WHERE job_id = w.id) AS number, "
    "w.attempt, w.place FROM unnest($1::text[], $2::text[]) "
    "WITH ORDINALITY AS w(id, attempt, place)) "
    "UPDATE heads SET epoch = heads.epoch + 1, attempt = chosen.attempt, worker = $3::text, "
    "lease_until = $4::bigint, ready = false, ripe_at = $4::bigint FROM chosen "
    "WHERE heads.job = chosen.number "
    "RETURNING chosen.place, (SELECT job_id FROM jobs WHERE number = heads.job), heads.attempt, "
    "heads.epoch, heads.lease_until"};

template <class Texts, class Text>
Column column_of(const Texts& texts, Text text) {
  Column column(Type::text);
  for (const auto& item : texts) column.add(text(item));
  return column;
}

std::vector<std::string> lines(std::string_view text) {
  std::vector<std::string> all;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    all.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return all;
}

std::string_view as_text(const std::string& item) { return item; }
std::string_view as_id(const JobId& item) { return item.text; }
std::string_view as_attempt(const AttemptId& item) { return item.text; }

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

struct Simply {
  std::vector<Lease> leases;
  std::string fair_by;  // not "": nothing was claimed, for claims take turns
};

Pg<Simply> claim_simply(Connection& connection, const ClaimRequest& request,
                        std::optional<Instant> at) {
  Params wish;
  wish.add(at);
  if (request.agents.empty()) {
    wish.add(std::nullopt);
  } else {
    wish.add(column_of(request.agents, as_text));
  }
  wish.add(column_of(request.except, as_id))
      .add(column_of(request.capabilities, as_text))
      .add(std::uint64_t{request.limit})
      .add(column_of(request.attempts, as_attempt))
      .add(request.worker)
      .add(std::int64_t{request.lease.count()});
  connection.add(kBegin);
  connection.add(kRipenDelayed, Params().add(at));
  connection.add(kRipenLeased, Params().add(at));
  connection.add(kClaim, wish);
  connection.add(kFairBy);
  connection.add(kCommit);
  AE_ASSIGN(const auto answers, connection.run());
  return Simply{leases_of(answers[3]), answers[4].text(0, 0)};
}

// What ClaimOrder asks, each a look into an index of ready jobs.
class ReadyJobs {
 public:
  using Failure = PgError;
  ReadyJobs(Connection& connection, const ClaimRequest& request, Instant now, bool turns)
      : connection_(connection), request_(request), now_(now), turns_(turns) {}

  Pg<std::optional<std::string>> queue_after(const std::string& queue) {
    return text(kQueueAfter, Params().add(queue));
  }
  Pg<std::size_t> held(const std::string& queue, std::size_t enough) {
    AE_ASSIGN(const Rows rows,
              ask(kHeld, Params().add(queue).add(now_).add(std::uint64_t{enough})));
    return rows.count(0, 0);
  }
  Pg<std::optional<std::int64_t>> priority_below(const std::string& queue, std::int64_t priority) {
    AE_ASSIGN(const Rows rows, ask(kPriorityBelow, Params().add(queue).add(priority)));
    if (rows.empty()) return std::nullopt;
    return rows.integer(0, 0);
  }
  Pg<std::optional<std::string>> turn_after(const std::string& queue, std::int64_t priority,
                                            const std::optional<std::string>& turn) {
    if (!turn) return text(kFirstTurn, Params().add(queue).add(priority));
    return text(kTurnAfter, Params().add(queue).add(priority).add(*turn));
  }
  Pg<std::optional<ReadyJob>> job_after(const std::string& queue, std::int64_t priority,
                                        const std::string& turn, std::int64_t number) {
    AE_ASSIGN(const Rows rows,
              ask(kJobAfter, Params().add(queue).add(priority).add(turn).add(number)));
    if (rows.empty()) return std::nullopt;
    ReadyJob job{JobId(rows.text(0, 1)), rows.integer(0, 0), false};
    // A lease that is not over: the clock was set back.
    const bool free = rows.is_null(0, 3) || rows.instant(0, 3) <= now_;
    job.fits = free && fits(request_, {job.job, rows.text(0, 2), lines(rows.bytes(0, 4))});
    return job;
  }
  Pg<std::optional<std::string>> served(std::int64_t priority) {
    if (!turns_) return std::nullopt;
    return text(kLastTurn, Params().add(priority));
  }
  bool takes_turns() const { return turns_; }

 private:
  Pg<Rows> ask(const Statement& statement, const Params& params) {
    connection_.add(statement, params);
    AE_ASSIGN(auto answers, connection_.run());
    return std::move(answers[0]);
  }
  Pg<std::optional<std::string>> text(const Statement& statement, const Params& params) {
    AE_ASSIGN(const Rows rows, ask(statement, params));
    if (rows.empty()) return std::nullopt;
    return rows.text(0, 0);
  }

  Connection& connection_;
  const ClaimRequest& request_;
  const Instant now_;
  const bool turns_;
};

Pg<std::vector<Lease>> claim_in_order(Connection& connection, const ClaimRequest& request,
                                      std::optional<Instant> at) {
  connection.add(kBegin);
  connection.add(kOneClaimer);
  connection.add(kTime);
  connection.add(kRipenDelayed, Params().add(at));
  connection.add(kRipenLeased, Params().add(at));
  connection.add(kFairBy);
  AE_ASSIGN(const auto answers, connection.run());
  const Instant now = at.value_or(answers[2].instant(0, 0));
  ReadyJobs ready(connection, request, now, !answers[5].bytes(0, 0).empty());
  ClaimOrder order(ready, request);
  AE_ASSIGN(const std::vector<JobId> chosen, order.choose());
  Column priorities(Type::integer), turns(Type::text);
  for (const auto& [priority, turn] : order.turns()) {
    priorities.add(priority);
    turns.add(turn);
  }
  if (!priorities.empty()) connection.add(kPutTurns, Params().add(priorities).add(turns));
  std::vector<AttemptId> attempts(request.attempts.begin(),
                                  request.attempts.begin() + static_cast<long>(chosen.size()));
  connection.add(kTake, Params()
                            .add(column_of(chosen, as_id))
                            .add(column_of(attempts, as_attempt))
                            .add(request.worker)
                            .add(now + request.lease));
  connection.add(kCommit);
  AE_ASSIGN(const auto written, connection.run());
  return leases_of(written[written.size() - 2]);
}

}  // namespace

std::vector<Statement> claim_statements() {
  return {kRipenDelayed,  kRipenLeased, kClaim,     kQueueAfter, kHeld,
          kPriorityBelow, kFirstTurn,   kTurnAfter, kJobAfter};
}

Pg<std::vector<Lease>> claim(Connection& connection, const ClaimRequest& request,
                             std::optional<Instant> at) {
  if (request.queues.empty()) {
    AE_ASSIGN(Simply simply, claim_simply(connection, request, at));
    if (simply.fair_by.empty()) return std::move(simply.leases);
  }
  return claim_in_order(connection, request, at);
}

}  // namespace ae::store::postgres
