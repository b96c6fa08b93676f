// The second life of this program: started with a hidden argument, it supervises one command tool's program.
#pragma once

#include <optional>

namespace ae::app {

// The exit code, when this process was started as a supervisor. Ask before anything else in main.
std::optional<int> supervise(int argc, char** argv);

}  // namespace ae::app
