// The supervisor: a small process between the runtime and one program, so that no program outlives
// the runtime unnoticed.
//
// It is this program, started again with a hidden first argument. It creates the program's process
// group, reports it, and starts the program on command (by then the group is durably noted). It
// enforces the timeout itself, even while the runtime is stopped or frozen. When the program ends,
// times out, or the runtime is gone (kill -9 included), it kills the group and all descendants of
// the program, also those that left the group by setsid or double fork: as a subreaper it adopts
// them, and it exits only when it has no children.
//
// Limitation: work that was handed to another daemon (dockerd, systemd-run, at) is not killed.
#pragma once

#include <string_view>

namespace ae::tools {

constexpr std::string_view kSuperviseArgument = "__supervise";

// True if this process was started as a supervisor. Call it first in main.
bool is_supervisor(int argc, char** argv);

// Runs the supervisor and exits the process. Returns an exit code for main only if the process was
// not started by the runtime. REQUIRES: is_supervisor, no threads yet.
int supervise_main(int argc, char** argv);

}  // namespace ae::tools
