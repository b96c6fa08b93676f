// Conformance: the life of a lease: epochs, expiry, heartbeats, and a restart of the store.
#pragma once

#include <fmt/core.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "store/conformance_fixture_test.h"

namespace ae::store::conformance {

inline void epochs_rise(ConformanceFixture& r) {
  r.must_commit(r.create("j1"));
  std::uint64_t epoch = 0, seq = 2;
  for (int i = 0; i < 4; ++i) {
    const auto leases = r.claim(r.claim_request(fmt::format("A{}", i)));
    ASSERT_EQ(leases->size(), 1u);
    const Lease lease = leases->at(0);
    EXPECT_GT(lease.fence.epoch, epoch);
    epoch = lease.fence.epoch;
    EXPECT_EQ(lease.lease_until, r.loop.now() + kLease);
    EXPECT_EQ(r.row("j1").claim_worker, "w2");
    if (i % 2 == 0) {
      Batch release = r.append("j1", Batch::Leased{lease.fence}, seq++, "queued");
      release.release = true;
      r.must_commit(release);
    } else {
      r.loop.advance(kLease);
    }
  }
}

inline void expiry(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));
  r.loop.advance(kLease - Duration(1));
  EXPECT_EQ(r.claimed_ids(r.claim_request("A2")), "");
  EXPECT_EQ(*r.claim_job("j1", r.claim_request("A2")), std::nullopt) << "a lease runs to its end";
  r.loop.advance(Duration(1));
  EXPECT_EQ(r.claimed_ids(r.claim_request("A2")), "j1");
  EXPECT_EQ(r.row("j1").claim, fence("A2", 2));
}

inline void heartbeats(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));
  r.must_commit(r.create_claimed("j2", "B1"));
  r.must_commit(r.create("j3"));
  r.loop.advance(std::chrono::seconds(20));
  const auto until = r.heartbeat({{JobId("j2"), fence("B1", 1)},
                                  {JobId("j3"), fence("A1", 1)},
                                  {JobId("j1"), fence("A1", 2)},
                                  {JobId("none"), fence("A1", 1)},
                                  {JobId("j1"), fence("A1", 1)}});
  ASSERT_TRUE(until);
  ASSERT_EQ(until->size(), 5u);
  EXPECT_EQ(until->at(0), r.loop.now() + kLease);
  EXPECT_EQ(until->at(1), std::nullopt);
  EXPECT_EQ(until->at(2), std::nullopt);
  EXPECT_EQ(until->at(3), std::nullopt);
  EXPECT_EQ(until->at(4), r.loop.now() + kLease);
  r.loop.advance(std::chrono::seconds(20));
  EXPECT_EQ(r.claimed_ids(r.claim_request("A2", 2)), "j3") << "heartbeats kept the other two";
  EXPECT_EQ(r.row("j1").claim, fence("A1", 1)) << "a heartbeat changes neither attempt nor epoch";
}

inline void heartbeat_never_revives(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));
  r.loop.advance(kLease);
  EXPECT_EQ(r.heartbeat({{JobId("j1"), fence("A1", 1)}})->at(0), std::nullopt);
  EXPECT_EQ(r.claimed_ids(r.claim_request("A2")), "j1");
  EXPECT_EQ(r.heartbeat({{JobId("j1"), fence("A1", 1)}})->at(0), std::nullopt);
  Batch release = r.append("j1", r.leased("A2", 2), 2, "queued");
  release.release = true;
  r.must_commit(release);
  EXPECT_EQ(r.heartbeat({{JobId("j1"), fence("A2", 2)}})->at(0), std::nullopt);
}

inline void records_opening_time(ConformanceFixture& r) {
  const std::optional<Instant> first = r.store().opened_at();
  EXPECT_EQ(first.has_value(), r.store().owned()) << "a shared store has no owner";
  if (!first) return;
  EXPECT_LE(*first, r.loop.now());
  r.must_commit(r.create_claimed("j1"));
  r.loop.advance(std::chrono::seconds(3));
  EXPECT_EQ(r.store().opened_at(), first) << "it does not change while the store is open";
  r.store_driver->restart();
  ASSERT_TRUE(r.store().opened_at());
  EXPECT_GE(*r.store().opened_at(), *first + std::chrono::seconds(3));
  EXPECT_LE(*r.store().opened_at(), r.loop.now());
}

inline void restarts(ConformanceFixture& r) {
  Batch b = r.create_claimed("j1");
  b.sealed->blobs = {blob("plan")};
  r.must_commit(b);
  Batch more = r.append("j1", r.leased(), 2);
  more.effects = {{InvocationId("i1"), 1, "e"}};
  more.ledger_put = {{InvocationId("i2"), 1, "INFLIGHT", "l"}};
  more.row.wake_at = r.at(std::chrono::seconds(77));
  r.must_commit(more);
  r.put("j1", "s1", "act").value();
  r.must_commit(r.create("j2", {.agent = "a", .idempotency_key = "k", .labels = {{"x", "y"}}}));
  const std::string j1 = show(r.load("j1")), j2 = show(r.load("j2"));
  const bool owned = r.store().owned();
  r.store_driver->restart();
  EXPECT_EQ(show(r.load("j2")), j2);
  if (!owned) {
    EXPECT_EQ(show(r.load("j1")), j1);
    return;
  }
  // One owner: all earlier leases have ended; the claim row remains until the next claim.
  JobRow row = r.row("j1");
  EXPECT_EQ(row.claim, fence("A1", 1));
  EXPECT_LE(row.lease_until, r.loop.now());
  const std::string after = show(r.load("j1"));
  EXPECT_EQ(after.substr(after.find('\n')), j1.substr(j1.find('\n')));
  EXPECT_EQ(show(r.put("j1", "s2")), "ok");
  EXPECT_EQ(r.expect_refused(r.append("j1", r.unleased(), 3)), Code::held);
  EXPECT_EQ(r.heartbeat({{JobId("j1"), fence("A1", 1)}})->at(0), std::nullopt);
  EXPECT_EQ(r.claimed_ids(r.claim_request("A2", 5)), "j1 j2");
  EXPECT_EQ(r.row("j1").claim, fence("A20", 2));
  EXPECT_EQ(r.load("j1")->inbox.size(), 2u);
  EXPECT_EQ(show(r.commit(r.create("j3", {.agent = "a", .idempotency_key = "k"})))
                .starts_with("seq 2 existing j2"),
            true);
  r.must_commit(r.append("j1", r.leased("A20", 2), 3));
}

inline std::vector<Case> lease_cases() {
  return {
      {"each claim of a job has a higher epoch", epochs_rise},
      {"a job is claimed again when its lease has expired, not earlier", expiry},
      {"a heartbeat extends held leases and reports the others as lost", heartbeats},
      {"a heartbeat never revives an expired or released lease", heartbeat_never_revives},
      {"acknowledged writes survive a restart, and earlier leases have ended", restarts},
      {"an owned store reports when it was opened, later at each opening", records_opening_time},
  };
}

}  // namespace ae::store::conformance
