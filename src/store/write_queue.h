// WriteQueue: the writes that a loop hands to the writing thread of a store (store/group_writer.h).
//
// It tells the thread when the loop has no further writes for an open transaction: a round of the
// loop's tasks brought none, and the answers of the groups before have run. Without that, half of
// the jobs would wait for the fsync of the other half.
// Threads: the loop's for `push` and `stop`, the writing thread for the rest.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "async/loop.h"

namespace ae::store {

// Create it with std::make_shared: the tasks that it posts keep it alive.
template <class Write>
class WriteQueue : public std::enable_shared_from_this<WriteQueue<Write>> {
 public:
  using Group = std::vector<std::unique_ptr<Write>>;

  explicit WriteQueue(async::Loop& loop) : loop_(loop) {}  // borrowed

  void push(std::unique_ptr<Write> write) {
    bool wake = false;
    bool post = false;
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(write));
      queued_ += 1;
      wake = queue_.size() >= wake_at_;
      post = !std::exchange(is_watching_, true);
    }
    if (wake) wake_.notify_one();
    if (post) watch_round();
  }

  // Nothing is waited for any more.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
  }

  // Waits for a write. False: none came in this time.
  bool wait(std::optional<std::chrono::milliseconds> idle_time) {
    const auto has_work = [this] { return stop_ || !queue_.empty(); };
    std::unique_lock lock(mutex_);
    wake_at_ = 1;
    bool found = true;
    if (idle_time) {
      found = wake_.wait_for(lock, *idle_time, has_work);
    } else {
      wake_.wait(lock, has_work);
    }
    wake_at_ = kNever;
    return found;
  }

  // Waits for writes to add to a transaction: for some, or all that the loop has. False: too late.
  bool wait_for_more(std::chrono::steady_clock::time_point until) {
    std::unique_lock lock(mutex_);
    wake_at_ = kSome;
    const bool in_time = wake_.wait_until(lock, until, [this] {
      const bool expects_writes = !stop_ && (is_watching_ || unanswered_ > 0);
      return !expects_writes || queue_.size() >= kSome;
    });
    wake_at_ = kNever;
    return in_time;
  }

  // Moves the first writes to the group, while `may_add(write)`. False: none.
  template <class MayAdd>
  bool take(Group& group, const MayAdd& may_add) {
    const std::size_t before = group.size();
    const std::lock_guard lock(mutex_);
    while (!queue_.empty() && may_add(*queue_.front())) {
      group.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
    return group.size() > before;
  }

  // Has the loop answer a group.
  void answer(Group group) {
    {
      const std::lock_guard lock(mutex_);
      unanswered_ += 1;
    }
    loop_.post([self = this->shared_from_this(), group = std::move(group)] {
      for (const auto& write : group) write->answer();
      self->on_answered();
    });
  }

 private:
  static constexpr std::size_t kSome = 8;
  static constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

  void on_answered() {
    bool post = false;
    {
      const std::lock_guard lock(mutex_);
      unanswered_ -= 1;
      post = !std::exchange(is_watching_, true);
    }
    if (post) watch_round();
  }

  void watch_round() {
    loop_.post([self = this->shared_from_this()] { self->on_round(); });
  }

  // All tasks that were posted before `watch_round` have run.
  void on_round() {
    bool is_watching = false;
    {
      const std::lock_guard lock(mutex_);
      is_watching = !stop_ && queued_ != queued_before_;
      queued_before_ = queued_;
      is_watching_ = is_watching;
    }
    if (is_watching) {
      watch_round();
    } else {
      wake_.notify_one();
    }
  }

  async::Loop& loop_;
  std::condition_variable wake_;
  std::mutex mutex_;
  // Guarded by mutex_:
  std::deque<std::unique_ptr<Write>> queue_;
  std::size_t wake_at_ = kNever;     // a queue of this length wakes the thread
  std::uint64_t queued_ = 0;         // writes until now
  std::uint64_t queued_before_ = 0;  // and until the end of the round before
  std::size_t unanswered_ = 0;       // groups whose answers have not run yet
  bool is_watching_ = false;         // `on_round` is posted
  bool stop_ = false;
};

}  // namespace ae::store
