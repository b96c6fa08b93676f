// FaultyStore: wraps a store and injects faults: failures before or after the work, delays, and
// crashes of the caller.
//
// A script chooses the fault of each call by its number; the same script gives the same faults.
// Used by the conformance suite (fail the first call, then the second, …) and by the simulator.
// Threads: the loop's thread.
#pragma once

#include <fmt/core.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "async/loop.h"
#include "store/forwarding_store.h"

namespace ae::store {

// What happens to one call.
enum class Fault : std::uint8_t {
  none,
  fail_before,   // `unavailable`; the inner store is not called
  fail_after,    // it is done, then a write answers `unknown_outcome`, a read `unavailable`
  delay,         // the inner store is called later (later calls overtake it)
  delay_answer,  // it is done, the answer comes later
  crash_before,  // the caller crashes; the inner store is not called; no more answers
  crash_after,   // it is done, then the caller crashes
};

std::string_view to_text(Fault fault);

struct Call {
  std::uint64_t number = 0;            // from 1, over all methods
  std::uint64_t number_of_method = 0;  // from 1, of this method
  Method method{};
  std::uint64_t from_seq = 0;  // of a load; WindowRequest::seq
  bool is_leased = false;      // a commit of the holder of a lease
};

using FaultScript = std::function<Fault(const Call&)>;

// One fault, at the n-th call, or at the n-th call of a method.
FaultScript inject_at(std::uint64_t number, Fault fault);
FaultScript inject_at(Method method, std::uint64_t number_of_method, Fault fault);

struct FaultRates {  // per 1,000 calls; the rest succeed
  std::uint32_t fail_before = 0, fail_after = 0, delay = 0, delay_answer = 0;
};
FaultScript random_faults(async::RandomSource& random, FaultRates rates);  // borrows

class FaultyStore final : public ForwardingStore<FaultyStore> {
 public:
  struct Options {
    FaultScript script;
    Duration delay{100'000};
    std::function<void()> on_crash;  // called once; afterwards no call is answered
  };

  FaultyStore(async::Loop& loop, Store& inner, Options options);  // borrows both
  ~FaultyStore() override;

  std::uint64_t calls() const;  // so far
  bool crashed() const;

  void on_hint(std::function<void(const Hint&)> callback) override;
  void hint(const Hint& hint);  // simulates a hint of another process
  Instant latest_now() override;
  // Simulates a clock on another machine: latest_now() is later than now() by this.
  void set_clock_uncertainty(Duration by);

 private:
  friend ForwardingStore<FaultyStore>;
  struct State {
    async::Loop& loop;
    Store& inner;
    Options options;
    Duration clock_uncertainty{};
    std::uint64_t calls = 0;
    std::array<std::uint64_t, kMethods> number_of_method{};
    bool crashed = false;
    bool destroyed = false;  // the FaultyStore is destroyed: late calls do not reach `inner`
    void crash() {
      if (std::exchange(crashed, true)) return;
      if (options.on_crash) options.on_crash();
    }
  };
  Store& inner() const { return state_->inner; }
  template <class T, class Start>
  void call(MethodCall method_call, async::Done<Result<T>> done, Start start);

  std::function<void(const Hint&)> hint_callback_;
  std::shared_ptr<State> state_;  // shared with pending answers
};

}  // namespace ae::store

// Compiled once, in faulty_store.cc.
extern template class ae::store::ForwardingStore<ae::store::FaultyStore>;
