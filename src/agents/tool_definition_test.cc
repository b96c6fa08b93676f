// Tests of the tools of an agents file: definitions, policies, versions and schemas.
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agents/agents_file.h"
#include "agents/example_files_test.h"
#include "agents/test_load.h"
#include "json/json.h"
#include "testing/test.h"

namespace ae::agents {
namespace {

using testing::diagnostics_as_text;
using testing::kShop;
using testing::load_text;

AE_TEST("agents/tool definitions are resolved and keep secrets as references") {
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

AE_TEST("agents/probe and compensation tools are in the plan even if no node uses them") {
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

AE_TEST("agents/policy defaults follow from the effect") {
  const auto loaded = load_text(R"(aetheris: 1
tools:
  defaults: { native: echo }
  read: { native: echo, effect: read }
  idempotent: { native: echo, effect: idempotent, dedupe_window: unlimited, on_in_doubt: fail }
agents: { a: { plan: [ { id: x, tool: read } ] } }
)");
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  const auto& defaults = loaded.file.tools.at("defaults").policy;
  EXPECT_EQ(defaults.effect, engine::EffectClass::at_most_once);
  EXPECT_EQ(defaults.on_in_doubt, engine::OnInDoubt::park);
  EXPECT_EQ(defaults.retry.max_attempts, 1u);
  EXPECT_EQ(defaults.timeout, std::chrono::seconds(30));
  EXPECT_EQ(defaults.grace, std::chrono::seconds(30));
  EXPECT_EQ(defaults.dedupe_window, std::chrono::hours(24));
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

AE_TEST("agents/models and read tools get a default retry, other tools a single attempt") {
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

AE_TEST("agents/the default retry is not part of a tool's version") {
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

AE_TEST("agents/a tool's version depends on its target and policy, not on its description") {
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

AE_TEST("agents/the plan contains its tools' result schemas and validates with them") {
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

}  // namespace
}  // namespace ae::agents
