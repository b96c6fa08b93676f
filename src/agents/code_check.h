// check_code: `code` of an agent: the function of a worker that does its work, and the tools and
// models that it may call.
//
// Used by agent_check.cc only. Threads: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "agents/checks.h"
#include "agents/used_tools.h"

namespace ae::agents {

struct CodeContext {
  std::string_view agent;  // its name
  const CallableTools& callable;
  UsedTools& used;  // gets what the code may call
};

struct CheckedCode {
  Value code;           // the `code` member of the task graph's node (plan/plan.h)
  std::string version;  // "" = none was given, or it has errors
};
// `agent`: has the key `code`. The result is undefined if errors were reported.
CheckedCode check_code(CheckContext& check, const SourceNode& agent, const CodeContext& context);

}  // namespace ae::agents
