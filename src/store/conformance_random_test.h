// Randomized conformance: the same random history on the driver and on the memory store gives the
// same answers and byte-equal logs; and a scripted job in which every call fails once ends as if
// none had failed.
#pragma once

#include <string>
#include <vector>

#include "store/conformance_fixture_test.h"
#include "store/faulty/faulty_store.h"
#include "store/memory/memory_store.h"

namespace ae::store::conformance {

class SeededRandom {
 public:
  explicit SeededRandom(std::uint64_t seed) : state_(seed) {}
  std::uint64_t below(std::uint64_t n) {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return (z ^ (z >> 31)) % n;
  }
  bool one_in(std::uint64_t n) { return below(n) == 0; }

 private:
  std::uint64_t state_;
};

// Draws calls from a small set, so that they conflict: few jobs, few attempts, close seqs.
class RandomHistory {
 public:
  RandomHistory(std::uint64_t seed, ConformanceFixture& fixture, std::string fair_by)
      : random_(seed), fixture_(fixture), fair_by_(std::move(fair_by)), model_(model()) {}

  void step() {
    if (random_.one_in(4))
      fixture_.loop.advance(Duration(static_cast<std::int64_t>(random_.below(20)) * 1'000'000));
    switch (random_.below(12)) {
      case 0:
        return same<Result<CommitResult>>(
            [b = create()](Store& s, auto done) { s.commit(b, std::move(done)); });
      case 1:
      case 2:
        return claims();
      case 3:
        return same<Result<void>>([j = job(), id = name("s")](Store& s, auto done) {
          s.put_inbox(JobId(j), {.id = id, .request = "{}"}, std::move(done));
        });
      case 4:
        return heartbeats();
      case 5:
        return reads();
      default:
        return commits();
    }
  }

  // Compares the complete contents of both stores.
  void compare() {
    for (int i = 0; i < kJobs; ++i) {
      const JobId id("j" + std::to_string(i));
      same<Result<LoadedJob>>([&](Store& s, auto done) { s.load(id, 1, std::move(done)); });
    }
    same<Result<std::vector<JobRow>>>([&](Store& s, auto done) { s.query({}, std::move(done)); });
    same<Result<std::vector<JobId>>>(
        [&](Store& s, auto done) { s.list_due(100, std::move(done)); });
  }

  void restart() {
    fixture_.store_driver->restart();
    model_ = model();
  }

 private:
  std::unique_ptr<MemoryStore> model() {
    return std::make_unique<MemoryStore>(fixture_.loop, fixture_.loop, disk_,
                                         MemoryStore::Options{.fair_by = fair_by_});
  }

  static constexpr int kJobs = 6;

  template <class T>
  void same(auto call) {
    const std::string result =
        show(fixture_.loop.await<T>([&](auto done) { call(fixture_.store(), std::move(done)); }));
    const std::string models =
        show(fixture_.loop.await<T>([&](auto done) { call(*model_, std::move(done)); }));
    EXPECT_EQ(result, models);
  }

  std::string name(const char* kind, std::uint64_t of = 4) {
    return kind + std::to_string(random_.below(of));
  }
  std::string job() { return name("j", kJobs); }
  std::optional<Instant> soon() {
    if (random_.one_in(2)) return std::nullopt;
    return fixture_.loop.now() + Duration(static_cast<std::int64_t>(random_.below(60)) * 1'000'000);
  }

  // The job's row in the model, so that many calls succeed. Also sets inbox_.
  std::optional<JobRow> row_of(const std::string& id) {
    auto loaded = fixture_.loop.await<Result<LoadedJob>>(
        [&](auto done) { model_->load(JobId(id), 1, std::move(done)); });
    if (!loaded) return std::nullopt;
    inbox_ = loaded->inbox;
    return loaded->row;
  }

  RowState row(bool blocked_too) {
    static constexpr const char* kStatus[] = {"queued", "running", "waiting", "parked",
                                              "completed"};
    return {.status = kStatus[random_.below(blocked_too ? 5 : 2)],
            .not_before = soon(),
            .wake_at = soon()};
  }

  Batch create() {
    NewJob new_job{.agent = name("agent", 2)};
    if (random_.one_in(3)) new_job.idempotency_key = name("key");
    new_job.request_hash = sha256(name("request"));
    new_job.priority = static_cast<std::int64_t>(random_.below(3));
    if (random_.one_in(2)) new_job.labels = {{"l", name("v")}};
    if (random_.one_in(4)) new_job.capabilities = {"gpu"};
    if (random_.one_in(2)) new_job.queue = name("q", 2);
    if (random_.one_in(3)) new_job.forked_from = job();
    const bool claimed = random_.one_in(2);
    if (claimed)
      new_job.claim =
          InitialClaimParams{.worker = "w", .attempt = AttemptId(name("A")), .lease = kLease};
    Batch b = fixture_.create(job(), std::move(new_job), row(!claimed));
    if (random_.one_in(2)) b.sealed->blobs = {blob(name("blob"))};
    return b;
  }

