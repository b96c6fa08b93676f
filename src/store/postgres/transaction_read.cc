// Transaction: the reads, in one round trip under the locks of the jobs.
#include <algorithm>

#include "store/lines.h"
#include "store/postgres/statements.h"
#include "store/postgres/transaction.h"
#include "store/rules.h"

namespace ae::store::postgres {
namespace {

using Type = Column::Type;

// Finds each job by index, in the order of their numbers, regardless of the planner's size
// estimates.
constexpr Statement kLockJobs{
    "lock_jobs",
    "WITH wanted AS MATERIALIZED (SELECT * FROM jobs WHERE job_id = ANY($1::text[]) "
    "ORDER BY number + 0) "
    "SELECT j.job_id, j.number, j.agent, array_to_string(j.capabilities, E'\\n'), j.priority, "
    "e.last_seq, e.updated_at, e.head, h.epoch, h.attempt, h.held_by, h.lease_until, h.ripe_at, "
    "h.ready, h.status, h.not_before, h.wake_at, h.queue, h.turn, h.pending "
    "FROM wanted j CROSS JOIN LATERAL (SELECT * FROM heads WHERE job = j.number FOR UPDATE) h "
    "CROSS JOIN LATERAL (SELECT * FROM log_ends WHERE job = h.job FOR UPDATE) e"};
constexpr Statement kLockAuditHead{"lock_audit_head",
                                   "SELECT value FROM meta WHERE key = 'audit_head' FOR UPDATE"};
constexpr Statement kCountLeasedByQueue{
    "count_leased_by_queue",
    "SELECT q, (SELECT count(*) FROM heads WHERE queue = q AND attempt IS NOT NULL "
    "AND lease_until > coalesce($2::bigint, "
    "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint)) FROM unnest($1::text[]) AS q"};
// Held to the end: existing blobs that a commit references are not deleted meanwhile (see
// drop_blobs.cc).
constexpr Statement kKeepBlobs{"keep_blobs", "LOCK TABLE blobs IN ROW SHARE MODE"};
constexpr Statement kFindIdempotencyKeys{
    "find_idempotency_keys",
    "SELECT j.agent, j.idempotency_key, j.job_id, j.request_hash, e.last_seq "
    "FROM unnest($1::text[], $2::text[]) AS k(agent, key) "
    "CROSS JOIN LATERAL (SELECT * FROM jobs WHERE agent = k.agent AND idempotency_key = k.key "
    "AND idempotency_key <> '' LIMIT 1) j "
    "CROSS JOIN LATERAL (SELECT last_seq FROM log_ends WHERE job = j.number LIMIT 1) e"};
constexpr Statement kNewJobNumbers{
    "new_job_numbers", "SELECT nextval('job_numbers') FROM generate_series(1, $1::bigint)"};
constexpr Statement kReadInbox{
    "read_inbox",
    "WITH wanted AS MATERIALIZED (SELECT number, job_id FROM jobs WHERE job_id = ANY($1::text[])) "
    "SELECT j.job_id, i.number, i.id FROM wanted j "
    "CROSS JOIN LATERAL (SELECT number, id FROM inbox WHERE job = j.number OFFSET 0) i"};
constexpr Statement kReadEffects{
    "read_effects",
    "SELECT w.job_id, w.invocation, w.try "
    "FROM unnest($1::text[], $2::text[], $3::bigint[]) AS w(job_id, invocation, try) "
    "WHERE (SELECT true FROM effects WHERE job = (SELECT number FROM jobs "
    "WHERE job_id = w.job_id) AND invocation = w.invocation AND try = w.try)"};
constexpr Statement kExistingBlobs{"existing_blobs",
                                   "SELECT hash FROM blobs WHERE hash = ANY($1::bytea[])"};
constexpr Statement kExistingCommits{
    "existing_commits",
    "SELECT w.job_id, c.first_seq, c.body FROM unnest($1::text[], $2::bigint[]) AS w(job_id, seq) "
    "CROSS JOIN LATERAL (SELECT first_seq, body FROM commits WHERE job = (SELECT number FROM jobs "
    "WHERE job_id = w.job_id) AND first_seq = w.seq LIMIT 1) c"};

}  // namespace

// ---------------------------------------------------------------- what is needed

void Transaction::declare_reads(const JobId& job) { declared_jobs_.insert(job.text); }

void Transaction::declare_inbox_read(const JobId& job) {
  declare_reads(job);
  declared_inboxes_.insert(job.text);
}

void Transaction::declare_reads(const Batch& batch) {
  declare_reads(batch.job);
  if (batch.sender) declare_reads(batch.sender->job);
  if (const auto* create = std::get_if<Batch::Create>(&batch.authority)) {
    ++creates_;
    if (!create->job->idempotency_key.empty()) {
      declared_keys_.emplace(create->job->agent, create->job->idempotency_key);
    }
  }
  if (batch.release || batch.inbox_read_through) declare_inbox_read(batch.job);
  for (const InboxPut& put : batch.inbox_puts) declare_inbox_read(put.job);
  for (const auto& [invocation, try_no] : batch.effects_absent) {
    declared_effects_.emplace(batch.job.text, Slot(invocation.text, try_no));
  }
  if (batch.audit) declare_audit_read();
  if (has_first_commit_check(batch)) declared_first_commits_.push_back(batch.job);
  if (!batch.sealed) return;
  declared_commits_.emplace_back(batch.job, &*batch.sealed);
  for (const Blob& blob : batch.sealed->blobs) declared_blobs_.insert(blob.hash);
}

void Transaction::declare_leased_counts(const ClaimRequest& request, std::optional<Instant> at) {
  for (const QueueLimit& limit : request.queues) declared_queues_.insert(limit.queue);
  leased_counted_at_ = at;
}

// ---------------------------------------------------------------- reading

Pg<void> Transaction::read(Connection& connection) {
  connection.add(kBegin);
  if (!declared_queues_.empty()) connection.add(kLockClaims);
  connection.add(kLockJobs, Params().add(column_of(Type::text, declared_jobs_)));
  connection.add(kServerTime);
  add_reads(connection);
  AE_ASSIGN(const auto answers, connection.run());
  std::size_t at = declared_queues_.empty() ? 1 : 2;
  read_jobs(answers[at++]);
  now_ = answers[at++].instant(0, 0);
  if (!declared_keys_.empty()) {
    const Rows& rows = answers[at++];
    for (int i = 0; i < rows.size(); ++i) {
      keys_[{rows.text(i, 0), rows.text(i, 1)}] = {JobId(rows.text(i, 2)), rows.hash(i, 3),
                                                   rows.count(i, 4)};
    }
  }
  if (creates_ > 0) {
    const Rows& rows = answers[at++];
    for (int i = rows.size(); i-- > 0;) numbers_.push_back(rows.integer(i, 0));
    fair_by_ = answers[at++].text(0, 0);
  }
  if (!declared_inboxes_.empty()) {
    const Rows& rows = answers[at++];
    for (int i = 0; i < rows.size(); ++i) {
      if (Job* job = find(JobId(rows.text(i, 0)))) job->inbox[rows.count(i, 1)] = rows.text(i, 2);
    }
  }
  if (!declared_effects_.empty()) {
    const Rows& rows = answers[at++];
    for (int i = 0; i < rows.size(); ++i) {
      if (Job* job = find(JobId(rows.text(i, 0)))) {
        job->effects.emplace(rows.text(i, 1), static_cast<std::uint32_t>(rows.integer(i, 2)));
      }
    }
  }
  if (!declared_blobs_.empty()) {
    const Rows& rows = answers[++at];
    for (int i = 0; i < rows.size(); ++i) existing_blobs_.insert(rows.hash(i, 0));
    ++at;
  }
  if (!declared_queues_.empty()) {
    const Rows& rows = answers[at++];
    for (int i = 0; i < rows.size(); ++i) leased_counts_[rows.text(i, 0)] = rows.count(i, 1);
  }
  if (is_audit_declared_) audit_head_ = audit_head_from_text(answers[at++].bytes(0, 0));
  return read_existing_commits(connection);
}

void Transaction::add_reads(Connection& connection) {
  if (!declared_keys_.empty()) {
    Column agents(Type::text), keys(Type::text);
    for (const auto& [agent, key] : declared_keys_) {
      agents.add(agent);
      keys.add(key);
    }
    connection.add(kFindIdempotencyKeys, Params().add(agents).add(keys));
  }
  if (creates_ > 0) {
    connection.add(kNewJobNumbers, Params().add(std::uint64_t{creates_}));
    connection.add(kFairBy);
  }
  if (!declared_inboxes_.empty())
    connection.add(kReadInbox, Params().add(column_of(Type::text, declared_inboxes_)));
  if (!declared_effects_.empty()) {
    Column jobs(Type::text), invocations(Type::text), tries(Type::integer);
    for (const auto& [job, slot] : declared_effects_) {
      jobs.add(job);
      invocations.add(slot.first);
      tries.add(std::uint64_t{slot.second});
    }
    connection.add(kReadEffects, Params().add(jobs).add(invocations).add(tries));
  }
  if (!declared_blobs_.empty()) {
    connection.add(kKeepBlobs);
    connection.add(kExistingBlobs, Params().add(column_of(Type::bytes, declared_blobs_)));
  }
  if (!declared_queues_.empty()) {
    connection.add(kCountLeasedByQueue,
                   Params().add(column_of(Type::text, declared_queues_)).add(leased_counted_at_));
  }
  if (is_audit_declared_) connection.add(kLockAuditHead);
}

void Transaction::read_jobs(const Rows& rows) {
  for (int i = 0; i < rows.size(); ++i) {
    Job job;
    job.number = rows.integer(i, 1);
    job.agent = rows.text(i, 2);
    job.capabilities = split_lines(rows.bytes(i, 3));
    job.priority = rows.integer(i, 4);
    job.last_seq = rows.count(i, 5);
    job.updated_at = rows.instant(i, 6);
    job.head = rows.hash(i, 7);
    job.epoch = rows.count(i, 8);
    if (!rows.is_null(i, 9)) job.attempt = AttemptId(rows.text(i, 9));
    job.worker = rows.text(i, 10);
    job.lease_until = rows.maybe_instant(i, 11);
    job.ripe_at = rows.maybe_instant(i, 12);
    job.ready = rows.boolean(i, 13);
    job.row.status = rows.text(i, 14);
    job.row.not_before = rows.maybe_instant(i, 15);
    job.row.wake_at = rows.maybe_instant(i, 16);
    job.queue = rows.text(i, 17);
    job.fairness_key = rows.text(i, 18);
    job.row.pending = static_cast<PendingKinds>(rows.count(i, 19));
    jobs_.insert_or_assign(JobId(rows.text(i, 0)), std::move(job));
  }
}

// Only a batch whose first seq exists can be a duplicate; its bytes are compared. For late results
// the job's first commit is read.
Pg<void> Transaction::read_existing_commits(Connection& connection) {
  Column jobs(Type::text), seqs(Type::integer);
  for (const auto& [id, sealed] : declared_commits_) {
    const Job* job = find(id);
    if (job == nullptr || sealed->first_seq > job->last_seq) continue;
    jobs.add(id.text);
    seqs.add(sealed->first_seq);
  }
  for (const JobId& id : declared_first_commits_) {
    jobs.add(id.text);
    seqs.add(std::uint64_t{1});
  }
  if (jobs.empty()) return {};
  connection.add(kExistingCommits, Params().add(jobs).add(seqs));
  AE_ASSIGN(const auto answers, connection.run());
  const Rows& rows = answers[0];
  for (int i = 0; i < rows.size(); ++i) {
    existing_commits_[{rows.text(i, 0), rows.count(i, 1)}] = rows.text(i, 2);
  }
  return {};
}

}  // namespace ae::store::postgres
