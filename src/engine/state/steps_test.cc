// The steps of a job by index and by id, and the small sets of steps and tries.
#include "engine/state/steps.h"

#include <algorithm>
#include <set>

#include "base/hash.h"
#include "engine/state/number_set.h"
#include "testing/test.h"

namespace ae::engine {
namespace {

StepId id_of(std::uint32_t n) { return StepId(to_hex(sha256(std::to_string(n))).substr(0, 16)); }

Steps steps_of(std::uint32_t count) {
  Steps steps;
  for (std::uint32_t n = 0; n < count; ++n) steps.add(id_of(n)).node = n;
  return steps;
}

AE_TEST("state/steps are found by id, and no others") {
  Steps steps;
  EXPECT_EQ(steps.index_of(id_of(0)), kNoStep);
  for (std::uint32_t n = 0; n < 1'000; ++n) {
    steps.add(id_of(n));
    EXPECT_EQ(steps.index_of(id_of(n)), n);
    EXPECT_EQ(steps.index_of(id_of(n + 1)), kNoStep);
  }
  for (std::uint32_t n = 0; n < 1'000; ++n) EXPECT_EQ(steps.index_of(id_of(n)), n);
}

AE_TEST("state/steps keep their order and their place in memory") {
  Steps steps = steps_of(1);
  const Step* const first = &steps[0];
  for (std::uint32_t n = 1; n < 100; ++n) steps.add(id_of(n)).node = n;
  EXPECT_EQ(&steps[0], first);
  std::uint32_t n = 0;
  for (const Step& step : steps) EXPECT_EQ(step.node, n++);
  EXPECT_EQ(n, 100u);
  const auto found = std::ranges::find(steps, 7u, &Step::node);
  EXPECT_EQ(found - steps.begin(), 7);
}

AE_TEST("state/ids of any length are found, also if they begin and end alike") {
  Steps steps;
  const std::string_view ids[] = {"",
                                  "a",
                                  "b",
                                  "ab",
                                  "abc",
                                  "abcdefgh",
                                  "abcdefghi",
                                  "abcdefgh-1-abcdefgh",
                                  "abcdefgh-2-abcdefgh"};
  for (const std::string_view id : ids) steps.add(StepId(id));
  for (std::uint32_t n = 0; n < std::size(ids); ++n) {
    EXPECT_EQ(steps.index_of(StepId(ids[n])), n);
  }
  EXPECT_EQ(steps.index_of(StepId("abcdefgh-3-abcdefgh")), kNoStep);
}

AE_TEST("state/of two steps with one id the first one is found") {
  Steps steps = steps_of(100);
  steps.add(id_of(7));
  EXPECT_EQ(steps.index_of(id_of(7)), 7u);
}

AE_TEST("state/a step whose id changes is found by its new id only") {
  Steps steps = steps_of(100);
  for (std::uint32_t n = 0; n < 100; ++n) steps.set_id(n, id_of(1'000 + n));
  steps.set_id(3, id_of(1'003));
  for (std::uint32_t n = 0; n < 100; ++n) {
    EXPECT_EQ(steps.index_of(id_of(n)), kNoStep);
    EXPECT_EQ(steps.index_of(id_of(1'000 + n)), n);
  }
}

AE_TEST("state/a set of numbers holds each once, in ascending order") {
  NumberSet numbers;
  std::set<std::uint32_t> expected;
  for (std::uint32_t i = 0; i < 500; ++i) {
    const std::uint32_t number = i * 7919 % 101;
    const bool in = i % 3 != 0;
    numbers.set(number, in);
    if (in) {
      expected.insert(number);
    } else {
      expected.erase(number);
    }
    ASSERT_TRUE(std::ranges::equal(numbers, expected));
    EXPECT_EQ(numbers.contains(number), in);
    EXPECT_EQ(numbers.empty() ? 0 : numbers.last(), expected.empty() ? 0 : *expected.rbegin());
  }
  const auto at = numbers.lower_bound(50);
  EXPECT_TRUE(at == numbers.end() || *at >= 50);
}

}  // namespace
}  // namespace ae::engine
