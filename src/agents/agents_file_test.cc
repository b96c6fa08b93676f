// load: valid agents files: task graphs, tools, YAML and JSON, and the files of the documentation.
#include "agents/agents_file.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <tuple>

#include "agents/check_context.h"
#include "agents/source_tree.h"
#include "agents/test_load.h"
#include "json/json.h"
#include "schema/schema.h"
#include "testing/test.h"

namespace ae::agents {
namespace {

using testing::diagnostics_as_text;
using testing::files_of_the_documentation;
using testing::load_text;
using testing::read_file;

constexpr std::string_view kShop = R"(aetheris: 1
tools:
  get_order:
    http: { method: GET, url: "${ env.SHOP }/orders/${ .args.id }" }
    effect: read
  charge:
    http: { method: POST, url: "${env.SHOP}/charges", headers: { Authorization: "Bearer secret:PAY" } }
    effect: idempotent
    timeout: 90s
    retry: { max_attempts: 4, retry_on: [timeout, 429, "5xx"] }
    args_schema: { type: object, required: [amount] }
  mail: { command: [sendmail, "${ .args.to }"], output: json, output_max: 64KiB }
  unused: { native: echo }
agents:
  refund:
    description: Gives money back
    input_schema: { type: object, required: [order_id] }
    labels: { team: money, "a.b/c": d }
    deadline: 120m
    max_attempts: 3
    plan:
      - { id: order, tool: get_order, args: { id: "${ .input.order_id }" } }
      - { id: ok, wait: { type: signal, key: "approve-${ .input.order_id }", expires: 1440m, on_expire: continue }, needs: [order], when: "${ .steps.order.total > 100 }" }
      - { id: pause, wait: { type: timer, for: 60s } }
      - { id: at, wait: { type: timer, until: "2030-01-01T00:00:00+00:00" } }
      - { id: charge, tool: charge, needs: [order, ok], args: { amount: "${ .steps.order.total }" }, on_error: continue }
      - { id: each, map: "${ .steps.order.items }", as: item, needs: [charge], on_item_error: collect, do: { tool: mail, args: { to: "${ .item.to }" } } }
      - { id: few, map: [1, 2], as: n, max_parallel: 2, on_item_error: fail, do: { tool: mail, args: { to: "${ .n }", args: {} } }, when: true, on_error: fail, needs: [] }
    output: { charge: "${ .steps.charge }", all: "${ .steps }" }
)";

AE_TEST("agents/a good file becomes the normal form of its plans") {
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

AE_TEST("agents/what a transport needs is resolved and keeps its secrets as references") {
  const auto loaded = load_text(kShop);
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  const auto& tools = loaded.file.tools;
  EXPECT_EQ(canonical(tools.at("charge").definition),
            R"({"headers":{"Authorization":"Bearer secret:PAY"},"method":"POST",)"
            R"("url":"http://shop:9000/charges"})");
  EXPECT_EQ(canonical(tools.at("get_order").definition),
            R"({"method":"GET","url":"http://shop:9000/orders/${ .args.id }"})");
  EXPECT_EQ(canonical(tools.at("mail").definition),
            R"({"command":["sendmail","${ .args.to }"],"output":"json","output_max":65536})");
  EXPECT_EQ(canonical(tools.at("unused").definition), R"({"function":"echo"})");
  EXPECT_EQ(tools.at("unused").kind, "native");
  EXPECT_EQ(tools.at("charge").policy.retry.retry_on,
            (std::vector<std::string>{"timeout", "429", "5xx"}));
}

AE_TEST(
    "agents/tools that ask about calls and undo them are in the plan, though no node names them") {
  const auto loaded = load_text(R"(aetheris: 1
tools:
  book:
    native: echo
    on_in_doubt: probe
    probe: { tool: look, args: { key: "${ .call.external_key }" }, happened: "${ .result.found }" }
    compensate: { tool: unbook, args: { id: "${ .result.id }" } }
  look: { native: echo, effect: read }
  unbook: { native: echo, effect: idempotent, compensate: { tool: book } }
  other: { native: echo }
agents: { a: { plan: [ { id: x, tool: book } ] } }
)");
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  const Value& tools = loaded.file.agents.at("a").task_graph["tools"];
  ASSERT_EQ(tools.size(), 3u);
  EXPECT_EQ(
      canonical(tools["book"]["probe"]),
      R"({"args":{"key":"${ .call.external_key }"},"happened":"${ .result.found }","tool":"look"})");
  EXPECT_EQ(canonical(tools["book"]["compensate"]),
            R"({"args":{"id":"${ .result.id }"},"tool":"unbook"})");
  EXPECT_EQ(tools["look"].find("probe"), nullptr);
}

AE_TEST("agents/the defaults of a policy follow from its effect") {
  const auto loaded = load_text(R"(aetheris: 1
tools:
  nothing_said: { native: echo }
  read: { native: echo, effect: read }
  idempotent: { native: echo, effect: idempotent, dedupe_window: unlimited, on_in_doubt: fail }
agents: { a: { plan: [ { id: x, tool: read } ] } }
)");
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  const auto& nothing_said = loaded.file.tools.at("nothing_said").policy;
  EXPECT_EQ(nothing_said.effect, engine::EffectClass::at_most_once);
  EXPECT_EQ(nothing_said.on_in_doubt, engine::OnInDoubt::park);
  EXPECT_EQ(nothing_said.retry.max_attempts, 1u);
  EXPECT_EQ(nothing_said.timeout, std::chrono::seconds(30));
  EXPECT_EQ(nothing_said.grace, std::chrono::seconds(30));
  EXPECT_EQ(nothing_said.dedupe_window, std::chrono::hours(24));
  EXPECT_EQ(loaded.file.tools.at("read").policy.on_in_doubt, engine::OnInDoubt::resend);
  EXPECT_EQ(loaded.file.tools.at("read").policy.retry.max_attempts, 4u);
  EXPECT_EQ(loaded.file.tools.at("idempotent").policy.retry.max_attempts, 1u);
  EXPECT_EQ(loaded.file.tools.at("idempotent").policy.on_in_doubt, engine::OnInDoubt::fail);
  EXPECT_EQ(loaded.file.tools.at("idempotent").policy.dedupe_window, std::nullopt);
}

constexpr std::string_view kDefaultRetry =
    R"({"initial_backoff":"1s","max_attempts":4,"max_backoff":"1m","multiplier":2,)"
    R"("retry_on":["connect","timeout","reset","408","429","5xx"]})";
constexpr std::string_view kOneTry =
    R"({"initial_backoff":"200ms","max_attempts":1,"max_backoff":"10s","multiplier":2,"retry_on":["connect"]})";

AE_TEST("agents/a model and a read tool without retry get one in the plan, other tools do not") {
  const auto loaded = load_text(R"(aetheris: 1
tools:
  look: { http: { method: GET, url: 'http://shop:9000/' }, effect: read }
  once: { native: echo }
  keyed: { native: echo, effect: idempotent }
  clock: { native: now }
  own: { native: echo, effect: read, retry: { max_attempts: 2, max_backoff: 5s } }
  off: { native: echo, effect: read, retry: { max_attempts: 1 } }
models:
  main: { provider: openai, base_url: 'http://h:1/v1', model: m }
  claude: { provider: anthropic, base_url: 'http://h:1/v1', model: m }
  off: { provider: openai, base_url: 'http://h:1/v1', model: m, retry: { max_attempts: 1 } }
agents:
  a:
    plan:
      - { id: l, tool: look }
      - { id: o, tool: once }
      - { id: k, tool: keyed }
      - { id: c, tool: clock }
      - { id: w, tool: own }
      - { id: f, tool: off }
      - { id: m, llm: { model: main, prompt: Hi } }
      - { id: t, loop: { model: claude, prompt: Hi, tools: [look] } }
      - { id: n, llm: { model: off, prompt: Hi } }
  p: { planner: { model: main, system: Plan., tools: [look, once] } }
)");
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  const Value& tools = loaded.file.agents.at("a").task_graph["tools"];
  for (const char* name : {"look", "model:main", "model:claude"}) {
    EXPECT_EQ(canonical(tools[name]["retry"]), kDefaultRetry) << name;
  }
  for (const char* name : {"once", "keyed", "clock"}) {
    EXPECT_EQ(canonical(tools[name]["retry"]), kOneTry) << name;
  }
  // A `retry` in the file changes only the keys that it sets.
  for (const char* name : {"off", "model:off"}) {
    EXPECT_EQ(canonical(tools[name]["retry"]),
              R"({"initial_backoff":"1s","max_attempts":1,"max_backoff":"1m","multiplier":2,)"
              R"("retry_on":["connect","timeout","reset","408","429","5xx"]})")
        << name;
  }
  EXPECT_EQ(canonical(tools["own"]["retry"]),
            R"({"initial_backoff":"1s","max_attempts":2,"max_backoff":"5s","multiplier":2,)"
            R"("retry_on":["connect","timeout","reset","408","429","5xx"]})");
  const Value& planned = loaded.file.agents.at("p").task_graph["tools"];
  EXPECT_EQ(canonical(planned["model:main"]["retry"]), kDefaultRetry);
  EXPECT_EQ(canonical(planned["look"]["retry"]), kDefaultRetry);
  EXPECT_EQ(canonical(planned["once"]["retry"]), kOneTry);
}

AE_TEST("agents/the default retry is not part of a version: an older build has the same tool") {
  const auto loaded = load_text(R"(aetheris: 1
tools:
  plain: { native: echo, effect: read }
  off: { native: echo, effect: read, retry: { max_attempts: 1 } }
  own: { native: echo, effect: read, retry: { max_attempts: 2 } }
models:
  plain: { provider: openai, base_url: 'http://h:1/v1', model: m }
  off: { provider: openai, base_url: 'http://h:1/v1', model: m, retry: { max_attempts: 1 } }
agents: { a: { plan: [ { id: x, tool: plain }, { id: m, llm: { model: plain, prompt: Hi } } ] } }
)");
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  const auto& tools = loaded.file.tools;
  const auto& models = loaded.file.models;
  // As computed by builds without the default.
  EXPECT_EQ(tools.at("plain").policy.version, "fefe3421b0e0f1d8");
  EXPECT_EQ(models.at("model:plain").policy.version, "1ca164513ef8eb89");
  EXPECT_EQ(tools.at("off").policy.version, tools.at("plain").policy.version);
  EXPECT_NE(tools.at("own").policy.version, tools.at("plain").policy.version);
  EXPECT_EQ(models.at("model:off").policy.version, models.at("model:plain").policy.version);
  const Value& graph = loaded.file.agents.at("a").task_graph;
  EXPECT_EQ(graph["tools"]["plain"].text("version"), tools.at("plain").policy.version);
}

AE_TEST("agents/a tool's version changes with its target and its policy, not with its words") {
  const auto load_version = [](std::string_view tool) {
    const auto loaded = load_text("aetheris: 1\ntools: { t: " + std::string(tool) +
                                  " }\nagents: { a: { plan: [ { id: x, tool: t } ] } }\n");
    EXPECT_EQ(diagnostics_as_text(loaded.diagnostics), "") << tool;
    return loaded.file.tools.contains("t") ? loaded.file.tools.at("t").policy.version : "";
  };
  const std::string version =
      load_version("{ http: { method: GET, url: 'http://shop:9000/' }, timeout: 60s }");
  EXPECT_EQ(version.size(), 16u);
  EXPECT_EQ(version, load_version("{ timeout: 1m, description: A tool, http: { url: "
                                  "'${ env.SHOP }/', method: GET }, result: body }"));
  EXPECT_NE(version, load_version("{ http: { method: GET, url: 'http://other/' }, timeout: 1m }"));
  EXPECT_NE(version,
            load_version("{ http: { method: GET, url: 'http://shop:9000/' }, timeout: 61s }"));
  EXPECT_NE(version, load_version("{ http: { method: GET, url: 'http://shop:9000/' }, timeout: 1m, "
                                  "result_schema: { type: object } }"));
}

AE_TEST("agents/the plan carries the schemas of its tools, and holds calls and results to them") {
  const auto loaded = load_text(
      "aetheris: 1\ntools:\n"
      "  t: { native: echo, args_schema: { required: [a] }, result_schema: { type: [object, "
      "'null'] } }\n"
      "  u: { native: echo, result_schema: false }\n"
      "agents: { a: { plan: [ { id: x, tool: t, args: { a: 1 } }, { id: y, tool: u } ] } }\n");
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  const Value& graph = loaded.file.agents.at("a").task_graph;
  EXPECT_EQ(canonical(graph["tools"]["t"]["result_schema"]), R"({"type":["object","null"]})");
  const auto plan = engine::Plan::compile(graph);
  ASSERT_TRUE(plan) << plan.error().message;
  for (const engine::ToolPolicy& tool : (*plan)->tools) {
    ASSERT_TRUE(tool.result_schema);
    EXPECT_EQ(tool.result_schema->validate(Value::object({})).empty(), tool.name == "t");
    EXPECT_EQ(tool.result_digest,
              to_hex(sha256(canonical(graph["tools"][tool.name]["result_schema"]))));
  }
}

AE_TEST("agents/the YAML and the JSON of one file are the same plan") {
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

AE_TEST("agents/a JSON file has faults with places too") {
  EXPECT_EQ(diagnostics_as_text(
                load_text("{\"aetheris\": 1,\n  \"agents\": {\"ä\": {\"plan\": \"\\\"${ 1 + "
                          "}\"}, \"b\":\n{}}}",
                          "a.json")
                    .diagnostics),
            "2:14 plan_invalid agents[\"ä\"]: `ä` is not a valid name for an agent: use up to 64 "
            "letters, digits, _ and -, starting with a letter or _\n"
            "2:28 plan_invalid agents[\"ä\"].plan: must be a list, not a string\n"
            "3:1 plan_invalid agents.b.plan: `plan` is missing: the list of nodes that this agent "
            "runs (or use `loop` or `planner`)\n");
}

AE_TEST("agents/a .json file is held to the rules of JSON") {
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

AE_TEST("agents/a byte order mark and lines of Windows are taken") {
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

AE_TEST("agents/an environment value stands as it is, whatever is in it") {
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

AE_TEST("agents/faults are told as text and as JSON") {
  const auto loaded = load_text("aetheris: 1\nagents: { a: { plans: [] } }\n");
  EXPECT_EQ(diagnostics_text(loaded.diagnostics),
            "agents.yaml:2:14: agents.a.plan: `plan` is missing: the list of nodes that this agent "
            "runs (or use `loop` or `planner`)\n"
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

AE_TEST("agents/every file of docs/agents-file.md is a good file") {
  const auto files = files_of_the_documentation();
  ASSERT_GT(files.size(), 8u);
  for (const std::string& file : files) {
    EXPECT_EQ(diagnostics_as_text(load_text(file).diagnostics), "") << file;
  }
}

constexpr std::string_view kModels = R"(aetheris: 1
models:
  main: { provider: openai, base_url: "${ env.SHOP }/v1/", api_key: "secret:KEY", model: gpt-5-mini, max_tokens: 400, temperature: 0.5, timeout: 1m }
  old: { provider: openai, base_url: "http://h:1/v1", model: small, max_tokens_name: max_tokens, retry: { max_attempts: 3, retry_on: [429, reset] } }
  unused: { provider: openai, base_url: "https://h/v1", model: x }
agents:
  a:
    plan:
      - { id: note, llm: { model: main, system: You are brief., prompt: "Note on ${ .input.x }" } }
      - id: more
        needs: [note]
        llm:
          model: old
          temperature: 1
          messages: [{ role: user, content: "a" }, { role: assistant, content: "${ .steps.note.text }" }]
      - { id: all, llm: { model: old, messages: "${ .input.messages }" }, when: false }
      - { id: each, map: [1, 2], do: { llm: { model: main, max_tokens: 7, prompt: "${ .item }" } } }
)";

AE_TEST("agents/a node that asks a model becomes a call of it, with the request as its arguments") {
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
            R"({"api_key":"secret:KEY","base_url":"http://shop:9000/v1/"})");
  EXPECT_EQ(canonical(loaded.file.models.at("model:old").definition),
            R"({"base_url":"http://h:1/v1","max_tokens_name":"max_tokens"})");
  EXPECT_EQ(model.policy.version, main.text("version"));
}

constexpr std::string_view kLoops = R"(aetheris: 1
tools:
  find: { native: echo, description: Finds it, args_schema: { type: object, required: [q] } }
  pay: { native: echo, effect: idempotent, compensate: { tool: unpay } }
  unpay: { native: echo, effect: idempotent, description: Nobody is told }
models:
  main: { provider: openai, base_url: "http://h:1/v1", model: small, temperature: 0.5 }
agents:
  all:
    loop: { model: main, system: You are kind., tools: [pay, "*"], max_turns: 7 }
  some:
    output: "${ .steps.talk.text }"
    plan:
      - { id: look, tool: find, args: { q: 1 } }
      - { id: talk, needs: [look], on_error: continue, loop: { model: main, prompt: "About ${ .steps.look }", tools: [find], parallel_tools: 1, max_tokens: 9, schema: { type: object }, on_reject: fail } }
)";

AE_TEST("agents/a loop becomes a node with its model, its words and the tools that it may call") {
  const auto loaded = load_text(kLoops);
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  const Value& all = loaded.file.agents.at("all").task_graph;
  EXPECT_EQ(
      canonical(all["nodes"]),
      R"([{"id":"loop","kind":"loop","loop":{"max_turns":7,"model":"small","parallel_tools":4,"prompt":"${ .input.message? // .input }","system":"You are kind.","temperature":0.5,"tool":"model:main","tools":["pay","find","unpay"]}}])");
  EXPECT_EQ(all["output"], Value("${ .steps.loop }"));
  EXPECT_EQ(all["tools"]["find"].text("description"), "Finds it");
  const Value& some = loaded.file.agents.at("some").task_graph;
  EXPECT_EQ(
      canonical(some["nodes"].items()[1]),
      R"({"id":"talk","kind":"loop","loop":{"max_tokens":9,"max_turns":20,"model":"small","on_reject":"fail","parallel_tools":1,"prompt":"About ${ .steps.look }","repair":1,"schema":{"type":"object"},"temperature":0.5,"tool":"model:main","tools":["find"]},"needs":["look"],"on_error":"continue"})");
  EXPECT_EQ(some["tools"].size(), 2u) << "what it may not call is no part of the plan";
}

AE_TEST(
    "agents/answers with a schema are mended, unless the file says no, and none about items of a "
    "map") {
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

AE_TEST(
    "agents/a planner becomes a node that holds its question and the tools that its plan may "
    "call") {
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
  EXPECT_EQ(graph["tools"].size(), 2u) << "what it may not plan with is no part of the plan";
  EXPECT_EQ(graph.find("output"), nullptr);
  const Value& strict = loaded.file.agents.at("b").task_graph["nodes"].items()[0]["planner"];
  EXPECT_EQ(strict.find("repair"), nullptr);
}

AE_TEST("agents/what is wrong in a loop is said where it stands") {
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

constexpr std::string_view kProviders = R"(aetheris: 1
models:
  claude: { provider: anthropic, base_url: "https://h/v1", api_key: "secret:KEY", model: m, price: { input: 3, output: "15.00", cached: 0.3 } }
  plain: { provider: anthropic, base_url: "https://h/v1", api_key: "secret:KEY", model: m }
agents:
  a:
    plan:
      - id: look
        llm:
          model: claude
          max_tokens: 9
          schema: { type: object, additionalProperties: false }
          messages:
            - role: user
              content: [{ type: text, text: "What is ${ .input.x }?" }, { type: image, url: "https://h/${ .input.x }.png" }]
      - { id: say, llm: { model: plain, prompt: Hi } }
)";

AE_TEST("agents/another provider's model has its limit, its price and its parts in the plan") {
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

AE_TEST(
    "agents/a budget becomes exact limits in the plan, and a cost needs the prices of all models") {
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

AE_TEST("agents/the JSON Schema that ships takes good files and refuses bad ones") {
  const auto document = parse_json(agents_schema_json());
  ASSERT_TRUE(document) << document.error().message;
  const auto schema = Schema::compile(*document);
  ASSERT_TRUE(schema) << schema.error().message;
  std::vector<std::string> good = files_of_the_documentation();
  good.emplace_back(kShop);
  good.emplace_back(kModels);
  good.emplace_back(kProviders);
  for (const std::string& file : good) {
    for (const SchemaViolation& fault : schema->validate(value_of(file))) {
      ADD_FAILURE() << fault.instance_path << ": " << fault.message << "\n" << file;
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

}  // namespace
}  // namespace ae::agents
