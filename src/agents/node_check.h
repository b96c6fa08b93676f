// check_wait, check_messages, check_arguments: parts of a node that can be checked in isolation.
//
// Used by agent_check.cc only. Threads: pure functions.
#pragma once

#include <functional>
#include <optional>

#include "agents/checks.h"

namespace ae::agents {

// True if the node's expressions read only what they may; reports the others.
using ExpressionCheck = std::function<bool(const SourceNode&)>;

// The `wait` member of the task graph's node (plan/plan.h). nullopt: it could not be determined.
std::optional<Value> check_wait(CheckContext& check, const SourceNode& source_node,
                                const ExpressionCheck& check_expressions);
// The `messages` of a model request: from `messages`, or from `prompt` and `system`.
std::optional<Value> check_messages(CheckContext& check, const SourceNode& source_node,
                                    const ExpressionCheck& check_expressions);
// Checks the arguments that are known before the job runs. `given`: they are at `source_node`.
void check_arguments(CheckContext& check, const SourceNode& source_node, bool given,
                     const CheckedTool& tool);

}  // namespace ae::agents
