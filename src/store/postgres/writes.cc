#include "store/postgres/writes.h"

#include <algorithm>

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
    "ORDER BY h.priority DESC, h.job LIMIT $5::bigint FOR UPDATE OF h SKIP LOCKED), "
    "taken AS MATERIALIZED (SELECT job, row_number() OVER (ORDER BY priority DESC, job) AS place "
    "FROM picked) "
    "UPDATE heads SET epoch = heads.epoch + 1, attempt = ($6::text[])[taken.place], "
    "worker = $7::text, lease_until = time.now + $8::bigint, ready = false, "
    "ripe_at = time.now + $8::bigint FROM taken, time WHERE heads.job = taken.job "
    "RETURNING taken.place, (SELECT job_id FROM jobs WHERE number = heads.job), heads.attempt, "
    "heads.epoch, heads.lease_until"};

template <class Texts, class Text>
Column column_of(const Texts& texts, Text text) {
  Column column(Type::text);
  for (const auto& item : texts) column.add(text(item));
  return column;
}

}  // namespace

std::vector<Statement> claim_statements() { return {kRipenDelayed, kRipenLeased, kClaim}; }

std::size_t CommitWrite::bytes() const {
  std::size_t bytes = 0;
  for (const EffectRow& effect : batch_.effects) bytes += effect.record.size();
  if (!batch_.sealed) return bytes;
  bytes += batch_.sealed->bytes.size();
  for (const Blob& blob : batch_.sealed->blobs) bytes += blob.bytes.size();
  return bytes;
}

void CommitWrite::decide(Transaction& transaction) {
  written_ = false;
  points_.emplace(batch_);
  if (auto error = points_->before()) return keep(std::unexpected(*std::move(error)));
  Transaction::Answer answer = transaction.commit(batch_, *points_, time(transaction));
  written_ = answer.written;
  keep(std::move(answer.result));
}

void CommitWrite::committed() {
  if (written_) replace(points_->after());
  points_.reset();
  batch_ = {};  // freed here rather than on the loop's thread
}

void InboxWrite::committed() {
  if (kept()) replace(point_after("signal.after_inbox"));
}

Pg<void> ClaimWrite::alone(Connection& connection) {
  const auto text = [](const std::string& item) -> std::string_view { return item; };
  const auto id = [](const auto& item) -> std::string_view { return item.text; };
  Params wish;
  wish.add(at());
  if (request_.agents.empty()) {
    wish.add(std::nullopt);
  } else {
    wish.add(column_of(request_.agents, text));
  }
  wish.add(column_of(request_.except, id))
      .add(column_of(request_.capabilities, text))
      .add(std::uint64_t{request_.limit})
      .add(column_of(request_.attempts, id))
      .add(request_.worker)
      .add(std::int64_t{request_.lease.count()});
  connection.add(kBegin);
  connection.add(kRipenDelayed, Params().add(at()));
  connection.add(kRipenLeased, Params().add(at()));
  connection.add(kClaim, wish);
  connection.add(kCommit);
  AE_ASSIGN(const auto answers, connection.run());
  const Rows& rows = answers[3];
  std::vector<Lease> leases(static_cast<std::size_t>(rows.size()));
  for (int i = 0; i < rows.size(); ++i) {
    leases.at(rows.count(i, 0) - 1) = {JobId(rows.text(i, 1)),
                                       Fence{AttemptId(rows.text(i, 2)), rows.count(i, 3)},
                                       rows.instant(i, 4)};
  }
  keep(std::move(leases));
  return {};
}

void ClaimWrite::committed() {
  if (kept() && !kept()->empty()) replace(point_after("claim.after"));
}

void ClaimJobWrite::committed() {
  if (kept() && kept()->has_value()) replace(point_after("claim.after"));
}

void HeartbeatWrite::needs(Transaction& transaction) const {
  for (const auto& [job, fence] : held_.jobs) transaction.needs(job);
}

void HeartbeatWrite::decide(Transaction& transaction) {
  PointBefore point = point_before("heartbeat.before");
  lost_ = std::move(point.afterwards);
  if (point.now) return keep(std::unexpected(*std::move(point.now)));
  keep(transaction.heartbeat(held_, time(transaction)));
}

}  // namespace ae::store::postgres
