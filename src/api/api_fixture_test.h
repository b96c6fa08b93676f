// ApiFixture: the Api on a store in memory, with native tools and a clock that the test advances.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agents/agents_file.h"
#include "api/api.h"
#include "json/json.h"
#include "runtime/scheduler/runtime.h"
#include "store/faulty/faulty_store.h"
#include "store/memory/memory_store.h"
#include "testing/native_functions.h"
#include "testing/test.h"
#include "testing/test_loop.h"
#include "tools/native/native.h"

namespace ae::api {

inline constexpr std::string_view kApiAgents = R"(
aetheris: 1
tools:
  echo:  { native: echo, effect: read }
  doubt: { native: doubt, effect: at_most_once }
  strict: { native: doubt, effect: at_most_once, result_schema: { type: object, required: [id] } }
  buy:   { native: echo, effect: idempotent, approval: "${ .args.n > 100 }" }
agents:
  echo:
    input_schema: { type: object, properties: { n: { type: integer } } }
    labels: { made: by-hand }
    plan: [ { id: say, tool: echo, args: { said: "${ .input }" } } ]
    output: "${ .steps.say.said }"
  asks:
    plan:
      - { id: w, wait: { type: signal, key: "go" } }
    output: "${ .steps.w }"
  buys:
    plan: [ { id: buy, tool: buy, args: { n: "${ .input.n }" } } ]
    output: "${ .steps.buy }"
  listens:
    plan:
      - { id: m, wait: { type: message, channel: news } }
      - { id: h, wait: { type: human, key: ok }, needs: [m] }
    output: "${ .steps }"
  hurries:
    deadline: 1h
    plan:
      - { id: w, wait: { type: signal, key: "go" } }
  doubts: { plan: [ { id: d, tool: doubt } ], output: "${ .steps.d }" }
  strict: { plan: [ { id: d, tool: strict } ], output: "${ .steps.d }" }
  maps: { plan: [ { id: m, map: "${ .input.list }", do: { tool: echo, args: { x: "${ .item }" } } } ] }
  thrifty:
    budget: { tool_calls: 1, wall: 1h }
    plan:
      - { id: a, tool: echo, args: { n: 1 } }
      - { id: b, tool: echo, args: { n: 2 }, needs: [a] }
    output: "${ .steps.b }"
)";

class ApiFixture final : runtime::RuntimeObserver {
 public:
  explicit ApiFixture(bool runs = true, store::FaultScript faults = no_faults)
      : script(std::move(faults)) {
    const auto diagnostics = agents::load(source_of(kApiAgents), file);
    AE_CHECK(diagnostics.empty(), agents::diagnostics_text(diagnostics));
    for (const auto& [name, tool] : file.tools) {
      const std::string function(tool.definition.text("function"));
      tool_registry.add(name, {std::make_unique<tools::NativeTool>(
                                   loop, steady, testing::native_functions().at(function).function),
                               tool.policy.version});
    }
    runtime::RuntimeOptions options;
    options.may_claim = runs;
    runtime.emplace(runtime::World{.loop = loop,
                                   .steady = steady,
                                   .random = random,
                                   .store = store,
                                   .tool_registry = tool_registry},
                    options, static_cast<runtime::RuntimeObserver*>(this));
    api.emplace(loop, steady, store, *runtime, api_options(runs));
    if (runs) runtime->start();
  }

  // As `serve`: agents come from the registry.
  void serve() {
    ApiOptions options = api_options(true);
    options.read_agent = [this](std::string_view name, std::string_view json, agents::Agent& out) {
      return agents::load_agent(source_of(text), name, json, out);
    };
    api.emplace(loop, steady, store, *runtime, std::move(options));
    const Status registered =
        loop.await<Status>([&](auto done) { api->agents().register_all(std::move(done)); });
    AE_CHECK(registered.has_value(), "the registry is stored");
  }
  // As `serve --watch` after an edit of the file. `begins` counts the calls of `begin`.
  Result<std::vector<AgentChange>> reload(const std::string& edited) {
    auto loaded = std::make_shared<agents::AgentsFile>();
    const auto diagnostics = agents::load(source_of(edited), *loaded);
    AE_CHECK(diagnostics.empty(), agents::diagnostics_text(diagnostics));
    AgentsReload edit{
        .file = loaded,
        .read_agent =
            [edited](std::string_view name, std::string_view json, agents::Agent& out) {
              return agents::load_agent(source_of(edited), name, json, out);
            },
        .begin = [this] { ++begins; }};
    return loop.await<Result<std::vector<AgentChange>>>(
        [&](auto done) { api->agents().reload(std::move(edit), std::move(done)); });
  }
  ApiResponse put(const std::string& agent, std::string_view body) {
    ApiRequest request;
    request.method = "PUT";
    request.path = {"api", "agents", agent};
    request.body = body;
    request.by = "key:1 ada";
    return send(std::move(request));
  }

  ApiResponse send(ApiRequest request) {
    return loop.await<ApiResponse>(
        [&](auto done) { api->handle(std::move(request), std::move(done)); });
  }
  ApiResponse get(Path path, QueryPairs query = {}) {
    ApiRequest request;
    request.path = std::move(path);
    request.query = std::move(query);
    return send(std::move(request));
  }
  ApiResponse post(Path path, std::string_view body, QueryPairs query = {}) {
    ApiRequest request;
    request.method = "POST";
    request.path = std::move(path);
    request.query = std::move(query);
    request.body = body;
    request.by = "ada";
    return send(std::move(request));
  }
  // Creates a job and runs it until nothing is ready.
  std::string make(std::string_view body) {
    const ApiResponse made = post({"api", "jobs"}, body);
    EXPECT_EQ(made.status, 201) << canonical(made.body);
    loop.run_ready();
    loop.run_ready();
    return std::string(made.body.text("id"));
  }
  std::string status(const std::string& id) {
    return std::string(get({"api", "jobs", id}).body.text("status"));
  }

  ApiOptions api_options(bool runs) {
    return {.agents = &file,
            .runs = runs,
            .version = "0",
            .store = "memory:",
            .random_source = &random};
  }
  // Borrows `yaml`.
  static agents::Source source_of(std::string_view yaml) {
    return {.name = "agents.yaml",
            .text = yaml,
            .env = [](std::string_view) { return std::nullopt; },
            .native = [](std::string_view) { return true; },
            .usable = {}};
  }
  static store::Fault no_faults(const store::Call&) { return store::Fault::none; }

  int begins = 0;
  std::string text{kApiAgents};  // the agents file as `serve` rereads it
  testing::TestLoop loop;
  testing::TestSteadyClock steady{loop};
  testing::TestRandom random;
  store::MemoryStore memory{loop, loop};
  store::FaultScript script;
  store::FaultyStore store{loop, memory, store::FaultyStore::Options{.script = script}};
  runtime::ToolRegistry tool_registry;
  agents::AgentsFile file;
  std::optional<runtime::Runtime> runtime;
  std::optional<Api> api;

 private:
  void on_events(const JobId& job, const std::vector<Event>& events) override {
    if (api) api->on_events(job, events);
  }
};

// The response is a problem with this status and code, a title and a detail.
inline void expect_problem(const ApiResponse& response, int status, std::string_view code) {
  EXPECT_EQ(response.status, status) << canonical(response.body);
  EXPECT_EQ(response.body.text("code"), code);
  EXPECT_EQ(response.body["status"], Value(status));
  EXPECT_FALSE(response.body.text("title").empty());
  EXPECT_FALSE(response.body.text("detail").empty());
}

}  // namespace ae::api
