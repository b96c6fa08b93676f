// What every driver decides alike: who may commit, what may be claimed, and the sentences of refusals.
//
// A driver reads a job's standing inside its transaction and asks here; only the reading and writing is its own.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/error.h"
#include "store/store.h"

namespace ae::store {

// A batch that breaks a REQUIRES of store.h is a bug of the caller (AE_CHECK).
void check_batch(const Batch& batch);
void check_claim(const ClaimRequest& request);

// What a commit must know of an existing job.
struct Standing {
  std::uint64_t last_seq = 0;
  std::optional<Fence> claim;  // live or expired
};

// Authority, then seq. Not for Create. The `repeated` case comes before this, the inbox after it.
Status admit(const Batch& batch, const Standing& standing);

// Queued or running: what a claim may take.
bool may_run(std::string_view status);

Error job_not_found(const JobId& job);
Error job_exists(const JobId& job);
Error job_not_held(const JobId& job);
Error inbox_not_empty(const JobId& job);
Error effect_recorded(const JobId& job, const InvocationId& invocation);

}  // namespace ae::store
