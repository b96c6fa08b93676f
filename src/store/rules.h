// What every driver decides alike: who may commit, what may be claimed, and the sentences of refusals.
//
// A driver reads a job's standing inside its transaction and asks here; only the reading and writing is its own.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "store/store.h"

namespace ae::store {

// A batch that breaks a REQUIRES of store.h is a bug of the caller (AE_CHECK).
void check_batch(const Batch& batch);
void check_claim(const ClaimRequest& request);
void check_pruning(const Pruning& pruning);

// What a commit must know of an existing job.
struct JobClaimState {
  std::uint64_t last_seq = 0;
  std::optional<Fence> claim;  // live or expired
};

// Authority, then seq. Not for Create. The `repeated` case comes before this, the inbox after it.
Status check_precondition(const Batch& batch, const JobClaimState& standing);
// Of a batch that has_first_commit_check: is this still the first commit that its writer read?
bool has_first_commit_check(const Batch& batch);
Status check_late_precondition(const Batch& batch, std::string_view first_commit);

// Does an entry of the inbox refuse this batch: one that is left behind by a release, or that came after what was read?
bool is_refused_by_inbox(const Batch& batch, std::uint64_t entry);

// Queued or running: what a claim may take.
bool may_run(std::string_view status);

// Completed, failed or cancelled.
bool has_ended(std::string_view status);
// What `ended` answers, of the next kEndedScanMax rows, or all that are left, in order of creation.
EndedPage make_ended_page(std::vector<JobRow> scanned, const EndedFilter& filter);

// What a pruning says of the contents of a job: the commits' SHA-256, in order, and its signed head.
Hash content_hash_of(const std::vector<Hash>& commits,
                     const std::optional<std::string>& signed_head);
// What a pruning must know of a job, and whether it may go.
struct PruneCandidate {
  std::string status;
  bool held = false;
  std::uint64_t last_seq = 0;
  Hash head;
  std::optional<Hash> content_hash;  // if it was asked for
};
Status check_prunable(const Pruning::Job& requested, const std::optional<PruneCandidate>& stands);

// When a job may be claimed: at once, at an instant, or not by the passing of time.
struct Eligibility {
  bool ready = false;
  std::optional<Instant> at;
};
Eligibility eligibility_of(const RowState& row, const std::optional<Instant>& lease_until);

// What a claim looks at beside the time: its agents, its exceptions, and that the worker offers what the job needs.
struct ClaimCandidate {
  const JobId& job;
  const std::string& agent;
  const std::vector<std::string>& capabilities;
};
bool matches(const ClaimRequest& request, const ClaimCandidate& job);
// The same without the exceptions: may this worker take jobs that ask for this?
bool satisfies(const ClaimRequest& request, const std::string& agent,
               const std::vector<std::string>& capabilities);
// The exceptions of a request, for who asks often.
class ExcludedJobs {
 public:
  explicit ExcludedJobs(const ClaimRequest& request)
      : jobs_(request.excluded_jobs.begin(), request.excluded_jobs.end()) {}
  bool contains(const JobId& job) const { return jobs_.contains(job); }

 private:
  std::unordered_set<JobId> jobs_;
};

// How many jobs of this queue may be held at once; nullopt = any number.
std::optional<std::size_t> queue_limit_of(const ClaimRequest& request, std::string_view queue);

// Whose turn a job waits for: its value of the label between whose values a store takes turns; "" without one.
std::string fairness_key_of(const std::vector<std::pair<std::string, std::string>>& labels,
                            std::string_view fair_by);

Error job_not_found(const JobId& job);
Error job_exists(const JobId& job);
Error job_not_leased(const JobId& job);
Error inbox_not_empty(const JobId& job);
Error commit_changed(const JobId& job, std::uint64_t first_seq);
Error effects_changed(const JobId& job);
Error job_still_leased(const JobId& job);
Error effect_recorded(const JobId& job, const InvocationId& invocation);

}  // namespace ae::store
