#include "agents/worker_definitions.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
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

// The first member that differs, of an agent also inside of `code`; "": none does.
std::string differing_member(const Value& one, const Value& other) {
  for (const auto& [name, value] : one.members()) {
    const Value* const there = other.find(name);
    if (there != nullptr && *there == value) continue;
    const bool is_inside = name == field::code && there != nullptr && there->is_object();
    return is_inside ? fmt::format("code.{}", differing_member(value, *there)) : name;
  }
  for (const auto& [name, value] : other.members()) {
    if (one.find(name) == nullptr) return name;
  }
  return {};
}

}  // namespace

struct WorkerDefinitions::Adding {
  const WorkerOffer& offer;
  const Context& context;
  Known known;  // afterwards
  std::set<std::string> agents = {};
  bool is_newest = true;  // no agent of this worker has an older version than the one in the file
  bool has_changed = false;
  std::vector<Diagnostic> faults = {};

  void report(Code code, std::string path, std::string message) {
    faults.push_back({.code = code, .message = std::move(message), .path = std::move(path)});
  }
};

std::string WorkerDefinitions::code_of(const Known& known) {
  if (known.agents.empty() && known.tools.empty()) return {};
  std::vector<Member> agents, tools;
  for (const auto& [name, agent] : known.agents) {
    agents.emplace_back(name, agent.versions.back().second);
  }
  for (const auto& [name, tool] : known.tools) tools.emplace_back(name, tool.entry);
  return canonical(Value::object(
      {{"agents", Value::object(std::move(agents))}, {"tools", Value::object(std::move(tools))}}));
}

// A version that was offered before is not the newest again.
void WorkerDefinitions::add_agent(Adding& adding, const Value& definition, Value entry) {
  const std::string name(definition.text("name"));
  const std::string version(definition.text(field::version));
  const std::string path = fmt::format("agents.{}", name);
  Agent& agent = adding.known.agents[name];
  const auto known = std::ranges::find(agent.versions, version, &Entry::first);
  if (known != agent.versions.end()) {
    if (version.empty() && known->second != entry) {  // code without a version is replaced
      known->second = std::move(entry);
      adding.has_changed = true;
    } else if (known->second != entry) {
      adding.report(Code::already_exists, path,
                    fmt::format("version {} of this agent has another definition here (`{}` "
                                "differs); give the changed code another version",
                                version, differing_member(known->second, entry)));
    }
    adding.is_newest = adding.is_newest && std::next(known) == agent.versions.end();
    return;
  }
  if (agent.versions.size() >= kVersionsMax) {
    return adding.report(Code::input_invalid, path,
                         fmt::format("this server knows {} versions of this agent, the maximum; "
                                     "restart it",
                                     kVersionsMax));
  }
  const bool is_older = !agent.versions.empty() && adding.context.is_superseded(name, version);
  adding.is_newest = adding.is_newest && !is_older;
  adding.has_changed = true;
  agent.versions.emplace(is_older ? agent.versions.begin() : agent.versions.end(), version,
                         std::move(entry));
}

// Another definition replaces a tool if it comes from a newer version of the same code: with the same
// key, and with an agent of the worker that offered it before.
void WorkerDefinitions::add_tool(Adding& adding, const Value& definition) {
  const std::string name(definition.text("name"));
  Tool tool{
      .entry = tool_entry(definition), .principal = adding.offer.principal, .with = adding.agents};
  const auto known = adding.known.tools.find(name);
  if (known == adding.known.tools.end()) {
    adding.known.tools.emplace(name, std::move(tool));
    adding.has_changed = true;
    return;
  }
  if (known->second.entry == tool.entry) {
    known->second.with.insert(tool.with.begin(), tool.with.end());
    return;
  }
  if (!adding.is_newest) return;  // that of the newer version holds
  const bool is_same_code = known->second.principal == tool.principal &&
                            ((known->second.with.empty() && tool.with.empty()) ||
                             std::ranges::any_of(tool.with, [&](const std::string& agent) {
                               return known->second.with.contains(agent);
                             }));
  if (!is_same_code) {
    return adding.report(
        Code::already_exists, fmt::format("tools.{}", name),
        fmt::format(
            "another worker offers this tool with another `{}`; use the same definition, or "
            "another name",
            differing_member(known->second.entry, tool.entry)));
  }
  known->second = std::move(tool);
  adding.has_changed = true;
}

std::vector<Diagnostic> WorkerDefinitions::add(const WorkerOffer& offer, const Context& context) {
  Adding adding{.offer = offer, .context = context, .known = known_};
  std::vector<Value> own;
  for (const Value& tool : offer.tools) own.push_back(tool["name"]);
  for (const Value& definition : offer.agents) {
    const std::string name(definition.text("name"));
    adding.agents.insert(name);
    if (!context.is_in_file(name)) add_agent(adding, definition, agent_entry(definition, own));
  }
  for (const Value& definition : offer.tools) {
    if (!context.is_in_file(definition.text("name"))) add_tool(adding, definition);
  }
  if (adding.known.agents.size() > kAgentsMax || adding.known.tools.size() > kToolsMax) {
    adding.report(
        Code::input_invalid, "",
        fmt::format("workers of this server have offered {} agents and {} tools; the "
                    "maximum is {} and {}: restart the server to forget old ones",
                    adding.known.agents.size(), adding.known.tools.size(), kAgentsMax, kToolsMax));
  }
  if (!adding.faults.empty() || !adding.has_changed) return std::move(adding.faults);
  std::string code = code_of(adding.known);
  if (code != code_) {
    if (auto faults = context.load(code); !faults.empty()) return faults;
  }
  known_ = std::move(adding.known);
  code_ = std::move(code);
  return {};
}

}  // namespace ae::agents
