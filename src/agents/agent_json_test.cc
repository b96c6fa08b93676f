// load_agent: a single agent, given as JSON, that uses the tools and models of a file.
#include <string>

#include "agents/agents_file.h"
#include "agents/diagnostics.h"
#include "agents/test_load.h"
#include "json/json.h"
#include "testing/test.h"

namespace ae::agents {
namespace {

constexpr std::string_view kFile = R"(aetheris: 1
tools:
  echo: { native: echo, effect: read }
  pay: { native: echo, effect: idempotent, approval: required, args_schema: { type: object, required: [n] } }
models:
  main: { provider: openai, base_url: "http://127.0.0.1:1", model: m }
agents:
  one:
    labels: { team: money }
    plan: [ { id: a, tool: pay, args: { n: "${ .input.n }" } }, { id: b, llm: { model: main, prompt: hello } } ]
    output: "${ .steps.a }"
)";

Source source(std::string_view text = kFile) {
  return {.name = "agents.yaml",
          .text = text,
          .env = [](std::string_view) { return std::nullopt; },
          .native = [](std::string_view) { return true; },
          .usable = {}};
}

std::string errors_of(std::string_view name, std::string_view json, std::string_view file = kFile) {
  Agent agent{.name = "untouched"};
  const std::string text = diagnostics_text(load_agent(source(file), name, json, agent));
  EXPECT_EQ(text.empty(), agent.name != "untouched") << text;
  return text;
}

AE_TEST("agents/an agent given as JSON compiles to the same plan as in its file") {
  AgentsFile file;
  ASSERT_TRUE(load(source(), file).empty());
  const Agent& from_file = file.agents.at("one");
  EXPECT_EQ(from_file.definition["labels"].text("team"), "money");
  Agent from_json;
  const auto diagnostics = load_agent(source(), "one", canonical(from_file.definition), from_json);
  ASSERT_TRUE(diagnostics.empty()) << diagnostics_text(diagnostics);
  EXPECT_EQ(canonical(from_json.task_graph), canonical(from_file.task_graph))
      << "with the rules of its tools";
  EXPECT_EQ(from_json.task_graph["tools"]["pay"].text("approval"), "required");
  EXPECT_EQ(from_json.definition, from_file.definition);
  EXPECT_EQ(from_json.labels, from_file.labels);
  EXPECT_EQ(from_json.name, "one");
}

AE_TEST("agents/all errors of an agent given as JSON are reported with path and position") {
  const std::string text = errors_of("two", R"({"plan": [
  {"id": "a", "tool": "ech"},
  {"id": "b", "tool": "pay", "args": {}},
  {"id": "c", "lm": 1}], "outputs": 1})");
  EXPECT_NE(text.find(":2:23: two.plan[0].tool: unknown tool `ech` (did you mean echo?)"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("two.plan[1]"), std::string::npos) << text;
  EXPECT_NE(text.find("two.plan[2]"), std::string::npos) << text;
  EXPECT_NE(text.find("two.outputs"), std::string::npos) << text;
}

AE_TEST("agents/an invalid agent given as JSON is rejected") {
  const std::string plan = R"({"plan": [{"id": "a", "tool": "echo"}]})";
  EXPECT_EQ(errors_of("two", plan), "");
  for (const char* bad : {"", "{", "7", "[]", "\"x\"", "null", "{}", R"({"plan": []})",
                          R"({"plan": 7})", R"({"plan": [], "plan": []})", "{} {}", "\xff",
                          R"({"tools": {"evil": {"command": ["sh"]}}})", R"({"code": {}})"}) {
    EXPECT_NE(errors_of("two", bad), "") << bad;
  }
  for (const char* name : {"", "a b", "7", "a/b", "ü"})
    EXPECT_NE(errors_of(name, plan), "") << name;
}

AE_TEST("agents/load_agent reports the errors of an invalid agents file and returns no agent") {
  const std::string text = errors_of("two", R"({"plan": [{"id": "a", "tool": "echo"}]})",
                                     "aetheris: 1\ntools:\n  echo: { nativ: echo }\n");
  EXPECT_NE(text.find("agents.yaml:3:"), std::string::npos) << text;
}

}  // namespace
}  // namespace ae::agents
