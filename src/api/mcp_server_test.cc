// Tests of MCP through the routes: each method in legacy and modern revisions, refusals,
// idempotency.
#include <functional>
#include <optional>
#include <utility>

#include "api/api.h"
#include "api/mcp.h"
#include "base/utf8.h"
#include "json/json.h"
#include "mcp/message.h"
#include "mcp/revision.h"
#include "store/memory/memory_store.h"
#include "testing/native_functions.h"
#include "testing/test.h"
#include "testing/test_loop.h"
#include "tools/native/native.h"

namespace ae::api {
namespace {

using mcp::Revision;

constexpr std::string_view kAgents = R"(
aetheris: 1
tools:
  echo: { native: echo, effect: read }
  fail: { native: fail, effect: read }
  buy:  { native: echo, effect: idempotent, approval: required }
  lost: { native: doubt, on_in_doubt: fail }
agents:
  echo:
    description: Says it again
    input_schema: { type: object, properties: { n: { type: integer } } }
    plan: [ { id: say, tool: echo, args: { said: "${ .input }" } } ]
    output: "${ .steps.say.said }"
  number:
    input_schema: { type: integer }
    plan: [ { id: say, tool: echo, args: { n: "${ .input }" } } ]
    output: "${ .steps.say.n + 1 }"
  fails: { plan: [ { id: f, tool: fail, args: { code: no_money, message: empty } } ] }
  asks:
    plan: [ { id: w, wait: { type: signal, key: "go" } } ]
    output: "${ .steps.w }"
  sleeps:
    plan: [ { id: t, wait: { type: timer, for: 10s } }, { id: u, tool: echo, needs: [t] } ]
    output: "done"
  buys:
    plan: [ { id: buy, tool: buy, args: { n: "${ .input.n }" } } ]
    output: "${ .steps.buy }"
  wants:
    plan: [ { id: d, wait: { type: human, key: size, answer: data } } ]
    output: "${ .steps.d }"
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

constexpr std::string_view kModernMeta =
    R"("io.modelcontextprotocol/protocolVersion":"2026-07-28",)"
    R"("io.modelcontextprotocol/clientCapabilities":)";

class McpServerFixture final : runtime::RuntimeObserver {
 public:
  McpServerFixture() {
    const auto diagnostics = agents::load({.name = "agents.yaml",
                                           .text = kAgents,
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
    std::vector<Value> notes;
    std::optional<ApiResponse> answer;
    std::stop_source gone;
  };
  // Sends, and runs what is ready without advancing the clock.
  std::shared_ptr<SentRequest> send(ApiRequest request) {
    auto sent = std::make_shared<SentRequest>();
    request.method = "POST";
    request.path = {"mcp"};
    request.disconnected = sent->gone.get_token();
    request.on_notification = [sent](const Value& message) { sent->notes.push_back(message); };
    api->handle(std::move(request), [sent](ApiResponse answer) { sent->answer = answer; });
    for (int i = 0; i < 20; ++i) loop.run_ready();
    return sent;
  }
  std::shared_ptr<SentRequest> send(std::string body, Revision revision, Role role = Role::admin) {
    ApiRequest request;
    request.body = std::move(body);
    request.mcp_revision = revision;
    request.by = "ada";
    request.role = role;
    request.body_quota = std::exchange(room, nullptr);
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
  Value ask(Revision revision, std::string_view method, std::string params = "",
            std::string_view client = "{}", Role role = Role::admin, std::string_view meta = "") {
    const auto sent = start(revision, method, std::move(params), client, role, meta);
    // There is a pause between two reads of a job.
    for (int i = 0; i < 3 && !sent->answer; ++i) loop.advance(std::chrono::seconds(1));
    AE_CHECK(sent->answer.has_value(), "it waits: " + std::string(method));
    return sent->answer->body;
  }
  Value result(Revision revision, std::string_view method, std::string params = "",
               std::string_view client = "{}", Role role = Role::admin,
               std::string_view meta = "") {
    const Value body = ask(revision, method, std::move(params), client, role, meta);
    EXPECT_NE(body.find("result"), nullptr) << method << canonical(body);
    EXPECT_EQ(body["id"], Value(1));
    EXPECT_EQ(body["result"].find("resultType") != nullptr, mcp::is_modern(revision));
    return body["result"];
  }
  int error(Revision revision, std::string_view method, std::string params = "",
            std::string_view client = "{}", Role role = Role::admin) {
    const Value body = ask(revision, method, std::move(params), client, role);
    EXPECT_NE(body.find("error"), nullptr) << method << canonical(body);
    return body["error"]["code"].is_integer() ? static_cast<int>(body["error"]["code"].as_int())
                                              : 0;
  }
  Value call(Revision revision, std::string_view tool, std::string_view arguments,
             std::string_view client = "{}", Role role = Role::admin, std::string_view meta = "") {
    return result(revision, "tools/call",
                  R"("name":")" + std::string(tool) + R"(","arguments":)" + std::string(arguments),
                  client, role, meta);
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
  std::shared_ptr<void> room;  // of the next request

 private:
  void on_events(const JobId& job, const std::vector<Event>& events) override {
    if (api) api->on_events(job, events);
  }
};

constexpr Revision kAll[] = {Revision::r2024_11_05, Revision::r2025_03_26, Revision::r2025_06_18,
                             Revision::r2025_11_25, Revision::r2026_07_28};
constexpr Revision kModern = Revision::r2026_07_28, kLegacy = Revision::r2025_11_25;
constexpr std::string_view kWithTasks = R"({"extensions":{"io.modelcontextprotocol/tasks":{}}})";
constexpr std::string_view kWithPeople = R"({"elicitation":{}})";
constexpr std::string_view kWithBoth =
    R"({"elicitation":{"form":{}},"extensions":{"io.modelcontextprotocol/tasks":{}}})";

std::string text_of(const Value& result) {
  return std::string(result["content"].items()[0].text("text"));
}
std::string job_in(const Value& result) {
  return std::string(result["_meta"].text("aetheris/job"));
}

// ---------------------------------------------------------------- server info

AE_TEST("mcp/a handshake agrees on the revision asked for, or on the newest that has one") {
  McpServerFixture fixture;
  for (const auto& [requested, agreed] :
       {std::pair{"2024-11-05", "2024-11-05"}, std::pair{"2025-03-26", "2025-03-26"},
        std::pair{"2025-06-18", "2025-06-18"}, std::pair{"2025-11-25", "2025-11-25"},
        std::pair{"2026-07-28", "2025-11-25"}, std::pair{"2099-01-01", "2025-11-25"}}) {
    const Value info =
        fixture.result(mcp::kAssumedRevision, "initialize",
                       R"("protocolVersion":")" + std::string(requested) +
                           R"(","capabilities":{},"clientInfo":{"name":"t","version":"1"})");
    EXPECT_EQ(info.text("protocolVersion"), agreed) << requested;
    EXPECT_EQ(info["serverInfo"].text("version"), "7");
    EXPECT_TRUE(info["capabilities"]["tools"].is_object());
    EXPECT_TRUE(info["capabilities"]["resources"].is_object());
    EXPECT_EQ(info["capabilities"]["tasks"].is_object(), agreed == std::string("2025-11-25"));
  }
  EXPECT_EQ(fixture.error(mcp::kAssumedRevision, "initialize", R"("protocolVersion":1)"),
            mcp::kInvalidParams);
  EXPECT_EQ(fixture.error(mcp::kAssumedRevision, "initialize"), mcp::kInvalidParams);
}

AE_TEST("mcp/a modern client discovers us without a handshake, and each result says who we are") {
  McpServerFixture fixture;
  const Value info = fixture.result(kModern, "server/discover");
  EXPECT_EQ(info["supportedVersions"], mcp::all_revisions());
  EXPECT_TRUE(info["capabilities"]["extensions"][mcp::kTasks].is_object());
  EXPECT_EQ(info.text("cacheScope"), "private");
  EXPECT_TRUE(info["ttlMs"].is_integer());
  EXPECT_EQ(info["_meta"][mcp::kServerInfo].text("name"), "aetheris");
  EXPECT_EQ(fixture.error(kLegacy, "server/discover"), mcp::kMethodNotFound);
}

AE_TEST("mcp/each era has its methods, and no others") {
  McpServerFixture fixture;
  EXPECT_EQ(fixture.result(kLegacy, "ping"), Value::object({}));
  for (const char* method : {"ping", "initialize", "tasks/list", "tasks/result", "logging/setLevel",
                             "prompts/list", "resources/subscribe", "tools/Call", "x"}) {
    EXPECT_EQ(fixture.error(kModern, method), mcp::kMethodNotFound) << method;
  }
  for (const char* method : {"server/discover", "tasks/update", "prompts/list",
                             "completion/complete", "logging/setLevel", "subscriptions/listen"}) {
    EXPECT_EQ(fixture.error(kLegacy, method), mcp::kMethodNotFound) << method;
  }
  EXPECT_EQ(fixture.error(Revision::r2025_06_18, "tasks/get", R"("taskId":"a")"),
            mcp::kMethodNotFound);
}

AE_TEST("mcp/over HTTP a missing method is 404 in the modern era, and what is no message 400") {
  McpServerFixture fixture;
  const auto status = [&](std::string body, mcp::Headers headers) {
    ApiRequest request;
    request.body = std::move(body);
    request.mcp_headers = std::move(headers);
    const auto sent = fixture.send(std::move(request));
    EXPECT_TRUE(sent->answer->rpc);
    return std::pair(sent->answer->status,
                     sent->answer->body["error"]["code"].is_integer()
                         ? static_cast<int>(sent->answer->body["error"]["code"].as_int())
                         : 0);
  };
  const auto message = [](std::string_view method, std::string_view version, std::string params) {
    std::string meta;
    if (!version.empty()) {
      meta = R"("io.modelcontextprotocol/protocolVersion":")" + std::string(version) +
             R"(","io.modelcontextprotocol/clientCapabilities":{})";
    }
    return R"({"jsonrpc":"2.0","id":1,"method":")" + std::string(method) +
           R"(","params":{"_meta":{)" + meta + "}" + (params.empty() ? "" : "," + params) + "}}";
  };
  const mcp::Headers list{.version = "2026-07-28", .method = "tools/list"};
  using StatusAndCode = std::pair<int, int>;
  EXPECT_EQ(status(message("tools/list", "2026-07-28", ""), list), StatusAndCode(200, 0));
  mcp::Headers other = list;
  other.method = "no/such";
  EXPECT_EQ(status(message("no/such", "2026-07-28", ""), other),
            StatusAndCode(404, mcp::kMethodNotFound));
  EXPECT_EQ(status(message("no/such", "", ""), {}), StatusAndCode(200, mcp::kMethodNotFound));
  EXPECT_EQ(status(message("tools/list", "", ""), {}), StatusAndCode(200, 0))
      << "no header is 2025-03-26";
  EXPECT_EQ(status(message("tools/list", "", ""), {.version = "2025-06-18"}),
            StatusAndCode(200, 0));
  // Headers and body must agree; otherwise the message is rejected.
  EXPECT_EQ(status(message("tools/list", "2026-07-28", ""), {}),
            StatusAndCode(400, mcp::kHeaderMismatch));
  EXPECT_EQ(status(message("tools/list", "2026-07-28", ""), other),
            StatusAndCode(400, mcp::kHeaderMismatch));
  EXPECT_EQ(status(message("tools/list", "2026-07-28", ""),
                   {.version = "2025-11-25", .method = "tools/list"}),
            StatusAndCode(400, mcp::kHeaderMismatch));
  EXPECT_EQ(status(message("tools/list", "2099-01-01", ""),
                   {.version = "2099-01-01", .method = "tools/list"}),
            StatusAndCode(400, mcp::kUnsupportedVersion));
  EXPECT_EQ(status(message("tools/list", "", ""), {.version = "2099-01-01"}),
            StatusAndCode(400, mcp::kUnsupportedVersion));
  EXPECT_EQ(status(message("tools/list", "", ""), list), StatusAndCode(400, mcp::kInvalidParams));
  const std::string echo = message("tools/call", "2026-07-28", R"("name":"echo","arguments":{})");
  EXPECT_EQ(status(echo, {.version = "2026-07-28", .method = "tools/call"}),
            StatusAndCode(400, mcp::kHeaderMismatch));
  EXPECT_EQ(status(echo, {.version = "2026-07-28", .method = "tools/call", .name = "fails"}),
            StatusAndCode(400, mcp::kHeaderMismatch));
  EXPECT_EQ(fixture.jobs(), 0u) << "nothing was made of what was refused";
  EXPECT_EQ(status(echo, {.version = "2026-07-28", .method = "tools/call", .name = "echo"}),
            StatusAndCode(200, 0));
  EXPECT_EQ(status(message("tasks/get", "2026-07-28", R"("taskId":"a")"),
                   {.version = "2026-07-28", .method = "tasks/get", .name = "a"}),
            StatusAndCode(400, mcp::kMissingCapability));
  for (const char* text :
       {"", "{", "[]", "1", "{}", R"({"jsonrpc":"2.0","id":null,"method":"ping"})"}) {
    EXPECT_EQ(status(text, {}).first, 400) << text;
  }
}

