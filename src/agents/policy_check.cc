// Policies of an agents file, or of a file of their own: which calls may be made, and about which a person is asked.
#include <algorithm>
#include <set>
#include <utility>

#include "agents/check.h"
#include "agents/condition_check.h"

namespace ae::agents {
namespace {

constexpr std::size_t kPoliciesMax = 1'000;
constexpr std::size_t kNamesMax = 256;  // of tools or agents in one rule

bool is_pattern(std::string_view name) { return name.ends_with('*'); }

bool matches(std::string_view pattern, std::string_view tool) {
  if (!is_pattern(pattern)) return pattern == tool;
  return tool.starts_with(pattern.substr(0, pattern.size() - 1));
}

bool is_about_tool(const Policy& policy, std::string_view tool) {
  return policy.tools.empty() || std::ranges::any_of(policy.tools, [&](const std::string& pattern) {
           return matches(pattern, tool);
         });
}

bool can(const Value& capabilities, std::string_view wanted) {
  return wanted.empty() ||
         (capabilities.is_array() &&
          std::ranges::find(capabilities.items(), Value(wanted)) != capabilities.items().end());
}

bool is_about_agent(const Policy& policy, std::string_view agent) {
  return policy.agents.empty() || std::ranges::find(policy.agents, agent) != policy.agents.end();
}

// "`a`, `b`", the first of them.
std::string some(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 5;
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kShown; ++i) {
    text += (i == 0 ? "" : ", ") + shown(names[i]);
  }
  return text + (names.size() > kShown ? ", …" : "");
}

class PolicyCheck {
 public:
  PolicyCheck(Check& check, const CheckedTools* known, std::vector<Note>* notes)
      : check_(check), known_(known), notes_(notes) {}

  Policy run(const Spot& spot) {
    const std::size_t before = check_.count();
    if (!check_.mapping(spot, {"tools", "agents", "capability", "when", "label", "action", "reason",
                               "expires"})) {
      return {};
    }
    action(spot);
    if (const auto list = spot.find("tools")) tools(*list);
    if (const auto list = spot.find("agents")) agents(*list);
    if (const auto name = spot.find("capability")) capability(*name);
    if (const auto when = spot.find("when")) this->when(*when);
    if (const auto one = spot.find("label")) label(*one);
    if (const auto text = spot.find("reason")) reason(*text);
    if (const auto span = spot.find("expires")) expires(*span);
    if (const auto when = spot.find("when"); when && check_.count() == before) arguments(*when);
    policy_.rule = Value::object(std::move(rule_));
    policy_.path = spot.path;
    return std::move(policy_);
  }

 private:
  void action(const Spot& spot) {
    constexpr std::string_view kActions[] = {"allow", "require_approval", "deny"};
    const auto found = check_.required(spot, "action", "allow, require_approval or deny");
    const auto word =
        found ? check_.word(*found, {"allow", "require_approval", "deny"}) : std::nullopt;
    if (!word) return;
    asks_ = *word == 1;
    rule_.emplace_back("action", kActions[*word]);
  }

  // A list of names, each once.
  template <class Take>
  void names(const Spot& list, const Take& take) {
    if (!check_.list(list)) return;
    if (list->items.empty()) check_.fault(list, "empty list; remove it or add a name");
    if (list->items.size() > kNamesMax) check_.fault(list, "at most 256 names");
    for (std::size_t i = 0; i < list->items.size() && !check_.full(); ++i) {
      const Spot item = list.item(i);
      if (const auto name = check_.text(item)) take(item, *name);
    }
  }

  void tools(const Spot& list) {
    names(list, [this](const Spot& item, const std::string& name) {
      policy_.tools.push_back(name);
      const std::string_view prefix =
          is_pattern(name) ? std::string_view(name).substr(0, name.size() - 1) : name;
      const bool whole = is_pattern(name) && !prefix.empty() && !prefix.ends_with('.');
      if (prefix.empty() != (name == "*") || prefix.find('*') != prefix.npos || whole) {
        check_.fault(item, "a pattern must be NAME.* (all tools of a server) or *");
        return;
      }
      if (known_ == nullptr || name == "*") return;
      const bool any =
          std::ranges::any_of(*known_, [&](const auto& tool) { return matches(name, tool.first); });
      if (any || check_.clouded(name)) return;
      check_.fault(
          item, is_pattern(name) ? "no tool of this file matches" : check_.no_tool(name),
          is_pattern(name) ? std::string() : check_.nearest(name, *known_, [](const auto& tool) {
            return std::string_view(tool.first);
          }));
    });
  }

  void agents(const Spot& list) {
    names(list, [this](const Spot& item, const std::string& name) {
      if (check_.name("an agent", name, item.at(), item.path)) policy_.agents.push_back(name);
    });
  }

  void capability(const Spot& spot) {
    const auto name = check_.text(spot);
    if (!name) return;
    if (!is_capability(*name)) {
      return check_.fault(spot,
                          "a capability must have 1 to 64 of the characters A-Z a-z 0-9 . _ -");
    }
    policy_.capability = *name;
    if (known_ == nullptr) return;
    check_capability_known(check_, spot, *name, *known_);
  }

