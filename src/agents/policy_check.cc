// PolicyCheck: policies of an agents file or a policies file: which calls are allowed, and which
// need an approval.
#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "agents/checks.h"
#include "agents/code_functions.h"
#include "agents/condition_check.h"
#include "agents/send_tool.h"
#include "log/field_names.h"
#include "plan/job_tools.h"

namespace ae::agents {
namespace {

constexpr std::size_t kPoliciesMax = 1'000;
constexpr std::size_t kNamesMax = 256;  // of tools or agents in one rule

bool is_pattern(std::string_view name) { return name.ends_with('*'); }

bool matches(std::string_view pattern, std::string_view tool) {
  if (is_pattern(pattern)) return tool.starts_with(pattern.substr(0, pattern.size() - 1));
  if (pattern == tool) return true;
  // agent:NAME names both tools that create jobs of the agent.
  return pattern.starts_with(engine::kChildToolPrefix) && tool.starts_with(pattern) &&
         tool.substr(pattern.size()) == engine::kDetachedSuffix;
}

// The agent whose jobs a name or pattern of tools is about, `*` for all; "" = it is no such name.
std::string_view agent_of_child_tool(std::string_view name) {
  if (!name.starts_with(engine::kChildToolPrefix)) return {};
  name.remove_prefix(engine::kChildToolPrefix.size());
  if (name == "*") return name;
  if (name.ends_with(engine::kDetachedSuffix)) name.remove_suffix(engine::kDetachedSuffix.size());
  return engine::is_name(name) ? name : std::string_view();
}

// Tools that no file defines and that concern other jobs (plan/job_tools.h).
bool names_job_tool(std::string_view name) {
  return name == engine::kSendTool || !agent_of_child_tool(name).empty();
}

bool applies_to_tool(const Policy& policy, std::string_view tool) {
  return policy.tools.empty() || std::ranges::any_of(policy.tools, [&](const std::string& pattern) {
           return matches(pattern, tool);
         });
}

bool has_capability(const Value& capabilities, std::string_view wanted) {
  return wanted.empty() ||
         (capabilities.is_array() &&
          std::ranges::find(capabilities.items(), Value(wanted)) != capabilities.items().end());
}

bool applies_to_agent(const Policy& policy, std::string_view agent) {
  return policy.agents.empty() || std::ranges::find(policy.agents, agent) != policy.agents.end();
}

// Does a name or pattern of the policy name functions that code may always run?
bool names_code_function(std::string_view pattern) {
  return is_code_function_pattern(pattern) || is_code_function(pattern);
}

// Why no call has a name that the name or pattern matches; "" = calls may have one. The names
// `fetch:EFFECT` are reserved: the tool of a request of `ctx.fetch` is run:EFFECT.
std::string why_unused(std::string_view pattern) {
  constexpr std::string_view kFetch = "fetch:";
  if (!names_code_function(pattern) || !pattern.starts_with(kFetch)) return {};
  return fmt::format("{} matches no call: requests of `ctx.fetch` are calls of {}", quote(pattern),
                     quote(fmt::format("run:{}", pattern.substr(kFetch.size()))));
}

// Does the policy apply to functions that code may always run? `has_code`: there are agents with
// `code`; a policy that names such functions applies to those that workers register later, too.
bool applies_to_code_functions(const Policy& policy, bool has_code) {
  if (!policy.capability.empty()) return false;
  return std::ranges::any_of(policy.tools, names_code_function) ||
         (has_code && std::ranges::any_of(kCodeFunctions, [&](std::string_view name) {
            return applies_to_tool(policy, name);
          }));
}

// The tools that concern other jobs and that the policy names. `send`: job:send; borrowed.
void add_job_tools(const Policy& policy, const CheckedTool& send,
                   std::vector<ConditionTool>& tools) {
  for (const std::string& name : policy.tools) {
    if (!names_job_tool(name)) continue;
    const bool sends = name == engine::kSendTool;
    tools.push_back({.name = name, .args_schema = sends ? &send.tool.args_schema : nullptr});
  }
}

class PolicyCheck {
 public:
  PolicyCheck(CheckContext& check, const KnownTools* known) : check_(check), known_(known) {}

