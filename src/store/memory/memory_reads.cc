// Reads of the memory store: loads of one job, lists of jobs, counts, and the audit log.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/log_window.h"
#include "store/memory/memory_disk.h"
#include "store/memory/memory_store.h"
#include "store/rules.h"

namespace ae::store {

void MemoryStore::load(JobId id, std::uint64_t from_seq, async::Done<Result<LoadedJob>> done) {
  const auto run = [&]() -> Result<LoadedJob> {
    const Data::Job* job = data_.find(id);
    if (job == nullptr) return std::unexpected(job_not_found(id));
    LoadedJob loaded{.row = job->row};
    if (from_seq == kFirstCommit) {
      const Data::Commit& first = job->commits.front();
      loaded.commits.push_back(first.bytes);
      for (const Hash& hash : std::set<Hash>(first.blobs.begin(), first.blobs.end())) {
        loaded.blobs.push_back({hash, data_.blobs.at(hash)});
      }
      return loaded;
    }
    loaded.signed_head = job->signed_head;
    if (from_seq <= 1) loaded.checkpoint = job->checkpoint;
    if (from_seq == 1) loaded.request_hash = job->request_hash;
    if (from_seq == kFromCheckpoint) from_seq = job->checkpoint ? job->checkpoint->seq + 1 : 1;
    auto it = std::ranges::upper_bound(job->commits, from_seq, {}, &Data::Commit::first_seq);
    if (it != job->commits.begin()) --it;
    if (from_seq > job->row.last_seq) it = job->commits.end();
    std::set<Hash> seen;
    for (; it != job->commits.end(); ++it) {
      loaded.commits.push_back(it->bytes);
      for (const Hash& hash : it->blobs) {
        if (seen.insert(hash).second) loaded.blobs.push_back({hash, data_.blobs.at(hash)});
      }
    }
    for (const auto& [slot, record] : job->effects) {
      loaded.effects.push_back({InvocationId(slot.first), slot.second, record});
    }
    for (const auto& [slot, row] : job->ledger) loaded.ledger.push_back(row);
    for (const auto& [number, entry] : job->inbox) loaded.inbox.push_back(entry);
    return loaded;
  };
  answer(std::move(done), run());
}

void MemoryStore::load_window(JobId id, WindowRequest window, async::Done<Result<LogWindow>> done) {
  const auto run = [&]() -> Result<LogWindow> {
    const Data::Job* job = data_.find(id);
    if (job == nullptr) return std::unexpected(job_not_found(id));
    LogWindow read{.row = job->row};
    if (window.reads_checkpoint) read.checkpoint = job->checkpoint;
    const SeqRange range = range_of(window, job->row.last_seq);
    if (range.empty()) return read;
    const auto end_of = [&](std::size_t i) {
      return i + 1 < job->commits.size() ? job->commits[i + 1].first_seq - 1 : job->row.last_seq;
    };
    const auto after =
        std::ranges::upper_bound(job->commits, range.first, {}, &Data::Commit::first_seq);
    const auto first = static_cast<std::size_t>(after - job->commits.begin()) - 1;
    std::vector<CommitSpan> spans;
    for (std::size_t i = first; i < job->commits.size(); ++i) {
      const CommitSpan span{job->commits[i].first_seq, end_of(i), job->commits[i].bytes.size()};
      if (!range.overlaps(span)) break;
      spans.push_back(span);
    }
    const auto fitting = fit_window(window, spans);
    const std::size_t begin = first + static_cast<std::size_t>(fitting.data() - spans.data());
    std::set<Hash> seen;
    for (std::size_t i = begin; i < begin + fitting.size(); ++i) {
      read.commits.push_back(job->commits[i].bytes);
      for (const Hash& hash : job->commits[i].blobs) {
        if (seen.insert(hash).second) read.blobs.push_back({hash, data_.blobs.at(hash)});
      }
    }
    if (begin > 0) read.preceding = job->commits[begin - 1].bytes;
    return read;
  };
  answer(std::move(done), run());
}

void MemoryStore::read_inbox_entry(JobId job, std::string id,
                                   async::Done<Result<InboxEntryState>> done) {
  const auto run = [&]() -> Result<InboxEntryState> {
    const Data::Job* found = data_.find(job);
    if (found == nullptr) return std::unexpected(job_not_found(job));
    InboxEntryState state;
    state.pending =
        std::ranges::any_of(found->inbox, [&](const auto& entry) { return entry.second.id == id; });
    if (const auto reply = found->replies.find(id); reply != found->replies.end())
      state.reply = reply->second;
    return state;
  };
  answer(std::move(done), run());
}

namespace {

// The page of a list in the order `changed`, of all jobs that match the filter.
std::vector<JobRow> page_by_change(const Filter& filter, std::vector<JobRow> rows) {
  const auto place_of = [](const JobRow& row) {
    return std::pair(row.summary->changed_at, row.number);
  };
  std::erase_if(rows, [&](const JobRow& row) {
    if (!row.summary) return true;
    return filter.after_number &&
           place_of(row) >= std::pair(*filter.after_changed_at, *filter.after_number);
  });
  std::ranges::sort(rows, std::ranges::greater(), place_of);
  if (rows.size() > filter.limit) rows.resize(filter.limit);
  return rows;
}

}  // namespace

void MemoryStore::query(Filter filter, async::Done<Result<std::vector<JobRow>>> done) {
  const auto run = [&]() -> Result<std::vector<JobRow>> {
    if (filter.order == JobOrder::changed) {
      std::vector<JobRow> all;
      for (const auto& [number, job] : data_.jobs) {
        if (matches(filter, job.row)) all.push_back(job.row);
      }
      return page_by_change(filter, std::move(all));
    }
    auto it = data_.jobs.end();
    if (filter.after_number) {
      it = data_.jobs.lower_bound(*filter.after_number);
    } else if (!filter.after.empty()) {
      const auto found = data_.by_id.find(JobId(filter.after));
      if (found == data_.by_id.end()) return std::unexpected(job_not_found(JobId(filter.after)));
      it = data_.jobs.find(found->second->number);
    }
    std::vector<JobRow> rows;
    while (it != data_.jobs.begin() && rows.size() < filter.limit) {
      --it;
      if (matches(filter, it->second.row)) rows.push_back(it->second.row);
    }
    return rows;
  };
  answer(std::move(done), run());
}

void MemoryStore::list_ended(EndedFilter filter, async::Done<Result<EndedPage>> done) {
  std::vector<JobRow> scanned;
  for (auto it = data_.jobs.upper_bound(filter.after);
       it != data_.jobs.end() && scanned.size() < kEndedScanMax; ++it) {
    scanned.push_back(it->second.row);
  }
  answer(std::move(done), Result<EndedPage>(make_ended_page(std::move(scanned), filter)));
}

void MemoryStore::read_audit_log(std::uint64_t after, async::Done<Result<AuditLog>> done) {
  AuditLog log{.head = data_.audit.head};
  const auto& rows = data_.audit.rows;  // the first seq is 1
  log.rows.assign(rows.begin() + static_cast<std::ptrdiff_t>(std::min(after, rows.size())),
                  rows.end());
  answer(std::move(done), Result<AuditLog>(std::move(log)));
}

void MemoryStore::count_jobs(async::Done<Result<JobStats>> done) {
  JobStats job_stats;
  for (const std::string_view status : kOpenStatuses) job_stats.statuses.emplace(status, 0);
  const Instant now = clock_.now();
  for (const auto& [number, job] : data_.jobs) {
    const JobRow& row = job.row;
    const auto status = job_stats.statuses.find(row.status);
    if (status == job_stats.statuses.end()) continue;
    ++status->second;
    if (row.claim) {
      JobStats::Worker& worker = job_stats.workers[row.claim_worker];
      ++(*row.lease_until > now ? worker.live : worker.expired);
    } else if (data_.ready.contains(data_.ready_key(job))) {
      ++job_stats.ready[row.queue];
    }
  }
  for (const auto& [worker, announcement] : data_.announcements) {
    if (announcement.until > now) job_stats.workers[worker].announcement = announcement.text;
  }
  answer(std::move(done), Result<JobStats>(std::move(job_stats)));
}

void MemoryStore::count_matching(CountFilter filter, async::Done<Result<JobCounts>> done) {
  std::map<std::string, std::uint64_t> statuses{{std::string(kCompleted), 0}};
  for (const std::string_view status : kIndexedStatuses) statuses.emplace(status, 0);
  PendingCounter pending;
  for (const auto& [number, job] : data_.jobs) {
    if (!matches(filter, job.row)) continue;
    ++statuses[job.row.status];
    if (job.row.pending != 0) pending.add(job.row.pending, 1, 1);
  }
  JobCounts counts;
  for (const auto& [status, jobs] : statuses) counts.statuses[status] = job_count(jobs, jobs);
  counts.pending = pending.take();
  answer(std::move(done), Result<JobCounts>(std::move(counts)));
}

}  // namespace ae::store
