// check_loop: `loop` and `planner` of an agent or a node: the model, its first messages, and the
// tools it may call.
//
// Used by agent_check.cc only. Threads: pure functions.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "agents/checks.h"

namespace ae::agents {

// The default prompt of a loop: the input's message, or the whole input.
inline constexpr std::string_view kDefaultPrompt = "${ .input.message? // .input }";

// Callbacks into the agent's check.
struct LoopContext {
  const CallableTools& callable;
  const std::set<std::string, std::less<>>& grants;  // capabilities that a model's plan may use
  std::function<bool(const SourceNode&)> check_expressions;          // true: allowed
  std::function<const CheckedModel*(const SourceNode&)> find_model;  // reports unknown models
  std::function<void(const CheckedTool&, bool granted)> add_tool;    // adds the tool to the plan
  bool of_agent = false;  // the loop is the agent, not a node of its plan
};

// The `planner` member of the task graph's node; undefined if errors were reported.
Value check_planner(CheckContext& check, const SourceNode& source_node, const LoopContext& context);

// The `loop` member of the task graph's node (plan/plan.h); undefined if errors were reported.
Value check_loop(CheckContext& check, const SourceNode& source_node, const LoopContext& context);

}  // namespace ae::agents