  void when(const Spot& spot) {
    const std::size_t before = check_.count();
    if (reads_only(check_, spot, {"args", "job"}) && !is_one_expression(*spot.value)) {
      check_.fault(spot, "`when` must be a single ${ … } over .args and .job");
    }
    if (check_.count() == before) rule_.emplace_back("when", spot->scalar);
  }

  // Does a tool that the rule is about take what its condition looks up?
  void arguments(const Spot& when) {
    if (known_ == nullptr) return;
    std::vector<Judged> judged;
    for (const auto& [name, tool] : *known_) {
      if (!is_about_tool(policy_, name)) continue;
      if (!tool.good || check_.clouded("*")) return;  // what they take is not known
      if (!can(tool.policy["capabilities"], policy_.capability)) continue;
      judged.push_back({.name = name,
                        .args_schema = tool.policy.find("args_schema"),
                        .of_server = tool.tool.kind == "mcp"});
    }
    check_condition(check_, when, judged, notes_);
  }

  void label(const Spot& spot) {
    const auto text = check_.text(spot);
    if (!text) return;
    const std::size_t colon = text->find(':');
    const std::size_t behind = colon == text->npos ? 0 : text->size() - colon - 1;
    if (colon == 0 || behind == 0 || colon > engine::kPolicyLabelMax ||
        behind > engine::kPolicyLabelMax) {
      return check_.fault(spot, "a label must be NAME:VALUE, each of 1 to 256 bytes");
    }
    rule_.emplace_back("label", *text);
  }

  void reason(const Spot& spot) {
    const auto text = check_.text(spot);
    if (!text) return;
    if (text->empty() || text->size() > engine::kPolicyReasonMax) {
      return check_.fault(spot, "a reason must have 1 to 1024 bytes");
    }
    if (has_expression(*text)) return check_.fault(spot, "a reason cannot contain an expression");
    rule_.emplace_back("reason", *text);
  }

  void expires(const Spot& spot) {
    const auto span = check_.duration(spot, kDurationLeast);
    if (!asks_) return check_.fault(spot, "`expires` needs `action: require_approval`");
    if (span) rule_.emplace_back("expires", to_text(*span));
  }

  Check& check_;
  const CheckedTools* known_;
  std::vector<Note>* notes_;
  Policy policy_;
  std::vector<Member> rule_;
  bool asks_ = false;
};

}  // namespace

std::vector<Policy> check_policies(Check& check, const Spot& spot, const CheckedTools* known,
                                   std::vector<Note>* notes) {
  std::vector<Policy> policies;
  if (!check.list(spot)) return policies;
  if (spot->items.size() > kPoliciesMax) check.fault(spot, "at most 1,000 policies");
  for (std::size_t i = 0; i < spot->items.size() && !check.full(); ++i) {
    policies.push_back(PolicyCheck(check, known, notes).run(spot.item(i)));
  }
  return policies;
}

void check_policy_agents(Check& check, const Spot& spot,
                         const std::vector<std::string_view>& known) {
  if (!spot->is_list()) return;
  for (std::size_t i = 0; i < spot->items.size(); ++i) {
    const auto list = spot.item(i)->is_mapping() ? spot.item(i).find("agents") : std::nullopt;
    if (!list || !(*list)->is_list()) continue;
    for (std::size_t n = 0; n < (*list)->items.size(); ++n) {
      const Spot item = list->item(n);
      if (!item->is_string()) continue;
      const std::string& name = item->scalar.as_string();
      if (std::ranges::find(known, name) != known.end()) continue;
      check.fault(item, "unknown agent " + shown(name),
                  check.nearest(name, known, [](std::string_view agent) { return agent; }));
    }
  }
}

std::vector<Value> rules_for(const std::vector<Policy>& policies, std::string_view agent,
                             std::string_view tool, const Value& capabilities) {
  std::vector<Value> rules;
  for (const Policy& policy : policies) {
    if (is_about_tool(policy, tool) && is_about_agent(policy, agent) &&
        can(capabilities, policy.capability)) {
      rules.push_back(policy.rule);
    }
  }
  return rules;
}

