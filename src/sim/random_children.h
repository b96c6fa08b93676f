// Nodes of random plans that create child jobs.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "json/value.h"

namespace ae::sim {

// Adds nodes to some plans: calls, maps and loops whose tools create child jobs. The plan of each
// child has a lower number. They draw nothing of the plan, so all other nodes stay the same.
void add_children(std::uint64_t number, std::vector<Value>& nodes);

}  // namespace ae::sim
