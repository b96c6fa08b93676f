// Tests of run_in_slices with a clock that the work advances.
#include "async/time_slices.h"

#include <vector>

#include "testing/test.h"
#include "testing/test_loop.h"

namespace ae::async::testing {
namespace {

using ae::testing::TestLoop;

class ManualSteady final : public SteadyClock {
 public:
  Duration since_start() override { return now; }
  Duration now{};
};

AE_TEST("portions/a portion ends after 50 ms, and the next one waits for its turn on the loop") {
  TestLoop loop;
  ManualSteady steady;
  int steps = 0;
  std::vector<int> seen;  // `steps`, as seen by another task of the loop
  bool done = false;
  run_in_slices(
      loop, steady,
      [&] {
        steady.now += std::chrono::milliseconds(20);
        return ++steps < 7;
      },
      [&] { done = true; });
  EXPECT_EQ(steps, 3);
  loop.post([&] {
    seen.push_back(steps);
    loop.post([&] { seen.push_back(steps); });
  });
  loop.run_ready();
  EXPECT_EQ(seen, (std::vector{6, 7}));
  EXPECT_TRUE(done);
}

AE_TEST("portions/work that is done within one portion ends inside the call") {
  TestLoop loop;
  ManualSteady steady;
  int steps = 0;
  bool done = false;
  run_in_slices(loop, steady, [&] { return ++steps < 1'000; }, [&] { done = true; });
  EXPECT_EQ(steps, 1'000);
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace ae::async::testing
