// Commits to the memory store: new jobs, batches of existing jobs, and entries of the inbox.
//
// Every check comes before the first change, so a refused batch has changed nothing.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "store/batch_failpoints.h"
#include "store/memory/memory_disk.h"
#include "store/memory/memory_store.h"
#include "store/rules.h"

namespace ae::store {

bool MemoryDisk::Data::is_committed(const Job& job, const SealedBatch& sealed) const {
  if (sealed.first_seq > job.row.last_seq) return false;
  const auto it = std::ranges::lower_bound(job.commits, sealed.first_seq, {}, &Commit::first_seq);
  return it != job.commits.end() && it->first_seq == sealed.first_seq && it->bytes == sealed.bytes;
}

Status MemoryDisk::Data::check_sender(const HeldJob& sender) {
  const Job* const job = find(sender.job);
  return store::check_sender(sender, job == nullptr ? std::nullopt : job->row.claim);
}

// An entry for a job that no worker holds makes it due.
void MemoryDisk::Data::put_inbox(InboxPut& put, Instant now) {
  Job* const job = find(put.job);
  if (job == nullptr || has_ended(job->row.status)) return;
  add_to_inbox(*job, std::move(put.entry));
  if (job->row.claim || (job->row.wake_at && *job->row.wake_at <= now)) return;
  remove_from_indexes(*job);
  job->row.wake_at = now;
  add_to_indexes(*job);
}

void MemoryDisk::Data::add_to_inbox(Job& job, InboxEntry entry) {
  const bool waits = std::ranges::any_of(
      job.inbox, [&](const auto& other) { return other.second.id == entry.id; });
  if (waits) return;
  entry.number = ++last_inbox;
  entry.sender.reset();
  job.replies.erase(entry.id);
  job.inbox.emplace(entry.number, std::move(entry));
}

Result<CommitResult> MemoryDisk::Data::commit(Batch& batch, BatchFailpoints& failpoints,
                                              Instant now, bool& written) {
  Job* job = find(batch.job);
  if (job == nullptr) return std::unexpected(job_not_found(batch.job));
  if (batch.sealed && is_committed(*job, *batch.sealed)) {
    return CommitResult{.last_seq = batch.sealed->last_seq, .is_duplicate = true};
  }
  AE_TRY(check_precondition(batch, {.last_seq = job->row.last_seq, .claim = job->row.claim}));
  if (batch.sender) AE_TRY(check_sender(*batch.sender));
  if (has_first_commit_check(batch))
    AE_TRY(check_late_precondition(batch, job->commits.front().bytes));
  for (const auto& [invocation, try_no] : batch.effects_absent) {
    if (job->effects.contains({invocation.text, try_no})) {
      return std::unexpected(effect_recorded(batch.job, invocation));
    }
  }
  if (batch.release || batch.inbox_read_through) {
    for (const auto& [number, entry] : job->inbox) {
      if (is_refused_by_inbox(batch, number)) return std::unexpected(inbox_not_empty(batch.job));
    }
  }
  if (auto error = failpoints.before_commit()) return std::unexpected(*std::move(error));

  written = true;
  // A leased job is indexed by its lease alone.
  const bool stays_leased = job->row.claim && !batch.release;
  if (!stays_leased) remove_from_indexes(*job);
  if (batch.sealed) append(*job, *batch.sealed, batch.row);
  if (batch.writes_row) set_row(*job, batch.row);
  for (const EffectRow& e : batch.effects)
    job->effects.emplace(Slot(e.invocation.text, e.try_no), e.record);
  for (const LedgerRow& l : batch.ledger_put) {
    job->ledger.insert_or_assign(Slot(l.invocation.text, l.try_no), l);
  }
  for (const auto& [invocation, try_no] : batch.ledger_erase) {
    job->ledger.erase(Slot(invocation.text, try_no));
  }
  for (const InboxReply& one : batch.inbox_replies) {
    const auto entry = job->inbox.find(one.number);
    if (entry != job->inbox.end()) job->replies[entry->second.id] = one.reply;
  }
  for (const std::uint64_t number : batch.inbox_consumed) job->inbox.erase(number);
  if (batch.signed_head) job->signed_head = *batch.signed_head;
  if (batch.summary) job->row.summary = *batch.summary;
  if (batch.checkpoint) job->checkpoint = Checkpoint{job->row.last_seq, *batch.checkpoint};
  if (batch.release) release(*job);
  if (!stays_leased) add_to_indexes(*job);
  for (InboxPut& put : batch.inbox_puts) put_inbox(put, now);
  if (batch.audit) append_audit_entry(*batch.audit);
  return CommitResult{.last_seq = job->row.last_seq};
}

Result<CommitResult> MemoryDisk::Data::create(Batch& batch, BatchFailpoints& failpoints,
                                              Instant now, bool& written) {
  const NewJob& requested = *std::get<Batch::Create>(batch.authority).job;
  if (Job* job = find(batch.job); job != nullptr && is_committed(*job, *batch.sealed)) {
    CommitResult answer{.last_seq = batch.sealed->last_seq, .is_duplicate = true};
    if (requested.claim && job->row.claim == Fence{requested.claim->attempt, 1}) {
      answer.lease = Lease{batch.job, *job->row.claim, *job->row.lease_until};
    }
    return answer;
  }
  if (!requested.idempotency_key.empty()) {
    if (const auto it = by_key.find({requested.agent, requested.idempotency_key});
        it != by_key.end()) {
      const Job& job = jobs.at(it->second);
      return CommitResult{.last_seq = job.row.last_seq,
                          .existing = job.row.id,
                          .existing_request = job.request_hash};
    }
  }
  if (by_id.contains(batch.job)) return std::unexpected(job_exists(batch.job));
  if (batch.sender) AE_TRY(check_sender(*batch.sender));
  if (auto error = failpoints.before_commit()) return std::unexpected(*std::move(error));

  written = true;
  Job& job = jobs[++last_job];
  job.number = last_job;
  job.row.number = last_job;
  job.request_hash = requested.request_hash;
  JobRow& row = job.row;
  row.id = batch.job;
  row.agent = requested.agent;
  row.idempotency_key = requested.idempotency_key;
  row.labels = requested.labels;
  row.priority = requested.priority;
  row.capabilities = requested.capabilities;
  row.queue = requested.queue;
  row.created_at = batch.sealed->created_at;
  row.forked_from = requested.forked_from;
  if (batch.summary) row.summary = *batch.summary;
  by_id.emplace(batch.job, &job);
  if (!requested.idempotency_key.empty())
    by_key.emplace(std::pair(requested.agent, requested.idempotency_key), job.number);
  append(job, *batch.sealed, batch.row);
  for (const EffectRow& e : batch.effects)
    job.effects.emplace(Slot(e.invocation.text, e.try_no), e.record);
  for (const LedgerRow& l : batch.ledger_put)
    job.ledger.insert_or_assign(Slot(l.invocation.text, l.try_no), l);
  if (batch.signed_head) job.signed_head = *batch.signed_head;
  if (batch.audit) append_audit_entry(*batch.audit);
  CommitResult answer{.last_seq = row.last_seq};
  if (requested.claim) {
    answer.lease =
        claim(job, requested.claim->worker, requested.claim->attempt, now + requested.claim->lease);
  } else {
    add_to_indexes(job);
  }
  return answer;
}

void MemoryDisk::Data::append(Job& job, SealedBatch& sealed, const RowState& state) {
  Commit commit{.first_seq = sealed.first_seq, .bytes = std::move(sealed.bytes), .blobs = {}};
  for (Blob& blob : sealed.blobs) {
    commit.blobs.push_back(blob.hash);
    blobs.try_emplace(blob.hash, std::move(blob.bytes));
  }
  job.commits.push_back(std::move(commit));
  JobRow& row = job.row;
  row.last_seq = sealed.last_seq;
  row.head = sealed.head;
  row.updated_at = sealed.created_at;
  set_row(job, state);
}

void MemoryDisk::Data::set_row(Job& job, const RowState& state) {
  JobRow& row = job.row;
  row.status = state.status;
  row.not_before = state.not_before;
  row.wake_at = state.wake_at;
  row.pending = state.pending;
}

void MemoryStore::commit(Batch batch, async::Done<Result<CommitResult>> done) {
  check_batch(batch);
  BatchFailpoints failpoints(batch);
  const auto run = [&]() -> Result<CommitResult> {
    if (auto error = failpoints.before()) return std::unexpected(*std::move(error));
    bool written = false;
    auto result = std::holds_alternative<Batch::Create>(batch.authority)
                      ? data_.create(batch, failpoints, clock_.now(), written)
                      : data_.commit(batch, failpoints, clock_.now(), written);
    if (!written) return result;
    if (auto error = failpoints.after()) return std::unexpected(*std::move(error));
    return result;
  };
  answer(std::move(done), run());
}

void MemoryStore::put_inbox(JobId job, InboxEntry entry, async::Done<Result<void>> done) {
  const auto run = [&]() -> Result<void> {
    Data::Job* found = data_.find(job);
    if (found == nullptr) return std::unexpected(job_not_found(job));
    if (!found->row.claim) return std::unexpected(job_not_leased(job));
    if (entry.sender) AE_TRY(data_.check_sender(*entry.sender));
    data_.add_to_inbox(*found, std::move(entry));
    if (auto error = hit_after_failpoint("signal.after_inbox"))
      return std::unexpected(*std::move(error));
    return {};
  };
  answer(std::move(done), run());
}

}  // namespace ae::store
