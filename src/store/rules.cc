#include "store/rules.h"

#include <algorithm>

#include <string>

namespace ae::store {
namespace {

bool only_effects(const Batch& b) {
  return !b.sealed && b.effects_absent.empty() && b.ledger_put.empty() && b.ledger_erase.empty() &&
         b.inbox_taken.empty() && !b.release && !b.signed_head && !b.audit;
}

Error not_the_holder(const Batch& batch, const Fence& fence) {
  return {Code::stale_attempt, "attempt " + fence.attempt.text + " (epoch " +
                                   std::to_string(fence.epoch) + ") does not hold job " +
                                   batch.job.text + " any more: stop working on it"};
}

Error somebody_holds(const Batch& batch) {
  return {Code::held, "job " + batch.job.text + " is held by a worker: use its inbox"};
}

Error not_the_last(const Batch& batch, std::uint64_t last_seq) {
  return {Code::sequence_conflict, "the log of job " + batch.job.text + " ends at " +
                                       std::to_string(last_seq) + ", not at " +
                                       std::to_string(batch.expected_seq) + ": load it again"};
}

}  // namespace

void check_batch(const Batch& batch) {
  const auto* create = std::get_if<Batch::Create>(&batch.authority);
  const bool held = std::holds_alternative<Batch::Held>(batch.authority);
  AE_CHECK(!batch.job.empty());
  AE_CHECK(std::ranges::is_sorted(batch.inbox_taken), batch.job.text);
  if (create != nullptr) AE_CHECK(batch.sealed && batch.expected_seq == 0, batch.job.text);
  if (std::holds_alternative<Batch::Late>(batch.authority)) {
    AE_CHECK(only_effects(batch), batch.job.text);
  }
  if (batch.release) AE_CHECK(held, batch.job.text);
  if (batch.checkpoint) AE_CHECK(held, batch.job.text);
  if (!batch.sealed) return;
  AE_CHECK(batch.sealed->first_seq == batch.expected_seq + 1, batch.job.text);
  AE_CHECK(batch.sealed->last_seq >= batch.sealed->first_seq, batch.job.text);
  AE_CHECK(!batch.sealed->bytes.empty(), batch.job.text);
  if (!may_run(batch.row.status)) {
    AE_CHECK(held ? batch.release : create == nullptr || !create->job.claim,
             batch.job.text + " would be " + batch.row.status + " and held");
  }
}

void check_claim(const ClaimRequest& request) {
  AE_CHECK(request.attempts.size() >= request.limit, request.worker);
  AE_CHECK(request.lease.count() > 0, request.worker);
}

void check_pruning(const Pruning& pruning) {
  AE_CHECK(!pruning.jobs.empty() && pruning.jobs.size() <= kPruneJobsMax,
           std::to_string(pruning.jobs.size()));
}

Status admit(const Batch& batch, const Standing& standing) {
  if (std::holds_alternative<Batch::Late>(batch.authority)) return {};
  if (const auto* held = std::get_if<Batch::Held>(&batch.authority)) {
    if (standing.claim != held->fence) return std::unexpected(not_the_holder(batch, held->fence));
  } else if (standing.claim) {
    return std::unexpected(somebody_holds(batch));
  }
  if (standing.last_seq != batch.expected_seq) {
    return std::unexpected(not_the_last(batch, standing.last_seq));
  }
  return {};
}

bool checks_first(const Batch& batch) {
  const auto* late = std::get_if<Batch::Late>(&batch.authority);
  return late != nullptr && late->first_commit;
}

Status admit_late(const Batch& batch, std::string_view first_commit) {
  if (std::get<Batch::Late>(batch.authority).first_commit == sha256(first_commit)) return {};
  return std::unexpected(other_bytes(batch.job, 1));
}

bool inbox_refuses(const Batch& batch, std::uint64_t entry) {
  return (batch.inbox_read && entry > *batch.inbox_read) ||
         (batch.release && !batch.leaves_inbox &&
          !std::ranges::binary_search(batch.inbox_taken, entry));
}

bool offers(const ClaimRequest& request, const std::string& agent,
            const std::vector<std::string>& capabilities) {
  const auto in = [](const auto& items, const auto& item) {
    return std::ranges::find(items, item) != items.end();
  };
  return (request.agents.empty() || in(request.agents, agent)) &&
         std::ranges::all_of(capabilities, [&](const std::string& needed) {
           return in(request.capabilities, needed);
         });
}

bool fits(const ClaimRequest& request, const Claimable& job) {
  return offers(request, job.agent, job.capabilities) &&
         std::ranges::find(request.except, job.job) == request.except.end();
}

std::optional<std::size_t> limit_of(const ClaimRequest& request, std::string_view queue) {
  const auto found = std::ranges::find(request.queues, queue, &QueueLimit::queue);
  if (found == request.queues.end()) return std::nullopt;
  return found->limit;
}

std::string turn_of(const std::vector<std::pair<std::string, std::string>>& labels,
                    std::string_view fair_by) {
  if (fair_by.empty()) return {};
  const auto found =
      std::ranges::find(labels, fair_by, &std::pair<std::string, std::string>::first);
  return found == labels.end() ? std::string() : found->second;
}

bool may_run(std::string_view status) { return status == "queued" || status == "running"; }

bool has_ended(std::string_view status) {
  return status == "completed" || status == "failed" || status == "cancelled";
}

namespace {

bool fits(const JobRow& row, const EndedFilter& filter) {
  return has_ended(row.status) && !row.claim && row.updated_at < filter.before &&
         (filter.statuses.empty() ||
          std::ranges::find(filter.statuses, row.status) != filter.statuses.end()) &&
         (filter.agent.empty() || row.agent == filter.agent) &&
         std::ranges::all_of(
             filter.labels,
             [&](const auto& label) {
               return std::ranges::find(row.labels, label) != row.labels.end();
             });
}

}  // namespace

EndedPage ended_of(std::vector<JobRow> looked_at, const EndedFilter& filter) {
  EndedPage page;
  const bool too_young = std::ranges::all_of(
      looked_at, [&](const JobRow& row) { return row.created_at >= filter.before; });
  if (looked_at.size() == kEndedLook && !too_young) page.next = looked_at.back().number;
  for (JobRow& row : looked_at) {
    if (!fits(row, filter)) continue;
    if (page.rows.size() == filter.limit) {
      page.next = page.rows.back().number;
      break;
    }
    page.rows.push_back(std::move(row));
  }
  return page;
}

Hash contents_of(const std::vector<Hash>& commits, const std::optional<std::string>& signed_head) {
  std::string text;
  const auto add = [&](const Hash& hash) {
    text.append(reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size());
  };
  for (const Hash& commit : commits) add(commit);
  if (signed_head) add(sha256(*signed_head));
  return sha256(text);
}

Status may_prune(const Pruning::Job& wish, const std::optional<Remains>& stands) {
  if (!stands) return std::unexpected(job_not_found(wish.job));
  if (stands->held) return std::unexpected(still_held(wish.job));
  const bool same = has_ended(stands->status) && stands->last_seq == wish.last_seq &&
                    stands->head == wish.head &&
                    (!wish.contents || stands->contents == wish.contents);
  if (same) return {};
  return fail(
      Code::sequence_conflict,
      "job " + wish.job.text + " has changed since it was read, or has not ended: reload it");
}

Ripeness ripeness(const RowState& row, const std::optional<Instant>& lease_until) {
  if (!may_run(row.status)) return {};
  if (lease_until) return {.ready = false, .at = lease_until};
  return {.ready = !row.not_before, .at = row.not_before};
}

Error job_not_found(const JobId& job) {
  return {Code::not_found, "no job " + job.text + " in this store"};
}

Error job_exists(const JobId& job) {
  return {Code::already_exists, "job " + job.text + " exists already: use another id, or read it"};
}

Error job_not_held(const JobId& job) {
  return {Code::not_held, "no worker holds job " + job.text + ": write to its log instead"};
}

Error inbox_not_empty(const JobId& job) {
  return {Code::inbox_pending, "something waits in the inbox of job " + job.text +
                                   ": apply it before releasing the job"};
}

Error other_bytes(const JobId& job, std::uint64_t first_seq) {
  return {Code::sequence_conflict, "the commit of job " + job.text + " that begins at event " +
                                       std::to_string(first_seq) +
                                       " is not the one that was read: load it again"};
}

Error other_effects(const JobId& job) {
  return {Code::sequence_conflict,
          "an effect of job " + job.text + " came meanwhile: load it again"};
}

Error still_held(const JobId& job) {
  return {Code::held, "job " + job.text + " is held by a worker: its values stay"};
}

Error effect_recorded(const JobId& job, const InvocationId& invocation) {
  return {Code::sequence_conflict, "the result of invocation " + invocation.text + " of job " +
                                       job.text + " has arrived: load the job again"};
}

}  // namespace ae::store
