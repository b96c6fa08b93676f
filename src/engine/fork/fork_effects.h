// fork_effects: the effects of a job that a fork of it does not have: Fork::effects.
//
// Used by fork.cc only. Threads: pure functions.
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "engine/fork/fork.h"

namespace ae::engine {

struct ForkedJob {
  const State& now;
  const std::vector<Event>& events;
  const State& then;                                // at the event of the fork
  const std::unordered_set<std::string>& imported;  // the steps that the fork has
};

std::vector<Value> effects_since(const ForkedJob& job);

}  // namespace ae::engine
