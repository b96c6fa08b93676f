// Conformance by chance: the same random history on the driver and on the memory store gives the same answers and
// byte-equal logs; and a scripted life in which every call fails once ends as if none had.
#pragma once

#include <string>
#include <vector>

#include "store/conformance_rig_test.h"
#include "store/faulty/faulty_store.h"
#include "store/memory/memory_store.h"

namespace ae::store::conformance {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}
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

// Draws calls from a small world, so that they meet: few jobs, few attempts, close seqs.
class RandomLife {
 public:
  RandomLife(std::uint64_t seed, Rig& rig, std::string fair_by)
      : dice_(seed), rig_(rig), fair_by_(std::move(fair_by)), model_(model()) {}

  void step() {
    if (dice_.one_in(4))
      rig_.loop.advance(Duration(static_cast<std::int64_t>(dice_.below(20)) * 1'000'000));
    switch (dice_.below(12)) {
      case 0:
        return same<Result<Committed>>(
            [b = create()](Store& s, auto done) { s.commit(b, std::move(done)); });
      case 1:
      case 2:
        return claims();
      case 3:
        return same<Result<void>>([j = job(), id = name("s")](Store& s, auto done) {
          s.put_inbox(JobId(j), {.id = id, .act = "{}"}, std::move(done));
        });
      case 4:
        return beats();
      case 5:
        return reads();
      default:
        return commits();
    }
  }

  // Everything both stores know, compared.
  void compare() {
    for (int i = 0; i < kJobs; ++i) {
      const JobId id("j" + std::to_string(i));
      same<Result<Loaded>>([&](Store& s, auto done) { s.load(id, 1, std::move(done)); });
    }
    same<Result<std::vector<JobRow>>>([&](Store& s, auto done) { s.query({}, std::move(done)); });
    same<Result<std::vector<JobId>>>([&](Store& s, auto done) { s.due(100, std::move(done)); });
  }

  void restart() {
    rig_.driver->restart();
    model_ = model();
  }

 private:
  std::unique_ptr<MemoryStore> model() {
    return std::make_unique<MemoryStore>(rig_.loop, rig_.loop, disk_,
                                         MemoryStore::Options{.fair_by = fair_by_});
  }

  static constexpr int kJobs = 6;

  template <class T>
  void same(auto call) {
    const std::string ours =
        show(rig_.loop.await<T>([&](auto done) { call(rig_.store(), std::move(done)); }));
    const std::string models =
        show(rig_.loop.await<T>([&](auto done) { call(*model_, std::move(done)); }));
    EXPECT_EQ(ours, models);
  }

  std::string name(const char* kind, std::uint64_t of = 4) {
    return kind + std::to_string(dice_.below(of));
  }
  std::string job() { return name("j", kJobs); }
  std::optional<Instant> soon() {
    if (dice_.one_in(2)) return std::nullopt;
    return rig_.loop.now() + Duration(static_cast<std::int64_t>(dice_.below(60)) * 1'000'000);
  }

  // What the model knows of a job, so that many calls are right.
  std::optional<JobRow> row_of(const std::string& id) {
    auto loaded = rig_.loop.await<Result<Loaded>>(
        [&](auto done) { model_->load(JobId(id), 1, std::move(done)); });
    if (!loaded) return std::nullopt;
    inbox_ = loaded->inbox;
    return loaded->row;
  }

  RowState row(bool blocked_too) {
    static constexpr const char* kStatus[] = {"queued", "running", "waiting", "parked",
                                              "completed"};
    return {.status = kStatus[dice_.below(blocked_too ? 5 : 2)],
            .not_before = soon(),
            .wake_at = soon()};
  }

