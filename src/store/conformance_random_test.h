// Conformance: the same random history on the driver and on the memory store gives the same answers
// and byte-equal logs.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/conformance_fixture_test.h"
#include "store/conformance_random_calls_test.h"
#include "store/memory/memory_store.h"

namespace ae::store::conformance {

// Performs each call on the driver and on a memory store, its model, and compares the answers.
class RandomHistory {
 public:
  RandomHistory(std::uint64_t seed, ConformanceFixture& fixture, std::string fair_by)
      : calls_(seed, fixture), fixture_(fixture), fair_by_(std::move(fair_by)), model_(model()) {}

  void step() {
    if (calls_.one_in(4))
      fixture_.loop.advance(Duration(static_cast<std::int64_t>(calls_.below(20)) * 1'000'000));
    switch (calls_.below(12)) {
      case 0:
        return same<Result<CommitResult>>(
            [b = calls_.create()](Store& s, auto done) { s.commit(b, std::move(done)); });
      case 1:
      case 2:
        return claims();
      case 3:
        return same<Result<void>>([j = calls_.job(), id = calls_.name("s")](Store& s, auto done) {
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
    for (int i = 0; i < RandomCalls::kJobs; ++i) {
      const JobId id(fmt::format("j{}", i));
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

  template <class T>
  void same(auto call) {
    const std::string result =
        show(fixture_.loop.await<T>([&](auto done) { call(fixture_.store(), std::move(done)); }));
    const std::string models =
        show(fixture_.loop.await<T>([&](auto done) { call(*model_, std::move(done)); }));
    EXPECT_EQ(result, models);
  }

  // The job's row in the model, so that many calls succeed. Also sets inbox_.
  std::optional<JobRow> row_of(const std::string& id) {
    auto loaded = fixture_.loop.await<Result<LoadedJob>>(
        [&](auto done) { model_->load(JobId(id), 1, std::move(done)); });
    if (!loaded) return std::nullopt;
    inbox_ = loaded->inbox;
    return loaded->row;
  }

  // Entries are chosen by id, because each store assigns its own numbers.
  void commits() {
    inbox_.clear();
    const std::string id = calls_.job();
    const Batch b = calls_.batch(id, row_of(id));
    std::vector<std::string> consumed;
    for (const InboxEntry& entry : inbox_) {
      if (!calls_.one_in(5)) consumed.push_back(entry.id);
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
    const ClaimRequest request = calls_.claim_request();
    if (calls_.one_in(2)) {
      return same<Result<std::vector<Lease>>>(
          [request](Store& s, auto done) { s.claim(request, std::move(done)); });
    }
    same<Result<std::optional<Lease>>>([request, id = JobId(calls_.job())](Store& s, auto done) {
      s.claim_job(id, request, std::move(done));
    });
  }

  void heartbeats() {
    std::vector<std::pair<JobId, Fence>> held;
    for (int i = 0; i < 3; ++i) {
      const std::string id = calls_.job();
      const auto current_row = row_of(id);
      held.emplace_back(id,
                        current_row && current_row->claim ? *current_row->claim : fence("A", 1));
    }
    same<Result<std::vector<std::optional<Instant>>>>(
        [held](Store& s, auto done) { s.heartbeat(held, kLease, std::move(done)); });
  }

  void reads() {
    same<Result<LoadedJob>>([id = JobId(calls_.job()), from = calls_.below(9)](
                                Store& s, auto done) { s.load(id, from, std::move(done)); });
    const WindowRequest window = calls_.window();
    same<Result<LogWindow>>([id = JobId(calls_.job()), window](Store& s, auto done) {
      s.load_window(id, window, std::move(done));
    });
    same<Result<std::optional<Instant>>>([](Store& s, auto done) { s.next_due(std::move(done)); });
    const Filter filter = calls_.filter();
    same<Result<std::vector<JobRow>>>(
        [filter](Store& s, auto done) { s.query(filter, std::move(done)); });
  }

  RandomCalls calls_;
  ConformanceFixture& fixture_;
  std::string fair_by_;
  MemoryDisk disk_;
  std::unique_ptr<MemoryStore> model_;
  std::vector<InboxEntry> inbox_;  // of the last call of row_of
};

inline void random_histories(ConformanceFixture& first, const Factory& factory) {
  const bool owned = first.store().owned();
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    ConformanceFixture fixture(factory);
    if (seed % 2 == 0) fixture.store_driver->fair_by("l");
    RandomHistory history(seed, fixture, seed % 2 == 0 ? "l" : "");
    for (int i = 1; i <= 400; ++i) {
      SCOPED_TRACE(fmt::format("step {}", i));
      history.step();
      if (owned && i % 150 == 0) history.restart();
      if (::testing::Test::HasFailure()) return;
    }
    history.compare();
  }
}

}  // namespace ae::store::conformance