AE_TEST("mcp/notifications and responses are taken, and answered with nothing") {
  McpServerFixture fixture;
  for (const char* text :
       {R"({"jsonrpc":"2.0","method":"notifications/initialized"})",
        R"({"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}})",
        R"({"jsonrpc":"2.0","id":3,"result":{}})"}) {
    const auto sent = fixture.send(text, kLegacy);
    EXPECT_EQ(sent->answer->status, 202) << text;
    EXPECT_TRUE(sent->answer->body.is_null());
    EXPECT_TRUE(sent->answer->rpc);
  }
}

AE_TEST("mcp/arrays of messages are taken by the revisions that have them, and refused by others") {
  McpServerFixture fixture;
  const std::string two =
      R"([{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/x"},)"
      R"({"jsonrpc":"2.0","id":2,"method":"no"},5])";
  const auto sent = fixture.send(two, Revision::r2025_03_26);
  ASSERT_EQ(sent->answer->status, 200);
  ASSERT_EQ(sent->answer->body.size(), 3u) << "a notification has no answer";
  EXPECT_EQ(
      fixture.send(R"([{"jsonrpc":"2.0","method":"n"}])", Revision::r2025_03_26)->answer->status,
      202);
  for (const Revision revision : {Revision::r2025_06_18, kLegacy, kModern}) {
    const auto refused = fixture.send(two, revision);
    EXPECT_EQ(refused->answer->status, 400);
    EXPECT_EQ(refused->answer->body["error"]["code"], Value(mcp::kInvalidRequest));
  }
  EXPECT_EQ(fixture.send("[]", Revision::r2025_03_26)->answer->status, 400);
  std::string many = "[0";
  for (std::size_t i = 0; i < mcp::kBatchMax; ++i) many += ",0";
  EXPECT_EQ(fixture.send(many + "]", Revision::r2025_03_26)->answer->status, 400);
}

