// What a loop says (`loop` of an agent or a node): who leads, what is said first, which tools may be called.
//
// Only agent_check.cc uses it. Threads: none of its own.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "agents/check.h"

namespace ae::agents {

// What a loop that says nothing else is asked: the input's message, or the whole input.
inline constexpr std::string_view kUsualPrompt = "${ .input.message? // .input }";

// What the walk over the agent does for it.
struct LoopPlace {
  const Callable& callable;
  const std::set<std::string, std::less<>>& grants;  // capabilities that a plan of a model may use
  std::function<bool(const Spot&)> templated;        // its expressions read what they may
  std::function<const CheckedModel*(const Spot&)> find_model;  // faults when there is none
  std::function<void(const CheckedTool&, bool granted)> use;   // the plan has this tool
};

// The `planner` member of the task graph's node; meaningless when there were faults.
Value check_planner(Check& check, const Spot& spot, const LoopPlace& place);

// The `loop` member of the task graph's node (plan/plan.h); meaningless when there were faults.
Value check_loop(Check& check, const Spot& spot, const LoopPlace& place);

}  // namespace ae::agents
