// What routines cost: threads and memory while suspended, time while they replay.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "json/json.h"
#include "routines/native/native_world_test.h"
#include "routines/routine.h"

namespace ae::routines {
namespace {

using testing::json;
using testing::NativeWorld;

// A number of /proc/self/status.
long status_of(std::string_view name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name)) return std::stol(line.substr(name.size() + 1));
  }
  return 0;
}

long ms_since(std::chrono::steady_clock::time_point start) {
  return static_cast<long>(std::chrono::duration_cast<std::chrono::milliseconds>(
                               std::chrono::steady_clock::now() - start)
                               .count());
}

// Counts what it gets, and drops it.
struct CountingClient final : RoutineClient {
  void on_advance(std::uint32_t, Advance) override { advances++; }
  void on_diverged(std::uint32_t, Divergence) override { diverged++; }
  void on_lost(std::uint32_t, Error) override { lost++; }
  void on_refused(std::uint32_t, Error) override { lost++; }
  int advances = 0, diverged = 0, lost = 0;
};

void suspend(int count) {
  NativeWorld world({.limits = {.routines = 10'000, .threads = 10'000}});
  world.add([](Context& ctx, const Value& input) -> Result<Value> {
    AE_TRY(ctx.sleep(std::chrono::hours(1)));
    return input;
  });
  const auto plan = testing::agent_plan();
  CountingClient client;
  std::vector<std::unique_ptr<Routine>> routines;
  const long memory = status_of("VmRSS:"), size = status_of("VmSize:");
  const long threads = status_of("Threads:");
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) {
    routines.push_back(world.routines->start({.job = JobId(fmt::format("job-{}", i)),
                                              .node = 0,
                                              .plan = plan,
                                              .input = json("{'n': 1}"),
                                              .client = &client}));
    ASSERT_NE(routines.back(), nullptr);
  }
  ASSERT_TRUE(world.loop.run_until([&] { return client.advances == count; }));
  const long took = ms_since(start), resident = status_of("VmRSS:") - memory;
  EXPECT_EQ(world.routines->running_threads(), static_cast<std::size_t>(count));
  std::printf(
      "%d suspended routines: %ld threads, %ld kB resident (%ld each), %ld MB of addresses, "
      "started in %ld ms\n",
      count, status_of("Threads:") - threads, resident, resident / count,
      (status_of("VmSize:") - size) / 1024, took);
  const auto drop = std::chrono::steady_clock::now();
  routines.clear();
  const long blocked = ms_since(drop);
  ASSERT_TRUE(world.has_no_threads());
  std::printf("dropped in %ld ms of the loop, all threads idle after %ld ms\n", blocked,
              ms_since(drop));
}

AE_TEST("cost/a suspended routine holds one thread") { suspend(20); }
AE_TEST_SLOW("cost/1,000 suspended routines") { suspend(1'000); }

// A record of `branches` branches of a map, each with `count` calls, one after the other.
engine::CodeRecord record_of_calls(int branches, int count, std::string_view blind) {
  engine::CodeRecord record;
  for (int i = 0; i < count; ++i) {
    for (int branch = 0; branch < branches; ++branch) {
      const std::string number = i == 0 ? "" : fmt::format("#{}", i + 1);
      const std::string position = fmt::format("item/{}/ask{}", branch, number);
      const Value args = Value::object({{"n", i}});
      const int delivered = i == 0 ? 0 : (i - 1) * branches + branch + 1;
      record.requests.push_back({.position = position,
                                 .tool = "ask",
                                 .arguments_hash = blinded_digest(blind, canonical(args)),
                                 .delivered = static_cast<std::uint64_t>(delivered)});
      record.deliveries.push_back({.position = position, .result = args});
    }
  }
  return record;
}

void replay(int branches, int count) {
  NativeWorld world;
  world.add([branches, count](Context& ctx, const Value&) -> Result<Value> {
    const std::vector<Value> items(static_cast<std::size_t>(branches));
    const auto all =
        ctx.map("item", items, [count](Context& inner, const Value&, std::size_t) -> Result<Value> {
          for (int i = 0; i < count; ++i) {
            AE_TRY(inner.call("ask", Value::object({{"n", i}})));
          }
          return 1;
        });
    if (!all) return std::unexpected(all.error());
    AE_TRY(ctx.sleep(std::chrono::hours(1)));
    return 1;
  });
  CountingClient client;
  const std::string blind(kBlindDigits, 'b');
  RoutineStart start{.job = JobId("job"),
                     .node = 0,
                     .plan = testing::agent_plan(),
                     .blind = blind,
                     .record = record_of_calls(branches, count, blind),
                     .client = &client};
  const auto begun = std::chrono::steady_clock::now();
  const auto routine = world.routines->start(std::move(start));
  ASSERT_TRUE(world.loop.run_until([&] { return client.advances + client.diverged > 0; }));
  EXPECT_EQ(client.diverged, 0);
  std::printf("%d branches: %d requests replayed in %ld ms\n", branches, branches * count,
              ms_since(begun));
}

AE_TEST("cost/a record is replayed on the threads of the routine") {
  replay(1, 100);
  replay(4, 25);
}
AE_TEST_SLOW("cost/records of 20,000 requests") {
  replay(1, 20'000);
  replay(4, 5'000);
}

}  // namespace
}  // namespace ae::routines
