// Child checks: tools and nodes that create child jobs (`agent`).
//
// Threads: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "agents/checks.h"
#include "json/value.h"

namespace ae::agents {

// What the plan records of the agent that a tool names, and the schemas of the agent if it is in
// this file.
struct CheckedChild {
  Value agent;  // as in a task graph
  std::optional<Value> args_schema, result_schema;
};
CheckedChild check_child(CheckContext& check, const SourceNode& source_node);

// The tool of the nodes that name this agent, and of the code that uses it (plan/job_tools.h).
CheckedTool child_tool(CheckContext& check, std::string_view agent, bool detached);

}  // namespace ae::agents
