#include "store/postgres/prune.h"

#include <map>
#include <string>
#include <vector>

#include "store/postgres/drop_blobs.h"
#include "store/postgres/statements.h"
#include "store/postgres/transaction.h"
#include "store/rules.h"

namespace ae::store::postgres {
namespace {

using Type = Column::Type;

// In the order of their numbers, like every writer.
constexpr Statement kLockForPrune{
    "lock_for_prune",
    "WITH wanted AS MATERIALIZED (SELECT number, job_id FROM jobs WHERE job_id = ANY($1::text[]) "
    "ORDER BY number + 0) "
    "SELECT j.job_id, j.number, h.status, h.attempt IS NOT NULL, e.last_seq, e.head FROM wanted j "
    "CROSS JOIN LATERAL (SELECT * FROM heads WHERE job = j.number FOR UPDATE) h "
    "CROSS JOIN LATERAL (SELECT * FROM log_ends WHERE job = h.job FOR UPDATE) e"};
constexpr Statement kReadCommitHashes{
    "read_commit_hashes",
    "SELECT job, sha256(body) FROM commits WHERE job = ANY($1::bigint[]) "
    "ORDER BY job, first_seq"};
constexpr Statement kReadSignedHeads{
    "read_signed_heads", "SELECT job, body FROM signed_heads WHERE job = ANY($1::bigint[])"};
constexpr Statement kPruneRows[] = {
    {"prune_labels", "DELETE FROM labels WHERE job = ANY($1::bigint[])"},
    {"prune_effects", "DELETE FROM effects WHERE job = ANY($1::bigint[])"},
    {"prune_ledger", "DELETE FROM ledger WHERE job = ANY($1::bigint[])"},
    {"prune_inbox", "DELETE FROM inbox WHERE job = ANY($1::bigint[])"},
    {"prune_replies", "DELETE FROM inbox_replies WHERE job = ANY($1::bigint[])"},
    {"prune_heads_signed", "DELETE FROM signed_heads WHERE job = ANY($1::bigint[])"},
    {"prune_checkpoints", "DELETE FROM checkpoints WHERE job = ANY($1::bigint[])"},
    {"prune_summaries", "DELETE FROM summaries WHERE job = ANY($1::bigint[])"},
    {"prune_log", "DELETE FROM commits WHERE job = ANY($1::bigint[])"},
    {"prune_log_ends", "DELETE FROM log_ends WHERE job = ANY($1::bigint[])"},
    {"prune_heads", "DELETE FROM heads WHERE job = ANY($1::bigint[])"},
    {"prune_jobs", "DELETE FROM jobs WHERE number = ANY($1::bigint[])"}};
constexpr Statement kPruneValueUses{
    "prune_value_uses", "DELETE FROM value_uses WHERE job = ANY($1::bigint[]) RETURNING hash"};
constexpr Statement kFindUnusedAfterPrune{
    "find_unused_after_prune",
    "SELECT hash FROM unnest($1::bytea[]) AS w(hash) WHERE "
    "(SELECT true FROM value_uses WHERE value_uses.hash = w.hash LIMIT 1) IS NULL"};
constexpr Statement kPruneBlobs{
    "prune_blobs",
    "DELETE FROM blobs WHERE hash = ANY($1::bytea[]) AND "
    "(SELECT true FROM value_uses WHERE value_uses.hash = blobs.hash LIMIT 1) IS NULL"};

struct Found {
  std::map<std::string, PruneCandidate> jobs;
  std::vector<std::int64_t> numbers;
};

// Locks the jobs and reads their state.
Pg<Found> find_and_lock(Connection& connection, const Pruning& pruning) {
  Column ids(Type::text);
  bool content_hash = false;
  for (const Pruning::Job& requested : pruning.jobs) {
    ids.add(requested.job.text);
    content_hash |= requested.content_hash.has_value();
  }
  connection.add(kBegin);
  connection.add(kLockForPrune, Params().add(ids));
  AE_ASSIGN(const auto locked, connection.run());
  Found found;
  std::map<std::int64_t, std::string> names;
  const Rows& rows = locked[1];
  for (int i = 0; i < rows.size(); ++i) {
    found.jobs[rows.text(i, 0)] = {.status = rows.text(i, 2),
                                   .held = rows.boolean(i, 3),
                                   .last_seq = rows.count(i, 4),
                                   .head = rows.hash(i, 5),
                                   .content_hash = {}};
    found.numbers.push_back(rows.integer(i, 1));
    names[rows.integer(i, 1)] = rows.text(i, 0);
  }
  if (!content_hash || found.numbers.empty()) return found;
  const Params numbers = Params().add(column_of(Type::integer, found.numbers));
  connection.add(kReadCommitHashes, numbers);
  connection.add(kReadSignedHeads, numbers);
  AE_ASSIGN(const auto read, connection.run());
  std::map<std::int64_t, std::vector<Hash>> commits;
  std::map<std::int64_t, std::string> signed_heads;
  for (int i = 0; i < read[0].size(); ++i) {
    commits[read[0].integer(i, 0)].push_back(read[0].hash(i, 1));
  }
  for (int i = 0; i < read[1].size(); ++i) signed_heads[read[1].integer(i, 0)] = read[1].text(i, 1);
  for (const auto& [number, name] : names) {
    const auto head = signed_heads.find(number);
    found.jobs[name].content_hash = content_hash_of(
        commits[number], head == signed_heads.end() ? std::nullopt : std::optional(head->second));
  }
  return found;
}

Pg<void> prune_blobs(Connection& connection, const Rows& uses) {
  if (uses.empty()) return {};
  Column hashes(Type::bytes);
  for (int i = 0; i < uses.size(); ++i) hashes.add(uses.hash(i, 0));
  return drop_unused_blobs(connection, hashes, kFindUnusedAfterPrune, kPruneBlobs);
}

}  // namespace

Pg<Result<bool>> prune(Connection& connection, const Pruning& pruning, AuditHead& at) {
  AE_ASSIGN(const Found found, find_and_lock(connection, pruning));
  for (const Pruning::Job& requested : pruning.jobs) {
    const auto it = found.jobs.find(requested.job.text);
    const auto candidate = it == found.jobs.end() ? std::nullopt : std::optional(it->second);
    if (auto check = check_prunable(requested, candidate); !check) {
      connection.add(kCommit);
      AE_TRY(connection.run());
      return Result<bool>(std::unexpected(std::move(check).error()));
    }
  }
  const Params numbers = Params().add(column_of(Type::integer, found.numbers));
  for (const Statement& statement : kPruneRows) connection.add(statement, numbers);
  connection.add(kPruneValueUses, numbers);
  AE_ASSIGN(const auto dropped, connection.run());
  AE_TRY(prune_blobs(connection, dropped.back()));
  Transaction audit;  // continues this transaction
  audit.declare_audit_read();
  AE_TRY(audit.read(connection));
  audit.append_audit_entry(pruning.audit);
  at = audit.audit_log_end();
  audit.send(connection);
  AE_TRY(connection.run());
  return Result<bool>(true);
}

}  // namespace ae::store::postgres