  Batch create() {
    NewJob wish{.agent = name("agent", 2)};
    if (dice_.one_in(3)) wish.idempotency_key = name("key");
    wish.request_hash = sha256(name("request"));
    wish.priority = static_cast<std::int64_t>(dice_.below(3));
    if (dice_.one_in(2)) wish.labels = {{"l", name("v")}};
    if (dice_.one_in(4)) wish.capabilities = {"gpu"};
    if (dice_.one_in(2)) wish.queue = name("q", 2);
    const bool claimed = dice_.one_in(2);
    if (claimed)
      wish.claim = ClaimWish{.worker = "w", .attempt = AttemptId(name("A")), .lease = kLease};
    Batch b = rig_.create(job(), std::move(wish), row(!claimed));
    if (dice_.one_in(2)) b.sealed->blobs = {blob(name("blob"))};
    return b;
  }

  Batch batch() {
    const std::string id = job();
    const auto known = row_of(id);
    const std::uint64_t last = known ? known->last_seq : 0;
    Batch b{.job = JobId(id)};
    b.expected_seq = last;
    if (last > 0 && dice_.one_in(6)) b.expected_seq = dice_.below(last + 2);
    if (known && known->claim && !dice_.one_in(6)) {
      b.authority = Batch::Held{*known->claim};
    } else if (dice_.one_in(3)) {
      b.authority = Batch::Held{fence(name("A"), dice_.below(3))};
    } else {
      b.authority = Batch::Free{};
    }
    const bool held = std::holds_alternative<Batch::Held>(b.authority);
    b.release = held && dice_.one_in(4);
    if (!dice_.one_in(4)) {
      b.sealed = sealed(id, b.expected_seq + 1, 1 + dice_.below(2), name("t", 2));
      b.row = row(!held || b.release);
      if (dice_.one_in(4)) b.sealed->blobs = {blob(name("blob")), blob(name("blob"))};
    }
    if (dice_.one_in(3)) b.effects = {{InvocationId(name("i")), 1, name("e")}};
    if (dice_.one_in(8)) b.effects_absent = {{InvocationId(name("i")), 1}};
    if (dice_.one_in(3)) b.ledger_put = {{InvocationId(name("i")), 1, "INFLIGHT", name("r")}};
    if (dice_.one_in(3)) b.ledger_erase = {{InvocationId(name("i")), 1}};
    return b;
  }

  // Entries are taken by their ids here: the numbers are each store's own.
  void commits() {
    inbox_.clear();
    const Batch b = batch();
    std::vector<std::string> taken;
    for (const InboxEntry& entry : inbox_) {
      if (!dice_.one_in(5)) taken.push_back(entry.id);
    }
    same<Result<Committed>>([&](Store& s, auto done) {
      Batch own = b;
      const auto loaded =
          rig_.loop.await<Result<Loaded>>([&](auto d) { s.load(b.job, 1, std::move(d)); });
      const std::vector<InboxEntry> inbox = loaded ? loaded->inbox : std::vector<InboxEntry>();
      for (const InboxEntry& entry : inbox) {
        if (std::ranges::find(taken, entry.id) != taken.end()) {
          own.inbox_taken.push_back(entry.number);
        }
      }
      s.commit(std::move(own), std::move(done));
    });
  }

  void claims() {
    ClaimRequest request = Rig::wish(name("A"), 1 + dice_.below(3));
    if (dice_.one_in(3)) request.agents = {name("agent", 2)};
    if (dice_.one_in(4)) request.except = {JobId(job())};
    if (dice_.one_in(2)) request.queues = {{name("q", 2), 1 + dice_.below(2)}};
    if (dice_.one_in(2)) {
      return same<Result<std::vector<Lease>>>(
          [request](Store& s, auto done) { s.claim(request, std::move(done)); });
    }
    same<Result<std::optional<Lease>>>([request, id = JobId(job())](Store& s, auto done) {
      s.claim_job(id, request, std::move(done));
    });
  }

  void beats() {
    std::vector<std::pair<JobId, Fence>> held;
    for (int i = 0; i < 3; ++i) {
      const std::string id = job();
      const auto known = row_of(id);
      held.emplace_back(id, known && known->claim ? *known->claim : fence("A", 1));
    }
    same<Result<std::vector<std::optional<Instant>>>>(
        [held](Store& s, auto done) { s.heartbeat(held, kLease, std::move(done)); });
  }

