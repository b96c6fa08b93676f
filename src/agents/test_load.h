// Loads an agents file in a test, and formats its diagnostics.
#pragma once

#include <fmt/core.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "agents/agents_file.h"
#include "json/json.h"

namespace ae::agents::testing {

struct LoadedFile {
  AgentsFile file;
  std::vector<Diagnostic> diagnostics;
};

// The environment is SHOP=http://shop:9000, SHOP_URL (the same), EMPTY= and BRACE=a${b}$; the
// native functions are echo and fail.
inline LoadedFile load_text(std::string_view text, std::string_view name = "agents.yaml") {
  const auto env = [](std::string_view variable) -> std::optional<std::string> {
    if (variable == "SHOP" || variable == "SHOP_URL") return "http://shop:9000";
    if (variable == "EMPTY") return "";
    if (variable == "BRACE") return "a${b}$";
    return std::nullopt;
  };
  const auto native = [](std::string_view function) {
    return function == "echo" || function == "fail";
  };
  LoadedFile loaded;
  // Every MCP server has these tools.
  const auto server = [](std::string_view, const Value&) -> Result<Value> {
    return parse_json(R"([
      {"name":"find","description":"Finds","digest":"d1","annotations":{"readOnlyHint":true},
       "inputSchema":{"$schema":"http://json-schema.org/draft-07/schema#","type":"object",
                      "properties":{"q":{"type":"string"}},"required":["q"]},
       "outputSchema":{"type":"object","properties":{"n":{"type":"number"}}}},
      {"name":"odd","digest":"d2","inputSchema":{"type":"object","if":{"$dynamicRef":"#x"}}},
      {"name":"put","digest":"d3","annotations":{"idempotentHint":true},"inputSchema":{"type":"object"}}])");
  };
  loaded.diagnostics =
      load({.name = name, .text = text, .env = env, .native = native, .server_tools = server},
           loaded.file);
  return loaded;
}

// One per line: "3:5 plan_invalid tools.x.timeout: message (did you mean y?)"
inline std::string diagnostics_as_text(const std::vector<Diagnostic>& diagnostics) {
  std::string out;
  for (const Diagnostic& diagnostic : diagnostics) {
    out += fmt::format("{}:{} {} {}: {}", diagnostic.line, diagnostic.column,
                       code_name(diagnostic.code), diagnostic.path, diagnostic.message);
    if (!diagnostic.suggestion.empty())
      out += fmt::format(" (did you mean {}?)", diagnostic.suggestion);
    out += "\n";
  }
  return out;
}

inline std::string root_folder() {
  const char* root = std::getenv("AETHERIS_ROOT");
  return root != nullptr ? root : ".";
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(root_folder() + "/" + path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// The `yaml` blocks of docs/agents-file.md and docs/models.md: each is a complete file.
inline std::vector<std::string> files_of_the_documentation() {
  std::vector<std::string> files;
  for (const char* name : {"docs/agents-file.md", "docs/models.md"}) {
    const std::string page = read_file(name);
    for (std::size_t at = page.find("```yaml\n"); at != page.npos;
         at = page.find("```yaml\n", at)) {
      at += 8;
      const std::size_t end = page.find("```", at);
      files.push_back(page.substr(at, end - at));
      at = end;
    }
  }
  return files;
}

}  // namespace ae::agents::testing
