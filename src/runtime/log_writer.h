// The common parts of every commit that extends a job's log.
//
// Threads: the loop's (they draw from the process's random source).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/hash.h"
#include "base/ids.h"
#include "base/time.h"
#include "log/seal.h"
#include "runtime/world.h"
#include "store/store.h"

namespace ae::runtime {

// The last event of a job's log; seq 0 and a zero hash: the job is new. Borrows.
struct LogEnd {
  const JobId& job;
  std::uint64_t seq;
  const Hash& head;
};

// How to seal the next commit, with a fresh event id and fresh salts.
SealInput next_commit(World& world, const LogEnd& end, Instant now,
                      std::optional<AttemptId> attempt);

// Adds the signed head for a log that ends with this event, if this process signs heads.
void sign_head(const World& world, std::uint64_t seq, const Hash& head, Instant now,
               store::Batch& batch);

}  // namespace ae::runtime
