// Conformance: lists of ended jobs, and lists that continue at a deleted job.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "log/field_names.h"
#include "store/conformance_prune_fixture_test.h"

namespace ae::store::conformance {

inline void lists_over_pruned_jobs(ConformanceFixture& r) {
  for (int i = 0; i < 6; ++i) ended_job(r, fmt::format("j{}", i), 1, 2);
  const std::uint64_t at = r.row("j3").number;
  EXPECT_EQ(pruned(r, pruning_of(r, {"j3", "j1"})), "gone");
  EXPECT_EQ(r.listed_ids({.after = "j3"}), "not_found");
  EXPECT_EQ(r.listed_ids({.after = "j3", .after_number = at}), "j2 j0");
  EXPECT_EQ(ended_ids(r, {.before = hour(9), .after = at}), "j4 j5");
}

inline void finds_ended_jobs(ConformanceFixture& r) {
  ended_job(r, "a", 1, 5);
  ended_job(r, "b", 1, 2, "failed", {.agent = "other"});
  ended_job(r, "c", 2, 3, "cancelled", {.labels = {{"env", "test"}, {"x", "y"}}});
  r.must_commit(r.create("queued"));
  r.must_commit(r.create_claimed("running"));
  Batch waits = r.create(field::waits, {}, {.status = "waiting"});
  r.must_commit(waits);
  ended_job(r, "future", 100, 100);  // its clock was wrong
  ended_job(r, "d", 3, 4);
  std::optional<std::uint64_t> next;
  EXPECT_EQ(ended_ids(r, {.before = hour(50)}, &next), "a b c d");
  EXPECT_FALSE(next.has_value());
  EXPECT_EQ(ended_ids(r, {.before = hour(5)}), "b c d");
  EXPECT_EQ(ended_ids(r, {.before = hour(2)}), "") << "not yet";
  EXPECT_EQ(ended_ids(r, {.before = hour(50), .statuses = {"failed", "cancelled"}}), "b c");
  EXPECT_EQ(ended_ids(r, {.before = hour(50), .agent = "other"}), "b");
  EXPECT_EQ(ended_ids(r, {.before = hour(50), .labels = {{"x", "y"}}}), "c");
  EXPECT_EQ(ended_ids(r, {.before = hour(50), .labels = {{"x", "z"}}}), "");
  EXPECT_EQ(ended_ids(r, {.before = hour(50), .limit = 2}, &next), "a b");
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(ended_ids(r, {.before = hour(50), .after = *next, .limit = 2}, &next), "c d");
}

inline std::vector<Case> ended_cases() {
  return {
      {"a list continues at the position of a deleted job", lists_over_pruned_jobs},
      {"ended jobs are listed oldest first, by age, status, agent and labels", finds_ended_jobs},
  };
}

}  // namespace ae::store::conformance
