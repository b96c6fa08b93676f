// What an agent says beside its plan (`deadline`, `budget`, `labels`, `grants` …).
//
// Only agent_check.cc uses it. Threads: none of its own.
#pragma once

#include <optional>
#include <vector>

#include "agents/check_context.h"

namespace ae::agents {

// Goes into `agent`, or into its task graph. Where its budget limits the cost; nullopt: it does not.
std::optional<SourceNode> check_settings(CheckContext& check, const SourceNode& source_node,
                                         Agent& agent, std::vector<Member>& graph);

}  // namespace ae::agents
