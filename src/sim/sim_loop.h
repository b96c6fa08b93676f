// SimLoop: the simulated loop and clocks: one thread; time advances only when no task is due.
//
// Tasks belong to the world or to a TaskOwner (a process). An owner's tasks are deferred while it
// is paused and dropped when it dies; the world's tasks continue. Threads: one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "async/loop.h"
#include "base/time.h"

namespace ae::sim {

// An owner of tasks.
struct TaskOwner {
  bool paused = false, dead = false;

 private:
  friend class SimLoop;
  struct DeferredTask {
    Instant at;
    std::uint64_t order;
    std::uint32_t slot;
  };
  std::vector<DeferredTask> deferred_;  // came due while it was paused
};

class SimLoop : public async::Loop, public async::Clock, public async::SteadyClock {
 public:
  void post(async::Task task) override { add(now_, nullptr, std::move(task)); }
  async::TimerId after(Duration delay, async::Task task) override {
    return add(now_ + std::max(delay, Duration(0)), nullptr, std::move(task));
  }
  async::TimerId add(Instant at, TaskOwner* owner, async::Task task) {
    std::uint32_t slot = 0;
    if (free_.empty()) {
      slot = static_cast<std::uint32_t>(slots_.size());
      slots_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    slots_[slot] = {std::move(task), ++order_, owner};
    push({at, order_, slot});
    return order_ << kSlotBits | slot;
  }
  void cancel(async::TimerId timer) override {
    const std::uint32_t slot = static_cast<std::uint32_t>(timer & ((1u << kSlotBits) - 1));
    if (slots_[slot].order == timer >> kSlotBits) remove_task(slot);
  }
  Instant now() override { return now_; }
  Duration since_start() override { return now_ - kStart; }

  // The owner of the running task; nullptr = the world, or no task runs.
  TaskOwner* running() const { return running_; }
  void resume(TaskOwner& owner) {
    owner.paused = false;
    for (const TaskOwner::DeferredTask& deferred : std::exchange(owner.deferred_, {}))
      push(deferred);
  }
  // Drops all tasks of the owner.
  void drop(TaskOwner& owner) {
    for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot].order != 0 && slots_[slot].owner == &owner) remove_task(slot);
    }
    owner.deferred_.clear();
  }
  void clear() {
    steps_ = 0;
    heap_.clear();
    for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot].order != 0) remove_task(slot);
    }
  }

  // Runs until `done` returns true (returns true), until `until`, or until no tasks are left.
  template <class Done>
  bool run(Done done, Instant until) {
    while (!done()) {
      if (is_livelocked()) return false;
      if (heap_.empty() || heap_.front().at > until) {
        now_ = std::max(now_, until);
        return false;
      }
      step();
    }
    return true;
  }
  std::uint64_t steps() const { return steps_; }
  // Far more steps than a world needs: some process works without progress.
  bool is_livelocked() const { return steps_ > kStepsMax; }

 private:
  static constexpr unsigned kSlotBits = 20;  // a million tasks at once
  static constexpr std::uint64_t kStepsMax = 400'000;
  static constexpr Instant kStart{1'700'000'000'000'000};
  using Entry = TaskOwner::DeferredTask;
  struct Slot {
    async::Task task;
    std::uint64_t order = 0;  // 0 = free
    TaskOwner* owner = nullptr;
  };
  static bool later(const Entry& a, const Entry& b) {
    return a.at != b.at ? a.at > b.at : a.order > b.order;
  }
  void push(Entry entry) {
    heap_.push_back(entry);
    std::ranges::push_heap(heap_, later);
  }
  async::Task remove_task(std::uint32_t slot) {
    async::Task task = std::move(slots_[slot].task);
    slots_[slot] = {};
    free_.push_back(slot);
    return task;
  }
  void step() {
    const Entry entry = heap_.front();
    std::ranges::pop_heap(heap_, later);
    heap_.pop_back();
    Slot& slot = slots_[entry.slot];
    if (slot.order != entry.order) return;  // cancelled
    now_ = std::max(now_, entry.at);
    TaskOwner* owner = slot.owner;
    if (owner && owner->paused) {
      owner->deferred_.push_back(entry);
      return;
    }
    async::Task task = remove_task(entry.slot);
    if (owner && owner->dead) return;
    steps_++;
    running_ = owner;
    task();
    running_ = nullptr;
  }

  Instant now_ = kStart;
  std::uint64_t order_ = 0, steps_ = 0;
  TaskOwner* running_ = nullptr;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::vector<Entry> heap_;
};

// The store's clock: it can be set, and then jumps. The steady clock does not.
class JumpingClock : public async::Clock {
 public:
  explicit JumpingClock(SimLoop& loop) : loop_(loop) {}
  Instant now() override { return loop_.now() + offset_; }
  void set(Duration offset) {
    if (offset != offset_) jumped_ = true;
    offset_ = offset;
    furthest_ = std::max(furthest_, offset);
  }
  // Leases and timers that were set while the clock was ahead expire by that clock.
  void catch_up() { set(furthest_); }
  bool jumped() const { return jumped_; }  // ever

 private:
  SimLoop& loop_;
  Duration offset_{}, furthest_{};
  bool jumped_ = false;
};

// A process from its start to its death: the loop that its runtime uses.
class SimProcess : public TaskOwner, public async::Loop, public async::SteadyClock {
 public:
  SimProcess(SimLoop& loop, std::size_t worker_index, std::uint64_t nth)
      : worker(worker_index), number(nth), loop_(loop) {}
  void post(async::Task task) override {
    if (!dead) loop_.add(loop_.now(), this, std::move(task));
  }
  async::TimerId after(Duration delay, async::Task task) override {
    return loop_.add(loop_.now() + std::max(delay, Duration(0)), this, std::move(task));
  }
  void cancel(async::TimerId timer) override { loop_.cancel(timer); }
  Duration since_start() override { return loop_.since_start(); }

  const std::size_t worker;
  const std::uint64_t number;  // 1 = the worker's first

 private:
  SimLoop& loop_;
};

}  // namespace ae::sim
