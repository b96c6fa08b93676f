// run_in_slices: runs long work on the loop in portions, so that other tasks run in between.
//
// Threads: the loop's.
#pragma once

#include <chrono>
#include <functional>

#include "async/loop.h"

namespace ae::async {

// How long one portion lasts.
constexpr Duration kTimeSlice = std::chrono::milliseconds(50);

// Calls `next` until it returns false, then `then`. The first portion runs inside this call, each later one in a task of its
// own. One call of `next` is not interrupted. Borrows the loop and the clock.
void run_in_slices(Loop& loop, SteadyClock& steady, std::move_only_function<bool()> next,
                   Task then);

}  // namespace ae::async
