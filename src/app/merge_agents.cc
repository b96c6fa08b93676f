#include "app/merge_agents.h"

#include <fmt/core.h>

#include <map>

#include "json/value.h"

namespace ae::app {
namespace {

struct Location {
  std::string path, folder;
};

std::string location_text(const Location& location, std::size_t line) {
  return fmt::format("{}:{}", location.path, line);
}

// Programs are searched, and verifiers run, in the folder of their file.
bool depends_on_folder(const agents::ToolDefinition& tool) {
  return tool.kind == "command" || tool.definition["connection"].find("command") != nullptr ||
         !tool.verify.is_null();
}

bool is_same_definition(const agents::ToolDefinition& one, const agents::ToolDefinition& other) {
  return one.kind == other.kind && one.definition == other.definition &&
         one.verify == other.verify && one.policy.version == other.policy.version;
}

bool is_same_definition(const agents::Agent& one, const agents::Agent& other) {
  return one.task_graph == other.task_graph && one.input_schema == other.input_schema &&
         one.labels == other.labels && one.required_capabilities == other.required_capabilities &&
         one.queue == other.queue && one.execution_version == other.execution_version;
}

std::unexpected<Error> conflict_error(const std::string& what, const std::string& first,
                                      const std::string& second) {
  return fail(Code::usage,
              "{} has two different definitions: at {} and at {}; names are unique in "
              "a process: rename one, or serve the files from two processes",
              what, first, second);
}

using Locations = std::map<std::string, Location, std::less<>>;

Status add_tools(std::map<std::string, agents::ToolDefinition, std::less<>>& into,
                 Locations& places,
                 std::map<std::string, agents::ToolDefinition, std::less<>>& from,
                 const Location& location, const std::string& what) {
  for (auto& [name, tool] : from) {
    const auto known = into.find(name);
    if (known == into.end()) {
      into.emplace(name, std::move(tool));
      places.emplace(name, location);
      continue;
    }
    const Location& other = places.at(name);
    const bool elsewhere = depends_on_folder(tool) && other.folder != location.folder;
    if (elsewhere || !is_same_definition(known->second, tool)) {
      return conflict_error(what + name, location_text(other, known->second.line),
                            location_text(location, tool.line));
    }
  }
  return {};
}

}  // namespace

std::vector<std::string> agents_warnings(
    const std::vector<std::pair<std::string, LoadedAgents>>& files, const std::string& policies) {
  std::vector<std::string> warnings;
  if (files.empty()) return warnings;
  std::vector<const agents::AgentsFile*> all;
  all.reserve(files.size());
  for (const auto& [path, loaded] : files) all.push_back(&loaded.file);
  for (const auto& [path, loaded] : files) {
    const auto open = agents::unsandboxed_programs(loaded.file);
    if (!open || !agents::has_approvals(all)) continue;
    warnings.push_back(fmt::format("{}: {}: {}", path, open->path, open->message));
  }
  for (const agents::Note& idle : agents::unused_policies(files.front().second.policies, all)) {
    warnings.push_back(fmt::format("{}: {}: {}", policies, idle.path, idle.message));
  }
  return warnings;
}

Result<LoadedAgents> merge_agents(std::vector<std::pair<std::string, LoadedAgents>> files) {
  LoadedAgents all;
  all.folder = files.front().second.folder;
  all.path = files.front().second.path;
  all.text = files.front().second.text;
  for (const auto& [path, loaded] : files) all.read.insert(loaded.read.begin(), loaded.read.end());
  all.server_tools = files.front().second.server_tools;
  all.policies = files.front().second.policies;
  for (std::size_t i = 1; i < files.size(); ++i) {
    LoadedAgents& file = all.more.emplace_back();
    file.folder = files[i].second.folder;
    file.path = files[i].second.path;
    file.text = files[i].second.text;
    file.server_tools = files[i].second.server_tools;
    file.policies = files[i].second.policies;
  }
  Locations tools, agents;
  for (auto& [path, loaded] : files) {
    const Location location{path, loaded.folder};
    AE_TRY(add_tools(all.file.tools, tools, loaded.file.tools, location, "the tool "));
    AE_TRY(add_tools(all.file.models, tools, loaded.file.models, location, "the "));
    for (auto& [name, agent] : loaded.file.agents) {
      const auto known = all.file.agents.find(name);
      if (known == all.file.agents.end()) {
        agents.emplace(name, location);
        all.file.agents.emplace(name, std::move(agent));
      } else if (!is_same_definition(known->second, agent)) {
        return conflict_error(fmt::format("the agent {}", name),
                              location_text(agents.at(name), known->second.line),
                              location_text(location, agent.line));
      }
    }
  }
  for (const auto& [name, location] : tools) {
    if (location.folder != all.folder) all.folders.emplace(name, location.folder);
  }
  return all;
}

}  // namespace ae::app
