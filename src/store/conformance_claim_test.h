// Conformance: leases, timers, loads and queries.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "log/field_names.h"
#include "store/conformance_fixture_test.h"
#include "store/rules.h"

namespace ae::store::conformance {

inline RowState delayed(Instant not_before) {
  return {.status = "queued", .not_before = not_before};
}
inline RowState waking(Instant wake_at) { return {.status = "waiting", .wake_at = wake_at}; }

inline void epochs_rise(ConformanceFixture& r) {
  r.must_commit(r.create("j1"));
  std::uint64_t epoch = 0, seq = 2;
  for (int i = 0; i < 4; ++i) {
    const auto leases = r.claim(r.claim_request("A" + std::to_string(i)));
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

inline void claim_order(ConformanceFixture& r) {
  const std::int64_t priorities[] = {0, 5, -3, 5, 0};
  for (int i = 0; i < 5; ++i) {
    r.must_commit(r.create("j" + std::to_string(i), {.agent = "a", .priority = priorities[i]}));
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
    const std::string leased_job = std::string("held-") + status;
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
    r.must_commit(r.create("j" + std::to_string(i), job,
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
    for (const auto& [name, n] : numbers) all += name + "=" + std::to_string(n) + " ";
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
  for (int i = 0; i < 4; ++i)
    r.must_commit(r.create("n" + std::to_string(i), in_queue("narrow", 5)));
  for (int i = 0; i < 2; ++i) r.must_commit(r.create("d" + std::to_string(i), {.agent = "a"}));
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
  for (int i = 0; i < 3; ++i) r.must_commit(r.create("n" + std::to_string(i), in_queue("narrow")));
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
  for (int i = 0; i < 6; ++i) create("big" + std::to_string(i), "big");
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
    r.must_commit(r.create("big" + std::to_string(i), std::move(job)));
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

// A naive implementation of the claim order: scans all jobs for each one that is taken.
class NaiveClaimOrder {
 public:
  struct Job {
    std::string id;
    NewJob new_job;
    std::string fairness_key;
    bool ready = true;
  };
  explicit NaiveClaimOrder(bool is_fair) : is_fair_(is_fair) {}
  std::vector<Job> jobs;  // by age

  std::string claim(const ClaimRequest& request) {
    std::string claimed;
    for (std::size_t n = 0; n < request.limit; ++n) {
      Job* best = nullptr;
      for (Job& job : jobs) {
        if (may_claim(request, job) && (best == nullptr || order(job) < order(*best))) best = &job;
      }
      if (best == nullptr) break;
      best->ready = false;
      ++leased_[best->new_job.queue];
      last_[best->new_job.priority] = best->fairness_key;
      claimed += (claimed.empty() ? "" : " ") + best->id;
    }
    return claimed;
  }

 private:
  bool may_claim(const ClaimRequest& request, const Job& job) {
    const auto limit = queue_limit_of(request, job.new_job.queue);
    return job.ready && (!limit || leased_[job.new_job.queue] < *limit) &&
           matches(request, {JobId(job.id), job.new_job.agent, job.new_job.capabilities});
  }
  std::tuple<std::int64_t, bool, std::string> order(const Job& job) const {
    const auto last = last_.find(job.new_job.priority);
    const bool next_round = is_fair_ && last != last_.end() && job.fairness_key <= last->second;
    return {-job.new_job.priority, next_round, is_fair_ ? job.fairness_key : std::string()};
  }

  const bool is_fair_;
  std::map<std::string, std::size_t> leased_;
  std::map<std::int64_t, std::string> last_;
};

// Jobs of many kinds in many queues, and workers that may run some of them.
inline void same_claim_order(ConformanceFixture& r, bool is_fair) {
  if (is_fair) {
    ASSERT_NE(r.store_driver->fair_by("tenant"), nullptr);
  }
  std::uint64_t state = is_fair ? 7 : 11;
  const auto below = [&state](std::uint64_t n) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (state >> 33) % n;
  };
  NaiveClaimOrder naive(is_fair);
  const auto create = [&] {
    NewJob job{.agent = "agent" + std::to_string(below(3)),
               .priority = static_cast<std::int64_t>(below(3)),
               .queue = "q" + std::to_string(below(2))};
    if (below(3) == 0) job.capabilities.emplace_back("eu");
    if (below(3) == 0) job.capabilities.emplace_back("gpu");
    const std::string tenant = "t" + std::to_string(below(3));
    job.labels = {{"tenant", tenant}};
    const std::string id = "j" + std::to_string(naive.jobs.size());
    naive.jobs.push_back({.id = id, .new_job = job, .fairness_key = is_fair ? tenant : ""});
    r.must_commit(r.create(id, std::move(job)));
  };
  for (int i = 0; i < 50; ++i) create();
  for (int i = 0; i < 25; ++i) {
    ClaimRequest request =
        ConformanceFixture::claim_request("A" + std::to_string(i) + ".", 1 + below(4));
    if (below(2) == 0) request.agents = {field::agent + std::to_string(below(3)), "agent9"};
    if (below(2) == 0) request.capabilities.emplace_back("gpu");
    if (below(2) == 0) request.capabilities.emplace_back("eu");
    if (below(3) == 0) request.queues = {{"q" + std::to_string(below(2)), 1 + below(20)}};
    for (std::uint64_t n = below(4); n > 0; --n) {
      request.excluded_jobs.emplace_back("j" + std::to_string(below(naive.jobs.size())));
    }
    const std::string expected = naive.claim(request);
    EXPECT_EQ(r.claimed_ids(request), expected) << i;
    if (below(2) == 0) create();
  }
}
inline void same_claim_order_by_age(ConformanceFixture& r) { same_claim_order(r, false); }
inline void same_claim_order_by_fairness_key(ConformanceFixture& r) { same_claim_order(r, true); }

inline std::vector<Case> claim_cases() {
  return {
      {"eligible jobs are claimed in one order, whatever other jobs require",
       same_claim_order_by_age},
      {"jobs that a worker may not run do not change the fair order of the others",
       same_claim_order_by_fairness_key},
      {"the number of claimed jobs of a queue never exceeds its limit", queue_limits},
      {"a queue limit counts live claims only", queue_limits_count_live_claims},
      {"jobs of a queue at its limit are skipped, and the others keep their order", queue_order},
      {"at equal priority claims alternate between the values of a label", is_fair},
      {"many jobs with one fairness key do not starve another key", fairness_keys_alternate},
      {"each claim of a job has a higher epoch", epochs_rise},
      {"a job is claimed again when its lease has expired, not earlier", expiry},
      {"a heartbeat extends held leases and reports the others as lost", heartbeats},
      {"a heartbeat never revives an expired or released lease", heartbeat_never_revives},
      {"claims are ordered by priority, then by age", claim_order},
      {"a claim returns jobs of its agents only, and no excluded job", claim_filters},
      {"only a worker with all capabilities of a job claims it", claim_capabilities},
      {"blocked and ended jobs are never claimed", blocked_is_never_claimed},
      {"a running job that was released without an event is claimed again", released_unread},
      {"a queued job is not claimed before its not_before", not_before},
      {"jobs are due at wake_at unless they are claimed", due_jobs},
      {"without timers next_due is empty", nothing_planned},
      {"a load starts with the commit that contains the requested event", loads_from},
      {"queries filter and paginate, newest first", queries},
      {"jobs are counted by status and queue, and claims by worker", counts},
      {"acknowledged writes survive a restart, and earlier leases have ended", restarts},
      {"an owned store reports when it was opened, later at each opening", records_opening_time},
  };
}

}  // namespace ae::store::conformance
