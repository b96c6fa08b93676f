// check_condition: checks the arguments that a condition (`when` of a policy, `approval` of a tool)
// reads against the schemas of the tools it applies to. An argument that none of them has is
// misspelt: the condition would never hold.
//
// Threads: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agents/check_context.h"

namespace ae::agents {

// A tool that a condition applies to. The schema of an MCP tool is pinned, so it is closed unless
// it permits other members.
struct ConditionTool {
  std::string_view name;
  const Value* args_schema = nullptr;  // nullptr: any arguments
  bool of_server = false;
};

struct ConditionFinding {
  std::string error;       // "" = none
  std::string suggestion;  // the closest name
  std::string mention;     // its text in the expression
  std::string note;        // applies to some of the tools only; "" = none
};

// Checks the condition. Without `tools`, nothing is known and nothing is found.
ConditionFinding analyze_condition(const ExprRoots& read, const std::vector<ConditionTool>& tools);

// Reports the findings at the node. Warnings go to `notes`, if it is not nullptr.
void check_condition(CheckContext& check, const SourceNode& condition,
                     const std::vector<ConditionTool>& tools, std::vector<Note>* notes);

// The roots of the text's expression, if it compiles.
std::optional<ExprRoots> roots_of(const Value& text);

}  // namespace ae::agents
