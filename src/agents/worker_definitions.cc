#include "agents/worker_definitions.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "json/json.h"
#include "log/field_names.h"

namespace ae::agents {
namespace {

constexpr char kUses[] = "uses";
constexpr std::string_view kOfCode[] = {field::version, "language", "parallel", "on_exception"};

// `own`: the names of the tools of its worker, which it may call, too.
Value agent_entry(const Value& definition, const std::vector<Value>& own) {
  std::vector<Member> entry, code;
  std::vector<Value> uses;
  if (const Value& stated = definition[kUses]; stated.is_array())
    uses.assign(stated.items().begin(), stated.items().end());
  for (const Value& name : own) {
    if (std::ranges::find(uses, name) == uses.end()) uses.push_back(name);
  }
  for (const auto& [name, value] : definition.members()) {
    if (name == "name" || name == kUses) continue;
    const bool is_of_code = std::ranges::find(kOfCode, name) != std::end(kOfCode);
    (is_of_code ? code : entry).emplace_back(name, value);
  }
  if (!uses.empty()) code.emplace_back(kUses, Value::array(std::move(uses)));
  entry.emplace_back(field::code, Value::object(std::move(code)));
  return Value::object(std::move(entry));
}

Value tool_entry(const Value& definition) {
  std::vector<Member> entry;
  for (const auto& [name, value] : definition.members()) {
    entry.emplace_back(name == "name" ? "worker" : name, value);
  }
  return Value::object(std::move(entry));
}

Value object_of(const std::map<std::string, Value, std::less<>>& entries) {
  std::vector<Member> members;
  members.reserve(entries.size());
  for (const auto& [name, entry] : entries) members.emplace_back(name, entry);
  return Value::object(std::move(members));
}

}  // namespace

std::string WorkerDefinitions::code_of(const Entries& agents, const Entries& tools) {
  if (agents.empty() && tools.empty()) return {};
  return canonical(Value::object({{"agents", object_of(agents)}, {"tools", object_of(tools)}}));
}

std::vector<Diagnostic> WorkerDefinitions::add(std::span<const Value> agents,
                                               std::span<const Value> tools,
                                               const IsInFile& is_in_file, const Load& load) {
  std::vector<Diagnostic> faults;
  Entries new_agents = agents_, new_tools = tools_;
  std::vector<Value> own;
  for (const Value& tool : tools) own.push_back(tool["name"]);
  for (const Value& definition : agents) {
    const std::string name(definition.text("name"));
    if (is_in_file(name)) continue;
    Value entry = agent_entry(definition, own);
    const auto known = agents_.find(name);
    const std::string_view version = definition.text(field::version);
    const bool is_same_version = known != agents_.end() && !version.empty() &&
                                 known->second[field::code].text(field::version) == version;
    if (is_same_version && known->second != entry) {
      faults.push_back(
          {.code = Code::already_exists,
           .message = fmt::format("version {} of this agent has another definition here; give the "
                                  "changed code another version",
                                  version),
           .path = fmt::format("agents.{}", name)});
    }
    new_agents.insert_or_assign(name, std::move(entry));
  }
  for (const Value& definition : tools) {
    const std::string name(definition.text("name"));
    if (!is_in_file(name)) new_tools.insert_or_assign(name, tool_entry(definition));
  }
  if (!faults.empty() || (new_agents == agents_ && new_tools == tools_)) return faults;
  std::string code = code_of(new_agents, new_tools);
  faults = load(code);
  if (!faults.empty()) return faults;
  agents_ = std::move(new_agents);
  tools_ = std::move(new_tools);
  code_ = std::move(code);
  return {};
}

}  // namespace ae::agents
