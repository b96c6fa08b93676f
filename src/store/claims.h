// Claims: who may write a job, and what a worker requests to get it.
//
// A claim gives a lease, which the store's clock measures, and a fence, which each commit of its
// holder contains.
// Threads: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/time.h"

namespace ae::store {

// Who may write: the attempt that holds the job's lease. Epochs strictly increase per job.
struct Fence {
  AttemptId attempt;
  std::uint64_t epoch = 0;
  friend bool operator==(const Fence&, const Fence&) = default;
};

// A job, and the claim under which it is held.
struct HeldJob {
  JobId job;
  Fence fence;
};

// The answer to a claim. The store's clock measures the lease: `lease_until` is read back from the
// statement that set it.
struct Lease {
  JobId job;
  Fence fence;
  Instant lease_until;
};

struct InitialClaimParams {  // for a job that is created with a lease
  std::string worker;
  AttemptId attempt;  // its epoch is 1
  Duration lease;
};

struct QueueLimit {
  std::string queue;
  std::size_t limit = 1;  // maximum of live claims of its jobs, of all workers
};

struct ClaimRequest {
  std::string worker;
  std::size_t limit = 1;
  Duration lease;
  std::vector<std::string> agents;        // only jobs of these; empty = any
  std::vector<std::string> capabilities;  // what the worker offers: only jobs that require no more
  // Fresh attempt ids, at most one is used per job. REQUIRES: size() >= limit
  std::vector<AttemptId> attempts;
  std::vector<JobId> excluded_jobs;  // jobs that this worker cannot run (needs_version)
  std::vector<QueueLimit> queues;  // checked in the claim's transaction; other queues have no limit
};

}  // namespace ae::store
