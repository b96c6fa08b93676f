// Conformance: limits of queues, and fair claims between the values of a label.
#pragma once

#include <fmt/core.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/conformance_fixture_test.h"

namespace ae::store::conformance {

inline NewJob in_queue(std::string queue, std::int64_t priority = 0) {
  return {.agent = "a", .priority = priority, .queue = std::move(queue)};
}

inline ClaimRequest limited(std::string attempt, std::size_t limit,
                            std::vector<QueueLimit> queues) {
  ClaimRequest request = ConformanceFixture::claim_request(std::move(attempt), limit);
  request.queues = std::move(queues);
  return request;
}

inline void queue_limits(ConformanceFixture& r) {
  for (int i = 0; i < 4; ++i) r.must_commit(r.create(fmt::format("n{}", i), in_queue("narrow", 5)));
  for (int i = 0; i < 2; ++i) r.must_commit(r.create(fmt::format("d{}", i), {.agent = "a"}));
  EXPECT_EQ(r.row("n0").queue, "narrow");
  EXPECT_EQ(r.row("d0").queue, "default");
  const std::vector<QueueLimit> two{{"narrow", 2}};
  EXPECT_EQ(r.claimed_ids(limited("A", 1, two)), "n0");
  EXPECT_EQ(r.claimed_ids(limited("B", 10, two)), "n1 d0 d1") << "across workers and claims";
  EXPECT_EQ(r.claimed_ids(limited("C", 10, two)), "");
  EXPECT_EQ(*r.claim_job("n2", limited("C", 1, two)), std::nullopt) << "also if claimed by id";
  Batch done = r.append("n1", r.leased("B0", 1), 2, "completed");
  done.release = true;
  r.must_commit(done);
  EXPECT_EQ(show(*r.claim_job("n3", limited("C", 1, two))), "n3 C@1 until 30000000");
  EXPECT_EQ(r.claimed_ids(limited("D", 10, two)), "");
  EXPECT_EQ(r.claimed_ids(limited("E", 10, {{"narrow", 3}})), "n2") << "a limit is the claimer's";
}

// A claim with an expired lease does not count: its slot is free, and is taken once.
inline void queue_limits_count_live_claims(ConformanceFixture& r) {
  for (int i = 0; i < 3; ++i) r.must_commit(r.create(fmt::format("n{}", i), in_queue("narrow")));
  const std::vector<QueueLimit> one{{"narrow", 1}};
  EXPECT_EQ(r.claimed_ids(limited("A", 3, one)), "n0");
  r.loop.advance(kLease - Duration(1));
  EXPECT_EQ(r.claimed_ids(limited("B", 3, one)), "");
  r.loop.advance(Duration(1));
  EXPECT_EQ(r.claimed_ids(limited("C", 3, one)), "n0");
  ASSERT_TRUE(r.heartbeat({{JobId("n0"), fence("C0", 2)}}));
  EXPECT_EQ(r.claimed_ids(limited("D", 3, one)), "");
}

// A job of a full queue is skipped and keeps its place.
inline void queue_order(ConformanceFixture& r) {
  r.must_commit(r.create("b0", in_queue("b")));
  r.must_commit(r.create("a0", in_queue("a")));
  r.must_commit(r.create("b1", in_queue("b", 9)));
  r.must_commit(r.create("a1", in_queue("a")));
  r.must_commit(r.create("c0", in_queue("c", -1)));
  EXPECT_EQ(r.claimed_ids(limited("A", 9, {{"b", 1}, {"c", 0}})), "b1 a0 a1");
  EXPECT_EQ(r.claimed_ids(r.claim_request("B", 9)), "b0 c0")
      << "priority and age apply across queues";
}

inline void is_fair(ConformanceFixture& r) {
  Store* store = r.store_driver->fair_by("tenant");
  ASSERT_NE(store, nullptr);
  const auto create = [&](const std::string& id, std::string tenant, std::int64_t priority = 0) {
    NewJob job{.agent = "a", .priority = priority};
    if (!tenant.empty()) job.labels = {{"other", "x"}, {"tenant", std::move(tenant)}};
    r.must_commit(r.create(id, std::move(job)));
  };
  for (int i = 0; i < 6; ++i) create(fmt::format("big{}", i), "big");
  create("small0", "small");
  create("none0", "");
  create("ad0", "ad");
  create("urgent0", "big", 7);
  create("big6", "big");
  EXPECT_EQ(r.claimed_ids(r.claim_request("A", 5)), "urgent0 none0 ad0 big0 small0")
      << "priority first, then each value in turn";
  EXPECT_EQ(r.claimed_ids(r.claim_request("B", 2)), "big1 big2") << "no other key has ready jobs";
  create("ad1", "ad");
  create("small1", "small");
  EXPECT_EQ(r.claimed_ids(r.claim_request("C", 1)), "small1")
      << "the order continues after the last key";
  EXPECT_EQ(r.claimed_ids(r.claim_request("D", 3)), "ad1 big3 big4");
}

// However many ready jobs one tenant has, another tenant's job is claimed in the next round; also
// across queues, and when jobs with other requirements come first.
inline void fairness_keys_alternate(ConformanceFixture& r) {
  ASSERT_NE(r.store_driver->fair_by("tenant"), nullptr);
  for (int i = 0; i < 300; ++i) {
    NewJob job{.agent = "a", .labels = {{"tenant", "big"}}, .queue = i % 2 == 0 ? "x" : "y"};
    r.must_commit(r.create(fmt::format("big{}", i), std::move(job)));
  }
  r.must_commit(
      r.create("needy", {.agent = "a", .labels = {{"tenant", "one"}}, .capabilities = {"gpu"}}));
  r.must_commit(r.create("one", {.agent = "a", .labels = {{"tenant", "one"}}}));
  const auto claimed_ids = r.claim(r.claim_request("A", 2));
  ASSERT_TRUE(claimed_ids);
  EXPECT_EQ(claimed_ids->at(0).job.text, "big0");
  EXPECT_EQ(claimed_ids->at(1).job.text, "one");
  EXPECT_EQ(r.claimed_ids(r.claim_request("B", 2)), "big1 big2") << "by age within a key";
}

inline std::vector<Case> queue_cases() {
  return {
      {"the number of claimed jobs of a queue never exceeds its limit", queue_limits},
      {"a queue limit counts live claims only", queue_limits_count_live_claims},
      {"jobs of a queue at its limit are skipped, and the others keep their order", queue_order},
      {"at equal priority claims alternate between the values of a label", is_fair},
      {"many jobs with one fairness key do not starve another key", fairness_keys_alternate},
  };
}

}  // namespace ae::store::conformance
