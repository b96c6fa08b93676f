// What a condition (`when` of a policy, `approval` of a tool) looks up in the arguments of a call, held to what the tools
// that it is about take: an argument that none of them has is misspelt, and the condition would never hold.
//
// Threads: none of its own.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agents/check_context.h"

namespace ae::agents {

// A tool that a condition is about. A schema of an MCP server's tool is closed by what it lists, unless it says otherwise: its
// arguments are pinned.
struct ConditionTool {
  std::string_view name;
  const Value* args_schema = nullptr;  // nullptr: it takes anything
  bool of_server = false;
};

struct ConditionFinding {
  std::string error;       // "" = none
  std::string suggestion;  // a name that was meant
  std::string mention;     // where it stands in the text
  std::string note;        // of some of the tools only; "" = none
};

// What is to be said of this condition. Empty `tools`: nothing is known, and nothing is said.
ConditionFinding analyze_condition(const ExprRoots& read, const std::vector<ConditionTool>& tools);

// The same at its place in the file. What is no fault goes to `notes`, if it is not nullptr.
void check_condition(CheckContext& check, const SourceNode& condition,
                     const std::vector<ConditionTool>& tools, std::vector<Note>* notes);

// Has its text an expression that compiles? Its roots, then.
std::optional<ExprRoots> roots_of(const Value& text);

}  // namespace ae::agents
