// Rebuild: a store's rows, compared with what its logs say, or made anew from them.
//
// Each log is opened and folded as every reader does it; what its row must say follows (runtime/row.h). A log that cannot
// be read, or that ends before the store or a signed head knows it to end, is refused: its rows stay as they are, for they
// are all that tells of what is gone. Stopped at any moment, it is simply run again.
// Threads: one; it blocks. See store/rebuild.h, docs/data.md.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "plan/plan_cache.h"
#include "store/rebuild.h"

namespace ae::runtime {

// What follows from a log; nothing is believed but its commits. Fails with log_corrupt · needs_version · what `blobs`
// fails with.
Result<store::Projection> project(const store::StoredLog& log, const BlobSource& blobs,
                                  const engine::PlanCache& plans);

struct RebuildResult {
  struct DifferingJob {
    JobId job;  // empty: rows of no job
    std::vector<store::Difference> rows;
  };
  struct RefusedJob {
    JobId job;
    Error error;
  };
  std::uint64_t jobs = 0;            // looked at
  std::uint64_t differing_jobs = 0;  // all of them; the list below ends at kListedMax
  std::uint64_t refused_jobs = 0;
  std::vector<DifferingJob> differing;
  std::vector<RefusedJob> refused;
};
inline constexpr std::size_t kListedMax = 1000;  // jobs of which a RebuildResult tells the rows

struct RebuildProgress {
  std::uint64_t done = 0, jobs = 0;
};

// The first row that is written anew is noted in the audit log, in the same transaction. Fails with unavailable; what was
// kept before stays.
Result<RebuildResult> rebuild(store::Rebuild& store, const std::function<Instant()>& now,
                              const std::function<void(const RebuildProgress&)>& progress,
                              const std::string& by = {});

}  // namespace ae::runtime