// ---------------------------------------------------------------- tools

AE_TEST("mcp/each agent is a tool, beside those of our own, in an order that stays") {
  McpServerFixture fixture;
  for (const Revision revision : kAll) {
    const Value listed = fixture.result(revision, "tools/list");
    std::string names;
    for (const Value& tool : listed["tools"].items()) {
      names += std::string(tool.text("name")) + " ";
      EXPECT_EQ(tool["inputSchema"].text("type"), "object") << tool.text("name");
      EXPECT_FALSE(tool.text("description").empty());
      EXPECT_EQ(tool["annotations"].is_object(), revision >= Revision::r2025_03_26);
    }
    EXPECT_EQ(names,
              "aetheris_answer aetheris_cancel aetheris_job aetheris_signal asks buys echo fails "
              "interview number sleeps wants without ")
        << "an agent that is called as a tool of ours is not offered";
    EXPECT_EQ(listed["ttlMs"].is_integer(), mcp::is_modern(revision));
  }
  const Value tools = fixture.result(kLegacy, "tools/list")["tools"];
  EXPECT_EQ(tools.items()[6].text("description"), "Says it again");
  EXPECT_EQ(tools.items()[6]["annotations"]["readOnlyHint"], Value(false));
  EXPECT_EQ(tools.items()[6]["execution"].text("taskSupport"), "optional");
  EXPECT_EQ(tools.items()[9]["inputSchema"]["properties"]["input"].text("type"), "integer");
  EXPECT_EQ(fixture.result(kLegacy, "tools/list", R"("cursor":"after:fails")")["tools"].size(), 5u);
  for (const char* cursor : {"\"x\"", "1", "[]"}) {
    EXPECT_EQ(fixture.error(kLegacy, "tools/list", R"("cursor":)" + std::string(cursor)),
              mcp::kInvalidParams);
  }
}

AE_TEST("mcp/a call makes a job, and answers with its result") {
  McpServerFixture fixture;
  for (const Revision revision : kAll) {
    const Value result = fixture.call(revision, "echo", R"({"n": 3})");
    EXPECT_EQ(result["isError"], Value(false));
    EXPECT_EQ(text_of(result), "{\n  \"n\": 3\n}");
    const bool structured = revision >= Revision::r2025_06_18;
    EXPECT_EQ(result["structuredContent"]["n"], structured ? Value(3) : Value());
    EXPECT_FALSE(job_in(result).empty());
  }
  EXPECT_EQ(fixture.jobs(), std::size(kAll));
  EXPECT_EQ(fixture.call(kModern, "number", R"({"input": 4})")["structuredContent"], Value(5));
  EXPECT_EQ(fixture.call(kLegacy, "number", R"({"input": 4})")["structuredContent"],
            Value::object({{"result", 5}}))
      << "an object, until values of any kind were taken";
}

