// BlockingStore: makes a store with its own threads usable in the simulation's single thread.
//
// Each call blocks until it is answered, so that real timing has no influence; then the answer is
// posted to the simulated loop, as a memory store would do. For the real SQLite driver. Threads:
// the simulation's.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "async/loop.h"
#include "store/forwarding_store.h"
#include "store/store.h"

namespace ae::sim {

// Collects the answers of the store's threads.
class Mailbox : public async::Loop {
 public:
  void post(async::Task task) override {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(std::move(task));
    arrived_.notify_one();
  }
  // Stores use no timers.
  async::TimerId after(Duration, async::Task task) override {
    post(std::move(task));
    return 0;
  }
  void cancel(async::TimerId) override {}
  void run_one() {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [this] { return !tasks_.empty(); });
    async::Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<async::Task> tasks_;  // protected by mutex_
};

class BlockingStore final : public store::ForwardingStore<BlockingStore> {
 public:
  // Borrows both; `inner` answers into `mailbox`.
  BlockingStore(async::Loop& loop, Mailbox& mailbox, std::unique_ptr<store::Store> inner)
      : ForwardingStore(inner.get()), loop_(loop), mailbox_(mailbox), inner_(std::move(inner)) {}

 private:
  friend store::ForwardingStore<BlockingStore>;
  template <class T, class Start>
  void forward(store::Method, async::Done<Result<T>> done, Start start) {
    std::optional<Result<T>> answer;
    start(inner(),
          async::Done<Result<T>>([&answer](Result<T> value) { answer.emplace(std::move(value)); }));
    while (!answer) mailbox_.run_one();
    loop_.post([done = std::move(done), answer = std::move(*answer)]() mutable {
      done(std::move(answer));
    });
  }

  async::Loop& loop_;
  Mailbox& mailbox_;
  std::unique_ptr<store::Store> inner_;
};

}  // namespace ae::sim
