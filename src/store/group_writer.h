// GroupWriter: the thread of a store that writes in groups. All writes of a group share one
// transaction, in the order in which they were requested, and are answered by one post to the loop.
//
// A transaction is begun with the first queued writes. A backend may keep it open while the loop
// has more of them (store/write_queue.h), for up to twice the time that the last one took to become
// durable: on a slow disk this halves the number of transactions.
// If the transaction failed and changed nothing, the writes are tried one by one, so that those
// that can succeed do. The driver of a store supplies the transactions: a Backend has
//   static bool is_alone(const Write&)   the write shares no group with others
//   Attempt attempt(group, add_writes)   one transaction for the writes of the group. add_writes
//                                        may be empty; it waits for more, and is false if none came
//   bool may_split(attempt)              it changed nothing, and its writes may succeed alone
//   void finish(write, attempt)          sets the answer of a write
//   void on_written(group)               all writes have their answers
//   void on_answered(is_alone)           the answers are posted; no other group is begun
//   std::optional<milliseconds> idle_time(), void on_idle()
//                                        `on_idle` is called after this time without a write, and
//                                        once before the thread ends; nullopt: only then
// Threads: its own, which calls the backend; `write` from the loop's thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "async/loop.h"
#include "store/write_queue.h"

namespace ae::store {

struct GroupLimits {
  std::size_t writes;
  std::size_t bytes;
};

template <class Backend, class Write>
class GroupWriter {
 public:
  using Group = WriteQueue<Write>::Group;
  using AddWrites = std::function<bool(Group&)>;

  // Borrows both. Starts the thread: the backend is complete.
  GroupWriter(async::Loop& loop, Backend& backend, GroupLimits limits)
      : queue_(std::make_shared<WriteQueue<Write>>(loop)),
        backend_(backend),
        limits_(limits),
        thread_([this] { run(); }) {}
  GroupWriter(const GroupWriter&) = delete;
  GroupWriter& operator=(const GroupWriter&) = delete;
  ~GroupWriter() {  // completes queued writes
    queue_->stop();
    thread_.join();
  }

  void write(std::unique_ptr<Write> write) { queue_->push(std::move(write)); }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kWaitMax{20};

  void run() {
    for (;;) {
      if (!queue_->wait(backend_.idle_time())) {
        backend_.on_idle();
        continue;
      }
      Group group;
      bytes_ = 0;
      if (!take(group)) break;
      process(std::move(group));
    }
    backend_.on_idle();
  }

  bool is_full(const Group& group) const {
    return group.size() >= limits_.writes || bytes_ >= limits_.bytes;
  }

  // A write that is alone ends the group before it.
  bool take(Group& group) {
    return queue_->take(group, [&](const Write& write) {
      if (is_full(group)) return false;
      if (!group.empty() && (Backend::is_alone(write) || Backend::is_alone(*group.front()))) {
        return false;
      }
      bytes_ += write.bytes();
      return true;
    });
  }

  void process(Group group) {
    const bool is_alone = Backend::is_alone(*group.front());
    const auto until = Clock::now() + std::min<Clock::duration>(2 * commit_time_, kWaitMax);
    std::optional<Clock::time_point> complete;
    const auto all = backend_.attempt(group, [&](Group& more) {
      if (!is_full(more) && queue_->wait_for_more(until) && take(more)) return true;
      complete = Clock::now();
      return false;
    });
    if (complete) commit_time_ = Clock::now() - *complete;
    if (group.size() > 1 && backend_.may_split(all)) {
      for (std::unique_ptr<Write>& write : group) {
        Group one;
        one.push_back(std::move(write));
        backend_.finish(*one.front(), backend_.attempt(one, {}));
        write = std::move(one.front());
      }
    } else {
      for (const auto& write : group) backend_.finish(*write, all);
    }
    backend_.on_written(group);
    queue_->answer(std::move(group));
    backend_.on_answered(is_alone);
  }

  const std::shared_ptr<WriteQueue<Write>> queue_;
  Backend& backend_;
  const GroupLimits limits_;
  std::size_t bytes_ = 0;          // of the group that is being written
  Clock::duration commit_time_{};  // of the last transaction, after its last write
  std::thread thread_;             // last: it uses all others
};

}  // namespace ae::store
