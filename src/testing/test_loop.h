// TestLoop: an event loop and a clock that a test controls.
//
// Tasks run only in the methods below, on the test's thread; time advances only by `advance` and
// `skip_time`. Other threads (a store's writer) may post; `run_until` waits for them, with a real
// time limit, so that a missing answer fails the test instead of hanging it.
// Threads: post from any, the rest from the test's.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "async/loop.h"
#include "base/error.h"
#include "base/time.h"

namespace ae::testing {

class TestLoop final : public async::Loop, public async::Clock {
 public:
  static constexpr Instant kStart{1'767'225'600'000'000};  // 2026-01-01

  void post(async::Task task) override {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
  }
  async::TimerId after(Duration delay, async::Task task) override {
    const async::TimerId id = ++last_timer_;
    const Instant at = delay.count() > 0 ? now_ + delay : now_;
    timers_.emplace(std::pair(at, id), std::move(task));
    return id;
  }
  void cancel(async::TimerId timer) override {
    std::erase_if(timers_, [timer](const auto& entry) { return entry.first.second == timer; });
  }
  Instant now() override { return now_; }

  // Advances the time and runs the due tasks in order.
  void advance(Duration by) {
    const Instant until = now_ + by;
    run_ready();
    while (!timers_.empty() && timers_.begin()->first.first <= until) {
      auto timer = timers_.extract(timers_.begin());
      if (timer.key().first > now_) now_ = timer.key().first;
      timer.mapped()();
      run_ready();
    }
    now_ = until;
  }

  // Advances the time without running tasks, as for a stopped process: due tasks run late.
  void skip_time(Duration by) { now_ = now_ + by; }

  // Runs all posted tasks, including those that they post.
  void run_ready() {
    while (auto task = next_task()) (*task)();
  }

  // Runs tasks until `condition` holds. False if that took longer than `limit` of real time.
  template <class Condition>
  bool run_until(Condition condition, std::chrono::seconds limit = std::chrono::seconds(30)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (!condition()) {
      auto task = next_task(end);
      if (!task) return condition();
      (*task)();
    }
    return true;
  }

  // Starts an asynchronous operation and runs until it completes:
  //   loop.await<Result<CommitResult>>([&](auto done) { store.commit(batch, std::move(done)); })
  template <class T, class Start>
  T await(Start start) {
    // Shared: an answer after the limit must not write to a destroyed frame.
    auto answer = std::make_shared<std::optional<T>>();
    start(async::Done<T>([answer](T value) { answer->emplace(std::move(value)); }));
    AE_CHECK(run_until([&] { return answer->has_value(); }), "no answer came");
    return *std::move(*answer);
  }

 private:
  std::optional<async::Task> next_task(
      std::optional<std::chrono::steady_clock::time_point> until = {}) {
    std::unique_lock lock(mutex_);
    const auto has_task = [this] { return !tasks_.empty(); };
    if (until && !wake_.wait_until(lock, *until, has_task)) return std::nullopt;
    if (tasks_.empty()) return std::nullopt;
    async::Task task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }

  Instant now_ = kStart;
  async::TimerId last_timer_ = 0;
  std::map<std::pair<Instant, async::TimerId>, async::Task> timers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<async::Task> tasks_;  // guarded by mutex_
};

// A steady clock on the time of `loop`, from its start.
class TestSteadyClock final : public async::SteadyClock {
 public:
  explicit TestSteadyClock(TestLoop& loop) : loop_(loop) {}
  Duration since_start() override {
    return loop_.now() - TestLoop::kStart + (spent_ += step_per_reading);
  }
  Duration step_per_reading{};  // time that passes between two readings, also within one task
  Duration spent() const { return spent_; }  // the sum of it

 private:
  TestLoop& loop_;
  Duration spent_{};
};

// Different numbers at each call, the same ones in each run; the seed selects the sequence.
class TestRandom final : public async::RandomSource {
 public:
  explicit TestRandom(std::uint64_t seed = 0) : n_(seed) {}
  std::uint64_t next() override { return (n_ += 2) * 0x9E3779B97F4A7C15; }

 private:
  std::uint64_t n_;
};

}  // namespace ae::testing
