// Claims of the memory store: leases, heartbeats, and the jobs whose timers are due.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "store/batch_failpoints.h"
#include "store/claim_order.h"
#include "store/memory/memory_disk.h"
#include "store/memory/memory_store.h"
#include "store/rules.h"

namespace ae::store {

// The Source of ClaimOrder.
class MemoryStore::ReadyJobs {
 public:
  using Failure = Error;
  struct Group {
    std::string queue;
    Data::Needs needs;
    std::int64_t priority = 0;
  };
  ReadyJobs(Data& data, const ClaimRequest& request, Instant now)
      : data_(data), request_(request), excluded_(request), now_(now) {}

  Result<std::vector<Group>> groups() const {
    std::vector<Group> groups;
    auto it = data_.ready.begin();
    while (it != data_.ready.end()) {
      Group group{std::get<0>(*it), std::get<1>(*it), -std::get<2>(*it)};
      it = data_.ready.upper_bound({group.queue, group.needs, kMax, {}, kMax});
      if (satisfies(request_, group.needs.agent, group.needs.capabilities)) {
        groups.push_back(std::move(group));
      }
    }
    return groups;
  }
  Result<std::size_t> count_leased(const std::string& queue, std::size_t) const {
    return data_.live(queue, now_);
  }
  Result<std::optional<std::int64_t>> priority_below(const Group& group,
                                                     std::int64_t priority) const {
    const auto it = data_.ready.lower_bound({group.queue, group.needs, 1 - priority, {}, 0});
    if (!is_of(it, group)) return std::nullopt;
    return -std::get<2>(*it);
  }
  Result<std::optional<std::string>> fairness_key_after(
      const Group& group, std::int64_t priority,
      const std::optional<std::string>& fairness_key) const {
    const auto it =
        fairness_key
            ? data_.ready.upper_bound({group.queue, group.needs, -priority, *fairness_key, kMax})
            : data_.ready.lower_bound({group.queue, group.needs, -priority, {}, 0});
    if (!is_of(it, group) || std::get<2>(*it) != -priority) return std::nullopt;
    return std::get<3>(*it);
  }
  Result<std::optional<ReadyJob>> job_after(const Group& group, std::int64_t priority,
                                            const std::string& fairness_key,
                                            std::int64_t number) const {
    const auto it =
        data_.ready.upper_bound({group.queue, group.needs, -priority, fairness_key, number});
    if (!is_of(it, group) || std::get<2>(*it) != -priority || std::get<3>(*it) != fairness_key) {
      return std::nullopt;
    }
    const JobRow& row = data_.jobs.at(static_cast<std::uint64_t>(std::get<4>(*it))).row;
    // The lease may be still valid if the clock was set back.
    const bool free = !row.lease_until || *row.lease_until <= now_;
    return ReadyJob{row.id, std::get<4>(*it), free && !excluded_.contains(row.id)};
  }
  Result<std::optional<std::string>> last_served_key_at(std::int64_t priority) const {
    const auto it = data_.last.find(priority);
    if (!is_fair() || it == data_.last.end()) return std::nullopt;
    return it->second;
  }
  bool is_fair() const { return !data_.fair_by.empty(); }

 private:
  static constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  bool is_of(const std::set<Data::ReadyKey>::iterator& it, const Group& group) const {
    return it != data_.ready.end() && std::get<0>(*it) == group.queue &&
           std::get<1>(*it) == group.needs;
  }

