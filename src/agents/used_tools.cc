// UsedTools: see used_tools.h.
#include "agents/used_tools.h"

#include <fmt/core.h>

#include <utility>

#include "agents/code_functions.h"
#include "log/field_names.h"
#include "plan/model_calls.h"

namespace ae::agents {
namespace {

constexpr std::size_t kRulesMax = 256;  // that apply to one tool of a plan

}  // namespace

void UsedTools::add_code_functions() {
  code_functions_ = code_functions();
  for (const auto& [name, function] : code_functions_) add(name, function);
}

// A cost is known only for models with a price.
void UsedTools::check_prices(const SourceNode& cost) {
  for (const auto& [name, tool] : used_) {
    if (!tool->is_valid) continue;  // its price is unknown
    if (!name.starts_with(kModelToolPrefix) || tool->policy.find("price")) continue;
    check_.report(cost, fmt::format("the model {} has no `price`; a cost limit needs one",
                                    quote(std::string_view(name).substr(kModelToolPrefix.size()))));
  }
}

// Adds the probe and compensation tools of used tools to the plan.
void UsedTools::add_side_call_tools() {
  std::vector<const CheckedTool*> todo;
  todo.reserve(used_.size());
  for (const auto& [name, tool] : used_) todo.push_back(tool);
  while (!todo.empty()) {
    const CheckedTool& tool = *todo.back();
    todo.pop_back();
    for (const std::string_view key : {"probe", field::compensate}) {
      const auto found = callable_.tools.find(tool.policy[key].text("tool"));
      if (found == callable_.tools.end()) continue;
      if (used_.emplace(found->first, &found->second).second) todo.push_back(&found->second);
    }
  }
}

// A tool's policy in the plan: its definition in the file, and the rules for
// its calls by this agent.
Value UsedTools::policy_of(const CheckedTool& tool, const std::string& agent,
                           const SourceNode& source_node) {
  const std::string& name = tool.tool.name;
  Value policy = tool.policy;
  if (model_tools_.contains(name) && !tool.description.empty()) {
    policy = policy.with("description", tool.description);
  }
  if (policy.find("provider") != nullptr) return policy;  // a model
  auto rules = rules_for(callable_.policies, agent, name, policy["capabilities"]);
  if (rules.size() > kRulesMax) {
    check_.report(source_node,
                  fmt::format("more than 256 policies apply to the tool {}", quote(name)));
  } else if (!rules.empty()) {
    policy = policy.with("rules", Value::array(std::move(rules)));
  }
  return policy;
}

std::optional<std::vector<Member>> UsedTools::policies(const std::string& agent,
                                                       const SourceNode& source_node) {
  add_side_call_tools();
  std::vector<Member> used;
  for (const auto& [name, tool] : used_) {
    if (!tool->is_valid) return std::nullopt;
    used.emplace_back(name, policy_of(*tool, agent, source_node));
  }
  return used;
}

}  // namespace ae::agents
