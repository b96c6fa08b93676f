// run_in_slices: runs long work on the loop in time slices, so that other tasks run in between.
//
// Threads: the loop's.
#pragma once

#include <chrono>
#include <functional>

#include "async/loop.h"

namespace ae::async {

// Duration of one slice.
constexpr Duration kTimeSlice = std::chrono::milliseconds(50);

// Calls `next` until it returns false, then `then`. The first slice runs inside this call, each
// later slice in its own task. A single call of `next` is not interrupted. Borrows the loop and the
// clock.
void run_in_slices(Loop& loop, SteadyClock& steady, std::move_only_function<bool()> next,
                   Task then);

}  // namespace ae::async
