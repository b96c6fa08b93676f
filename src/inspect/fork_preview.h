// fork_preview: what a fork or a retry would do, before it is made.
//
//  {at_seq, imports: {items, nodes}, runs: [node_id…], repeats: [effect…]}
//    imports: how many nodes, and items, turns and calls below others, keep their results
//    runs: the nodes that the new job runs, at least in part, in plan order
//    repeats: effects that it would repeat, as in Fork::effects (engine/fork/fork.h)
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/fork/fork.h"
#include "json/value.h"

namespace ae::engine {

Value fork_preview(const Fork& fork, std::uint64_t at);

// The outcome of a repeated effect in words, by its `state`; another text is returned unchanged.
std::string_view effect_outcome_text(std::string_view state);

}  // namespace ae::engine
