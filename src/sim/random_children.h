// Nodes of random plans that create child jobs.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "json/value.h"
#include "sim/sim_random.h"

namespace ae::sim {

// The input of a child whose plan has a lower number. Sometimes its agent does not accept it.
// REQUIRES: number > 0.
Value child_input(std::uint64_t number, SimRandom& random);

// Adds nodes to some plans: calls, maps and loops whose tools create child jobs. The plan of each
// child has a lower number. They draw nothing of the plan, so all other nodes stay the same.
void add_children(std::uint64_t number, std::vector<Value>& nodes);

}  // namespace ae::sim
