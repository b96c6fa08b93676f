// rebuild: compares a store's rows with its logs, or rewrites them from the logs.
//
// Each log is opened and folded like for any reader; the contents of its row follow
// (runtime/row.h). A log that cannot be read, or that ends before the end known to the store or to
// a signed head, is refused: its rows are kept, because they are the only evidence of the missing
// events. A rebuild can be interrupted at any time and run again.
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

// Everything that follows from a log; only its commits are trusted. Fails with log_corrupt ·
// needs_version · the errors of `blobs`.
Result<store::Projection> project(const store::StoredLog& log, const BlobSource& blobs,
                                  const engine::PlanCache& plans);

struct RebuildResult {
  struct DifferingJob {
    JobId job;  // empty: rows that belong to no job
    std::vector<store::Difference> rows;
  };
  struct RefusedJob {
    JobId job;
    Error error;
  };
  std::uint64_t jobs = 0;            // checked
  std::uint64_t differing_jobs = 0;  // total; the list below ends at kListedMax
  std::uint64_t refused_jobs = 0;
  std::vector<DifferingJob> differing;
  std::vector<RefusedJob> refused;
};
inline constexpr std::size_t kListedMax = 1000;  // jobs whose rows a RebuildResult lists

struct RebuildProgress {
  std::uint64_t done = 0, jobs = 0;
};

// The first rewritten row is recorded in the audit log, in the same transaction. Fails with
// unavailable; rows written before the failure stay.
Result<RebuildResult> rebuild(store::Rebuild& store, const std::function<Instant()>& now,
                              const std::function<void(const RebuildProgress&)>& progress,
                              const std::string& by = {});

}  // namespace ae::runtime
