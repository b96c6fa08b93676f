// GroupWriter: the queue and the thread of a store that writes in groups. All queued writes share
// one transaction, in the order in which they were requested, unless the backend divides them; the
// writes of a transaction are answered by one post to the loop.
//
// If the transaction failed and changed nothing, the writes are tried one by one, so that those
// that can succeed do. The driver of a store supplies the transactions: a Backend has
//   static bool is_alone(const Write&)   the write shares no group with others
//   Attempt attempt(group, first, count) one transaction for the writes [first, first + count)
//   bool may_split(attempt)              it changed nothing, and its writes may succeed alone
//   void finish(write, attempt)          sets the answer of a write
//   vector<Group> divide(group)          the groups that each have their own transaction, in order
//   void on_written(group)               all writes have their answers
//   void on_answered(is_alone)           the answers are posted; no other group is begun
//   std::optional<milliseconds> idle_time(), void on_idle()
//                                        `on_idle` is called after this time without a write, and
//                                        once before the thread ends; nullopt: only then
// Threads: its own, which calls the backend; `write` from the loop's thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "async/loop.h"

namespace ae::store {

struct GroupLimits {
  std::size_t writes;
  std::size_t bytes;
};

template <class Backend, class Write>
class GroupWriter {
 public:
  using Group = std::vector<std::unique_ptr<Write>>;

  // Borrows both. Starts the thread: the backend is complete.
  GroupWriter(async::Loop& loop, Backend& backend, GroupLimits limits)
      : loop_(loop), backend_(backend), limits_(limits), thread_([this] { run(); }) {}
  GroupWriter(const GroupWriter&) = delete;
  GroupWriter& operator=(const GroupWriter&) = delete;
  ~GroupWriter() {  // completes queued writes
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  void write(std::unique_ptr<Write> write) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(write));
      if (queue_.size() > 1) return;  // the thread is awake, or already notified
    }
    wake_.notify_one();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      const auto has_work = [this] { return stop_ || !queue_.empty(); };
      if (const auto idle_time = backend_.idle_time(); !idle_time) {
        wake_.wait(lock, has_work);
      } else if (!wake_.wait_for(lock, *idle_time, has_work)) {
        lock.unlock();
        backend_.on_idle();
        lock.lock();
        continue;
      }
      if (queue_.empty()) break;
      Group group = next_group();
      lock.unlock();
      for (Group& part : backend_.divide(std::move(group))) process(std::move(part));
      lock.lock();
    }
    lock.unlock();
    backend_.on_idle();
  }

  // REQUIRES: mutex_. A write that is alone ends the group before it.
  Group next_group() {
    Group group;
    std::size_t bytes = 0;
    while (!queue_.empty() && group.size() < limits_.writes && bytes < limits_.bytes) {
      const bool is_alone = Backend::is_alone(*queue_.front());
      if (is_alone && !group.empty()) break;
      bytes += queue_.front()->bytes();
      group.push_back(std::move(queue_.front()));
      queue_.pop_front();
      if (is_alone) break;
    }
    return group;
  }

  void process(Group group) {
    const bool is_alone = Backend::is_alone(*group.front());
    const auto all = backend_.attempt(group, 0, group.size());
    if (group.size() > 1 && backend_.may_split(all)) {
      for (std::size_t i = 0; i < group.size(); ++i) {
        backend_.finish(*group[i], backend_.attempt(group, i, 1));
      }
    } else {
      for (const auto& write : group) backend_.finish(*write, all);
    }
    backend_.on_written(group);
    loop_.post([group = std::move(group)] {
      for (const auto& write : group) write->answer();
    });
    backend_.on_answered(is_alone);
  }

  async::Loop& loop_;
  Backend& backend_;
  const GroupLimits limits_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::unique_ptr<Write>> queue_;  // guarded by mutex_
  bool stop_ = false;                         // guarded by mutex_
  std::thread thread_;                        // last: it uses all others
};

}  // namespace ae::store
