// Conformance: which jobs a claim returns, and in which order.
#pragma once

#include <fmt/core.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "store/conformance_fixture_test.h"

namespace ae::store::conformance {

inline void claim_order(ConformanceFixture& r) {
  const std::int64_t priorities[] = {0, 5, -3, 5, 0};
  for (int i = 0; i < 5; ++i) {
    r.must_commit(r.create(fmt::format("j{}", i), {.agent = "a", .priority = priorities[i]}));
  }
  EXPECT_EQ(r.claimed_ids(r.claim_request("A", 2)), "j1 j3");
  r.loop.advance(kLease);  // the leases of j1 and j3 expire; their age is the job's
  r.must_commit(r.create("j5", {.agent = "a", .priority = 5}));
  EXPECT_EQ(r.claimed_ids(r.claim_request("B", 2)), "j1 j3");
  EXPECT_EQ(r.claimed_ids(r.claim_request("C", 10)), "j5 j0 j4 j2");
  EXPECT_EQ(r.claimed_ids(r.claim_request("D", 10)), "");
}

inline void claim_filters(ConformanceFixture& r) {
  r.must_commit(r.create("j0", {.agent = "a"}));
  r.must_commit(r.create("j1", {.agent = "b"}));
  r.must_commit(r.create("j2", {.agent = "c"}));
  ClaimRequest request = r.claim_request("A", 10);
  request.agents = {"b", "c"};
  request.excluded_jobs = {JobId("j1")};
  EXPECT_EQ(r.claimed_ids(request), "j2");
  EXPECT_EQ(*r.claim_job("j0", request), std::nullopt);
  EXPECT_EQ(*r.claim_job("j1", request), std::nullopt);
  request.excluded_jobs.clear();
  EXPECT_EQ(show(*r.claim_job("j1", request)), "j1 A0@1 until 30000000");
  EXPECT_EQ(*r.claim_job("j1", request), std::nullopt);
  request.agents.clear();
  request.limit = 0;
  EXPECT_EQ(r.claimed_ids(request), "");
}

inline void blocked_is_never_claimed(ConformanceFixture& r) {
  for (const char* status : {"waiting", "parked", "completed", "failed", "cancelled"}) {
    r.must_commit(r.create(status, {.agent = "a"}, {.status = status}));
    const std::string leased_job = fmt::format("held-{}", status);
    r.must_commit(r.create_claimed(leased_job));
    Batch b = r.append(leased_job, r.leased(), 2, status);
    b.release = true;
    r.must_commit(b);
  }
  r.loop.advance(std::chrono::hours(1000));
  EXPECT_EQ(r.claimed_ids(r.claim_request("A", 20)), "");
  EXPECT_EQ(*r.claim_job("waiting", r.claim_request("A")), std::nullopt);
  r.must_commit(r.append("waiting", r.unleased(), 2, "queued"));
  EXPECT_EQ(r.claimed_ids(r.claim_request("A", 20)), "waiting");
}

// A worker that cannot read the log releases the job and writes nothing; the job remains for other
// workers.
inline void released_unread(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));
  Batch release = r.rows_only("j1", r.leased(), 2);
  release.release = true;
  r.must_commit(release);
  EXPECT_EQ(r.row("j1").status, "running");
  EXPECT_EQ(r.claimed_ids(r.claim_request("A2")), "j1");
}

inline void claim_capabilities(ConformanceFixture& r) {
  r.must_commit(r.create("j0", {.agent = "a", .capabilities = {"eu", "gpu"}}));
  r.must_commit(r.create("j1", {.agent = "a", .capabilities = {"gpu"}}));
  r.must_commit(r.create("j2", {.agent = "a"}));
  EXPECT_EQ(r.row("j0").capabilities, (std::vector<std::string>{"eu", "gpu"}));
  ClaimRequest none = r.claim_request("A", 10);
  EXPECT_EQ(*r.claim_job("j1", none), std::nullopt);
  EXPECT_EQ(r.claimed_ids(none), "j2");
  ClaimRequest gpu = r.claim_request("B", 10);
  gpu.capabilities = {"gpu", "tpu"};
  EXPECT_EQ(r.claimed_ids(gpu), "j1");
  gpu.capabilities = {"gpu", "eu"};
  EXPECT_EQ(show(*r.claim_job("j0", gpu)), "j0 B0@1 until 30000000");
  r.loop.advance(kLease);
  EXPECT_EQ(r.claimed_ids(none), "j2") << "also after their leases have expired";
}

inline std::vector<Case> claim_cases() {
  return {
      {"claims are ordered by priority, then by age", claim_order},
      {"a claim returns jobs of its agents only, and no excluded job", claim_filters},
      {"only a worker with all capabilities of a job claims it", claim_capabilities},
      {"blocked and ended jobs are never claimed", blocked_is_never_claimed},
      {"a running job that was released without an event is claimed again", released_unread},
  };
}

}  // namespace ae::store::conformance
