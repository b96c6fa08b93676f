// for_each_named_tool: the tools that an entry of `tools` or `uses` names.
//
// Used by loop_check.cc and code_check.cc only. Threads: pure functions.
#pragma once

#include <functional>

#include "agents/checks.h"

namespace ae::agents {

// `entry`: the name of a tool, NAME.* (all tools of an MCP server) or * (all tools). Reports an
// entry that names no tool.
void for_each_named_tool(CheckContext& check, const SourceNode& entry, const CheckedTools& tools,
                         const std::function<void(const CheckedTools::value_type&)>& visit);

}  // namespace ae::agents
