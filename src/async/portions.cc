#include "async/portions.h"

#include <utility>

namespace ae::async {

void in_portions(Loop& loop, SteadyClock& steady, std::move_only_function<bool()> next, Task then) {
  const Duration end = steady.since_start() + kPortionMax;
  while (next()) {
    if (steady.since_start() < end) continue;
    return loop.post([&loop, &steady, next = std::move(next), then = std::move(then)]() mutable {
      in_portions(loop, steady, std::move(next), std::move(then));
    });
  }
  then();
}

}  // namespace ae::async
