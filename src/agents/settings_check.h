// check_settings: the settings of an agent other than its plan (`deadline`,
// `budget`, `labels`, `grants` …).
//
// Used by agent_check.cc only. Threads: pure functions.
#pragma once

#include <optional>
#include <vector>

#include "agents/check_context.h"

namespace ae::agents {

// Writes into `agent` or its task graph. Returns the cost limit of its budget, if it has one.
std::optional<SourceNode> check_settings(CheckContext& check, const SourceNode& source_node,
                                         Agent& agent, std::vector<Member>& graph);

}  // namespace ae::agents
