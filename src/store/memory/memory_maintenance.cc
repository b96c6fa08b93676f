// Maintenance of the memory store: redaction, pruning, and entries of the audit log.
#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/batch_failpoints.h"
#include "store/memory/memory_disk.h"
#include "store/memory/memory_store.h"
#include "store/rules.h"

namespace ae::store {

void MemoryStore::prune(Pruning pruning, async::Done<Result<bool>> done) {
  check_pruning(pruning);
  const auto find_candidate = [&](const JobId& id) -> std::optional<PruneCandidate> {
    const Data::Job* job = data_.find(id);
    if (job == nullptr) return std::nullopt;
    std::vector<Hash> commits;
    commits.reserve(job->commits.size());
    for (const Data::Commit& commit : job->commits) commits.push_back(sha256(commit.bytes));
    return PruneCandidate{.status = job->row.status,
                          .held = job->row.claim.has_value(),
                          .last_seq = job->row.last_seq,
                          .head = job->row.head,
                          .content_hash = content_hash_of(commits, job->signed_head)};
  };
  const auto run = [&]() -> Result<bool> {
    BeforeFailpoint point = hit_before_failpoint("prune.before");
    if (point.now) return std::unexpected(*std::move(point.now));
    for (const Pruning::Job& requested : pruning.jobs)
      AE_TRY(check_prunable(requested, find_candidate(requested.job)));
    for (const Pruning::Job& requested : pruning.jobs) {
      const Data::Job& job = *data_.find(requested.job);
      data_.remove_from_indexes(job);
      if (!job.row.idempotency_key.empty()) {
        data_.by_key.erase({job.row.agent, job.row.idempotency_key});
      }
      data_.by_id.erase(requested.job);
      data_.jobs.erase(job.number);
    }
    data_.drop_blobs();
    data_.append_audit_entry(pruning.audit);
    if (point.afterwards) return std::unexpected(*std::move(point.afterwards));
    if (auto error = hit_after_failpoint("prune.after")) return std::unexpected(*std::move(error));
    return true;
  };
  answer(std::move(done), run());
}

void MemoryStore::redact(Redaction redaction, async::Done<Result<void>> done) {
  const auto run = [&]() -> Result<void> {
    Data::Job* job = data_.find(redaction.job);
    if (job == nullptr) return std::unexpected(job_not_found(redaction.job));
    if (job->row.claim) return std::unexpected(job_still_leased(redaction.job));
    std::vector<Data::Commit*> stored;
    bool changes = false;
    for (const Redaction::Commit& requested : redaction.commits) {
      const auto it =
          std::ranges::find(job->commits, requested.first_seq, &Data::Commit::first_seq);
      const bool exists = it != job->commits.end();
      const bool same = exists && it->bytes == requested.bytes;
      if (!exists || (!same && sha256(it->bytes) != requested.expected_hash)) {
        return std::unexpected(commit_changed(redaction.job, requested.first_seq));
      }
      stored.push_back(&*it);
      changes = changes || !same;
    }
    std::map<Data::Slot, std::string> records;
    for (const EffectRow& effect : redaction.effects) {
      records[{effect.invocation.text, effect.try_no}] = effect.record;
    }
    for (const auto& [slot, record] : job->effects) {
      const auto requested = records.find(slot);
      if (requested == records.end()) return std::unexpected(effects_changed(redaction.job));
      changes = changes || requested->second != record;
    }
    if (!changes) return {};
    for (auto& [slot, record] : job->effects) record = records.at(slot);
    for (std::size_t i = 0; i < stored.size(); ++i) {
      stored[i]->bytes = redaction.commits[i].bytes;
      stored[i]->blobs = redaction.commits[i].blobs;
    }
    data_.drop_blobs();
    job->checkpoint.reset();
    data_.append_audit_entry(redaction.audit);
    return {};
  };
  answer(std::move(done), run());
}

void MemoryStore::erase_dropped_values(async::Done<Result<std::vector<ResidualCopy>>> done) {
  answer(std::move(done), Result<std::vector<ResidualCopy>>());  // no files
}

void MemoryStore::append_audit_entry(AuditEntry entry, async::Done<Result<void>> done) {
  data_.append_audit_entry(entry);
  answer(std::move(done), Result<void>());
}

}  // namespace ae::store
