#include "store/postgres/transaction.h"

#include <algorithm>
#include <tuple>

#include "store/rules.h"

namespace ae::store::postgres {
// ---------------------------------------------------------------- deciding

std::optional<Fence> Transaction::Job::claim() const {
  if (!attempt) return std::nullopt;
  return Fence{*attempt, epoch};
}

void Transaction::Job::become_eligible() {
  head_changed = true;
  const Eligibility eligibility = eligibility_of(row, lease_until);
  ready = eligibility.ready;
  ripe_at = eligibility.at;
}

Transaction::Job* Transaction::find(const JobId& id) {
  const auto it = jobs_.find(id);
  return it == jobs_.end() ? nullptr : &it->second;
}

bool Transaction::is_committed(const JobId& id, const Job& job, const SealedBatch& sealed) const {
  const auto old = existing_commits_.find({id.text, sealed.first_seq});
  if (old != existing_commits_.end()) return old->second == sealed.bytes;
  return std::ranges::any_of(job.commits, [&](const Commit& commit) {
    return commit.first_seq == sealed.first_seq && commit.bytes == sealed.bytes;
  });
}

bool Transaction::has_unread_inbox(const Batch& batch, const Job& job) const {
  // Entries of this transaction come after everything that was read.
  if (!job.new_inbox_entries.empty()) return true;
  return std::ranges::any_of(
      job.inbox, [&](const auto& entry) { return is_refused_by_inbox(batch, entry.first); });
}

std::optional<Error> Transaction::find_refusal(const Batch& batch, const Job& job) {
  if (auto precondition =
          check_precondition(batch, {.last_seq = job.last_seq, .claim = job.claim()});
      !precondition) {
    return std::move(precondition).error();
  }
  if (has_first_commit_check(batch)) {
    const auto first = existing_commits_.find({batch.job.text, 1});
    if (auto precondition =
            check_late_precondition(batch, first == existing_commits_.end() ? "" : first->second);
        !precondition) {
      return std::move(precondition).error();
    }
  }
  for (const auto& [invocation, try_no] : batch.effects_absent) {
    if (job.effects.contains({invocation.text, try_no})) {
      return effect_recorded(batch.job, invocation);
    }
  }
  if ((batch.release || batch.inbox_read_through) && has_unread_inbox(batch, job)) {
    return inbox_not_empty(batch.job);
  }
  if (batch.sender) {
    if (auto held = check_sender(*batch.sender); !held) return std::move(held).error();
  }
  return std::nullopt;
}

Status Transaction::check_sender(const HeldJob& sender) {
  const Job* const job = find(sender.job);
  return store::check_sender(sender, job == nullptr ? std::nullopt : job->claim());
}

Transaction::Answer Transaction::commit(const Batch& batch, BatchFailpoints& failpoints,
                                        Instant now) {
  return std::holds_alternative<Batch::Create>(batch.authority)
             ? create(batch, failpoints, now)
             : append_batch(batch, failpoints, now);
}

Transaction::Answer Transaction::append_batch(const Batch& batch, BatchFailpoints& failpoints,
                                              Instant now) {
  Job* const job = find(batch.job);
  if (job == nullptr) return {std::unexpected(job_not_found(batch.job))};
  if (batch.sealed && is_committed(batch.job, *job, *batch.sealed)) {
    return {CommitResult{.last_seq = batch.sealed->last_seq, .is_duplicate = true}};
  }
  if (auto refusal = find_refusal(batch, *job)) return {std::unexpected(*std::move(refusal))};
  if (auto error = failpoints.before_commit()) return {std::unexpected(*std::move(error))};
  const bool was_ready = job->ready;
  bool eligible_at = batch.release;
  if (batch.sealed) {
    eligible_at |= !is_same(batch.row, job->row);
    append(*batch.sealed, batch.row, *job);
  }
  if (batch.writes_row) {
    eligible_at = true;
    job->row = batch.row;
  }
  write_rows(batch, *job);
  if (batch.release) {
    job->attempt.reset();
    job->worker.clear();
    job->lease_until.reset();
    job->end_changed = true;
  }
  if (eligible_at) job->become_eligible();
  if (job->ready && !was_ready) hints_.add_claimable(job->agent, job->capabilities);
  for (const InboxPut& put : batch.inbox_puts) put_inbox(put, now);
  return {CommitResult{.last_seq = job->last_seq}, true};
}

// Of another job than that of the commit. One that no worker holds is due.
void Transaction::put_inbox(const InboxPut& put, Instant now) {
  Job* const job = find(put.job);
  if (job == nullptr || has_ended(job->row.status)) return;
  add_to_inbox(*job, put.entry);
  if (job->attempt) return hints_.add_inbox(put.job);
  if (job->row.wake_at && *job->row.wake_at <= now) return;
  job->row.wake_at = now;
  job->become_eligible();
}

void Transaction::add_to_inbox(Job& job, const InboxEntry& entry) {
  const auto is_same = [&](const auto& other) { return other == entry.id; };
  if (std::ranges::any_of(job.inbox, is_same, [](const auto& e) { return e.second; }) ||
      std::ranges::any_of(job.new_inbox_entries, is_same, [](const auto& e) { return e.id; })) {
    return;
  }
  job.new_inbox_entries.push_back(entry);
}

// The answer of a Create that writes nothing, if this is one.
std::optional<Result<CommitResult>> Transaction::find_repeated_create(const Batch& batch,
                                                                      const NewJob& new_job) {
  Job* const job = find(batch.job);
  if (job != nullptr && is_committed(batch.job, *job, *batch.sealed)) {
    CommitResult answer{.last_seq = batch.sealed->last_seq, .is_duplicate = true};
    if (new_job.claim && job->claim() == Fence{new_job.claim->attempt, 1}) {
      answer.lease = Lease{batch.job, *job->claim(), *job->lease_until};
    }
    return Result<CommitResult>(std::move(answer));
  }
  if (!new_job.idempotency_key.empty()) {
    if (const auto it = keys_.find({new_job.agent, new_job.idempotency_key}); it != keys_.end()) {
      const Key& key = it->second;
      const Job* const other = find(key.job);
      return Result<CommitResult>(
          CommitResult{.last_seq = other == nullptr ? key.last_seq : other->last_seq,
                       .existing = key.job,
                       .existing_request = key.request_hash});
    }
  }
  if (job != nullptr) return Result<CommitResult>(std::unexpected(job_exists(batch.job)));
  return std::nullopt;
}

Transaction::Answer Transaction::create(const Batch& batch, BatchFailpoints& failpoints,
                                        Instant now) {
  const NewJob& new_job = *std::get<Batch::Create>(batch.authority).job;
  if (auto answer = find_repeated_create(batch, new_job)) return {*std::move(answer)};
  if (batch.sender) {
    if (auto held = check_sender(*batch.sender); !held)
      return {std::unexpected(std::move(held).error())};
  }
  if (auto error = failpoints.before_commit()) return {std::unexpected(*std::move(error))};
  AE_CHECK(!numbers_.empty());
  Job& job = jobs_[batch.job];
  job.is_new = true;
  job.number = numbers_.back();
  numbers_.pop_back();
  job.agent = new_job.agent;
  job.capabilities = new_job.capabilities;
  job.priority = new_job.priority;
  job.queue = new_job.queue;
  job.fairness_key = fairness_key_of(new_job.labels, fair_by_);
  if (!new_job.idempotency_key.empty()) {
    keys_[{new_job.agent, new_job.idempotency_key}] = {batch.job, new_job.request_hash,
                                                       batch.sealed->last_seq};
  }
  new_jobs_.push_back({job.number, &batch});
  append(*batch.sealed, batch.row, job);
  write_rows(batch, job);
  CommitResult answer{.last_seq = job.last_seq};
  if (new_job.claim) {
    answer.lease = acquire(batch.job, job, new_job.claim->worker, new_job.claim->attempt,
                           now + new_job.claim->lease);
  } else {
    job.become_eligible();
    if (job.ready) hints_.add_claimable(job.agent, job.capabilities);
  }
  return {std::move(answer), true};
}

void Transaction::append(const SealedBatch& sealed, const RowState& row, Job& job) {
  commits_.push_back({job.number, &sealed});
  job.commits.push_back({sealed.first_seq, sealed.bytes});
  for (const Blob& blob : sealed.blobs) {
    if (!existing_blobs_.contains(blob.hash)) blobs_.emplace(blob.hash, blob.bytes);
  }
  job.last_seq = sealed.last_seq;
  job.head = sealed.head;
  job.updated_at = sealed.created_at;
  job.row = row;
  job.end_changed = true;
}

void Transaction::write_rows(const Batch& batch, Job& job) {
  for (const EffectRow& effect : batch.effects) {
    job.effects.emplace(effect.invocation.text, effect.try_no);
    effects_.emplace_back(job.number, &effect);
  }
  for (const LedgerRow& entry : batch.ledger_put) {
    ledger_[{job.number, {entry.invocation.text, entry.try_no}}] = &entry;
  }
  for (const auto& [invocation, try_no] : batch.ledger_erase) {
    ledger_[{job.number, {invocation.text, try_no}}] = nullptr;
  }
  for (const InboxReply& one : batch.inbox_replies) inbox_replies_.emplace_back(job.number, &one);
  for (const std::uint64_t number : batch.inbox_consumed) {
    job.inbox.erase(number);
    newly_served_.emplace_back(job.number, number);
  }
  if (batch.audit) append_audit_entry(*batch.audit);
  if (batch.signed_head) signed_heads_[job.number] = &*batch.signed_head;
  if (batch.summary) (job.is_new ? new_summaries_ : summaries_)[job.number] = &*batch.summary;
  if (batch.checkpoint) checkpoints_[job.number] = {job.last_seq, &*batch.checkpoint};
}

Result<void> Transaction::put_inbox(const JobId& id, const InboxEntry& entry) {
  Job* const job = find(id);
  if (job == nullptr) return std::unexpected(job_not_found(id));
  if (!job->attempt) return std::unexpected(job_not_leased(id));
  if (entry.sender) AE_TRY(check_sender(*entry.sender));
  const std::size_t before = job->new_inbox_entries.size();
  add_to_inbox(*job, entry);
  if (job->new_inbox_entries.size() > before) hints_.add_inbox(id);
  return {};
}

Lease Transaction::acquire(const JobId& id, Job& job, const std::string& worker,
                           const AttemptId& attempt, Instant until) {
  job.epoch += 1;
  job.attempt = attempt;
  job.worker = worker;
  job.lease_until = until;
  job.end_changed = true;
  job.become_eligible();
  if (const auto held = leased_counts_.find(job.queue); held != leased_counts_.end())
    held->second += 1;
  return Lease{id, *job.claim(), until};
}

Result<std::optional<Lease>> Transaction::claim_job(const JobId& id, const ClaimRequest& request,
                                                    Instant now) {
  Job* const job = find(id);
  if (job == nullptr) return std::unexpected(job_not_found(id));
  const bool free =
      job->attempt ? *job->lease_until <= now : !job->row.not_before || *job->row.not_before <= now;
  const auto limit = queue_limit_of(request, job->queue);
  const bool has_free_slot = !limit || leased_counts_.at(job->queue) < *limit;
  if (!is_runnable(job->row.status) || !free || request.limit == 0 || !has_free_slot ||
      !matches(request, {id, job->agent, job->capabilities})) {
    return std::nullopt;
  }
  return acquire(id, *job, request.worker, request.attempts[0], now + request.lease);
}

std::vector<std::optional<Instant>> Transaction::heartbeat(const HeartbeatRequest& held,
                                                           Instant now) {
  std::vector<std::optional<Instant>> until;
  until.reserve(held.jobs.size());
  for (const auto& [id, fence] : held.jobs) {
    Job* const job = find(id);
    if (job == nullptr || job->claim() != fence || *job->lease_until <= now) {
      until.push_back(std::nullopt);
      continue;
    }
    job->lease_until = now + held.lease;
    job->become_eligible();
    until.push_back(job->lease_until);
  }
  return until;
}

std::optional<HighWaterMark> Transaction::high_water_mark() const {
  const auto written =
      std::ranges::find_if(jobs_, [](const auto& one) { return one.second.end_changed; });
  if (written == jobs_.end()) return std::nullopt;
  return HighWaterMark{.job = written->first,
                       .number = static_cast<std::uint64_t>(written->second.number),
                       .epoch = written->second.epoch,
                       .last_seq = written->second.last_seq,
                       .audit = {}};
}

void Transaction::update(WrittenRows& rows) const {
  for (const auto& [id, job] : jobs_) {
    if (job.attempt) {
      rows.insert_or_assign(id, WrittenRow{job.number, *job.claim(), job.row});
    } else {
      rows.erase(id);
    }
  }
}

void Transaction::append_audit_entry(const AuditEntry& entry) {
  AuditRow row = chain_entry(audit_head_, entry);
  audit_head_ = {.seq = row.seq, .hash = row.hash};
  audit_.push_back(std::move(row));
}

}  // namespace ae::store::postgres
