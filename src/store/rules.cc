#include "store/rules.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>

namespace ae::store {
namespace {

bool has_only_effects(const Batch& b) {
  return !b.sealed && b.effects_absent.empty() && b.ledger_put.empty() && b.ledger_erase.empty() &&
         b.inbox_consumed.empty() && b.inbox_replies.empty() && b.inbox_puts.empty() &&
         !b.release && !b.signed_head && !b.summary && !b.audit;
}

Error lease_lost(const JobId& job, const Fence& fence) {
  return {Code::stale_attempt,
          fmt::format("attempt {} (epoch {}) does not hold job {} any more: stop working on it",
                      fence.attempt.text, fence.epoch, job.text)};
}

Error job_is_leased(const Batch& batch) {
  return {Code::held, fmt::format("job {} is held by a worker: use its inbox", batch.job.text)};
}

Error wrong_expected_seq(const Batch& batch, std::uint64_t last_seq) {
  return {Code::sequence_conflict,
          fmt::format("the log of job {} ends at {}, not at {}: load it again", batch.job.text,
                      last_seq, batch.expected_seq)};
}

}  // namespace

void check_batch(const Batch& batch) {
  const auto* create = std::get_if<Batch::Create>(&batch.authority);
  const bool held = std::holds_alternative<Batch::Leased>(batch.authority);
  AE_CHECK(!batch.job.empty());
  AE_CHECK(std::ranges::is_sorted(batch.inbox_consumed), batch.job.text);
  AE_CHECK(
      std::ranges::includes(batch.inbox_consumed, batch.inbox_replies, {}, {}, &InboxReply::number),
      batch.job.text);
  if (create != nullptr) {
    AE_CHECK(batch.sealed && batch.expected_seq == 0 && batch.inbox_puts.empty(), batch.job.text);
  }
  if (batch.sender) {
    const bool may_have = create != nullptr
                              ? batch.sender->job != batch.job
                              : std::holds_alternative<Batch::Unleased>(batch.authority);
    AE_CHECK(may_have, batch.job.text);
  }
  for (const InboxPut& put : batch.inbox_puts) AE_CHECK(put.job != batch.job, batch.job.text);
  if (std::holds_alternative<Batch::LateResult>(batch.authority)) {
    AE_CHECK(has_only_effects(batch), batch.job.text);
  }
  if (batch.writes_row) {
    AE_CHECK(std::holds_alternative<Batch::Unleased>(batch.authority), batch.job.text);
  }
  if (batch.release) AE_CHECK(held, batch.job.text);
  if (batch.checkpoint) AE_CHECK(held, batch.job.text);
  if (batch.summary) AE_CHECK(batch.sealed.has_value(), batch.job.text);
  if (!batch.sealed) return;
  AE_CHECK(batch.sealed->first_seq == batch.expected_seq + 1, batch.job.text);
  AE_CHECK(batch.sealed->last_seq >= batch.sealed->first_seq, batch.job.text);
  AE_CHECK(!batch.sealed->bytes.empty(), batch.job.text);
  if (!is_runnable(batch.row.status)) {
    AE_CHECK(held ? batch.release : create == nullptr || !create->job->claim,
             fmt::format("{} would be {} and held", batch.job.text, batch.row.status));
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

Status check_precondition(const Batch& batch, const JobClaimState& job_state) {
  if (std::holds_alternative<Batch::LateResult>(batch.authority)) return {};
  if (const auto* held = std::get_if<Batch::Leased>(&batch.authority)) {
    if (job_state.claim != held->fence) return std::unexpected(lease_lost(batch.job, held->fence));
  } else if (job_state.claim) {
    return std::unexpected(job_is_leased(batch));
  }
  if (job_state.last_seq != batch.expected_seq) {
    return std::unexpected(wrong_expected_seq(batch, job_state.last_seq));
  }
  return {};
}

Status check_sender(const HeldJob& sender, const std::optional<Fence>& claim) {
  if (claim == sender.fence) return {};
  return std::unexpected(lease_lost(sender.job, sender.fence));
}

bool has_first_commit_check(const Batch& batch) {
  const auto* late = std::get_if<Batch::LateResult>(&batch.authority);
  return late != nullptr && late->first_commit;
}

Status check_late_precondition(const Batch& batch, std::string_view first_commit) {
  if (std::get<Batch::LateResult>(batch.authority).first_commit == sha256(first_commit)) return {};
  return std::unexpected(commit_changed(batch.job, 1));
}

bool is_refused_by_inbox(const Batch& batch, std::uint64_t entry) {
  return (batch.inbox_read_through && entry > *batch.inbox_read_through) ||
         (batch.release && !batch.keeps_inbox &&
          !std::ranges::binary_search(batch.inbox_consumed, entry));
}

bool satisfies(const ClaimRequest& request, const std::string& agent,
               const std::vector<std::string>& capabilities) {
  const auto in = [](const auto& items, const auto& item) {
    return std::ranges::find(items, item) != items.end();
  };
  return (request.agents.empty() || in(request.agents, agent)) &&
         std::ranges::all_of(capabilities, [&](const std::string& needed) {
           return in(request.capabilities, needed);
         });
}

bool matches(const ClaimRequest& request, const ClaimCandidate& job) {
  return satisfies(request, job.agent, job.capabilities) &&
         std::ranges::find(request.excluded_jobs, job.job) == request.excluded_jobs.end();
}

std::optional<std::size_t> queue_limit_of(const ClaimRequest& request, std::string_view queue) {
  const auto found = std::ranges::find(request.queues, queue, &QueueLimit::queue);
  if (found == request.queues.end()) return std::nullopt;
  return found->limit;
}

std::string fairness_key_of(const std::vector<std::pair<std::string, std::string>>& labels,
                            std::string_view fair_by) {
  if (fair_by.empty()) return {};
  const auto found =
      std::ranges::find(labels, fair_by, &std::pair<std::string, std::string>::first);
  return found == labels.end() ? std::string() : found->second;
}

bool is_runnable(std::string_view status) { return status == "queued" || status == "running"; }

bool is_blocked(std::string_view status) { return status == "waiting" || status == "parked"; }

bool has_ended(std::string_view status) {
  return status == "completed" || status == "failed" || status == "cancelled";
}

namespace {

bool matches(const JobRow& row, const EndedFilter& filter) {
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

EndedPage make_ended_page(std::vector<JobRow> scanned, const EndedFilter& filter) {
  EndedPage page;
  const bool are_all_too_new = std::ranges::all_of(
      scanned, [&](const JobRow& row) { return row.created_at >= filter.before; });
  if (scanned.size() == kEndedScanMax && !are_all_too_new) page.next = scanned.back().number;
  for (JobRow& row : scanned) {
    if (!matches(row, filter)) continue;
    if (page.rows.size() == filter.limit) {
      page.next = page.rows.back().number;
      break;
    }
    page.rows.push_back(std::move(row));
  }
  return page;
}

JobCount job_count(std::uint64_t examined, std::uint64_t matching) {
  return {.jobs = std::min(matching, kJobCountMax), .capped = examined > kJobCountMax};
}

bool matches(const CountFilter& filter, const JobRow& row) {
  return matches(Filter{.agent = filter.agent,
                        .queue = filter.queue,
                        .labels = filter.labels,
                        .created_from = filter.created_from},
                 row);
}

void PendingCounter::add(PendingKinds kinds, std::uint64_t examined, std::uint64_t matching) {
  examined_ += examined;
  for (PendingKinds kind = 1; kind < pending::not_computed; kind *= 2) {
    if ((kinds & kind) != 0) matching_[kind] += matching;
  }
}

std::map<PendingKinds, JobCount> PendingCounter::take() const {
  std::map<PendingKinds, JobCount> counts;
  for (PendingKinds kind = 1; kind < pending::not_computed; kind *= 2) {
    const auto found = matching_.find(kind);
    counts[kind] = job_count(examined_, found == matching_.end() ? 0 : found->second);
  }
  return counts;
}

bool matches(const Filter& filter, const JobRow& row) {
  const auto is_any_or = [](const std::string& wanted, const std::string& found) {
    return wanted.empty() || wanted == found;
  };
  const bool has_status = filter.statuses.empty() ||
                          std::ranges::find(filter.statuses, row.status) != filter.statuses.end();
  return has_status && is_any_or(filter.agent, row.agent) && is_any_or(filter.queue, row.queue) &&
         is_any_or(filter.error, row.summary ? row.summary->error : std::string()) &&
         is_any_or(filter.kind, row.summary ? row.summary->kind : std::string()) &&
         (row.summary ? row.summary->cost_micros : 0) >= filter.cost_min &&
         is_any_or(filter.forked_from, row.forked_from.value_or("")) &&
         (!filter.created_from || row.created_at >= *filter.created_from) &&
         (!filter.created_before || row.created_at < *filter.created_before) &&
         (!filter.updated_from || row.updated_at >= *filter.updated_from) &&
         (!filter.updated_before || row.updated_at < *filter.updated_before) &&
         (filter.pending == 0 || (row.pending & filter.pending) != 0) &&
         std::ranges::all_of(filter.labels, [&](const auto& label) {
           return std::ranges::find(row.labels, label) != row.labels.end();
         });
}

Hash content_hash_of(const std::vector<Hash>& commits,
                     const std::optional<std::string>& signed_head) {
  std::string text;
  const auto add = [&](const Hash& hash) {
    text.append(reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size());
  };
  for (const Hash& commit : commits) add(commit);
  if (signed_head) add(sha256(*signed_head));
  return sha256(text);
}

Status check_prunable(const Pruning::Job& requested,
                      const std::optional<PruneCandidate>& candidate) {
  if (!candidate) return std::unexpected(job_not_found(requested.job));
  if (candidate->held) return std::unexpected(job_still_leased(requested.job));
  const bool same = has_ended(candidate->status) && candidate->last_seq == requested.last_seq &&
                    candidate->head == requested.head &&
                    (!requested.content_hash || candidate->content_hash == requested.content_hash);
  if (same) return {};
  return fail(Code::sequence_conflict,
              "job {} has changed since it was read, or has not ended: reload it",
              requested.job.text);
}

Eligibility eligibility_of(const RowState& row, const std::optional<Instant>& lease_until) {
  if (!is_runnable(row.status)) return {};
  if (lease_until) return {.ready = false, .at = lease_until};
  return {.ready = !row.not_before, .at = row.not_before};
}

Error job_not_found(const JobId& job) {
  return {Code::not_found, fmt::format("no job {} in this store", job.text)};
}

Error commit_missing(const JobId& job) {
  return {Code::log_corrupt,
          fmt::format("a commit of job {} is missing in the store: restore it from a backup; a "
                      "rebuild finds the other commits",
                      job.text),
          Action{.act = act::kVerify, .job = job.text}};
}
std::size_t written_bytes(const Batch& batch) {
  std::size_t bytes = 0;
  for (const EffectRow& effect : batch.effects) bytes += effect.record.size();
  for (const InboxPut& put : batch.inbox_puts) bytes += put.entry.request.size();
  if (!batch.sealed) return bytes;
  bytes += batch.sealed->bytes.size();
  for (const Blob& blob : batch.sealed->blobs) bytes += blob.bytes.size();
  return bytes;
}

Error read_only_error() {
  return {Code::unavailable, "this store was opened for reading only: nothing can be written"};
}

Error job_exists(const JobId& job) {
  return {Code::already_exists,
          fmt::format("job {} exists already: use another id, or read it", job.text)};
}

Error job_not_leased(const JobId& job) {
  return {Code::not_held,
          fmt::format("no worker holds job {}: write to its log instead", job.text)};
}

Error inbox_not_empty(const JobId& job) {
  return {Code::inbox_pending,
          fmt::format("something waits in the inbox of job {}: apply it before releasing the job",
                      job.text)};
}

Error commit_changed(const JobId& job, std::uint64_t first_seq) {
  return {Code::sequence_conflict, fmt::format("the commit of job {} that begins at event {} is "
                                               "not the one that was read: load it again",
                                               job.text, first_seq)};
}

Error effects_changed(const JobId& job) {
  return {Code::sequence_conflict,
          fmt::format("an effect of job {} came meanwhile: load it again", job.text)};
}

Error job_still_leased(const JobId& job) {
  return {Code::held, fmt::format("job {} is held by a worker: its values stay", job.text)};
}

Error effect_recorded(const JobId& job, const InvocationId& invocation) {
  return {Code::sequence_conflict,
          fmt::format("the result of invocation {} of job {} has arrived: load the job again",
                      invocation.text, job.text)};
}

}  // namespace ae::store
