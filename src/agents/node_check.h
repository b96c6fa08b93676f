// Parts of a plan's nodes that stand for themselves.
//
// Only agent_check.cc uses it. Threads: none of its own.
#pragma once

#include <functional>
#include <optional>

#include "agents/check_context.h"

namespace ae::agents {

// Do the expressions at a spot read what they may? Says what is wrong with them.
using ExpressionCheck = std::function<bool(const SourceNode&)>;

// The `wait` member of the task graph's node (plan/plan.h). nullopt: too little is known.
std::optional<Value> check_wait(CheckContext& check, const SourceNode& source_node,
                                const ExpressionCheck& check_expressions);
// The `messages` of what a model is asked: from `messages`, or from `prompt` and `system`.
std::optional<Value> check_messages(CheckContext& check, const SourceNode& source_node,
                                    const ExpressionCheck& check_expressions);
// What can be said about the arguments of a call before the job runs. `given`: they stand at `source_node`.
void check_arguments(CheckContext& check, const SourceNode& source_node, bool given,
                     const CheckedTool& tool);

}  // namespace ae::agents
