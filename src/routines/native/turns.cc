#include "routines/native/turns.h"

#include <algorithm>

#include "base/error.h"

namespace ae::routines {

RoutineThread& Turns::add(RoutineThread* parent) {
  RoutineThread& thread = threads_.emplace_back();
  thread.parent = parent;
  if (parent != nullptr) {
    parent->children++;
    thread.closed = parent->closed;
    thread.is_stopped = parent->is_stopped;
  }
  ready_.push_back(&thread);
  return thread;
}

void Turns::remove(RoutineThread& thread) {
  if (thread.parent != nullptr) thread.parent->children--;
  std::erase(ready_, &thread);
  threads_.remove_if([&](const RoutineThread& one) { return &one == &thread; });
}

void Turns::begin(Lock& lock, RoutineThread& self) { wait_for_turn(lock, self); }

void Turns::end(RoutineThread& self) {
  AE_CHECK(running_ == &self && self.children == 0, "a thread that is not in turn");
  RoutineThread* const parent = self.parent;
  if (parent != nullptr && --parent->children == 0 &&
      parent->state == RoutineThread::State::waits_for_threads) {
    queue(*parent);
  }
  threads_.remove_if([&](const RoutineThread& one) { return &one == &self; });
  pass_on();
}

void Turns::wait_for_outcome(Lock& lock, RoutineThread& self) {
  AE_CHECK(running_ == &self, "a thread that is not in turn");
  self.state = RoutineThread::State::waits_for_outcome;
  pass_on();
  wait_for_turn(lock, self);
}

void Turns::wait_for_threads(Lock& lock, RoutineThread& self) {
  AE_CHECK(running_ == &self, "a thread that is not in turn");
  if (self.children == 0) return;
  self.state = RoutineThread::State::waits_for_threads;
  pass_on();
  wait_for_turn(lock, self);
}

void Turns::wait_for_turn(Lock& lock, RoutineThread& self) {
  self.its_turn.wait(lock, [&] { return running_ == &self; });
  self.state = RoutineThread::State::running;
}

void Turns::wake(RoutineThread& thread) {
  if (thread.state == RoutineThread::State::waits_for_outcome) queue(thread);
}

void Turns::queue(RoutineThread& thread) {
  thread.state = RoutineThread::State::queued;
  ready_.push_back(&thread);
}

void Turns::stop(RoutineThread& thread) {
  thread.is_stopped = true;
  wake(thread);
}

void Turns::stop_below(const RoutineThread& thread, const RoutineThread* but) {
  for (RoutineThread& one : threads_) {
    const RoutineThread* above = &one;
    while (above != nullptr && above != but && above->parent != &thread) above = above->parent;
    if (above != nullptr && above != but) stop(one);
  }
}

void Turns::stop_all() {
  for (RoutineThread& one : threads_) stop(one);
}

void Turns::go_on() {
  if (running_ == nullptr) pass_on();
}

void Turns::pass_on() {
  running_ = nullptr;
  while (ready_.empty() && on_settled_()) {
  }
  if (ready_.empty()) return;
  running_ = ready_.front();
  ready_.pop_front();
  running_->its_turn.notify_one();
}

}  // namespace ae::routines
