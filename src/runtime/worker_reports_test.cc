// Reports of workers: how many are kept, and whose are forgotten for others.
#include "runtime/worker_reports.h"

#include <fmt/core.h>

#include <set>
#include <string>

#include "testing/test.h"

namespace ae::runtime {
namespace {

using namespace std::chrono_literals;

const Instant kStart{.us = 1'000'000'000'000};

engine::WorkerName worker(std::string key, int number) {
  return {.key = std::move(key), .name = fmt::format("host:{}:a", number)};
}

routines::CallName reported_call(int number) {
  return {.job = JobId(fmt::format("job-{}", number)),
          .invocation = InvocationId(fmt::format("invocation-{}", number)),
          .try_no = 1};
}

WorkerReport report(Instant at, int calls) {
  WorkerReport made{.received = {}, .at = at, .covers_from = at};
  for (int i = 0; i < calls; ++i) made.received.insert(reported_call(i));
  return made;
}

std::set<std::string> keys_of(const WorkerReports& reports) {
  std::set<std::string> keys;
  reports.for_each(
      [&](const engine::WorkerName& one, const WorkerReport&) { keys.insert(one.key); });
  return keys;
}

AE_TEST("worker reports/one key with many large reports displaces only its own") {
  WorkerReports reports(200'000);
  ASSERT_NE(reports.add(worker("small", 1), report(kStart, 10)), nullptr);
  for (int i = 0; i < 1'000; ++i) {
    EXPECT_NE(reports.add(worker("large", i), report(kStart + 1s * i / 10, 100)), nullptr);
    EXPECT_LE(reports.bytes(), 200'000u);
  }
  EXPECT_EQ(keys_of(reports), (std::set<std::string>{"large", "small"}));
  EXPECT_GE(reports.size(), 3u);
  EXPECT_TRUE(reports.add_end(worker("small", 1), reported_call(3)));
  EXPECT_TRUE(reports.add_end(worker("large", 999), reported_call(3))) << "the newest one is kept";
  EXPECT_FALSE(reports.add_end(worker("large", 0), reported_call(3)));
}

AE_TEST("worker reports/many workers of one key without calls are limited too") {
  WorkerReports reports(200'000);
  reports.add(worker("other", 1), report(kStart, 0));
  for (int i = 0; i < 10'000; ++i) reports.add(worker("one", i), report(kStart + 1ms * i, 0));
  EXPECT_LE(reports.bytes(), 200'000u);
  EXPECT_TRUE(keys_of(reports).contains("other"));
}

AE_TEST("worker reports/one that is too large is not kept in part") {
  WorkerReports reports(20'000);
  reports.add(worker("k", 1), report(kStart, 10));
  EXPECT_EQ(reports.add(worker("k", 2), report(kStart, 1'000)), nullptr);
  EXPECT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports.add(worker("k", 1), report(kStart, 1'000)), nullptr);
  EXPECT_EQ(reports.size(), 0u) << "its earlier report is outdated";
  EXPECT_EQ(reports.bytes(), 0u);
}

AE_TEST("worker reports/old ones are forgotten, and a newer one replaces that of its worker") {
  WorkerReports reports;
  reports.add(worker("k", 1), report(kStart, 5));
  reports.add(worker("k", 1), report(kStart + 1min, 1));
  EXPECT_EQ(reports.size(), 1u);
  EXPECT_FALSE(reports.add_end(worker("k", 1), reported_call(4)));
  reports.add(worker("k", 2), report(kStart + 11min, 0));
  EXPECT_EQ(reports.size(), 1u);
}

AE_TEST("worker reports/the end of a call counts once, from the worker that has the call") {
  WorkerReports reports;
  reports.add(worker("k", 1), report(kStart, 2));
  EXPECT_FALSE(reports.add_end(worker("k", 2), reported_call(1)));
  EXPECT_FALSE(reports.add_end(worker("j", 1), reported_call(1)));
  EXPECT_FALSE(reports.add_end(worker("k", 1), reported_call(7)));
  EXPECT_TRUE(reports.add_end(worker("k", 1), reported_call(1)));
  EXPECT_FALSE(reports.add_end(worker("k", 1), reported_call(1)));
}

}  // namespace
}  // namespace ae::runtime
