#include "async/time_slices.h"

#include <utility>

namespace ae::async {

void run_in_slices(Loop& loop, SteadyClock& steady, std::move_only_function<bool()> next,
                   Task then) {
  const Duration end = steady.since_start() + kTimeSlice;
  while (next()) {
    if (steady.since_start() < end) continue;
    return loop.post([&loop, &steady, next = std::move(next), then = std::move(then)]() mutable {
      run_in_slices(loop, steady, std::move(next), std::move(then));
    });
  }
  then();
}

}  // namespace ae::async
