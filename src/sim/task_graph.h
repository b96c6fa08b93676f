// Task graphs of simulated jobs: the tools of their nodes with their policies, and the plan that
// the engine makes of them.
//
// Threads: pure functions.
#pragma once

#include <memory>
#include <string_view>

#include "json/value.h"
#include "plan/plan.h"

namespace ae::sim {

// Tools that make no call, and what they record.
struct Recorded {
  std::string_view tool, what;
};
inline constexpr Recorded kRecorded[] = {{"clock", "time"}, {"dice", "random"}, {"ids", "uuid"}};

// The graph with the tools that its nodes name, and the tools that those name, with their policies.
Value with_tools(Value graph);
// REQUIRES: a valid graph, without its tools.
std::shared_ptr<const engine::Plan> compile_graph(const Value& graph);

}  // namespace ae::sim
