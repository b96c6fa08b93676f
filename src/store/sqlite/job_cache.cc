// The cached jobs of Tables, and the chains of their commits.
//
// A job is read with the pointers to some of its commits (skip_list.h), so any commit is found in a
// few lookups. A broken chain fails as corrupt before anything is written.
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "store/lines.h"
#include "store/rules.h"
#include "store/sqlite/tables.h"

namespace ae::store::sqlite {
namespace {

SqlError corrupt_commit_chain() {
  return {11 /* SQLITE_CORRUPT */, 0, "a commit of a job is missing"};
}

}  // namespace

void Tables::clear_cache() {
  jobs_.clear();
  blobs_.clear();
  last_number_.reset();
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
    job.capabilities = split_lines(row->text(12));
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

}  // namespace ae::store::sqlite
