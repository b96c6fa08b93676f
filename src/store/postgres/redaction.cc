#include "store/postgres/redaction.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "store/postgres/drop_blobs.h"
#include "store/postgres/statements.h"
#include "store/postgres/transaction.h"
#include "store/rules.h"

namespace ae::store::postgres {
namespace {

using Type = Column::Type;

constexpr Statement kLockForRedaction{
    "lock_for_redaction",
    "SELECT job, attempt IS NOT NULL FROM heads WHERE job = "
    "(SELECT number FROM jobs WHERE job_id = $1::text) FOR UPDATE"};
constexpr Statement kReadCommitsToRedact{"read_commits_to_redact",
                                         "SELECT first_seq, body, blobs FROM commits WHERE job = "
                                         "(SELECT number FROM jobs WHERE job_id = $1::text) "
                                         "AND first_seq = ANY($2::bigint[])"};
constexpr Statement kReplaceCommits{
    "replace_commits",
    "UPDATE commits SET body = w.body, blobs = w.blobs "
    "FROM unnest($2::bigint[], $3::bytea[], $4::bytea[]) AS w(first_seq, body, blobs) "
    "WHERE commits.job = $1::bigint AND commits.first_seq = w.first_seq"};
// Removes the references to hashes that none of its commits contain any more.
constexpr Statement kRedactValueUses{
    "redact_value_uses",
    "DELETE FROM value_uses WHERE job = $1::bigint AND hash = ANY($2::bytea[]) AND "
    "(SELECT true FROM commits WHERE commits.job = value_uses.job AND commits.blobs IS NOT NULL "
    "AND position(value_uses.hash IN commits.blobs) > 0 LIMIT 1) IS NULL"};
// `value_uses` gives the jobs that may reference a blob. It can contain obsolete references, so the
// commits of these jobs are checked too.
#define NAMED_BY_NONE(value)                                                             \
  "(SELECT true FROM value_uses u JOIN commits c ON c.job = u.job WHERE u.hash = " value \
  " AND c.blobs IS NOT NULL AND position(u.hash IN c.blobs) > 0 LIMIT 1) IS NULL"
constexpr Statement kFindUnusedAfterRedaction{
    "find_unused_after_redaction",
    "SELECT hash FROM unnest($1::bytea[]) AS w(hash) WHERE " NAMED_BY_NONE("w.hash")};
constexpr Statement kRedactBlobs{
    "redact_blobs",
    "DELETE FROM blobs WHERE hash = ANY($1::bytea[]) AND " NAMED_BY_NONE("blobs.hash")};
#undef NAMED_BY_NONE
constexpr Statement kReadEffectsToRedact{"read_effects_to_redact",
                                         "SELECT invocation, try, record FROM effects WHERE job = "
                                         "(SELECT number FROM jobs WHERE job_id = $1::text)"};
constexpr Statement kReplaceEffects{
    "replace_effects",
    "UPDATE effects SET record = w.record "
    "FROM unnest($2::text[], $3::bigint[], $4::bytea[]) AS w(invocation, try, record) "
    "WHERE effects.job = $1::bigint AND effects.invocation = w.invocation AND effects.try = w.try "
    "AND effects.record <> w.record"};
constexpr Statement kRedactCheckpoint{"redact_checkpoint",
                                      "DELETE FROM checkpoints WHERE job = $1::bigint"};
constexpr Statement kRedactReplies{"redact_replies",
                                   "DELETE FROM inbox_replies WHERE job = $1::bigint"};
// One statement reads one snapshot: the head and the entries that lead to it.
constexpr Statement kReadAudit{"read_audit",
                               "SELECT audit.seq, body, hash, value FROM meta "
                               "LEFT JOIN audit ON audit.seq > $1::bigint "
                               "WHERE key = 'audit_head' ORDER BY audit.seq"};

std::string concatenated(const std::vector<Hash>& hashes) {
  std::string bytes;
  for (const Hash& hash : hashes) {
    bytes.append(reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size());
  }
  return bytes;
}

struct Stored {
  std::string body, blobs;
};

struct Answer {
  std::optional<Result<void>> result;         // nothing is to be written
  std::set<std::string> unreferenced_hashes;  // hashes that its commits no longer reference
};

// Do the stored effects differ from the requested ones? Fails with sequence_conflict if an effect
// is missing in the request.
Result<bool> effects_differ(const Redaction& redaction, const Rows& effects) {
  bool any_differs = false;
  for (int i = 0; i < effects.size(); ++i) {
    const auto requested = std::ranges::find_if(redaction.effects, [&](const EffectRow& effect) {
      return effect.invocation.text == effects.bytes(i, 0) && effect.try_no == effects.count(i, 1);
    });
    if (requested == redaction.effects.end())
      return std::unexpected(effects_changed(redaction.job));
    any_differs = any_differs || requested->record != effects.bytes(i, 2);
  }
  return any_differs;
}

Answer answer(const Redaction& redaction, const Rows& head,
              const std::map<std::uint64_t, Stored>& commits, const Rows& effects) {
  Answer answer;
  if (head.empty()) {
    answer.result = std::unexpected(job_not_found(redaction.job));
    return answer;
  }
  if (head.boolean(0, 1)) {
    answer.result = std::unexpected(job_still_leased(redaction.job));
    return answer;
  }
  bool changes = false;
  for (const Redaction::Commit& requested : redaction.commits) {
    const auto found = commits.find(requested.first_seq);
    const bool same = found != commits.end() && found->second.body == requested.bytes;
    if (found == commits.end() ||
        (!same && sha256(found->second.body) != requested.expected_hash)) {
      answer.result = std::unexpected(commit_changed(redaction.job, requested.first_seq));
      return answer;
    }
    changes = changes || !same;
    const std::string& blobs = found->second.blobs;
    for (std::size_t at = 0; at + sizeof(Hash) <= blobs.size(); at += sizeof(Hash)) {
      answer.unreferenced_hashes.insert(blobs.substr(at, sizeof(Hash)));
    }
  }
  for (const Redaction::Commit& requested : redaction.commits) {
    for (const Hash& hash : requested.blobs) answer.unreferenced_hashes.erase(concatenated({hash}));
  }
  if (const auto other = effects_differ(redaction, effects); !other) {
    answer.result = std::unexpected(other.error());
  } else if (!changes && !*other) {
    answer.result = Result<void>();
  }
  return answer;
}

void add_writes(Connection& connection, const Redaction& redaction, std::int64_t job) {
  Column firsts(Type::integer), bodies(Type::bytes), lists(Type::bytes);
  for (const Redaction::Commit& requested : redaction.commits) {
    firsts.add(requested.first_seq);
    bodies.add(std::string_view(requested.bytes));
    lists.add(requested.blobs.empty() ? std::nullopt
                                      : std::optional<std::string>(concatenated(requested.blobs)));
  }
  connection.add(kReplaceCommits, Params().add(job).add(firsts).add(bodies).add(lists));
  if (!redaction.effects.empty()) {
    Column invocations(Type::text), tries(Type::integer), records(Type::bytes);
    for (const EffectRow& effect : redaction.effects) {
      invocations.add(effect.invocation.text);
      tries.add(std::uint64_t{effect.try_no});
      records.add(std::string_view(effect.record));
    }
    connection.add(kReplaceEffects, Params().add(job).add(invocations).add(tries).add(records));
  }
  connection.add(kRedactCheckpoint, Params().add(job));
  connection.add(kRedactReplies, Params().add(job));
}

// Deletes the blobs that its commits no longer reference, unless another job references them.
Pg<void> redact_blobs(Connection& connection, std::int64_t job,
                      const std::set<std::string>& unreferenced_hashes) {
  if (unreferenced_hashes.empty()) return {};
  const Column hashes = column_of(Type::bytes, unreferenced_hashes);
  connection.add(kRedactValueUses, Params().add(job).add(hashes));
  return drop_unused_blobs(connection, hashes, kFindUnusedAfterRedaction, kRedactBlobs);
}

}  // namespace

std::vector<Statement> redaction_statements() {
  return {kRedactValueUses, kFindUnusedAfterRedaction, kRedactBlobs};
}

Pg<Result<void>> redact(Connection& connection, const Redaction& redaction) {
  Column firsts(Type::integer);
  for (const Redaction::Commit& requested : redaction.commits) firsts.add(requested.first_seq);
  connection.add(kBegin);
  connection.add(kLockForRedaction, Params().add(redaction.job.text));
  connection.add(kReadCommitsToRedact, Params().add(redaction.job.text).add(firsts));
  connection.add(kReadEffectsToRedact, Params().add(redaction.job.text));
  AE_ASSIGN(const auto answers, connection.run());
  std::map<std::uint64_t, Stored> commits;
  for (int i = 0; i < answers[2].size(); ++i) {
    commits[answers[2].count(i, 0)] = {answers[2].text(i, 1), answers[2].text(i, 2)};
  }
  Answer decided = answer(redaction, answers[1], commits, answers[3]);
  if (decided.result) {
    connection.add(kCommit);
    AE_TRY(connection.run());
    return *std::move(decided.result);
  }
  const std::int64_t job = answers[1].integer(0, 0);
  add_writes(connection, redaction, job);
  AE_TRY(connection.run());
  AE_TRY(redact_blobs(connection, job, decided.unreferenced_hashes));
  Transaction audit;  // continues this transaction
  audit.declare_audit_read();
  AE_TRY(audit.read(connection));
  audit.append_audit_entry(redaction.audit);
  audit.send(connection);
  AE_TRY(connection.run());
  return Result<void>();
}

Pg<AuditLog> read_audit_log(Connection& connection, std::uint64_t after) {
  connection.add(kReadAudit, Params().add(after));
  AE_ASSIGN(const auto answers, connection.run());
  const Rows& rows = answers.at(0);
  AuditLog log{.head = audit_head_from_text(rows.bytes(0, 3))};
  for (int i = 0; i < rows.size(); ++i) {
    if (!rows.is_null(i, 0)) {
      log.rows.push_back({rows.count(i, 0), rows.text(i, 1), rows.hash(i, 2)});
    }
  }
  return log;
}

}  // namespace ae::store::postgres
