// Maintenance: redaction of values and deletion of jobs.
//
// Both name what they expect to find, so that a job that has changed since it was read is refused,
// and both write an audit entry in the same transaction.
// Limits: kPruneJobsMax jobs in one Pruning.
// Threads: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/ids.h"
#include "store/audit.h"
#include "store/rows.h"

namespace ae::store {

// Redaction of values of a job: its commits without them, and the new contents of its side records.
struct Redaction {
  JobId job;
  struct Commit {
    std::uint64_t first_seq = 0;
    Hash expected_hash;       // SHA-256 of the stored bytes
    std::string bytes;        // the same events, sealed, without the values
    std::vector<Hash> blobs;  // blobs that these bytes reference, each once
  };
  std::vector<Commit> commits;
  std::vector<EffectRow> effects;  // all effects of the job, with their new records
  AuditEntry audit;
};

// A place in the store's files that may still contain redacted values.
struct ResidualCopy {
  std::string what, where;
  std::string why;  // why it may, and how to remove them
};

// Jobs to delete, with everything that belongs to them.
struct Pruning {
  struct Job {
    JobId job;
    std::uint64_t last_seq = 0;  // as it was read
    Hash head;
    // Contents of the job as they were archived (content_hash_of in store/rules.h); nullopt = not
    // compared.
    std::optional<Hash> content_hash;
  };
  std::vector<Job> jobs;  // REQUIRES: at least one, each once, at most kPruneJobsMax
  AuditEntry audit;
};
inline constexpr std::size_t kPruneJobsMax = 64;

}  // namespace ae::store