  void reads() {
    same<Result<Loaded>>([id = JobId(job()), from = dice_.below(9)](Store& s, auto done) {
      s.load(id, from, std::move(done));
    });
    same<Result<std::optional<Instant>>>([](Store& s, auto done) { s.next_due(std::move(done)); });
    Filter filter{.limit = 1 + dice_.below(4)};
    if (dice_.one_in(2)) filter.status = "running";
    if (dice_.one_in(2)) filter.agent = name("agent", 2);
    if (dice_.one_in(3)) filter.labels = {{"l", name("v")}};
    if (dice_.one_in(3)) filter.after = job();
    same<Result<std::vector<JobRow>>>(
        [filter](Store& s, auto done) { s.query(filter, std::move(done)); });
  }

  Dice dice_;
  Rig& rig_;
  std::string fair_by_;
  MemoryDisk disk_;
  std::unique_ptr<MemoryStore> model_;
  std::vector<InboxEntry> inbox_;  // of the job that was looked at last
};

inline void random_lives(Rig& first, const Factory& factory) {
  const bool owned = first.store().owned();
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rig rig(factory);
    if (seed % 2 == 0) rig.driver->fair_by("l");
    RandomLife life(seed, rig, seed % 2 == 0 ? "l" : "");
    for (int i = 1; i <= 400; ++i) {
      SCOPED_TRACE("step " + std::to_string(i));
      life.step();
      if (owned && i % 150 == 0) life.restart();
      if (::testing::Test::HasFailure()) return;
    }
    life.compare();
  }
}

// A caller that does what store.h asks of it: try again after `unavailable`, look after `unknown_outcome`.
class Careful {
 public:
  Careful(Rig& rig, Store& store) : rig_(rig), store_(store) {}

  Result<Committed> commit(const Batch& batch) {
    for (;;) {
      auto answer = rig_.loop.await<Result<Committed>>(
          [&](auto done) { store_.commit(batch, std::move(done)); });
      if (answer || !may_repeat(answer.error())) return answer;
      if (answer.error().code == Code::unknown_outcome && !batch.sealed) {
        // Without events there is nothing to compare: the rows are the same after a second time, unless it released.
        const auto row = load(batch.job.text).row;
        if (batch.release && !row.claim) return Committed{.last_seq = row.last_seq};
      }
    }
  }
  Loaded load(const std::string& job) {
    return must<Loaded>([&](auto done) { store_.load(JobId(job), 1, std::move(done)); });
  }
  void put(const std::string& job, const std::string& id) {
    for (;;) {
      const auto answer = rig_.loop.await<Result<void>>([&](auto done) {
        store_.put_inbox(JobId(job), {.id = id, .act = "{}"}, std::move(done));
      });
      if (answer) return;
      ASSERT_TRUE(may_repeat(answer.error())) << answer.error().message;
    }
  }
  Fence claim(const std::string& job, const std::string& attempt) {
    for (;;) {
      const auto answer = rig_.loop.await<Result<std::optional<Lease>>>(
          [&](auto done) { store_.claim_job(JobId(job), Rig::wish(attempt), std::move(done)); });
      if (answer && *answer) return (*answer)->fence;
      EXPECT_TRUE(answer.has_value() || may_repeat(answer.error()));
      const auto row = load(job).row;  // after unknown_outcome it may be ours already
      if (row.claim && row.claim->attempt.text == attempt) return *row.claim;
    }
  }
  std::optional<Instant> beat(const std::string& job, const Fence& held) {
    return must<std::vector<std::optional<Instant>>>(
               [&](auto done) { store_.heartbeat({{JobId(job), held}}, kLease, std::move(done)); })
        .at(0);
  }

 private:
  static bool may_repeat(const Error& error) {
    return error.code == Code::unavailable || error.code == Code::unknown_outcome;
  }
  template <class T>
  T must(auto start) {
    for (;;) {
      auto answer = rig_.loop.await<Result<T>>(start);
      if (answer) return *std::move(answer);
      AE_CHECK(may_repeat(answer.error()), answer.error().message);
    }
  }

