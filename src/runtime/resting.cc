// Jobs at rest, in the order of their last use.
#include "runtime/resting.h"

namespace ae::runtime {

std::size_t bytes_of(const store::Loaded& loaded) {
  std::size_t bytes = loaded.checkpoint ? loaded.checkpoint->bytes.size() : 0;
  for (const std::string& commit : loaded.commits) bytes += commit.size();
  for (const Blob& blob : loaded.blobs) bytes += blob.bytes.size();
  return bytes;
}

std::size_t bytes_of(const Sealed& sealed) {
  std::size_t bytes = sealed.bytes.size();
  for (const Blob& blob : sealed.blobs) bytes += blob.bytes.size();
  return bytes;
}

std::optional<Rested> RestingJobs::take(const JobId& job) {
  const auto found = by_job_.find(job);
  if (found == by_job_.end()) return std::nullopt;
  Rested rested = std::move(found->second->second);
  bytes_ -= rested.bytes;
  by_use_.erase(found->second);
  by_job_.erase(found);
  return rested;
}

void RestingJobs::keep(const JobId& job, Rested rested) {
  static_cast<void>(take(job));
  if (rested.bytes > kJobBytesMax) return;
  bytes_ += rested.bytes;
  by_use_.emplace_front(job, std::move(rested));
  by_job_.emplace(job, by_use_.begin());
  while (bytes_ > kBytesMax) static_cast<void>(take(JobId(by_use_.back().first)));
}

}  // namespace ae::runtime
