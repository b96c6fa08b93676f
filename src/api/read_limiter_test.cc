// Tests of ReadLimiter, with reads that the test ends.
#include "api/read_limiter.h"

#include <string>
#include <vector>

#include "testing/test.h"
#include "testing/test_loop.h"

namespace ae::api {
namespace {

AE_TEST("read_limiter/concurrent reads are limited, and callers take turns") {
  testing::TestLoop loop;
  ReadLimiter limiter(loop, 2);
  std::vector<std::string> started;
  std::vector<ReadLimiter::Slot> held;
  const auto acquire = [&](const std::string& caller) {
    limiter.acquire(caller, [&, caller](ReadLimiter::Slot slot) {
      started.push_back(caller);
      held.push_back(std::move(slot));
    });
  };
  for (int i = 0; i < 4; ++i) acquire("greedy");
  acquire("other");
  loop.run_ready();
  EXPECT_EQ(started, (std::vector<std::string>{"greedy", "greedy"}));
  while (!held.empty()) {
    held.erase(held.begin());
    loop.run_ready();
  }
  EXPECT_EQ(started, (std::vector<std::string>{"greedy", "greedy", "greedy", "other", "greedy"}));
}

AE_TEST("read_limiter/waiting reads are dropped with the limiter, and a slot may outlive it") {
  testing::TestLoop loop;
  ReadLimiter::Slot held;
  auto kept = std::make_shared<int>(1);
  {
    ReadLimiter limiter(loop, 1);
    limiter.acquire("a", [&](ReadLimiter::Slot slot) { held = std::move(slot); });
    limiter.acquire("a", [kept](const ReadLimiter::Slot&) { ADD_FAILURE() << "it was dropped"; });
    EXPECT_EQ(kept.use_count(), 2);
  }
  EXPECT_EQ(kept.use_count(), 1);
  held.reset();
  loop.run_ready();
}

}  // namespace
}  // namespace ae::api