AE_TEST("mcp/the same key is the same job, and another input under it is told to the model") {
  McpServerFixture fixture;
  const std::string_view key = R"("aetheris/idempotency-key":"k")";
  const Value first = fixture.call(kModern, "echo", R"({"n": 1})", "{}", Role::admin, key);
  const Value again = fixture.call(kModern, "echo", R"({"n": 1})", "{}", Role::admin, key);
  EXPECT_EQ(job_in(first), job_in(again));
  EXPECT_EQ(fixture.jobs(), 1u);
  const Value other = fixture.call(kLegacy, "echo", R"({"n": 2})", "{}", Role::admin, key);
  EXPECT_EQ(other["isError"], Value(true));
  EXPECT_EQ(other["structuredContent"].text("code"), "idempotency_conflict");
  const Value blank = fixture.call(kLegacy, "echo", R"({"n": 2})", "{}", Role::admin,
                                   R"("aetheris/idempotency-key":" ")");
  EXPECT_EQ(blank["structuredContent"].text("code"), "input_invalid");
  EXPECT_EQ(fixture.jobs(), 1u);
}

AE_TEST(
    "mcp/what is wrong with a call is told: to the client what it asks, to the model what it "
    "says") {
  McpServerFixture fixture;
  for (const Revision revision : {kLegacy, kModern}) {
    for (const char* params :
         {R"("name":"nobody")", R"("name":"aetheris_nothing")", R"("name":"aetheris_jobs")",
          R"("name":1)", R"("arguments":{})", R"("name":"echo","arguments":[1])", R"("name":"")",
          R"("name":"echo","requestState":1)"}) {
      EXPECT_EQ(fixture.error(revision, "tools/call", params), mcp::kInvalidParams) << params;
    }
    EXPECT_EQ(fixture.call(revision, "echo", R"({"n": "x"})")["structuredContent"].text("code"),
              "input_invalid");
    EXPECT_EQ(fixture.call(revision, "number", R"({"n": 1})")["isError"], Value(true));
    EXPECT_EQ(fixture.result(revision, "tools/call", R"("name":"aetheris_job")")["isError"],
              Value(true));
    const Value strange =
        fixture.ask(revision, "tools/call", "\"name\":\"" + std::string(79, 'x') + "\xC3\xA9\"");
    EXPECT_TRUE(is_utf8(strange["error"].text("message")));
    for (const char* arguments :
         {"{}", R"({"job_id": 1})", R"({"job_id": "../x"})", R"({"job_id": "a", "more": 1})",
          R"({"job_id": "nobody"})", R"({"job_id": "nobody", "wait_seconds": 46})"}) {
      EXPECT_EQ(fixture.call(revision, "aetheris_job", arguments)["isError"], Value(true))
          << arguments;
    }
  }
  EXPECT_EQ(fixture.jobs(), 0u);
}

AE_TEST("mcp/a job that fails is an error of the tool, with its code") {
  McpServerFixture fixture;
  const Value result = fixture.call(kModern, "fails", "{}");
  EXPECT_EQ(result["isError"], Value(true));
  EXPECT_EQ(result["structuredContent"].text("status"), "failed");
  EXPECT_NE(text_of(result).find("no_money"), std::string::npos);
  const Value view =
      fixture.call(kModern, "aetheris_job", R"({"job_id":")" + job_in(result) + "\"}");
  EXPECT_EQ(view["isError"], Value(false)) << "to look is no failure";
}

AE_TEST("mcp/a job that waits answers at once, with what it waits for and what answers it") {
  McpServerFixture fixture;
  const Value waits = fixture.call(kLegacy, "asks", "{}");
  const std::string job = job_in(waits);
  EXPECT_EQ(waits["isError"], Value(false));
  EXPECT_EQ(waits["structuredContent"].text("status"), "waiting");
  EXPECT_NE(text_of(waits).find("aetheris_signal {\"job_id\": \"" + job + "\", \"key\": \"go\""),
            std::string::npos)
      << text_of(waits);
  const std::string signal = R"({"job_id":")" + job + R"(","key":"go","payload":{"a":1}})";
  EXPECT_EQ(fixture.call(kLegacy, "aetheris_signal", signal)["isError"], Value(false));
  const Value done = fixture.call(kLegacy, "aetheris_job", R"({"job_id":")" + job + "\"}");
  EXPECT_EQ(done["structuredContent"], Value::object({{"a", 1}}));
  const Value late = fixture.call(kLegacy, "aetheris_cancel", R"({"job_id":")" + job + "\"}");
  EXPECT_EQ(late["structuredContent"].text("code"), "job_terminal");
}

AE_TEST("mcp/a job that waits names a call that was given up, beside what it waits for") {
  McpServerFixture fixture;
  const std::string text(text_of(fixture.call(kLegacy, "without", "{}")));
  const std::size_t signal = text.find("\n- "),
                    call = text.find("\nIt does not wait for the call of tool \"lost\"");
  ASSERT_NE(call, std::string::npos) << text;
  EXPECT_LT(signal, call) << text;
  EXPECT_EQ(text.find("finds out whether"), std::string::npos) << text;
}

