#include "store/postgres/transaction.h"

#include <algorithm>
#include <tuple>

#include "store/rules.h"

namespace ae::store::postgres {
namespace {

bool same(const RowState& a, const RowState& b) {
  return a.status == b.status && a.not_before == b.not_before && a.wake_at == b.wake_at;
}

}  // namespace

// ---------------------------------------------------------------- deciding

std::optional<Fence> Transaction::Job::claim() const {
  if (!attempt) return std::nullopt;
  return Fence{*attempt, epoch};
}

void Transaction::Job::ripen() {
  changed = true;
  const Ripeness ripe = ripeness(row, lease_until);
  ready = ripe.ready;
  ripe_at = ripe.at;
}

Transaction::Job* Transaction::find(const JobId& id) {
  const auto it = jobs_.find(id);
  return it == jobs_.end() ? nullptr : &it->second;
}

bool Transaction::stands(const JobId& id, const Job& job, const Sealed& sealed) const {
  const auto old = old_commits_.find({id.text, sealed.first_seq});
  if (old != old_commits_.end()) return old->second == sealed.bytes;
  return std::ranges::any_of(job.commits, [&](const Commit& commit) {
    return commit.first_seq == sealed.first_seq && commit.bytes == sealed.bytes;
  });
}

bool Transaction::inbox_left(const Batch& batch, const Job& job) const {
  // What was posted in this transaction comes after everything that anybody has read.
  if (!job.posted.empty()) return true;
  return std::ranges::any_of(job.inbox,
                             [&](const auto& entry) { return inbox_refuses(batch, entry.first); });
}

std::optional<Error> Transaction::refuse(const Batch& batch, const Job& job) const {
  if (auto fine = admit(batch, {.last_seq = job.last_seq, .claim = job.claim()}); !fine) {
    return std::move(fine).error();
  }
  if (checks_first(batch)) {
    const auto first = old_commits_.find({batch.job.text, 1});
    if (auto fine = admit_late(batch, first == old_commits_.end() ? "" : first->second); !fine) {
      return std::move(fine).error();
    }
  }
  for (const auto& [invocation, try_no] : batch.effects_absent) {
    if (job.effects.contains({invocation.text, try_no})) {
      return effect_recorded(batch.job, invocation);
    }
  }
  if ((batch.release || batch.inbox_read) && inbox_left(batch, job)) {
    return inbox_not_empty(batch.job);
  }
  return std::nullopt;
}

Transaction::Answer Transaction::commit(const Batch& batch, BatchPoints& points, Instant now) {
  return std::holds_alternative<Batch::Create>(batch.authority) ? create(batch, points, now)
                                                                : extend(batch, points);
}

Transaction::Answer Transaction::extend(const Batch& batch, BatchPoints& points) {
  Job* const job = find(batch.job);
  if (job == nullptr) return {std::unexpected(job_not_found(batch.job))};
  if (batch.sealed && stands(batch.job, *job, *batch.sealed)) {
    return {Committed{.last_seq = batch.sealed->last_seq, .repeated = true}};
  }
  if (auto refusal = refuse(batch, *job)) return {std::unexpected(*std::move(refusal))};
  if (auto error = points.inside()) return {std::unexpected(*std::move(error))};
  const bool was_ready = job->ready;
  bool ripens = batch.release;
  if (batch.sealed) {
    ripens |= !same(batch.row, job->row);
    append(*batch.sealed, batch.row, *job);
  }
  write_rows(batch, *job);
  if (batch.release) {
    job->attempt.reset();
    job->worker.clear();
    job->lease_until.reset();
  }
  if (ripens) job->ripen();
  if (job->ready && !was_ready) hints_.claimable(job->agent, job->capabilities);
  return {Committed{.last_seq = job->last_seq}, true};
}

// What a Create answers without writing, if so.
std::optional<Result<Committed>> Transaction::answer_create(const Batch& batch,
                                                            const NewJob& wish) {
  Job* const job = find(batch.job);
  if (job != nullptr && stands(batch.job, *job, *batch.sealed)) {
    Committed answer{.last_seq = batch.sealed->last_seq, .repeated = true};
    if (wish.claim && job->claim() == Fence{wish.claim->attempt, 1}) {
      answer.lease = Lease{batch.job, *job->claim(), *job->lease_until};
    }
    return Result<Committed>(std::move(answer));
  }
  if (!wish.idempotency_key.empty()) {
    if (const auto it = keys_.find({wish.agent, wish.idempotency_key}); it != keys_.end()) {
      const Key& key = it->second;
      const Job* const other = find(key.job);
      return Result<Committed>(
          Committed{.last_seq = other == nullptr ? key.last_seq : other->last_seq,
                    .existing = key.job,
                    .existing_request = key.request_hash});
    }
  }
  if (job != nullptr) return Result<Committed>(std::unexpected(job_exists(batch.job)));
  return std::nullopt;
}

Transaction::Answer Transaction::create(const Batch& batch, BatchPoints& points, Instant now) {
  const NewJob& wish = std::get<Batch::Create>(batch.authority).job;
  if (auto answered = answer_create(batch, wish)) return {*std::move(answered)};
  if (auto error = points.inside()) return {std::unexpected(*std::move(error))};
  AE_CHECK(!numbers_.empty());
  Job& job = jobs_[batch.job];
  job.number = numbers_.back();
  numbers_.pop_back();
  job.agent = wish.agent;
  job.capabilities = wish.capabilities;
  job.priority = wish.priority;
  job.queue = wish.queue;
  job.turn = turn_of(wish.labels, fair_by_);
  if (!wish.idempotency_key.empty()) {
    keys_[{wish.agent, wish.idempotency_key}] = {batch.job, wish.request_hash,
                                                 batch.sealed->last_seq};
  }
  new_jobs_.push_back({job.number, &batch});
  append(*batch.sealed, batch.row, job);
  write_rows(batch, job);
  Committed answer{.last_seq = job.last_seq};
  if (wish.claim) {
    answer.lease =
        take(batch.job, job, wish.claim->worker, wish.claim->attempt, now + wish.claim->lease);
  } else {
    job.ripen();
    if (job.ready) hints_.claimable(job.agent, job.capabilities);
  }
  return {std::move(answer), true};
}

void Transaction::append(const Sealed& sealed, const RowState& row, Job& job) {
  commits_.push_back({job.number, &sealed});
  job.commits.push_back({sealed.first_seq, sealed.bytes});
  for (const Blob& blob : sealed.blobs) {
    if (!blobs_there_.contains(blob.hash)) blobs_.emplace(blob.hash, blob.bytes);
  }
  job.last_seq = sealed.last_seq;
  job.head = sealed.head;
  job.updated_at = sealed.created_at;
  job.row = row;
  job.changed = true;
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
  for (const std::uint64_t number : batch.inbox_taken) {
    job.inbox.erase(number);
    taken_.emplace_back(job.number, number);
  }
  if (batch.audit) record(*batch.audit);
  if (batch.signed_head) signed_heads_[job.number] = &*batch.signed_head;
  if (batch.checkpoint) checkpoints_[job.number] = {job.last_seq, &*batch.checkpoint};
}

Result<void> Transaction::put_inbox(const JobId& id, const InboxEntry& entry) {
  Job* const job = find(id);
  if (job == nullptr) return std::unexpected(job_not_found(id));
  if (!job->attempt) return std::unexpected(job_not_held(id));
  const auto is_same = [&](const auto& other) { return other == entry.id; };
  if (std::ranges::any_of(job->inbox, is_same, [](const auto& e) { return e.second; }) ||
      std::ranges::any_of(job->posted, is_same, [](const auto& e) { return e.id; })) {
    return {};
  }
  job->posted.push_back(entry);
  hints_.posted(id);
  return {};
}

Lease Transaction::take(const JobId& id, Job& job, const std::string& worker,
                        const AttemptId& attempt, Instant until) {
  job.epoch += 1;
  job.attempt = attempt;
  job.worker = worker;
  job.lease_until = until;
  job.ripen();
  if (const auto held = held_.find(job.queue); held != held_.end()) held->second += 1;
  return Lease{id, *job.claim(), until};
}

Result<std::optional<Lease>> Transaction::claim_job(const JobId& id, const ClaimRequest& request,
                                                    Instant now) {
  Job* const job = find(id);
  if (job == nullptr) return std::unexpected(job_not_found(id));
  const bool free =
      job->attempt ? *job->lease_until <= now : !job->row.not_before || *job->row.not_before <= now;
  const auto limit = limit_of(request, job->queue);
  const bool room = !limit || held_.at(job->queue) < *limit;
  if (!may_run(job->row.status) || !free || request.limit == 0 || !room ||
      !fits(request, {id, job->agent, job->capabilities})) {
    return std::nullopt;
  }
  return take(id, *job, request.worker, request.attempts[0], now + request.lease);
}

std::vector<std::optional<Instant>> Transaction::heartbeat(const Held& held, Instant now) {
  std::vector<std::optional<Instant>> until;
  until.reserve(held.jobs.size());
  for (const auto& [id, fence] : held.jobs) {
    Job* const job = find(id);
    if (job == nullptr || job->claim() != fence || *job->lease_until <= now) {
      until.push_back(std::nullopt);
      continue;
    }
    job->lease_until = now + held.lease;
    job->ripen();
    until.push_back(job->lease_until);
  }
  return until;
}

std::optional<Mark> Transaction::mark() const {
  const auto left = std::ranges::find_if(jobs_, [](const auto& one) { return one.second.changed; });
  if (left == jobs_.end()) return std::nullopt;
  return Mark{.job = left->first,
              .number = static_cast<std::uint64_t>(left->second.number),
              .epoch = left->second.epoch,
              .last_seq = left->second.last_seq,
              .audit = {}};
}

void Transaction::record(const AuditEntry& entry) {
  AuditRow row = chained(audit_head_, entry);
  audit_head_ = {.seq = row.seq, .hash = row.hash};
  audit_.push_back(std::move(row));
}

}  // namespace ae::store::postgres
