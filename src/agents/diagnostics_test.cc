// Invalid agents files as a table of text (diagnostics.cases): every error, with position, code,
// path and suggestion.
#include <fmt/core.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "agents/test_load.h"
#include "testing/test.h"

namespace ae::agents {
namespace {

using testing::diagnostics_as_text;
using testing::load_text;
using testing::read_file;

constexpr const char* kCases = "src/agents/diagnostics.cases";

struct Case {
  std::string title, file, expected;
};

struct Cases {
  std::string head;  // before the first case
  std::vector<Case> all;
};

Cases read_cases() {
  Cases cases;
  std::istringstream in(read_file(kCases));
  bool expected = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("== ")) {
      cases.all.push_back({.title = line.substr(3), .file = {}, .expected = {}});
      expected = false;
    } else if (cases.all.empty()) {
      cases.head += line + "\n";
    } else if (line == "--") {
      expected = true;
    } else {
      (expected ? cases.all.back().expected : cases.all.back().file) += line + "\n";
    }
  }
  return cases;
}

AE_TEST("agents/all errors of an invalid file are reported with their positions") {
  const Cases cases = read_cases();
  ASSERT_GT(cases.all.size(), 20u);
  std::string updated = cases.head;
  for (const Case& c : cases.all) {
    const auto loaded = load_text(c.file);
    const std::string found = diagnostics_as_text(loaded.diagnostics);
    EXPECT_EQ(found, c.expected) << c.title;
    EXPECT_FALSE(loaded.diagnostics.empty()) << c.title;
    EXPECT_TRUE(loaded.file.agents.empty()) << c.title;
    updated += fmt::format("== {}\n{}--\n{}", c.title, c.file, found);
  }
  if (std::getenv("AE_UPDATE_CASES") != nullptr) {
    std::ofstream(testing::root_folder() + "/" + kCases, std::ios::binary) << updated;
  }
}

AE_TEST("agents/a tool that cannot run on this machine is reported at its key") {
  constexpr std::string_view kText =
      "aetheris: 1\n"
      "tools:\n"
      "  a: { command: [gone, x], effect: read }\n"
      "  b: { command: [date], cwd: nowhere }\n"
      "  c: { command: [date], env: { A: b } }\n"
      "  d: { native: echo }\n"
      "  e: { command: [fine] }\n"
      "agents: { x: { plan: [ { id: n, tool: a } ] } }\n";
  const auto usable = [](const ToolDefinition& tool) -> Status {
    if (tool.name == "a") return fail(Code::plan_invalid, "command[0]: there is no program gone");
    if (tool.name == "b") return fail(Code::plan_invalid, "cwd: /nowhere is no folder");
    if (tool.name == "c") return fail(Code::plan_invalid, "env.A: not here: at all");
    if (tool.name == "d") return fail(Code::plan_invalid, "something else");
    return {};
  };
  AgentsFile file;
  const auto diagnostics =
      load({.name = "agents.yaml", .text = kText, .env = {}, .native = {}, .usable = usable}, file);
  EXPECT_EQ(diagnostics_as_text(diagnostics),
            "3:18 plan_invalid tools.a.command[0]: there is no program gone\n"
            "4:30 plan_invalid tools.b.cwd: /nowhere is no folder\n"
            "5:30 plan_invalid tools.c.env: not here: at all\n"
            "6:6 plan_invalid tools.d: something else\n");
  EXPECT_TRUE(file.agents.empty());
}

}  // namespace
}  // namespace ae::agents
