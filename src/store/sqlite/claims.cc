// Claims of Tables: leases, heartbeats, limits of queues and the fairness label.
//
// A claim chooses among the ready jobs with one index lookup per question (store/claim_order.h).
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/claim_order.h"
#include "store/lines.h"
#include "store/rules.h"
#include "store/sqlite/tables.h"

namespace ae::store::sqlite {

Sql<void> Tables::end_leases() {
  clear_cache();
  AE_TRY(end_leased_.run());
  return end_ready_.run();
}

Sql<Lease> Tables::acquire(const JobId& id, Job& job, const std::string& worker,
                           const AttemptId& attempt, Instant until) {
  job.epoch += 1;
  job.attempt = attempt;
  job.worker = worker;
  job.lease_until = until;
  AE_TRY(write_state(job));
  return Lease{id, *job.claim(), until};
}

// The Source of ClaimOrder (store/claim_order.h).
class Tables::ReadyJobs {
 public:
  using Failure = SqlError;
  struct Group {
    std::string queue, agent, capabilities;
    std::int64_t priority = 0;
  };
  ReadyJobs(Tables& tables, const ClaimRequest& request, Instant now)
      : t_(tables), request_(request), excluded_(request), now_(now) {}

  Sql<std::vector<Group>> groups() {
    std::vector<Group> fitting;
    for (Group last;;) {
      AE_ASSIGN(auto group, group_after(last));
      if (!group) return fitting;
      last = *group;
      if (satisfies(request_, last.agent, split_lines(last.capabilities))) {
        fitting.push_back(*std::move(group));
      }
    }
  }
  Sql<std::size_t> count_leased(const std::string& queue, std::size_t enough) {
    Rows row(t_.count_leased_, queue, now_, std::uint64_t{enough});
    AE_TRY(row.next());
    return row->count(0);
  }
  Sql<std::optional<std::int64_t>> priority_below(const Group& group, std::int64_t priority) {
    Rows row(t_.priority_below_, group.queue, group.agent, group.capabilities, priority);
    AE_ASSIGN(const bool found, row.next());
    if (!found) return std::nullopt;
    return row->integer(0);
  }
  Sql<std::optional<std::string>> fairness_key_after(
      const Group& group, std::int64_t priority, const std::optional<std::string>& fairness_key) {
    if (!fairness_key) {
      Rows row(t_.first_fairness_key_, group.queue, group.agent, group.capabilities, priority);
      return text(row);
    }
    Rows row(t_.fairness_key_after_, group.queue, group.agent, group.capabilities, priority,
             *fairness_key);
    return text(row);
  }
  Sql<std::optional<ReadyJob>> job_after(const Group& group, std::int64_t priority,
                                         const std::string& fairness_key, std::int64_t number) {
    Rows row(t_.job_after_, group.queue, group.agent, group.capabilities, priority, fairness_key,
             number);
    AE_ASSIGN(const bool found, row.next());
    if (!found) return std::nullopt;
    ReadyJob job{JobId(row->text(1)), row->integer(0), false};
    // The lease may be still valid if the clock was set back.
    const bool free = row->is_null(2) || row->instant(2) <= now_;
    job.matches = free && !excluded_.contains(job.job);
    return job;
  }
  Sql<std::optional<std::string>> last_served_key_at(std::int64_t priority) {
    if (!is_fair()) return std::nullopt;
    Rows row(t_.last_served_key_, priority);
    return text(row);
  }
  bool is_fair() const { return !t_.fair_by_.empty(); }

 private:
  Sql<std::optional<Group>> group_after(const Group& last) {
    const auto group = [](Rows row) -> Sql<std::optional<Group>> {
      AE_ASSIGN(const bool found, row.next());
      if (!found) return std::nullopt;
      return Group{row->text(0), row->text(1), row->text(2), row->integer(3)};
    };
    AE_ASSIGN(auto needs, group(Rows(t_.needs_after_, last.queue, last.agent, last.capabilities)));
    if (needs) return needs;
    AE_ASSIGN(auto agent, group(Rows(t_.agent_after_, last.queue, last.agent)));
    if (agent) return agent;
    return group(Rows(t_.queue_after_, last.queue));
  }
  static Sql<std::optional<std::string>> text(Rows& row) {
    AE_ASSIGN(const bool found, row.next());
    if (!found) return std::nullopt;
    return row->text(0);
  }

