// The program of the command line, without its `main`.
#pragma once

namespace ae::cli {

// Runs the command of the command line, or the supervisor of a tool's program if the arguments say
// so. Returns the exit code. REQUIRES: no other thread runs.
int run_program(int argc, char** argv);

}  // namespace ae::cli
