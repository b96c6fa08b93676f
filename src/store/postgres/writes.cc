#include "store/postgres/writes.h"

#include "store/postgres/claims.h"
#include "store/postgres/prune.h"
#include "store/postgres/redaction.h"

namespace ae::store::postgres {

// Hits `before` once, although a write may be decided several times.
bool CommitWrite::is_refused() {
  written_ = false;
  if (!failpoints_) refusal_ = failpoints_.emplace(batch_).before();
  if (refusal_) set_result(std::unexpected(*refusal_));
  return refusal_.has_value();
}

void CommitWrite::decide(Transaction& transaction) {
  if (is_refused()) return;
  Transaction::Answer answer = transaction.commit(batch_, *failpoints_, time(transaction));
  written_ = answer.written;
  set_result(std::move(answer.result));
}

void CommitWrite::decide_plain(PlainCommits& commits, std::int64_t job_number) {
  if (is_refused()) return;
  if (auto error = failpoints_->before_commit())
    return set_result(std::unexpected(*std::move(error)));
  commits.add(batch_, job_number);
  written_ = true;
  set_result(CommitResult{.last_seq = batch_.sealed->last_seq});
}

void CommitWrite::committed() {
  if (written_) override_with_error(failpoints_->after());
  failpoints_.reset();
  batch_ = {};  // freed here rather than on the loop's thread
}

void InboxWrite::committed() {
  if (result()) override_with_error(hit_after_failpoint("signal.after_inbox"));
}

Pg<void> ClaimWrite::run_standalone(Connection& connection) {
  AE_ASSIGN(auto leases, claim(connection, request_, at()));
  set_result(std::move(leases));
  return {};
}

void ClaimWrite::committed() {
  if (result() && !result()->empty()) override_with_error(hit_after_failpoint("claim.after"));
}

void ClaimJobWrite::committed() {
  if (result() && result()->has_value()) override_with_error(hit_after_failpoint("claim.after"));
}

void ClaimJobWrite::declare_reads(Transaction& transaction) const {
  transaction.declare_reads(job_);
  transaction.declare_leased_counts(request_, at());
}

Pg<void> RedactWrite::run_standalone(Connection& connection) {
  AE_ASSIGN(auto answer, redact(connection, redaction_));
  set_result(std::move(answer));
  return {};
}

Pg<void> PruneWrite::run_standalone(Connection& connection) {
  BeforeFailpoint point = hit_before_failpoint("prune.before");
  error_after_ = std::move(point.afterwards);
  audit_head_.reset();
  if (point.now) {
    set_result(std::unexpected(*std::move(point.now)));
    return {};
  }
  AuditHead at;
  AE_ASSIGN(auto answer, prune(connection, pruning_, at));
  if (answer) audit_head_ = at;
  set_result(std::move(answer));
  return {};
}

std::optional<HighWaterMark> PruneWrite::high_water_mark() const {
  if (!audit_head_) return std::nullopt;
  return HighWaterMark{.job = {}, .audit = *audit_head_};
}

void PruneWrite::committed() {
  if (result()) override_with_error(hit_after_failpoint("prune.after"));
  override_with_error(std::move(error_after_));
}

void HeartbeatWrite::declare_reads(Transaction& transaction) const {
  for (const auto& [job, fence] : held_.jobs) transaction.declare_reads(job);
}

void HeartbeatWrite::decide(Transaction& transaction) {
  BeforeFailpoint point = hit_before_failpoint("heartbeat.before");
  error_after_ = std::move(point.afterwards);
  if (point.now) return set_result(std::unexpected(*std::move(point.now)));
  set_result(transaction.heartbeat(held_, time(transaction)));
}

}  // namespace ae::store::postgres