  Policy run(const SourceNode& source_node) {
    const std::size_t before = check_.count();
    if (!check_.mapping(source_node, Mapping::policy)) {
      return {};
    }
    action(source_node);
    if (const auto list = source_node.find("tools")) tools(*list);
    if (const auto list = source_node.find("agents")) agents(*list);
    if (const auto name = source_node.find("capability")) capability(*name);
    if (const auto when = source_node.find("when")) this->when(*when);
    if (const auto one = source_node.find("label")) label(*one);
    if (const auto text = source_node.find(field::reason)) reason(*text);
    if (const auto span = source_node.find("expires")) expires(*span);
    if (const auto when = source_node.find("when"); when && check_.count() == before)
      arguments(*when);
    policy_.rule = Value::object(std::move(rule_));
    policy_.path = source_node.path;
    return std::move(policy_);
  }

 private:
  void action(const SourceNode& source_node) {
    const auto found = check_.required(source_node, "action", "allow, require_approval or deny");
    const auto word = found ? check_.word(*found, Words::policy_action) : std::nullopt;
    if (!word) return;
    requires_approval_ = *word == "require_approval";
    rule_.emplace_back("action", *word);
  }

  // A list of names.
  template <class Visit>
  void names(const SourceNode& list, const Visit& visit) {
    if (!check_.list(list)) return;
    if (list->items.empty()) check_.report(list, "empty list; remove it or add a name");
    if (list->items.size() > kNamesMax) check_.report(list, "at most 256 names");
    for (std::size_t i = 0; i < list->items.size() && !check_.full(); ++i) {
      const SourceNode item = list.item(i);
      if (const auto name = check_.text(item)) visit(item, *name);
    }
  }

  void tools(const SourceNode& list) {
    names(list, [this](const SourceNode& item, const std::string& name) {
      policy_.tools.push_back(name);
      const std::string_view prefix =
          is_pattern(name) ? std::string_view(name).substr(0, name.size() - 1) : name;
      const bool whole = is_pattern(name) && !prefix.empty() && !prefix.ends_with('.');
      if (known_ != nullptr && !why_unused(name).empty()) {
        known_->notes.push_back({item.path, why_unused(name)});
      }
      if (names_code_function(name) || names_job_tool(name)) return;
      if (prefix.empty() != (name == "*") || prefix.find('*') != prefix.npos || whole) {
        check_.report(item,
                      "a pattern must be NAME.* (all tools of a server), run:*, agent:* or *");
        return;
      }
      if (known_ == nullptr || name == "*") return;
      const bool any = std::ranges::any_of(
          known_->tools, [&](const auto& tool) { return matches(name, tool.first); });
      if (any || check_.may_be_unknown(name)) return;
      check_.report(
          item,
          is_pattern(name) ? "no tool of this file matches" : check_.describe_missing_tool(name),
          is_pattern(name) ? std::string() : nearest_tool(name));
    });
  }

  std::string nearest_tool(std::string_view name) {
    if (name.find(':') != name.npos) {
      std::vector<std::string_view> names{engine::kSendTool};
      std::ranges::copy_if(kCodeFunctions, std::back_inserter(names),
                           [](std::string_view one) { return why_unused(one).empty(); });
      return check_.nearest(name, names, [](std::string_view one) { return one; });
    }
    return check_.nearest(name, known_->tools,
                          [](const auto& tool) { return std::string_view(tool.first); });
  }

  void agents(const SourceNode& list) {
    names(list, [this](const SourceNode& item, const std::string& name) {
      if (check_.name("an agent", name, item.at(), item.path)) policy_.agents.push_back(name);
    });
  }

  void capability(const SourceNode& source_node) {
    const auto name = check_.text(source_node);
    if (!name) return;
    if (!is_capability(*name)) {
      return check_.report(source_node,
                           "a capability must have 1 to 64 of the characters A-Z a-z 0-9 . _ -");
    }
    policy_.capability = *name;
    if (known_ == nullptr) return;
    check_capability_known(check_, source_node, *name, known_->tools);
  }

  void when(const SourceNode& source_node) {
    const std::size_t before = check_.count();
    if (reads_only(check_, source_node, {"args", "job"}) &&
        !is_one_expression(*source_node.value)) {
      check_.report(source_node, "`when` must be a single ${ … } over .args and .job");
    }
    if (check_.count() == before) rule_.emplace_back("when", source_node->scalar);
  }

