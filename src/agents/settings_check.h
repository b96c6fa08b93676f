// check_settings: the settings of an agent other than its plan (`deadline`,
// `budget`, `labels`, `grants` …).
//
// Threads: pure functions.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agents/check_context.h"
#include "plan/budget.h"

namespace ae::agents {

// Writes into `agent` or its task graph. Returns the cost limit of its budget, if it has one.
std::optional<SourceNode> check_settings(CheckContext& check, const SourceNode& source_node,
                                         Agent& agent, std::vector<Member>& graph);

// Of an agent, and of a tool that creates child jobs. A price of its models is not checked.
engine::Limits check_budget(CheckContext& check, const SourceNode& source_node);
std::vector<std::pair<std::string, std::string>> check_labels(CheckContext& check,
                                                              const SourceNode& source_node);

}  // namespace ae::agents
