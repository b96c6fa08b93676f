// Finding steps by id, and the small sets of steps and tries.
#include "engine/state/steps_by_id.h"

#include <set>

#include "engine/state/number_set.h"
#include "testing/test.h"

namespace ae::engine {
namespace {

StepId id_of(std::uint32_t n) { return StepId(to_hex(sha256(std::to_string(n))).substr(0, 16)); }

struct Fixture {
  StepsById::Steps steps;
  StepsById by_id;
  bool add(const StepId& id) {
    steps.emplace_back().id = id;
    return by_id.add(static_cast<std::uint32_t>(steps.size() - 1), steps);
  }
  std::uint32_t find(const StepId& id) const { return by_id.find(id, steps); }
};

AE_TEST("state/steps are found by id, and no others") {
  Fixture job;
  EXPECT_EQ(job.find(id_of(0)), kNoStep);
  for (std::uint32_t n = 0; n < 1'000; ++n) {
    EXPECT_TRUE(job.add(id_of(n)));
    EXPECT_EQ(job.find(id_of(n)), n);
    EXPECT_EQ(job.find(id_of(n + 1)), kNoStep);
  }
  for (std::uint32_t n = 0; n < 1'000; ++n) EXPECT_EQ(job.find(id_of(n)), n);
}

AE_TEST("state/ids of any length are found, also if they begin and end alike") {
  Fixture job;
  EXPECT_EQ(job.find(StepId()), kNoStep);
  const std::string_view ids[] = {"",
                                  "a",
                                  "b",
                                  "ab",
                                  "abc",
                                  "abcdefgh",
                                  "abcdefghi",
                                  "abcdefgh-1-abcdefgh",
                                  "abcdefgh-2-abcdefgh"};
  for (const std::string_view id : ids) EXPECT_TRUE(job.add(StepId(id)));
  for (std::uint32_t n = 0; n < std::size(ids); ++n) EXPECT_EQ(job.find(StepId(ids[n])), n);
  EXPECT_EQ(job.find(StepId("abcdefgh-3-abcdefgh")), kNoStep);
}

AE_TEST("state/two steps cannot have one id") {
  Fixture job;
  for (std::uint32_t n = 0; n < 100; ++n) job.add(id_of(n));
  EXPECT_FALSE(job.add(id_of(7)));
  EXPECT_EQ(job.find(id_of(7)), 7u);
}

AE_TEST("state/a step whose id changes is found by its new id only") {
  Fixture job;
  for (std::uint32_t n = 0; n < 100; ++n) job.add(id_of(n));
  for (std::uint32_t n = 0; n < 100; ++n) {
    job.steps[n].id = id_of(1'000 + n);
    EXPECT_TRUE(job.by_id.add(n, job.steps));
  }
  EXPECT_TRUE(job.by_id.add(3, job.steps)) << "with the same id again";
  for (std::uint32_t n = 0; n < 100; ++n) {
    EXPECT_EQ(job.find(id_of(n)), kNoStep);
    EXPECT_EQ(job.find(id_of(1'000 + n)), n);
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
