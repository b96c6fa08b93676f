// Tests of RateLimiter, with time set by the test.
#include "api/rate_limiter.h"

#include <fmt/core.h>

#include "testing/test.h"

namespace ae::api {
namespace {

using namespace std::chrono_literals;

AE_TEST("rate_limiter/requests pass in a burst, then at the rate, after the returned wait") {
  RateLimiter limiter({.per_second = 10, .burst = 5}, 10);
  Duration now = 1h;
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(limiter.try_acquire("a", now)) << i;
  const auto wait = limiter.try_acquire("a", now);
  ASSERT_TRUE(wait);
  EXPECT_EQ(*wait, 100ms);
  now += *wait - 1us;
  EXPECT_TRUE(limiter.try_acquire("a", now));
  now += 1us;
  EXPECT_FALSE(limiter.try_acquire("a", now));
  EXPECT_TRUE(limiter.try_acquire("a", now));
  int acquired = 0;
  for (int i = 0; i < 10'000; ++i) {
    now += 1ms;
    acquired += limiter.try_acquire("a", now) ? 0 : 1;
  }
  EXPECT_EQ(acquired, 100) << "ten seconds at ten a second";
  now += 1h;
  acquired = 0;
  while (!limiter.try_acquire("a", now)) ++acquired;
  EXPECT_EQ(acquired, 5) << "a long pause refills one burst";
}

AE_TEST("rate_limiter/each name has its own limit") {
  RateLimiter limiter({.per_second = 1, .burst = 1}, 10);
  EXPECT_FALSE(limiter.try_acquire("a", 0s));
  EXPECT_TRUE(limiter.try_acquire("a", 0s));
  EXPECT_FALSE(limiter.try_acquire("b", 0s));
}

AE_TEST("rate_limiter/the number of names is limited, and an active name is not evicted") {
  RateLimiter limiter({.per_second = 0.001, .burst = 1}, 100);
  EXPECT_FALSE(limiter.try_acquire("a", 0s));
  for (int i = 0; i < 10'000; ++i) {
    EXPECT_FALSE(limiter.try_acquire(fmt::format("stranger {}", i), 1s));
    EXPECT_TRUE(limiter.try_acquire("a", 1s));
    EXPECT_LE(limiter.names(), 100u);
  }
  EXPECT_FALSE(limiter.try_acquire("stranger 0", 1s)) << "evicted: its burst is full again";
  EXPECT_TRUE(limiter.try_acquire("stranger 9999", 1s));
}

AE_TEST("rate_limiter/a clock that goes back grants nothing twice") {
  RateLimiter limiter({.per_second = 1, .burst = 1}, 10);
  EXPECT_FALSE(limiter.try_acquire("a", 10s));
  EXPECT_TRUE(limiter.try_acquire("a", 5s));
  EXPECT_TRUE(limiter.try_acquire("a", 10s));
  EXPECT_FALSE(limiter.try_acquire("a", 11s));
}

}  // namespace
}  // namespace ae::api
