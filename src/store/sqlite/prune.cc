// Tables::prune: deletes ended jobs with all their data.
//
// A job's rows are found by its number, its commits by the pointers between them, and other
// references to its blobs by `value_uses`: no data of other jobs is read. That table is filled
// here, not by commits: commits are append-only, so each is indexed once, before the first deletion
// after it.
#include <algorithm>
#include <cstring>

#include "store/sqlite/tables.h"

namespace ae::store::sqlite {
namespace {

// Limits of one transaction.
constexpr std::uint64_t kCommitsListed = 4096;
constexpr std::size_t kValuesListed = 16384;

// Rows with the job's number; commits and blobs are deleted separately.
constexpr const char* kRowsOfJobs[] = {"DELETE FROM labels WHERE job = ?1",
                                       "DELETE FROM effects WHERE job = ?1",
                                       "DELETE FROM ledger WHERE job = ?1",
                                       "DELETE FROM inbox WHERE job = ?1",
                                       "DELETE FROM inbox_replies WHERE job = ?1",
                                       "DELETE FROM signed_heads WHERE job = ?1",
                                       "DELETE FROM checkpoints WHERE job = ?1",
                                       "DELETE FROM value_uses WHERE job = ?1",
                                       "DELETE FROM summaries WHERE job = ?1",
                                       "DELETE FROM heads WHERE job = ?1",
                                       "DELETE FROM jobs WHERE id = ?1"};

constexpr const char* kPutMeta =
    "INSERT INTO meta VALUES(?1, ?2) ON CONFLICT DO UPDATE SET value = excluded.value";

Sql<std::int64_t> meta_number(Database& db, const char* key) {
  AE_ASSIGN(Statement meta, db.prepare("SELECT value FROM meta WHERE key = ?1"));
  Rows row(meta, std::string_view(key));
  AE_ASSIGN(const bool found, row.next());
  return found ? row->integer(0) : 0;
}

Sql<void> put_meta(Database& db, const char* key, std::int64_t number) {
  AE_ASSIGN(Statement put, db.prepare(kPutMeta));
  return put.run(std::string_view(key), number);
}

}  // namespace

// Adds the blob references of the commits since the last call to `value_uses`. False: there are
// more.
Sql<bool> Tables::index_values() {
  AE_ASSIGN(std::int64_t listed, meta_number(*db_, "values_listed"));
  AE_ASSIGN(Statement since, db_->prepare("SELECT id, job, blobs FROM commits WHERE id > ?1 "
                                          "ORDER BY id LIMIT ?2"));
  struct Use {
    std::int64_t job = 0;
    Hash hash;
  };
  std::vector<Use> uses;
  std::uint64_t scanned = 0;
  bool all = true;
  for (Rows row(since, listed, kCommitsListed);;) {
    AE_ASSIGN(const bool more, row.next());
    if (!more) break;
    if (uses.size() >= kValuesListed) {
      all = false;
      break;
    }
    ++scanned;
    listed = row->integer(0);
    const std::string_view list = row->bytes(2);
    for (std::size_t at = 0; at + sizeof(Hash) <= list.size(); at += sizeof(Hash)) {
      Use& use = uses.emplace_back(Use{.job = row->integer(1), .hash = {}});
      std::memcpy(use.hash.bytes.data(), list.data() + at, sizeof(Hash));
    }
  }
  if (scanned == 0) return true;
  AE_ASSIGN(
      Statement put,
      db_->prepare("INSERT INTO value_uses(job, hash) VALUES(?1, ?2) ON CONFLICT DO NOTHING"));
  for (const Use& use : uses) AE_TRY(put.run(use.job, use.hash));
  AE_TRY(put_meta(*db_, "values_listed", listed));
  return all && scanned < kCommitsListed;
}

// The state of a job to delete, and the rows of its commits.
Sql<std::optional<PruneCandidate>> Tables::read_prune_candidate(const Pruning::Job& requested,
                                                                PruneTarget& target) {
  AE_ASSIGN(Statement find,
            db_->prepare("SELECT jobs.id, status, attempt, last_seq, head, last_commit, "
                         "heads.commits FROM jobs "
                         "JOIN heads ON heads.job = jobs.id WHERE job_id = ?1"));
  PruneCandidate found;
  std::int64_t commit = 0;
  std::uint64_t commits = 0;
  {
    Rows row(find, requested.job.text);
    AE_ASSIGN(const bool found_row, row.next());
    if (!found_row) return std::nullopt;
    target.id = row->integer(0);
    found.status = row->text(1);
    found.held = !row->is_null(2);
    found.last_seq = row->count(3);
    found.head = row->hash(4);
    commit = row->integer(5);
    commits = row->count(6);
  }
  AE_ASSIGN(Statement read, db_->prepare(requested.content_hash
                                             ? "SELECT job, prev, body FROM commits WHERE id = ?1"
                                             : "SELECT job, prev FROM commits WHERE id = ?1"));
  std::vector<Hash> bodies;
  while (commit > 0) {
    Rows row(read, commit);
    AE_ASSIGN(const bool found_row, row.next());
    if (!found_row || row->integer(0) != target.id) break;
    target.commits.push_back(commit);
    if (requested.content_hash) bodies.push_back(sha256(row->bytes(2)));
    if (row->integer(1) >= commit) break;  // a pointer must lead backwards
    commit = row->integer(1);
  }
  // A commit is missing, or the pointers skip one: delete_job searches all commits.
  if (target.commits.size() != commits) target.commits.clear();
  if (!requested.content_hash) return found;
  std::ranges::reverse(bodies);
  AE_ASSIGN(Statement signed_head, db_->prepare("SELECT body FROM signed_heads WHERE job = ?1"));
  Rows row(signed_head, target.id);
  AE_ASSIGN(const bool is_signed, row.next());
  found.content_hash =
      content_hash_of(bodies, is_signed ? std::optional(row->text(0)) : std::nullopt);
  return found;
}

// Adds the job's blobs to `named`.
Sql<void> Tables::delete_job(const PruneTarget& target, std::unordered_set<Hash>& named) {
  AE_ASSIGN(Statement values, db_->prepare("SELECT hash FROM value_uses WHERE job = ?1"));
  for (Rows row(values, target.id);;) {
    AE_ASSIGN(const bool more, row.next());
    if (!more) break;
    named.insert(row->hash(0));
  }
  if (target.commits.empty()) {
    AE_ASSIGN(Statement all, db_->prepare("DELETE FROM commits WHERE job = ?1"));
    AE_TRY(all.run(target.id));
  }
  AE_ASSIGN(Statement drop, db_->prepare("DELETE FROM commits WHERE id = ?1"));
  for (const std::int64_t commit : target.commits) AE_TRY(drop.run(commit));
  for (const char* sql : kRowsOfJobs) {
    AE_ASSIGN(Statement rows, db_->prepare(sql));
    AE_TRY(rows.run(target.id));
  }
  return {};
}

// SQLite reuses row numbers after the newest rows are deleted. `last_job` keeps job numbers unique,
// and `values_listed` is lowered so that later commits with reused numbers are indexed.
Sql<void> Tables::preserve_job_numbers(std::int64_t last_job) {
  AE_ASSIGN(const std::int64_t jobs, db_->integer("SELECT coalesce(max(id), 0) FROM jobs"));
  AE_ASSIGN(const std::int64_t stored, meta_number(*db_, "last_job"));
  if (jobs < last_job && stored < last_job) AE_TRY(put_meta(*db_, "last_job", last_job));
  last_number_.reset();
  AE_ASSIGN(const std::int64_t commits, db_->integer("SELECT coalesce(max(id), 0) FROM commits"));
  AE_ASSIGN(const std::int64_t listed, meta_number(*db_, "values_listed"));
  if (commits < listed) AE_TRY(put_meta(*db_, "values_listed", commits));
  return {};
}

// nullopt: let SQLite choose the number.
Sql<std::optional<std::int64_t>> Tables::next_number() {
  if (!last_number_) {
    AE_ASSIGN(last_number_, meta_number(*db_, "last_job"));
  }
  if (*last_number_ == 0) return std::nullopt;
  AE_ASSIGN(const std::int64_t jobs, db_->integer("SELECT coalesce(max(id), 0) FROM jobs"));
  if (jobs < *last_number_) return *last_number_ + 1;
  last_number_ = 0;
  return std::nullopt;
}

Tables::SqlResult<bool> Tables::prune(const Pruning& pruning) {
  std::vector<PruneTarget> target(pruning.jobs.size());
  for (std::size_t i = 0; i < target.size(); ++i) {
    AE_ASSIGN(const auto candidate, read_prune_candidate(pruning.jobs[i], target[i]));
    if (auto check = check_prunable(pruning.jobs[i], candidate); !check) {
      return Result<bool>(std::unexpected(std::move(check).error()));
    }
  }
  AE_ASSIGN(const bool listed, index_values());
  if (!listed) return Result<bool>(false);
  std::unordered_set<Hash> named;
  std::int64_t last_job = 0;
  for (std::size_t i = 0; i < target.size(); ++i) {
    AE_TRY(delete_job(target[i], named));
    jobs_.erase(pruning.jobs[i].job);
    last_job = std::max(last_job, target[i].id);
  }
  AE_TRY(drop_blobs(named, "SELECT 1 FROM value_uses WHERE hash = ?1 LIMIT 1"));
  AE_TRY(preserve_job_numbers(last_job));
  AE_TRY(append_audit_entry(pruning.audit));
  return Result<bool>(true);
}

}  // namespace ae::store::sqlite
