// Conformance: lists by what summaries have, and counts of the jobs that match a filter.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "store/conformance_fixture_test.h"

namespace ae::store::conformance {

inline void lists_by_summary(ConformanceFixture& r) {
  const auto summary = [&](std::string kind, std::uint64_t cost) {
    return Summary{.error = {},
                   .kind = std::move(kind),
                   .cost_micros = cost,
                   .changed_at = r.loop.now(),
                   .body = "{}"};
  };
  const auto create = [&](const std::string& id, Summary created) {
    Batch b = r.create(id, {}, {.status = "waiting"});
    b.summary = std::move(created);
    r.must_commit(std::move(b));
  };
  create("a", summary("plan", 0));
  r.loop.advance(std::chrono::seconds(1));
  create("b", summary("loop", 500));
  create("c", summary("loop", 2000));
  create("d", summary("planner", 2000));
  r.must_commit(r.create("none", {}, {.status = "waiting"}));
  r.loop.advance(std::chrono::seconds(1));
  Batch ended = r.append("b", r.unleased(), 2, "completed");
  ended.summary = summary("loop", 900);
  r.must_commit(ended);
  EXPECT_EQ(r.row("b").summary, ended.summary);
  EXPECT_FALSE(r.row("none").summary);

  EXPECT_EQ(r.listed_ids({.kind = "plan"}), "a");
  EXPECT_EQ(r.listed_ids({.kind = "loop"}), "c b");
  EXPECT_EQ(r.listed_ids({.kind = "loop", .after = "c"}), "b");
  EXPECT_EQ(r.listed_ids({.cost_min = 900}), "d c b");
  EXPECT_EQ(r.listed_ids({.cost_min = 901, .after = "d"}), "c");
  EXPECT_EQ(r.listed_ids({.cost_min = 2001}), "");
  EXPECT_EQ(r.listed_ids({.kind = "loop", .cost_min = 1000}), "c");

  EXPECT_EQ(r.listed_ids({.order = JobOrder::changed}), "b d c a");
  EXPECT_EQ(r.listed_ids({.kind = "loop", .order = JobOrder::changed}), "b c");
  EXPECT_EQ(r.listed_ids({.statuses = {"waiting"}, .order = JobOrder::changed}), "d c a");
  std::string joined;
  Filter page{.order = JobOrder::changed, .limit = 1};
  for (int i = 0; i < 4; ++i) {
    const auto rows = r.query(page);
    ASSERT_TRUE(rows && rows->size() == 1u) << i;
    joined += rows->front().id.text + " ";
    page.after_number = rows->front().number;
    page.after_changed_at = rows->front().summary->changed_at;
  }
  EXPECT_EQ(joined, "b d c a ");
  EXPECT_EQ(r.listed_ids(page), "");
}

inline void counts_of_matching(ConformanceFixture& r) {
  const auto create = [&](const std::string& id, NewJob job, RowState row) {
    Batch b = r.create(id, std::move(job), std::move(row));
    b.sealed->created_at = r.loop.now();
    r.must_commit(std::move(b));
  };
  const auto text = [&](CountFilter filter) {
    const JobCounts found = r.count_matching(std::move(filter));
    EXPECT_EQ(found.statuses.size(), 7u);
    EXPECT_EQ(found.pending.size(), 6u);
    std::string all;
    for (const auto& [status, count] : found.statuses) {
      if (count.jobs > 0) all += status + "=" + std::to_string(count.jobs) + " ";
      EXPECT_FALSE(count.capped) << status;
    }
    for (const auto& [kind, count] : found.pending) {
      if (count.jobs > 0) all += std::to_string(kind) + "=" + std::to_string(count.jobs) + " ";
      EXPECT_FALSE(count.capped) << kind;
    }
    return all;
  };
  EXPECT_EQ(text({}), "");
  create("old", {.agent = "a"}, {.status = "completed"});
  r.loop.advance(std::chrono::seconds(10));
  const Instant later = r.loop.now();
  create("done", {.agent = "a", .labels = {{"shop", "north"}}}, {.status = "completed"});
  create("failed", {.agent = "b", .labels = {{"shop", "north"}, {"tier", "new"}}},
         {.status = "failed", .pending = pending::unknown_outcome});
  create("cancelled", {.agent = "b"}, {.status = "cancelled"});
  create("queued", {.agent = "a", .queue = "narrow"}, {});
  create("waiting", {.agent = "a", .labels = {{"shop", "north"}}},
         {.status = "waiting", .pending = pending::call | pending::wait});
  create("parked", {.agent = "a", .labels = {{"shop", "south"}}},
         {.status = "parked", .pending = pending::call | pending::not_computed});
  r.must_commit(r.create_claimed("held"));

  EXPECT_EQ(text({}),
            "cancelled=1 completed=2 failed=1 parked=1 queued=1 running=1 waiting=1 1=2 2=1 16=1 ");
  EXPECT_EQ(text({.agent = "a"}), "completed=2 parked=1 queued=1 waiting=1 1=2 2=1 ");
  EXPECT_EQ(text({.agent = "b", .labels = {{"tier", "new"}}}), "failed=1 16=1 ");
  EXPECT_EQ(text({.queue = "narrow"}), "queued=1 ");
  EXPECT_EQ(text({.labels = {{"shop", "north"}}}), "completed=1 failed=1 waiting=1 1=1 2=1 16=1 ");
  EXPECT_EQ(text({.labels = {{"shop", "north"}, {"tier", "new"}}}), "failed=1 16=1 ");
  EXPECT_EQ(text({.agent = "a", .created_from = later}),
            "completed=1 parked=1 queued=1 waiting=1 1=2 2=1 ");
  EXPECT_EQ(text({.agent = "none"}), "");
}

inline std::vector<Case> summary_cases() {
  return {
      {"jobs are listed by kind, cost and last change", lists_by_summary},
      {"jobs that match a filter are counted by status and open request", counts_of_matching},
  };
}

}  // namespace ae::store::conformance
