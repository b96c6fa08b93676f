// The order in which the threads of a routine run.
#include "routines/native/turns.h"

#include <string>
#include <thread>
#include <vector>

#include "testing/test.h"

namespace ae::routines {
namespace {

struct TurnsFixture {
  std::mutex mutex;
  std::string order;  // guarded by mutex, as all below
  std::vector<RoutineThread*> woken_when_settled;
  Turns turns{[this] {
    order += '.';
    if (woken_when_settled.empty()) return false;
    turns.wake(*woken_when_settled.front());
    woken_when_settled.erase(woken_when_settled.begin());
    return true;
  }};
  std::vector<std::thread> threads;

  ~TurnsFixture() {
    for (auto& thread : threads) thread.join();
  }
  void wait_for_all() {
    for (bool is_over = false; !is_over; std::this_thread::yield()) {
      const std::scoped_lock lock(mutex);
      is_over = turns.count() == 0;
    }
  }
  template <class Work>
  RoutineThread& start(RoutineThread* parent, Work work) {
    RoutineThread& self = turns.add(parent);
    threads.emplace_back([this, &self, work] {
      Turns::Lock lock(mutex);
      turns.begin(lock, self);
      work(lock, self);
      turns.end(self);
    });
    return self;
  }
};

AE_TEST("turns/threads run one at a time, first in, first out") {
  TurnsFixture f;
  {
    Turns::Lock lock(f.mutex);
    f.start(nullptr, [&](Turns::Lock& held, RoutineThread& self) {
      f.order += 'a';
      for (const char name : {'b', 'c', 'd'}) {
        f.start(&self, [&f, name](Turns::Lock& inner, RoutineThread& child) {
          f.order += name;
          if (name == 'c') f.woken_when_settled.push_back(&child);
          if (name == 'c') f.turns.wait_for_outcome(inner, child);
          f.order += static_cast<char>(name - 'a' + 'A');
        });
      }
      f.turns.wait_for_threads(held, self);
      f.order += 'A';
    });
    f.turns.go_on();
  }
  f.wait_for_all();
  EXPECT_EQ(f.order, "abBcdD.CA.");
}

AE_TEST("turns/a stopped thread is woken, and so are those that it started") {
  TurnsFixture f;
  std::vector<bool> stopped(3);
  {
    Turns::Lock lock(f.mutex);
    f.start(nullptr, [&](Turns::Lock& held, RoutineThread& self) {
      RoutineThread& loser = f.start(&self, [&](Turns::Lock& inner, RoutineThread& child) {
        f.start(&child, [&](Turns::Lock& innermost, RoutineThread& below) {
          f.turns.wait_for_outcome(innermost, below);
          stopped[0] = below.is_stopped;
        });
        f.turns.wait_for_threads(inner, child);
        stopped[1] = child.is_stopped;
      });
      static_cast<void>(loser);
      f.start(&self, [&](Turns::Lock& inner, RoutineThread& winner) {
        f.woken_when_settled.push_back(&winner);
        f.turns.wait_for_outcome(inner, winner);
        f.turns.stop_below(*winner.parent, &winner);
        stopped[2] = winner.is_stopped;
      });
      f.turns.wait_for_threads(held, self);
    });
    f.turns.go_on();
  }
  f.wait_for_all();
  EXPECT_EQ(stopped, std::vector<bool>({true, true, false}));
}

}  // namespace
}  // namespace ae::routines
