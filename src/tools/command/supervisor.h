// The supervisor: a small process between the runtime and one program, so that nothing outlives a runtime unseen.
//
// It is this program again, started under a hidden first argument. It makes the program's process group, says which
// one it is, and starts the program only when told (by then the group is noted durably). It measures the time limit
// itself, so a runtime that is stopped or frozen changes nothing. When the program ends, its time is up, or the
// runtime is gone (kill -9 included), it kills the group and everything that descends from it, also what left the
// group by setsid or double fork: as a subreaper it inherits all of that, and it leaves only when it has no children.
//
// What can still get away: work handed to somebody else's daemon (dockerd, systemd-run, at).
#pragma once

#include <string_view>

namespace ae::tools {

constexpr std::string_view kSuperviseArgument = "__supervise";

// True when this process was started as a supervisor. Ask before anything else in main.
bool is_supervisor(int argc, char** argv);

// Does its work and returns the exit code for main. REQUIRES: is_supervisor, no threads yet.
int supervise_main(int argc, char** argv);

}  // namespace ae::tools