  Data& data_;
  const ClaimRequest& request_;
  const ExcludedJobs excluded_;
  const Instant now_;
};

void MemoryStore::claim(ClaimRequest request, async::Done<Result<std::vector<Lease>>> done) {
  check_claim(request);
  const Instant now = clock_.now();
  data_.become_eligible(now);
  ReadyJobs ready(data_, request, now);
  ClaimOrder order(ready, request);
  const std::vector<JobId> chosen = *order.choose_jobs();
  for (const auto& [priority, fairness_key] : order.served_keys())
    data_.last[priority] = fairness_key;
  std::vector<Lease> leases;
  leases.reserve(chosen.size());
  for (const JobId& job : chosen) {
    leases.push_back(data_.claim(*data_.find(job), request.worker, request.attempts[leases.size()],
                                 now + request.lease));
  }
  Result<std::vector<Lease>> result(std::move(leases));
  if (!result->empty()) {
    if (auto error = hit_after_failpoint("claim.after"))
      result = std::unexpected(*std::move(error));
  }
  answer(std::move(done), std::move(result));
}

void MemoryStore::claim_job(JobId id, ClaimRequest request,
                            async::Done<Result<std::optional<Lease>>> done) {
  check_claim(request);
  const Instant now = clock_.now();
  const auto run = [&]() -> Result<std::optional<Lease>> {
    Data::Job* job = data_.find(id);
    if (job == nullptr) return std::unexpected(job_not_found(id));
    const JobRow& row = job->row;
    if (!is_runnable(row.status) || request.limit == 0) return std::nullopt;
    if (row.claim ? *row.lease_until > now : row.not_before && *row.not_before > now)
      return std::nullopt;
    if (!matches(request, {id, row.agent, row.capabilities})) return std::nullopt;
    if (const auto limit = queue_limit_of(request, row.queue);
        limit && data_.live(row.queue, now) >= *limit) {
      return std::nullopt;
    }
    Lease lease = data_.claim(*job, request.worker, request.attempts[0], now + request.lease);
    if (auto error = hit_after_failpoint("claim.after")) return std::unexpected(*std::move(error));
    return lease;
  };
  answer(std::move(done), run());
}

void MemoryStore::heartbeat(std::vector<std::pair<JobId, Fence>> held, Duration lease,
                            async::Done<Result<std::vector<std::optional<Instant>>>> done) {
  const Instant now = clock_.now();
  BeforeFailpoint point = hit_before_failpoint("heartbeat.before");
  if (point.now) {
    return answer(std::move(done), Result<std::vector<std::optional<Instant>>>(
                                       std::unexpected(*std::move(point.now))));
  }
  std::vector<std::optional<Instant>> until;
  until.reserve(held.size());
  for (const auto& [id, fence] : held) {
    Data::Job* job = data_.find(id);
    if (job == nullptr || job->row.claim != fence || *job->row.lease_until <= now) {
      until.push_back(std::nullopt);
      continue;
    }
    data_.remove_from_indexes(*job);
    job->row.lease_until = now + lease;
    data_.add_to_indexes(*job);
    until.push_back(job->row.lease_until);
  }
  Result<std::vector<std::optional<Instant>>> result(std::move(until));
  if (point.afterwards) result = std::unexpected(*std::move(point.afterwards));
  answer(std::move(done), std::move(result));
}

void MemoryStore::list_due(std::size_t limit, async::Done<Result<std::vector<JobId>>> done) {
  const Instant now = clock_.now();
  std::vector<JobId> jobs;
  for (const auto& [wake_at, number] : data_.wakes) {
    if (wake_at > now || jobs.size() == limit) break;
    jobs.push_back(data_.jobs.at(number).row.id);
  }
  answer(std::move(done), Result<std::vector<JobId>>(std::move(jobs)));
}

void MemoryStore::next_due(async::Done<Result<std::optional<Instant>>> done) {
  const Instant now = clock_.now();
  std::optional<Instant> next;
  if (!data_.wakes.empty()) next = data_.wakes.begin()->first;
  const auto future =
      data_.eligible_at.upper_bound({now, std::numeric_limits<std::uint64_t>::max()});
  for (auto it = future; it != data_.eligible_at.end(); ++it) {
    if (next && it->first >= *next) break;
    if (data_.jobs.at(it->second).row.claim) continue;  // the end of a lease is not scheduled work
    next = it->first;
    break;
  }
  answer(std::move(done), Result<std::optional<Instant>>(next));
}

}  // namespace ae::store
