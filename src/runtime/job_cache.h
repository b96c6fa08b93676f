// JobCache: folded states of the jobs that this process ran or read last, so that the next read
// loads only newer events. The cost of waking a job for a message does not grow with its log.
//
// An entry is a copy, like a checkpoint: it is used only if the log still contains the entry's last
// event with the same hash, and losing it costs one read of the log. Bounded in bytes; the least
// recently used entry is evicted first.
// Threads: the loop's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <utility>

#include "base/hash.h"
#include "base/ids.h"
#include "engine/state/state.h"
#include "log/seal.h"
#include "store/store.h"

namespace ae::runtime {

struct CachedJob {
  engine::State state;
  Hash head;              // of event state.seq
  std::size_t bytes = 0;  // approximate size of the state in memory: bytes_of what it was read from
  std::uint64_t checkpoint_seq = 0, checkpoint_bytes = 0;  // of the newest checkpoint
};

// Approximate memory that the folded state occupies, or that these events add to it.
std::size_t bytes_of(const store::LoadedJob& loaded);
std::size_t bytes_of(const SealedBatch& sealed);
std::size_t bytes_of_checkpoint(std::size_t size);

class JobCache {
 public:
  static constexpr std::size_t kBytesMax = 64u << 20, kJobBytesMax = 32u << 20;

  // Removes the job from the cache and returns it.
  std::optional<CachedJob> extract(const JobId& job);
  // REQUIRES: the state is exactly the fold of the log up to its seq.
  void insert(const JobId& job, CachedJob cached);

 private:
  using Entry = std::pair<JobId, CachedJob>;
  std::list<Entry> by_use_;  // most recently used first
  std::map<JobId, std::list<Entry>::iterator> by_job_;
  std::size_t bytes_ = 0;
};

}  // namespace ae::runtime
