// UsedTools: the tools and models that the plan of an agent may call, and their policies in it.
//
// Used by agent_check.cc only. Threads: one owner; borrows the tools of the file.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agents/checks.h"

namespace ae::agents {

// The policy of a tool that no file defines, in the form of the task graph.
Value generated_policy(const engine::ToolPolicy& policy, std::vector<Member> more);

class UsedTools {
 public:
  UsedTools(CheckContext& check, const CallableTools& callable)
      : check_(check), callable_(callable) {}

  void add(const std::string& name, const CheckedTool& tool) { used_.emplace(name, &tool); }
  // The functions that code may always run.
  void add_code_functions();
  // The tool of the child jobs of this agent (child_check.h). `path`: of the entry that names it.
  const CheckedTool& add_child_tool(std::string_view agent, bool detached, const std::string& path);
  // job:send (send_tool.h)
  const CheckedTool& add_send_tool();
  // Models may call the tool: the plan records its description.
  void offer_to_model(const std::string& name) { model_tools_.insert(name); }
  // Reports the models without a price, for a budget that limits the cost.
  void check_prices(const SourceNode& cost);
  // The `tools` of the task graph, with those that probes and compensations call. nullopt: one of
  // them has errors. `source_node`: the agent.
  std::optional<std::vector<Member>> policies(const std::string& agent,
                                              const SourceNode& source_node);

 private:
  const CheckedTool& add_generated(CheckedTool tool);
  void add_side_call_tools();
  Value policy_of(const CheckedTool& tool, const std::string& agent, const SourceNode& source_node);

  CheckContext& check_;
  const CallableTools& callable_;
  CheckedTools generated_;  // tools that no file defines
  std::map<std::string, const CheckedTool*, std::less<>> used_;
  std::set<std::string, std::less<>> model_tools_;
};

}  // namespace ae::agents
