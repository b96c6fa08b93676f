// McpServerFixture: the MCP endpoint of an Api on a store in memory, with requests of any revision.
// Long: the requests of each revision, and what is expected of their answers.
#pragma once

#include <fmt/core.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agents/agents_file.h"
#include "api/api.h"
#include "json/json.h"
#include "mcp/protocol/revision.h"
#include "runtime/scheduler/runtime.h"
#include "store/memory/memory_store.h"
#include "testing/native_functions.h"
#include "testing/test.h"
#include "testing/test_loop.h"
#include "tools/native/native.h"

namespace ae::api {

using mcp::Revision;

inline constexpr std::string_view kMcpAgents = R"(
aetheris: 1
tools:
  echo: { native: echo, effect: read }
  fail: { native: fail, effect: read }
  buy:  { native: echo, effect: idempotent, approval: required }
  lost: { native: doubt, on_in_doubt: fail }
agents:
  echo:
    description: Returns its input
    input_schema: { type: object, properties: { n: { type: integer } } }
    plan: [ { id: say, tool: echo, args: { said: "${ .input }" } } ]
    output: "${ .steps.say.said }"
  number: { input_schema: { type: integer }, plan: [ { id: say, tool: echo, args: { n: "${ .input }" } } ], output: "${ .steps.say.n + 1 }" }
  fails: { plan: [ { id: f, tool: fail, args: { code: no_money, message: empty } } ] }
  asks: { plan: [ { id: w, wait: { type: signal, key: "go" } } ], output: "${ .steps.w }" }
  sleeps: { plan: [ { id: t, wait: { type: timer, for: 10s } }, { id: u, tool: echo, needs: [t] } ], output: "done" }
  buys: { plan: [ { id: buy, tool: buy, args: { n: "${ .input.n }" } } ], output: "${ .steps.buy }" }
  wants: { plan: [ { id: d, wait: { type: human, key: size, answer: data } } ], output: "${ .steps.d }" }
  interview:
    plan:
      - { id: name, wait: { type: human, key: user_name, answer: data } }
      - { id: color, needs: [name], wait: { type: human, key: color, answer: data } }
    output: "${ .steps.name.name + \" likes \" + .steps.color }"
  without:
    plan:
      - { id: a, tool: lost, on_error: continue }
      - { id: w, needs: [a], wait: { type: signal, key: "go" } }
  aetheris_job: { plan: [ { id: say, tool: echo } ] }
)";

inline constexpr std::string_view kModernMeta =
    R"("io.modelcontextprotocol/protocolVersion":"2026-07-28",)"
    R"("io.modelcontextprotocol/clientCapabilities":)";

class McpServerFixture final : runtime::RuntimeObserver {
 public:
  McpServerFixture() {
    const auto diagnostics = agents::load({.name = "agents.yaml",
                                           .text = kMcpAgents,
                                           .env = [](std::string_view) { return std::nullopt; },
                                           .native = [](std::string_view) { return true; }},
                                          file);
    AE_CHECK(diagnostics.empty(), agents::diagnostics_text(diagnostics));
    for (const auto& [name, tool] : file.tools) {
      const std::string function(tool.definition.text("function"));
      tool_registry.add(name, {std::make_unique<tools::NativeTool>(
                                   loop, steady, testing::native_functions().at(function).function),
                               tool.policy.version});
    }
    runtime.emplace(runtime::World{.loop = loop,
                                   .steady = steady,
                                   .random = random,
                                   .store = memory,
                                   .tool_registry = tool_registry},
                    runtime::RuntimeOptions(), static_cast<runtime::RuntimeObserver*>(this));
    api.emplace(loop, steady, memory, *runtime,
                ApiOptions{.agents = &file,
                           .runs = true,
                           .version = "7",
                           .store = "memory:",
                           .random_source = &random});
    runtime->start();
  }

