// Dice: random choices from a seed, and the seeds of a property test.
//
// For tests only. Threads: one owner.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <random>
#include <string>
#include <string_view>

#include "testing/test.h"

namespace ae::engine::testing {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t below(std::uint64_t n) { return engine_() % n; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  template <class Container>
  auto& pick(Container& all) {
    auto it = all.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(below(all.size())));
    return *it;
  }

 private:
  std::mt19937_64 engine_;
};

// AETHERIS_SEED, or a fixed seed. A failing test names the seed that repeats it.
// Slow tests use more seeds.
inline std::uint64_t first_seed() {
  const char* env = std::getenv("AETHERIS_SEED");
  return env ? std::strtoull(env, nullptr, 10) : 1;
}
inline std::uint64_t seeds(std::uint64_t usual) {
  if (std::getenv("AETHERIS_SEED")) return 1;
  return ::ae::testing::are_slow_tests_enabled() ? usual * 50 : usual;
}
inline std::string repeat(std::uint64_t seed, std::string_view test) {
  return fmt::format(
      "SEED {0}; repeat: AETHERIS_SEED={0} build/dev/tests/engine_test --gtest_filter='{1}'", seed,
      test);
}

}  // namespace ae::engine::testing