  // Checks that the tools of the rule have the arguments that its condition reads.
  void arguments(const SourceNode& when) {
    if (known_ == nullptr) return;
    std::vector<ConditionTool> condition_tools;
    for (const auto& [name, tool] : known_->tools) {
      if (!applies_to_tool(policy_, name)) continue;
      if (!tool.is_valid || check_.may_be_unknown("*")) return;  // their arguments are unknown
      if (!has_capability(tool.policy["capabilities"], policy_.capability)) continue;
      condition_tools.push_back({.name = name,
                                 .args_schema = tool.policy.find("args_schema"),
                                 .of_server = tool.tool.kind == "mcp"});
    }
    if (applies_to_code_functions(policy_, known_->has_code)) {
      for (const std::string_view name : kCodeFunctions) condition_tools.push_back({.name = name});
    }
    const CheckedTool send = send_tool();
    add_job_tools(policy_, send, condition_tools);
    check_condition(check_, when, condition_tools, &known_->notes);
  }

  void label(const SourceNode& source_node) {
    const auto text = check_.text(source_node);
    if (!text) return;
    const std::size_t colon = text->find(':');
    const std::size_t behind = colon == text->npos ? 0 : text->size() - colon - 1;
    if (colon == 0 || behind == 0 || colon > engine::kPolicyLabelMax ||
        behind > engine::kPolicyLabelMax) {
      return check_.report(source_node, "a label must be NAME:VALUE, each of 1 to 256 bytes");
    }
    rule_.emplace_back("label", *text);
  }

  void reason(const SourceNode& source_node) {
    const auto text = check_.text(source_node);
    if (!text) return;
    if (text->empty() || text->size() > engine::kPolicyReasonMax) {
      return check_.report(source_node, "a reason must have 1 to 1024 bytes");
    }
    if (has_expression(*text))
      return check_.report(source_node, "a reason cannot contain an expression");
    rule_.emplace_back(field::reason, *text);
  }

  void expires(const SourceNode& source_node) {
    const auto span = check_.duration(source_node, kDurationMin);
    if (!requires_approval_)
      return check_.report(source_node, "`expires` needs `action: require_approval`");
    if (span) rule_.emplace_back("expires", to_text(*span));
  }