AE_TEST("mcp/what a person is asked is answered by a tool, for the question that is open") {
  McpServerFixture fixture;
  const std::string job = job_in(fixture.call(kLegacy, "buys", R"({"n": 5})"));
  const std::string of = R"({"job_id":")" + job + "\"";
  EXPECT_EQ(fixture.call(kLegacy, "aetheris_answer", of + "}")["isError"], Value(true));
  EXPECT_EQ(fixture.call(kLegacy, "aetheris_answer", of + R"(,"payload":1})")["isError"],
            Value(true));
  EXPECT_EQ(fixture.call(kLegacy, "aetheris_answer", of + R"(,"decision":"maybe"})")["isError"],
            Value(true));
  EXPECT_EQ(fixture.call(kLegacy, "aetheris_answer",
                         of + R"(,"decision":"approve","approval_id":"x.y"})")["isError"],
            Value(true));
  EXPECT_EQ(fixture.call(kLegacy, "aetheris_answer", of + R"(,"decision":"approve"})")["isError"],
            Value(false));
  EXPECT_EQ(fixture.call(kLegacy, "aetheris_job", of + "}")["structuredContent"]["n"], Value(5));
  const Value again = fixture.call(kLegacy, "aetheris_answer", of + R"(,"decision":"approve"})");
  EXPECT_EQ(again["isError"], Value(false)) << "the same once more";
  EXPECT_EQ(again["structuredContent"]["duplicate"], Value(true)) << canonical(again);
  EXPECT_TRUE(again["structuredContent"]["answered"].is_object());
  const Value other = fixture.call(kLegacy, "aetheris_answer", of + R"(,"decision":"reject"})");
  EXPECT_EQ(other["isError"], Value(true)) << "another answer is not the one that counts";
  EXPECT_EQ(other["structuredContent"]["outcome"], Value("approved"));
  const std::string wants = job_in(fixture.call(kLegacy, "wants", "{}"));
  const std::string data = R"({"job_id":")" + wants + R"(","payload":{"size":"XL"}})";
  EXPECT_EQ(fixture.call(kLegacy, "aetheris_answer", data)["isError"], Value(false));
  EXPECT_EQ(
      fixture.call(kLegacy, "aetheris_job", R"({"job_id":")" + wants + "\"}")["structuredContent"],
      Value::object({{"size", "XL"}}));
  EXPECT_EQ(fixture.call(kLegacy, "aetheris_answer", data)["isError"], Value(false));
  EXPECT_EQ(fixture.call(kLegacy, "aetheris_answer",
                         R"({"job_id":")" + wants + R"(","payload":{"size":"S"}})")["isError"],
            Value(true));
}

AE_TEST(
    "mcp/a question that is answered by its id again is told of its answer, whatever is asked "
    "now") {
  McpServerFixture fixture;
  const std::string job = job_in(fixture.call(kLegacy, "buys", R"({"n": 5})"));
  const std::string other = job_in(fixture.call(kLegacy, "buys", R"({"n": 6})"));
  const Value seen = fixture.call(kLegacy, "aetheris_job", R"({"job_id":")" + job + "\"}");
  const std::string id(seen["structuredContent"]["waits"].items()[0].text("approval_id"));
  ASSERT_FALSE(id.empty()) << canonical(seen);
  const auto answer = [&](const std::string& of, const std::string& decision) {
    return fixture.call(kLegacy, "aetheris_answer",
                        R"({"job_id":")" + of + R"(","approval_id":")" + id + R"(","decision":")" +
                            decision + "\"}");
  };
  EXPECT_EQ(answer(other, "approve")["isError"], Value(true)) << "of another job";
  EXPECT_EQ(answer(job, "reject")["isError"], Value(false));
  const Value again = answer(job, "reject");
  EXPECT_EQ(again["isError"], Value(false)) << canonical(again);
  EXPECT_EQ(again["structuredContent"]["duplicate"], Value(true));
  EXPECT_EQ(answer(job, "approve")["isError"], Value(true));
}

AE_TEST(
    "mcp/roles are those of the routes: who looks calls nothing, who starts answers for nobody") {
  McpServerFixture fixture;
  const std::string echo = R"("name":"echo","arguments":{})";
  EXPECT_EQ(fixture.result(kModern, "tools/list", "", "{}", Role::viewer)["tools"].size(), 13u);
  const auto refused = fixture.start(kModern, "tools/call", echo, "{}", Role::viewer);
  EXPECT_EQ(refused->answer->body["error"]["code"], Value(403));
  EXPECT_EQ(refused->answer->body["error"]["data"].text("code"), "forbidden");
  EXPECT_EQ(refused->answer->status, 403);
  EXPECT_EQ(fixture.error(kLegacy, "tools/call", echo, "{}", Role::approver), 403);
  EXPECT_EQ(fixture.error(kLegacy, "resources/list", "", "{}", Role::worker), 403);
  EXPECT_EQ(fixture.jobs(), 0u);
  const std::string job =
      job_in(fixture.call(kModern, "buys", R"({"n": 1})", kWithPeople, Role::operator_));
  ASSERT_FALSE(job.empty()) << "who may not decide is not asked to";
  const std::string yes =
      R"("name":"aetheris_answer","arguments":{"decision":"approve","job_id":")" + job + "\"}";
  EXPECT_EQ(fixture.error(kModern, "tools/call", yes, "{}", Role::operator_), 403);
  EXPECT_EQ(fixture.error(kModern, "tools/call", yes, "{}", Role::viewer), 403);
  EXPECT_EQ(fixture.result(kModern, "tools/call", yes, "{}", Role::approver)["isError"],
            Value(false));
}

AE_TEST("mcp/a call waits for time to pass, and after a while answers that the job goes on") {
  McpServerFixture fixture;
  const auto short_wait = fixture.start(kLegacy, "tools/call", R"("name":"sleeps","arguments":{})");
  EXPECT_FALSE(short_wait->answer) << "a timer answers itself";
  fixture.loop.advance(std::chrono::seconds(12));
  ASSERT_TRUE(short_wait->answer);
  EXPECT_EQ(text_of(short_wait->answer->body["result"]), "done");
  const auto left = fixture.start(kLegacy, "tools/call", R"("name":"sleeps","arguments":{})");
  left->gone.request_stop();
  fixture.loop.advance(std::chrono::seconds(3));
  ASSERT_TRUE(left->answer) << "who has gone is not waited for";
  const std::string job = job_in(left->answer->body["result"]);
  EXPECT_NE(text_of(left->answer->body["result"]).find("continues in the background"),
            std::string::npos);
  const auto sent = fixture.start(
      kLegacy, "tools/call",
      R"("name":"aetheris_job","arguments":{"wait_seconds":45,"job_id":")" + job + "\"}");
  fixture.loop.advance(std::chrono::seconds(12));
  ASSERT_TRUE(sent->answer);
  EXPECT_EQ(text_of(sent->answer->body["result"]), "done") << "the job went on";
}

