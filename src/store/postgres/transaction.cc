#include "store/postgres/transaction.h"

#include <algorithm>
#include <charconv>
#include <tuple>

#include "store/rules.h"

namespace ae::store::postgres {
namespace {

using Type = Column::Type;

constexpr Statement kBegin{"begin", "BEGIN"};
constexpr Statement kCommit{"commit", "COMMIT"};
constexpr Statement kLimits{"limits", kOneClaimerUnderLimits};
// Each job by its index, in the order of their numbers, whatever the planner believes of the sizes of tables.
constexpr Statement kLock{
    "lock_jobs",
    "WITH wanted AS MATERIALIZED (SELECT * FROM jobs WHERE job_id = ANY($1::text[]) "
    "ORDER BY number + 0) "
    "SELECT j.job_id, j.number, j.agent, array_to_string(j.capabilities, E'\\n'), j.priority, "
    "h.last_seq, h.updated_at, h.head, h.epoch, h.attempt, h.worker, h.lease_until, h.ripe_at, "
    "h.ready, h.status, h.not_before, h.wake_at, h.queue, h.turn "
    "FROM wanted j CROSS JOIN LATERAL (SELECT * FROM heads WHERE job = j.number FOR UPDATE) h"};
constexpr Statement kNow{"now", "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"};
constexpr Statement kFairBy{"fair_by", "SELECT value FROM meta WHERE key = 'fair_by'"};
constexpr Statement kAuditHead{"audit_head",
                               "SELECT value FROM meta WHERE key = 'audit_head' FOR UPDATE"};
constexpr Statement kHeld{
    "held",
    "SELECT q, (SELECT count(*) FROM heads WHERE queue = q AND attempt IS NOT NULL "
    "AND lease_until > coalesce($2::bigint, "
    "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint)) FROM unnest($1::text[]) AS q"};
// Held to the end: values that a commit has found stored are not dropped meanwhile (see redaction.cc).
constexpr Statement kKeepBlobs{"keep_blobs", "LOCK TABLE blobs IN ROW SHARE MODE"};
constexpr Statement kKeys{
    "keys",
    "SELECT j.agent, j.idempotency_key, j.job_id, j.request_hash, h.last_seq "
    "FROM unnest($1::text[], $2::text[]) AS k(agent, key) "
    "CROSS JOIN LATERAL (SELECT * FROM jobs WHERE agent = k.agent AND idempotency_key = k.key "
    "AND idempotency_key <> '' LIMIT 1) j "
    "CROSS JOIN LATERAL (SELECT last_seq FROM heads WHERE job = j.number LIMIT 1) h"};
constexpr Statement kNumbers{"job_numbers",
                             "SELECT nextval('job_numbers') FROM generate_series(1, $1::bigint)"};
constexpr Statement kInbox{
    "read_inbox",
    "WITH wanted AS MATERIALIZED (SELECT number, job_id FROM jobs WHERE job_id = ANY($1::text[])) "
    "SELECT j.job_id, i.number, i.id FROM wanted j "
    "CROSS JOIN LATERAL (SELECT number, id FROM inbox WHERE job = j.number OFFSET 0) i"};
constexpr Statement kEffects{
    "read_effects",
    "SELECT w.job_id, w.invocation, w.try "
    "FROM unnest($1::text[], $2::text[], $3::bigint[]) AS w(job_id, invocation, try) "
    "WHERE (SELECT true FROM effects WHERE job = (SELECT number FROM jobs "
    "WHERE job_id = w.job_id) AND invocation = w.invocation AND try = w.try)"};
constexpr Statement kBlobsThere{"blobs_there",
                                "SELECT hash FROM blobs WHERE hash = ANY($1::bytea[])"};
constexpr Statement kOldCommits{
    "old_commits",
    "SELECT w.job_id, c.first_seq, c.body FROM unnest($1::text[], $2::bigint[]) AS w(job_id, seq) "
    "CROSS JOIN LATERAL (SELECT first_seq, body FROM commits WHERE job = (SELECT number FROM jobs "
    "WHERE job_id = w.job_id) AND first_seq = w.seq LIMIT 1) c"};

constexpr Statement kPutJobs{
    "put_jobs",
    "INSERT INTO jobs(number, job_id, agent, idempotency_key, request_hash, priority, "
    "capabilities, created_at) "
    "SELECT n, id, agent, key, hash, priority, string_to_array(capabilities, E'\\n'), created "
    "FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::bigint[], "
    "$7::text[], $8::bigint[]) AS w(n, id, agent, key, hash, priority, capabilities, created)"};
constexpr Statement kPutLabels{
    "put_labels",
    "INSERT INTO labels(job, number, key, value) "
    "SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[])"};
// New ones and those that were locked; of these priority, queue and turn stay.
constexpr Statement kPutHeads{
    "put_heads",
    "INSERT INTO heads(job, last_seq, updated_at, head, priority, epoch, not_before, wake_at, "
    "lease_until, ripe_at, ready, status, attempt, worker, queue, turn) "
    "SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bigint[], "
    "$6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::boolean[], "
    "$12::text[], $13::text[], $14::text[], $15::text[], $16::text[]) "
    "ON CONFLICT (job) DO UPDATE SET last_seq = excluded.last_seq, "
    "updated_at = excluded.updated_at, head = excluded.head, epoch = excluded.epoch, "
    "not_before = excluded.not_before, wake_at = excluded.wake_at, "
    "lease_until = excluded.lease_until, ripe_at = excluded.ripe_at, ready = excluded.ready, "
    "status = excluded.status, attempt = excluded.attempt, worker = excluded.worker"};
constexpr Statement kPutCommits{
    "put_commits",
    "INSERT INTO commits(job, first_seq, last_seq, blobs, body) "
    "SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bytea[])"};
// In the order of their hashes: two transactions that bring the same ones wait for each other in one direction.
constexpr Statement kPutBlobs{
    "put_blobs",
    "INSERT INTO blobs(hash, bytes) "
    "SELECT * FROM unnest($1::bytea[], $2::bytea[]) ON CONFLICT DO NOTHING"};
constexpr Statement kPutEffects{
    "put_effects",
    "INSERT INTO effects(job, invocation, try, record) "
    "SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bytea[]) "
    "ON CONFLICT DO NOTHING"};
constexpr Statement kPutLedger{
    "put_ledger",
    "INSERT INTO ledger(job, invocation, try, state, record) "
    "SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[], $5::bytea[]) "
    "ON CONFLICT (job, invocation, try) DO UPDATE "
    "SET state = excluded.state, record = excluded.record"};
constexpr Statement kEraseLedger{
    "erase_ledger",
    "DELETE FROM ledger l USING unnest($1::bigint[], $2::text[], $3::bigint[]) "
    "AS w(job, invocation, try) "
    "WHERE l.job = w.job AND l.invocation = w.invocation AND l.try = w.try"};
constexpr Statement kTakeInbox{"take_inbox",
                               "DELETE FROM inbox i USING unnest($1::bigint[], $2::bigint[]) "
                               "AS w(job, number) WHERE i.job = w.job AND i.number = w.number"};
constexpr Statement kPutInbox{
    "put_inbox",
    "INSERT INTO inbox(job, number, id, act) "
    "SELECT job, nextval('inbox_numbers'), id, act "
    "FROM unnest($1::bigint[], $2::text[], $3::bytea[]) AS w(job, id, act)"};
constexpr Statement kPutSignedHeads{
    "put_signed_heads",
    "INSERT INTO signed_heads(job, body) SELECT * FROM unnest($1::bigint[], $2::bytea[]) "
    "ON CONFLICT (job) DO UPDATE SET body = excluded.body"};
constexpr Statement kPutAudit{"put_audit",
                              "INSERT INTO audit(seq, body, hash) SELECT * FROM "
                              "unnest($1::bigint[], $2::bytea[], $3::bytea[])"};
constexpr Statement kPutAuditHead{"put_audit_head",
                                  "UPDATE meta SET value = $1::text WHERE key = 'audit_head'"};
constexpr Statement kPutCheckpoints{
    "put_checkpoints",
    "INSERT INTO checkpoints(job, seq, body) "
    "SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[]) "
    "ON CONFLICT (job) DO UPDATE SET seq = excluded.seq, body = excluded.body"};

std::vector<std::string> lines(std::string_view text) {
  std::vector<std::string> all;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    all.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return all;
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : "\n") + text;
  return all;
}

template <class Texts>
Column texts_of(const Texts& texts) {
  Column column(Type::text);
  for (const auto& text : texts) column.add(std::string_view(text));
  return column;
}

bool same(const RowState& a, const RowState& b) {
  return a.status == b.status && a.not_before == b.not_before && a.wake_at == b.wake_at;
}

}  // namespace

