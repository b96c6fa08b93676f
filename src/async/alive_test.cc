#include "async/alive.h"

#include <optional>

#include "testing/test.h"

namespace ae::async {
namespace {

AE_TEST("alive/a callback can detect the end of its object") {
  std::optional<Alive> alive(std::in_place);
  const Alive::Watch watch = alive->watch();
  EXPECT_TRUE(watch);
  alive.reset();
  EXPECT_FALSE(watch);
}

AE_TEST("alive/an end or a renewal ends earlier watches only") {
  Alive alive;
  const Alive::Watch first = alive.watch();
  alive.renew();
  const Alive::Watch second = alive.watch();
  EXPECT_FALSE(first);
  EXPECT_TRUE(second);
  alive.end();
  EXPECT_FALSE(second);
  EXPECT_FALSE(alive.watch());
}

}  // namespace
}  // namespace ae::async
