// JobCache: an LRU list of idle jobs.
#include "runtime/job_cache.h"

namespace ae::runtime {

// A call with its closed wait: 240 bytes in a checkpoint, 1.8 KB in memory.
std::size_t bytes_of_checkpoint(std::size_t size) { return 8 * size; }

std::size_t bytes_of(const store::LoadedJob& loaded) {
  std::size_t bytes = loaded.checkpoint ? bytes_of_checkpoint(loaded.checkpoint->bytes.size()) : 0;
  for (const std::string& commit : loaded.commits) bytes += commit.size();
  for (const Blob& blob : loaded.blobs) bytes += blob.bytes.size();
  return bytes;
}

std::size_t bytes_of(const SealedBatch& sealed) {
  std::size_t bytes = sealed.bytes.size();
  for (const Blob& blob : sealed.blobs) bytes += blob.bytes.size();
  return bytes;
}

std::optional<CachedJob> JobCache::extract(const JobId& job) {
  const auto found = by_job_.find(job);
  if (found == by_job_.end()) return std::nullopt;
  CachedJob cached = std::move(found->second->second);
  bytes_ -= cached.bytes;
  by_use_.erase(found->second);
  by_job_.erase(found);
  return cached;
}

void JobCache::insert(const JobId& job, CachedJob cached) {
  static_cast<void>(extract(job));
  if (cached.bytes > kJobBytesMax) return;
  bytes_ += cached.bytes;
  by_use_.emplace_front(job, std::move(cached));
  by_job_.emplace(job, by_use_.begin());
  while (bytes_ > kBytesMax) static_cast<void>(extract(JobId(by_use_.back().first)));
}

}  // namespace ae::runtime
