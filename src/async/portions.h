// in_portions: long work on the loop, cut so that the loop's other tasks have their turn in between.
//
// Threads: the loop's.
#pragma once

#include <chrono>
#include <functional>

#include "async/loop.h"

namespace ae::async {

// So long one task has the loop for itself.
constexpr Duration kPortionMax = std::chrono::milliseconds(50);

// Calls `next` until it gives false, then `then`. Begins inside this call; when a portion is over, goes on in another task.
// One call of `next` is never cut. Borrows the loop and the clock.
void in_portions(Loop& loop, SteadyClock& steady, std::move_only_function<bool()> next, Task then);

}  // namespace ae::async
