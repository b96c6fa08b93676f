// Tables::redact: replaces commits and effects of a job by ones without the redacted values.
//
// It first compares everything with what is stored. A blob is deleted if no commit of any job
// references it; that reads the blob lists of the whole store.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "store/rules.h"
#include "store/sqlite/tables.h"

namespace ae::store::sqlite {
namespace {

std::vector<Hash> hashes_in(std::string_view list) {
  std::vector<Hash> hashes;
  for (std::size_t at = 0; at + sizeof(Hash) <= list.size(); at += sizeof(Hash)) {
    std::memcpy(hashes.emplace_back().bytes.data(), list.data() + at, sizeof(Hash));
  }
  return hashes;
}

}  // namespace

// The answer of a redaction that writes nothing, if this is one. Sets the rows of its commits.
Sql<std::optional<Result<void>>> Tables::answer_redact(const Redaction& redaction, const Job& job,
                                                       std::vector<std::int64_t>& commits) {
  if (job.attempt) return Result<void>(std::unexpected(job_still_leased(redaction.job)));
  bool changes = false;
  for (const Redaction::Commit& requested : redaction.commits) {
    auto commit_row = commit_at(job, requested.first_seq);
    if (!commit_row && commit_row.error().corrupt())
      return Result<void>(std::unexpected(commit_missing(redaction.job)));
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
  if (!found && found.error().corrupt())
    return Result<void>(std::unexpected(commit_missing(redaction.job)));
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

}  // namespace ae::store::sqlite
