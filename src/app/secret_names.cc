#include "app/secret_names.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "llm/provider.h"
#include "tools/secrets.h"

namespace ae::app {
namespace {

// A source that contains every secret: records which ones are used.
struct AnySecretSource final : tools::SecretSource {
  Result<tools::Secret> get(std::string_view) override { return tools::Secret("any"); }
};

void add_secret_names(const Value& texts, std::vector<std::string>& names) {
  if (!texts.is_object()) return;
  AnySecretSource anything;
  std::vector<tools::UsedSecret> used;
  for (const auto& [key, text] : texts.members()) {
    if (!text.is_string()) continue;
    [[maybe_unused]] const auto replaced = tools::replace_secrets(text.as_string(), anything, used);
  }
  for (tools::UsedSecret& secret : used) names.push_back(std::move(secret.name));
}

// models.NAME or tools.NAME; for a tool of an MCP server the name of the server.
std::string settings_path_of(const agents::ToolDefinition& tool) {
  if (llm::is_provider(tool.kind)) return "models." + tool.name.substr(tool.name.find(':') + 1);
  return "tools." + (tool.kind == "mcp" ? std::string(tool.definition.text("server")) : tool.name);
}

}  // namespace

std::string secrets_file_of(const StoreUrl& store) {
  const char* named = std::getenv("AETHERIS_SECRETS_FILE");
  if (named != nullptr && *named != '\0') return named;
  return store.kind == StoreUrl::Kind::sqlite ? store.folder() + "/secrets" : std::string();
}

std::vector<std::string> secret_names_of(const agents::ToolDefinition& tool) {
  std::vector<std::string> names;
  for (const char* key : {"env", "headers"}) {
    add_secret_names(tool.definition[key], names);
    add_secret_names(tool.definition["connection"][key], names);
  }
  if (llm::is_provider(tool.kind)) add_secret_names(tool.definition, names);
  add_secret_names(tool.verify["headers"], names);
  std::ranges::sort(names);
  const auto twice = std::ranges::unique(names);
  names.erase(twice.begin(), twice.end());
  return names;
}

std::vector<MissingSecret> missing_secrets(const agents::AgentsFile& file, const StoreUrl& store,
                                           const agents::Agent* agent) {
  tools::EnvironmentSecrets secrets(secrets_file_of(store));
  std::vector<MissingSecret> missing;
  std::set<std::string> seen;
  for (const auto* offered : {&file.tools, &file.models}) {
    for (const auto& [name, tool] : *offered) {
      if (agent != nullptr && agent->task_graph["tools"].find(name) == nullptr) continue;
      for (const std::string& secret : secret_names_of(tool)) {
        if (!seen.insert(secret).second) continue;
        if (auto found = secrets.get(secret); !found) {
          missing.push_back({settings_path_of(tool), secret, std::move(found).error()});
        }
      }
    }
  }
  return missing;
}

Status has_secrets(const agents::AgentsFile& file, const StoreUrl& store,
                   const agents::Agent& agent) {
  const auto missing = missing_secrets(file, store, &agent);
  if (missing.empty()) return {};
  std::string others = missing.size() > 1 ? "; and there are no secrets" : "";
  for (std::size_t i = 1; i < missing.size(); ++i)
    others += (i == 1 ? " " : ", ") + missing[i].name;
  const MissingSecret& first = missing.front();
  return fail(first.why.code,
              fmt::format("{}: {}{}. Nothing was started", first.tool, first.why.message, others));
}

}  // namespace ae::app
