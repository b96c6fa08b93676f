#include "store/sqlite/tables.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "store/lines.h"
#include "store/rules.h"
#include "store/sqlite/audit_table.h"

namespace ae::store::sqlite {
namespace {

constexpr std::size_t kStoredBlobsMax = 4096;

bool same(const RowState& a, const RowState& b) {
  return a.status == b.status && a.not_before == b.not_before && a.wake_at == b.wake_at &&
         a.pending == b.pending;
}

}  // namespace

Sql<void> Tables::advance() {
  next_ = position_.number + 1;
  return put_position_.run(next_);
}

Sql<void> Tables::finish_accepting() {
  return db_->execute("DELETE FROM meta WHERE key = 'accepting'");
}

Sql<bool> Tables::has_unread_inbox(const Job& job, const Batch& batch) {
  Rows row(inbox_numbers_, job.id);
  for (;;) {
    AE_ASSIGN(const bool found, row.next());
    if (!found) return false;
    if (is_refused_by_inbox(batch, row->count(0))) return true;
  }
}

// Everything that can refuse a batch of an existing job, before anything is written.
Sql<std::optional<Error>> Tables::find_refusal(const Batch& batch, const Job& job) {
  if (auto precondition =
          check_precondition(batch, {.last_seq = job.last_seq, .claim = job.claim()});
      !precondition) {
    return std::move(precondition).error();
  }
  if (has_first_commit_check(batch)) {
    AE_ASSIGN(const std::int64_t first, commit_at(job, 1));
    Rows row(commit_bytes_, first);
    AE_ASSIGN(const bool found, row.next());
    if (auto precondition = check_late_precondition(batch, found ? row->bytes(0) : "");
        !precondition) {
      return std::move(precondition).error();
    }
  }
  for (const auto& [invocation, try_no] : batch.effects_absent) {
    Rows row(find_effect_, job.id, invocation.text, try_no);
    AE_ASSIGN(const bool found, row.next());
    if (found) return effect_recorded(batch.job, invocation);
  }
  if (batch.release || batch.inbox_read_through) {
    AE_ASSIGN(const bool has_unread, has_unread_inbox(job, batch));
    if (has_unread) return inbox_not_empty(batch.job);
  }
  return std::nullopt;
}

Sql<Tables::Commit> Tables::commit(const Batch& batch, BatchFailpoints& failpoints, Instant now) {
  const bool may_fail_before_commit = BatchFailpoints::may_fail_before_commit(batch);
  if (may_fail_before_commit) AE_TRY(savepoint_.run());
  const bool is_new = std::holds_alternative<Batch::Create>(batch.authority);
  AE_ASSIGN(Commit commit, is_new ? create(batch, now) : append_batch(batch, now));
  if (commit.written) {
    if (auto error = failpoints.before_commit()) {
      AE_TRY(rollback_savepoint_.run());
      clear_cache();
      commit = {std::unexpected(*std::move(error)), false};
    }
  }
  if (may_fail_before_commit) AE_TRY(release_savepoint_.run());
  evict_if_idle(batch.job);
  return commit;
}

Sql<Tables::Commit> Tables::append_batch(const Batch& batch, Instant now) {
  auto found = find(batch.job);
  if (!found && found.error().corrupt()) return Commit{std::unexpected(commit_missing(batch.job))};
  AE_ASSIGN(Job * job, std::move(found));
  if (job == nullptr) return Commit{std::unexpected(job_not_found(batch.job))};
  if (batch.sealed) {
    auto committed = is_committed(*job, *batch.sealed);
    if (!committed && committed.error().corrupt())
      return Commit{std::unexpected(commit_missing(batch.job))};
    AE_ASSIGN(const bool is_duplicate, std::move(committed));
    if (is_duplicate)
      return Commit{CommitResult{.last_seq = batch.sealed->last_seq, .is_duplicate = true}};
  }
  AE_ASSIGN(auto refusal, find_refusal(batch, *job));
  if (refusal) return Commit{std::unexpected(*std::move(refusal))};
  if (batch.sender) {
    AE_ASSIGN(Status held, check_sender(*batch.sender));
    if (!held) return Commit{std::unexpected(std::move(held).error())};
  }
  AE_TRY(write(batch, *job));
  for (const InboxPut& put : batch.inbox_puts) AE_TRY(put_inbox(put, now));
  return Commit{CommitResult{.last_seq = job->last_seq}, true};
}

Sql<void> Tables::write(const Batch& batch, Job& job) {
  bool changed = batch.release;
  if (batch.sealed) AE_TRY(append(*batch.sealed, job));
  if ((batch.sealed || batch.writes_row) && !same(batch.row, job.row)) {
    job.row = batch.row;
    changed = true;
  }
  AE_TRY(write_rows(batch, job));
  if (batch.release) {
    job.attempt.reset();
    job.worker.clear();
    job.lease_until.reset();
  }
  if (changed) AE_TRY(write_state(job));
  return {};
}

Sql<void> Tables::append(const SealedBatch& sealed, Job& job) {
  AE_ASSIGN(const std::string blobs, put_blobs(sealed));
  const SkipList::Links links = job.skip_list.next();
  const std::optional<Bytes> blob_list =
      blobs.empty() ? std::nullopt : std::optional<Bytes>(Bytes{blobs});
  AE_TRY(insert_commit_.run(job.id, sealed.first_seq, sealed.last_seq, links.prev, links.jump,
                            blob_list, Bytes{sealed.bytes}));
  job.skip_list.add(db_->last_rowid(), links);
  job.last_seq = sealed.last_seq;
  job.commits += 1;
  if (job.commits == 1) {
    return insert_head_.run(job.id, job.last_seq, job.skip_list.last(), sealed.created_at,
                            sealed.head);
  }
  return update_head_.run(job.id, job.last_seq, job.commits, job.skip_list.last(),
                          sealed.created_at, sealed.head);
}

// Answers their concatenated hashes.
Sql<std::string> Tables::put_blobs(const SealedBatch& sealed) {
  std::string hashes;
  for (const Blob& blob : sealed.blobs) {
    hashes.append(reinterpret_cast<const char*>(blob.hash.bytes.data()), blob.hash.bytes.size());
    if (blobs_.contains(blob.hash)) continue;
    AE_TRY(insert_blob_.run(blob.hash, Bytes{blob.bytes}));
    if (blobs_.size() >= kStoredBlobsMax) blobs_.clear();
    blobs_.insert(blob.hash);
  }
  return hashes;
}

Sql<void> Tables::write_rows(const Batch& batch, const Job& job) {
  for (const EffectRow& effect : batch.effects) {
    AE_TRY(put_effect_.run(job.id, effect.invocation.text, effect.try_no, Bytes{effect.record}));
  }
  for (const LedgerRow& entry : batch.ledger_put) {
    AE_TRY(put_ledger_.run(job.id, entry.invocation.text, entry.try_no, entry.state,
                           Bytes{entry.record}));
  }
  for (const auto& [invocation, try_no] : batch.ledger_erase) {
    AE_TRY(erase_ledger_.run(job.id, invocation.text, try_no));
  }
  for (const InboxReply& one : batch.inbox_replies) {
    AE_TRY(put_reply_.run(job.id, one.number, Bytes{one.reply}));
    if (one.number > kInboxRepliesMax) AE_TRY(drop_old_replies_.run(one.number - kInboxRepliesMax));
  }
  for (const std::uint64_t number : batch.inbox_consumed) {
    AE_TRY(delete_inbox_.run(job.id, number));
  }
  if (batch.signed_head) AE_TRY(put_signed_head_.run(job.id, Bytes{*batch.signed_head}));
  if (batch.summary) {
    const Summary& summary = *batch.summary;
    AE_TRY(put_summary_.run(job.id, summary.error, summary.kind, summary.cost_micros,
                            summary.changed_at, Bytes{summary.body}));
  }
  if (batch.checkpoint) {
    AE_TRY(put_checkpoint_.run(job.id, job.last_seq, Bytes{*batch.checkpoint}));
  }
  if (batch.audit) AE_TRY(append_audit_entry(*batch.audit));
  return {};
}

Sql<void> Tables::write_state(const Job& job) {
  const Eligibility eligibility = eligibility_of(job.row, job.lease_until);
  const std::optional<std::string> worker = job.attempt ? std::optional(job.worker) : std::nullopt;
  const std::optional<std::string> attempt =
      job.attempt ? std::optional(job.attempt->text) : std::nullopt;
  return update_state_.run(job.id, job.row.status, job.row.not_before, job.row.wake_at, job.epoch,
                           attempt, worker, job.lease_until, std::int64_t{eligibility.ready},
                           eligibility.at, std::uint64_t{job.row.pending});
}

// The answer of a Create that writes nothing, if this is one.
Sql<std::optional<Result<CommitResult>>> Tables::find_repeated_create(const Batch& batch,
                                                                      const NewJob& requested) {
  auto found = find(batch.job);
  if (!found && found.error().corrupt())
    return Result<CommitResult>(std::unexpected(commit_missing(batch.job)));
  AE_ASSIGN(const Job* job, std::move(found));
  if (job != nullptr) {
    auto committed = is_committed(*job, *batch.sealed);
    if (!committed && committed.error().corrupt())
      return Result<CommitResult>(std::unexpected(commit_missing(batch.job)));
    AE_ASSIGN(const bool is_duplicate, std::move(committed));
    if (is_duplicate) {
      CommitResult answer{.last_seq = batch.sealed->last_seq, .is_duplicate = true};
      if (requested.claim && job->claim() == Fence{requested.claim->attempt, 1}) {
        answer.lease = Lease{batch.job, *job->claim(), *job->lease_until};
      }
      return Result<CommitResult>(std::move(answer));
    }
  }
  if (!requested.idempotency_key.empty()) {
    Rows row(find_key_, requested.agent, requested.idempotency_key);
    AE_ASSIGN(const bool has_key, row.next());
    if (has_key) {
      return Result<CommitResult>(CommitResult{.last_seq = row->count(2),
                                               .existing = JobId(row->text(0)),
                                               .existing_request = row->hash(1)});
    }
  }
  if (job != nullptr) return Result<CommitResult>(std::unexpected(job_exists(batch.job)));
  return std::nullopt;
}

// A damaged log of the sender refuses what it sends.
Sql<Status> Tables::check_sender(const HeldJob& sender) {
  auto found = find(sender.job);
  if (!found && found.error().corrupt()) return Status(std::unexpected(commit_missing(sender.job)));
  AE_ASSIGN(const Job* job, std::move(found));
  Status held = store::check_sender(sender, job == nullptr ? std::nullopt : job->claim());
  evict_if_idle(sender.job);
  return held;
}

Sql<Tables::Commit> Tables::create(const Batch& batch, Instant now) {
  const NewJob& requested = *std::get<Batch::Create>(batch.authority).job;
  AE_ASSIGN(auto repeated, find_repeated_create(batch, requested));
  if (repeated) return Commit{*std::move(repeated)};
  if (batch.sender) {
    AE_ASSIGN(Status held, check_sender(*batch.sender));
    if (!held) return Commit{std::unexpected(std::move(held).error())};
  }
  Job job;
  job.agent = requested.agent;
  job.capabilities = requested.capabilities;
  job.queue = requested.queue;
  job.row = batch.row;
  if (requested.claim) {
    job.epoch = 1;
    job.attempt = requested.claim->attempt;
    job.worker = requested.claim->worker;
    job.lease_until = now + requested.claim->lease;
  }
  AE_TRY(insert_job(batch, requested, job));
  AE_TRY(append(*batch.sealed, job));
  AE_TRY(write_rows(batch, job));
  CommitResult answer{.last_seq = job.last_seq};
  if (requested.claim) {
    answer.lease = Lease{batch.job, *job.claim(), *job.lease_until};
    jobs_.insert_or_assign(batch.job, std::move(job));
  }
  return Commit{std::move(answer), true};
}

Sql<void> Tables::insert_job(const Batch& batch, const NewJob& requested, Job& job) {
  const Eligibility eligibility = eligibility_of(job.row, job.lease_until);
  AE_ASSIGN(const std::optional<std::int64_t> number, next_number());
  std::optional<std::string> attempt, worker;
  if (requested.claim) {
    attempt = requested.claim->attempt.text;
    worker = requested.claim->worker;
  }
  AE_TRY(insert_job_.run(batch.job.text, requested.agent, requested.idempotency_key,
                         requested.request_hash, requested.priority, batch.sealed->created_at,
                         job.row.status, job.row.not_before, job.row.wake_at, job.epoch, attempt,
                         worker, job.lease_until, std::int64_t{eligibility.ready}, eligibility.at,
                         join_lines(requested.capabilities), requested.queue,
                         fairness_key_of(requested.labels, fair_by_), number,
                         std::uint64_t{job.row.pending}, requested.forked_from));
  job.id = db_->last_rowid();
  std::int64_t place = 0;
  for (const auto& [key, value] : requested.labels) {
    AE_TRY(insert_label_.run(job.id, place++, key, value));
  }
  return {};
}

Sql<void> Tables::append_audit_entry(const AuditEntry& entry) { return append_audit(*db_, entry); }

// Of another job than that of the commit. A damaged log of it does not refuse the commit.
Sql<void> Tables::put_inbox(const InboxPut& put, Instant now) {
  auto found = find(put.job);
  if (!found && found.error().corrupt()) return {};
  AE_ASSIGN(Job * job, std::move(found));
  if (job == nullptr) return {};
  if (!has_ended(job->row.status)) {
    AE_TRY(put_inbox_.run(job->id, put.entry.id, Bytes{put.entry.request}));
    AE_TRY(delete_reply_.run(job->id, put.entry.id));
    if (!job->attempt && (!job->row.wake_at || *job->row.wake_at > now)) {
      job->row.wake_at = now;
      AE_TRY(write_state(*job));
    }
  }
  evict_if_idle(put.job);
  return {};
}

Tables::SqlResult<void> Tables::put_inbox(const JobId& id, const InboxEntry& entry) {
  auto found = find(id);
  if (!found && found.error().corrupt()) return Result<void>(std::unexpected(commit_missing(id)));
  AE_ASSIGN(const Job* job, std::move(found));
  if (job == nullptr) return Result<void>(std::unexpected(job_not_found(id)));
  if (!job->attempt) {
    evict_if_idle(id);
    return Result<void>(std::unexpected(job_not_leased(id)));
  }
  if (entry.sender) {
    AE_ASSIGN(Status held, check_sender(*entry.sender));
    if (!held) return Result<void>(std::unexpected(std::move(held).error()));
  }
  AE_TRY(put_inbox_.run(job->id, entry.id, Bytes{entry.request}));
  AE_TRY(delete_reply_.run(job->id, entry.id));
  return Result<void>();
}

}  // namespace ae::store::sqlite
