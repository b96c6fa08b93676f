// Providers: several providers as one.
#include "routines/providers.h"

#include "testing/test.h"

namespace ae::routines {
namespace {

struct NoRoutine final : Routine {
  void deliver(std::vector<engine::Delivery>) override {}
  tools::Tool& functions() override { AE_CHECK(false); }
};

struct FixedProvider final : RoutineProvider {
  bool offers(const engine::Plan&, std::uint32_t) const override { return is_offered; }
  std::unique_ptr<Routine> start(RoutineStart) override {
    if (!has_room) return nullptr;
    started++;
    return std::make_unique<NoRoutine>();
  }
  bool is_offered = true, has_room = true;
  int started = 0;
};

AE_TEST("providers/the first one that offers the code and has room starts it") {
  const auto plan = std::make_shared<const engine::Plan>();
  FixedProvider first, second;
  Providers all;
  EXPECT_FALSE(all.offers(*plan, 0));
  EXPECT_EQ(all.start({.plan = plan}), nullptr);
  all.add(first);
  all.add(second);
  EXPECT_NE(all.start({.plan = plan}), nullptr);
  EXPECT_EQ(first.started, 1);
  first.has_room = false;
  EXPECT_NE(all.start({.plan = plan}), nullptr);
  EXPECT_EQ(second.started, 1);
  second.is_offered = false;
  EXPECT_EQ(all.start({.plan = plan}), nullptr);
  EXPECT_TRUE(all.offers(*plan, 0));
}

}  // namespace
}  // namespace ae::routines
