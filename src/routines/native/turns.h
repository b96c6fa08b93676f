// Turns: the threads of one routine run one at a time, in an order that depends only on the program
// and on the order of deliveries.
//
// A thread runs until it waits or ends. Then the next ready one runs: first in, first out. A thread
// becomes ready when it is started, and when what it waits for happens. When none is ready, the
// routine has settled; `on_settled` may make the next delivery.
//
//            wake                 first in the queue
//   waiting ------> in the queue -------------------> runs ----> ended
//      ^                                                |
//      '------------------------------------------------'  wait
//
// Threads: any; the caller holds the routine's mutex, which guards all of this.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>

namespace ae::routines {

struct Branch;
struct ClosedScope;

// One thread of a routine.
struct RoutineThread {
  enum class State { queued, running, waits_for_outcome, waits_for_threads };

  RoutineThread* parent = nullptr;
  const ClosedScope* closed = nullptr;   // the innermost closed scope that it runs
  std::shared_ptr<const Branch> branch;  // that it runs; nullptr: none
  std::size_t children = 0;              // threads that it started and that have not ended
  State state = State::queued;
  bool is_stopped = false;  // its branch is not needed any more: its calls fail
  std::condition_variable its_turn;
};

class Turns {
 public:
  using Lock = std::unique_lock<std::mutex>;

  // `on_settled` is called while no thread is ready, until it returns false.
  explicit Turns(std::move_only_function<bool()> on_settled) : on_settled_(std::move(on_settled)) {}

  // A new thread, at the end of the queue. It calls `begin` first and `end` last.
  RoutineThread& add(RoutineThread* parent);
  void remove(RoutineThread& thread);  // its thread could not be started
  void begin(Lock& lock, RoutineThread& self);
  void end(RoutineThread& self);

  // Lets others run until `self` is woken, and has its turn.
  void wait_for_outcome(Lock& lock, RoutineThread& self);
  // Lets others run until all threads that `self` started have ended.
  void wait_for_threads(Lock& lock, RoutineThread& self);
  // No effect if it does not wait for an outcome.
  void wake(RoutineThread& thread);

  // Stops all threads that this one started, directly or indirectly, except `but` and those that
  // `but` started.
  void stop_below(const RoutineThread& thread, const RoutineThread* but);
  void stop_all();
  // Starts the first of the queue if no thread runs.
  void go_on();
  const RoutineThread* running() const { return running_; }
  std::size_t count() const { return threads_.size(); }

 private:
  void pass_on();
  void stop(RoutineThread& thread);
  void queue(RoutineThread& thread);
  void wait_for_turn(Lock& lock, RoutineThread& self);

  std::move_only_function<bool()> on_settled_;
  std::list<RoutineThread> threads_;
  std::deque<RoutineThread*> ready_;
  RoutineThread* running_ = nullptr;
};

}  // namespace ae::routines
