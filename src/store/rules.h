// Rules that all store drivers share: commit preconditions, eligibility for claims, and error
// messages.
//
// A driver reads the job's state inside its transaction and passes it to these functions.
// Threads: pure functions.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "store/store.h"

namespace ae::store {

// AE_CHECK the REQUIRES of store.h: a violation is a bug of the caller.
void check_batch(const Batch& batch);
void check_claim(const ClaimRequest& request);
void check_pruning(const Pruning& pruning);

// What a commit must know of an existing job.
struct JobClaimState {
  std::uint64_t last_seq = 0;
  std::optional<Fence> claim;  // live or expired
};

// Checks authority, then seq. Not for Create. Duplicates are detected before this, the inbox is
// checked after it.
Status check_precondition(const Batch& batch, const JobClaimState& job_state);
// `claim`: of the sender, live or expired; nullopt = none, or there is no such job.
Status check_sender(const HeldJob& sender, const std::optional<Fence>& claim);
// True for a LateResult with `first_commit`, which check_late_precondition compares with the stored
// first commit.
bool has_first_commit_check(const Batch& batch);
Status check_late_precondition(const Batch& batch, std::string_view first_commit);

// True if this inbox entry refuses the batch: the release would leave it behind, or it arrived
// after `inbox_read_through`.
bool is_refused_by_inbox(const Batch& batch, std::uint64_t entry);

// Queued or running: claimable statuses.
bool is_runnable(std::string_view status);

// Waiting or parked.
bool is_blocked(std::string_view status);

// Completed, failed or cancelled.
bool has_ended(std::string_view status);
// The answer of `list_ended`. `scanned` holds the next kEndedScanMax rows, or all that are left, in
// order of creation.
EndedPage make_ended_page(std::vector<JobRow> scanned, const EndedFilter& filter);

// Is the row in the answer of `query`? Without the cursor.
bool matches(const Filter& filter, const JobRow& row);

// A job's priority is from -kPriorityMax to kPriorityMax.
inline constexpr int kPriorityMax = 1000;

// The statuses of a job, those of jobs that have not ended first.
inline constexpr std::array<std::string_view, 7> kJobStatuses{
    "queued", "running", "waiting", "parked", "completed", "failed", "cancelled"};
inline constexpr std::span kOpenStatuses = std::span(kJobStatuses).first<4>();
// All but `completed` have an index.
inline constexpr std::string_view kCompleted = kJobStatuses[4];
inline constexpr auto kIndexedStatuses = [] {
  std::array<std::string_view, kJobStatuses.size() - 1> indexed;
  std::ranges::remove_copy(kJobStatuses, indexed.begin(), kCompleted);
  return indexed;
}();
// A count of which `examined` jobs were read, kJobCountMax + 1 if there are more.
JobCount job_count(std::uint64_t examined, std::uint64_t matching);
bool matches(const CountFilter& filter, const JobRow& row);
// Counts jobs by each kind of request that they may have open.
class PendingCounter {
 public:
  // Jobs with this set; `matching` of them are counted.
  void add(PendingKinds kinds, std::uint64_t examined, std::uint64_t matching);
  std::map<PendingKinds, JobCount> take() const;

 private:
  std::uint64_t examined_ = 0;
  std::map<PendingKinds, std::uint64_t> matching_;
};

// Hash of a job's contents for a pruning: the SHA-256 of its commits, in order, and its signed
// head.
Hash content_hash_of(const std::vector<Hash>& commits,
                     const std::optional<std::string>& signed_head);
// What a pruning must know of a job; whether the job may be deleted.
struct PruneCandidate {
  std::string status;
  bool held = false;
  std::uint64_t last_seq = 0;
  Hash head;
  std::optional<Hash> content_hash;  // if the pruning contains one
};
Status check_prunable(const Pruning::Job& requested,
                      const std::optional<PruneCandidate>& candidate);

// When a job can be claimed: now, at an instant, or (neither) not by the passage of time.
struct Eligibility {
  bool ready = false;
  std::optional<Instant> at;
};
Eligibility eligibility_of(const RowState& row, const std::optional<Instant>& lease_until);

// What a claim checks besides the time: agent, excluded jobs, and whether the worker offers what
// the job requires.
struct ClaimCandidate {
  const JobId& job;
  const std::string& agent;
  const std::vector<std::string>& capabilities;
};
bool matches(const ClaimRequest& request, const ClaimCandidate& job);
// The same without the excluded jobs: may this worker run jobs of this agent with these
// capabilities?
bool satisfies(const ClaimRequest& request, const std::string& agent,
               const std::vector<std::string>& capabilities);
// The excluded jobs of a request as a set, for repeated lookups.
class ExcludedJobs {
 public:
  explicit ExcludedJobs(const ClaimRequest& request)
      : jobs_(request.excluded_jobs.begin(), request.excluded_jobs.end()) {}
  bool contains(const JobId& job) const { return jobs_.contains(job); }

 private:
  std::unordered_set<JobId> jobs_;
};

// How many jobs of this queue may be leased at once; nullopt = no limit.
std::optional<std::size_t> queue_limit_of(const ClaimRequest& request, std::string_view queue);

// The fairness key of a job: its value of the label `fair_by`; "" without one.
std::string fairness_key_of(const std::vector<std::pair<std::string, std::string>>& labels,
                            std::string_view fair_by);

// About how many bytes the batch writes.
std::size_t written_bytes(const Batch& batch);

Error read_only_error();
Error job_not_found(const JobId& job);
Error commit_missing(const JobId& job);
Error job_exists(const JobId& job);
Error job_not_leased(const JobId& job);
Error inbox_not_empty(const JobId& job);
Error commit_changed(const JobId& job, std::uint64_t first_seq);
Error effects_changed(const JobId& job);
Error job_still_leased(const JobId& job);
Error effect_recorded(const JobId& job, const InvocationId& invocation);

}  // namespace ae::store
