// UsedTools: see used_tools.h.
#include "agents/used_tools.h"

#include <fmt/core.h>

#include <utility>

#include "agents/child_check.h"
#include "agents/code_functions.h"
#include "agents/send_tool.h"
#include "log/field_names.h"
#include "plan/job_tools.h"
#include "plan/model_calls.h"

namespace ae::agents {
namespace {

constexpr std::size_t kRulesMax = 256;  // that apply to one tool of a plan

}  // namespace

Value generated_policy(const engine::ToolPolicy& policy, std::vector<Member> more) {
  more.insert(
      more.end(),
      {{"effect", engine::to_text(policy.effect)},
       {"on_in_doubt", policy.on_in_doubt == engine::OnInDoubt::park ? "park" : "resend"},
       {"timeout", to_text(policy.timeout)},
       {"grace", to_text(policy.grace)},
       {"dedupe_window", policy.dedupe_window ? to_text(*policy.dedupe_window) : "unlimited"},
       {"retry", retry_value(policy.retry)},
       {field::version, policy.version}});
  return Value::object(std::move(more));
}

void UsedTools::add_code_functions() {
  for (auto& [name, function] : code_functions()) add_generated(std::move(function));
}

const CheckedTool& UsedTools::add_generated(CheckedTool tool) {
  std::string name = tool.tool.name;
  const CheckedTool& kept = generated_.try_emplace(std::move(name), std::move(tool)).first->second;
  add(kept.tool.name, kept);
  return kept;
}

const CheckedTool& UsedTools::add_child_tool(std::string_view agent, bool detached,
                                             const std::string& path) {
  const auto known = generated_.find(engine::child_tool_name(agent, detached));
  if (known != generated_.end()) return known->second;
  const bool is_new = !generated_.contains(engine::child_tool_name(agent, !detached));
  if (is_new && !check_.find_agent(agent) && callable_.notes != nullptr) {
    callable_.notes->push_back({path, fmt::format("{} is not in this file: jobs need it in another "
                                                  "file of the server, or registered",
                                                  quote(agent))});
  }
  return add_generated(child_tool(check_, agent, detached));
}

const CheckedTool& UsedTools::add_send_tool() { return add_generated(send_tool()); }

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
