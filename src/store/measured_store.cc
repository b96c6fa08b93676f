#include "store/measured_store.h"

#include <chrono>

namespace ae::store {
namespace {

void note(OperationLatency& latency, Duration took, bool failed) {
  const double seconds = std::chrono::duration<double>(took).count();
  std::size_t i = 0;
  while (i < OperationLatency::kBounds.size() && seconds > OperationLatency::kBounds.at(i)) ++i;
  ++latency.buckets.at(i);
  latency.sum += seconds;
  latency.failures += failed ? 1 : 0;
}

bool is_unavailable(Code code) {
  return code == Code::unavailable || code == Code::unknown_outcome || code == Code::store_stopped;
}

// Does it write whenever it succeeds?
bool always_writes(Method method) {
  return method == Method::commit || method == Method::put_inbox ||
         method == Method::append_audit_entry;
}

}  // namespace

std::function<void(std::optional<Code>)> MeasuredStore::begin(Method method) {
  return [latencies = latencies_, write_failed = write_failed_, method, &steady = steady_,
          began = steady_.since_start()](std::optional<Code> error) {
    const Duration now = steady.since_start();
    const bool failed = error && is_unavailable(*error);
    note((*latencies)[to_text(method)], now - began, failed);
    if (!always_writes(method)) return;
    if (failed) *write_failed = now;
    if (!error) write_failed->reset();
  };
}

bool MeasuredStore::is_failing_writes() const {
  return *write_failed_ && steady_.since_start() - **write_failed_ < kWriteFailureTtl;
}

}  // namespace ae::store
