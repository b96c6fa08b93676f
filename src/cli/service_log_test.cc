// Tests of LineLimit and RepeatLimit: the rate limits of a service's log.
#include "cli/service_log.h"

#include <chrono>

#include "testing/test.h"

namespace ae::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

AE_TEST("journal/a burst of lines is limited, and the dropped lines are counted") {
  LineLimit limit;
  std::uint64_t allowed = 0;
  for (int i = 0; i < 10'000; ++i) allowed += limit.allows(seconds(50)) ? 1 : 0;
  EXPECT_EQ(allowed, LineLimit::kBurst);
  EXPECT_EQ(limit.take_dropped(), 10'000 - LineLimit::kBurst);
  EXPECT_EQ(limit.take_dropped(), 0U);
  // After that, the sustained rate.
  allowed = 0;
  for (int ms = 0; ms < 10'000; ++ms)
    allowed += limit.allows(seconds(50) + milliseconds(ms + 1)) ? 1 : 0;
  EXPECT_EQ(allowed, 10 * LineLimit::kPerSecond);
  // Silence refills the bucket, up to its capacity.
  allowed = 0;
  for (int i = 0; i < 10'000; ++i) allowed += limit.allows(seconds(500)) ? 1 : 0;
  EXPECT_EQ(allowed, LineLimit::kBurst);
}

AE_TEST("journal/twenty errors of a kind are written a minute; the others become one summary") {
  RepeatLimit limit;
  std::uint64_t written = 0;
  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(limit.take_dropped(seconds(10 + i)).empty());
    written += limit.allows("job_failed (http_500)", seconds(10 + i)) ? 1 : 0;
  }
  EXPECT_EQ(written, RepeatLimit::kEach);
  EXPECT_TRUE(limit.allows("claim_lost", seconds(60))) << "of another kind";
  const auto count_dropped = limit.take_dropped(seconds(70));
  ASSERT_EQ(count_dropped.size(), 1U);
  EXPECT_EQ(count_dropped[0].first, "job_failed (http_500)");
  EXPECT_EQ(count_dropped[0].second, 50 - RepeatLimit::kEach);
  EXPECT_TRUE(limit.take_dropped(seconds(500)).empty()) << "reported once";
  EXPECT_TRUE(limit.allows("job_failed (http_500)", seconds(500)));
}

}  // namespace
}  // namespace ae::cli
