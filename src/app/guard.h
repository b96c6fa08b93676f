// Guard mode: started with a hidden argument, this program runs one worker of code and outlives it.
//
// A worker that `dev` or `run` starts must not outlive them, even after kill -9. The guard is the
// leader of the worker's process group, in the session of its starter: unlike the programs of tools
// (tools/command/supervisor.h), a worker may connect to the server. When the worker ends, or the
// starter is gone, the guard kills all descendants of the worker and exits as the worker did.
//
// Descriptor kGuardFd is a pipe whose other end only the starter has: its end means that the starter
// is gone. Output of the worker is not touched. Threads: one; no threads yet.
#pragma once

#include <chrono>
#include <string_view>

#include "base/time.h"

namespace ae::app {

constexpr std::string_view kGuardArgument = "__guard";
constexpr int kGuardFd = 3;
// From the end of the worker, or of the starter, to the end of the guard.
constexpr Duration kGuardEnd = std::chrono::seconds(5);

// True if this process was started as a guard.
bool is_guard(int argc, char** argv);
// Runs argv[2…] and returns its exit code, 127 if it could not be started; 128 + the number of a
// signal that ended it. REQUIRES: is_guard.
int guard_main(int argc, char** argv);

}  // namespace ae::app
