#include "store/sqlite/writes.h"

namespace ae::store::sqlite {

CommitWrite::CommitWrite(Batch batch, Instant now, async::Done<Result<Committed>> done)
    : Answering(std::move(done)), batch_(std::move(batch)), now_(now) {}

std::size_t CommitWrite::bytes() const {
  std::size_t bytes = 0;
  for (const EffectRow& effect : batch_.effects) bytes += effect.record.size();
  if (!batch_.sealed) return bytes;
  bytes += batch_.sealed->bytes.size();
  for (const Blob& blob : batch_.sealed->blobs) bytes += blob.bytes.size();
  return bytes;
}

Sql<void> CommitWrite::apply(Tables& tables) {
  written_ = false;
  points_.emplace(batch_);
  if (auto error = points_->before()) {
    keep(std::unexpected(*std::move(error)));
    return {};
  }
  AE_ASSIGN(auto commit, tables.commit(batch_, *points_, now_));
  written_ = commit.written;
  keep(std::move(commit.result));
  return {};
}

void CommitWrite::committed() {
  if (written_) replace(points_->after());
  points_.reset();
  batch_ = {};  // freed here rather than on the loop's thread
}

Sql<void> InboxWrite::apply(Tables& tables) {
  AE_ASSIGN(auto answer, tables.put_inbox(job_, entry_));
  keep(std::move(answer));
  return {};
}

void InboxWrite::committed() {
  if (kept()) replace(point_after("signal.after_inbox"));
}

Sql<void> ClaimWrite::apply(Tables& tables) {
  AE_ASSIGN(auto answer, tables.claim(request_, now_));
  keep(std::move(answer));
  return {};
}

void ClaimWrite::committed() {
  if (kept() && !kept()->empty()) replace(point_after("claim.after"));
}

Sql<void> ClaimJobWrite::apply(Tables& tables) {
  AE_ASSIGN(auto answer, tables.claim_job(job_, request_, now_));
  keep(std::move(answer));
  return {};
}

void ClaimJobWrite::committed() {
  if (kept() && kept()->has_value()) replace(point_after("claim.after"));
}

Sql<void> RedactWrite::apply(Tables& tables) {
  if (auto error = point_before("redact.before").now) {
    keep(std::unexpected(*std::move(error)));
    return {};
  }
  AE_ASSIGN(auto answer, tables.redact(redaction_));
  keep(std::move(answer));
  return {};
}

void RedactWrite::committed() {
  if (kept()) replace(point_after("redact.after"));
}

Sql<void> PruneWrite::apply(Tables& tables) {
  PointBefore point = point_before("prune.before");
  lost_ = std::move(point.afterwards);
  if (point.now) {
    keep(std::unexpected(*std::move(point.now)));
    return {};
  }
  AE_ASSIGN(auto answer, tables.prune(pruning_));
  keep(std::move(answer));
  return {};
}

void PruneWrite::committed() {
  if (kept() && *kept()) replace(point_after("prune.after"));
  replace(std::move(lost_));
}

Sql<void> RecordWrite::apply(Tables& tables) {
  AE_TRY(tables.record(entry_));
  keep({});
  return {};
}

Sql<void> AcceptedWrite::apply(Tables& tables) {
  AE_TRY(tables.finish_accepting());
  keep({});
  return {};
}

Sql<void> HeartbeatWrite::apply(Tables& tables) {
  PointBefore point = point_before("heartbeat.before");
  lost_ = std::move(point.afterwards);
  if (point.now) {
    keep(std::unexpected(*std::move(point.now)));
    return {};
  }
  AE_ASSIGN(auto answer, tables.heartbeat(held_, lease_, now_));
  keep(std::move(answer));
  return {};
}

void HeartbeatWrite::committed() { replace(std::move(lost_)); }

}  // namespace ae::store::sqlite
