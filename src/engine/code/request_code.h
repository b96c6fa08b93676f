// What may be written of an advance: checks of what a routine states.
//
// A routine is not trusted: `apply` accepts what passes. Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "engine/code/code.h"
#include "engine/heart/routine.h"
#include "engine/state/state.h"

namespace ae::engine {

// May the routine have been given the success of this function there? Fails with input_invalid.
Status check_delivery(const State& state, const Step& request, std::uint64_t delivered);
// May the routine do this, and request these, beside the `wanted` earlier requests that are not in the
// log? Fails with input_invalid, tool_not_granted.
Status check_advance(const State& state, const Step& code, const Advance& advance,
                     std::span<const NewRequest> requests, std::span<const NewRequest> wanted);

}  // namespace ae::engine