namespace {

// Of the tools of these files that the rule is about, does one take what its condition looks up? "" = it does, or may.
std::string misspelt_argument(const Policy& policy, const std::vector<const AgentsFile*>& files) {
  const auto read = roots_of(policy.rule["when"]);
  if (!read) return {};
  std::vector<Judged> judged;
  for (const AgentsFile* file : files) {
    for (const auto& [name, tool] : file->tools) {
      const auto& has = tool.policy.capabilities;
      if (!is_about_tool(policy, name)) continue;
      if (!policy.capability.empty() && std::ranges::find(has, policy.capability) == has.end()) {
        continue;
      }
      judged.push_back({.name = name,
                        .args_schema = tool.args_schema.is_null() ? nullptr : &tool.args_schema,
                        .of_server = tool.kind == "mcp"});
    }
  }
  const ConditionWords words = judge_condition(*read, judged);
  if (!words.fault.empty() && !words.suggestion.empty()) {
    return words.fault + " (did you mean " + words.suggestion + "?)";
  }
  return words.fault.empty() ? words.note : words.fault;
}

// Of a rule that something is under: the names of its that nothing has.
void idle_names(const Policy& policy, const std::vector<const AgentsFile*>& files,
                std::vector<Note>& idle) {
  const auto tell = [&](std::string_view key, const std::vector<std::string>& names,
                        std::string_view what, const auto& has) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (std::ranges::any_of(files,
                              [&](const AgentsFile* file) { return has(*file, names[i]); })) {
        continue;
      }
      idle.push_back(
          {policy.path + "." + std::string(key) + "[" + std::to_string(i) + "]",
           std::string("no file has ").append(what).append(" named ") + shown(names[i])});
    }
  };
  tell("tools", policy.tools, "a tool", [](const AgentsFile& file, const std::string& name) {
    return std::ranges::any_of(file.tools,
                               [&](const auto& tool) { return matches(name, tool.first); });
  });
  tell("agents", policy.agents, "an agent", [](const AgentsFile& file, const std::string& name) {
    return file.agents.find(name) != file.agents.end();
  });
}

}  // namespace

std::vector<Note> idle_policies(const std::vector<Policy>& policies,
                                const std::vector<const AgentsFile*>& files) {
  std::vector<Note> idle;
  for (const Policy& policy : policies) {
    const auto about_a_tool = [&](const AgentsFile* file) {
      return std::ranges::any_of(file->tools, [&](const auto& entry) {
        const auto& [name, tool] = entry;
        const auto& can = tool.policy.capabilities;
        return is_about_tool(policy, name) &&
               (policy.capability.empty() ||
                std::ranges::find(can, policy.capability) != can.end());
      });
    };
    const auto about_an_agent = [&](const AgentsFile* file) {
      return std::ranges::any_of(
          file->agents, [&](const auto& agent) { return is_about_agent(policy, agent.first); });
    };
    std::string names;
    if (!std::ranges::any_of(files, about_a_tool)) {
      names = policy.tools.empty() ? "" : " named " + some(policy.tools);
      if (!policy.capability.empty()) {
        names += (names.empty() ? " that has " : " and has ") + std::string("the capability ") +
                 shown(policy.capability);
      }
      names.insert(0, " tool");
    } else if (!std::ranges::any_of(files, about_an_agent)) {
      names = "n agent named " + some(policy.agents);
    }
    if (names.empty()) {
      idle_names(policy, files, idle);
      std::string misspelt = misspelt_argument(policy, files);
      if (!misspelt.empty()) idle.push_back({policy.path + ".when", std::move(misspelt)});
      continue;
    }
    idle.push_back({policy.path, "this policy applies to nothing: no file has a" + names});
  }
  return idle;
}

bool has_approvals(const std::vector<const AgentsFile*>& files) {
  const auto asks = [](const Member& tool) {
    return tool.second.find("approval") != nullptr || tool.second.find("rules") != nullptr;
  };
  return std::ranges::any_of(files, [&](const AgentsFile* file) {
    return std::ranges::any_of(file->agents, [&](const auto& agent) {
      const Value& tools = agent.second.task_graph["tools"];
      return tools.is_object() && std::ranges::any_of(tools.members(), asks);
    });
  });
}

std::optional<Note> open_programs(const AgentsFile& file) {
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
  return Note{"tools",
              "the programs of " + some(open) +
                  " can write the store and this file and so bypass approvals and policies: "
                  "set `sandbox: { read, write }`, or run them as another user"};
}

void check_capability_known(Check& check, const Spot& spot, std::string_view name,
                            const CheckedTools& tools) {
  if (check.clouded("*")) return;
  std::set<std::string, std::less<>> known;
  for (const auto& [tool, checked] : tools) {
    if (!checked.good) return;
    const Value& has = checked.policy["capabilities"];
    if (!has.is_array()) continue;
    for (const Value& one : has.items()) known.insert(one.as_string());
  }
  if (known.contains(name)) return;
  check.fault(
      spot, "no tool of this file has this capability",
      check.nearest(name, known, [](const std::string& one) -> std::string_view { return one; }));
}

std::vector<std::string> check_capabilities(Check& check, const Spot& spot) {
  std::vector<std::string> found;
  if (!check.list(spot)) return found;
  if (spot->items.size() > engine::kCapabilitiesMax) check.fault(spot, "at most 64 capabilities");
  for (std::size_t i = 0; i < spot->items.size(); ++i) {
    const Spot item = spot.item(i);
    auto text = check.text(item);
    if (!text) continue;
    if (!is_capability(*text)) {
      check.fault(item, "a capability must have 1 to 64 of the characters A-Z a-z 0-9 . _ -");
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
