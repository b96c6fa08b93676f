// SimStore: any store, until the world crashes. At the n-th call (before or after it took effect) the process above is
// gone: this call and every later one is never answered, and later ones do nothing. Also: errors after success.
// Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <utility>

#include "store/store.h"

namespace ae::sim {

struct CrashPlan {
  std::uint64_t at = std::numeric_limits<std::uint64_t>::max();  // the n-th boundary, from 1
};

// Counts boundaries: each store call has two (before, after), each tool call three (before, after the effect, answer).
class Crasher {
 public:
  void plan(CrashPlan plan) {
    plan_ = plan;
    passed_ = 0;
    crashed_ = false;
  }
  // False: the process is gone, do nothing more.
  bool pass() {
    if (crashed_) return false;
    if (++passed_ >= plan_.at) crashed_ = true;
    return !crashed_;
  }
  bool crashed() const { return crashed_; }
  std::uint64_t passed() const { return passed_; }

 private:
  CrashPlan plan_;
  std::uint64_t passed_ = 0;
  bool crashed_ = false;
};

class SimStore : public store::Store {
 public:
  SimStore(store::Store& inner, Crasher& crasher, async::Chance& chance)
      : inner_(inner), crasher_(crasher), chance_(chance) {}

  // One commit in `one_in` reports unknown_outcome although it happened; 0 = never.
  void lie(std::uint64_t one_in) { lie_ = one_in; }

  void commit(store::Batch batch, async::Done<Result<store::Committed>> done) override {
    if (!crasher_.pass()) return;
    const bool lie = lie_ > 0 && chance_.next() % lie_ == 0;
    inner_.commit(std::move(batch),
                  [this, lie, done = std::move(done)](Result<store::Committed> r) mutable {
                    if (!crasher_.pass()) return;
                    if (lie && r)
                      return done(fail(Code::unknown_outcome, "simulated: the answer was lost"));
                    done(std::move(r));
                  });
  }
  void put_inbox(JobId job, store::InboxEntry entry, async::Done<Result<void>> done) override {
    if (!crasher_.pass()) return;
    inner_.put_inbox(std::move(job), std::move(entry), guard(std::move(done)));
  }
  void claim(store::ClaimRequest request,
             async::Done<Result<std::vector<store::Lease>>> done) override {
    if (!crasher_.pass()) return;
    inner_.claim(std::move(request), guard(std::move(done)));
  }
  void claim_job(JobId job, store::ClaimRequest request,
                 async::Done<Result<std::optional<store::Lease>>> done) override {
    if (!crasher_.pass()) return;
    inner_.claim_job(std::move(job), std::move(request), guard(std::move(done)));
  }
  void heartbeat(std::vector<std::pair<JobId, store::Fence>> held, Duration lease,
                 async::Done<Result<std::vector<std::optional<Instant>>>> done) override {
    if (crasher_.crashed()) return;
    inner_.heartbeat(std::move(held), lease, guard_quietly(std::move(done)));
  }
  void due(std::size_t limit, async::Done<Result<std::vector<JobId>>> done) override {
    if (crasher_.crashed()) return;
    inner_.due(limit, guard_quietly(std::move(done)));
  }
  void next_due(async::Done<Result<std::optional<Instant>>> done) override {
    if (crasher_.crashed()) return;
    inner_.next_due(guard_quietly(std::move(done)));
  }
  void load(JobId job, std::uint64_t from, async::Done<Result<store::Loaded>> done) override {
    if (!crasher_.pass()) return;
    inner_.load(std::move(job), from, guard(std::move(done)));
  }
  void query(store::Filter filter, async::Done<Result<std::vector<store::JobRow>>> done) override {
    if (crasher_.crashed()) return;
    inner_.query(std::move(filter), guard_quietly(std::move(done)));
  }
  Instant now() override { return inner_.now(); }
  bool owned() const override { return inner_.owned(); }

 private:
  template <class T>
  async::Done<T> guard(async::Done<T> done) {
    return [this, done = std::move(done)](T value) mutable {
      if (crasher_.pass()) done(std::move(value));
    };
  }
  template <class T>
  async::Done<T> guard_quietly(async::Done<T> done) {
    return [this, done = std::move(done)](T value) mutable {
      if (!crasher_.crashed()) done(std::move(value));
    };
  }

  store::Store& inner_;
  Crasher& crasher_;
  async::Chance& chance_;
  std::uint64_t lie_ = 0;
};

}  // namespace ae::sim
