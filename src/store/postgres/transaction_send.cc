// Transaction: the writes, one statement per table, followed by the COMMIT.
#include <algorithm>
#include <tuple>

#include "store/lines.h"
#include "store/postgres/statements.h"
#include "store/postgres/transaction.h"

namespace ae::store::postgres {
namespace {

using Type = Column::Type;

constexpr Statement kPutJobs{
    "put_jobs",
    "INSERT INTO jobs(number, job_id, agent, idempotency_key, request_hash, priority, "
    "capabilities, created_at, forked_from) "
    "SELECT n, id, agent, key, hash, priority, string_to_array(capabilities, E'\\n'), created, "
    "origin "
    "FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::bigint[], "
    "$7::text[], $8::bigint[], $9::text[]) "
    "AS w(n, id, agent, key, hash, priority, capabilities, created, origin)"};
constexpr Statement kPutLabels{
    "put_labels",
    "INSERT INTO labels(job, number, key, value) "
    "SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[])"};
constexpr Statement kPutHeads{
    "put_heads",
    "INSERT INTO heads(job, epoch, not_before, wake_at, lease_until, ripe_at, ready, status, "
    "attempt, held_by, pending, priority, queue, turn, kind) "
    "SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], "
    "$6::bigint[], $7::boolean[], $8::text[], $9::text[], $10::text[], $11::bigint[], "
    "$12::bigint[], $13::text[], $14::text[], $15::bytea[])"};
// Of locked rows, which keep their priority, queue, turn and kind.
constexpr Statement kUpdateHeads{
    "update_heads",
    "UPDATE heads h SET epoch = w.epoch, not_before = w.not_before, wake_at = w.wake_at, "
    "lease_until = w.lease_until, ripe_at = w.ripe_at, ready = w.ready, status = w.status, "
    "attempt = w.attempt, held_by = w.held_by, pending = w.pending "
    "FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], "
    "$6::bigint[], $7::boolean[], $8::text[], $9::text[], $10::text[], $11::bigint[]) "
    "AS w(job, epoch, not_before, wake_at, lease_until, ripe_at, ready, status, attempt, held_by, "
    "pending) WHERE h.job = w.job"};
constexpr Statement kPutLogEnds{
    "put_log_ends",
    "INSERT INTO log_ends(job, attempt, last_seq, updated_at, head) "
    "SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bytea[])"};
constexpr Statement kUpdateLogEnds{
    "update_log_ends",
    "UPDATE log_ends e SET attempt = w.attempt, last_seq = w.last_seq, updated_at = w.updated_at, "
    "head = w.head FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], "
    "$5::bytea[]) AS w(job, attempt, last_seq, updated_at, head) WHERE e.job = w.job"};
constexpr Statement kPutCommits{
    "put_commits",
    "INSERT INTO commits(job, first_seq, last_seq, blobs, body) "
    "SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bytea[])"};
// Ordered by hash, so that transactions with the same blobs wait for each other in one direction
// (no deadlock).
constexpr Statement kPutBlobs{
    "put_blobs",
    "INSERT INTO blobs(hash, bytes) "
    "SELECT * FROM unnest($1::bytea[], $2::bytea[]) ON CONFLICT DO NOTHING"};
// Which job references which blob.
constexpr Statement kPutValueUses{
    "put_value_uses",
    "INSERT INTO value_uses(job, hash) SELECT * FROM unnest($1::bigint[], $2::bytea[]) "
    "ON CONFLICT DO NOTHING"};
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
constexpr Statement kDeleteInbox{"delete_inbox",
                                 "DELETE FROM inbox i USING unnest($1::bigint[], $2::bigint[]) "
                                 "AS w(job, number) WHERE i.job = w.job AND i.number = w.number"};
// Of entries that are still there: sent before kDeleteInbox.
constexpr Statement kPutReplies{
    "put_replies",
    "INSERT INTO inbox_replies(number, job, id, reply) "
    "SELECT i.number, i.job, i.id, w.reply "
    "FROM unnest($1::bigint[], $2::bigint[], $3::bytea[]) AS w(job, number, reply) "
    "JOIN inbox i ON i.job = w.job AND i.number = w.number "
    "ON CONFLICT (job, id) DO UPDATE SET number = excluded.number, reply = excluded.reply"};
constexpr Statement kDropOldReplies{"drop_old_replies",
                                    "DELETE FROM inbox_replies WHERE number <= $1::bigint"};
constexpr Statement kDeleteReplies{
    "delete_replies",
    "DELETE FROM inbox_replies r USING unnest($1::bigint[], $2::text[]) AS w(job, id) "
    "WHERE r.job = w.job AND r.id = w.id"};
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
constexpr Statement kPutNewSummaries{
    "put_new_summaries",
    "INSERT INTO summaries(job, error, kind, cost_micros, changed_at, body) "
    "SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], "
    "$6::bytea[])"};
constexpr Statement kPutSummaries{
    "put_summaries",
    "INSERT INTO summaries(job, error, kind, cost_micros, changed_at, body) "
    "SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], "
    "$6::bytea[]) "
    "ON CONFLICT (job) DO UPDATE SET error = excluded.error, kind = excluded.kind, "
    "cost_micros = excluded.cost_micros, changed_at = excluded.changed_at, "
    "body = excluded.body"};
constexpr Statement kPutCheckpoints{
    "put_checkpoints",
    "INSERT INTO checkpoints(job, seq, body) "
    "SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[]) "
    "ON CONFLICT (job) DO UPDATE SET seq = excluded.seq, body = excluded.body"};

}  // namespace

std::string kind_of(const std::string& agent, const std::vector<std::string>& capabilities) {
  const Hash hash = sha256(agent + '\0' + join_lines(capabilities));
  return {reinterpret_cast<const char*>(hash.bytes.data()), 16};
}

std::size_t Transaction::send(Connection& connection) {
  std::size_t statements = 0;
  send_new_jobs(connection, statements);
  send_heads(connection, statements);
  send_log_ends(connection, statements);
  send_commits(connection, statements);
  send_effects(connection, statements);
  send_inbox(connection, statements);
  send_audit(connection, statements);
  send_side_records(connection, statements);
  connection.add(kCommit);
  return statements;
}

void Transaction::send_new_jobs(Connection& connection, std::size_t& statements) {
  if (new_jobs_.empty()) return;
  // Sorted, so that transactions with the same keys wait for each other in one direction (no
  // deadlock).
  std::ranges::sort(new_jobs_, {}, [](const NewRow& row) {
    const NewJob& new_job = *std::get<Batch::Create>(row.batch->authority).job;
    return std::tie(new_job.agent, new_job.idempotency_key, row.number);
  });
  Column numbers(Type::integer), ids(Type::text), agents(Type::text), keys(Type::text),
      hashes(Type::bytes), priorities(Type::integer), needed(Type::text), created(Type::integer),
      origins(Type::text);
  Column jobs(Type::integer), places(Type::integer), names(Type::text), values(Type::text);
  for (const NewRow& row : new_jobs_) {
    const NewJob& new_job = *std::get<Batch::Create>(row.batch->authority).job;
    numbers.add(row.number);
    ids.add(row.batch->job.text);
    agents.add(new_job.agent);
    keys.add(new_job.idempotency_key);
    hashes.add(new_job.request_hash);
    priorities.add(new_job.priority);
    needed.add(join_lines(new_job.capabilities));
    created.add(row.batch->sealed->created_at);
    origins.add(new_job.forked_from);
    std::int64_t location = 0;
    for (const auto& [key, value] : new_job.labels) {
      jobs.add(row.number);
      places.add(location++);
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
                               .add(created)
                               .add(origins));
  ++statements;
  if (jobs.empty()) return;
  connection.add(kPutLabels, Params().add(jobs).add(places).add(names).add(values));
  ++statements;
}

namespace {

struct HeadColumns {
  Column job{Type::integer}, epoch{Type::integer}, not_before{Type::integer},
      wake_at{Type::integer}, lease_until{Type::integer}, ripe_at{Type::integer},
      ready{Type::boolean}, status{Type::text}, attempt{Type::text}, held_by{Type::text},
      pending{Type::integer};

  Params params() const {
    Params all;
    for (const Column* column : {&job, &epoch, &not_before, &wake_at, &lease_until, &ripe_at,
                                 &ready, &status, &attempt, &held_by, &pending}) {
      all.add(*column);
    }
    return all;
  }
};

}  // namespace

void Transaction::send_heads(Connection& connection, std::size_t& statements) {
  HeadColumns created, updated;
  Column priorities(Type::integer), queues(Type::text), fairness_keys(Type::text),
      kinds(Type::bytes);
  for (const auto& [id, job] : jobs_) {
    if (!job.head_changed && !job.is_new) continue;
    HeadColumns& to = job.is_new ? created : updated;
    to.job.add(job.number);
    to.epoch.add(job.epoch);
    to.not_before.add(job.row.not_before);
    to.wake_at.add(job.row.wake_at);
    to.pending.add(std::uint64_t{job.row.pending});
    to.lease_until.add(job.lease_until);
    to.ripe_at.add(job.ripe_at);
    to.ready.add(job.ready);
    to.status.add(job.row.status);
    to.attempt.add(job.attempt ? std::optional<std::string>(job.attempt->text) : std::nullopt);
    to.held_by.add(job.attempt ? std::optional<std::string>(job.worker) : std::nullopt);
    if (!job.is_new) continue;
    priorities.add(job.priority);
    queues.add(job.queue);
    fairness_keys.add(job.fairness_key);
    kinds.add(kind_of(job.agent, job.capabilities));
  }
  if (!created.job.empty()) {
    connection.add(kPutHeads,
                   created.params().add(priorities).add(queues).add(fairness_keys).add(kinds));
    ++statements;
  }
  if (!updated.job.empty()) {
    connection.add(kUpdateHeads, updated.params());
    ++statements;
  }
}

void Transaction::send_log_ends(Connection& connection, std::size_t& statements) {
  struct Columns {
    Column job{Type::integer}, attempt{Type::text}, last_seq{Type::integer},
        updated_at{Type::integer}, head{Type::bytes};
  };
  Columns created, updated;
  for (const auto& [id, job] : jobs_) {
    if (!job.end_changed) continue;
    Columns& to = job.is_new ? created : updated;
    to.job.add(job.number);
    to.attempt.add(job.attempt ? std::optional<std::string>(job.attempt->text) : std::nullopt);
    to.last_seq.add(job.last_seq);
    to.updated_at.add(job.updated_at);
    to.head.add(job.head);
  }
  for (const auto& [statement, columns] :
       {std::pair(&kPutLogEnds, &created), std::pair(&kUpdateLogEnds, &updated)}) {
    if (columns->job.empty()) continue;
    connection.add(*statement, Params()
                                   .add(columns->job)
                                   .add(columns->attempt)
                                   .add(columns->last_seq)
                                   .add(columns->updated_at)
                                   .add(columns->head));
    ++statements;
  }
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
  Column users(Type::integer), used(Type::bytes);
  for (const CommitRow& row : commits_) {
    jobs.add(row.job);
    firsts.add(row.sealed->first_seq);
    lasts.add(row.sealed->last_seq);
    std::string hashes;  // concatenated
    for (const Blob& blob : row.sealed->blobs) {
      hashes.append(reinterpret_cast<const char*>(blob.hash.bytes.data()), blob.hash.bytes.size());
      users.add(row.job);
      used.add(blob.hash);
    }
    blobs.add(hashes.empty() ? std::nullopt : std::optional<std::string>(std::move(hashes)));
    bodies.add(std::string_view(row.sealed->bytes));
  }
  connection.add(kPutCommits, Params().add(jobs).add(firsts).add(lasts).add(blobs).add(bodies));
  ++statements;
  if (users.empty()) return;
  connection.add(kPutValueUses, Params().add(users).add(used));
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
  Column erased_jobs(Type::integer), erased_invocations(Type::text), erased_tries(Type::integer);
  for (const auto& [key, row] : ledger_) {
    const auto& [job, slot] = key;
    if (row == nullptr) {
      erased_jobs.add(job);
      erased_invocations.add(slot.first);
      erased_tries.add(std::uint64_t{slot.second});
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
  if (!erased_jobs.empty()) {
    connection.add(kEraseLedger,
                   Params().add(erased_jobs).add(erased_invocations).add(erased_tries));
    ++statements;
  }
}

void Transaction::send_inbox(Connection& connection, std::size_t& statements) {
  if (!inbox_replies_.empty()) {
    Column jobs(Type::integer), numbers(Type::integer), replies(Type::bytes);
    std::uint64_t newest = 0;
    for (const auto& [job, one] : inbox_replies_) {
      jobs.add(job);
      numbers.add(one->number);
      replies.add(std::string_view(one->reply));
      newest = std::max(newest, one->number);
    }
    connection.add(kPutReplies, Params().add(jobs).add(numbers).add(replies));
    ++statements;
    if (newest > kInboxRepliesMax) {
      connection.add(kDropOldReplies, Params().add(newest - kInboxRepliesMax));
      ++statements;
    }
  }
  if (!newly_served_.empty()) {
    Column jobs(Type::integer), numbers(Type::integer);
    for (const auto& [job, number] : newly_served_) {
      jobs.add(job);
      numbers.add(number);
    }
    connection.add(kDeleteInbox, Params().add(jobs).add(numbers));
    ++statements;
  }
  Column jobs(Type::integer), ids(Type::text), requests(Type::bytes);
  for (const auto& [id, job] : jobs_) {
    for (const InboxEntry& entry : job.new_inbox_entries) {
      jobs.add(job.number);
      ids.add(entry.id);
      requests.add(std::string_view(entry.request));
    }
  }
  if (jobs.empty()) return;
  connection.add(kPutInbox, Params().add(jobs).add(ids).add(requests));
  connection.add(kDeleteReplies, Params().add(jobs).add(ids));
  statements += 2;
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
  connection.add(kPutAuditHead, Params().add(to_text(audit_head_)));
  statements += 2;
}

void Transaction::send_side_records(Connection& connection, std::size_t& statements) {
  if (!signed_heads_.empty()) {
    Column jobs(Type::integer), bodies(Type::bytes);
    for (const auto& [job, body] : signed_heads_) {
      jobs.add(job);
      bodies.add(std::string_view(*body));
    }
    connection.add(kPutSignedHeads, Params().add(jobs).add(bodies));
    ++statements;
  }
  for (const auto& [statement, summaries] :
       {std::pair(&kPutNewSummaries, &new_summaries_), std::pair(&kPutSummaries, &summaries_)}) {
    if (summaries->empty()) continue;
    Column jobs(Type::integer), errors(Type::text), kinds(Type::text), costs(Type::integer),
        times(Type::integer), bodies(Type::bytes);
    for (const auto& [job, summary] : *summaries) {
      jobs.add(job);
      errors.add(summary->error);
      kinds.add(summary->kind);
      costs.add(summary->cost_micros);
      times.add(summary->changed_at);
      bodies.add(std::string_view(summary->body));
    }
    connection.add(*statement,
                   Params().add(jobs).add(errors).add(kinds).add(costs).add(times).add(bodies));
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
