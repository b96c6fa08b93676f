#include "store/measured_store.h"

#include <chrono>

namespace ae::store {

void MeasuredStore::note(OperationLatency& latency, Duration took, bool failed) {
  const double seconds = std::chrono::duration<double>(took).count();
  std::size_t i = 0;
  while (i < OperationLatency::kBounds.size() && seconds > OperationLatency::kBounds.at(i)) ++i;
  ++latency.buckets.at(i);
  latency.sum += seconds;
  latency.failures += failed ? 1 : 0;
}

bool MeasuredStore::is_failing_writes() const {
  return *write_failed_ && steady_.since_start() - **write_failed_ < kWriteFailureTtl;
}

}  // namespace ae::store
