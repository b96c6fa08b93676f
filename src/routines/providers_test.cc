// Providers: several providers as one.
#include "routines/providers.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "testing/test.h"

namespace ae::routines {
namespace {

struct NoRoutine final : Routine {
  void deliver(std::vector<engine::Delivery>) override {}
  tools::Tool& functions() override { AE_CHECK(false); }
};

struct FixedProvider final : RoutineProvider {
  engine::OfferedCode offered(const engine::Plan&, std::uint32_t, std::string_view) const override {
    return {.versions = versions, .own_missing_for = own_missing_for, .away = away};
  }
  std::optional<MissingFunction> missing_function(const engine::Plan&,
                                                  std::uint32_t) const override {
    return missing;
  }
  std::vector<AgentVersion> agent_versions() const override {
    std::vector<AgentVersion> all;
    for (const std::string& version : versions) all.push_back({"a", version});
    return all;
  }
  std::unique_ptr<Routine> start(RoutineStart start) override {
    if (!has_room || std::ranges::find(versions, start.version) == versions.end()) return nullptr;
    started++;
    return std::make_unique<NoRoutine>();
  }
  std::vector<std::string> versions{"v1"}, away;
  Duration own_missing_for{};
  std::optional<MissingFunction> missing;
  bool has_room = true;
  int started = 0;
};

AE_TEST("providers/the first one that offers the code and has room starts it") {
  const auto plan = std::make_shared<const engine::Plan>();
  const RoutineStart start{.plan = plan, .version = "v1"};
  FixedProvider first, second;
  Providers all;
  EXPECT_TRUE(all.offered(*plan, 0, "v1").versions.empty());
  EXPECT_EQ(all.start(start), nullptr);
  all.add(first);
  all.add(second);
  EXPECT_NE(all.start(start), nullptr);
  EXPECT_EQ(first.started, 1);
  first.has_room = false;
  EXPECT_NE(all.start(start), nullptr);
  EXPECT_EQ(second.started, 1);
  second.versions.clear();
  EXPECT_EQ(all.start(start), nullptr);
  EXPECT_TRUE(all.offered(*plan, 0, "v1").has("v1"));
}

AE_TEST(
    "providers/the versions of all are offered, and the job's is missing where one may get it") {
  const engine::Plan plan{};
  FixedProvider first, second;
  first.own_missing_for = std::chrono::seconds(9);
  second.own_missing_for = std::chrono::seconds(4);
  second.versions = {"v2", "v1", "v3"};
  Providers all;
  all.add(first);
  all.add(second);
  const engine::OfferedCode offered = all.offered(plan, 0, "v0");
  EXPECT_EQ(offered.versions, (std::vector<std::string>{"v1", "v2", "v3"}));
  EXPECT_EQ(offered.own_missing_for, std::chrono::seconds(4));
  EXPECT_EQ(all.agent_versions().size(), 4u);
  EXPECT_FALSE(all.missing_function(plan, 0));
  second.missing = MissingFunction{.version = "v3", .name = "pay"};
  EXPECT_EQ(all.missing_function(plan, 0)->name, "pay");
  first.away = {"v1"};
  second.away = {"v2"};
  EXPECT_EQ(all.offered(plan, 0, "v0").away, (std::vector<std::string>{"v2"}));
}

}  // namespace
}  // namespace ae::routines
