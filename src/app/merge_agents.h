// Merging: several agents files, served by one process as if they were one.
//
// A name stands for one thing. Two files may both define it when they say the same, as copies of a shared tool do; else
// both places are told. Threads: pure functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "app/instance.h"
#include "base/error.h"

namespace ae::app {

// What a user who starts these files should know: programs that can get around approvals, and policies that apply to
// nothing. `policies`: the path of the policies file; "" = none. REQUIRES: none with faults.
std::vector<std::string> agents_warnings(
    const std::vector<std::pair<std::string, LoadedAgents>>& files, const std::string& policies);
// REQUIRES: at least one, none with faults. `first` of each is its path, for messages. Fails with usage.
Result<LoadedAgents> merge_agents(std::vector<std::pair<std::string, LoadedAgents>> files);

}  // namespace ae::app
