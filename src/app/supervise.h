// Supervisor mode: started with a hidden argument, this program supervises one program: of a command
// tool, or a worker of code (guard.h).
#pragma once

#include <optional>

namespace ae::app {

// The exit code if this process was started to supervise; else it is named, so that other
// Aetheris processes recognize it (tools/command/proc.h). Call it first in main.
std::optional<int> supervise(int argc, char** argv);

}  // namespace ae::app
