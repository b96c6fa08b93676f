// Conformance: not_before and wake_at: when a job becomes claimable or due.
#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "log/field_names.h"
#include "store/conformance_fixture_test.h"

namespace ae::store::conformance {

inline RowState delayed(Instant not_before) {
  return {.status = "queued", .not_before = not_before};
}
inline RowState waking(Instant wake_at) { return {.status = "waiting", .wake_at = wake_at}; }

inline void not_before(ConformanceFixture& r) {
  r.must_commit(r.create("j1", {}, delayed(r.at(std::chrono::seconds(10)))));
  r.must_commit(r.create("j2", {}, delayed(r.at(std::chrono::seconds(5)))));
  EXPECT_EQ(r.claimed_ids(r.claim_request("A", 5)), "");
  EXPECT_EQ(*r.claim_job("j1", r.claim_request("A")), std::nullopt);
  EXPECT_EQ(*r.next_due(), r.at(std::chrono::seconds(5)));
  r.loop.advance(std::chrono::seconds(5));
  EXPECT_EQ(*r.next_due(), r.at(std::chrono::seconds(10)));
  EXPECT_EQ(r.claimed_ids(r.claim_request("A", 5)), "j2");
  r.loop.advance(std::chrono::seconds(5));
  EXPECT_EQ(*r.next_due(), std::nullopt);
  EXPECT_EQ(show(*r.claim_job("j1", r.claim_request("B"))), "j1 B@1 until 40000000");
}

inline void due_jobs(ConformanceFixture& r) {
  r.must_commit(r.create(field::late, {}, waking(r.at(std::chrono::seconds(30)))));
  r.must_commit(r.create("soon", {}, waking(r.at(std::chrono::seconds(10)))));
  r.must_commit(
      r.create("queued", {}, {.status = "queued", .wake_at = r.at(std::chrono::seconds(20))}));
  r.must_commit(
      r.create("parked", {}, {.status = "parked", .wake_at = r.at(std::chrono::seconds(15))}));
  r.must_commit(r.create("never"));
  EXPECT_EQ(*r.next_due(), r.at(std::chrono::seconds(10)));
  EXPECT_EQ(r.due_now(), "");
  r.loop.advance(std::chrono::seconds(10));
  EXPECT_EQ(r.due_now(), "soon") << "at that instant";
  r.loop.advance(std::chrono::seconds(90));
  EXPECT_EQ(r.due_now(), "soon parked queued late");
  EXPECT_EQ(r.due_now(2), "soon parked");
  EXPECT_EQ(*r.next_due(), r.at(std::chrono::seconds(10))) << "what is due stays due";
  // The lease holder handles the job's wake_at itself, also after its lease has expired.
  ASSERT_TRUE((*r.claim_job("queued", r.claim_request("A"))).has_value());
  EXPECT_EQ(r.due_now(), "soon parked late");
  r.loop.advance(kLease + kLease);
  EXPECT_EQ(r.due_now(), "soon parked late");
  Batch release = r.rows_only("queued", r.leased("A", 1), 2);
  release.release = true;
  r.must_commit(release);
  EXPECT_EQ(r.due_now(), "soon parked queued late");
  // A commit replaces wake_at, or clears it.
  r.must_commit(r.append("soon", r.unleased(), 2, "queued"));
  EXPECT_EQ(r.due_now(), "parked queued late");
}

inline void nothing_planned(ConformanceFixture& r) {
  EXPECT_EQ(*r.next_due(), std::nullopt);
  r.must_commit(r.create("j1"));
  r.must_commit(r.create_claimed("j2"));
  EXPECT_EQ(*r.next_due(), std::nullopt) << "claimable now, and the end of a lease: no plan";
}

inline std::vector<Case> timer_cases() {
  return {
      {"a queued job is not claimed before its not_before", not_before},
      {"jobs are due at wake_at unless they are claimed", due_jobs},
      {"without timers next_due is empty", nothing_planned},
  };
}

}  // namespace ae::store::conformance
