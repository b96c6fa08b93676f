// SimRandom: the random source of a simulated world.
//
// splitmix64; equal last numbers show that two runs were the same.
// Threads: one.
#pragma once

#include <algorithm>
#include <cstdint>

#include "async/loop.h"
#include "base/time.h"

namespace ae::sim {

class SimRandom : public async::RandomSource {
 public:
  explicit SimRandom(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() override {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  }
  std::uint64_t below(std::uint64_t n) { return next() % n; }      // REQUIRES: n > 0
  bool one_in(std::uint64_t n) { return n > 0 && below(n) == 0; }  // 0 = never; draws nothing
  // A duration from `low` up to, but excluding, `high`.
  Duration between(Duration low, Duration high) {
    const auto span = static_cast<std::uint64_t>(std::max<std::int64_t>(1, (high - low).count()));
    return low + Duration(static_cast<std::int64_t>(below(span)));
  }

 private:
  std::uint64_t state_;
};

}  // namespace ae::sim