  Batch batch() {
    const std::string id = job();
    const auto current_row = row_of(id);
    const std::uint64_t last = current_row ? current_row->last_seq : 0;
    Batch b{.job = JobId(id)};
    b.expected_seq = last;
    if (last > 0 && random_.one_in(6)) b.expected_seq = random_.below(last + 2);
    if (current_row && current_row->claim && !random_.one_in(6)) {
      b.authority = Batch::Leased{*current_row->claim};
    } else if (random_.one_in(3)) {
      b.authority = Batch::Leased{fence(name("A"), random_.below(3))};
    } else {
      b.authority = Batch::Unleased{};
    }
    const bool held = std::holds_alternative<Batch::Leased>(b.authority);
    b.release = held && random_.one_in(4);
    if (!random_.one_in(4)) {
      b.sealed = sealed(id, b.expected_seq + 1, 1 + random_.below(2), name("t", 2));
      b.row = row(!held || b.release);
      if (random_.one_in(4)) b.sealed->blobs = {blob(name("blob")), blob(name("blob"))};
      if (random_.one_in(4)) b.summary = Summary{.error = name("error", 2), .body = name("s")};
    }
    if (random_.one_in(3)) b.effects = {{InvocationId(name("i")), 1, name("e")}};
    if (random_.one_in(8)) b.effects_absent = {{InvocationId(name("i")), 1}};
    if (random_.one_in(3)) b.ledger_put = {{InvocationId(name("i")), 1, "INFLIGHT", name("r")}};
    if (random_.one_in(3)) b.ledger_erase = {{InvocationId(name("i")), 1}};
    return b;
  }

  // Entries are chosen by id, because each store assigns its own numbers.
  void commits() {
    inbox_.clear();
    const Batch b = batch();
    std::vector<std::string> consumed;
    for (const InboxEntry& entry : inbox_) {
      if (!random_.one_in(5)) consumed.push_back(entry.id);
    }
    same<Result<CommitResult>>([&](Store& s, auto done) {
      Batch copy = b;
      const auto loaded =
          fixture_.loop.await<Result<LoadedJob>>([&](auto d) { s.load(b.job, 1, std::move(d)); });
      const std::vector<InboxEntry> inbox = loaded ? loaded->inbox : std::vector<InboxEntry>();
      for (const InboxEntry& entry : inbox) {
        if (std::ranges::find(consumed, entry.id) != consumed.end()) {
          copy.inbox_consumed.push_back(entry.number);
        }
      }
      s.commit(std::move(copy), std::move(done));
    });
  }

  void claims() {
    ClaimRequest request = ConformanceFixture::claim_request(name("A"), 1 + random_.below(3));
    if (random_.one_in(3)) request.agents = {name("agent", 2)};
    if (random_.one_in(4)) request.excluded_jobs = {JobId(job())};
    if (random_.one_in(2)) request.queues = {{name("q", 2), 1 + random_.below(2)}};
    if (random_.one_in(2)) {
      return same<Result<std::vector<Lease>>>(
          [request](Store& s, auto done) { s.claim(request, std::move(done)); });
    }
    same<Result<std::optional<Lease>>>([request, id = JobId(job())](Store& s, auto done) {
      s.claim_job(id, request, std::move(done));
    });
  }

  void heartbeats() {
    std::vector<std::pair<JobId, Fence>> held;
    for (int i = 0; i < 3; ++i) {
      const std::string id = job();
      const auto current_row = row_of(id);
      held.emplace_back(id,
                        current_row && current_row->claim ? *current_row->claim : fence("A", 1));
    }
    same<Result<std::vector<std::optional<Instant>>>>(
        [held](Store& s, auto done) { s.heartbeat(held, kLease, std::move(done)); });
  }

  void reads() {
    same<Result<LoadedJob>>([id = JobId(job()), from = random_.below(9)](Store& s, auto done) {
      s.load(id, from, std::move(done));
    });
    const WindowRequest window{.direction = random_.one_in(2) ? WindowRequest::Direction::after
                                                              : WindowRequest::Direction::before,
                               .seq = random_.below(9),
                               .events_max = 1 + random_.below(4)};
    same<Result<LogWindow>>([id = JobId(job()), window](Store& s, auto done) {
      s.load_window(id, window, std::move(done));
    });
    same<Result<std::optional<Instant>>>([](Store& s, auto done) { s.next_due(std::move(done)); });
    Filter filter{.limit = 1 + random_.below(4)};
    if (random_.one_in(2)) filter.statuses = {"running"};
    if (random_.one_in(6)) filter.forked_from = job();
    if (random_.one_in(6)) filter.error = name("error", 2);
    if (random_.one_in(2)) filter.agent = name("agent", 2);
    if (random_.one_in(3)) filter.labels = {{"l", name("v")}};
    if (random_.one_in(3)) filter.after = job();
    same<Result<std::vector<JobRow>>>(
        [filter](Store& s, auto done) { s.query(filter, std::move(done)); });
  }

  SeededRandom random_;
  ConformanceFixture& fixture_;
  std::string fair_by_;
  MemoryDisk disk_;
  std::unique_ptr<MemoryStore> model_;
  std::vector<InboxEntry> inbox_;  // of the last call of row_of
};

inline void random_histories(ConformanceFixture& first, const Factory& factory) {
  const bool owned = first.store().owned();
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ConformanceFixture fixture(factory);
    if (seed % 2 == 0) fixture.store_driver->fair_by("l");
    RandomHistory history(seed, fixture, seed % 2 == 0 ? "l" : "");
    for (int i = 1; i <= 400; ++i) {
      SCOPED_TRACE("step " + std::to_string(i));
      history.step();
      if (owned && i % 150 == 0) history.restart();
      if (::testing::Test::HasFailure()) return;
    }
    history.compare();
  }
}

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
      SCOPED_TRACE("call " + std::to_string(n));
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
      SCOPED_TRACE("call " + std::to_string(n));
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
