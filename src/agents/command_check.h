// check_command: the program of a command tool or of an MCP server.
//
// Used by transport_check.cc only. Threads: pure functions.
#pragma once

#include <vector>

#include "agents/check_context.h"

namespace ae::agents {

// Adds the checked members to `definition`: command, env, env_allow, sandbox, cwd. `command`: the
// list of its arguments, at `command` of `tool`.
void check_command(CheckContext& check, const SourceNode& tool, const SourceNode& command,
                   std::vector<Member>& definition);

}  // namespace ae::agents