  CheckContext& check_;
  const KnownTools* known_;  // nullptr: they belong to other files
  Policy policy_;
  std::vector<Member> rule_;
  bool requires_approval_ = false;
};

}  // namespace

std::vector<Policy> check_policies(CheckContext& check, const SourceNode& source_node,
                                   const KnownTools* known) {
  std::vector<Policy> policies;
  if (!check.list(source_node)) return policies;
  if (source_node->items.size() > kPoliciesMax) check.report(source_node, "at most 1,000 policies");
  for (std::size_t i = 0; i < source_node->items.size() && !check.full(); ++i) {
    policies.push_back(PolicyCheck(check, known).run(source_node.item(i)));
  }
  return policies;
}

void check_policy_agents(CheckContext& check, const SourceNode& source_node,
                         const std::vector<std::string_view>& known) {
  if (!source_node->is_list()) return;
  for (std::size_t i = 0; i < source_node->items.size(); ++i) {
    const auto list =
        source_node.item(i)->is_mapping() ? source_node.item(i).find("agents") : std::nullopt;
    if (!list || !(*list)->is_list()) continue;
    for (std::size_t n = 0; n < (*list)->items.size(); ++n) {
      const SourceNode item = list->item(n);
      if (!item->is_string()) continue;
      const std::string& name = item->scalar.as_string();
      if (std::ranges::find(known, name) != known.end()) continue;
      check.report(item, fmt::format("unknown agent {}", quote(name)),
                   check.nearest(name, known, [](std::string_view agent) { return agent; }));
    }
  }
}

std::vector<Value> rules_for(const std::vector<Policy>& policies, std::string_view agent,
                             std::string_view tool, const Value& capabilities) {
  std::vector<Value> rules;
  for (const Policy& policy : policies) {
    if (applies_to_tool(policy, tool) && applies_to_agent(policy, agent) &&
        has_capability(capabilities, policy.capability)) {
      rules.push_back(policy.rule);
    }
  }
  return rules;
}

namespace {

bool has_code_agent(const AgentsFile& file) {
  return std::ranges::any_of(file.agents, [](const auto& agent) {
    return agent.second.definition.find(field::code) != nullptr;
  });
}

// What is wrong with the arguments that the rule's condition reads, given the tools of these files
// that it applies to; "" = nothing.
std::string misspelt_argument(const Policy& policy, const std::vector<const AgentsFile*>& files) {
  const auto read = roots_of(policy.rule["when"]);
  if (!read) return {};
  std::vector<ConditionTool> condition_tools;
  for (const AgentsFile* file : files) {
    for (const auto& [name, tool] : file->tools) {
      const auto& has = tool.policy.capabilities;
      if (!applies_to_tool(policy, name)) continue;
      if (!policy.capability.empty() && std::ranges::find(has, policy.capability) == has.end()) {
        continue;
      }
      condition_tools.push_back(
          {.name = name,
           .args_schema = tool.args_schema.is_null() ? nullptr : &tool.args_schema,
           .of_server = tool.kind == "mcp"});
    }
  }
  const bool some_code =
      std::ranges::any_of(files, [](const AgentsFile* file) { return has_code_agent(*file); });
  if (applies_to_code_functions(policy, some_code)) {
    for (const std::string_view name : kCodeFunctions) condition_tools.push_back({.name = name});
  }
  const CheckedTool send = send_tool();
  add_job_tools(policy, send, condition_tools);
  const ConditionFinding finding = analyze_condition(*read, condition_tools);
  if (!finding.error.empty() && !finding.suggestion.empty()) {
    return fmt::format("{} (did you mean {}?)", finding.error, finding.suggestion);
  }
  return finding.error.empty() ? finding.note : finding.error;
}

// Of a rule that applies to something: its names that no file has, and those of no call.
void unused_names(const Policy& policy, const std::vector<const AgentsFile*>& files,
                  std::vector<Note>& unused) {
  for (std::size_t i = 0; i < policy.tools.size(); ++i) {
    if (std::string why = why_unused(policy.tools[i]); !why.empty()) {
      unused.push_back({fmt::format("{}.tools[{}]", policy.path, i), std::move(why)});
    }
  }
  const auto add_unused = [&](std::string_view key, const std::vector<std::string>& names,
                              std::string_view what, const auto& has) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (std::ranges::any_of(files,
                              [&](const AgentsFile* file) { return has(*file, names[i]); })) {
        continue;
      }
      unused.push_back({fmt::format("{}.{}[{}]", policy.path, key, i),
                        fmt::format("no file has {} named {}", what, quote(names[i]))});
    }
  };
  add_unused("tools", policy.tools, "a tool", [](const AgentsFile& file, const std::string& name) {
    if (names_code_function(name) || name == engine::kSendTool) return true;
    if (const std::string_view agent = agent_of_child_tool(name); !agent.empty()) {
      return agent == "*" || file.agents.find(agent) != file.agents.end();
    }
    return std::ranges::any_of(file.tools,
                               [&](const auto& tool) { return matches(name, tool.first); });
  });
  add_unused("agents", policy.agents, "an agent",
             [](const AgentsFile& file, const std::string& name) {
               return file.agents.find(name) != file.agents.end();
             });
}

}  // namespace