AE_TEST("mcp/a call that waits gives back the room of its body, and is answered all the same") {
  struct Case {
    Revision revision;
    std::string_view method, params, client, meta;
  };
  McpServerFixture fixture;
  const Case cases[] = {
      {kLegacy, "tools/call", R"("name":"sleeps","arguments":{})", "{}", ""},
      {kModern, "tools/call", R"("name":"sleeps","arguments":{})", kWithTasks, ""},
      {kModern, "tools/call", R"("name":"sleeps","arguments":{})", "{}", R"("progressToken":"p")"},
      {kLegacy, "tools/call",
       R"("name":"aetheris_job","arguments":{"wait_seconds":5,"job_id":"JOB"})", "{}", ""},
      {kLegacy, "tasks/result", R"("taskId":"JOB")", "{}", ""}};
  for (const Case& one : cases) {
    const Value made = fixture.result(kLegacy, "tools/call", R"("name":"sleeps","task":{})");
    std::string params(one.params);
    if (const auto at = params.find("JOB"); at != params.npos) {
      params.replace(at, 3, made["task"].text("taskId"));
    }
    auto room = std::make_shared<int>();
    const std::weak_ptr<int> weak = room;
    fixture.room = std::move(room);
    const auto sent =
        fixture.start(one.revision, one.method, params, one.client, Role::admin, one.meta);
    EXPECT_FALSE(sent->answer) << one.method << params << one.meta;
    EXPECT_TRUE(weak.expired()) << one.method << params << one.meta;
    fixture.loop.advance(std::chrono::seconds(12));
    ASSERT_TRUE(sent->answer);
    EXPECT_NE(sent->answer->body.find("result"), nullptr) << canonical(sent->answer->body);
  }
  const auto over_long =
      fixture.start(kLegacy, "tools/call", R"("name":"sleeps","arguments":{})", "{}", Role::admin,
                    R"("progressToken":")" + std::string(1025, 'p') + "\"");
  ASSERT_TRUE(over_long->answer);
  EXPECT_EQ(over_long->answer->body["error"]["code"], Value(mcp::kInvalidParams));
}

AE_TEST("mcp/progress is told to who asks for it, and never goes back") {
  McpServerFixture fixture;
  const auto sent = fixture.start(kModern, "tools/call", R"("name":"sleeps","arguments":{})", "{}",
                                  Role::admin, R"("progressToken":"p")");
  fixture.loop.advance(std::chrono::seconds(40));
  ASSERT_TRUE(sent->answer);
  double last = -1;
  std::size_t reports = 0;
  for (const Value& note : sent->notes) {
    if (note.is_null()) continue;
    ++reports;
    EXPECT_EQ(note.text("method"), "notifications/progress");
    EXPECT_EQ(note["params"]["progressToken"], Value("p"));
    EXPECT_GT(note["params"]["progress"].as_number(), last);
    last = note["params"]["progress"].as_number();
    EXPECT_EQ(note["params"]["total"], Value(2));
  }
  EXPECT_GE(reports, 2u);
  EXPECT_TRUE(
      fixture.start(kModern, "tools/call", R"("name":"echo","arguments":{})")->notes.empty());
}

// ---------------------------------------------------------------- elicitation, tasks

AE_TEST(
    "mcp/a client whose user can be asked is given the question, and calls again with the answer") {
  McpServerFixture fixture;
  const Value input_required = fixture.call(kModern, "buys", R"({"n": 7})", kWithPeople);
  ASSERT_EQ(input_required.text("resultType"), "input_required") << canonical(input_required);
  ASSERT_EQ(input_required["inputRequests"].size(), 1u);
  const auto& [key, question] = input_required["inputRequests"].members()[0];
  EXPECT_EQ(question.text("method"), "elicitation/create");
  EXPECT_NE(question["params"].text("message").find("{\"n\":7}"), std::string_view::npos);
  const auto again = [&](const std::string& answer) {
    return R"("name":"buys","arguments":{"n":7},"requestState":)" +
           canonical(input_required["requestState"]) + R"(,"inputResponses":{")" + key +
           "\":" + answer + "}";
  };
  EXPECT_EQ(fixture.error(kModern, "tools/call", again(R"({"action":"yes"})"), kWithPeople),
            mcp::kInvalidParams);
  EXPECT_EQ(fixture.error(kModern, "tools/call",
                          again(R"({"action":"accept","content":{"decision":"x"}})"), kWithPeople),
            mcp::kInvalidParams);
  EXPECT_EQ(fixture.result(kModern, "tools/call", again(R"({"action":"cancel"})"), kWithPeople)
                .text("resultType"),
            "input_required")
      << "nobody has decided";
  const Value done =
      fixture.result(kModern, "tools/call",
                     again(R"({"action":"accept","content":{"decision":"approve"}})"), kWithPeople);
  EXPECT_EQ(done["structuredContent"]["n"], Value(7)) << canonical(done);
  EXPECT_EQ(fixture.jobs(), 1u) << "it is the same job";
  EXPECT_EQ(fixture.error(kModern, "tools/call",
                          R"("name":"echo","arguments":{},"requestState":)" +
                              canonical(input_required["requestState"]),
                          kWithPeople),
            mcp::kInvalidParams)
      << "it is another agent's";
}

