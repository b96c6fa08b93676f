// Tests of llm, loop and planner nodes, of models and of budgets.
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "agents/agents_file.h"
#include "agents/example_files_test.h"
#include "agents/test_load.h"
#include "json/json.h"
#include "testing/test.h"

namespace ae::agents {
namespace {

using testing::diagnostics_as_text;
using testing::kModels;
using testing::kProviders;
using testing::load_text;

AE_TEST("agents/an llm node becomes a model call with its request as arguments") {
  const auto loaded = load_text(kModels);
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  const Value& graph = loaded.file.agents.at("a").task_graph;
  std::string nodes;
  for (const Value& node : graph["nodes"].items()) nodes += canonical(node) + "\n";
  EXPECT_EQ(
      nodes,
      R"({"args":{"max_tokens":400,"messages":[{"content":"You are brief.","role":"system"},{"content":"Note on ${ .input.x }","role":"user"}],"model":"gpt-5-mini","temperature":0.5},"id":"note","kind":"llm","tool":"model:main"}
{"args":{"messages":[{"content":"a","role":"user"},{"content":"${ .steps.note.text }","role":"assistant"}],"model":"small","temperature":1},"id":"more","kind":"llm","needs":["note"],"tool":"model:old"}
{"args":{"messages":"${ .input.messages }","model":"small"},"id":"all","kind":"llm","tool":"model:old","when":false}
{"do":{"args":{"max_tokens":7,"messages":[{"content":"${ .item }","role":"user"}],"model":"gpt-5-mini","temperature":0.5},"tool":"model:main"},"id":"each","kind":"map","max_parallel":8,"over":[1,2]}
)");
  EXPECT_EQ(graph["tools"].size(), 2u);
  const Value& main = graph["tools"]["model:main"];
  EXPECT_EQ(main.text("effect"), "read");
  EXPECT_EQ(main.text("on_in_doubt"), "resend");
  EXPECT_EQ(main.text("provider"), "openai");
  EXPECT_EQ(main.text("timeout"), "1m");
  EXPECT_EQ(graph["tools"]["model:old"].text("timeout"), "2m");
  EXPECT_EQ(canonical(graph["tools"]["model:old"]["retry"]["retry_on"]), R"(["429","reset"])");
  // The transport is not recorded, except for its digest.
  EXPECT_EQ(canonical(graph).find("http"), std::string::npos);
  EXPECT_EQ(canonical(graph).find("secret"), std::string::npos);
  ASSERT_EQ(loaded.file.models.size(), 3u);
  const ToolDefinition& model = loaded.file.models.at("model:main");
  EXPECT_EQ(model.kind, "openai");
  EXPECT_EQ(canonical(model.definition),
            R"({"api_key":"secret:KEY","base_url":"http://shop:9000/v1/",)"
            R"("defaults":{"max_tokens":400,"model":"gpt-5-mini","temperature":0.5}})");
  EXPECT_EQ(
      canonical(loaded.file.models.at("model:old").definition),
      R"({"base_url":"http://h:1/v1","defaults":{"model":"small"},"max_tokens_name":"max_tokens"})");
  EXPECT_EQ(model.policy.version, main.text("version"));
}

constexpr std::string_view kLoops = R"(aetheris: 1
tools:
  find: { native: echo, description: Finds it, args_schema: { type: object, required: [q] } }
  pay: { native: echo, effect: idempotent, compensate: { tool: unpay } }
  unpay: { native: echo, effect: idempotent, description: Sends no message }
models:
  main: { provider: openai, base_url: "http://h:1/v1", model: small, temperature: 0.5 }
agents:
  all:
    loop: { model: main, system: You are kind., tools: [pay, "*"], max_turns: 7, thread: true }
  some:
    output: "${ .steps.talk.text }"
    plan:
      - { id: look, tool: find, args: { q: 1 } }
      - { id: talk, needs: [look], on_error: continue, loop: { model: main, prompt: "About ${ .steps.look }", tools: [find], parallel_tools: 1, max_tokens: 9, schema: { type: object }, on_reject: fail } }
)";

AE_TEST("agents/a loop node records its model, prompt and allowed tools") {
  const auto loaded = load_text(kLoops);
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  const Value& all = loaded.file.agents.at("all").task_graph;
  EXPECT_EQ(
      canonical(all["nodes"]),
      R"([{"id":"loop","kind":"loop","loop":{"max_turns":7,"model":"small","parallel_tools":4,"prompt":"${ .input.message? // .input }","system":"You are kind.","temperature":0.5,"thread":true,"tool":"model:main","tools":["pay","find","unpay"]}}])");
  EXPECT_EQ(all["output"], Value("${ .steps.loop }"));
  EXPECT_EQ(all["tools"]["find"].text("description"), "Finds it");
  const Value& some = loaded.file.agents.at("some").task_graph;
  EXPECT_EQ(
      canonical(some["nodes"].items()[1]),
      R"({"id":"talk","kind":"loop","loop":{"max_tokens":9,"max_turns":20,"model":"small","on_reject":"fail","parallel_tools":1,"prompt":"About ${ .steps.look }","repair":1,"schema":{"type":"object"},"temperature":0.5,"tool":"model:main","tools":["find"]},"needs":["look"],"on_error":"continue"})");
  EXPECT_EQ(some["tools"].size(), 2u) << "only callable tools are in the plan";
}

AE_TEST("agents/answers with a schema are repaired, except with repair: false or in a map") {
  const auto loaded = load_text(R"(aetheris: 1
models: { main: { provider: openai, base_url: "http://h:1/v1", model: small } }
agents:
  a:
    plan:
      - { id: yes, llm: { model: main, prompt: Hi, schema: { type: object } } }
      - { id: no, llm: { model: main, prompt: Hi, schema: { type: object }, repair: false } }
      - { id: text, llm: { model: main, prompt: Hi } }
      - { id: each, map: [ 1 ], do: { llm: { model: main, prompt: Hi, schema: { type: object } } } }
      - { id: loop, loop: { model: main, prompt: Hi, schema: { type: object }, repair: false } }
)");
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  const Value& nodes = loaded.file.agents.at("a").task_graph["nodes"];
  EXPECT_EQ(nodes.items()[0]["repair"], Value(1));
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    EXPECT_EQ(canonical(nodes.items()[i]).find("repair"), std::string::npos) << i;
  }
}

AE_TEST("agents/a planner node records its request and the tools that its plan may call") {
  const auto loaded = load_text(R"(aetheris: 1
tools:
  find: { native: echo, description: Finds it, args_schema: { type: object, required: [q] } }
  pay: { native: echo, effect: idempotent, capabilities: [pay] }
models: { main: { provider: anthropic, base_url: "http://h:1/v1", model: small } }
agents:
  a: { planner: { model: main, system: Be quick., tools: [find], max_nodes: 9 }, grants: [pay] }
  b: { planner: { model: main, repair: false } }
)");
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  const Value& graph = loaded.file.agents.at("a").task_graph;
  const Value& node = graph["nodes"].items()[0];
  EXPECT_EQ(node["kind"], Value("planner"));
  const Value& planner = node["planner"];
  EXPECT_EQ(canonical(planner["tools"]), R"(["find"])");
  EXPECT_EQ(planner["max_nodes"], Value(9));
  EXPECT_EQ(planner["repair"], Value(1));
  EXPECT_EQ(planner["max_tokens"], Value(4096));
  EXPECT_NE(planner.text("told").find(R"({"args_schema":{"required":["q"],"type":"object"},)"
                                      R"("description":"Finds it","tool":"find"})"),
            std::string_view::npos);
  EXPECT_EQ(graph["tools"].size(), 2u) << "only tools of the planner are in the plan";
  EXPECT_EQ(graph.find("output"), nullptr);
  const Value& strict = loaded.file.agents.at("b").task_graph["nodes"].items()[0]["planner"];
  EXPECT_EQ(strict.find("repair"), nullptr);
}

AE_TEST("agents/every invalid option of a loop is reported") {
  const std::string head =
      "aetheris: 1\ntools: { t: { native: echo } }\n"
      "models: { m: { provider: openai, base_url: 'http://h:1/v1', model: x } }\nagents:\n  a: ";
  const auto diagnostics = [&](const std::string& agent) {
    return diagnostics_as_text(load_text(head + agent + "\n").diagnostics);
  };
  EXPECT_EQ(diagnostics("{ loop: { model: m, tools: [t] } }"), "");
  for (const auto& [agent, words] : std::vector<std::pair<std::string, std::string>>{
           {"{ loop: {} }", "`model` is missing"},
           {"{ loop: { model: n } }", "unknown model `n`"},
           {"{ loop: { model: m, tools: [u] } }", "unknown tool `u`"},
           {"{ loop: { model: m, tools: ['t*'] } }", "a pattern must be NAME.*"},
           {"{ loop: { model: m, tools: ['s.*'] } }", "no tool of this file matches"},
           {"{ loop: { model: m, tools: ['model:m'] } }", "unknown tool"},
           {"{ loop: { model: m, max_turns: 0 } }", "max_turns"},
           {"{ loop: { model: m, parallel_tools: 65 } }", "parallel_tools"},
           {"{ loop: { model: m, prompt: '' } }", "must not be empty"},
           {"{ loop: { model: m, prompt: '${ .steps.x }' } }", "unknown node `x`"},
           {"{ loop: { model: m, system: '${ .item }' } }", ".item"},
           {"{ loop: { model: m, budget: 1 } }", "unsupported"},
           {"{ loop: { model: m, approval: 1 } }", "unknown key `approval`"},
           {"{ loop: { model: m }, plan: [ { id: x, tool: t } ] }", "either a `plan` or a `loop`"},
           {"{ plan: [ { id: x, loop: { model: m }, args: {} } ] }", "args"},
       }) {
    EXPECT_NE(diagnostics(agent).find(words), std::string::npos) << agent << "\n"
                                                                 << diagnostics(agent);
  }
}

AE_TEST("agents/the plan records a model's token limit, price and content parts") {
  const auto loaded = load_text(kProviders);
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  const Value& graph = loaded.file.agents.at("a").task_graph;
  const Value& nodes = graph["nodes"];
  EXPECT_EQ(
      canonical(nodes.items()[0]["args"]),
      R"({"max_tokens":9,"messages":[{"content":[{"text":"What is ${ .input.x }?","type":"text"},)"
      R"({"type":"image","url":"https://h/${ .input.x }.png"}],"role":"user"}],"model":"m",)"
      R"("schema":{"additionalProperties":false,"type":"object"}})");
  EXPECT_EQ(nodes.items()[1]["args"]["max_tokens"], Value(4096));
  const Value& claude = graph["tools"]["model:claude"];
  EXPECT_EQ(claude.text("provider"), "anthropic");
  EXPECT_EQ(canonical(claude["price"]), R"({"cached":300000,"input":3000000,"output":15000000})");
  EXPECT_EQ(graph["tools"]["model:plain"].find("price"), nullptr);
  EXPECT_EQ(loaded.file.models.at("model:claude").kind, "anthropic");
  // The price is not part of the version.
  EXPECT_EQ(claude.text("version"), graph["tools"]["model:plain"].text("version"));
}

AE_TEST("agents/a budget becomes exact limits; a cost limit needs a price for every model") {
  const std::string head = std::string(kProviders).substr(0, kProviders.find("agents:"));
  const auto load = [&](std::string_view budget, std::string_view model) {
    return load_text(head + "agents:\n  a: { budget: " + std::string(budget) +
                     ", plan: [ { id: x, llm: { model: " + std::string(model) +
                     ", prompt: Hello } } ] }\n");
  };
  const auto good =
      load("{ tokens: 200000, cost: '2.50', model_calls: 40, tool_calls: 0, wall: 1h, soft: 80 }",
           "claude");
  ASSERT_EQ(diagnostics_as_text(good.diagnostics), "");
  EXPECT_EQ(canonical(good.file.agents.at("a").task_graph["budget"]),
            R"({"cost_micros":2500000,"model_calls":40,"soft":80,"tokens":200000,)"
            R"("tool_calls":0,"wall":"1h"})");
  const auto plan = engine::Plan::compile(good.file.agents.at("a").task_graph);
  ASSERT_TRUE(plan);
  EXPECT_EQ((*plan)->budget.cost_micros, 2'500'000u);
  EXPECT_EQ(diagnostics_as_text(load("{ tokens: 1 }", "plain").diagnostics), "");
  for (const auto& [budget, model, words] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"{ cost: 1 }", "plain", "the model `plain` has no `price`"},
           {"{}", "claude", "needs at least one of tokens"},
           {"{ soft: 80 }", "claude", "needs at least one of tokens"},
           {"{ tokens: -1 }", "claude", "agents.a.budget.tokens: must be a whole number"},
           {"{ tokens: '5' }", "claude", "agents.a.budget.tokens: must be a whole number"},
           {"{ cost: '1,5' }", "claude", "agents.a.budget.cost: a cost is a number"},
           {"{ tokens: 1, soft: 101 }", "claude", "agents.a.budget.soft"},
           {"{ wall: 0s }", "claude", "agents.a.budget.wall"},
           {"{ money: 1 }", "claude", "unknown key `money`"},
           {"5", "claude", "agents.a.budget"},
       }) {
    const std::string diagnostics = diagnostics_as_text(load(budget, model).diagnostics);
    EXPECT_NE(diagnostics.find(words), std::string::npos) << budget << "\n" << diagnostics;
  }
}

}  // namespace
}  // namespace ae::agents