  struct SentRequest {
    std::vector<Value> notifications;
    std::optional<ApiResponse> answer;
    std::stop_source disconnect;
  };
  // Sends, and runs what is ready without advancing the clock.
  std::shared_ptr<SentRequest> send(ApiRequest request) {
    auto sent = std::make_shared<SentRequest>();
    request.method = "POST";
    request.path = {"mcp"};
    request.disconnected = sent->disconnect.get_token();
    request.on_notification = [sent](const Value& message) {
      sent->notifications.push_back(message);
    };
    // As the HTTP server does: bodies that a reader thread makes are rendered there.
    request.render = [](const Value& body) { return RenderedBody{canonical(body)}; };
    api->handle(std::move(request), [sent](ApiResponse answer) {
      if (answer.rendered) answer.body = parse_json(answer.rendered->bytes).value();
      sent->answer = std::move(answer);
    });
    for (int i = 0; i < 20; ++i) loop.run_ready();
    return sent;
  }
  std::shared_ptr<SentRequest> send(std::string body, Revision revision, Role role = Role::admin) {
    ApiRequest request;
    request.body = std::move(body);
    request.mcp_revision = revision;
    request.by = "ada";
    request.role = role;
    request.body_quota = std::exchange(quota, nullptr);
    return send(std::move(request));
  }
  // Calls one method; `params` and the client's metadata are added.
  std::shared_ptr<SentRequest> start(Revision revision, std::string_view method, std::string params,
                                     std::string_view client = "{}", Role role = Role::admin,
                                     std::string_view meta = "") {
    std::string all = "\"_meta\":{" + std::string(meta);
    if (mcp::is_modern(revision)) {
      all += (meta.empty() ? "" : ",") + std::string(kModernMeta) + std::string(client);
    }
    all += "}" + (params.empty() ? params : "," + params);
    return send(R"({"jsonrpc":"2.0","id":1,"method":")" + std::string(method) + R"(","params":{)" +
                    all + "}}",
                revision, role);
  }
  Value request(Revision revision, std::string_view method, std::string params = "",
                std::string_view client = "{}", Role role = Role::admin,
                std::string_view meta = "") {
    const auto sent = start(revision, method, std::move(params), client, role, meta);
    // There is a pause between two reads of a job.
    for (int i = 0; i < 3 && !sent->answer; ++i) loop.advance(std::chrono::seconds(1));
    AE_CHECK(sent->answer.has_value(), fmt::format("no response to {}", method));
    return sent->answer->body;
  }
  Value result(Revision revision, std::string_view method, std::string params = "",
               std::string_view client = "{}", Role role = Role::admin,
               std::string_view meta = "") {
    const Value body = request(revision, method, std::move(params), client, role, meta);
    EXPECT_NE(body.find("result"), nullptr) << method << canonical(body);
    EXPECT_EQ(body["id"], Value(1));
    EXPECT_EQ(body["result"].find("resultType") != nullptr, mcp::is_modern(revision));
    return body["result"];
  }
  int error(Revision revision, std::string_view method, std::string params = "",
            std::string_view client = "{}", Role role = Role::admin) {
    const Value body = request(revision, method, std::move(params), client, role);
    EXPECT_NE(body.find("error"), nullptr) << method << canonical(body);
    return body["error"]["code"].is_integer() ? static_cast<int>(body["error"]["code"].as_int())
                                              : 0;
  }
  Value call(Revision revision, std::string_view tool, std::string_view arguments,
             std::string_view client = "{}", Role role = Role::admin, std::string_view meta = "") {
    return result(revision, "tools/call",
                  fmt::format(R"("name":"{}","arguments":{})", tool, arguments), client, role,
                  meta);
  }
  std::size_t jobs() {
    ApiRequest request;
    request.path = {"api", "jobs"};
    return loop
        .await<ApiResponse>([&](auto done) { api->handle(std::move(request), std::move(done)); })
        .body["jobs"]
        .size();
  }

  testing::TestLoop loop;
  testing::TestSteadyClock steady{loop};
  testing::TestRandom random;
  store::MemoryStore memory{loop, loop};
  runtime::ToolRegistry tool_registry;
  agents::AgentsFile file;
  std::optional<runtime::Runtime> runtime;
  std::optional<Api> api;
  std::shared_ptr<void> quota;  // of the body of the next request

 private:
  void on_events(const JobId& job, const std::vector<Event>& events) override {
    if (api) api->on_events(job, events);
  }
};

inline constexpr Revision kAllRevisions[] = {Revision::r2024_11_05, Revision::r2025_03_26,
                                             Revision::r2025_06_18, Revision::r2025_11_25,
                                             Revision::r2026_07_28};
inline constexpr Revision kModern = Revision::r2026_07_28, kLegacy = Revision::r2025_11_25;
inline constexpr std::string_view kWithElicitation = R"({"elicitation":{}})";

inline std::string text_of(const Value& result) {
  return std::string(result["content"].items()[0].text("text"));
}
inline std::string job_in(const Value& result) {
  return std::string(result["_meta"].text("aetheris/job"));
}

}  // namespace ae::api
