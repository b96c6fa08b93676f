// MeasuredStore: counts the operations and failures of the store that it wraps, and measures their
// latency.
//
// Threads: the loop's.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "async/loop.h"
#include "base/error.h"
#include "base/time.h"
#include "store/forwarding_store.h"
#include "store/store.h"

namespace ae::store {

struct OperationLatency {
  static constexpr std::array<double, 12> kBounds{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                                                  0.05,   0.1,   0.25,   0.5,   1,    5};
  std::array<std::uint64_t, kBounds.size() + 1> buckets{};
  double sum = 0;  // seconds
  // Answers with unavailable, unknown_outcome or store_stopped.
  std::uint64_t failures = 0;
};

constexpr Duration kWriteFailureTtl = std::chrono::seconds(10);

class MeasuredStore final : public ForwardingStore<MeasuredStore> {
 public:
  // Borrows both; `inner` must not answer after `steady` is gone.
  MeasuredStore(Store& inner, async::SteadyClock& steady)
      : ForwardingStore(&inner), steady_(steady) {}

  // By operation.
  const std::map<std::string_view, OperationLatency>& latencies() const { return *latencies_; }

  // True if the last write failed because the store was unavailable (for example a full disk) less
  // than kWriteFailureTtl ago.
  bool is_failing_writes() const;

 private:
  friend ForwardingStore<MeasuredStore>;
  using Latencies = std::map<std::string_view, OperationLatency>;

  template <class T, class Start>
  void forward(Method method, async::Done<Result<T>> done, Start start) {
    start(inner(), async::Done<Result<T>>([latencies = latencies_, write_failed = write_failed_,
                                           &steady = steady_, method, began = steady_.since_start(),
                                           done = std::move(done)](Result<T> answer) mutable {
            const Duration now = steady.since_start();
            const bool failed = !answer && is_failure(answer.error().code);
            note((*latencies)[to_text(method)], now - began, failed);
            if (always_writes(method)) {
              if (failed) *write_failed = now;
              if (answer) write_failed->reset();
            }
            done(std::move(answer));
          }));
  }
  static bool is_failure(Code code) {
    return code == Code::unavailable || code == Code::unknown_outcome ||
           code == Code::store_stopped;
  }
  // True for the operations that write whenever they succeed.
  static bool always_writes(Method method) {
    return method == Method::commit || method == Method::put_inbox ||
           method == Method::append_audit_entry;
  }
  static void note(OperationLatency& latency, Duration took, bool failed);

  async::SteadyClock& steady_;
  std::shared_ptr<Latencies> latencies_ =
      std::make_shared<Latencies>();  // shared: answers may arrive later
  // When the last write failed; nullopt: it succeeded.
  std::shared_ptr<std::optional<Duration>> write_failed_ =
      std::make_shared<std::optional<Duration>>();
};

}  // namespace ae::store
