// MeasuredStore: counts the operations and failures of the store that it wraps, and measures their
// latency.
//
// Threads: the loop's.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "store/forwarding_store.h"

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
  MeasuredStore(Store& inner, async::SteadyClock& steady) : inner_(inner), steady_(steady) {}

  // By operation.
  const std::map<std::string_view, OperationLatency>& latencies() const { return *latencies_; }

  // True if the last write failed because the store was unavailable (for example a full disk) less
  // than kWriteFailureMemory ago.
  bool is_failing_writes() const;

 private:
  friend ForwardingStore<MeasuredStore>;
  using Latencies = std::map<std::string_view, OperationLatency>;
  Store& inner() const { return inner_; }
  template <class T, class Start>
  void call(MethodCall method_call, async::Done<Result<T>> done, Start start) {
    start(inner_,
          [record = begin(method_call.method), done = std::move(done)](Result<T> answer) mutable {
            record(answer ? std::nullopt : std::optional(answer.error().code));
            done(std::move(answer));
          });
  }
  // Starts the measurement of a call; the result takes the error of its answer.
  std::function<void(std::optional<Code>)> begin(Method method);

  Store& inner_;
  async::SteadyClock& steady_;
  std::shared_ptr<Latencies> latencies_ =
      std::make_shared<Latencies>();  // shared: answers may arrive later
  // When the last write failed; nullopt: it succeeded.
  std::shared_ptr<std::optional<Duration>> write_failed_ =
      std::make_shared<std::optional<Duration>>();
};

}  // namespace ae::store
