// Code agents: the task graphs that they compile to, their versions and their policies.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "agents/agents_file.h"
#include "agents/code_functions.h"
#include "agents/diagnostics.h"
#include "agents/example_files_test.h"
#include "agents/test_load.h"
#include "json/json.h"
#include "testing/test.h"

namespace ae::agents {
namespace {

using testing::diagnostics_as_text;
using testing::kCode;
using testing::load_text;
using testing::read_file;

constexpr std::string_view kOne = "aetheris: 1\nagents:\n  a: ";

std::string diagnostics_of_agent(std::string_view agent) {
  return diagnostics_as_text(load_text(std::string(kOne) + std::string(agent) + "\n").diagnostics);
}

Agent agent_of(std::string_view agent) {
  auto loaded = load_text(std::string(kOne) + std::string(agent) + "\n");
  EXPECT_EQ(diagnostics_as_text(loaded.diagnostics), "") << agent;
  return loaded.file.agents.contains("a") ? loaded.file.agents.at("a") : Agent{};
}

AE_TEST("code agents/an agent compiles to one node that may call its tools and functions") {
  const auto loaded = load_text(kCode);
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  const Agent& agent = loaded.file.agents.at("refund");
  const std::string picture = pretty(agent.task_graph) + "\n";
  if (std::getenv("AE_UPDATE_CASES") != nullptr) {
    std::ofstream(testing::root_folder() + "/src/agents/code.graph.json") << picture;
  }
  EXPECT_EQ(picture, read_file("src/agents/code.graph.json"));
  EXPECT_EQ(agent.execution_version, "1.4.0");
  EXPECT_EQ(agent.queue, "slow");
  EXPECT_EQ(agent.required_capabilities, std::vector<std::string>{"eu"});
  EXPECT_EQ(canonical(*agent.input_schema), R"({"required":["order"],"type":"object"})");

  const auto compiled = engine::Plan::compile(agent.task_graph);
  ASSERT_TRUE(compiled) << compiled.error().message;
  const engine::Plan& plan = **compiled;
  ASSERT_EQ(plan.nodes.size(), 1u);
  ASSERT_EQ(plan.nodes[0].kind, engine::NodeKind::code);
  EXPECT_EQ(plan.versions, engine::VersionPolicy::route);
  EXPECT_EQ(plan.budget.cost_micros, 1'000'000u);
  EXPECT_EQ(plan.prices.at("small").output, 2'000'000u) << "code may call the model itself";
  const engine::CodeSpec& code = *plan.nodes[0].code;
  EXPECT_EQ(code.agent, "refund");
  EXPECT_EQ(code.language, "typescript");
  EXPECT_EQ(code.version, "1.4.0");
  EXPECT_EQ(code.digest.size(), 64u);
  EXPECT_EQ(code.parallel, 8u);
  EXPECT_TRUE(code.fail_on_exception);
  EXPECT_TRUE(code.output_schema.has_value());
  std::string may_call;
  for (const std::uint32_t tool : code.tools) may_call += plan.tools[tool].name + " ";
  EXPECT_EQ(may_call,
            "fetch:at_most_once fetch:idempotent fetch:read get_order mail model:main pay_back "
            "run:at_most_once run:idempotent run:read ")
      << "without the tools of probes and compensations";
}

AE_TEST("code agents/an agent without options has the defaults") {
  const auto loaded = load_text(kCode);
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  const Agent& agent = loaded.file.agents.at("small");
  EXPECT_EQ(agent.execution_version, "");
  EXPECT_EQ(agent.task_graph.find("versions"), nullptr);
  const auto plan = engine::Plan::compile(agent.task_graph);
  ASSERT_TRUE(plan) << plan.error().message;
  const engine::CodeSpec& code = *(*plan)->nodes[0].code;
  EXPECT_EQ(code.version, "");
  EXPECT_EQ(code.parallel, 64u);
  EXPECT_FALSE(code.fail_on_exception);
  EXPECT_FALSE(code.output_schema.has_value());
  EXPECT_EQ(code.tools.size(), kCodeFunctions.size());
}

AE_TEST("code agents/the functions of code have the defaults of their effect and a fixed version") {
  const CheckedTools functions = code_functions();
  ASSERT_EQ(functions.size(), 6u);
  std::string text;
  for (const auto& [name, function] : functions) {
    const engine::ToolPolicy& policy = function.tool.policy;
    EXPECT_TRUE(policy.function) << name;
    EXPECT_EQ(policy.timeout, std::chrono::seconds(30)) << name;
    EXPECT_EQ(policy.version, function.policy.text("version")) << name;
    text +=
        fmt::format("{} {} {} {} {}\n", name, function.policy.text("effect"),
                    function.policy.text("on_in_doubt"), policy.retry.max_attempts, policy.version);
  }
  EXPECT_EQ(text,
            "fetch:at_most_once at_most_once park 1 858d949470fd3401\n"
            "fetch:idempotent idempotent resend 1 6affe5f0693f482a\n"
            "fetch:read read resend 4 d1ce775bbd808d2e\n"
            "run:at_most_once at_most_once park 1 8a604fb3fe64218c\n"
            "run:idempotent idempotent resend 1 f9ecbcdc6e48b121\n"
            "run:read read resend 4 918b47a7df31968c\n");
}

AE_TEST("code agents/a version of the code routes its jobs unless the file sets a policy") {
  const auto versions = [](std::string_view agent) {
    const Agent loaded = agent_of(agent);
    return canonical(loaded.task_graph["versions"]) + " " + loaded.execution_version;
  };
  EXPECT_EQ(versions("{ code: { language: cpp, version: v1 } }"), R"({"policy":"route"} v1)");
  EXPECT_EQ(versions("{ versions: {}, code: { language: cpp, version: v1 } }"),
            R"({"policy":"route"} v1)");
  EXPECT_EQ(versions("{ versions: { policy: strict }, code: { language: cpp, version: v1 } }"),
            R"({"policy":"strict"} v1)");
  EXPECT_EQ(versions("{ versions: { policy: warn }, code: { language: cpp, version: v1 } }"),
            "null v1");
  EXPECT_EQ(versions("{ versions: { execution: v2 }, code: { language: cpp } }"), "null v2");
  EXPECT_EQ(versions("{ versions: { wait: 10m }, code: { language: cpp, version: v1 } }"),
            R"({"policy":"route","wait":"10m"} v1)");
  EXPECT_EQ(
      versions("{ versions: { policy: route, wait: 1s }, code: { language: cpp, version: v1 } }"),
      R"({"policy":"route","wait":"1s"} v1)");
  const Agent agent = agent_of("{ versions: { wait: 10m }, code: { language: cpp, version: v1 } }");
  EXPECT_EQ((*engine::Plan::compile(agent.task_graph))->version_wait, std::chrono::minutes(10));
}

AE_TEST("code agents/only code that is routed by its version waits for one") {
  for (const std::string_view agent :
       {"{ versions: { policy: strict, wait: 1s }, code: { language: cpp, version: v1 } }",
        "{ versions: { policy: warn, wait: 1s }, code: { language: cpp, version: v1 } }",
        "{ versions: { wait: 1s }, code: { language: cpp } }"}) {
    EXPECT_NE(diagnostics_of_agent(agent).find("waits for a version"), std::string::npos) << agent;
  }
  EXPECT_NE(
      diagnostics_of_agent("{ versions: { wait: soon }, code: { language: cpp, version: v1 } }"),
      "");
}

AE_TEST("code agents/the digest covers the definition without the version") {
  const auto digest = [](std::string_view agent) {
    const Agent loaded = agent_of(agent);
    return std::string(loaded.task_graph["nodes"].items()[0]["code"].text("digest"));
  };
  const std::string base = digest("{ code: { language: cpp, parallel: 4 } }");
  EXPECT_EQ(base, to_hex(sha256(R"({"code":{"language":"cpp","parallel":4}})")));
  EXPECT_EQ(digest("{ code: { version: v7, parallel: 4, language: cpp } }"), base);
  EXPECT_NE(digest("{ code: { language: cpp, parallel: 5 } }"), base);
  EXPECT_NE(digest("{ code: { language: cpp, parallel: 4 }, input_schema: {} }"), base);
}

AE_TEST("code agents/patterns grant the tools of a server, or all tools, and no models") {
  constexpr std::string_view kTools =
      "aetheris: 1\n"
      "tools: { s: { mcp: { command: [npx] } }, w: { worker: w }, clock: { native: now } }\n"
      "models: { m: { provider: openai, base_url: 'http://h:1/v1', model: x } }\n"
      "agents: { a: { code: { language: cpp, uses: [";
  const auto uses = [&](std::string_view list) {
    const auto loaded = load_text(std::string(kTools) + std::string(list) + "] } } }\n");
    EXPECT_EQ(diagnostics_as_text(loaded.diagnostics), "") << list;
    std::string names;
    for (const Value& name :
         loaded.file.agents.at("a").task_graph["nodes"].items()[0]["code"]["tools"].items()) {
      if (!is_code_function(name.as_string())) names += name.as_string() + " ";
    }
    return names;
  };
  EXPECT_EQ(uses("'s.*'"), "s.find s.odd s.put ");
  EXPECT_EQ(uses("'*'"), "clock s.find s.odd s.put w ");
  EXPECT_EQ(uses("'*', 'model:m', w"), "clock model:m s.find s.odd s.put w ");
}

// What the code of agent `a` may call, without its own functions.
std::string used_by(const AgentsFile& file) {
  std::string names;
  for (const Value& name :
       file.agents.at("a").task_graph["nodes"].items()[0]["code"]["tools"].items()) {
    if (!is_code_function(name.as_string())) names += name.as_string() + " ";
  }
  return names;
}

AE_TEST("code agents/agent:NAME grants child jobs, awaited or detached, and job:send to send") {
  const auto loaded = load_text(
      "aetheris: 1\n"
      "tools: { clock: { native: now } }\n"
      "agents:\n"
      "  a: { code: { language: cpp, uses: ['agent:b', 'agent:far', 'job:send', '*'] } }\n"
      "  b: { input_schema: { type: object, required: [n] }, code: { language: cpp } }\n");
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  EXPECT_EQ(used_by(loaded.file),
            "agent:b agent:b:detached agent:far agent:far:detached clock job:send ");
  const auto plan = engine::Plan::compile(loaded.file.agents.at("a").task_graph);
  ASSERT_TRUE(plan) << plan.error().message;
  const Value& tools = loaded.file.agents.at("a").task_graph["tools"];
  EXPECT_EQ(canonical(tools["agent:b:detached"]["child"]), R"({"detached":true,"name":"b"})");
  EXPECT_EQ(canonical(tools["agent:b"]["args_schema"]), R"({"required":["n"],"type":"object"})");
  EXPECT_EQ(tools["job:send"]["sends"], Value(true));
  ASSERT_EQ(loaded.file.notes.size(), 1u) << "once for both tools of an agent";
  EXPECT_EQ(loaded.file.notes[0].path, "agents.a.code.uses[1]");
  EXPECT_NE(loaded.file.notes[0].message.find("`far` is not in this file"), std::string::npos)
      << loaded.file.notes[0].message;
}

AE_TEST(
    "code agents/a pattern grants neither child jobs nor job:send, and their names are checked") {
  const auto loaded = load_text(std::string(kOne) +
                                "{ code: { language: cpp, uses: ['agent:a'] } }\n  b: { code: "
                                "{ language: cpp, uses: ['job:send'] } }\n");
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  EXPECT_EQ(used_by(loaded.file), "agent:a agent:a:detached ");
  const auto refused = [](std::string_view entry) {
    return diagnostics_of_agent("{ code: { language: cpp, uses: ['" + std::string(entry) +
                                "'] } }");
  };
  EXPECT_NE(refused("agent:a:detached").find("did you mean agent:a?"), std::string::npos)
      << refused("agent:a:detached");
  EXPECT_NE(refused("agent:").find("an agent"), std::string::npos) << refused("agent:");
  EXPECT_NE(refused("agent:x.y").find("an agent"), std::string::npos) << refused("agent:x.y");
  EXPECT_NE(refused("job:other"), "");
}

AE_TEST("agents/a node of a plan, and the items of a map, can send to other jobs") {
  const auto loaded = load_text(
      "aetheris: 1\n"
      "agents:\n"
      "  a:\n"
      "    plan:\n"
      "      - { id: say, tool: 'job:send', args: { job: j, to: { channel: in }, payload: 1 } }\n"
      "      - { id: all, map: \"${ .input }\", max_parallel: 2,\n"
      "          do: { tool: 'job:send', args: { job: \"${ .item }\", to: { key: k }, payload: 1 } "
      "} }\n");
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  EXPECT_EQ(loaded.file.agents.at("a").task_graph["tools"]["job:send"]["sends"], Value(true));
}

AE_TEST("code agents/the arguments of job:send name a job, and a channel or a key") {
  const auto loaded =
      load_text(std::string(kOne) + "{ code: { language: cpp, uses: ['job:send'] } }\n");
  const auto plan = engine::Plan::compile(loaded.file.agents.at("a").task_graph);
  ASSERT_TRUE(plan) << plan.error().message;
  const auto tool = std::ranges::find((*plan)->tools, "job:send", &engine::ToolPolicy::name);
  const auto takes = [&](std::string_view args) {
    return tool->args_schema->check(parse_json(args).value_or(Value())).has_value();
  };
  EXPECT_TRUE(takes(R"({"job":"j","payload":null,"to":{"channel":"c"}})"));
  EXPECT_TRUE(takes(R"({"job":"j","payload":{"n":1},"to":{"key":"k"}})"));
  EXPECT_FALSE(takes(R"({"job":"j","payload":1})"));
  EXPECT_FALSE(takes(R"({"job":"j","payload":1,"to":{}})"));
  EXPECT_FALSE(takes(R"({"job":"j","payload":1,"to":{"channel":"c","key":"k"}})"));
  EXPECT_FALSE(takes(R"({"job":"j","payload":1,"to":{"channel":"c","control":"end"}})"));
  EXPECT_FALSE(takes(R"({"job":"j","payload":1,"to":{"channel":""}})"));
  EXPECT_FALSE(takes(R"({"job":"","payload":1,"to":{"channel":"c"}})"));
  EXPECT_FALSE(takes(R"({"job":"j","to":{"channel":"c"}})"));
}

AE_TEST("code agents/policies apply to the functions of code by name, by group and by *") {
  const auto rules = [](std::string_view policies) {
    const auto loaded = load_text("aetheris: 1\npolicies: [ " + std::string(policies) +
                                  " ]\nagents: { a: { code: { language: cpp } } }\n");
    EXPECT_EQ(diagnostics_as_text(loaded.diagnostics), "") << policies;
    std::string text;
    if (loaded.file.agents.empty()) return text;
    for (const auto& [name, tool] : loaded.file.agents.at("a").task_graph["tools"].members()) {
      if (tool.find("rules") != nullptr) text += name + " ";
    }
    return text;
  };
  EXPECT_EQ(rules("{ tools: [\"run:idempotent\"], action: deny }"), "run:idempotent ");
  EXPECT_EQ(rules("{ tools: [\"run:*\"], action: deny }"),
            "run:at_most_once run:idempotent run:read ");
  EXPECT_EQ(rules("{ tools: [\"fetch:*\", \"run:read\"], action: deny }"),
            "fetch:at_most_once fetch:idempotent fetch:read run:read ");
  const std::string all =
      "fetch:at_most_once fetch:idempotent fetch:read run:at_most_once run:idempotent run:read ";
  EXPECT_EQ(rules("{ action: require_approval }"), all);
  EXPECT_EQ(rules("{ tools: [\"*\"], when: \"${ .args.amount > 1 }\", action: deny }"), all);
  EXPECT_EQ(rules("{ agents: [a], action: deny }"), all);
}

AE_TEST("code agents/check warns about names of functions that no call has") {
  const auto loaded = load_text(
      "aetheris: 1\npolicies:\n"
      "  - { tools: [\"fetch:*\", \"run:*\", \"fetch:at_most_once\"], action: deny }\n"
      "agents: { a: { code: { language: cpp } } }\n");
  EXPECT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  std::string notes;
  for (const Note& note : loaded.file.notes) {
    notes += fmt::format("{}: {}\n", note.path, note.message);
  }
  EXPECT_EQ(notes,
            "policies[0].tools[0]: `fetch:*` matches no call: requests of `ctx.fetch` are calls of "
            "`run:*`\n"
            "policies[0].tools[2]: `fetch:at_most_once` matches no call: requests of `ctx.fetch` "
            "are calls of `run:at_most_once`\n");
}

AE_TEST("code agents/policies of an operator that name functions of code apply to later agents") {
  std::vector<Policy> policies;
  ASSERT_EQ(
      diagnostics_as_text(load_policies(
          {.name = "policies.yaml",
           .text = "aetheris: 1\npolicies:\n"
                   "  - { tools: [\"run:*\", \"fetch:read\"], action: deny }\n"
                   "  - { tools: [\"run:reed\"], action: deny }\n"
                   "  - { tools: [pay, \"run:read\"], action: deny, when: \"${ .args.x }\" }\n"
                   "  - { when: \"${ .args.x > 1 }\", action: deny }\n",
           .env = {},
           .native = {},
           .usable = {}},
          policies)),
      "");
  const auto unused = [&](std::string_view agents) {
    const auto loaded = load_text(
        "aetheris: 1\ntools: { look: { worker: look, args_schema: { type: object, "
        "additionalProperties: false, properties: { y: { type: number } } } } }\n" +
        std::string(agents));
    EXPECT_EQ(diagnostics_as_text(loaded.diagnostics), "");
    std::string text;
    for (const Note& note : unused_policies(policies, {&loaded.file})) {
      text += fmt::format("{} {}\n", note.path, note.message);
    }
    return text;
  };
  const std::string misspelt =
      "policies[0].tools[1] `fetch:read` matches no call: requests of `ctx.fetch` are calls of "
      "`run:read`\n"
      "policies[1] this policy applies to nothing: no file has a tool named `run:reed`\n"
      "policies[2].tools[0] no file has a tool named `pay`\n";
  EXPECT_EQ(
      unused("agents: { a: { plan: [ { id: x, tool: look, args: { y: 1 } } ] } }\n"),
      misspelt + "policies[3].when .args.x does not exist: the tool `look` has no such argument\n");
  EXPECT_EQ(unused("agents: { a: { code: { language: cpp } } }\n"),
            misspelt +
                "policies[3].when every call of `look` will fail: it has no argument "
                ".args.x. List the `tools` of the rule, or give a default: `.args.x // "
                "other`\n");
}

AE_TEST("code agents/a fragment that a worker registers compiles as its file does") {
  AgentsFile file;
  const auto source = [](std::string_view text) {
    return Source{.name = "agents.yaml",
                  .text = text,
                  .env = [](std::string_view) { return "http://shop:9000"; },
                  .native = {},
                  .usable = {}};
  };
  ASSERT_EQ(diagnostics_as_text(load(source(kCode), file)), "");
  const Agent& from_file = file.agents.at("refund");
  Agent from_json;
  ASSERT_EQ(diagnostics_as_text(
                load_agent(source(kCode), "refund", canonical(from_file.definition), from_json)),
            "");
  EXPECT_EQ(canonical(from_json.task_graph), canonical(from_file.task_graph));
  EXPECT_EQ(from_json.execution_version, "1.4.0");

  Agent untouched{.name = "untouched"};
  const std::string text =
      diagnostics_text(load_agent(source(kCode), "refund", R"({"code": {"language": "pyhton",
  "uses": ["pay_bak", "model:mein"], "version": "1 0"}, "outptu_schema": {}})",
                                  untouched));
  EXPECT_EQ(text,
            ":1:23: refund.code.language: must be one of cpp, typescript, python, other (did you "
            "mean python?)\n"
            ":2:12: refund.code.uses[0]: unknown tool `pay_bak` (did you mean pay_back?)\n"
            ":2:23: refund.code.uses[1]: unknown model `mein` (did you mean model:main?)\n"
            ":2:49: refund.code.version: a version must have 1 to 64 of the characters A-Z a-z "
            "0-9 . _ -\n"
            ":2:57: refund.outptu_schema: unknown key `outptu_schema` (did you mean "
            "output_schema?)\n");
  EXPECT_EQ(untouched.name, "untouched");
}

