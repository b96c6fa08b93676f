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

class UsedTools {
 public:
  UsedTools(CheckContext& check, const CallableTools& callable)
      : check_(check), callable_(callable) {}

  void add(const std::string& name, const CheckedTool& tool) { used_.emplace(name, &tool); }
  // The functions that code may always run.
  void add_code_functions();
  // Models may call the tool: the plan records its description.
  void offer_to_model(const std::string& name) { model_tools_.insert(name); }
  // Reports the models without a price, for a budget that limits the cost.
  void check_prices(const SourceNode& cost);
  // The `tools` of the task graph, with those that probes and compensations call. nullopt: one of
  // them has errors. `source_node`: the agent.
  std::optional<std::vector<Member>> policies(const std::string& agent,
                                              const SourceNode& source_node);

 private:
  void add_side_call_tools();
  Value policy_of(const CheckedTool& tool, const std::string& agent, const SourceNode& source_node);

  CheckContext& check_;
  const CallableTools& callable_;
  CheckedTools code_functions_;
  std::map<std::string, const CheckedTool*, std::less<>> used_;
  std::set<std::string, std::less<>> model_tools_;
};

}  // namespace ae::agents
