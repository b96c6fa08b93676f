// graph_text: a plan as a dependency graph for a terminal, in topological order.
//
// Threads: a pure function.
#pragma once

#include <string>
#include <string_view>

#include "cli/text.h"
#include "json/value.h"

namespace ae::cli {

// Lines are cut at `width` columns; 0 = never. REQUIRES: a task graph of agents::load
// (plan/plan.h).
std::string graph_text(std::string_view agent, const Value& task_graph, const Paint& paint,
                       std::size_t width = 0);
// A node in words: "tool charge (idempotent)", "wait signal \"approve\"".
std::string node_words(const Value& node, const Value& task_graph);

}  // namespace ae::cli
