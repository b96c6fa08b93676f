// The indexes of steps that a state holds.
#pragma once

#include "engine/state/state.h"

namespace ae::engine {

// Is every index in the state within its range? Of a state that was read.
bool has_valid_indexes(const State& state);

}  // namespace ae::engine
