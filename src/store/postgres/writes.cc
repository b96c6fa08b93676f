#include "store/postgres/writes.h"

#include "store/postgres/claims.h"
#include "store/postgres/prune.h"
#include "store/postgres/redaction.h"

namespace ae::store::postgres {

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
  AE_ASSIGN(auto leases, claim(connection, request_, at()));
  keep(std::move(leases));
  return {};
}

void ClaimWrite::committed() {
  if (kept() && !kept()->empty()) replace(point_after("claim.after"));
}

void ClaimJobWrite::committed() {
  if (kept() && kept()->has_value()) replace(point_after("claim.after"));
}

void ClaimJobWrite::needs(Transaction& transaction) const {
  transaction.needs(job_);
  transaction.needs_held(request_, at());
}

Pg<void> RedactWrite::alone(Connection& connection) {
  AE_ASSIGN(auto answer, redact(connection, redaction_));
  keep(std::move(answer));
  return {};
}

Pg<void> PruneWrite::alone(Connection& connection) {
  PointBefore point = point_before("prune.before");
  lost_ = std::move(point.afterwards);
  left_.reset();
  if (point.now) {
    keep(std::unexpected(*std::move(point.now)));
    return {};
  }
  AuditHead at;
  AE_ASSIGN(auto answer, prune(connection, pruning_, at));
  if (answer) left_ = at;
  keep(std::move(answer));
  return {};
}

std::optional<Mark> PruneWrite::mark() const {
  if (!left_) return std::nullopt;
  return Mark{.job = {}, .audit = *left_};
}

void PruneWrite::committed() {
  if (kept()) replace(point_after("prune.after"));
  replace(std::move(lost_));
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
