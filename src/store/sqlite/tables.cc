#include "store/sqlite/tables.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "store/claim_order.h"
#include "store/rules.h"
#include "store/sqlite/audit_table.h"
#include "store/sqlite/schema.h"

namespace ae::store::sqlite {
namespace {

constexpr std::size_t kStoredBlobsMax = 4096;

// The chain of a job's commits is broken: one is missing, or a pointer was changed.
SqlError corrupt_commit_chain() {
  return {11 /* SQLITE_CORRUPT */, 0, "a commit of a job is missing"};
}

std::unexpected<Error> commit_missing(const JobId& job) {
  return fail(Code::log_corrupt, "a commit of job " + job.text +
                                     " is missing in the store: `aetheris verify " + job.text +
                                     "` shows which, `aetheris rebuild` finds the other commits; "
                                     "restore the missing ones from a backup");
}

bool same(const RowState& a, const RowState& b) {
  return a.status == b.status && a.not_before == b.not_before && a.wake_at == b.wake_at &&
         a.pending == b.pending;
}

std::vector<Hash> hashes_in(std::string_view list) {
  std::vector<Hash> hashes;
  for (std::size_t at = 0; at + sizeof(Hash) <= list.size(); at += sizeof(Hash)) {
    std::memcpy(hashes.emplace_back().bytes.data(), list.data() + at, sizeof(Hash));
  }
  return hashes;
}

}  // namespace

Sql<Tables> Tables::open(Database& db) {
  Tables t(db);
  struct StatementSpec {
    Statement& statement;
    const char* sql;
  };
  const StatementSpec specs[] = {
      {t.find_job_,
       "SELECT jobs.id, agent, last_seq, commits, last_commit, epoch, attempt, worker, "
       "lease_until, status, not_before, wake_at, capabilities, queue, pending FROM jobs JOIN "
       "heads "
       "ON heads.job = jobs.id "
       "WHERE job_id = ?1"},
      {t.commit_pointers_,
       "SELECT job, first_seq, last_seq, prev, jump FROM commits WHERE id = ?1"},
      {t.commit_bytes_, "SELECT body FROM commits WHERE id = ?1"},
      {t.find_key_,
       "SELECT job_id, request_hash, last_seq FROM jobs JOIN heads ON heads.job = jobs.id "
       "WHERE agent = ?1 AND idempotency_key = ?2 AND idempotency_key <> ''"},
      {t.insert_job_,
       "INSERT INTO jobs(job_id, agent, idempotency_key, request_hash, priority, created_at, "
       "status, not_before, wake_at, epoch, attempt, worker, lease_until, ready, ripe_at, "
       "capabilities, queue, turn, id, pending) "
       "VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, "
       "?19, ?20)"},
      {t.insert_label_, "INSERT INTO labels(job, number, key, value) VALUES(?1, ?2, ?3, ?4)"},
      {t.insert_head_,
       "INSERT INTO heads(job, last_seq, commits, last_commit, updated_at, head) "
       "VALUES(?1, ?2, 1, ?3, ?4, ?5)"},
      {t.update_head_,
       "UPDATE heads SET last_seq = ?2, commits = ?3, last_commit = ?4, updated_at = ?5, "
       "head = ?6 WHERE job = ?1"},
      {t.insert_commit_,
       "INSERT INTO commits(job, first_seq, last_seq, prev, jump, blobs, body) "
       "VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)"},
      {t.update_state_,
       "UPDATE jobs SET status = ?2, not_before = ?3, wake_at = ?4, epoch = ?5, attempt = ?6, "
       "worker = ?7, lease_until = ?8, ready = ?9, ripe_at = ?10, pending = ?11 WHERE id = ?1"},
      {t.put_signed_head_,
       "INSERT INTO signed_heads(job, body) VALUES(?1, ?2) "
       "ON CONFLICT DO UPDATE SET body = excluded.body"},
      {t.put_checkpoint_,
       "INSERT INTO checkpoints(job, seq, body) VALUES(?1, ?2, ?3) "
       "ON CONFLICT DO UPDATE SET seq = excluded.seq, body = excluded.body"},
      {t.insert_blob_, "INSERT INTO blobs(hash, bytes) VALUES(?1, ?2) ON CONFLICT DO NOTHING"},
      {t.put_effect_,
       "INSERT INTO effects(job, invocation, try, record) VALUES(?1, ?2, ?3, ?4) "
       "ON CONFLICT DO NOTHING"},
      {t.find_effect_, "SELECT 1 FROM effects WHERE job = ?1 AND invocation = ?2 AND try = ?3"},
      {t.put_ledger_,
       "INSERT INTO ledger(job, invocation, try, state, record) VALUES(?1, ?2, ?3, ?4, ?5) "
       "ON CONFLICT DO UPDATE SET state = excluded.state, record = excluded.record"},
      {t.erase_ledger_, "DELETE FROM ledger WHERE job = ?1 AND invocation = ?2 AND try = ?3"},
      {t.put_inbox_, "INSERT INTO inbox(job, id, act) VALUES(?1, ?2, ?3) ON CONFLICT DO NOTHING"},
      {t.delete_inbox_, "DELETE FROM inbox WHERE number = ?2 AND job = ?1"},
      {t.put_reply_,
       "INSERT OR REPLACE INTO inbox_replies(number, job, id, reply) "
       "SELECT number, job, id, ?3 FROM inbox WHERE number = ?2 AND job = ?1"},
      {t.delete_reply_, "DELETE FROM inbox_replies WHERE job = ?1 AND id = ?2"},
      {t.drop_old_replies_, "DELETE FROM inbox_replies WHERE number <= ?1"},
      {t.inbox_numbers_, "SELECT number FROM inbox WHERE job = ?1"},
      {t.make_delayed_eligible_,
       "UPDATE jobs SET ready = 1 WHERE ready = 0 AND ripe_at IS NOT NULL AND attempt IS NULL "
       "AND ripe_at <= ?1"},
      {t.make_expired_eligible_,
       "UPDATE jobs SET ready = 1 WHERE ready = 0 AND ripe_at IS NOT NULL AND attempt IS NOT NULL "
       "AND ripe_at <= ?1"},
      {t.needs_after_, ClaimStatements::kNeedsAfter},
      {t.agent_after_, ClaimStatements::kAgentAfter},
      {t.queue_after_, ClaimStatements::kQueueAfter},
      {t.count_leased_, ClaimStatements::kCountLeased},
      {t.priority_below_, ClaimStatements::kPriorityBelow},
      {t.first_fairness_key_, ClaimStatements::kFirstFairnessKey},
      {t.fairness_key_after_, ClaimStatements::kFairnessKeyAfter},
      {t.job_after_, ClaimStatements::kJobAfter},
      {t.last_served_key_, "SELECT last FROM turns WHERE priority = ?1"},
      {t.put_served_key_,
       "INSERT INTO turns(priority, last) VALUES(?1, ?2) "
       "ON CONFLICT DO UPDATE SET last = excluded.last"},
      {t.update_lease_, "UPDATE jobs SET lease_until = ?2, ready = 0, ripe_at = ?2 WHERE id = ?1"},
      {t.end_leased_,
       "UPDATE jobs SET lease_until = 0, ready = 1, ripe_at = 0 "
       "WHERE ready = 0 AND ripe_at IS NOT NULL AND attempt IS NOT NULL"},
      {t.end_ready_,
       "UPDATE jobs SET lease_until = 0, ripe_at = 0 WHERE ready = 1 AND attempt IS NOT NULL"},
      {t.put_position_, "UPDATE meta SET value = ?1 WHERE key = 'position'"},
      {t.savepoint_, "SAVEPOINT batch"},
      {t.rollback_savepoint_, "ROLLBACK TO batch"},
      {t.release_savepoint_, "RELEASE batch"},
  };
  for (const StatementSpec& requested : specs) {
    AE_ASSIGN(requested.statement, db.prepare(requested.sql));
  }
  return t;
}

void Tables::clear_cache() {
  jobs_.clear();
  blobs_.clear();
  last_number_.reset();
}

Sql<void> Tables::end_leases() {
  clear_cache();
  AE_TRY(end_leased_.run());
  return end_ready_.run();
}

Sql<void> Tables::advance() {
  next_ = position_.number + 1;
  return put_position_.run(next_);
}

Sql<void> Tables::finish_accepting() {
  return db_->execute("DELETE FROM meta WHERE key = 'accepting'");
}

std::optional<Fence> Tables::Job::claim() const {
  if (!attempt) return std::nullopt;
  return Fence{*attempt, epoch};
}

Sql<Tables::Job*> Tables::find(const JobId& id) {
  if (const auto it = jobs_.find(id); it != jobs_.end()) return &it->second;
  Job job;
  std::int64_t last_commit = 0;
  {
    Rows row(find_job_, id.text);
    AE_ASSIGN(const bool found, row.next());
    if (!found) return nullptr;
    job.id = row->integer(0);
    job.agent = row->text(1);
    job.last_seq = row->count(2);
    job.commits = row->count(3);
    last_commit = row->integer(4);
    job.epoch = row->count(5);
    if (!row->is_null(6)) job.attempt = AttemptId(row->text(6));
    job.worker = row->text(7);
    job.lease_until = row->maybe_instant(8);
    job.row.status = row->text(9);
    job.row.not_before = row->maybe_instant(10);
    job.row.wake_at = row->maybe_instant(11);
    job.capabilities = lines(row->text(12));
    job.queue = row->text(13);
    job.row.pending = static_cast<PendingKinds>(row->count(14));
  }
  // Each commit has its own row, so there are at most `last_commit` of them.
  if (job.commits == 0 || last_commit <= 0 || std::cmp_greater(job.commits, last_commit)) {
    return std::unexpected(corrupt_commit_chain());
  }
  AE_TRY(read_skip_list(job, last_commit));
  return &jobs_.emplace(id, std::move(job)).first->second;
}

Sql<void> Tables::read_skip_list(Job& job, std::int64_t last_commit) {
  job.skip_list = SkipList::of(job.commits);
  std::int64_t commit = last_commit;
  std::vector<SkipList::Root>& roots = job.skip_list.roots();
  for (auto root = roots.rbegin(); root != roots.rend(); ++root) {
    root->commit = commit;
    Rows row(commit_pointers_, commit);
    AE_ASSIGN(const bool found, row.next());
    if (!found || row->integer(0) != job.id || row->integer(4) >= commit) {
      return std::unexpected(corrupt_commit_chain());
    }
    // The last commit must end at the job's last seq, where appends continue.
    if (commit == last_commit && row->count(2) != job.last_seq) {
      return std::unexpected(corrupt_commit_chain());
    }
    commit = row->integer(4);
  }
  return {};
}

void Tables::evict_if_idle(const JobId& id) {
  if (const auto it = jobs_.find(id); it != jobs_.end() && !it->second.attempt) jobs_.erase(it);
}

// Follows the pointers to the commit with this first event; 0 when there is none. Fails as corrupt
// unless each pointer leads to an earlier commit of the job, so this terminates for any stored
// data.
Sql<std::int64_t> Tables::commit_at(const Job& job, std::uint64_t first_seq) {
  if (first_seq > job.last_seq) return 0;
  std::int64_t commit = job.skip_list.last();
  std::int64_t jump = 0;
  for (std::int64_t prev = 0;; commit = jump != 0 ? jump : prev) {
    {
      Rows row(commit_pointers_, commit);
      AE_ASSIGN(const bool found, row.next());
      if (!found || row->integer(0) != job.id) return std::unexpected(corrupt_commit_chain());
      if (row->count(1) == first_seq) return commit;
      if (row->count(1) < first_seq) return 0;
      prev = row->integer(3);
      jump = row->integer(4);
      if (prev >= commit || jump >= commit) return std::unexpected(corrupt_commit_chain());
    }
    if (jump == 0) continue;
    Rows row(commit_pointers_, jump);
    AE_ASSIGN(const bool found, row.next());
    if (!found || row->integer(0) != job.id) return std::unexpected(corrupt_commit_chain());
    if (row->count(2) < first_seq) jump = 0;  // the jump goes too far: take `prev`
  }
}

Sql<bool> Tables::is_committed(const Job& job, const SealedBatch& sealed) {
  AE_ASSIGN(const std::int64_t commit, commit_at(job, sealed.first_seq));
  if (commit == 0) return false;
  Rows row(commit_bytes_, commit);
  AE_ASSIGN(const bool found, row.next());
  return found && row->bytes(0) == sealed.bytes;
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
  AE_ASSIGN(Commit commit, is_new ? create(batch, now) : append_batch(batch));
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

Sql<Tables::Commit> Tables::append_batch(const Batch& batch) {
  auto found = find(batch.job);
  if (!found && found.error().corrupt()) return Commit{commit_missing(batch.job)};
  AE_ASSIGN(Job * job, std::move(found));
  if (job == nullptr) return Commit{std::unexpected(job_not_found(batch.job))};
  if (batch.sealed) {
    auto committed = is_committed(*job, *batch.sealed);
    if (!committed && committed.error().corrupt()) return Commit{commit_missing(batch.job)};
    AE_ASSIGN(const bool is_duplicate, std::move(committed));
    if (is_duplicate)
      return Commit{CommitResult{.last_seq = batch.sealed->last_seq, .is_duplicate = true}};
  }
  AE_ASSIGN(auto refusal, find_refusal(batch, *job));
  if (refusal) return Commit{std::unexpected(*std::move(refusal))};
  AE_TRY(write(batch, *job));
  return Commit{CommitResult{.last_seq = job->last_seq}, true};
}

Sql<void> Tables::write(const Batch& batch, Job& job) {
  bool changed = batch.release;
  if (batch.sealed) {
    AE_TRY(append(*batch.sealed, job));
    if (!same(batch.row, job.row)) {
      job.row = batch.row;
      changed = true;
    }
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
  if (!found && found.error().corrupt()) return Result<CommitResult>(commit_missing(batch.job));
  AE_ASSIGN(const Job* job, std::move(found));
  if (job != nullptr) {
    auto committed = is_committed(*job, *batch.sealed);
    if (!committed && committed.error().corrupt())
      return Result<CommitResult>(commit_missing(batch.job));
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

Sql<Tables::Commit> Tables::create(const Batch& batch, Instant now) {
  const NewJob& requested = std::get<Batch::Create>(batch.authority).job;
  AE_ASSIGN(auto repeated, find_repeated_create(batch, requested));
  if (repeated) return Commit{*std::move(repeated)};
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
  AE_TRY(insert_job_.run(
      batch.job.text, requested.agent, requested.idempotency_key, requested.request_hash,
      requested.priority, batch.sealed->created_at, job.row.status, job.row.not_before,
      job.row.wake_at, job.epoch, attempt, worker, job.lease_until, std::int64_t{eligibility.ready},
      eligibility.at, joined(requested.capabilities), requested.queue,
      fairness_key_of(requested.labels, fair_by_), number, std::uint64_t{job.row.pending}));
  job.id = db_->last_rowid();
  std::int64_t place = 0;
  for (const auto& [key, value] : requested.labels) {
    AE_TRY(insert_label_.run(job.id, place++, key, value));
  }
  return {};
}

// The answer of a redaction that writes nothing, if this is one. Sets the rows of its commits.
Sql<std::optional<Result<void>>> Tables::answer_redact(const Redaction& redaction, const Job& job,
                                                       std::vector<std::int64_t>& commits) {
  if (job.attempt) return Result<void>(std::unexpected(job_still_leased(redaction.job)));
  bool changes = false;
  for (const Redaction::Commit& requested : redaction.commits) {
    auto commit_row = commit_at(job, requested.first_seq);
    if (!commit_row && commit_row.error().corrupt())
      return Result<void>(commit_missing(redaction.job));
    AE_ASSIGN(const std::int64_t commit, std::move(commit_row));
    commits.push_back(commit);
    Rows row(commit_bytes_, commit);
    AE_ASSIGN(const bool found, row.next());
    const bool same = found && row->bytes(0) == requested.bytes;
    if (!found || (!same && sha256(row->bytes(0)) != requested.expected_hash)) {
      return Result<void>(std::unexpected(commit_changed(redaction.job, requested.first_seq)));
    }
    changes = changes || !same;
  }
  AE_ASSIGN(Statement effects,
            db_->prepare("SELECT invocation, try, record FROM effects WHERE job = ?1"));
  for (Rows row(effects, job.id);;) {
    AE_ASSIGN(const bool found, row.next());
    if (!found) break;
    const auto requested = std::ranges::find_if(redaction.effects, [&](const EffectRow& effect) {
      return effect.invocation.text == row->bytes(0) && effect.try_no == row->count(1);
    });
    if (requested == redaction.effects.end()) {
      return Result<void>(std::unexpected(effects_changed(redaction.job)));
    }
    changes = changes || requested->record != row->bytes(2);
  }
  if (!changes) return Result<void>();
  return std::nullopt;
}

Tables::SqlResult<void> Tables::redact(const Redaction& redaction) {
  auto found = find(redaction.job);
  if (!found && found.error().corrupt()) return Result<void>(commit_missing(redaction.job));
  AE_ASSIGN(const Job* job, std::move(found));
  if (job == nullptr) return Result<void>(std::unexpected(job_not_found(redaction.job)));
  std::vector<std::int64_t> commits;
  AE_ASSIGN(auto answer, answer_redact(redaction, *job, commits));
  const std::int64_t id = job->id;
  evict_if_idle(redaction.job);
  if (answer) return *std::move(answer);
  AE_ASSIGN(Statement blobs_of, db_->prepare("SELECT blobs FROM commits WHERE id = ?1"));
  AE_ASSIGN(Statement replace,
            db_->prepare("UPDATE commits SET body = ?2, blobs = ?3 WHERE id = ?1"));
  std::unordered_set<Hash> unreferenced;
  for (std::size_t i = 0; i < commits.size(); ++i) {
    const Redaction::Commit& requested = redaction.commits[i];
    {
      Rows row(blobs_of, commits[i]);
      AE_TRY(row.next());
      for (const Hash& hash : hashes_in(row->bytes(0))) unreferenced.insert(hash);
    }
    std::string list;
    for (const Hash& hash : requested.blobs) {
      unreferenced.erase(hash);
      list.append(reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size());
    }
    const auto stored = list.empty() ? std::nullopt : std::optional<Bytes>(Bytes{list});
    AE_TRY(replace.run(commits[i], Bytes{requested.bytes}, stored));
  }
  // `instr` can match across two hashes by chance; then a blob is kept.
  AE_TRY(
      drop_blobs(unreferenced,
                 "SELECT 1 FROM commits WHERE blobs IS NOT NULL AND instr(blobs, ?1) > 0 LIMIT 1"));
  AE_ASSIGN(Statement replace_effect, db_->prepare("UPDATE effects SET record = ?4 WHERE job = ?1 "
                                                   "AND invocation = ?2 AND try = ?3"));
  for (const EffectRow& effect : redaction.effects) {
    AE_TRY(replace_effect.run(id, effect.invocation.text, effect.try_no, Bytes{effect.record}));
  }
  AE_ASSIGN(Statement no_checkpoint, db_->prepare("DELETE FROM checkpoints WHERE job = ?1"));
  AE_TRY(no_checkpoint.run(id));
  AE_ASSIGN(Statement no_replies, db_->prepare("DELETE FROM inbox_replies WHERE job = ?1"));
  AE_TRY(no_replies.run(id));
  AE_TRY(append_audit_entry(redaction.audit));
  return Result<void>();
}

Sql<void> Tables::drop_blobs(const std::unordered_set<Hash>& hashes, std::string_view named_by) {
  AE_ASSIGN(Statement named, db_->prepare(named_by));
  AE_ASSIGN(Statement drop, db_->prepare("DELETE FROM blobs WHERE hash = ?1"));
  for (const Hash& hash : hashes) {
    {
      Rows row(named, hash);
      AE_ASSIGN(const bool found, row.next());
      if (found) continue;
    }
    AE_TRY(drop.run(hash));
    blobs_.erase(hash);
  }
  return {};
}

Sql<void> Tables::append_audit_entry(const AuditEntry& entry) { return append_audit(*db_, entry); }

Tables::SqlResult<void> Tables::put_inbox(const JobId& id, const InboxEntry& entry) {
  auto found = find(id);
  if (!found && found.error().corrupt()) return Result<void>(commit_missing(id));
  AE_ASSIGN(const Job* job, std::move(found));
  if (job == nullptr) return Result<void>(std::unexpected(job_not_found(id)));
  if (!job->attempt) {
    evict_if_idle(id);
    return Result<void>(std::unexpected(job_not_leased(id)));
  }
  AE_TRY(put_inbox_.run(job->id, entry.id, Bytes{entry.request}));
  AE_TRY(delete_reply_.run(job->id, entry.id));
  return Result<void>();
}

Sql<Lease> Tables::acquire(const JobId& id, Job& job, const std::string& worker,
                           const AttemptId& attempt, Instant until) {
  job.epoch += 1;
  job.attempt = attempt;
  job.worker = worker;
  job.lease_until = until;
  AE_TRY(write_state(job));
  return Lease{id, *job.claim(), until};
}

// The Source of ClaimOrder (store/claim_order.h).
class Tables::ReadyJobs {
 public:
  using Failure = SqlError;
  struct Group {
    std::string queue, agent, capabilities;
    std::int64_t priority = 0;
  };
  ReadyJobs(Tables& tables, const ClaimRequest& request, Instant now)
      : t_(tables), request_(request), excluded_(request), now_(now) {}

  Sql<std::vector<Group>> groups() {
    std::vector<Group> fitting;
    for (Group last;;) {
      AE_ASSIGN(auto group, group_after(last));
      if (!group) return fitting;
      last = *group;
      if (satisfies(request_, last.agent, sqlite::lines(last.capabilities))) {
        fitting.push_back(*std::move(group));
      }
    }
  }
  Sql<std::size_t> count_leased(const std::string& queue, std::size_t enough) {
    Rows row(t_.count_leased_, queue, now_, std::uint64_t{enough});
    AE_TRY(row.next());
    return row->count(0);
  }
  Sql<std::optional<std::int64_t>> priority_below(const Group& group, std::int64_t priority) {
    Rows row(t_.priority_below_, group.queue, group.agent, group.capabilities, priority);
    AE_ASSIGN(const bool found, row.next());
    if (!found) return std::nullopt;
    return row->integer(0);
  }
  Sql<std::optional<std::string>> fairness_key_after(
      const Group& group, std::int64_t priority, const std::optional<std::string>& fairness_key) {
    if (!fairness_key) {
      Rows row(t_.first_fairness_key_, group.queue, group.agent, group.capabilities, priority);
      return text(row);
    }
    Rows row(t_.fairness_key_after_, group.queue, group.agent, group.capabilities, priority,
             *fairness_key);
    return text(row);
  }
  Sql<std::optional<ReadyJob>> job_after(const Group& group, std::int64_t priority,
                                         const std::string& fairness_key, std::int64_t number) {
    Rows row(t_.job_after_, group.queue, group.agent, group.capabilities, priority, fairness_key,
             number);
    AE_ASSIGN(const bool found, row.next());
    if (!found) return std::nullopt;
    ReadyJob job{JobId(row->text(1)), row->integer(0), false};
    // The lease may be still valid if the clock was set back.
    const bool free = row->is_null(2) || row->instant(2) <= now_;
    job.matches = free && !excluded_.contains(job.job);
    return job;
  }
  Sql<std::optional<std::string>> last_served_key_at(std::int64_t priority) {
    if (!is_fair()) return std::nullopt;
    Rows row(t_.last_served_key_, priority);
    return text(row);
  }
  bool is_fair() const { return !t_.fair_by_.empty(); }

 private:
  Sql<std::optional<Group>> group_after(const Group& last) {
    const auto group = [](Rows row) -> Sql<std::optional<Group>> {
      AE_ASSIGN(const bool found, row.next());
      if (!found) return std::nullopt;
      return Group{row->text(0), row->text(1), row->text(2), row->integer(3)};
    };
    AE_ASSIGN(auto needs, group(Rows(t_.needs_after_, last.queue, last.agent, last.capabilities)));
    if (needs) return needs;
    AE_ASSIGN(auto agent, group(Rows(t_.agent_after_, last.queue, last.agent)));
    if (agent) return agent;
    return group(Rows(t_.queue_after_, last.queue));
  }
  static Sql<std::optional<std::string>> text(Rows& row) {
    AE_ASSIGN(const bool found, row.next());
    if (!found) return std::nullopt;
    return row->text(0);
  }

  Tables& t_;
  const ClaimRequest& request_;
  const ExcludedJobs excluded_;
  const Instant now_;
};

Sql<bool> Tables::is_below_queue_limit(const ClaimRequest& request, const std::string& queue,
                                       Instant now) {
  const auto limit = queue_limit_of(request, queue);
  if (!limit) return true;
  AE_ASSIGN(const std::size_t held, ReadyJobs(*this, request, now).count_leased(queue, *limit));
  return held < *limit;
}

// Without a label, the stored one stays.
Sql<void> Tables::set_fairness_label(const std::optional<std::string>& label) {
  AE_ASSIGN(Statement stored, db_->prepare("SELECT value FROM meta WHERE key = 'fair_by'"));
  {
    Rows row(stored);
    AE_ASSIGN(const bool found, row.next());
    fair_by_ = found ? row->text(0) : std::string();
  }
  if (!label || *label == fair_by_) return {};
  fair_by_ = *label;
  AE_ASSIGN(Statement put, db_->prepare("INSERT INTO meta VALUES('fair_by', ?1) "
                                        "ON CONFLICT DO UPDATE SET value = excluded.value"));
  AE_TRY(put.run(fair_by_));
  AE_TRY(db_->execute("DELETE FROM turns"));
  AE_ASSIGN(Statement fairness_key,
            db_->prepare("UPDATE jobs SET turn = coalesce((SELECT value FROM "
                         "labels WHERE job = jobs.id AND key = ?1), '')"));
  return fairness_key.run(fair_by_);
}

Tables::SqlResult<std::vector<Lease>> Tables::claim(const ClaimRequest& request, Instant now) {
  AE_TRY(make_delayed_eligible_.run(now));
  AE_TRY(make_expired_eligible_.run(now));
  ReadyJobs ready(*this, request, now);
  ClaimOrder order(ready, request);
  AE_ASSIGN(const std::vector<JobId> chosen, order.choose_jobs());
  for (const auto& [priority, fairness_key] : order.served_keys())
    AE_TRY(put_served_key_.run(priority, fairness_key));
  std::vector<Lease> leases;
  for (const JobId& id : chosen) {
    auto found = find(id);
    // A damaged job must not prevent other claims.
    if (!found && found.error().corrupt()) continue;
    AE_ASSIGN(Job * job, std::move(found));
    const AttemptId& attempt = request.attempts[leases.size()];
    AE_ASSIGN(Lease lease, acquire(id, *job, request.worker, attempt, now + request.lease));
    leases.push_back(std::move(lease));
  }
  return Result<std::vector<Lease>>(std::move(leases));
}

Tables::SqlResult<std::optional<Lease>> Tables::claim_job(const JobId& id,
                                                          const ClaimRequest& request,
                                                          Instant now) {
  using Answer = Result<std::optional<Lease>>;
  auto found = find(id);
  if (!found && found.error().corrupt()) return Answer(commit_missing(id));
  AE_ASSIGN(Job * job, std::move(found));
  if (job == nullptr) return Answer(std::unexpected(job_not_found(id)));
  const bool free =
      job->attempt ? *job->lease_until <= now : !job->row.not_before || *job->row.not_before <= now;
  AE_ASSIGN(const bool has_free_slot, is_below_queue_limit(request, job->queue, now));
  if (!is_runnable(job->row.status) || !free || request.limit == 0 || !has_free_slot ||
      !matches(request, {id, job->agent, job->capabilities})) {
    evict_if_idle(id);
    return Answer(std::nullopt);
  }
  AE_ASSIGN(Lease lease,
            acquire(id, *job, request.worker, request.attempts[0], now + request.lease));
  return Answer(std::move(lease));
}

Tables::SqlResult<std::vector<std::optional<Instant>>> Tables::heartbeat(
    const std::vector<std::pair<JobId, Fence>>& held, Duration lease, Instant now) {
  std::vector<std::optional<Instant>> until;
  until.reserve(held.size());
  for (const auto& [id, fence] : held) {
    auto found = find(id);
    if (!found && !found.error().corrupt()) return std::unexpected(std::move(found).error());
    Job* const job = found.value_or(nullptr);  // a job without readable commits has no lease
    if (job == nullptr || job->claim() != fence || *job->lease_until <= now) {
      evict_if_idle(id);
      until.push_back(std::nullopt);
      continue;
    }
    job->lease_until = now + lease;
    AE_TRY(update_lease_.run(job->id, *job->lease_until));
    until.push_back(job->lease_until);
  }
  return Result<std::vector<std::optional<Instant>>>(std::move(until));
}

}  // namespace ae::store::sqlite
