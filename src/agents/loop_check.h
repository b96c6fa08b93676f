// What a loop says (`loop` of an agent or a node): who leads, what is said first, which tools may be called.
//
// Only agent_check.cc uses it. Threads: none of its own.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "agents/check_context.h"

namespace ae::agents {

// What a loop that says nothing else is asked: the input's message, or the whole input.
inline constexpr std::string_view kDefaultPrompt = "${ .input.message? // .input }";

// What the walk over the agent does for it.
struct LoopContext {
  const CallableTools& callable;
  const std::set<std::string, std::less<>>& grants;  // capabilities that a plan of a model may use
  std::function<bool(const SourceNode&)> check_expressions;  // its expressions read what they may
  std::function<const CheckedModel*(const SourceNode&)> find_model;  // faults when there is none
  std::function<void(const CheckedTool&, bool granted)> use;         // the plan has this tool
};

// The `planner` member of the task graph's node; meaningless when there were faults.
Value check_planner(CheckContext& check, const SourceNode& source_node, const LoopContext& context);

// The `loop` member of the task graph's node (plan/plan.h); meaningless when there were faults.
Value check_loop(CheckContext& check, const SourceNode& source_node, const LoopContext& context);

}  // namespace ae::agents
