// check_transport: how a tool is called: HTTP, a program, a function of the host program or of a
// worker, or an MCP server.
//
// Used by tool_check.cc, and its helpers by command_check.cc. Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "agents/checks.h"

namespace ae::agents {

struct CheckedTransport {
  std::string kind;                // http, command, native, worker or mcp; "" = none
  std::vector<Member> definition;  // as in ToolDefinition
  std::vector<int> definite;       // statuses that exclude an effect: `definite_failures`
  bool local = false;
};
// `policy`: whether the tool makes a call, and its timeout. `server_tool`: nullptr, or a tool of an
// MCP server.
CheckedTransport check_transport(CheckContext& check, const SourceNode& source_node,
                                 const engine::ToolPolicy& policy, const ServerTool* server_tool);

// Reports a list or mapping that has too many entries.
bool is_within_limit(CheckContext& check, const SourceNode& source_node);
// Duplicates are already reported; a Value cannot hold them.
Value as_object(std::vector<Member> members);

}  // namespace ae::agents