// ---------------------------------------------------------------- what is needed

void Transaction::needs(const JobId& job) { jobs_asked_.insert(job.text); }

void Transaction::needs_inbox(const JobId& job) {
  needs(job);
  inbox_asked_.insert(job.text);
}

void Transaction::needs(const Batch& batch) {
  needs(batch.job);
  if (const auto* create = std::get_if<Batch::Create>(&batch.authority)) {
    ++creates_;
    if (!create->job.idempotency_key.empty()) {
      keys_asked_.emplace(create->job.agent, create->job.idempotency_key);
    }
  }
  if (batch.release || batch.inbox_read) needs_inbox(batch.job);
  for (const auto& [invocation, try_no] : batch.effects_absent) {
    effects_asked_.emplace(batch.job.text, Slot(invocation.text, try_no));
  }
  if (batch.audit) needs_audit();
  if (!batch.sealed) return;
  sealed_asked_.emplace_back(batch.job, &*batch.sealed);
  for (const Blob& blob : batch.sealed->blobs) blobs_asked_.insert(blob.hash);
}

void Transaction::needs_held(const ClaimRequest& request, std::optional<Instant> at) {
  for (const QueueLimit& limit : request.queues) queues_asked_.insert(limit.queue);
  held_at_ = at;
}

// ---------------------------------------------------------------- reading

