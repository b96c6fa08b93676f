// JobCache: the jobs that this process held or looked at last, folded, so that the next look reads only what has come
// since. A conversation that is woken for each message costs what the message costs, not what its log does.
//
// What rests here is a copy like a checkpoint: it is used only when the log still goes through the event that it ends
// with, and losing it costs a reading of the log. Bounded in bytes; what was used least lately goes first.
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
  std::size_t bytes = 0;  // about what the state holds: the size of what it was folded from
  std::uint64_t checkpoint_seq = 0, checkpoint_bytes = 0;  // of the newest checkpoint
};

// About what stays in memory once it is folded.
std::size_t bytes_of(const store::LoadedJob& loaded);
std::size_t bytes_of(const SealedBatch& sealed);

class JobCache {
 public:
  static constexpr std::size_t kBytesMax = 32u << 20, kJobBytesMax = 2u << 20;

  // Takes the job out.
  std::optional<CachedJob> take(const JobId& job);
  // REQUIRES: the state is the fold of the log up to its seq, and nothing else.
  void put(const JobId& job, CachedJob cached);

 private:
  using Entry = std::pair<JobId, CachedJob>;
  std::list<Entry> by_use_;  // the last used first
  std::map<JobId, std::list<Entry>::iterator> by_job_;
  std::size_t bytes_ = 0;
};

}  // namespace ae::runtime
