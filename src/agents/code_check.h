// check_code: `code` of an agent: the function of a worker that does its work, and the tools and
// models that it may call.
//
// Used by agent_check.cc only. Threads: pure functions.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "agents/checks.h"

namespace ae::agents {

// Callbacks into the agent's check.
struct CodeContext {
  std::string_view agent;  // its name
  const CallableTools& callable;
  std::function<void(const CheckedTool&)> add_tool;  // adds a tool or model to the plan
};

struct CheckedCode {
  Value code;           // the `code` member of the task graph's node (plan/plan.h)
  std::string version;  // "" = none was given, or it has errors
};
// `agent`: has the key `code`. The result is undefined if errors were reported.
CheckedCode check_code(CheckContext& check, const SourceNode& agent, const CodeContext& context);

}  // namespace ae::agents
