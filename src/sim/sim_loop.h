// The simulated loop, clock and chance: one thread, one seed, time that passes only when nothing else is to be done.
// Threads: one.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "async/loop.h"

namespace ae::sim {

// xoshiro-like generator; the last number drawn tells whether two runs were the same.
class SimChance : public async::Chance {
 public:
  explicit SimChance(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() override {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  }
  std::uint64_t below(std::uint64_t n) { return next() % n; }

 private:
  std::uint64_t state_;
};

class SimLoop : public async::Loop, public async::Clock, public async::SteadyClock {
 public:
  void post(async::Task task) override {
    tasks_.emplace(std::pair(now_, ++order_), std::move(task));
  }
  async::TimerId after(Duration delay, async::Task task) override {
    const Instant at = now_ + std::max(delay, Duration(0));
    tasks_.emplace(std::pair(at, ++order_), std::move(task));
    timers_[order_] = at;
    return order_;
  }
  void forget(async::TimerId timer) override {
    auto it = timers_.find(timer);
    if (it == timers_.end()) return;
    tasks_.erase({it->second, timer});
    timers_.erase(it);
  }
  Instant now() override { return now_; }
  Duration since_start() override { return now_ - kStart; }

  // Runs the next task; false when there is none.
  bool step() {
    if (tasks_.empty()) return false;
    auto it = tasks_.begin();
    now_ = std::max(now_, it->first.first);
    async::Task task = std::move(it->second);
    timers_.erase(it->first.second);
    tasks_.erase(it);
    task();
    return true;
  }
  // Until `done` says so, `until` has come, or nothing is left to do. True when `done`.
  template <class Done>
  bool run(Done done, Instant until) {
    while (!done()) {
      if (tasks_.empty() || tasks_.begin()->first.first > until) {
        now_ = std::max(now_, until);
        return false;
      }
      step();
    }
    return true;
  }
  // A crash: whatever was to be done is forgotten.
  void clear() {
    tasks_.clear();
    timers_.clear();
  }

 private:
  static constexpr Instant kStart{1'700'000'000'000'000};
  Instant now_ = kStart;
  std::uint64_t order_ = 0;
  std::map<std::pair<Instant, std::uint64_t>, async::Task> tasks_;
  std::map<std::uint64_t, Instant> timers_;
};

}  // namespace ae::sim
