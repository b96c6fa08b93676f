// add_summaries: loops of random plans that exceed their small context, so that their models
// summarize what is left out.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "json/value.h"

namespace ae::sim {

// Only to plans with some numbers. It draws nothing from the plan's own source, so all other plans
// stay the same.
void add_summaries(std::uint64_t number, std::vector<Value>& nodes);

}  // namespace ae::sim
