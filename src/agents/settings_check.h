// What an agent says beside its plan (`deadline`, `budget`, `labels`, `grants` …).
//
// Only agent_check.cc uses it. Threads: none of its own.
#pragma once

#include <optional>
#include <vector>

#include "agents/check.h"

namespace ae::agents {

// Goes into `agent`, or into its task graph. Where its budget limits the cost; nullopt: it does not.
std::optional<Spot> check_settings(Check& check, const Spot& spot, Agent& agent,
                                   std::vector<Member>& graph);

}  // namespace ae::agents
