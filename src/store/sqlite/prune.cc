// Deleting jobs that have ended, with everything that belongs to them.
//
// A job's rows are found by its number, its commits by the pointers between them, and whether somebody else names one of
// its values in `value_uses`: nothing that other jobs hold is read. That table is made up here and not by those who write:
// commits are only appended, so each is looked at once, before the first deletion after it.
#include <algorithm>
#include <cstring>

#include "store/sqlite/tables.h"

namespace ae::store::sqlite {
namespace {

// Of one transaction.
constexpr std::uint64_t kCommitsListed = 4096;
constexpr std::size_t kValuesListed = 16384;

// By `job`; commits and what stands apart are looked for otherwise.
constexpr const char* kRowsOfJobs[] = {
    "DELETE FROM labels WHERE job = ?1",       "DELETE FROM effects WHERE job = ?1",
    "DELETE FROM ledger WHERE job = ?1",       "DELETE FROM inbox WHERE job = ?1",
    "DELETE FROM signed_heads WHERE job = ?1", "DELETE FROM checkpoints WHERE job = ?1",
    "DELETE FROM value_uses WHERE job = ?1",   "DELETE FROM heads WHERE job = ?1",
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

// The commits that came since: which job names which values. False: there are more.
Sql<bool> Tables::list_values() {
  AE_ASSIGN(std::int64_t listed, meta_number(*db_, "values_listed"));
  AE_ASSIGN(Statement since, db_->prepare("SELECT id, job, blobs FROM commits WHERE id > ?1 "
                                          "ORDER BY id LIMIT ?2"));
  struct Use {
    std::int64_t job = 0;
    Hash hash;
  };
  std::vector<Use> uses;
  std::uint64_t looked_at = 0;
  bool all = true;
  for (Rows row(since, listed, kCommitsListed);;) {
    AE_ASSIGN(const bool more, row.next());
    if (!more) break;
    if (uses.size() >= kValuesListed) {
      all = false;
      break;
    }
    ++looked_at;
    listed = row->integer(0);
    const std::string_view list = row->bytes(2);
    for (std::size_t at = 0; at + sizeof(Hash) <= list.size(); at += sizeof(Hash)) {
      Use& use = uses.emplace_back(Use{.job = row->integer(1), .hash = {}});
      std::memcpy(use.hash.bytes.data(), list.data() + at, sizeof(Hash));
    }
  }
  if (looked_at == 0) return true;
  AE_ASSIGN(
      Statement put,
      db_->prepare("INSERT INTO value_uses(job, hash) VALUES(?1, ?2) ON CONFLICT DO NOTHING"));
  for (const Use& use : uses) AE_TRY(put.run(use.job, use.hash));
  AE_TRY(put_meta(*db_, "values_listed", listed));
  return all && looked_at < kCommitsListed;
}

// What stands of a job that is to go, and where its commits are.
Sql<std::optional<Remains>> Tables::remains(const Pruning::Job& wish, Leaving& leaving) {
  AE_ASSIGN(Statement find,
            db_->prepare("SELECT jobs.id, status, attempt, last_seq, head, last_commit, "
                         "heads.commits FROM jobs "
                         "JOIN heads ON heads.job = jobs.id WHERE job_id = ?1"));
  Remains found;
  std::int64_t commit = 0;
  std::uint64_t commits = 0;
  {
    Rows row(find, wish.job.text);
    AE_ASSIGN(const bool there, row.next());
    if (!there) return std::nullopt;
    leaving.id = row->integer(0);
    found.status = row->text(1);
    found.held = !row->is_null(2);
    found.last_seq = row->count(3);
    found.head = row->hash(4);
    commit = row->integer(5);
    commits = row->count(6);
  }
  AE_ASSIGN(Statement read,
            db_->prepare(wish.contents ? "SELECT job, prev, body FROM commits WHERE id = ?1"
                                       : "SELECT job, prev FROM commits WHERE id = ?1"));
  std::vector<Hash> bodies;
  while (commit > 0) {
    Rows row(read, commit);
    AE_ASSIGN(const bool there, row.next());
    if (!there || row->integer(0) != leaving.id) break;
    leaving.commits.push_back(commit);
    if (wish.contents) bodies.push_back(sha256(row->bytes(2)));
    if (row->integer(1) >= commit) break;  // a pointer only ever leads backwards
    commit = row->integer(1);
  }
  // One is missing, or the pointers lead past it: all are looked for one by one.
  if (leaving.commits.size() != commits) leaving.commits.clear();
  if (!wish.contents) return found;
  std::ranges::reverse(bodies);
  AE_ASSIGN(Statement signed_head, db_->prepare("SELECT body FROM signed_heads WHERE job = ?1"));
  Rows row(signed_head, leaving.id);
  AE_ASSIGN(const bool is_signed, row.next());
  found.contents = contents_of(bodies, is_signed ? std::optional(row->text(0)) : std::nullopt);
  return found;
}

// Adds the values that it named.
Sql<void> Tables::drop_job(const Leaving& leaving, std::unordered_set<Hash>& named) {
  AE_ASSIGN(Statement values, db_->prepare("SELECT hash FROM value_uses WHERE job = ?1"));
  for (Rows row(values, leaving.id);;) {
    AE_ASSIGN(const bool more, row.next());
    if (!more) break;
    named.insert(row->hash(0));
  }
  if (leaving.commits.empty()) {
    AE_ASSIGN(Statement all, db_->prepare("DELETE FROM commits WHERE job = ?1"));
    AE_TRY(all.run(leaving.id));
  }
  AE_ASSIGN(Statement drop, db_->prepare("DELETE FROM commits WHERE id = ?1"));
  for (const std::int64_t commit : leaving.commits) AE_TRY(drop.run(commit));
  for (const char* sql : kRowsOfJobs) {
    AE_ASSIGN(Statement rows, db_->prepare(sql));
    AE_TRY(rows.run(leaving.id));
  }
  return {};
}

// The file gives the number after the last one that is there; no number is given twice, nor passed over as listed.
Sql<void> Tables::keep_numbers(std::int64_t last_job) {
  AE_ASSIGN(const std::int64_t jobs, db_->integer("SELECT coalesce(max(id), 0) FROM jobs"));
  AE_ASSIGN(const std::int64_t known, meta_number(*db_, "last_job"));
  if (jobs < last_job && known < last_job) AE_TRY(put_meta(*db_, "last_job", last_job));
  last_number_.reset();
  AE_ASSIGN(const std::int64_t commits, db_->integer("SELECT coalesce(max(id), 0) FROM commits"));
  AE_ASSIGN(const std::int64_t listed, meta_number(*db_, "values_listed"));
  if (commits < listed) AE_TRY(put_meta(*db_, "values_listed", commits));
  return {};
}

// nullopt: the file's own.
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

Tables::Answer<bool> Tables::prune(const Pruning& pruning) {
  std::vector<Leaving> leaving(pruning.jobs.size());
  for (std::size_t i = 0; i < leaving.size(); ++i) {
    AE_ASSIGN(const auto stands, remains(pruning.jobs[i], leaving[i]));
    if (auto may = may_prune(pruning.jobs[i], stands); !may) {
      return Result<bool>(std::unexpected(std::move(may).error()));
    }
  }
  AE_ASSIGN(const bool listed, list_values());
  if (!listed) return Result<bool>(false);
  std::unordered_set<Hash> named;
  std::int64_t last_job = 0;
  for (std::size_t i = 0; i < leaving.size(); ++i) {
    AE_TRY(drop_job(leaving[i], named));
    jobs_.erase(pruning.jobs[i].job);
    last_job = std::max(last_job, leaving[i].id);
  }
  AE_TRY(drop_blobs(named, "SELECT 1 FROM value_uses WHERE hash = ?1 LIMIT 1"));
  AE_TRY(keep_numbers(last_job));
  AE_TRY(record(pruning.audit));
  return Result<bool>(true);
}

}  // namespace ae::store::sqlite
