// Conformance: loads from an event on, queries over all jobs, and counts.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "store/conformance_fixture_test.h"

namespace ae::store::conformance {

inline void loads_from(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));  // 1..2
  std::vector<std::uint64_t> firsts{1};
  std::uint64_t seq = 2;
  for (std::uint64_t i = 0; i < 40; ++i) {
    Batch b = r.append("j1", r.leased(), seq);
    b.sealed = sealed("j1", seq + 1, 1 + i % 3);
    firsts.push_back(seq + 1);
    seq = b.sealed->last_seq;
    r.must_commit(b);
  }
  const auto all_commits = r.load("j1", 0)->commits;
  ASSERT_EQ(all_commits.size(), firsts.size());
  for (std::uint64_t from = 1; from <= seq; ++from) {
    const auto first =
        static_cast<std::size_t>(std::ranges::upper_bound(firsts, from) - firsts.begin() - 1);
    const auto loaded = r.load("j1", from);
    EXPECT_EQ(loaded->commits.size(), all_commits.size() - first) << from;
    EXPECT_EQ(loaded->commits.front(), all_commits[first]) << from;
    EXPECT_EQ(loaded->commits.back(), all_commits.back()) << from;
  }
  EXPECT_TRUE(r.load("j1", seq + 1)->commits.empty());
  EXPECT_EQ(r.load("j1", seq + 1)->row.last_seq, seq);
  // Every commit can be found again.
  for (std::size_t i = 1; i < firsts.size(); ++i) {
    Batch b = r.append("j1", r.leased("gone", 99), firsts[i] - 1);
    b.sealed = sealed("j1", firsts[i], 1 + (i - 1) % 3);
    EXPECT_TRUE(r.commit(b)->is_duplicate) << i;
    b.sealed->bytes += "x";
    EXPECT_EQ(r.expect_refused(b), Code::stale_attempt) << i;
  }
}

inline void queries(ConformanceFixture& r) {
  for (int i = 0; i < 10; ++i) {
    NewJob job{.agent = i % 2 == 0 ? "even" : "odd"};
    job.labels = {{"n", std::to_string(i)}, {"third", std::to_string(i % 3)}};
    r.must_commit(r.create(fmt::format("j{}", i), job,
                           {.status = i < 5   ? "completed"
                                      : i < 7 ? "failed"
                                              : "parked"}));
    r.loop.advance(std::chrono::seconds(1));
  }
  EXPECT_EQ(r.listed_ids({}), "j9 j8 j7 j6 j5 j4 j3 j2 j1 j0");
  EXPECT_EQ(r.listed_ids({.limit = 3}), "j9 j8 j7");
  EXPECT_EQ(r.listed_ids({.after = "j7", .limit = 3}), "j6 j5 j4");
  EXPECT_EQ(r.listed_ids({.after = "j0", .limit = 3}), "");
  EXPECT_EQ(r.listed_ids({.after = "nope"}), "not_found");
  EXPECT_EQ(r.listed_ids({.statuses = {"failed"}}), "j6 j5");
  EXPECT_EQ(r.listed_ids({.statuses = {"failed", "parked"}, .limit = 4}), "j9 j8 j7 j6");
  EXPECT_EQ(r.listed_ids({.statuses = {"failed", "completed"}, .agent = "odd"}), "j5 j3 j1");
  EXPECT_EQ(r.listed_ids({.statuses = {"completed"}, .agent = "odd"}), "j3 j1");
  EXPECT_EQ(r.listed_ids({.agent = "even", .after = "j6"}), "j4 j2 j0");
  EXPECT_EQ(r.listed_ids({.labels = {{"third", "1"}}}), "j7 j4 j1");
  EXPECT_EQ(r.listed_ids({.labels = {{"third", "1"}, {"n", "4"}}}), "j4");
  EXPECT_EQ(r.listed_ids({.statuses = {"parked"}, .labels = {{"third", "0"}}}), "j9");
  EXPECT_EQ(r.listed_ids({.labels = {{"third", "9"}}}), "");
  EXPECT_EQ(r.listed_ids({.limit = 0}), "");
  r.must_commit(r.append("j8", r.unleased(), 2, "queued"));
  EXPECT_EQ(r.listed_ids({.statuses = {"parked"}}), "j9 j7");
  EXPECT_EQ(show(r.query({.statuses = {"queued"}})->at(0)), show(r.row("j8")));
}

inline void counts(ConformanceFixture& r) {
  const auto commit_now = [&](Batch b) {
    b.sealed->created_at = r.loop.now();
    r.must_commit(std::move(b));
  };
  commit_now(r.create("old", {.agent = "a"}));
  r.loop.advance(std::chrono::seconds(10));
  const Instant between = r.loop.now();
  commit_now(r.create("q1", {.agent = "a", .queue = "narrow"}));
  commit_now(r.create("q2", {.agent = "a"}, {.status = "waiting"}));
  commit_now(r.create("q3", {.agent = "a"}, {.status = "parked"}));
  commit_now(r.create("q4", {.agent = "a"}, {.status = "completed"}));
  RowState later;
  later.not_before = r.at(std::chrono::hours(1));
  commit_now(r.create("q5", {.agent = "a"}, later));
  commit_now(r.create_claimed("mine"));
  EXPECT_EQ(r.listed_ids({.updated_before = between}), "old");
  EXPECT_EQ(r.listed_ids({.statuses = {"queued"}, .updated_before = r.at(std::chrono::hours(1))}),
            "q5 q1 old");
  commit_now(r.create("asks", {.agent = "a"},
                      {.status = "completed", .pending = pending::call | pending::budget}));
  commit_now(r.create("doubts", {.agent = "a"},
                      {.status = "completed", .pending = pending::unknown_outcome}));
  EXPECT_EQ(r.listed_ids({.pending = pending::all}), "doubts asks");
  EXPECT_EQ(r.listed_ids({.pending = pending::call | pending::wait}), "asks");
  EXPECT_EQ(r.listed_ids({.agent = "a", .pending = pending::question}), "");
  const auto text = [](const std::map<std::string, std::uint64_t>& numbers) {
    std::string all;
    for (const auto& [name, n] : numbers) all += fmt::format("{}={} ", name, n);
    return all;
  };
  JobStats job_stats = r.count_jobs();
  EXPECT_EQ(text(job_stats.statuses), "parked=1 queued=3 running=1 waiting=1 ");
  EXPECT_EQ(text(job_stats.ready), "default=1 narrow=1 ");
  ASSERT_EQ(job_stats.workers.size(), 1U);
  EXPECT_EQ(job_stats.workers.begin()->second.live, 1U);
  r.loop.advance(kLease + std::chrono::seconds(1));
  job_stats = r.count_jobs();
  ASSERT_EQ(job_stats.workers.size(), 1U);
  EXPECT_EQ(job_stats.workers.begin()->second.live, 0U);
  EXPECT_EQ(job_stats.workers.begin()->second.expired, 1U);
}

inline std::vector<Case> query_cases() {
  return {
      {"a load starts with the commit that contains the requested event", loads_from},
      {"queries filter and paginate, newest first", queries},
      {"jobs are counted by status and queue, and claims by worker", counts},
  };
}

}  // namespace ae::store::conformance