  Rig& rig_;
  Store& store_;
};

// The life of one job, through every method; gives what is left at the end.
inline std::string one_life(Rig& rig, Store& store) {
  Careful careful(rig, store);
  EXPECT_TRUE(careful.commit(rig.create_claimed("j1")));
  Batch declare = rig.append("j1", rig.held(), 2);
  declare.ledger_put = {{InvocationId("i1"), 1, "INFLIGHT", "{}"}};
  EXPECT_TRUE(careful.commit(declare));
  careful.put("j1", "s1");
  EXPECT_TRUE(careful.beat("j1", fence("A1", 1)));
  Batch effect = rig.rows_only("j1", rig.held(), 3);
  effect.effects = {{InvocationId("i1"), 1, "{}"}};
  EXPECT_TRUE(careful.commit(effect));
  Batch release = rig.append("j1", rig.held(), 3, "queued");
  release.release = true;
  EXPECT_EQ(careful.commit(release).error().code, Code::inbox_pending);
  const auto inbox = careful.load("j1").inbox;
  for (const auto& entry : inbox) release.inbox_taken.push_back(entry.number);
  EXPECT_TRUE(careful.commit(release));
  const Fence second = careful.claim("j1", "A2");
  EXPECT_EQ(careful.commit(rig.append("j1", rig.held(), 4)).error().code, Code::stale_attempt);
  Batch done = rig.append("j1", Batch::Held{second}, 4, "completed");
  done.release = true;
  EXPECT_TRUE(careful.commit(done));
  return show(careful.load("j1"));
}

inline void every_call_fails_once(Rig& rig, const Factory& factory) {
  const std::string expected = one_life(rig, rig.store());
  for (const Fault fault : {Fault::fail_before, Fault::fail_after}) {
    for (std::uint64_t n = 1;; ++n) {
      SCOPED_TRACE("call " + std::to_string(n));
      Rig other(factory);
      FaultyStore faulty(other.loop, other.store(), {.script = fault_at(n, fault)});
      EXPECT_EQ(one_life(other, faulty), expected);
      if (faulty.calls() < n) break;
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// The caller dies at call n, before or after it; a successor looks at what stands and goes on.
inline void every_call_is_the_last(Rig& first, const Factory& factory) {
  const bool owned = first.store().owned();
  for (const Fault fault : {Fault::crash_before, Fault::crash_after}) {
    for (std::uint64_t n = 1;; ++n) {
      SCOPED_TRACE("call " + std::to_string(n));
      Rig rig(factory);
      bool dead = false;
      std::string acked;
      FaultyStore faulty(rig.loop, rig.store(),
                         {.script = fault_at(n, fault), .on_crash = [&] { dead = true; }});
      Batch batches[] = {rig.create_claimed("j1"), rig.append("j1", rig.held(), 2),
                         rig.append("j1", rig.held(), 3),
                         rig.append("j1", rig.held(), 4, "completed")};
      batches[3].release = true;
      std::uint64_t answered = 0, sent = 0;
      for (const Batch& batch : batches) {
        ++sent;
        faulty.commit(batch, [&](Result<Committed> answer) {
          ASSERT_TRUE(answer);
          answered = answer->last_seq;
        });
        rig.loop.run_until([&] { return dead || answered == batch.sealed->last_seq; });
        if (dead) break;
      }
      if (!dead) break;
      if (owned) rig.driver->restart();
      const auto loaded = rig.load("j1");
      const std::uint64_t last = loaded ? loaded->row.last_seq : 0;
      EXPECT_GE(last, answered);
      EXPECT_LE(last, sent + 1);
      for (const Batch& batch : batches) EXPECT_TRUE(rig.commit(batch)) << "sent again";
      EXPECT_EQ(rig.row("j1").last_seq, 5u);
      EXPECT_EQ(rig.load("j1")->commits.size(), 4u);
    }
  }
}

}  // namespace ae::store::conformance
