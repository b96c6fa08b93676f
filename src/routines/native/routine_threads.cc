#include "routines/native/routine_threads.h"

#include <utility>

namespace ae::routines {

RoutineThreads::RoutineThreads(const Limits& limits)
    : limits_(limits), pool_({.threads = limits.threads, .waiting = limits.threads}) {}

std::shared_ptr<RoutineThreads::Place> RoutineThreads::reserve() {
  if (*routines_ >= limits_.routines) return nullptr;
  ++*routines_;
  auto place = std::make_shared<Place>();
  place->counted_ = std::shared_ptr<void>(nullptr, [count = routines_](void*) { --*count; });
  return place;
}

bool RoutineThreads::run(const std::shared_ptr<Place>& place, async::Task work) {
  if (++*threads_ > limits_.threads) {
    --*threads_;
    return false;
  }
  ++place->threads_;
  const bool runs = pool_.run([place, count = threads_, work = std::move(work)]() mutable {
    work();
    work = nullptr;
    --place->threads_;
    --*count;
  });
  if (runs) return true;
  --place->threads_;
  --*threads_;
  return false;
}

}  // namespace ae::routines
