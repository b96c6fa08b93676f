#include "store/sqlite/writes.h"

namespace ae::store::sqlite {

CommitWrite::CommitWrite(Batch batch, Instant now, async::Done<Result<CommitResult>> done)
    : WriteWithResult(std::move(done)), batch_(std::move(batch)), now_(now) {}

Sql<void> CommitWrite::apply(Tables& tables) {
  written_ = false;
  failpoints_.emplace(batch_);
  if (auto error = failpoints_->before()) {
    set_result(std::unexpected(*std::move(error)));
    return {};
  }
  AE_ASSIGN(auto commit, tables.commit(batch_, *failpoints_, now_));
  written_ = commit.written;
  set_result(std::move(commit.result));
  return {};
}

void CommitWrite::committed() {
  if (written_) override_with_error(failpoints_->after());
  failpoints_.reset();
  batch_ = {};  // freed here rather than on the loop's thread
}

Sql<void> InboxWrite::apply(Tables& tables) {
  AE_ASSIGN(auto answer, tables.put_inbox(job_, entry_));
  set_result(std::move(answer));
  return {};
}

void InboxWrite::committed() {
  if (result()) override_with_error(hit_after_failpoint("signal.after_inbox"));
}

Sql<void> ClaimWrite::apply(Tables& tables) {
  AE_ASSIGN(auto answer, tables.claim(request_, now_));
  set_result(std::move(answer));
  return {};
}

void ClaimWrite::committed() {
  if (result() && !result()->empty()) override_with_error(hit_after_failpoint("claim.after"));
}

Sql<void> ClaimJobWrite::apply(Tables& tables) {
  AE_ASSIGN(auto answer, tables.claim_job(job_, request_, now_));
  set_result(std::move(answer));
  return {};
}

void ClaimJobWrite::committed() {
  if (result() && result()->has_value()) override_with_error(hit_after_failpoint("claim.after"));
}

Sql<void> RedactWrite::apply(Tables& tables) {
  if (auto error = hit_before_failpoint("redact.before").now) {
    set_result(std::unexpected(*std::move(error)));
    return {};
  }
  AE_ASSIGN(auto answer, tables.redact(redaction_));
  set_result(std::move(answer));
  return {};
}

void RedactWrite::committed() {
  if (result()) override_with_error(hit_after_failpoint("redact.after"));
}

Sql<void> PruneWrite::apply(Tables& tables) {
  BeforeFailpoint point = hit_before_failpoint("prune.before");
  error_after_ = std::move(point.afterwards);
  if (point.now) {
    set_result(std::unexpected(*std::move(point.now)));
    return {};
  }
  AE_ASSIGN(auto answer, tables.prune(pruning_));
  set_result(std::move(answer));
  return {};
}

void PruneWrite::committed() {
  if (result() && *result()) override_with_error(hit_after_failpoint("prune.after"));
  override_with_error(std::move(error_after_));
}

Sql<void> AuditWrite::apply(Tables& tables) {
  AE_TRY(tables.append_audit_entry(entry_));
  set_result({});
  return {};
}

Sql<void> FinishAcceptingWrite::apply(Tables& tables) {
  AE_TRY(tables.finish_accepting());
  set_result({});
  return {};
}

Sql<void> HeartbeatWrite::apply(Tables& tables) {
  BeforeFailpoint point = hit_before_failpoint("heartbeat.before");
  error_after_ = std::move(point.afterwards);
  if (point.now) {
    set_result(std::unexpected(*std::move(point.now)));
    return {};
  }
  AE_ASSIGN(auto answer, tables.heartbeat(held_, lease_, now_));
  set_result(std::move(answer));
  return {};
}

void HeartbeatWrite::committed() { override_with_error(std::move(error_after_)); }

}  // namespace ae::store::sqlite
