// Conformance: the creation of jobs, with and without a lease or an idempotency key.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <vector>

#include "store/conformance_fixture_test.h"

namespace ae::store::conformance {

inline void creates(ConformanceFixture& r) {
  NewJob job{.agent = "refund", .request_hash = sha256("r"), .priority = 7};
  job.labels = {{"team", "a"}, {"env", "prod"}};
  Batch b = r.create("j1", job, {.status = "queued", .wake_at = r.at(std::chrono::hours(1))});
  b.sealed->created_at = r.at(std::chrono::seconds(3));
  const auto answer = r.commit(b);
  EXPECT_EQ(show(answer), "seq 2");
  const auto loaded = r.load("j1");
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->commits, std::vector<std::string>{sealed("j1", 1, 2).bytes});
  EXPECT_EQ(show(loaded->row),
            fmt::format("j1 agent=refund status=queued key= labels=team=a,env=prod, priority=7 "
                        "needs= queue=default created=3000000 updated=3000000 seq=2 head={} "
                        "not_before=- wake_at=3600000000 claim=- worker= until=-",
                        to_hex(sealed("j1", 1, 2).head).substr(0, 8)));
}

inline void creates_claimed(ConformanceFixture& r) {
  const auto answer = r.commit(r.create_claimed("j1"));
  EXPECT_EQ(show(answer), "seq 2 lease j1 A1@1 until 30000000");
  const JobRow row = r.row("j1");
  EXPECT_EQ(row.claim, fence("A1", 1));
  EXPECT_EQ(row.claim_worker, "w1");
  EXPECT_EQ(row.lease_until, r.loop.now() + kLease);
  EXPECT_EQ(r.claimed_ids(r.claim_request("A2")), "");
  r.must_commit(r.append("j1", r.leased(), 2));
}

inline void same_key_gives_the_same_job(ConformanceFixture& r) {
  NewJob job{.agent = "refund", .idempotency_key = "k", .request_hash = sha256("one")};
  r.must_commit(r.create("j1", job));
  job.request_hash = sha256("two");
  const auto again = r.commit(r.create("j2", job));
  EXPECT_EQ(show(again), "seq 2 existing j1 request " + to_hex(sha256("one")).substr(0, 8));
  EXPECT_EQ(show(r.load("j2")), "not_found");
  // The same job id and key with other events: still the existing job of that key.
  Batch other = r.create("j1", job);
  other.sealed = sealed("j1", 1, 3, "other");
  EXPECT_EQ(show(r.commit(other)),
            "seq 2 existing j1 request " + to_hex(sha256("one")).substr(0, 8));
  job.agent = "another";
  EXPECT_EQ(show(r.commit(r.create("j3", job))), "seq 2");
  // Jobs without a key do not conflict.
  EXPECT_EQ(show(r.commit(r.create("j4"))), "seq 2");
  EXPECT_EQ(show(r.commit(r.create("j5"))), "seq 2");
}

inline void job_id_is_used_once(ConformanceFixture& r) {
  r.must_commit(r.create("j1"));
  Batch other = r.create("j1");
  other.sealed = sealed("j1", 1, 2, "other");
  EXPECT_EQ(r.expect_refused(other), Code::already_exists);
}

inline void repeated_create(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));
  r.loop.advance(std::chrono::seconds(1));
  EXPECT_EQ(show(r.commit(r.create_claimed("j1"))), "seq 2 repeated lease j1 A1@1 until 30000000");
  r.must_commit(r.append("j1", r.leased(), 2));
  EXPECT_EQ(show(r.commit(r.create_claimed("j1"))), "seq 2 repeated lease j1 A1@1 until 30000000");
  r.loop.advance(std::chrono::seconds(60));
  ASSERT_EQ(r.claimed_ids(r.claim_request("A2")), "j1");
  EXPECT_EQ(show(r.commit(r.create_claimed("j1"))), "seq 2 repeated");
}

inline void unknown_job(ConformanceFixture& r) {
  EXPECT_EQ(r.expect_refused(r.append("nope", r.leased(), 0)), Code::not_found);
  EXPECT_EQ(r.expect_refused(r.append("nope", r.unleased(), 0)), Code::not_found);
  EXPECT_EQ(r.expect_refused(r.rows_only("nope", Batch::LateResult{}, 0)), Code::not_found);
  EXPECT_EQ(show(r.put("nope", "s")), "not_found");
  EXPECT_EQ(show(r.load("nope")), "not_found");
  EXPECT_EQ(r.claim_job("nope", r.claim_request("A")).error().code, Code::not_found);
}

// Of a child job: its creator must hold the parent when the child is committed.
inline void creator_must_hold_its_job(ConformanceFixture& r) {
  const auto child = [&](std::string id, std::string_view attempt, std::uint64_t epoch) {
    Batch b = r.create(std::move(id));
    b.sender = HeldJob{JobId("p"), fence(attempt, epoch)};
    return b;
  };
  EXPECT_EQ(show(r.commit(child("c0", "A1", 1))), "stale_attempt") << "there is no such job";
  r.must_commit(r.create_claimed("p"));
  EXPECT_EQ(show(r.commit(child("c1", "A1", 1))), "seq 2");
  EXPECT_EQ(show(r.commit(child("c2", "A1", 2))), "stale_attempt");
  EXPECT_EQ(show(r.commit(child("c2", "A2", 1))), "stale_attempt");
  r.loop.advance(kLease + std::chrono::seconds(1));
  EXPECT_EQ(show(r.commit(child("c3", "A1", 1))), "seq 2") << "expired, and not claimed since";
  const auto claimed = r.claim_job("p", r.claim_request("A2"));
  ASSERT_TRUE(claimed && *claimed);
  EXPECT_EQ(show(r.commit(child("c4", "A1", 1))), "stale_attempt");
  Batch ends = r.append("p", r.leased("A2", 2), 2, "completed");
  ends.release = true;
  r.must_commit(ends);
  EXPECT_EQ(show(r.commit(child("c4", "A2", 2))), "stale_attempt");
  EXPECT_EQ(show(r.load("c4")), "not_found") << "nothing is written";
  EXPECT_EQ(show(r.commit(child("c1", "A1", 1))), "seq 2 repeated") << "that was done before";
}

inline std::vector<Case> create_cases() {
  return {
      {"a job is created in the name of another one only while that is held so",
       creator_must_hold_its_job},
      {"a new job is stored completely, with all fields of its row", creates},
      {"a job created with a lease is leased to its creator", creates_claimed},
      {"an idempotency key creates at most one job per agent", same_key_gives_the_same_job},
      {"a duplicate job id is refused", job_id_is_used_once},
      {"a repeated create is reported as a duplicate, with its lease if still held",
       repeated_create},
      {"every call for an unknown job returns not_found", unknown_job},
  };
}

}  // namespace ae::store::conformance