AE_TEST("mcp/a question has the key of its wait, and each round of a call a state of its own") {
  McpServerFixture fixture;
  const auto again = [&](const Value& input_required, const std::string& answers) {
    return R"("name":"interview","arguments":{},"requestState":)" +
           canonical(input_required["requestState"]) + R"(,"inputResponses":{)" + answers + "}";
  };
  const auto wrong = [&](const Value& input_required, const std::string& answers) {
    return fixture.error(kModern, "tools/call", again(input_required, answers), kWithPeople);
  };
  const Value first = fixture.call(kModern, "interview", "{}", kWithPeople);
  ASSERT_NE(first["inputRequests"].find("user_name"), nullptr) << canonical(first);
  for (const char* content : {R"({})", R"({"payload":1})", R"(5)", R"(null)"}) {
    EXPECT_EQ(
        wrong(first, R"("user_name":{"action":"accept","content":)" + std::string(content) + "}"),
        mcp::kInvalidParams)
        << content;
  }
  // Answers to unknown questions are ignored. Without a form the members are the data.
  const Value second =
      fixture.result(kModern, "tools/call",
                     again(first, R"("color":{"action":"accept","content":{"payload":"red"}},)"
                                  R"("user_name":{"action":"accept","content":{"name":"Ada"}})"),
                     kWithPeople);
  ASSERT_NE(second["inputRequests"].find("color"), nullptr) << canonical(second);
  EXPECT_EQ(second["inputRequests"].size(), 1u);
  EXPECT_NE(second["requestState"], first["requestState"]);
  const Value done = fixture.result(
      kModern, "tools/call",
      again(second, R"("color":{"action":"accept","content":{"payload":"blue"}})"), kWithPeople);
  EXPECT_EQ(done["structuredContent"], Value("Ada likes blue")) << canonical(done);
  EXPECT_EQ(fixture.jobs(), 1u);
  const std::string state(first.text("requestState"));
  for (const std::string& other :
       {state + "-TAMPERED", state + ".", state.substr(0, 36), "." + state, std::string("nobody.1"),
        std::string(".1"), std::string()}) {
    EXPECT_EQ(fixture.error(kModern, "tools/call",
                            R"("name":"interview","requestState":)" + canonical(Value(other)),
                            kWithPeople),
              mcp::kInvalidParams)
        << other;
  }
}

AE_TEST(
    "mcp/a client that knows tasks gets the result of what is quick, and a task of what is not") {
  McpServerFixture fixture;
  const Value quick = fixture.call(kModern, "echo", R"({"n":1})", kWithTasks);
  EXPECT_EQ(quick.text("resultType"), "complete") << canonical(quick);
  EXPECT_EQ(quick.find("taskId"), nullptr);
  EXPECT_EQ(fixture.call(kModern, "fails", "{}", kWithTasks)["isError"], Value(true));
  const auto slow =
      fixture.start(kModern, "tools/call", R"("name":"sleeps","arguments":{})", kWithTasks);
  EXPECT_FALSE(slow->answer) << "it may be quick";
  fixture.loop.advance(kMcpTaskAfter);
  ASSERT_TRUE(slow->answer);
  const Value task = slow->answer->body["result"];
  EXPECT_EQ(task.text("resultType"), "task") << canonical(task);
  const std::string of = R"("taskId":")" + std::string(task.text("taskId")) + "\"";
  fixture.loop.advance(std::chrono::seconds(11));
  EXPECT_EQ(fixture.result(kModern, "tasks/get", of, kWithTasks)["result"]["structuredContent"],
            Value("done"));
}

AE_TEST("mcp/a client that knows tasks gets one of a job that waits, and asks for it later") {
  McpServerFixture fixture;
  const Value task = fixture.call(kModern, "asks", "{}", kWithTasks);
  EXPECT_EQ(task.text("resultType"), "task");
  EXPECT_EQ(task.text("status"), "working");
  EXPECT_TRUE(task["ttlMs"].is_null());
  EXPECT_TRUE(task["pollIntervalMs"].is_integer());
  const std::string id(task.text("taskId"));
  const std::string of = R"("taskId":")" + id + "\"";
  EXPECT_EQ(fixture.result(kModern, "tasks/get", of, kWithTasks).text("status"), "working");
  fixture.call(kModern, "aetheris_signal", R"({"job_id":")" + id + R"(","key":"go","payload":5})");
  const Value done = fixture.result(kModern, "tasks/get", of, kWithTasks);
  EXPECT_EQ(done.text("status"), "completed");
  EXPECT_EQ(done["result"]["structuredContent"], Value(5));
  EXPECT_EQ(done.text("resultType"), "complete");
  const std::string failed = job_in(fixture.call(kModern, "fails", "{}"));
  const Value seen =
      fixture.result(kModern, "tasks/get", R"("taskId":")" + failed + "\"", kWithTasks);
  EXPECT_EQ(seen.text("status"), "completed") << "an error of a tool is a result";
  EXPECT_EQ(seen["result"]["isError"], Value(true));
  // A client without tasks learns what it lacks; other ids are rejected.
  for (const char* method : {"tasks/get", "tasks/update", "tasks/cancel"}) {
    const Value body = fixture.ask(kModern, method, of + R"(,"inputResponses":{})");
    EXPECT_EQ(body["error"]["code"], Value(mcp::kMissingCapability));
    EXPECT_TRUE(
        body["error"]["data"]["requiredCapabilities"]["extensions"][mcp::kTasks].is_object());
    for (const char* other : {R"("taskId":"nobody")", R"("taskId":1)", R"("taskId":"../a")", ""}) {
      EXPECT_EQ(fixture.error(kModern, method, other, kWithTasks), mcp::kInvalidParams) << other;
    }
  }
}