  Tables& t_;
  const ClaimRequest& request_;
  const ExcludedJobs excluded_;
  const Instant now_;
};

Sql<bool> Tables::is_below_queue_limit(const ClaimRequest& request, const std::string& queue,
                                       Instant now) {
  const auto limit = queue_limit_of(request, queue);
  if (!limit) return true;
  AE_ASSIGN(const std::size_t held, ReadyJobs(*this, request, now).count_leased(queue, *limit));
  return held < *limit;
}

// Without a label, the stored one stays.
Sql<void> Tables::set_fairness_label(const std::optional<std::string>& label) {
  AE_ASSIGN(Statement stored, db_->prepare("SELECT value FROM meta WHERE key = 'fair_by'"));
  {
    Rows row(stored);
    AE_ASSIGN(const bool found, row.next());
    fair_by_ = found ? row->text(0) : std::string();
  }
  if (!label || *label == fair_by_) return {};
  fair_by_ = *label;
  AE_ASSIGN(Statement put, db_->prepare("INSERT INTO meta VALUES('fair_by', ?1) "
                                        "ON CONFLICT DO UPDATE SET value = excluded.value"));
  AE_TRY(put.run(fair_by_));
  AE_TRY(db_->execute("DELETE FROM turns"));
  AE_ASSIGN(Statement fairness_key,
            db_->prepare("UPDATE jobs SET turn = coalesce((SELECT value FROM "
                         "labels WHERE job = jobs.id AND key = ?1), '')"));
  return fairness_key.run(fair_by_);
}

Tables::SqlResult<std::vector<Lease>> Tables::claim(const ClaimRequest& request, Instant now) {
  AE_TRY(make_delayed_eligible_.run(now));
  AE_TRY(make_expired_eligible_.run(now));
  ReadyJobs ready(*this, request, now);
  ClaimOrder order(ready, request);
  AE_ASSIGN(const std::vector<JobId> chosen, order.choose_jobs());
  for (const auto& [priority, fairness_key] : order.served_keys())
    AE_TRY(put_served_key_.run(priority, fairness_key));
  std::vector<Lease> leases;
  for (const JobId& id : chosen) {
    auto found = find(id);
    // A damaged job must not prevent other claims.
    if (!found && found.error().corrupt()) continue;
    AE_ASSIGN(Job * job, std::move(found));
    const AttemptId& attempt = request.attempts[leases.size()];
    AE_ASSIGN(Lease lease, acquire(id, *job, request.worker, attempt, now + request.lease));
    leases.push_back(std::move(lease));
  }
  return Result<std::vector<Lease>>(std::move(leases));
}

Tables::SqlResult<std::optional<Lease>> Tables::claim_job(const JobId& id,
                                                          const ClaimRequest& request,
                                                          Instant now) {
  using Answer = Result<std::optional<Lease>>;
  auto found = find(id);
  if (!found && found.error().corrupt()) return Answer(std::unexpected(commit_missing(id)));
  AE_ASSIGN(Job * job, std::move(found));
  if (job == nullptr) return Answer(std::unexpected(job_not_found(id)));
  const bool free =
      job->attempt ? *job->lease_until <= now : !job->row.not_before || *job->row.not_before <= now;
  AE_ASSIGN(const bool has_free_slot, is_below_queue_limit(request, job->queue, now));
  if (!is_runnable(job->row.status) || !free || request.limit == 0 || !has_free_slot ||
      !matches(request, {id, job->agent, job->capabilities})) {
    evict_if_idle(id);
    return Answer(std::nullopt);
  }
  AE_ASSIGN(Lease lease,
            acquire(id, *job, request.worker, request.attempts[0], now + request.lease));
  return Answer(std::move(lease));
}

Tables::SqlResult<std::vector<std::optional<Instant>>> Tables::heartbeat(
    const std::vector<std::pair<JobId, Fence>>& held, Duration lease, Instant now) {
  std::vector<std::optional<Instant>> until;
  until.reserve(held.size());
  for (const auto& [id, fence] : held) {
    auto found = find(id);
    if (!found && !found.error().corrupt()) return std::unexpected(std::move(found).error());
    Job* const job = found.value_or(nullptr);  // a job without readable commits has no lease
    if (job == nullptr || job->claim() != fence || *job->lease_until <= now) {
      evict_if_idle(id);
      until.push_back(std::nullopt);
      continue;
    }
    job->lease_until = now + lease;
    AE_TRY(update_lease_.run(job->id, *job->lease_until));
    until.push_back(job->lease_until);
  }
  return Result<std::vector<std::optional<Instant>>>(std::move(until));
}

}  // namespace ae::store::sqlite
