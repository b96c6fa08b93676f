// Parts of a plan's nodes that stand for themselves.
//
// Only agent_check.cc uses it. Threads: none of its own.
#pragma once

#include <functional>
#include <optional>

#include "agents/check.h"

namespace ae::agents {

// Do the expressions at a spot read what they may? Says what is wrong with them.
using Templated = std::function<bool(const Spot&)>;

// The `wait` member of the task graph's node (plan/plan.h). nullopt: too little is known.
std::optional<Value> check_wait(Check& check, const Spot& spot, const Templated& templated);
// The `messages` of what a model is asked: from `messages`, or from `prompt` and `system`.
std::optional<Value> check_messages(Check& check, const Spot& spot, const Templated& templated);
// What can be said about the arguments of a call before the job runs. `given`: they stand at `spot`.
void check_arguments(Check& check, const Spot& spot, bool given, const CheckedTool& tool);

}  // namespace ae::agents