Pg<void> Transaction::read(Connection& connection) {
  connection.add(kBegin);
  if (!queues_asked_.empty()) connection.add(kLimits);
  connection.add(kLock, Params().add(texts_of(jobs_asked_)));
  connection.add(kNow);
  add_reads(connection);
  AE_ASSIGN(const auto answers, connection.run());
  std::size_t at = queues_asked_.empty() ? 1 : 2;
  take_jobs(answers[at++]);
  now_ = answers[at++].instant(0, 0);
  if (!keys_asked_.empty()) {
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
  if (!inbox_asked_.empty()) {
    const Rows& rows = answers[at++];
    for (int i = 0; i < rows.size(); ++i) {
      if (Job* job = find(JobId(rows.text(i, 0)))) job->inbox[rows.count(i, 1)] = rows.text(i, 2);
    }
  }
  if (!effects_asked_.empty()) {
    const Rows& rows = answers[at++];
    for (int i = 0; i < rows.size(); ++i) {
      if (Job* job = find(JobId(rows.text(i, 0)))) {
        job->effects.emplace(rows.text(i, 1), static_cast<std::uint32_t>(rows.integer(i, 2)));
      }
    }
  }
  if (!blobs_asked_.empty()) {
    const Rows& rows = answers[++at];
    for (int i = 0; i < rows.size(); ++i) blobs_there_.insert(rows.hash(i, 0));
    ++at;
  }
  if (!queues_asked_.empty()) {
    const Rows& rows = answers[at++];
    for (int i = 0; i < rows.size(); ++i) held_[rows.text(i, 0)] = rows.count(i, 1);
  }
  if (audit_asked_) audit_head_ = audit_head(answers[at++].text(0, 0));
  return read_old_commits(connection);
}

void Transaction::add_reads(Connection& connection) {
  if (!keys_asked_.empty()) {
    Column agents(Type::text), keys(Type::text);
    for (const auto& [agent, key] : keys_asked_) {
      agents.add(agent);
      keys.add(key);
    }
    connection.add(kKeys, Params().add(agents).add(keys));
  }
  if (creates_ > 0) {
    connection.add(kNumbers, Params().add(std::uint64_t{creates_}));
    connection.add(kFairBy);
  }
  if (!inbox_asked_.empty()) connection.add(kInbox, Params().add(texts_of(inbox_asked_)));
  if (!effects_asked_.empty()) {
    Column jobs(Type::text), invocations(Type::text), tries(Type::integer);
    for (const auto& [job, slot] : effects_asked_) {
      jobs.add(job);
      invocations.add(slot.first);
      tries.add(std::uint64_t{slot.second});
    }
    connection.add(kEffects, Params().add(jobs).add(invocations).add(tries));
  }
  if (!blobs_asked_.empty()) {
    Column hashes(Type::bytes);
    for (const Hash& hash : blobs_asked_) hashes.add(hash);
    connection.add(kKeepBlobs);
    connection.add(kBlobsThere, Params().add(hashes));
  }
  if (!queues_asked_.empty()) {
    connection.add(kHeld, Params().add(texts_of(queues_asked_)).add(held_at_));
  }
  if (audit_asked_) connection.add(kAuditHead);
}

void Transaction::take_jobs(const Rows& rows) {
  for (int i = 0; i < rows.size(); ++i) {
    Job job;
    job.number = rows.integer(i, 1);
    job.agent = rows.text(i, 2);
    job.capabilities = lines(rows.bytes(i, 3));
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
    job.turn = rows.text(i, 18);
    jobs_.insert_or_assign(JobId(rows.text(i, 0)), std::move(job));
  }
}

// Only a batch whose place is taken can be a repeated one: then its bytes are compared.
Pg<void> Transaction::read_old_commits(Connection& connection) {
  Column jobs(Type::text), seqs(Type::integer);
  for (const auto& [id, sealed] : sealed_asked_) {
    const Job* job = find(id);
    if (job == nullptr || sealed->first_seq > job->last_seq) continue;
    jobs.add(id.text);
    seqs.add(sealed->first_seq);
  }
  if (jobs.empty()) return {};
  connection.add(kOldCommits, Params().add(jobs).add(seqs));
  AE_ASSIGN(const auto answers, connection.run());
  const Rows& rows = answers[0];
  for (int i = 0; i < rows.size(); ++i) {
    old_commits_[{rows.text(i, 0), rows.count(i, 1)}] = rows.text(i, 2);
  }
  return {};
}

// ---------------------------------------------------------------- deciding

std::optional<Fence> Transaction::Job::claim() const {
  if (!attempt) return std::nullopt;
  return Fence{*attempt, epoch};
}

void Transaction::Job::ripen() {
  changed = true;
  ready = false;
  ripe_at.reset();
  if (!may_run(row.status)) return;
  ripe_at = lease_until ? lease_until : row.not_before;
  ready = !ripe_at;
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
  if (job->ready && !was_ready) hints_.insert("claim");
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
    if (job.ready) hints_.insert("claim");
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
  hints_.insert("inbox " + id.text);
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

// ---------------------------------------------------------------- writing

std::size_t Transaction::send(Connection& connection) {
  std::size_t statements = 0;
  send_new_jobs(connection, statements);
  send_heads(connection, statements);
  send_commits(connection, statements);
  send_effects(connection, statements);
  send_inbox(connection, statements);
  send_audit(connection, statements);
  send_beside(connection, statements);
  connection.add(kCommit);
  return statements;
}

void Transaction::send_new_jobs(Connection& connection, std::size_t& statements) {
  if (new_jobs_.empty()) return;
  // Two transactions that bring the same keys wait for each other in one direction.
  std::ranges::sort(new_jobs_, {}, [](const NewRow& row) {
    const NewJob& wish = std::get<Batch::Create>(row.batch->authority).job;
    return std::tie(wish.agent, wish.idempotency_key, row.number);
  });
  Column numbers(Type::integer), ids(Type::text), agents(Type::text), keys(Type::text),
      hashes(Type::bytes), priorities(Type::integer), needed(Type::text), created(Type::integer);
  Column jobs(Type::integer), places(Type::integer), names(Type::text), values(Type::text);
  for (const NewRow& row : new_jobs_) {
    const NewJob& wish = std::get<Batch::Create>(row.batch->authority).job;
    numbers.add(row.number);
    ids.add(row.batch->job.text);
    agents.add(wish.agent);
    keys.add(wish.idempotency_key);
    hashes.add(wish.request_hash);
    priorities.add(wish.priority);
    needed.add(joined(wish.capabilities));
    created.add(row.batch->sealed->created_at);
    std::int64_t place = 0;
    for (const auto& [key, value] : wish.labels) {
      jobs.add(row.number);
      places.add(place++);
      names.add(key);
      values.add(value);
    }
  }
  connection.add(kPutJobs, Params()
                               .add(numbers)
                               .add(ids)
                               .add(agents)
                               .add(keys)
                               .add(hashes)
                               .add(priorities)
                               .add(needed)
                               .add(created));
  ++statements;
  if (jobs.empty()) return;
  connection.add(kPutLabels, Params().add(jobs).add(places).add(names).add(values));
  ++statements;
}

namespace {

struct HeadColumns {
  Column job{Type::integer}, last_seq{Type::integer}, updated_at{Type::integer}, head{Type::bytes},
      priority{Type::integer}, epoch{Type::integer}, not_before{Type::integer},
      wake_at{Type::integer}, lease_until{Type::integer}, ripe_at{Type::integer},
      ready{Type::boolean}, status{Type::text}, attempt{Type::text}, worker{Type::text},
      queue{Type::text}, turn{Type::text};

  Params params() const {
    Params all;
    for (const Column* column :
         {&job, &last_seq, &updated_at, &head, &priority, &epoch, &not_before, &wake_at,
          &lease_until, &ripe_at, &ready, &status, &attempt, &worker, &queue, &turn}) {
      all.add(*column);
    }
    return all;
  }
};

}  // namespace

void Transaction::send_heads(Connection& connection, std::size_t& statements) {
  HeadColumns to;
  for (const auto& [id, job] : jobs_) {
    if (!job.changed) continue;
    to.job.add(job.number);
    to.last_seq.add(job.last_seq);
    to.updated_at.add(job.updated_at);
    to.head.add(job.head);
    to.priority.add(job.priority);
    to.epoch.add(job.epoch);
    to.not_before.add(job.row.not_before);
    to.wake_at.add(job.row.wake_at);
    to.lease_until.add(job.lease_until);
    to.ripe_at.add(job.ripe_at);
    to.ready.add(job.ready);
    to.queue.add(job.queue);
    to.turn.add(job.turn);
    to.status.add(job.row.status);
    to.attempt.add(job.attempt ? std::optional<std::string>(job.attempt->text) : std::nullopt);
    to.worker.add(job.attempt ? std::optional<std::string>(job.worker) : std::nullopt);
  }
  if (to.job.empty()) return;
  connection.add(kPutHeads, to.params());
  ++statements;
}

void Transaction::send_commits(Connection& connection, std::size_t& statements) {
  if (!blobs_.empty()) {
    Column hashes(Type::bytes), bytes(Type::bytes);
    for (const auto& [hash, value] : blobs_) {
      hashes.add(hash);
      bytes.add(value);
    }
    connection.add(kPutBlobs, Params().add(hashes).add(bytes));
    ++statements;
  }
  if (commits_.empty()) return;
  Column jobs(Type::integer), firsts(Type::integer), lasts(Type::integer), blobs(Type::bytes),
      bodies(Type::bytes);
  for (const CommitRow& row : commits_) {
    jobs.add(row.job);
    firsts.add(row.sealed->first_seq);
    lasts.add(row.sealed->last_seq);
    std::string hashes;  // one after the other
    for (const Blob& blob : row.sealed->blobs) {
      hashes.append(reinterpret_cast<const char*>(blob.hash.bytes.data()), blob.hash.bytes.size());
    }
    blobs.add(hashes.empty() ? std::nullopt : std::optional<std::string>(std::move(hashes)));
    bodies.add(std::string_view(row.sealed->bytes));
  }
  connection.add(kPutCommits, Params().add(jobs).add(firsts).add(lasts).add(blobs).add(bodies));
  ++statements;
}

void Transaction::send_effects(Connection& connection, std::size_t& statements) {
  if (!effects_.empty()) {
    Column jobs(Type::integer), invocations(Type::text), tries(Type::integer), records(Type::bytes);
    for (const auto& [job, effect] : effects_) {
      jobs.add(job);
      invocations.add(effect->invocation.text);
      tries.add(std::uint64_t{effect->try_no});
      records.add(std::string_view(effect->record));
    }
    connection.add(kPutEffects, Params().add(jobs).add(invocations).add(tries).add(records));
    ++statements;
  }
  Column jobs(Type::integer), invocations(Type::text), tries(Type::integer), states(Type::text),
      records(Type::bytes);
  Column gone_jobs(Type::integer), gone_invocations(Type::text), gone_tries(Type::integer);
  for (const auto& [key, row] : ledger_) {
    const auto& [job, slot] = key;
    if (row == nullptr) {
      gone_jobs.add(job);
      gone_invocations.add(slot.first);
      gone_tries.add(std::uint64_t{slot.second});
      continue;
    }
    jobs.add(job);
    invocations.add(slot.first);
    tries.add(std::uint64_t{slot.second});
    states.add(row->state);
    records.add(std::string_view(row->record));
  }
  if (!jobs.empty()) {
    connection.add(kPutLedger,
                   Params().add(jobs).add(invocations).add(tries).add(states).add(records));
    ++statements;
  }
  if (!gone_jobs.empty()) {
    connection.add(kEraseLedger, Params().add(gone_jobs).add(gone_invocations).add(gone_tries));
    ++statements;
  }
}

void Transaction::send_inbox(Connection& connection, std::size_t& statements) {
  if (!taken_.empty()) {
    Column jobs(Type::integer), numbers(Type::integer);
    for (const auto& [job, number] : taken_) {
      jobs.add(job);
      numbers.add(number);
    }
    connection.add(kTakeInbox, Params().add(jobs).add(numbers));
    ++statements;
  }
  Column jobs(Type::integer), ids(Type::text), acts(Type::bytes);
  for (const auto& [id, job] : jobs_) {
    for (const InboxEntry& entry : job.posted) {
      jobs.add(job.number);
      ids.add(entry.id);
      acts.add(std::string_view(entry.act));
    }
  }
  if (jobs.empty()) return;
  connection.add(kPutInbox, Params().add(jobs).add(ids).add(acts));
  ++statements;
}

void Transaction::record(const AuditEntry& entry) {
  AuditRow row = chained(audit_head_, entry);
  audit_head_ = {.seq = row.seq, .hash = row.hash};
  audit_.push_back(std::move(row));
}

AuditHead Transaction::audit_head(std::string_view text) {
  AuditHead head;
  const std::string_view number = text.substr(0, text.find(' '));
  const auto read = std::from_chars(number.data(), number.data() + number.size(), head.seq);
  const auto hash =
      number.size() < text.size() ? hash_from_hex(text.substr(number.size() + 1)) : std::nullopt;
  if (read.ec != std::errc() || read.ptr != number.data() + number.size() || !hash) {
    return {.seq = 0, .hash = sha256(text)};
  }
  head.hash = *hash;
  return head;
}

void Transaction::send_audit(Connection& connection, std::size_t& statements) {
  if (audit_.empty()) return;
  Column seqs(Type::integer), bodies(Type::bytes), hashes(Type::bytes);
  for (const AuditRow& row : audit_) {
    seqs.add(row.seq);
    bodies.add(std::string_view(row.body));
    hashes.add(row.hash);
  }
  connection.add(kPutAudit, Params().add(seqs).add(bodies).add(hashes));
  connection.add(kPutAuditHead,
                 Params().add(std::to_string(audit_head_.seq) + " " + to_hex(audit_head_.hash)));
  statements += 2;
}

void Transaction::send_beside(Connection& connection, std::size_t& statements) {
  if (!signed_heads_.empty()) {
    Column jobs(Type::integer), bodies(Type::bytes);
    for (const auto& [job, body] : signed_heads_) {
      jobs.add(job);
      bodies.add(std::string_view(*body));
    }
    connection.add(kPutSignedHeads, Params().add(jobs).add(bodies));
    ++statements;
  }
  if (checkpoints_.empty()) return;
  Column jobs(Type::integer), seqs(Type::integer), bodies(Type::bytes);
  for (const auto& [job, checkpoint] : checkpoints_) {
    jobs.add(job);
    seqs.add(checkpoint.first);
    bodies.add(std::string_view(*checkpoint.second));
  }
  connection.add(kPutCheckpoints, Params().add(jobs).add(seqs).add(bodies));
  ++statements;
}

}  // namespace ae::store::postgres