std::vector<Note> unused_policies(const std::vector<Policy>& policies,
                                  const std::vector<const AgentsFile*>& files) {
  std::vector<Note> unused;
  for (const Policy& policy : policies) {
    const auto about_a_tool = [&](const AgentsFile* file) {
      if (applies_to_code_functions(policy, has_code_agent(*file)) ||
          (policy.capability.empty() && std::ranges::any_of(policy.tools, names_job_tool))) {
        return true;
      }
      return std::ranges::any_of(file->tools, [&](const auto& entry) {
        const auto& [name, tool] = entry;
        const auto& has_capability = tool.policy.capabilities;
        return applies_to_tool(policy, name) &&
               (policy.capability.empty() ||
                std::ranges::find(has_capability, policy.capability) != has_capability.end());
      });
    };
    const auto about_an_agent = [&](const AgentsFile* file) {
      return std::ranges::any_of(
          file->agents, [&](const auto& agent) { return applies_to_agent(policy, agent.first); });
    };
    std::string missing;
    if (!std::ranges::any_of(files, about_a_tool)) {
      const bool any_name = policy.tools.empty();
      const std::string named =
          any_name ? "" : fmt::format(" named {}", quote_first_names(policy.tools));
      const std::string capability =
          policy.capability.empty()
              ? ""
              : fmt::format(" {} has the capability {}", any_name ? "that" : "and",
                            quote(policy.capability));
      missing = fmt::format("a tool{}{}", named, capability);
    } else if (!std::ranges::any_of(files, about_an_agent)) {
      missing = fmt::format("an agent named {}", quote_first_names(policy.agents));
    }
    if (missing.empty()) {
      unused_names(policy, files, unused);
      std::string misspelt = misspelt_argument(policy, files);
      if (!misspelt.empty()) unused.push_back({policy.path + ".when", std::move(misspelt)});
      continue;
    }
    unused.push_back(
        {policy.path, fmt::format("this policy applies to nothing: no file has {}", missing)});
  }
  return unused;
}

bool has_approvals(const std::vector<const AgentsFile*>& files) {
  const auto has_approval = [](const Member& tool) {
    return tool.second.find("approval") != nullptr || tool.second.find("rules") != nullptr;
  };
  return std::ranges::any_of(files, [&](const AgentsFile* file) {
    return std::ranges::any_of(file->agents, [&](const auto& agent) {
      const Value& tools = agent.second.task_graph["tools"];
      return tools.is_object() && std::ranges::any_of(tools.members(), has_approval);
    });
  });
}

std::optional<Note> unsandboxed_programs(const AgentsFile& file) {
  const auto approves_each = [&](std::string_view name) {
    return std::ranges::any_of(file.agents, [&](const auto& agent) {
      return agent.second.task_graph["tools"][name]["approval"] == Value("required");
    });
  };
  std::vector<std::string> open;
  for (const auto& [name, tool] : file.tools) {
    const Value& server = tool.definition["connection"];
    const Value& started = tool.kind == "mcp" ? server : tool.definition;
    const Value& sandbox = started["sandbox"];
    if (started.find("command") == nullptr || sandbox.find("read") != nullptr ||
        sandbox.find("write") != nullptr || (tool.kind == "command" && approves_each(name))) {
      continue;
    }
    std::string one(tool.kind == "mcp" ? tool.definition.text("server") : name);
    if (std::ranges::find(open, one) == open.end()) open.push_back(std::move(one));
  }
  if (open.empty()) return std::nullopt;
  return Note{
      "tools",
      fmt::format("the programs of {} can write the store and this file and so "
                  "bypass approvals and policies: set `sandbox: {{ read, write }}`, or run them as "
                  "another user",
                  quote_first_names(open))};
}

void check_capability_known(CheckContext& check, const SourceNode& source_node,
                            std::string_view name, const CheckedTools& tools) {
  if (check.may_be_unknown("*")) return;
  std::set<std::string, std::less<>> known;
  for (const auto& [tool, checked] : tools) {
    if (!checked.is_valid) return;
    const Value& has = checked.policy["capabilities"];
    if (!has.is_array()) continue;
    for (const Value& one : has.items()) known.insert(one.as_string());
  }
  if (known.contains(name)) return;
  check.report(
      source_node, "no tool of this file has this capability",
      check.nearest(name, known, [](const std::string& one) -> std::string_view { return one; }));
}

std::vector<std::string> check_capabilities(CheckContext& check, const SourceNode& source_node) {
  std::vector<std::string> found;
  if (!check.list(source_node)) return found;
  if (source_node->items.size() > engine::kCapabilitiesMax)
    check.report(source_node, "at most 64 capabilities");
  for (std::size_t i = 0; i < source_node->items.size(); ++i) {
    const SourceNode item = source_node.item(i);
    auto text = check.text(item);
    if (!text) continue;
    if (!is_capability(*text)) {
      check.report(item, "a capability must have 1 to 64 of the characters A-Z a-z 0-9 . _ -");
      continue;
    }
    found.push_back(*std::move(text));
  }
  std::ranges::sort(found);
  const auto twice = std::ranges::unique(found);
  found.erase(twice.begin(), twice.end());
  return found;
}

}  // namespace ae::agents