AE_TEST_SLOW("code agents/code uses at most 4,090 tools") {
  const auto with_tools = [](int count) {
    std::string text = "aetheris: 1\ntools:\n";
    for (int i = 0; i < count; ++i) text += fmt::format("  t{}: {{ worker: t }}\n", i);
    return diagnostics_as_text(
        load_text(text + "agents: { a: { code: { language: cpp, uses: ['*'] } } }\n").diagnostics);
  };
  EXPECT_EQ(with_tools(4'090), "");
  EXPECT_NE(with_tools(4'091).find("code can use at most 4090 tools and models"),
            std::string::npos);
}

AE_TEST("code agents/a tool of a worker records that it is a function") {
  const auto loaded = load_text(kCode);
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  const ToolDefinition& tool = loaded.file.tools.at("pay_back");
  EXPECT_EQ(tool.kind, "worker");
  EXPECT_EQ(canonical(tool.definition),
            R"({"definite_failures":[409],"function":"refund_order","heartbeat_timeout":"2s",)"
            R"("output_max":65536})");
  EXPECT_TRUE(tool.policy.function);
  EXPECT_FALSE(tool.policy.local);
  const ToolDefinition& unused = loaded.file.tools.at("unused");
  EXPECT_EQ(canonical(unused.definition), R"({"function":"unused"})");
  EXPECT_EQ(unused.policy.effect, engine::EffectClass::at_most_once);
  EXPECT_EQ(unused.policy.on_in_doubt, engine::OnInDoubt::park);
  EXPECT_EQ(unused.policy.retry.max_attempts, 1u);
  EXPECT_EQ(diagnostics_of_agent("{ code: { language: other } }"), "");
}

AE_TEST("code agents/plans and loops call tools of workers") {
  const auto loaded = load_text(R"(aetheris: 1
tools: { score: { worker: score, description: Rates, effect: read } }
models: { m: { provider: openai, base_url: 'http://h:1/v1', model: x } }
agents:
  plan: { plan: [ { id: a, tool: score }, { id: b, map: [1], do: { tool: score } } ] }
  loop: { loop: { model: m, tools: [score] } }
)");
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  for (const char* name : {"plan", "loop"}) {
    const Value& graph = loaded.file.agents.at(name).task_graph;
    EXPECT_EQ(graph["tools"]["score"]["function"], Value(true)) << name;
    EXPECT_EQ(graph["tools"].find("run:read"), nullptr) << name;
    EXPECT_TRUE(engine::Plan::compile(graph)) << name;
  }
}

}  // namespace
}  // namespace ae::agents
