// Merging: several agents files, served by one process as one.
//
// Names are unique. Two files may define the same name only identically, as copies of a shared tool
// do; otherwise the error names both places. Threads: pure functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "app/instance.h"
#include "base/error.h"

namespace ae::app {

// Warnings for the user who starts these files: programs that can bypass approvals, and policies
// that match nothing. `policies`: the path of the policies file; "" = none. REQUIRES: no
// diagnostics.
std::vector<std::string> agents_warnings(
    const std::vector<std::pair<std::string, LoadedAgents>>& files, const std::string& policies);
// REQUIRES: at least one, without diagnostics. `first` is the path, for messages. Fails with usage.
Result<LoadedAgents> merge_agents(std::vector<std::pair<std::string, LoadedAgents>> files);

}  // namespace ae::app
