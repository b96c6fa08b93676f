// Tests of load with valid agents files: task graphs, YAML and JSON, positions, and the published
// JSON Schema.
#include "agents/agents_file.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agents/check_context.h"
#include "agents/example_files_test.h"
#include "agents/source_tree.h"
#include "agents/test_load.h"
#include "json/json.h"
#include "schema/schema.h"
#include "testing/test.h"

namespace ae::agents {
namespace {

using testing::diagnostics_as_text;
using testing::files_of_the_documentation;
using testing::kCode;
using testing::kModels;
using testing::kProviders;
using testing::kShop;
using testing::load_text;
using testing::read_file;

AE_TEST("agents/a valid file compiles to the normal form of its plans") {
  const auto loaded = load_text(kShop);
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  const Agent& agent = loaded.file.agents.at("refund");
  Value graph = agent.task_graph;
  // Versions are digests; the expected graph only shows that they exist.
  Value tools = graph["tools"];
  for (const auto& [name, tool] : graph["tools"].members()) {
    EXPECT_EQ(tool.text("version").size(), 16u) << name;
    tools = tools.with(name, tool.with("version", "…"));
  }
  graph = graph.with("tools", tools);
  const std::string picture = pretty(graph) + "\n";
  if (std::getenv("AE_UPDATE_CASES") != nullptr) {
    std::ofstream(testing::root_folder() + "/src/agents/refund.graph.json") << picture;
  }
  EXPECT_EQ(picture, read_file("src/agents/refund.graph.json"));
  EXPECT_EQ(agent.labels,
            (std::vector<std::pair<std::string, std::string>>{{"team", "money"}, {"a.b/c", "d"}}));
  EXPECT_EQ(canonical(*agent.input_schema), R"({"required":["order_id"],"type":"object"})");
  const auto plan = engine::Plan::compile(agent.task_graph);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ((*plan)->nodes.size(), 7u);
}

AE_TEST("agents/YAML and JSON of the same file give the same plan") {
  constexpr std::string_view kYaml = R"(
aetheris: 1   # a comment
tools:
  t: { native: "echo", effect: read }
agents:
  a:
    plan:
      - id: x
        tool: t
        args:
          n: 1.50
          big: 1e3
          "null": ~
          yes: no
          text: |
            two
            lines
          list: [true, null, "ä\U0001F600\/", 'it''s']
        when: ${ .input.x }
)";
  constexpr std::string_view kJson =
      "\n{ \"aetheris\": 1,\n\t\"tools\": {\"t\":{\"native\":"
      "\"echo\",\"effect\":\"read\"}},\"agents\":{\"a\":{\"plan\":[{\"id\":\"x\",\"tool\":\"t\","
      "\"args\":{\"n\":1.5,\"big\":1000,\"null\":null,\"yes\":\"no\",\"text\":\"two\\nlines\\n\","
      "\"list\":[true,null,\"\\u00e4\\ud83d\\ude00/\",\"it's\"]},\"when\":\"${ .input.x "
      "}\"}]}}}\r\n";
  const auto yaml = load_text(kYaml);
  EXPECT_EQ(diagnostics_as_text(yaml.diagnostics), "");
  for (const std::string_view name : {"a.json", "a.yaml"}) {
    const auto json = load_text(kJson, name);
    ASSERT_EQ(diagnostics_as_text(json.diagnostics), "");
    EXPECT_EQ(canonical(json.file.agents.at("a").task_graph),
              canonical(yaml.file.agents.at("a").task_graph));
  }
}

AE_TEST("agents/errors in a JSON file have positions too") {
  EXPECT_EQ(diagnostics_as_text(
                load_text("{\"aetheris\": 1,\n  \"agents\": {\"ä\": {\"plan\": \"\\\"${ 1 + "
                          "}\"}, \"b\":\n{}}}",
                          "a.json")
                    .diagnostics),
            "2:14 plan_invalid agents[\"ä\"]: `ä` is not a valid name for an agent: use up to 64 "
            "letters, digits, _ and -, starting with a letter or _\n"
            "2:28 plan_invalid agents[\"ä\"].plan: must be a list, not a string\n"
            "3:1 plan_invalid agents.b.plan: `plan` is missing: the list of nodes that this agent "
            "runs (or use `loop`, `planner` or `code`)\n");
}

AE_TEST("agents/a .json file must be strict JSON") {
  for (const std::string_view text :
       {"{\"aetheris\": 1,}", "{aetheris: 1}", "aetheris: 1\n", "{\"a\": 1, \"a\": 2}", "{} {}",
        "{\"a\": 01}", "{\"a\": 9007199254740993}", "", "{\"a\": \"\\ud800\"}", "[", "// x\n{}"}) {
    const auto loaded = load_text(text, "a.json");
    EXPECT_EQ(loaded.diagnostics.size(), 1u) << text;
    EXPECT_TRUE(diagnostics_as_text(loaded.diagnostics).find("invalid JSON: ") != std::string::npos)
        << diagnostics_as_text(loaded.diagnostics);
  }
  EXPECT_EQ(diagnostics_as_text(load_text("{\n \"aetheris\": 1,\n \"ä\": x}", "a.json").diagnostics)
                .substr(0, 18),
            "3:7 plan_invalid :");
}

AE_TEST("agents/a byte order mark and CRLF line ends are accepted") {
  EXPECT_EQ(diagnostics_as_text(load_text("\xEF\xBB\xBF"
                                          "aetheris: 1\r\nagents:\r\n  a:\r\n    plan:\r\n"
                                          "      - { id: x, wait: { type: signal } }\r\n")
                                    .diagnostics),
            "");
  EXPECT_EQ(diagnostics_as_text(load_text("\xEF\xBB\xBF"
                                          "aetheris: 1\r\nagents:\r\n  a: x\r\n")
                                    .diagnostics),
            "3:6 plan_invalid agents.a: must be a mapping, not a string\n");
}

AE_TEST("agents/environment values are inserted literally, without evaluation") {
  const auto loaded = load_text(R"(aetheris: 1
tools:
  t: { command: [ls, "x${ env.BRACE }{y}$${ z", "${env.BRACE}"], env: { E: "a ${ env.BRACE }" } }
agents: { a: { plan: [ { id: x, tool: t } ] } }
)");
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  const Value& definition = loaded.file.tools.at("t").definition;
  const auto words = Template::compile(definition["command"]);
  ASSERT_TRUE(words);
  EXPECT_EQ(canonical(*words->eval(NoScope())), R"(["ls","xa${b}${y}${ z","a${b}$"])");
  const auto env = Template::compile(definition["env"]);
  ASSERT_TRUE(env);
  EXPECT_EQ(canonical(*env->eval(NoScope())), R"({"E":"a a${b}$"})");
}

AE_TEST("agents/diagnostics print as text and as JSON") {
  const auto loaded = load_text("aetheris: 1\nagents: { a: { plans: [] } }\n");
  EXPECT_EQ(diagnostics_text(loaded.diagnostics),
            "agents.yaml:2:14: agents.a.plan: `plan` is missing: the list of nodes that this agent "
            "runs (or use `loop`, `planner` or `code`)\n"
            "agents.yaml:2:16: agents.a.plans: unknown key `plans` (did you mean plan?)\n");
  EXPECT_EQ(canonical(diagnostics_json({loaded.diagnostics.at(1)})),
            R"({"faults":[{"code":"plan_invalid","column":16,"file":"agents.yaml","line":2,)"
            R"("message":"unknown key `plans`","path":"agents.a.plans","suggestion":"plan"}],)"
            R"("ok":false})");
  EXPECT_EQ(canonical(diagnostics_json({})), R"({"faults":[],"ok":true})");
}

// ---- the documentation and the embedded schema

// The plain value of a file.
Value value_of(std::string_view yaml) {
  Diagnostics diagnostics;
  SourceTree root;
  EXPECT_TRUE(read_yaml(yaml, diagnostics, root)) << yaml;
  EXPECT_TRUE(diagnostics.empty()) << yaml;
  return root.value();
}

AE_TEST("agents/every file of docs/agents-file.md is valid") {
  const auto files = files_of_the_documentation();
  ASSERT_GT(files.size(), 8u);
  for (const std::string& file : files) {
    EXPECT_EQ(diagnostics_as_text(load_text(file).diagnostics), "") << file;
  }
}

AE_TEST("agents/the published JSON Schema accepts valid files and rejects invalid ones") {
  const auto document = parse_json(agents_schema_json());
  ASSERT_TRUE(document) << document.error().message;
  const auto schema = Schema::compile(*document);
  ASSERT_TRUE(schema) << schema.error().message;
  std::vector<std::string> good = files_of_the_documentation();
  good.emplace_back(kShop);
  good.emplace_back(kModels);
  good.emplace_back(kProviders);
  good.emplace_back(kCode);
  for (const std::string& file : good) {
    for (const SchemaViolation& violation : schema->validate(value_of(file))) {
      ADD_FAILURE() << violation.instance_path << ": " << violation.message << "\n" << file;
    }
  }
  const std::string tool = "tools: { t: { native: echo } }\n";
  const std::string agent = "agents: { a: { plan: [ { id: x, tool: t } ] } }\n";
  const std::string both = tool + agent;
  for (const std::string& bad : {
           std::string("aetheris: 1\n"),
           "aetheris: 2\n" + both,
           "aetheris: 1\nmodels: { m: { provider: openai } }\n" + both,
           "aetheris: 1\ntools: { t: { effect: read } }\n" + agent,
           "aetheris: 1\ntools: { t: { native: echo, command: [date] } }\n" + agent,
           "aetheris: 1\ntools: { t: { native: echo, approval: always } }\n" + agent,
           "aetheris: 1\ntools: { t: { native: echo, approval_expires: 1h } }\n" + agent,
           "aetheris: 1\ntools: { t: { native: echo, result: full } }\n" + agent,
           "aetheris: 1\ntools: { t: { native: echo, timeout: 30 } }\n" + agent,
           "aetheris: 1\ntools: { t: { native: nap, heartbeat_timeout: 5 } }\n" + agent,
           "aetheris: 1\ntools: { t: { http: { method: GET, url: 'http://x/' }, heartbeat_timeout: "
           "5s } }\n" +
               agent,
           "aetheris: 1\ntools: { t: { native: echo, on_in_doubt: probe, probe: { tool: t } } }\n" +
               agent,
           "aetheris: 1\ntools: { t: { native: echo, retry: { retry_on: [timeout] } } }\n" + agent,
           "aetheris: 1\ntools: { t: { http: { method: GET, url: 'ftp://x/' } } }\n" + agent,
           "aetheris: 1\ntools: { 'a b': { native: echo } }\n" + agent,
           std::string("aetheris: 1\nagents: {}\n"),
           std::string("aetheris: 1\nagents: { a: { plan: [] } }\n"),
           std::string("aetheris: 1\nagents: { a: { loop: {} } }\n"),
           std::string("aetheris: 1\nagents: { a: { plan: [ { id: x } ] } }\n"),
           std::string("aetheris: 1\nagents: { a: { plan: [ { tool: t } ] } }\n"),
           std::string("aetheris: 1\nagents: { a: { plan: [ { id: x, llm: { model: m } } ] } }\n"),
           "aetheris: 1\nmodels: { m: { provider: openai, model: m, base_url: 'http://x/v1', "
           "price: { "
           "input: 1 } } }\n" +
               both,
           "aetheris: 1\n" + tool +
               "agents: { a: { plan: [ { id: x, llm: { model: m, messages: [ { role: user, "
               "content: [ "
               "{ type: image, url: '${ .input.x }' } ] } ] } } ] } }\n",
           std::string(
               "aetheris: 1\nagents: { a: { plan: [ { id: x, map: [1], do: { llm: { model: m, "
               "prompt: p }, tool: t } } ] } }\n"),
           std::string("aetheris: 1\nagents: { a: { plan: [ { id: 9x, tool: t } ] } }\n"),
           std::string("aetheris: 1\nagents: { a: { plan: [ { id: x, tool: t, when: x } ] } }\n"),
           std::string("aetheris: 1\nagents: { a: { plan: [ { id: x, tool: t, do: {} } ] } }\n"),
           std::string("aetheris: 1\nagents: { a: { plan: [ { id: x, wait: {} } ] } }\n"),
           std::string(
               "aetheris: 1\nagents: { a: { plan: [ { id: x, wait: { type: message } } ] } }\n"),
           std::string("aetheris: 1\nagents: { a: { plan: [ { id: x, wait: { type: signal, answer: "
                       "data } } ] } }\n"),
           std::string(
               "aetheris: 1\nagents: { a: { plan: [ { id: x, wait: { type: timer } } ] } }\n"),
           std::string("aetheris: 1\nagents: { a: { plan: [ { id: x, wait: { type: timer, for: 5 } "
                       "} ] } }\n"),
           std::string("aetheris: 1\nagents: { a: { plan: [ { id: x, map: [1], do: {} } ] } }\n"),
           std::string(
               "aetheris: 1\nagents: { a: { plan: [ { id: x, tool: t } ], deadline: x } }\n"),
       }) {
    EXPECT_FALSE(schema->validate(value_of(bad)).empty()) << bad;
    EXPECT_FALSE(load_text(bad).diagnostics.empty()) << bad;
  }
}

AE_TEST("agents/the published JSON Schema rejects invalid code agents and tools of workers") {
  const auto document = parse_json(agents_schema_json());
  ASSERT_TRUE(document) << document.error().message;
  const auto schema = Schema::compile(*document);
  ASSERT_TRUE(schema) << schema.error().message;
  for (const std::string_view rest : {
           "tools: { t: { worker: 'a b' } }\nagents: { a: { code: { language: cpp } } }",
           "tools: { t: { worker: w, http: {} } }\nagents: { a: { code: { language: cpp } } }",
           "tools: { t: { worker: w, output: json } }\nagents: { a: { code: { language: cpp } } }",
           "tools: { t: { worker: w, local: true } }\nagents: { a: { code: { language: cpp } } }",
           "policies: [ { tools: ['run:all'], action: deny } ]\n"
           "agents: { a: { code: { language: cpp } } }",
           "agents: { a: { code: {} } }",
           "agents: { a: { code: { language: rust } } }",
           "agents: { a: { code: { language: cpp, parallel: 0 } } }",
           "agents: { a: { code: { language: cpp, version: 'a b' } } }",
           "agents: { a: { code: { language: cpp, on_exception: retry } } }",
           "agents: { a: { code: { language: cpp }, output: 1 } }",
           "agents: { a: { code: { language: cpp }, plan: [ { id: x, wait: { type: signal } } ] } "
           "}",
           "agents: { a: { output_schema: {}, plan: [ { id: x, wait: { type: signal } } ] } }",
           "agents: { a: { plan: [ { id: x, code: { language: cpp } } ] } }",
       }) {
    const std::string bad = "aetheris: 1\n" + std::string(rest) + "\n";
    EXPECT_FALSE(schema->validate(value_of(bad)).empty()) << bad;
    EXPECT_FALSE(load_text(bad).diagnostics.empty()) << bad;
  }
}

}  // namespace
}  // namespace ae::agents
