// The SQL of Tables: its statements are prepared once, when the store is opened.
//
// In order: jobs and commits, the rows beside them, claims, transactions.
#include <span>

#include "store/sqlite/tables.h"

namespace ae::store::sqlite {
namespace {

struct StatementSpec {
  Statement& statement;
  const char* sql;
};

Sql<void> prepare(Database& db, std::span<const StatementSpec> specs) {
  for (const StatementSpec& requested : specs) {
    AE_ASSIGN(requested.statement, db.prepare(requested.sql));
  }
  return {};
}

}  // namespace

Sql<Tables> Tables::open(Database& db) {
  Tables tables(db);
  AE_TRY(tables.prepare_commits());
  AE_TRY(tables.prepare_side_rows());
  AE_TRY(tables.prepare_claims());
  AE_TRY(tables.prepare_transactions());
  return tables;
}

Sql<void> Tables::prepare_commits() {
  const StatementSpec specs[] = {
      {find_job_,
       "SELECT jobs.id, agent, last_seq, commits, last_commit, epoch, attempt, worker, "
       "lease_until, status, not_before, wake_at, capabilities, queue, pending FROM jobs JOIN "
       "heads "
       "ON heads.job = jobs.id "
       "WHERE job_id = ?1"},
      {commit_pointers_, "SELECT job, first_seq, last_seq, prev, jump FROM commits WHERE id = ?1"},
      {commit_bytes_, "SELECT body FROM commits WHERE id = ?1"},
      {find_key_,
       "SELECT job_id, request_hash, last_seq FROM jobs JOIN heads ON heads.job = jobs.id "
       "WHERE agent = ?1 AND idempotency_key = ?2 AND idempotency_key <> ''"},
      {insert_job_,
       "INSERT INTO jobs(job_id, agent, idempotency_key, request_hash, priority, created_at, "
       "status, not_before, wake_at, epoch, attempt, worker, lease_until, ready, ripe_at, "
       "capabilities, queue, turn, id, pending, forked_from) "
       "VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, "
       "?19, ?20, ?21)"},
      {insert_label_, "INSERT INTO labels(job, number, key, value) VALUES(?1, ?2, ?3, ?4)"},
      {insert_head_,
       "INSERT INTO heads(job, last_seq, commits, last_commit, updated_at, head) "
       "VALUES(?1, ?2, 1, ?3, ?4, ?5)"},
      {update_head_,
       "UPDATE heads SET last_seq = ?2, commits = ?3, last_commit = ?4, updated_at = ?5, "
       "head = ?6 WHERE job = ?1"},
      {insert_commit_,
       "INSERT INTO commits(job, first_seq, last_seq, prev, jump, blobs, body) "
       "VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)"},
      {update_state_,
       "UPDATE jobs SET status = ?2, not_before = ?3, wake_at = ?4, epoch = ?5, attempt = ?6, "
       "worker = ?7, lease_until = ?8, ready = ?9, ripe_at = ?10, pending = ?11 WHERE id = ?1"},
      {insert_blob_, "INSERT INTO blobs(hash, bytes) VALUES(?1, ?2) ON CONFLICT DO NOTHING"},
  };
  return prepare(*db_, specs);
}

Sql<void> Tables::prepare_side_rows() {
  const StatementSpec specs[] = {
      {put_signed_head_,
       "INSERT INTO signed_heads(job, body) VALUES(?1, ?2) "
       "ON CONFLICT DO UPDATE SET body = excluded.body"},
      {put_summary_,
       "INSERT INTO summaries(job, error, kind, cost_micros, changed_at, body) "
       "VALUES(?1, ?2, ?3, ?4, ?5, ?6) "
       "ON CONFLICT DO UPDATE SET error = excluded.error, kind = excluded.kind, "
       "cost_micros = excluded.cost_micros, changed_at = excluded.changed_at, "
       "body = excluded.body"},
      {put_checkpoint_,
       "INSERT INTO checkpoints(job, seq, body) VALUES(?1, ?2, ?3) "
       "ON CONFLICT DO UPDATE SET seq = excluded.seq, body = excluded.body"},
      {put_effect_,
       "INSERT INTO effects(job, invocation, try, record) VALUES(?1, ?2, ?3, ?4) "
       "ON CONFLICT DO NOTHING"},
      {find_effect_, "SELECT 1 FROM effects WHERE job = ?1 AND invocation = ?2 AND try = ?3"},
      {put_ledger_,
       "INSERT INTO ledger(job, invocation, try, state, record) VALUES(?1, ?2, ?3, ?4, ?5) "
       "ON CONFLICT DO UPDATE SET state = excluded.state, record = excluded.record"},
      {erase_ledger_, "DELETE FROM ledger WHERE job = ?1 AND invocation = ?2 AND try = ?3"},
      {put_inbox_, "INSERT INTO inbox(job, id, act) VALUES(?1, ?2, ?3) ON CONFLICT DO NOTHING"},
      {delete_inbox_, "DELETE FROM inbox WHERE number = ?2 AND job = ?1"},
      {put_reply_,
       "INSERT OR REPLACE INTO inbox_replies(number, job, id, reply) "
       "SELECT number, job, id, ?3 FROM inbox WHERE number = ?2 AND job = ?1"},
      {delete_reply_, "DELETE FROM inbox_replies WHERE job = ?1 AND id = ?2"},
      {drop_old_replies_, "DELETE FROM inbox_replies WHERE number <= ?1"},
      {inbox_numbers_, "SELECT number FROM inbox WHERE job = ?1"},
  };
  return prepare(*db_, specs);
}

Sql<void> Tables::prepare_claims() {
  const StatementSpec specs[] = {
      {make_delayed_eligible_,
       "UPDATE jobs SET ready = 1 WHERE ready = 0 AND ripe_at IS NOT NULL AND attempt IS NULL "
       "AND ripe_at <= ?1"},
      {make_expired_eligible_,
       "UPDATE jobs SET ready = 1 WHERE ready = 0 AND ripe_at IS NOT NULL AND attempt IS NOT NULL "
       "AND ripe_at <= ?1"},
      {needs_after_, ClaimStatements::kNeedsAfter},
      {agent_after_, ClaimStatements::kAgentAfter},
      {queue_after_, ClaimStatements::kQueueAfter},
      {count_leased_, ClaimStatements::kCountLeased},
      {priority_below_, ClaimStatements::kPriorityBelow},
      {first_fairness_key_, ClaimStatements::kFirstFairnessKey},
      {fairness_key_after_, ClaimStatements::kFairnessKeyAfter},
      {job_after_, ClaimStatements::kJobAfter},
      {last_served_key_, "SELECT last FROM turns WHERE priority = ?1"},
      {put_served_key_,
       "INSERT INTO turns(priority, last) VALUES(?1, ?2) "
       "ON CONFLICT DO UPDATE SET last = excluded.last"},
      {update_lease_, "UPDATE jobs SET lease_until = ?2, ready = 0, ripe_at = ?2 WHERE id = ?1"},
      {end_leased_,
       "UPDATE jobs SET lease_until = 0, ready = 1, ripe_at = 0 "
       "WHERE ready = 0 AND ripe_at IS NOT NULL AND attempt IS NOT NULL"},
      {end_ready_,
       "UPDATE jobs SET lease_until = 0, ripe_at = 0 WHERE ready = 1 AND attempt IS NOT NULL"},
  };
  return prepare(*db_, specs);
}

Sql<void> Tables::prepare_transactions() {
  const StatementSpec specs[] = {
      {put_position_, "UPDATE meta SET value = ?1 WHERE key = 'position'"},
      {savepoint_, "SAVEPOINT batch"},
      {rollback_savepoint_, "ROLLBACK TO batch"},
      {release_savepoint_, "RELEASE batch"},
  };
  return prepare(*db_, specs);
}

}  // namespace ae::store::sqlite
