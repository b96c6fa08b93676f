// Conformance: a scripted job in which each call fails once, and one whose caller crashes at each
// call, end as if nothing had failed.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/conformance_fixture_test.h"
#include "store/faulty/faulty_store.h"

namespace ae::store::conformance {

// A caller as store.h requires: retries after `unavailable`, reads back after `unknown_outcome`.
class RetryingCaller {
 public:
  RetryingCaller(ConformanceFixture& fixture, Store& store) : fixture_(fixture), store_(store) {}

  Result<CommitResult> commit(const Batch& batch) {
    for (;;) {
      auto answer = fixture_.loop.await<Result<CommitResult>>(
          [&](auto done) { store_.commit(batch, std::move(done)); });
      if (answer || !is_retryable(answer.error())) return answer;
      if (answer.error().code == Code::unknown_outcome && !batch.sealed) {
        // Without events there are no bytes to compare: repeating writes the same rows, except for
        // a release.
        const auto row = load(batch.job.text).row;
        if (batch.release && !row.claim) return CommitResult{.last_seq = row.last_seq};
      }
    }
  }
  LoadedJob load(const std::string& job) {
    return retry_until_ok<LoadedJob>(
        [&](auto done) { store_.load(JobId(job), 1, std::move(done)); });
  }
  void put(const std::string& job, const std::string& id) {
    for (;;) {
      const auto answer = fixture_.loop.await<Result<void>>([&](auto done) {
        store_.put_inbox(JobId(job), {.id = id, .request = "{}"}, std::move(done));
      });
      if (answer) return;
      ASSERT_TRUE(is_retryable(answer.error())) << answer.error().message;
    }
  }
  Fence claim(const std::string& job, const std::string& attempt) {
    for (;;) {
      const auto answer = fixture_.loop.await<Result<std::optional<Lease>>>([&](auto done) {
        store_.claim_job(JobId(job), ConformanceFixture::claim_request(attempt), std::move(done));
      });
      if (answer && *answer) return (*answer)->fence;
      EXPECT_TRUE(answer.has_value() || is_retryable(answer.error()));
      const auto row = load(job).row;  // after unknown_outcome the lease may be ours already
      if (row.claim && row.claim->attempt.text == attempt) return *row.claim;
    }
  }
  std::optional<Instant> heartbeat(const std::string& job, const Fence& held) {
    return retry_until_ok<std::vector<std::optional<Instant>>>(
               [&](auto done) { store_.heartbeat({{JobId(job), held}}, kLease, std::move(done)); })
        .at(0);
  }

 private:
  static bool is_retryable(const Error& error) {
    return error.code == Code::unavailable || error.code == Code::unknown_outcome;
  }
  template <class T>
  T retry_until_ok(auto start) {
    for (;;) {
      auto answer = fixture_.loop.await<Result<T>>(start);
      if (answer) return *std::move(answer);
      AE_CHECK(is_retryable(answer.error()), answer.error().message);
    }
  }

  ConformanceFixture& fixture_;
  Store& store_;
};

// The life of one job, through every method; returns its final contents.
inline std::string run_one_job(ConformanceFixture& fixture, Store& store) {
  RetryingCaller caller(fixture, store);
  EXPECT_TRUE(caller.commit(fixture.create_claimed("j1")));
  Batch declare = fixture.append("j1", fixture.leased(), 2);
  declare.ledger_put = {{InvocationId("i1"), 1, "INFLIGHT", "{}"}};
  EXPECT_TRUE(caller.commit(declare));
  caller.put("j1", "s1");
  EXPECT_TRUE(caller.heartbeat("j1", fence("A1", 1)));
  Batch effect = fixture.rows_only("j1", fixture.leased(), 3);
  effect.effects = {{InvocationId("i1"), 1, "{}"}};
  EXPECT_TRUE(caller.commit(effect));
  Batch release = fixture.append("j1", fixture.leased(), 3, "queued");
  release.release = true;
  EXPECT_EQ(caller.commit(release).error().code, Code::inbox_pending);
  const auto inbox = caller.load("j1").inbox;
  for (const auto& entry : inbox) release.inbox_consumed.push_back(entry.number);
  EXPECT_TRUE(caller.commit(release));
  const Fence second = caller.claim("j1", "A2");
  EXPECT_EQ(caller.commit(fixture.append("j1", fixture.leased(), 4)).error().code,
            Code::stale_attempt);
  Batch done = fixture.append("j1", Batch::Leased{second}, 4, "completed");
  done.release = true;
  EXPECT_TRUE(caller.commit(done));
  return show(caller.load("j1"));
}

inline void every_call_fails_once(ConformanceFixture& fixture, const Factory& factory) {
  const std::string expected = run_one_job(fixture, fixture.store());
  for (const Fault fault : {Fault::fail_before, Fault::fail_after}) {
    for (std::uint64_t n = 1;; ++n) {
      SCOPED_TRACE(fmt::format("call {}", n));
      ConformanceFixture other(factory);
      FaultyStore faulty(other.loop, other.store(), {.script = inject_at(n, fault)});
      EXPECT_EQ(run_one_job(other, faulty), expected);
      if (faulty.calls() < n) break;
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// The caller crashes at call n, before or after it; a successor reads the state and continues.
inline void every_call_is_the_last(ConformanceFixture& first, const Factory& factory) {
  const bool owned = first.store().owned();
  for (const Fault fault : {Fault::crash_before, Fault::crash_after}) {
    for (std::uint64_t n = 1;; ++n) {
      SCOPED_TRACE(fmt::format("call {}", n));
      ConformanceFixture fixture(factory);
      bool dead = false;
      std::string acked;
      FaultyStore faulty(fixture.loop, fixture.store(),
                         {.script = inject_at(n, fault), .on_crash = [&] { dead = true; }});
      Batch batches[] = {fixture.create_claimed("j1"), fixture.append("j1", fixture.leased(), 2),
                         fixture.append("j1", fixture.leased(), 3),
                         fixture.append("j1", fixture.leased(), 4, "completed")};
      batches[3].release = true;
      std::uint64_t acked_seq = 0, sent = 0;
      for (const Batch& batch : batches) {
        ++sent;
        faulty.commit(batch, [&](Result<CommitResult> answer) {
          ASSERT_TRUE(answer);
          acked_seq = answer->last_seq;
        });
        fixture.loop.run_until([&] { return dead || acked_seq == batch.sealed->last_seq; });
        if (dead) break;
      }
      if (!dead) break;
      if (owned) fixture.store_driver->restart();
      const auto loaded = fixture.load("j1");
      const std::uint64_t last = loaded ? loaded->row.last_seq : 0;
      EXPECT_GE(last, acked_seq);
      EXPECT_LE(last, sent + 1);
      for (const Batch& batch : batches) EXPECT_TRUE(fixture.commit(batch)) << "sent again";
      EXPECT_EQ(fixture.row("j1").last_seq, 5u);
      EXPECT_EQ(fixture.load("j1")->commits.size(), 4u);
    }
  }
}

}  // namespace ae::store::conformance