AE_TEST("mcp/a task asks for people's answers, takes them once, and is cancelled") {
  McpServerFixture fixture;
  const std::string id(fixture.call(kModern, "buys", R"({"n": 2})", kWithBoth).text("taskId"));
  const std::string of = R"("taskId":")" + id + "\"";
  const Value input_required = fixture.result(kModern, "tasks/get", of, kWithBoth);
  ASSERT_EQ(input_required.text("status"), "input_required") << canonical(input_required);
  EXPECT_EQ(fixture.result(kModern, "tasks/get", of, kWithTasks).text("status"), "working")
      << "a client that cannot ask is not asked";
  const std::string key = input_required["inputRequests"].members()[0].first;
  const std::string answer = of + R"(,"inputResponses":{"other":{"action":"accept"},")" + key +
                             R"(":{"action":"decline"}})";
  EXPECT_EQ(fixture.result(kModern, "tasks/update", answer, kWithBoth).text("resultType"),
            "complete");
  const Value rejected = fixture.result(kModern, "tasks/get", of, kWithBoth);
  EXPECT_EQ(rejected["result"]["isError"], Value(true)) << canonical(rejected);
  EXPECT_EQ(fixture.result(kModern, "tasks/update", answer, kWithBoth).text("resultType"),
            "complete")
      << "it was answered before";
  EXPECT_EQ(fixture.error(kModern, "tasks/update", of, kWithBoth), mcp::kInvalidParams);
  const std::string wants(fixture.call(kModern, "wants", "{}", kWithBoth).text("taskId"));
  const std::string of_wants = R"("taskId":")" + wants + "\"";
  const std::string size =
      fixture.result(kModern, "tasks/get", of_wants, kWithBoth)["inputRequests"].members()[0].first;
  fixture.result(kModern, "tasks/update",
                 of_wants + R"(,"inputResponses":{")" + size +
                     R"(":{"action":"accept","content":{"payload":"{\"a\":1}"}}})",
                 kWithBoth);
  EXPECT_EQ(
      fixture.result(kModern, "tasks/get", of_wants, kWithBoth)["result"]["structuredContent"],
      Value::object({{"a", 1}}));
  const std::string more(fixture.call(kModern, "asks", "{}", kWithTasks).text("taskId"));
  const std::string of_more = R"("taskId":")" + more + "\"";
  fixture.result(kModern, "tasks/cancel", of_more, kWithTasks);
  EXPECT_EQ(fixture.result(kModern, "tasks/get", of_more, kWithTasks).text("status"), "cancelled");
  fixture.result(kModern, "tasks/cancel", of_more, kWithTasks);
}

AE_TEST("mcp/the tasks of 2025-11-25: only where the call asks for one") {
  McpServerFixture fixture;
  const Value made =
      fixture.result(kLegacy, "tools/call", R"("name":"asks","arguments":{},"task":{"ttl":60000})");
  ASSERT_TRUE(made["task"].is_object()) << canonical(made);
  EXPECT_TRUE(made["task"].find("ttl")->is_null());
  const std::string id(made["task"].text("taskId"));
  const std::string of = R"("taskId":")" + id + "\"";
  EXPECT_EQ(fixture.result(kLegacy, "tasks/get", of).text("status"), "working");
  EXPECT_EQ(fixture.result(kLegacy, "tasks/list")["tasks"].size(), 1u) << "one that waits";
  EXPECT_EQ(fixture.error(kLegacy, "tasks/result", of), 409) << "it waits for somebody";
  EXPECT_EQ(fixture.result(kLegacy, "tasks/cancel", of).text("status"), "cancelled");
  EXPECT_EQ(fixture.error(kLegacy, "tasks/cancel", of), mcp::kInvalidParams);
  const Value result = fixture.result(kLegacy, "tasks/result", of);
  EXPECT_EQ(result["_meta"][mcp::kRelatedTask].text("taskId"), id);
  EXPECT_EQ(fixture.error(kLegacy, "tools/call",
                          R"("name":"aetheris_job","arguments":{"job_id":"a"},"task":{})"),
            mcp::kMethodNotFound);
}

// ---------------------------------------------------------------- resources

AE_TEST("mcp/jobs are resources: listed, with their parts, and read") {
  McpServerFixture fixture;
  const std::string job = job_in(fixture.call(kLegacy, "echo", R"({"n": 1})"));
  for (const Revision revision : kAll) {
    const Value listed = fixture.result(revision, "resources/list");
    ASSERT_EQ(listed["resources"].size(), 1u);
    const std::string uri(listed["resources"].items()[0].text("uri"));
    EXPECT_EQ(uri, "aetheris://jobs/" + job);
    EXPECT_EQ(fixture.result(revision, "resources/templates/list")["resourceTemplates"].size(), 3u);
    for (const char* part : {"", "/trace", "/events", "/events?after=1"}) {
      const Value read =
          fixture.result(revision, "resources/read", R"("uri":")" + uri + part + "\"");
      ASSERT_EQ(read["contents"].size(), 1u);
      EXPECT_EQ(read["contents"].items()[0].text("uri"), uri + part);
      const auto body = parse_json(read["contents"].items()[0].text("text"), {.depth_max = 100});
      ASSERT_TRUE(body);
      EXPECT_EQ(read["ttlMs"].is_integer(), mcp::is_modern(revision));
    }
  }
  for (const std::string& uri :
       {std::string("aetheris://jobs/nobody"), "aetheris://jobs/" + job + "/secrets",
        "aetheris://jobs/" + job + "/", "aetheris://jobs/" + job + "?after=1",
        "aetheris://jobs/" + job + "/events?x=1", std::string("aetheris://jobs/../keys"),
        std::string("aetheris://keys"), std::string("file:///etc/passwd"), std::string("")}) {
    const std::string params = R"("uri":")" + uri + "\"";
    EXPECT_EQ(fixture.error(kModern, "resources/read", params), mcp::kInvalidParams) << uri;
    EXPECT_EQ(fixture.error(kLegacy, "resources/read", params), mcp::kResourceNotFound) << uri;
  }
  EXPECT_EQ(fixture.error(kLegacy, "resources/read", R"("uri":5)"), mcp::kInvalidParams);
  EXPECT_EQ(fixture.error(kLegacy, "resources/list", R"("cursor":"nobody")"), mcp::kInvalidParams);
  EXPECT_EQ(fixture.error(kLegacy, "resources/list", R"("cursor":7)"), mcp::kInvalidParams);
}

}  // namespace
}  // namespace ae::api
