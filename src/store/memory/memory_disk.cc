// The disk of a memory store: its jobs, the indexes over them, leases and blobs.
#include "store/memory/memory_disk.h"

#include <algorithm>
#include <memory>

#include "store/claim_order.h"
#include "store/rules.h"

namespace ae::store {

MemoryDisk::MemoryDisk() : data_(std::make_unique<Data>()) {}
MemoryDisk::~MemoryDisk() = default;
MemoryDisk::MemoryDisk(const MemoryDisk& other) : data_(std::make_unique<Data>(*other.data_)) {
  data_->fill_by_id();
}
MemoryDisk& MemoryDisk::operator=(const MemoryDisk& other) {
  *data_ = *other.data_;
  data_->fill_by_id();
  return *this;
}

MemoryDisk::Data::Job* MemoryDisk::Data::find(const JobId& id) {
  const auto it = by_id.find(id);
  return it == by_id.end() ? nullptr : it->second;
}

void MemoryDisk::Data::fill_by_id() {
  by_id.clear();
  for (auto& [number, job] : jobs) by_id.emplace(job.row.id, &job);
}

void MemoryDisk::Data::append_audit_entry(const AuditEntry& entry) {
  AuditRow row = chain_entry(audit.head, entry);
  audit.head = {row.seq, row.hash};
  audit.rows.push_back(std::move(row));
}

MemoryDisk::Data::ReadyKey MemoryDisk::Data::ready_key(const Job& job) const {
  return {job.row.queue,
          {job.row.agent, job.row.capabilities},
          -job.row.priority,
          fairness_key_of(job.row.labels, fair_by),
          static_cast<std::int64_t>(job.number)};
}

void MemoryDisk::Data::remove_from_indexes(const Job& job) {
  const JobRow& row = job.row;
  ready.erase(ready_key(job));
  if (row.claim) held[row.queue].erase(job.number);
  if (row.lease_until) eligible_at.erase({*row.lease_until, job.number});
  if (row.not_before) eligible_at.erase({*row.not_before, job.number});
  if (row.wake_at) wakes.erase({*row.wake_at, job.number});
}

void MemoryDisk::Data::add_to_indexes(const Job& job) {
  const JobRow& row = job.row;
  if (!row.claim && row.wake_at) wakes.insert({*row.wake_at, job.number});
  if (!is_runnable(row.status)) return;
  if (row.claim) {
    held[row.queue].insert(job.number);
    eligible_at.insert({*row.lease_until, job.number});
  } else if (row.not_before) {
    eligible_at.insert({*row.not_before, job.number});
  } else {
    ready.insert(ready_key(job));
  }
}

void MemoryDisk::Data::become_eligible(Instant now) {
  while (!eligible_at.empty() && eligible_at.begin()->first <= now) {
    const Job& job = jobs.at(eligible_at.begin()->second);
    eligible_at.erase(eligible_at.begin());
    ready.insert(ready_key(job));
  }
}

void MemoryDisk::Data::set_fairness_label(const std::string& label) {
  if (label == fair_by) return;
  std::vector<std::uint64_t> numbers;
  numbers.reserve(ready.size());
  for (const ReadyKey& one : ready) numbers.push_back(static_cast<std::uint64_t>(std::get<4>(one)));
  fair_by = label;
  last.clear();
  ready.clear();
  for (const std::uint64_t number : numbers) ready.insert(ready_key(jobs.at(number)));
}

std::size_t MemoryDisk::Data::live(const std::string& queue, Instant now) {
  return static_cast<std::size_t>(std::ranges::count_if(
      held[queue], [&](std::uint64_t number) { return jobs.at(number).row.lease_until > now; }));
}

Lease MemoryDisk::Data::claim(Job& job, const std::string& worker, const AttemptId& attempt,
                              Instant until) {
  remove_from_indexes(job);
  job.row.claim = Fence{attempt, ++job.epoch};
  job.row.claim_worker = worker;
  job.row.lease_until = until;
  add_to_indexes(job);
  return {job.row.id, *job.row.claim, until};
}

void MemoryDisk::Data::release(Job& job) {
  job.row.claim.reset();
  job.row.claim_worker.clear();
  job.row.lease_until.reset();
}

void MemoryDisk::Data::drop_blobs() {
  std::set<Hash> named;
  for (const auto& [number, job] : jobs) {
    for (const Commit& commit : job.commits) {
      named.insert(commit.blobs.begin(), commit.blobs.end());
    }
  }
  std::erase_if(blobs, [&](const auto& blob) { return !named.contains(blob.first); });
}

}  // namespace ae::store
