// The entry of an MCP server is expanded into tools. test_load.h defines the server: find (reads),
// odd, put (idempotent).
#include <fmt/core.h>

#include "agents/source_tree.h"
#include "agents/test_load.h"
#include "json/json.h"
#include "testing/test.h"

namespace ae::agents {
namespace {

using engine::EffectClass;
using testing::diagnostics_as_text;
using testing::load_text;

constexpr std::string_view kAgent =
    "agents: { a: { plan: [ { id: x, tool: s.find, args: { q: y } }, { id: y, tool: s.put } ] } "
    "}\n";

testing::LoadedFile server(const std::string& more) {
  return load_text("aetheris: 1\ntools: { s: { mcp: { command: [npx, -y] }" + more + " } }\n" +
                   std::string(kAgent));
}

AE_TEST("agents/tools of an MCP server are at_most_once unless the file sets another effect") {
  const auto loaded = server("");
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  ASSERT_EQ(loaded.file.tools.size(), 3u);
  for (const auto& [name, tool] : loaded.file.tools) {
    EXPECT_EQ(tool.kind, "mcp");
    EXPECT_TRUE(tool.policy.effect == EffectClass::at_most_once);
    EXPECT_EQ(tool.line, 2u);
  }
  EXPECT_EQ(canonical(loaded.file.tools.at("s.find").definition),
            R"({"connection":{"command":["npx","-y"]},"digest":"d1","server":"s","tool":"find"})");
  const Value& tools = loaded.file.agents.at("a").task_graph["tools"];
  EXPECT_EQ(canonical(tools["s.find"]["args_schema"]),
            R"({"properties":{"q":{"type":"string"}},"required":["q"],"type":"object"})");
  EXPECT_TRUE(tools["s.find"]["result_schema"].is_object());
  EXPECT_EQ(canonical(tools).find("npx"), std::string::npos);
}

AE_TEST("agents/the policy of an MCP tool overrides the policy of its server entry") {
  const auto loaded = server(
      ", effect: idempotent, timeout: 5s, tools: { put: { effect: read }, odd: { timeout: 7s } }");
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  const auto& tools = loaded.file.tools;
  EXPECT_TRUE(tools.at("s.find").policy.effect == EffectClass::idempotent);
  EXPECT_TRUE(tools.at("s.put").policy.effect == EffectClass::read);
  EXPECT_TRUE(tools.at("s.odd").policy.timeout == Duration(std::chrono::seconds(7)));
  EXPECT_TRUE(tools.at("s.put").policy.timeout == Duration(std::chrono::seconds(5)));
}

AE_TEST("agents/a key of an MCP server is accepted under its alias, and gives the same plan") {
  const auto plan = [](const std::string& more) {
    const auto loaded = server(more);
    EXPECT_EQ(diagnostics_as_text(loaded.diagnostics), "");
    return canonical(loaded.file.agents.at("a").task_graph);
  };
  const std::string expected =
      plan(", question_expires: 2h, tools: { put: { question_expires: 3h } }");
  EXPECT_NE(expected.find(R"("ask_expires":"3h")"), std::string::npos) << expected;
  EXPECT_EQ(plan(", ask_expires: 2h, tools: { put: { question_expires: 3h } }"), expected);
  EXPECT_EQ(plan(", question_expires: 2h, tools: { put: { ask_expires: 3h } }"), expected);
  EXPECT_NE(diagnostics_as_text(server(", ask_expires: 2h, question_expires: 2h").diagnostics)
                .find("tools.s.ask_expires: `ask_expires` is an alias of `question_expires`: "
                      "remove it"),
            std::string::npos);
  EXPECT_NE(diagnostics_as_text(server(", ask_expire: 2h").diagnostics)
                .find("unknown key `ask_expire` (did you mean question_expires?)"),
            std::string::npos);
}

AE_TEST("agents/only a trusted readOnlyHint sets the effect of an MCP tool") {
  const auto shown = server("");
  ASSERT_EQ(shown.file.notes.size(), 3u);
  EXPECT_NE(shown.file.notes[0].message.find("of `odd` are not validated"), std::string::npos);
  EXPECT_NE(shown.file.notes[1].message.find("readOnlyHint for find"), std::string::npos);
  EXPECT_NE(shown.file.notes[2].message.find("idempotentHint for put"), std::string::npos);
  const auto trusted = server(", trust_annotations: true");
  ASSERT_EQ(diagnostics_as_text(trusted.diagnostics), "");
  EXPECT_TRUE(trusted.file.tools.at("s.find").policy.effect == EffectClass::read);
  EXPECT_TRUE(trusted.file.tools.at("s.put").policy.effect == EffectClass::at_most_once);
  EXPECT_EQ(trusted.file.tools.at("s.find").policy.retry.max_attempts, 4u);
  EXPECT_EQ(trusted.file.tools.at("s.put").policy.retry.max_attempts, 1u);
  const auto loaded = server(", trust_annotations: true, effect: at_most_once");
  EXPECT_TRUE(loaded.file.tools.at("s.find").policy.effect == EffectClass::at_most_once);
}

AE_TEST("agents/the published JSON Schema accepts the same MCP entries as the checker") {
  const auto schema = Schema::compile(*parse_json(agents_schema_json()));
  ASSERT_TRUE(schema);
  const auto diagnostics = [&](const std::string& tool) {
    Diagnostics unread;
    SourceTree root;
    const std::string file = fmt::format("aetheris: 1\ntools: {{ s: {} }}\n{}", tool, kAgent);
    EXPECT_TRUE(read_yaml(file, unread, root));
    const bool refused = !load_text(file).diagnostics.empty();
    EXPECT_EQ(!schema->validate(root.value()).empty(), refused) << tool;
    return refused;
  };
  EXPECT_FALSE(diagnostics(
      "{ mcp: { command: [npx], env: { A: 'secret:B' }, cwd: x }, effect: read, output_max: 2MiB, "
      "trust_annotations: true, tools: { put: { approval: required } } }"));
  EXPECT_FALSE(diagnostics("{ mcp: { command: [npx] }, ask_expires: 1h }"));
  EXPECT_FALSE(
      diagnostics("{ mcp: { url: 'http://h/mcp', headers: { Authorization: 'secret:T' } } }"));
  for (const char* bad :
       {"{ mcp: {} }", "{ mcp: { command: [a], url: 'http://h/' } }",
        "{ mcp: { command: [a] }, env: {} }", "{ mcp: { command: [a] }, native: echo }",
        "{ mcp: { url: 'http://h/', cwd: x } }", "{ mcp: { command: [a] }, heartbeat_timeout: 5s }",
        "{ mcp: { command: [a] }, args_schema: {} }",
        "{ mcp: { command: [a] }, tools: { put: { mcp: {} } } }",
        "{ mcp: { command: [a] }, trust_annotations: yes }", "{ native: echo, tools: {} }"}) {
    EXPECT_TRUE(diagnostics(bad)) << bad;
  }
}

AE_TEST("mcp/references to tools of an unreachable server are not reported as errors") {
  constexpr std::string_view kText =
      "aetheris: 1\n"
      "tools:\n"
      "  files: { mcp: { command: [npx] }, capabilities: [disk] }\n"
      "  look: { native: echo, effect: at_most_once, on_in_doubt: probe,"
      " probe: { tool: files.read, happened: \"${ .result }\" } }\n"
      "models: { m: { provider: openai, base_url: \"http://m/v1\", model: x } }\n"
      "policies:\n"
      "  - { tools: [files.read, \"files.*\"], action: deny, when: \"${ .args.path == 1 }\" }\n"
      "  - { capability: disk, action: deny }\n"
      "agents:\n"
      "  a: { grants: [disk], plan: [ { id: n, tool: files.read } ] }\n"
      "  b: { loop: { model: m, tools: [\"files.*\", files.write] } }\n"
      "  c: { loop: { model: m, tools: [\"*\", filse.write] } }\n";
  AgentsFile file;
  const auto diagnostics =
      load({.name = "agents.yaml",
            .text = kText,
            .env = {},
            .native = [](std::string_view) { return true; },
            .server_tools = [](std::string_view, const Value&) -> Result<Value> {
              return fail(Code::unavailable, "it did not answer");
            }},
           file);
  EXPECT_EQ(testing::diagnostics_as_text(diagnostics),
            "3:17 unavailable tools.files.mcp: it did not answer\n"
            "12:39 plan_invalid agents.c.loop.tools[1]: unknown tool `filse.write`\n");
}

AE_TEST("agents/task-only MCP tools are not offered, and naming one is an error") {
  AgentsFile file;
  const auto loaded = [&file](const std::string& tools) {
    const std::string text =
        "aetheris: 1\n"
        "tools: { s: { mcp: { command: [npx] }, approval: \"${ .args.q == 1 }\" } }\n"
        "models: { m: { provider: openai, base_url: \"http://m/v1\", model: x } }\n"
        "agents:\n  a: { loop: { model: m, tools: " +
        tools + " } }\n";
    file = {};
    return load({.name = "agents.yaml",
                 .text = text,
                 .env = {},
                 .native = [](std::string_view) { return true; },
                 .server_tools = [](std::string_view, const Value&) -> Result<Value> {
                   return parse_json(R"([
      {"name":"book","digest":"d1","inputSchema":{"type":"object"},
       "execution":{"taskSupport":"required"}},
      {"name":"find","digest":"d2","inputSchema":{"type":"object"}}])");
                 }},
                file);
  };
  ASSERT_EQ(testing::diagnostics_as_text(loaded("[\"s.*\"]")), "");
  EXPECT_TRUE(file.tools.contains("s.find"));
  EXPECT_FALSE(file.tools.contains("s.book"));
  ASSERT_FALSE(file.notes.empty());
  EXPECT_EQ(file.notes[0].message,
            "`book` supports MCP task calls only (`taskSupport: required`), which are not "
            "supported; it is not offered");
  const std::string diagnostics = testing::diagnostics_as_text(loaded("[s.find, s.book]"));
  EXPECT_NE(diagnostics.find("agents.a.loop.tools[1]: `s.book` supports MCP task calls only"),
            std::string::npos)
      << diagnostics;
}

}  // namespace
}  // namespace ae::agents
