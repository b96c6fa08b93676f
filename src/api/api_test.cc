// Tests of the routes, without a transport: responses, statuses and error codes.
#include "api/api.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "api/authenticator.h"
#include "async/time_slices.h"
#include "json/json.h"
#include "store/faulty/faulty_store.h"
#include "store/memory/memory_store.h"
#include "testing/test.h"
#include "testing/test_loop.h"
#include "tools/native/native.h"

namespace ae::api {
namespace {

constexpr std::string_view kAgents = R"(
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
  hears:
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

// A store in memory, two tools, and the Api on top.
class ApiFixture final : runtime::RuntimeObserver {
 public:
  explicit ApiFixture(bool runs = true, store::FaultScript faults_of = no_faults)
      : script(std::move(faults_of)) {
    const auto diagnostics = agents::load({.name = "agents.yaml",
                                           .text = kAgents,
                                           .env = [](std::string_view) { return std::nullopt; },
                                           .native = [](std::string_view) { return true; }},
                                          file);
    AE_CHECK(diagnostics.empty(), agents::diagnostics_text(diagnostics));
    for (const auto& [name, tool] : file.tools) {
      const std::string function(tool.definition.text("function"));
      tool_registry.add(name, {std::make_unique<tools::NativeTool>(
                                   loop, steady, tools::built_in_functions().at(function).function),
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
    api.emplace(loop, steady, store, *runtime,
                ApiOptions{.agents = &file,
                           .runs = runs,
                           .version = "0",
                           .store = "memory:",
                           .random_source = &random});
    if (runs) runtime->start();
  }

  // As `serve`: agents come from the registry.
  void serve() {
    ApiOptions options{.agents = &file,
                       .runs = true,
                       .version = "0",
                       .store = "memory:",
                       .random_source = &random};
    options.read_agent = [this](std::string_view name, std::string_view json, agents::Agent& out) {
      return agents::load_agent({.name = "agents.yaml",
                                 .text = text,
                                 .env = [](std::string_view) { return std::nullopt; },
                                 .native = [](std::string_view) { return true; },
                                 .usable = {}},
                                name, json, out);
    };
    api.emplace(loop, steady, store, *runtime, std::move(options));
    const Status kept =
        loop.await<Status>([&](auto done) { api->register_agents(std::move(done)); });
    AE_CHECK(kept.has_value(), "the registry is kept");
  }
  // As `serve --watch` after the file was `edited`. `begins` counts the calls of `begin`.
  Result<std::vector<Api::AgentChange>> reload(const std::string& edited) {
    auto loaded = std::make_shared<agents::AgentsFile>();
    const auto source = [edited] {
      return agents::Source{.name = "agents.yaml",
                            .text = edited,
                            .env = [](std::string_view) { return std::nullopt; },
                            .native = [](std::string_view) { return true; },
                            .usable = {}};
    };
    const auto diagnostics = agents::load(source(), *loaded);
    AE_CHECK(diagnostics.empty(), agents::diagnostics_text(diagnostics));
    Api::AgentsReload now{
        .file = loaded,
        .read_agent =
            [source](std::string_view name, std::string_view json, agents::Agent& out) {
              return agents::load_agent(source(), name, json, out);
            },
        .begin = [this] { ++begins; }};
    return loop.await<Result<std::vector<Api::AgentChange>>>(
        [&](auto done) { api->reload(std::move(now), std::move(done)); });
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

  static store::Fault no_faults(const store::Call&) { return store::Fault::none; }

  int begins = 0;
  std::string text{kAgents};  // the agents file as `serve` rereads it
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

void expect_problem(const ApiResponse& answer, int status, std::string_view code) {
  EXPECT_EQ(answer.status, status) << canonical(answer.body);
  EXPECT_EQ(answer.body.text("code"), code);
  EXPECT_EQ(answer.body["status"], Value(status));
  EXPECT_FALSE(answer.body.text("title").empty());
  EXPECT_FALSE(answer.body.text("detail").empty());
}

AE_TEST("service/it says what it offers, and whether it can work") {
  ApiFixture fixture;
  EXPECT_EQ(fixture.get({"api", "ready"}).body.text("status"), "ready");
  const ApiResponse agents = fixture.get({"api", "agents"});
  ASSERT_EQ(agents.body["agents"].size(), fixture.file.agents.size());
  EXPECT_EQ(agents.body["agents"].items()[0].text("plan_hash").size(), 64u);
  EXPECT_EQ(fixture.get({"api", "agents", "echo"}).body["input_schema"].text("type"), "object");
  expect_problem(fixture.get({"api", "agents", "nobody"}), 404, "not_found");
  EXPECT_EQ(fixture.get({"api", "tools"}).body["tools"].size(), fixture.file.tools.size());
  const ApiResponse workers = fixture.get({"api", "workers"});
  ASSERT_EQ(workers.body["workers"].size(), 1u);
  EXPECT_EQ(workers.body["workers"].items()[0].text("worker"), "worker");
  fixture.api->begin_shutdown();
  expect_problem(fixture.get({"api", "ready"}), 503, "unavailable");
  EXPECT_EQ(fixture.get({"api", "health"}).status, 200) << "it is still there";
}

AE_TEST("registry/a server registers its agents once, and a changed one as a new version") {
  ApiFixture fixture;
  fixture.serve();
  const std::size_t agents = fixture.file.agents.size();
  ASSERT_EQ(fixture.get({"api", "audit"}).body["entries"].size(), agents);
  const ApiResponse echo = fixture.get({"api", "agents", "echo"});
  EXPECT_EQ(echo.body["version"], Value(1));
  EXPECT_EQ(echo.body.text("by"), "serve");
  EXPECT_EQ(echo.body["source"].text("output"), "${ .steps.say.said }");
  fixture.serve();
  EXPECT_EQ(fixture.get({"api", "audit"}).body["entries"].size(), agents) << "nothing has changed";
}

AE_TEST("registry/an agent is registered as a new version, or is the newest already") {
  ApiFixture fixture;
  fixture.serve();
  const std::string source = R"({"plan": [{"id": "e", "tool": "echo", "args": {"v": 1}}],
                                 "output": "${ .steps.e.v }"})";
  const ApiResponse made = fixture.put("new", source);
  ASSERT_EQ(made.status, 201) << canonical(made.body);
  EXPECT_EQ(made.body["version"], Value(1));
  EXPECT_EQ(made.body.text("plan_hash").size(), 64u);
  EXPECT_EQ(made.body.text("by"), "key:1 ada");
  EXPECT_EQ(made.location, "/api/agents/new");
  const ApiResponse again = fixture.put("new", R"({"output": "${ .steps.e.v }",
      "plan": [{"args": {"v": 1}, "id": "e", "tool": "echo"}]})");
  EXPECT_EQ(again.status, 200);
  EXPECT_EQ(again.body["version"], Value(1));
  // A job uses the newest version at its creation, and keeps it.
  const std::string first = fixture.make(R"({"agent": "new"})");
  EXPECT_EQ(fixture.get({"api", "jobs", first}).body["result"], Value(1));
  const ApiResponse second =
      fixture.put("new", R"({"plan": [{"id": "e", "tool": "echo", "args": {"v": 2}}],
                          "output": "${ .steps.e.v }"})");
  EXPECT_EQ(second.status, 201);
  EXPECT_EQ(second.body["version"], Value(2));
  const std::string later = fixture.make(R"({"agent": "new"})");
  const ApiResponse old_job = fixture.get({"api", "jobs", first});
  const ApiResponse new_job = fixture.get({"api", "jobs", later});
  EXPECT_EQ(new_job.body["result"], Value(2));
  EXPECT_EQ(old_job.body["agent_version"], Value(1));
  EXPECT_EQ(new_job.body["agent_version"], Value(2));
  EXPECT_EQ(old_job.body.text("plan_hash"), made.body.text("plan_hash"));
  EXPECT_EQ(new_job.body.text("plan_hash"), second.body.text("plan_hash"));
  const ApiResponse begun = fixture.post({"api", "agents", "new", "message"}, R"({"message": 1})");
  EXPECT_EQ(begun.status, 202);
  // Older versions are still readable.
  const ApiResponse shown = fixture.get({"api", "agents", "new"}, {{"version", "1"}});
  EXPECT_EQ(shown.body.text("plan_hash"), made.body.text("plan_hash"));
  EXPECT_EQ(canonical(shown.body["source"]), canonical(*parse_json(source)));
  expect_problem(fixture.get({"api", "agents", "new"}, {{"version", "3"}}), 404, "not_found");
  expect_problem(fixture.get({"api", "agents", "new"}, {{"version", "0"}}), 404, "not_found");
  expect_problem(fixture.get({"api", "agents", "new"}, {{"version", "x"}}), 400, "input_invalid");
}

AE_TEST("registry/faults of an agent are told at once, and nothing is registered") {
  ApiFixture fixture;
  fixture.serve();
  const std::size_t before = fixture.get({"api", "audit"}).body["entries"].size();
  const ApiResponse bad =
      fixture.put("new", R"({"plan": [{"id": "e", "tool": "ech"}], "outputs": 1})");
  expect_problem(bad, 400, "plan_invalid");
  ASSERT_EQ(bad.body["faults"].size(), 2u) << canonical(bad.body);
  EXPECT_EQ(bad.body["faults"].items()[0].text("suggestion"), "echo");
  EXPECT_EQ(bad.body["faults"].items()[0].text("path"), "new.plan[0].tool");
  expect_problem(fixture.put("a b", R"({"plan": [{"id": "e", "tool": "echo"}]})"), 400,
                 "plan_invalid");
  expect_problem(fixture.put("new", ""), 400, "plan_invalid");
  expect_problem(fixture.get({"api", "agents", "new"}), 404, "not_found");
  EXPECT_EQ(fixture.get({"api", "audit"}).body["entries"].size(), before);
  ApiFixture no_server;
  expect_problem(no_server.put("new", R"({"plan": [{"id": "e", "tool": "echo"}]})"), 400,
                 "unsupported");
}

AE_TEST("registry/an agent whose tools are not here is told of, and makes no job") {
  ApiFixture fixture;
  fixture.serve();
  ASSERT_EQ(fixture.put("new", R"({"plan": [{"id": "d", "tool": "doubt"}]})").status, 201);
  const std::string job = fixture.make(R"({"agent": "new"})");
  // The file of the next server lacks the tool.
  const std::size_t at = fixture.text.find("  doubt:");
  fixture.text.erase(at, fixture.text.find('\n', at) + 1 - at);
  fixture.serve();
  const ApiResponse shown = fixture.get({"api", "agents", "new"});
  EXPECT_EQ(shown.status, 200);
  EXPECT_EQ(shown.body["runs_here"], Value(false));
  EXPECT_NE(shown.body.text("refused").find("doubt"), std::string_view::npos);
  expect_problem(fixture.post({"api", "jobs"}, R"({"agent": "new"})"), 409, "needs_version");
  EXPECT_EQ(fixture.get({"api", "jobs", job}).body["agent_version"], Value(1));
}

AE_TEST("registry/what another process registers is claimed here") {
  ApiFixture fixture;
  fixture.serve();
  const store::AgentVersion other{
      .name = "theirs",
      .version = 0,
      .plan_hash = std::string(64, 'a'),
      .definition = *parse_json(R"({"plan": [{"id": "e", "tool": "echo"}]})"),
      .registered_at = fixture.loop.now(),
      .by = "serve"};
  ASSERT_TRUE(fixture.loop.await<Result<void>>([&](auto done) {
    fixture.store.append_audit_entry(store::agent_registered(other), std::move(done));
  }));
  fixture.loop.advance(std::chrono::seconds(2));
  EXPECT_EQ(fixture.get({"api", "agents", "theirs"}).body["runs_here"], Value(true));
  EXPECT_EQ(std::ranges::count(fixture.runtime->options().agents, "theirs"), 1);
  const std::string job = fixture.make(R"({"agent": "theirs"})");
  EXPECT_EQ(fixture.status(job), "completed");
}

std::string with(std::string text, std::string_view before, std::string_view after) {
  const std::size_t at = text.find(before);
  AE_CHECK(at != text.npos, before);
  return text.replace(at, before.size(), after);
}

std::string words(const Result<std::vector<Api::AgentChange>>& changes) {
  if (!changes) return std::string(code_name(changes.error().code));
  std::string text;
  for (const Api::AgentChange& one : *changes) {
    text += one.name + " " + std::to_string(one.from) + "-" + std::to_string(one.to) + " ";
  }
  return text;
}

// Two changed agents and a new one.
std::string edited_agents() {
  std::string text = with(std::string(kAgents), "${ .steps.say.said }", "${ .steps.say }");
  text = with(text, "key: \"go\" } }\n    output: \"${ .steps.w }\"", "key: \"gone\" } }");
  return text + "  later: { plan: [ { id: d, tool: echo, args: { x: 1 } } ] }\n";
}

AE_TEST("reload/agents that were edited are registered, and jobs are made of them") {
  ApiFixture fixture;
  fixture.serve();
  ASSERT_EQ(fixture.put("theirs", R"({"plan": [{"id": "e", "tool": "echo"}]})").status, 201);
  const std::string before = fixture.make(R"({"agent": "asks"})");
  EXPECT_EQ(words(fixture.reload(std::string(kAgents))), "") << "nothing was edited";
  EXPECT_EQ(words(fixture.reload(edited_agents())), "asks 1-2 echo 1-2 later 0-1 ");
  EXPECT_EQ(fixture.begins, 2);
  const std::string job = fixture.make(R"({"agent": "echo", "input": {"n": 7}})");
  EXPECT_EQ(canonical(fixture.get({"api", "jobs", job}).body["result"]), R"({"said":{"n":7}})");
  EXPECT_EQ(fixture.get({"api", "jobs", job}).body["agent_version"], Value(2));
  EXPECT_EQ(fixture.status(fixture.make(R"({"agent": "later"})")), "completed");
  EXPECT_EQ(fixture.status(fixture.make(R"({"agent": "theirs"})")), "completed");
  // A running job keeps its plan.
  EXPECT_EQ(
      fixture.post({"api", "jobs", before, "signal"}, R"({"correlation_key": "go", "payload": 1})")
          .status,
      200);
  fixture.loop.run_ready();
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.status(before), "completed");
  EXPECT_EQ(fixture.get({"api", "jobs", before}).body["agent_version"], Value(1));
}

AE_TEST(
    "reload/a tool that is gone refuses the agents that need it, and one that is back has them") {
  ApiFixture fixture;
  fixture.serve();
  ASSERT_EQ(fixture.put("theirs", R"({"plan": [{"id": "d", "tool": "doubt"}]})").status, 201);
  std::string without(kAgents);
  const std::size_t at = without.find("  doubt:");
  without.erase(at, without.find('\n', at) + 1 - at);
  without = with(without, "doubts: { plan: [ { id: d, tool: doubt } ]",
                 "doubts: { plan: [ { id: d, tool: strict } ]");
  EXPECT_EQ(words(fixture.reload(without)), "doubts 1-2 ");
  expect_problem(fixture.post({"api", "jobs"}, R"({"agent": "theirs"})"), 409, "needs_version");
  EXPECT_EQ(words(fixture.reload(std::string(kAgents))), "doubts 2-3 ");
  EXPECT_EQ(fixture.post({"api", "jobs"}, R"({"agent": "theirs"})").status, 201);
}

AE_TEST(
    "reload/whatever the store fails with, the versions before stay in use, and the next one ends "
    "it") {
  for (const store::Fault fault : {store::Fault::fail_before, store::Fault::fail_after}) {
    for (const store::Method method :
         {store::Method::append_audit_entry, store::Method::read_audit_log}) {
      int failed = 0;
      for (int nth = 1; nth == 1 || failed == nth - 1; ++nth) {
        int left = 0;  // calls of the method until it fails; 0 = it succeeds
        ApiFixture fixture(true, [&](const store::Call& call) {
          return call.method == method && left > 0 && --left == 0 ? fault : store::Fault::none;
        });
        fixture.serve();
        SCOPED_TRACE(std::string(to_text(method)) + " " + std::string(to_text(fault)) + " " +
                     std::to_string(nth));
        left = nth;
        const auto first = fixture.reload(edited_agents());
        if (left > 0) break;  // no more calls of the method
        ++failed;
        left = 0;
        ASSERT_FALSE(first.has_value());
        EXPECT_TRUE(first.error().code == Code::unavailable ||
                    first.error().code == Code::unknown_outcome);
        EXPECT_EQ(fixture.begins, 0);
        // Another agent is registered in between, which reads the registry again.
        ASSERT_EQ(fixture.put("theirs", R"({"plan": [{"id": "e", "tool": "echo"}]})").status, 201);
        EXPECT_EQ(fixture.post({"api", "jobs"}, R"({"agent": "later"})").status, 404);
        const std::string job = fixture.make(R"({"agent": "echo", "input": {"n": 7}})");
        EXPECT_EQ(canonical(fixture.get({"api", "jobs", job}).body["result"]), R"({"n":7})");
        EXPECT_EQ(fixture.get({"api", "jobs", job}).body["agent_version"], Value(1));
        EXPECT_EQ(words(fixture.reload(edited_agents())), "asks 1-2 echo 1-2 later 0-1 ");
        EXPECT_EQ(fixture.begins, 1);
        const std::string after = fixture.make(R"({"agent": "echo", "input": {"n": 7}})");
        EXPECT_EQ(fixture.get({"api", "jobs", after}).body["agent_version"], Value(2));
        EXPECT_EQ(fixture.get({"api", "audit"}).body["entries"].size(),
                  fixture.file.agents.size() + 4);
      }
      EXPECT_GE(failed, method == store::Method::append_audit_entry ? 3 : 1);
    }
  }
}

AE_TEST("reload/an agent that half a reload registered is offered once a client registers it") {
  int records = -1;
  ApiFixture fixture(true, [&](const store::Call& call) {
    const bool last =
        records >= 0 && call.method == store::Method::append_audit_entry && ++records == 3;
    return last ? store::Fault::fail_after : store::Fault::none;
  });
  fixture.serve();
  records = 0;
  EXPECT_FALSE(fixture.reload(edited_agents()).has_value());
  EXPECT_EQ(fixture.post({"api", "jobs"}, R"({"agent": "later"})").status, 404);
  EXPECT_EQ(
      fixture.put("later", R"({"plan": [{"id": "d", "tool": "echo", "args": {"x": 1}}]})").status,
      200);
  EXPECT_EQ(fixture.post({"api", "jobs"}, R"({"agent": "later"})").status, 201);
}

AE_TEST(
    "reload/an edit that is taken back after half of it was registered is taken back there, too") {
  bool fails = false;
  int records = 0;
  ApiFixture fixture(true, [&](const store::Call& call) {
    const bool now = fails && call.method == store::Method::append_audit_entry && ++records == 2;
    return now ? store::Fault::fail_before : store::Fault::none;
  });
  fixture.serve();
  fails = true;
  EXPECT_EQ(words(fixture.reload(edited_agents())), "unavailable");
  EXPECT_EQ(words(fixture.reload(std::string(kAgents))), "asks 1-3 ");
  EXPECT_EQ(fixture.get({"api", "agents", "asks"}).body["source"].text("output"), "${ .steps.w }");
  EXPECT_EQ(fixture.get({"api", "agents", "later"}).status, 404);
}

AE_TEST("service/a message begins a job of the agent") {
  ApiFixture fixture;
  expect_problem(fixture.post({"api", "agents", "asks", "message"}, "{}"), 400, "input_invalid");
  expect_problem(fixture.post({"api", "agents", "nobody", "message"}, R"({"message": 1})"), 404,
                 "not_found");
  const ApiResponse begun =
      fixture.post({"api", "agents", "asks", "message"}, R"({"message": "hello"})");
  ASSERT_EQ(begun.status, 202) << canonical(begun.body);
  const std::string job(begun.body.text("job_id"));
  EXPECT_EQ(begun.location, "/api/jobs/" + job);
  EXPECT_EQ(canonical(fixture.get({"api", "jobs", job}).body["input"]), R"({"message":"hello"})");
}

AE_TEST("service/it counts what it wrote") {
  ApiFixture fixture;
  const std::string job = fixture.make(R"({"agent": "echo", "input": {"n": 1}})");
  ASSERT_EQ(fixture.status(job), "completed");
  const ApiResponse metrics = fixture.get({"metrics"});
  for (const char* line :
       {"aetheris_job_created_total 1\n", "aetheris_job_total{status=\"completed\"} 1\n",
        "aetheris_tool_invocations_total{tool=\"echo\"} 1\n",
        "aetheris_tool_invocation_total{result=\"success\"} 1\n",
        "aetheris_worker_busy{worker_id=\"worker\"} 0\n",
        "aetheris_job_duration_seconds_count{agent=\"echo\"} 1\n",
        "aetheris_job_parked_duration_seconds_count 0\n", "aetheris_job_fail_total 0\n",
        "aetheris_in_doubt_total 0\n", "aetheris_step_retries_total 0\n",
        "aetheris_step_timeout_total 0\n", "aetheris_approval_requests_total 0\n",
        "aetheris_run_resume_total 0\n", "aetheris_confirmation_replay_warn_total 0\n"}) {
    EXPECT_NE(metrics.text.find(line), std::string::npos) << line << "\n" << metrics.text;
  }
}

AE_TEST("service/it counts failures and how long jobs were parked") {
  ApiFixture fixture;
  const std::string job = fixture.make(R"({"agent": "doubts"})");
  fixture.loop.advance(std::chrono::minutes(10));
  const Value body = fixture.get({"api", "jobs", job}).body;
  const std::string key(body["in_doubt"].items()[0].text("idempotency_key"));
  fixture.post({"api", "jobs", job, "resolve"},
               R"({"idempotency_key":")" + key + R"(","resolution":"fail"})");
  fixture.loop.run_ready();
  ASSERT_EQ(fixture.status(job), "failed");
  const std::string text = fixture.get({"metrics"}).text;
  for (const char* line : {"aetheris_job_fail_total 1\n", "aetheris_in_doubt_total 1\n",
                           "aetheris_tool_errors_total{tool=\"doubt\"} 1\n",
                           "aetheris_job_parked_duration_seconds_bucket{le=\"300\"} 0\n",
                           "aetheris_job_parked_duration_seconds_bucket{le=\"1800\"} 1\n",
                           "aetheris_job_duration_seconds_count{agent=\"doubts\"} 1\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

AE_TEST("service/jobs that do not go on by themselves are listed with what would help") {
  ApiFixture fixture;
  const auto listed = [&](QueryPairs query) {
    const ApiResponse answer = fixture.get({"api", "jobs"}, std::move(query));
    EXPECT_EQ(answer.status, 200) << canonical(answer.body);
    return answer.body["jobs"];
  };
  const std::string paused = fixture.make(R"({"agent": "asks"})");
  const std::string waits = fixture.make(R"({"agent": "asks"})");
  const std::string needs =
      fixture.make(R"({"agent": "echo", "input": {"n": 1}, "required_capabilities": ["gpu"]})");
  ASSERT_EQ(fixture.post({"api", "jobs", paused, "pause"}, R"({"reason": "lunch"})").status, 202);
  fixture.loop.run_ready();
  ASSERT_EQ(fixture.status(paused), "parked");
  ASSERT_EQ(fixture.status(waits), "waiting");
  ASSERT_EQ(fixture.status(needs), "queued");
  const Value first = listed({{"stuck", "true"}});
  ASSERT_EQ(first.size(), 1u) << canonical(first);
  EXPECT_EQ(first.items()[0].text("id"), paused);
  EXPECT_EQ(first.items()[0]["stuck"].text("reason"), "parked");
  EXPECT_EQ(first.items()[0]["stuck"].text("until"), "resume");
  EXPECT_EQ(canonical(first.items()[0]["stuck"]["commands"]),
            R"(["aetheris resume )" + paused + R"("])");
  // The one without a suitable worker, after a while.
  const Value later = listed({{"stuck", "true"}, {"older_than", "0s"}});
  ASSERT_EQ(later.size(), 2u) << canonical(later);
  EXPECT_EQ(later.items()[1].text("id"), needs);
  EXPECT_EQ(canonical(later.items()[1]["stuck"]["missing"]), R"(["gpu"])");
  EXPECT_EQ(canonical(later.items()[1]["stuck"]["commands"]),
            R"(["aetheris serve FILE --capability gpu"])");
  fixture.loop.advance(std::chrono::minutes(6));
  EXPECT_EQ(listed({{"stuck", "true"}}).size(), 2u);
  // One per page.
  const ApiResponse page = fixture.get({"api", "jobs"}, {{"stuck", "true"}, {"limit", "1"}});
  ASSERT_EQ(page.body["jobs"].size(), 1u);
  const Value rest =
      listed({{"stuck", "true"}, {"limit", "9"}, {"cursor", page.body["next_cursor"].as_string()}});
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest.items()[0].text("id"), needs);
  EXPECT_EQ(listed({{"in_doubt", "true"}}).size(), 0u);
  for (const QueryPairs& bad : {QueryPairs{{"stuck", "yes"}},
                                {{"stuck", "true"}, {"cursor", "x"}},
                                {{"stuck", "true"}, {"older_than", "soon"}},
                                {{"stuck", "true"}, {"status", "parked"}},
                                {{"in_doubt", "1"}}}) {
    expect_problem(fixture.get({"api", "jobs"}, bad), 400, "input_invalid");
  }
  const std::string text = fixture.get({"metrics"}).text;
  for (const char* line :
       {"aetheris_stuck_job_count 2\n", "aetheris_job_state{state=\"parked\"} 1\n",
        "aetheris_job_state{state=\"waiting\"} 1\n",
        "aetheris_queue_backlog{queue=\"default\"} 1\n", "aetheris_store_up 1\n",
        "aetheris_lease_acquire_total{ok=\"true\"} ", "aetheris_lease_conflict_total 0\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

AE_TEST("openapi/it names every route, and no other") {
  const auto document = parse_json(openapi_json(), {.depth_max = 100});
  ASSERT_TRUE(document) << document.error().message;
  EXPECT_EQ(document->text("openapi"), "3.1.0");
  std::set<std::pair<std::string, std::string>> documented;
  for (const auto& [path, item] : (*document)["paths"].members()) {
    for (const auto& [method, operation] : item.members()) {
      if (method == "parameters") continue;
      std::string upper = method;
      std::ranges::transform(upper, upper.begin(), [](char c) { return std::toupper(c); });
      documented.emplace(upper, path);
      EXPECT_FALSE(operation.text("operationId").empty()) << method << " " << path;
      EXPECT_TRUE(operation["responses"].find("default")) << method << " " << path;
    }
  }
  std::set<std::pair<std::string, std::string>> routes;
  for (const Api::RouteShape& route : Api::routes()) routes.emplace(route.method, route.path);
  EXPECT_EQ(documented, routes);
}

AE_TEST("openapi/it says of each route which roles may use it") {
  const auto document = parse_json(openapi_json(), {.depth_max = 100});
  ASSERT_TRUE(document);
  for (const Api::RouteShape& route : Api::routes()) {
    std::string method = route.method;
    std::ranges::transform(method, method.begin(), [](char c) { return std::tolower(c); });
    const Value& security = (*document)["paths"][route.path][method]["security"];
    std::vector<Value> roles;
    for (const Role role : roles_with(route.access)) roles.emplace_back(to_text(role));
    const Value wanted =
        route.access == Access::open
            ? Value::array({})
            : Value::array({Value::object({{"key", Value::array(std::move(roles))}})});
    EXPECT_EQ(canonical(security), canonical(wanted)) << route.method << " " << route.path;
  }
}

AE_TEST("openapi/what it says of bodies is what is taken") {
  ApiFixture fixture;
  const auto document = parse_json(openapi_json(), {.depth_max = 100});
  ASSERT_TRUE(document);
  const std::string job = fixture.make(R"({"agent": "asks"})");
  for (const auto& [path, item] : (*document)["paths"].members()) {
    const Value& schema = item["post"]["requestBody"]["content"]["application/json"]["schema"];
    if (!schema.is_object() || path == "/mcp") continue;  // JSON-RPC: mcp_server_test.cc
    Path to;
    for (std::size_t from = 1; from <= path.size();) {
      const std::size_t end = std::min(path.find('/', from), path.size());
      const std::string segment = path.substr(from, end - from);
      to.push_back(segment == "{id}" ? job : segment);
      from = end + 1;
    }
    const Value& known =
        schema["$ref"].is_string() ? (*document)["components"]["schemas"]["NewJob"] : schema;
    const ApiResponse other = fixture.post(to, R"({"no such field": 1})");
    EXPECT_EQ(other.body.text("code"), "input_invalid") << path << canonical(other.body);
    for (const auto& [field, type] : known["properties"].members()) {
      const ApiResponse answer =
          fixture.post(to, canonical(Value::object({{field, Value::object({})}})));
      EXPECT_EQ(answer.body.text("detail").find("is not known here"), std::string_view::npos)
          << path << " takes no " << field << ": " << canonical(answer.body);
    }
  }
}

AE_TEST("roles/each route is for the roles that its table says, and for no other") {
  ApiFixture fixture;
  for (const Api::RouteShape& route : Api::routes()) {
    ApiRequest request;
    request.method = route.method;
    for (std::size_t from = 1; from <= route.path.size();) {
      const std::size_t end = std::min(route.path.find('/', from), route.path.size());
      request.path.push_back(route.path.substr(from, end - from));
      from = end + 1;
    }
    std::vector<Role> roles = all_roles();
    roles.push_back(Role::none);
    for (const Role role : roles) {
      request.role = role;
      const ApiResponse answer = fixture.send(request);
      const bool refused = answer.body.text("code") == "forbidden";
      EXPECT_EQ(refused, !has_access(role, route.access))
          << to_text(role) << " " << route.method << " " << route.path << canonical(answer.body);
      if (refused) {
        EXPECT_EQ(answer.status, 403);
      }
    }
  }
}

AE_TEST("roles/least privilege: what each role may, in one table") {
  const auto has = [](Role role) {
    std::string all;
    for (const auto& [access, name] : {std::pair{Access::offer, "offer "},
                                       {Access::view, "look "},
                                       {Access::operate, "operate "},
                                       {Access::answer, "answer "},
                                       {Access::decide, "decide "},
                                       {Access::manage, "manage "}}) {
      if (has_access(role, access)) all += name;
    }
    return all;
  };
  EXPECT_EQ(has(Role::none), "");
  EXPECT_EQ(has(Role::worker), "offer ");
  EXPECT_EQ(has(Role::viewer), "offer look ");
  EXPECT_EQ(has(Role::operator_), "offer look operate answer ");
  EXPECT_EQ(has(Role::approver), "offer look answer decide ");
  EXPECT_EQ(has(Role::admin), "offer look operate answer decide manage ");
  for (const Role role : all_roles()) EXPECT_EQ(role_from_text(to_text(role)), role);
  EXPECT_FALSE(role_from_text("nobody"));
  EXPECT_FALSE(role_from_text(""));
}

AE_TEST("keys/one is made, shown once, listed without its secret, and revoked once") {
  ApiFixture fixture;
  const ApiResponse made =
      fixture.post({"api", "keys"}, R"({"role": "viewer", "name": "dash", "expires": "2h"})");
  ASSERT_EQ(made.status, 201) << canonical(made.body);
  const std::string id(made.body.text("id"));
  const auto key = key_from_text(made.body.text("key"));
  ASSERT_TRUE(key);
  EXPECT_EQ(key->id, id);
  EXPECT_EQ(made.location, "/api/keys/" + id);
  const ApiResponse listed = fixture.get({"api", "keys"});
  ASSERT_EQ(listed.body["keys"].size(), 1u);
  const Value& one = listed.body["keys"].items()[0];
  EXPECT_EQ(one.text("created_by"), "ada");
  EXPECT_EQ(one.text("expires_at"), to_text(testing::TestLoop::kStart + std::chrono::hours(2)));
  EXPECT_EQ(one["live"], Value(true));
  const std::string hash = to_hex(hash_of_secret(key->secret));
  EXPECT_EQ(canonical(listed.body).find(key->secret), std::string::npos);
  EXPECT_EQ(canonical(listed.body).find(hash), std::string::npos);
  EXPECT_EQ(canonical(fixture.get({"api", "audit"}).body).find(key->secret), std::string::npos);
  ApiRequest revoke;
  revoke.method = "DELETE";
  revoke.path = {"api", "keys", id};
  revoke.by = "bob";
  const ApiResponse revoked = fixture.send(revoke);
  EXPECT_EQ(revoked.status, 200);
  EXPECT_EQ(revoked.body["live"], Value(false));
  EXPECT_EQ(revoked.body.text("revoked_by"), "bob");
  revoke.by = "eve";
  EXPECT_EQ(canonical(fixture.send(revoke).body), canonical(revoked.body));
  EXPECT_EQ(fixture.get({"api", "audit"}).body["entries"].size(), 2u) << "said once";
  revoke.path.back() = "nobody";
  expect_problem(fixture.send(revoke), 404, "not_found");
  const ApiResponse again = fixture.post({"api", "keys"}, R"({"role": "viewer"})");
  EXPECT_NE(again.body.text("key"), made.body.text("key"));
}

AE_TEST("keys/what is no key's wish makes none") {
  ApiFixture fixture;
  for (const char* bad :
       {"{}", R"({"role": "nobody"})", R"({"role": "root"})", R"({"role": 7})",
        R"({"role": "viewer", "expires": "soon"})", R"({"role": "viewer", "expires": "0s"})",
        R"({"role": "viewer", "expires": 7})", R"({"role": "viewer", "name": "a\nb"})",
        R"({"role": "viewer", "name": 7})", R"({"role": "viewer", "secret": "mine"})"}) {
    expect_problem(fixture.post({"api", "keys"}, bad), 400, "input_invalid");
  }
  expect_problem(fixture.post({"api", "keys"},
                              R"({"role": "viewer", "name": ")" + std::string(65, 'n') + "\"}"),
                 400, "input_invalid");
  EXPECT_EQ(fixture.get({"api", "keys"}).body["keys"].size(), 0u);
  EXPECT_EQ(fixture.get({"api", "audit"}).body["entries"].size(), 0u);
}

AE_TEST("roles/who starts work does not answer for the people it asks, and the other way round") {
  ApiFixture fixture;
  const auto signal = [&](Role role, const std::string& job, std::string_view body) {
    ApiRequest request;
    request.method = "POST";
    request.path = {"api", "jobs", job, "signal"};
    request.body = body;
    request.role = role;
    request.by = "key:1";
    const ApiResponse answer = fixture.send(std::move(request));
    fixture.loop.run_ready();
    return answer;
  };
  // A call that needs approval, answered through the key of its wait.
  const std::string buys = fixture.make(R"({"agent": "buys", "input": {"n": 101}})");
  ASSERT_EQ(fixture.status(buys), "waiting");
  const std::string key(
      fixture.get({"api", "jobs", buys}).body["waits"].items()[0].text("correlation_key"));
  ASSERT_TRUE(key.starts_with("approval/"));
  const std::string yes = R"("payload": {"decision": "approve"}})";
  const std::string own = R"({"correlation_key": ")" + key + "\", ";
  expect_problem(signal(Role::operator_, buys, own + yes), 403, "forbidden");
  expect_problem(signal(Role::operator_, buys, own + R"("wait_type": "human", )" + yes), 403,
                 "forbidden");
  expect_problem(signal(Role::operator_, buys, own + R"("wait_type": "signal", )" + yes), 400,
                 "wait_mismatch");
  EXPECT_EQ(fixture.status(buys), "waiting");
  EXPECT_EQ(signal(Role::approver, buys, own + yes).status, 200);
  EXPECT_EQ(fixture.status(buys), "completed");
  // A signal from a program.
  const std::string job = fixture.make(R"({"agent": "asks"})");
  const std::string go = R"({"correlation_key": "go", "payload": 1})";
  expect_problem(signal(Role::approver, job, go), 400, "wait_mismatch");
  expect_problem(signal(Role::approver, job, R"({"correlation_key": "go", "wait_type": "signal"})"),
                 403, "forbidden");
  EXPECT_EQ(signal(Role::operator_, job, go).status, 200);
  EXPECT_EQ(fixture.status(job), "completed");
  // An early answer must not become the answer of a user when the wait opens.
  const std::string receives_commits = fixture.make(R"({"agent": "hears"})");
  const std::string early =
      R"({"correlation_key": "ok", "buffer": true, "payload": {"decision": "approve"}})";
  EXPECT_EQ(signal(Role::operator_, receives_commits, early).status, 202);
  fixture.post({"api", "jobs", receives_commits, "message"},
               R"({"channel": "news", "payload": 1})");
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.status(receives_commits), "waiting") << "the person is still asked";
  EXPECT_EQ(signal(Role::approver, receives_commits, R"({"correlation_key": "ok", )" + yes).status,
            200);
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.status(receives_commits), "completed");
}

AE_TEST("roles/a plan of one's own, which says what people are asked about, is for admin alone") {
  ApiFixture fixture;
  const std::string job = fixture.make(R"({"agent": "asks"})");
  ApiRequest request;
  request.method = "POST";
  request.path = {"api", "jobs", job, "plan"};
  request.role = Role::operator_;
  request.body =
      canonical(Value::object({{"task_graph", fixture.file.agents.at("hears").task_graph}}));
  expect_problem(fixture.send(request), 403, "forbidden");
  request.role = Role::admin;
  EXPECT_EQ(fixture.send(request).status, 202);
  request.path = {"api", "jobs", job, "retry"};
  expect_problem(fixture.send(request), 400, "input_invalid");  // it has not failed
  request.role = Role::operator_;
  expect_problem(fixture.send(request), 403, "forbidden");
}

AE_TEST("api/a retry or a plan with a tool that this process has otherwise is refused, unwritten") {
  ApiFixture fixture;
  const std::string failed = fixture.make(R"({"agent": "maps", "input": {"list": 1}})");
  const std::string waits = fixture.make(R"({"agent": "asks"})");
  ASSERT_EQ(fixture.status(failed), "failed");
  ASSERT_EQ(fixture.status(waits), "waiting");
  const std::string body =
      canonical(Value::object({{"task_graph", fixture.file.agents.at("maps").task_graph}}));
  const std::string old_version = fixture.tool_registry.find("echo")->version;
  fixture.tool_registry.find("echo")->version = "ffffffffffffffff";
  for (const auto& [job, action] : {std::pair(failed, "retry"), std::pair(waits, "plan")}) {
    const auto refused = fixture.post({"api", "jobs", job, action}, body);
    expect_problem(refused, 409, "needs_version");
    EXPECT_NE(refused.body.text("detail").find("another version of tool \"echo\""),
              std::string_view::npos);
  }
  EXPECT_EQ(fixture.get({"api", "jobs"}).body["jobs"].size(), 2u);
  EXPECT_EQ(fixture.get({"api", "jobs", waits}).body["plan"], Value(0));
  // A retry under the origin's own plan uses the current tool.
  EXPECT_EQ(fixture.post({"api", "jobs", failed, "retry"}, "{}").status, 201);
  fixture.tool_registry.find("echo")->version = old_version;
  EXPECT_EQ(fixture.post({"api", "jobs", failed, "retry"}, body).status, 201);
  EXPECT_EQ(fixture.post({"api", "jobs", waits, "plan"}, body).status, 202);
}

AE_TEST("api/a process that runs no jobs takes a retry with any tools") {
  ApiFixture fixture;
  const std::string failed = fixture.make(R"({"agent": "maps", "input": {"list": 1}})");
  fixture.tool_registry.find("echo")->version = "ffffffffffffffff";
  ApiOptions options{.agents = &fixture.file,
                     .runs = false,
                     .version = "0",
                     .store = "memory:",
                     .random_source = &fixture.random};
  fixture.api.emplace(fixture.loop, fixture.steady, fixture.store, *fixture.runtime,
                      std::move(options));
  const std::string body =
      canonical(Value::object({{"task_graph", fixture.file.agents.at("maps").task_graph}}));
  EXPECT_EQ(fixture.post({"api", "jobs", failed, "retry"}, body).status, 201);
}

AE_TEST("api/a job is created, runs, and is shown") {
  ApiFixture fixture;
  const auto made = fixture.post({"api", "jobs"}, R"({"agent":"echo","input":{"n":7},"id":"j1"})");
  EXPECT_EQ(made.status, 201);
  EXPECT_EQ(made.location, "/api/jobs/j1");
  fixture.loop.run_ready();
  const auto job = fixture.get({"api", "jobs", "j1"});
  EXPECT_EQ(job.status, 200);
  EXPECT_EQ(job.body.text("status"), "completed");
  EXPECT_EQ(canonical(job.body["result"]), R"({"n":7})");
  EXPECT_EQ(canonical(job.body["labels"]), R"({"made":"by-hand"})");
}

AE_TEST("api/a creation can wait for its end") {
  ApiFixture fixture;
  const auto made = fixture.post({"api", "jobs"}, R"({"agent":"echo"})", {{"wait", "30s"}});
  EXPECT_EQ(made.status, 201);
  EXPECT_EQ(made.body.text("status"), "completed");
  const auto blocked = fixture.post({"api", "jobs"}, R"({"agent":"asks"})", {{"wait", "30s"}});
  EXPECT_EQ(blocked.body.text("status"), "waiting");
}

AE_TEST("api/a job that nobody runs here stays queued") {
  ApiFixture fixture(false);
  const auto id = fixture.make(R"({"agent":"echo"})");
  EXPECT_EQ(fixture.status(id), "queued");
}

AE_TEST("api/the same idempotency key is the same job, with another input a conflict") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"echo","input":{"n":1},"idempotency_key":"k"})");
  const auto again =
      fixture.post({"api", "jobs"}, R"({"agent":"echo","input":{"n":1},"idempotency_key":"k"})");
  EXPECT_EQ(again.status, 200);
  EXPECT_EQ(again.body.text("id"), id);
  expect_problem(
      fixture.post({"api", "jobs"}, R"({"agent":"echo","input":{"n":2},"idempotency_key":"k"})"),
      409, "idempotency_conflict");
  ApiRequest two;
  two.method = "POST";
  two.path = {"api", "jobs"};
  two.body = R"({"agent":"echo","idempotency_key":"k"})";
  two.idempotency_key = "l";
  expect_problem(fixture.send(two), 400, "input_invalid");
}

AE_TEST("api/the same key stands for the whole request, in whatever words it is asked") {
  ApiFixture fixture;
  const Path jobs{"api", "jobs"};
  const auto plain = fixture.post(jobs, R"({"agent":"asks","idempotency_key":"plain"})");
  ASSERT_EQ(plain.status, 201);
  for (const char* same : {R"("priority":0)", R"("queue":"default")", R"("queue":null)",
                           R"("required_capabilities":[])"}) {
    const std::string body =
        R"({"agent":"asks","idempotency_key":"plain",)" + std::string(same) + "}";
    const auto again = fixture.post(jobs, body);
    EXPECT_EQ(again.status, 200) << same;
    EXPECT_EQ(again.body["id"], plain.body["id"]);
  }
  for (const char* other :
       {R"("priority":3)", R"("queue":"q")", R"("required_capabilities":["a"])"}) {
    const std::string body =
        R"({"agent":"asks","idempotency_key":"plain",)" + std::string(other) + "}";
    EXPECT_EQ(fixture.post(jobs, body).body.text("code"), "idempotency_conflict") << other;
  }
  const auto more = fixture.post(jobs, R"({"agent":"asks","idempotency_key":"k","priority":3,
      "queue":"q","required_capabilities":["b","a","a"]})");
  ASSERT_EQ(more.status, 201);
  EXPECT_EQ(fixture
                .post(jobs, R"({"agent":"asks","idempotency_key":"k","priority":3,"queue":"q",
      "required_capabilities":["a","b"]})")
                .body["id"],
            more.body["id"]);
  EXPECT_EQ(fixture.post(jobs, R"({"agent":"asks","idempotency_key":"k"})").status, 409);
}

AE_TEST(
    "api/a job ends at the deadline that its request gave, or at its agent's if that is earlier") {
  ApiFixture fixture;
  const Instant now = fixture.loop.now();
  const auto deadline = [&](std::string_view agent, std::string_view requested) {
    const auto made =
        fixture.post({"api", "jobs"}, "{\"agent\":\"" + std::string(agent) + "\",\"deadline\":\"" +
                                          std::string(requested) + "\"}");
    EXPECT_EQ(made.status, 201) << canonical(made.body);
    return std::string(made.body.text("deadline"));
  };
  const auto in = [&](Duration later) { return to_text(now + later); };
  EXPECT_EQ(deadline("asks", "90s"), in(std::chrono::seconds(90)));
  EXPECT_EQ(deadline("asks", in(std::chrono::hours(2))), in(std::chrono::hours(2)));
  EXPECT_EQ(deadline("hurries", "30m"), in(std::chrono::minutes(30)));
  EXPECT_EQ(deadline("hurries", "2h"), in(std::chrono::hours(1)));
  const std::string id = fixture.make(R"({"agent":"asks","deadline":"10s"})");
  fixture.loop.advance(std::chrono::seconds(9));
  EXPECT_EQ(fixture.status(id), "waiting");
  fixture.loop.advance(std::chrono::seconds(3));
  EXPECT_EQ(fixture.status(id), "failed");
  EXPECT_EQ(fixture.get({"api", "jobs", id}).body["error"].text("code"), "deadline_exceeded");
}

AE_TEST(
    "api/a named job whose deadline had passed ends before it does anything, and is found again") {
  ApiFixture fixture;
  const std::string body =
      R"({"agent":"echo","deadline":"2001-01-31T09:30:00Z","idempotency_key":"k"})";
  const auto made = fixture.post({"api", "jobs"}, body, {{"wait", "30s"}});
  ASSERT_EQ(made.status, 201) << canonical(made.body);
  EXPECT_EQ(made.body.text("status"), "failed");
  EXPECT_EQ(made.body["error"].text("code"), "deadline_exceeded");
  const std::string id(made.body.text("id"));
  const Value events = fixture.get({"api", "jobs", id, "events"}).body["events"];
  for (const Value& event : events.items()) EXPECT_NE(event.text("type"), "node_started");
  const auto again = fixture.post({"api", "jobs"}, body);
  EXPECT_EQ(again.status, 200);
  EXPECT_EQ(again.body["id"], made.body["id"]);
}

AE_TEST("api/a duration asked for again later is the same request, another deadline is not") {
  ApiFixture fixture;
  const std::string body = R"({"agent":"asks","deadline":"60s","idempotency_key":"k"})";
  const auto made = fixture.post({"api", "jobs"}, body);
  fixture.loop.advance(std::chrono::seconds(2));
  const auto again =
      fixture.post({"api", "jobs"}, R"({"agent":"asks","deadline":"1m","idempotency_key":"k"})");
  EXPECT_EQ(again.status, 200);
  EXPECT_EQ(again.body["deadline"], made.body["deadline"]);
  EXPECT_EQ(
      fixture.post({"api", "jobs"}, R"({"agent":"asks","deadline":"2m","idempotency_key":"k"})")
          .status,
      409);
  EXPECT_EQ(fixture.post({"api", "jobs"}, R"({"agent":"asks","idempotency_key":"k"})").status, 409);
  const auto fork =
      fixture.post({"api", "jobs", std::string(made.body.text("id")), "fork"}, R"({"at_seq":2})");
  ASSERT_EQ(fork.status, 201) << canonical(fork.body);
  EXPECT_TRUE(
      fixture.get({"api", "jobs", std::string(fork.body.text("id"))}).body["deadline"].is_null());
}

AE_TEST("api/the same id and input is the same job, another input a conflict") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"echo","input":{"n":1},"id":"j"})");
  EXPECT_EQ(fixture.post({"api", "jobs"}, R"({"agent":"echo","input":{"n":1},"id":"j"})").status,
            200);
  expect_problem(fixture.post({"api", "jobs"}, R"({"agent":"echo","input":{"n":2},"id":"j"})"), 409,
                 "already_exists");
  expect_problem(fixture.post({"api", "jobs"}, R"({"agent":"asks","input":{"n":1},"id":"j"})"), 409,
                 "already_exists");
}

AE_TEST("api/what cannot be created is refused before anything is written") {
  ApiFixture fixture;
  const auto refused = [&](std::string_view body, int status, std::string_view code) {
    expect_problem(fixture.post({"api", "jobs"}, body), status, code);
  };
  refused("", 400, "input_invalid");
  refused("[]", 400, "input_invalid");
  refused("{", 400, "input_invalid");
  refused(R"({"agent":"nobody"})", 404, "not_found");
  refused(R"({"agent":7})", 400, "input_invalid");
  refused(R"({"agent":"echo","input":{"n":"x"}})", 400, "input_invalid");
  refused(R"({"agent":"echo","inputs":{}})", 400, "input_invalid");
  refused(R"({"agent":"echo","queue":"q q"})", 400, "input_invalid");
  refused(R"({"agent":"echo","queue":""})", 400, "input_invalid");
  refused(R"({"agent":"echo","queue":7})", 400, "input_invalid");
  refused(R"({"agent":"echo","deadline":"2001-01-31T09:30:00Z"})", 400, "input_invalid");
  for (const char* bad :
       {"7", "\"soon\"", "\"0s\"", "\"-1s\"", "\"99999999d\"", "\"2025-01-31 09:30\"", "{}"}) {
    refused("{\"agent\":\"echo\",\"deadline\":" + std::string(bad) + "}", 400, "input_invalid");
  }
  refused(R"({"agent":"echo","labels":{"a":1}})", 400, "input_invalid");
  refused(R"({"agent":"echo","id":"a b"})", 400, "input_invalid");
  refused(R"({"agent":"echo","plan_hash":"00"})", 409, "needs_version");
  refused(R"({"agent":"echo","idempotency_key":")" + std::string(257, 'k') + "\"}", 400,
          "input_invalid");
  for (const char* key : {"", " ", "\\t\\n", "a\\u0000b"}) {
    refused(R"({"agent":"echo","idempotency_key":")" + std::string(key) + "\"}", 400,
            "input_invalid");
  }
  for (const char* key : {"", " ", "schlüssel", "a\tb"}) {
    ApiRequest request;
    request.method = "POST";
    request.path = {"api", "jobs"};
    request.body = R"({"agent":"echo"})";
    request.idempotency_key = key;
    expect_problem(fixture.send(request), 400, "input_invalid");
  }
  refused(R"({"agent":"echo","labels":{"a":"x\u0000"}})", 400, "input_invalid");
  refused(R"({"agent":"echo","labels":{"a\u0000":"x"}})", 400, "input_invalid");
  refused(std::string(kBodyMax + 1, ' '), 413, "payload_too_large");
  EXPECT_EQ(fixture.get({"api", "jobs"}).body["jobs"].size(), 0u);
}

AE_TEST("api/unknown routes, jobs and parameters are said to be so") {
  ApiFixture fixture;
  expect_problem(fixture.get({"api", "nowhere"}), 404, "not_found");
  const ApiResponse index = fixture.get({});
  EXPECT_EQ(index.status, 200);
  EXPECT_EQ(index.body.text("openapi"), "/openapi.json");
  for (const char* what : {"", "events", "trace", "transcript", "replay", "verify"}) {
    Path path{"api", "jobs", "nobody"};
    if (*what) path.emplace_back(what);
    expect_problem(fixture.get(path), 404, "not_found");
    path[2] = "a/b";
    expect_problem(fixture.get(path), 404, "not_found");
  }
  expect_problem(fixture.get({"api", "jobs"}, {{"state", "running"}}), 400, "input_invalid");
  expect_problem(fixture.get({"api", "jobs"}, {{"status", "asleep"}}), 400, "input_invalid");
  expect_problem(fixture.get({"api", "jobs"}, {{"cursor", "nobody"}}), 400, "input_invalid");
  expect_problem(fixture.get({"api", "jobs"}, {{"cursor", "j@x"}}), 400, "input_invalid");
  for (const char* limit : {"-1", "0", "1001", "1e9"}) {
    expect_problem(fixture.get({"api", "jobs"}, {{"limit", limit}}), 400, "input_invalid");
    expect_problem(fixture.get({"api", "jobs"}, {{"limit", limit}, {"stuck", "true"}}), 400,
                   "input_invalid");
    expect_problem(fixture.get({"api", "approvals"}, {{"limit", limit}}), 400, "input_invalid");
    expect_problem(fixture.get({"api", "audit"}, {{"limit", limit}}), 400, "input_invalid");
  }
  ApiRequest put;
  put.method = "PUT";
  put.path = {"api", "agents", "echo"};
  expect_problem(fixture.send(put), 400, "unsupported");
  put.path = {"api", "jobs"};
  const ApiResponse refused = fixture.send(put);
  expect_problem(refused, 405, "method_not_allowed");
  EXPECT_EQ(refused.allow, "GET, HEAD, POST");
  EXPECT_EQ(fixture.get({"api", "health"}).body.text("status"), "ok");
}

AE_TEST("api/a job that was made and cannot be read is never said to be unavailable") {
  for (const char* wait : {"0s", "30s"}) {
    ApiFixture fixture(true, store::inject_at(store::Method::load, 1, store::Fault::fail_before));
    const ApiResponse answer =
        fixture.post({"api", "jobs"}, R"({"agent":"asks","id":"j"})", {{"wait", wait}});
    expect_problem(answer, 504, "unknown_outcome");
    EXPECT_EQ(fixture.get({"api", "jobs", "j"}).body.text("status"), "waiting");
    const std::string metrics = fixture.get({"metrics"}).text;
    EXPECT_NE(metrics.find("aetheris_requests_waiting 0\n"), metrics.npos) << "nobody waits on";
  }
}

AE_TEST("api/jobs come newest first, in pages") {
  ApiFixture fixture;
  for (int i = 0; i < 5; ++i) {
    fixture.make(R"({"agent":"echo","labels":{"i":")" + std::to_string(i % 2) + R"("},"id":"j)" +
                 std::to_string(i) + "\"}");
    fixture.loop.advance(std::chrono::milliseconds(5));
  }
  const auto ids = [](const ApiResponse& page) {
    std::string text;
    for (const Value& job : page.body["jobs"].items()) text += std::string(job.text("id")) + " ";
    return text + (page.body["next_cursor"].is_null() ? "." : page.body["next_cursor"].as_string());
  };
  EXPECT_EQ(ids(fixture.get({"api", "jobs"})), "j4 j3 j2 j1 j0 .");
  EXPECT_EQ(ids(fixture.get({"api", "jobs"}, {{"limit", "2"}})), "j4 j3 j3@4");
  EXPECT_EQ(ids(fixture.get({"api", "jobs"}, {{"limit", "3"}, {"cursor", "j3@4"}})), "j2 j1 j0 .");
  EXPECT_EQ(ids(fixture.get({"api", "jobs"}, {{"cursor", "gone@2"}})), "j0 .") << "it was deleted";
  EXPECT_EQ(ids(fixture.get({"api", "jobs"}, {{"limit", "3"}, {"cursor", "j3"}})), "j2 j1 j0 .");
  EXPECT_EQ(ids(fixture.get({"api", "jobs"}, {{"label", "i:1"}})), "j3 j1 .");
  EXPECT_EQ(ids(fixture.get({"api", "jobs"}, {{"status", "running"}})), ".");
  EXPECT_EQ(ids(fixture.get({"api", "jobs"}, {{"q", "j3"}})), "j3 .");
  EXPECT_EQ(ids(fixture.get({"api", "jobs"}, {{"q", "by-hand"}, {"limit", "2"}})), "j4 j3 j3@4");
}

AE_TEST_SLOW(
    "api/a page of a text search examines at most 10,000 jobs, and the next page goes on") {
  ApiFixture fixture(false);
  for (std::size_t i = 0; i < kSearchMax + 10; ++i) {
    const std::string id = i == 5 ? "wanted" : "j" + std::to_string(i);
    fixture.post({"api", "jobs"}, R"({"agent":"asks","id":")" + id + R"("})");
  }
  const ApiResponse first = fixture.get({"api", "jobs"}, {{"q", "wanted"}});
  EXPECT_EQ(first.body["jobs"].size(), 0u);
  ASSERT_TRUE(first.body["next_cursor"].is_string());
  const ApiResponse second = fixture.get(
      {"api", "jobs"}, {{"q", "wanted"}, {"cursor", first.body["next_cursor"].as_string()}});
  ASSERT_EQ(second.body["jobs"].size(), 1u);
  EXPECT_EQ(second.body["jobs"].items()[0].text("id"), "wanted");
  EXPECT_TRUE(second.body["next_cursor"].is_null());
}

AE_TEST("api/events are envelopes, in pages, by class and by type") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"echo","id":"j"})");
  const auto all = fixture.get({"api", "jobs", "j", "events"}).body;
  EXPECT_TRUE(all["next"].is_null());
  const std::size_t count = all["events"].size();
  ASSERT_GT(count, 5u);
  const auto page =
      fixture.get({"api", "jobs", "j", "events"}, {{"limit", "2"}, {"after", "1"}}).body;
  EXPECT_EQ(page["events"].size(), 2u);
  EXPECT_EQ(page["next"], Value(3));
  EXPECT_EQ(canonical(page["events"].items()[0]), canonical(all["events"].items()[1]));
  const auto last =
      fixture.get({"api", "jobs", "j", "events"}, {{"after", std::to_string(count - 1)}});
  EXPECT_EQ(canonical(last.body["events"].items()[0]), canonical(all["events"].items()[count - 1]));
  const auto typed = fixture.get({"api", "jobs", "j", "events"}, {{"type", "node_finished"}}).body;
  EXPECT_EQ(typed["events"].size(), 1u);
  const auto classed =
      fixture.get({"api", "jobs", "j", "events"}, {{"class", "coordination"}}).body;
  for (const Value& event : classed["events"].items()) EXPECT_EQ(event.text("type"), "job_running");
  expect_problem(fixture.get({"api", "jobs", "j", "events"}, {{"class", "some"}}), 400,
                 "input_invalid");
}

AE_TEST("api/effects are the events that record one, each with its kind, on any page") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"buys","input":{"n":250}})");
  const Value open = fixture.get({"api", "approvals"}).body["approvals"];
  fixture.post({"api", "approvals", std::string(open.items()[0].text("id"))},
               R"({"decision":"approve"})");
  fixture.loop.run_ready();
  ASSERT_EQ(fixture.status(id), "completed");
  const Path path{"api", "jobs", id, "events"};
  const Value all = fixture.get(path, {{"class", "effect"}}).body["events"];
  ASSERT_EQ(all.size(), 2u) << canonical(all);
  EXPECT_EQ(all.items()[0]["kind"], "human");
  EXPECT_EQ(all.items()[0]["type"], "decision_recorded");
  EXPECT_EQ(all.items()[1]["kind"], "tool");
  EXPECT_EQ(all.items()[1]["type"], "tool_invocation_finished");
  EXPECT_TRUE(all.items()[1].find("hash") != nullptr) << "the whole envelope";
  const Value page = fixture.get(path, {{"class", "effect"}, {"limit", "1"}}).body;
  EXPECT_EQ(page["events"].items()[0], all.items()[0]);
  const Value rest =
      fixture.get(path, {{"class", "effect"}, {"after", canonical(page["next"])}}).body["events"];
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest.items()[0], all.items()[1]);
  EXPECT_EQ(fixture.get(path, {{"class", "recorded_effect"}}).body["events"].size(), 0u);
  EXPECT_EQ(fixture.get(path).body["events"].items()[0].find("kind"), nullptr);
  EXPECT_EQ(fixture.get({"api", "jobs", id, "trace"}).body["effects"].size(), 2u);
  EXPECT_EQ(fixture.get({"api", "jobs", id, "trace"}).body["drift"], Value::array({}));
}

AE_TEST("api/who follows a job hears of each commit at once") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"asks","id":"j"})");
  const auto seen = fixture.get({"api", "jobs", id, "events"}).body["events"].size();
  std::optional<ApiResponse> received;
  ApiRequest request;
  request.path = {"api", "jobs", id, "events"};
  request.query = {{"after", std::to_string(seen)}, {"wait", "60s"}};
  fixture.api->handle(request, [&](ApiResponse answer) { received = std::move(answer); });
  fixture.loop.run_ready();
  EXPECT_FALSE(received);
  fixture.post({"api", "jobs", id, "signal"}, R"({"correlation_key":"go","payload":1})");
  ASSERT_TRUE(fixture.loop.run_until([&] { return received.has_value(); }));
  EXPECT_EQ(received->body["events"].items()[0].text("type"), "wait_completed");
}

AE_TEST("api/a transcript comes in pages, and its totals are those of the whole job") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"echo","id":"j"})");
  const Path path{"api", "jobs", "j", "transcript"};
  const Value all = fixture.get(path).body;
  ASSERT_EQ(all["entries"].size(), 4u) << canonical(all);
  EXPECT_EQ(all["entries"].items()[1].text("kind"), "tool_call");
  EXPECT_TRUE(all["next"].is_null());
  EXPECT_EQ(all["ended"], Value(true));
  const Value page = fixture.get(path, {{"limit", "2"}}).body;
  EXPECT_EQ(page["entries"].size(), 2u);
  EXPECT_EQ(page["totals"], all["totals"]);
  const Value rest = fixture.get(path, {{"after", canonical(page["next"])}}).body;
  EXPECT_EQ(canonical(rest["entries"].items()[0]), canonical(all["entries"].items()[2]));
  expect_problem(fixture.get(path, {{"limit", "0"}}), 400, "input_invalid");
  expect_problem(fixture.get(path, {{"after", "x"}}), 400, "input_invalid");
  expect_problem(fixture.get(path, {{"type", "x"}}), 400, "input_invalid");
}

AE_TEST("api/POST jobs with ?wait reads the log once, after any number of commits") {
  int whole_reads = 0;
  ApiFixture fixture(true, [&](const store::Call& call) {
    whole_reads += call.method == store::Method::load && call.from_seq == 1 ? 1 : 0;
    return store::Fault::none;
  });
  const auto made = fixture.post(
      {"api", "jobs"}, R"({"agent":"maps","input":{"list":[1,2,3,4,5,6,7,8]}})", {{"wait", "30s"}});
  EXPECT_EQ(made.body.text("status"), "completed") << canonical(made.body);
  EXPECT_EQ(whole_reads, 1);
}

AE_TEST("api/a transcript with ?wait is answered when there is an entry") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"asks","id":"j"})");
  const Value before = fixture.get({"api", "jobs", id, "transcript"}).body;
  const auto seen = std::to_string(before["entries"].items().back()["seq"].as_int());
  std::optional<ApiResponse> received;
  ApiRequest request;
  request.path = {"api", "jobs", id, "transcript"};
  request.query = {{"after", seen}, {"wait", "60s"}};
  fixture.api->handle(request, [&](ApiResponse answer) { received = std::move(answer); });
  fixture.loop.advance(std::chrono::seconds(10));
  EXPECT_FALSE(received);
  fixture.post({"api", "jobs", id, "signal"}, R"({"correlation_key":"go","payload":1})");
  ASSERT_TRUE(fixture.loop.run_until([&] { return received.has_value(); }));
  EXPECT_EQ(received->body["entries"].items()[0].text("kind"), "reply");
  request.query = {{"after", "100000"}, {"wait", "60s"}};
  received.reset();
  ASSERT_TRUE(fixture.loop.run_until(
      [&] { return fixture.get({"api", "jobs", id}).body.text("status") == "completed"; }));
  fixture.api->handle(request, [&](ApiResponse answer) { received = std::move(answer); });
  ASSERT_TRUE(fixture.loop.run_until([&] { return received.has_value(); }));
  EXPECT_EQ(received->body["entries"].size(), 0u);
  EXPECT_EQ(received->body["ended"], Value(true));
}

AE_TEST("api/a waiting transcript reads the log at most twice a second, and in turn") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"asks","id":"j"})");
  const Value before = fixture.get({"api", "jobs", id, "transcript"}).body;
  std::optional<ApiResponse> received;
  ApiRequest request;
  request.path = {"api", "jobs", id, "transcript"};
  request.query = {{"after", std::to_string(before["seq"].as_int())}, {"wait", "60s"}};
  fixture.api->handle(request, [&](ApiResponse answer) { received = std::move(answer); });
  fixture.loop.run_ready();
  fixture.post({"api", "jobs", id, "signal"}, R"({"correlation_key":"go","payload":1})");
  fixture.loop.advance(std::chrono::milliseconds(400));
  EXPECT_FALSE(received) << "it has just read the log";
  fixture.loop.advance(std::chrono::milliseconds(200));
  ASSERT_TRUE(received);
  EXPECT_EQ(received->body["entries"].items()[0].text("kind"), "reply");
}

AE_TEST(
    "api/a transcript page ends before its entries exceed 8 MiB, and the pages have all entries") {
  ApiFixture fixture;
  std::vector<Value> list(9, Value(std::string(400'000, 'x')));
  fixture.make(canonical(
      Value::object({{"agent", "maps"},
                     {"id", "j"},
                     {"input", Value::object({{"list", Value::array(std::move(list))}})}})));
  ASSERT_EQ(fixture.status("j"), "completed");
  std::size_t pages = 0, calls = 0, results = 0, entries = 0;
  for (Value after(0); !after.is_null(); ++pages) {
    const ApiResponse page =
        fixture.get({"api", "jobs", "j", "transcript"}, {{"after", canonical(after)}});
    ASSERT_EQ(page.status, 200);
    EXPECT_LE(canonical(page.body["entries"]).size(), (8u << 20) + 100);
    for (const Value& entry : page.body["entries"].items()) {
      ++entries;
      if (entry.text("kind") == "tool_call") ++calls;
      if (entry.text("kind") == "result") ++results;
    }
    after = page.body["next"];
  }
  EXPECT_EQ(pages, 2u);
  EXPECT_EQ(calls, 9u);
  EXPECT_EQ(results, 9u);
  EXPECT_EQ(entries, 20u);
}

AE_TEST("api/however many wait, each waits until its time is up") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"asks","id":"j"})");
  const auto seen = fixture.get({"api", "jobs", id, "events"}).body["events"].size();
  std::size_t answered = 0;
  constexpr std::size_t kMany = 1'200;
  for (std::size_t i = 0; i < kMany; ++i) {
    ApiRequest request;
    request.path = {"api", "jobs", id, "events"};
    request.query = {{"after", std::to_string(seen)}, {"wait", "3s"}};
    fixture.api->handle(request, [&](const ApiResponse&) { ++answered; });
  }
  fixture.loop.advance(std::chrono::milliseconds(500));
  EXPECT_EQ(answered, 0u) << "who is answered at once with nothing asks again at once";
  fixture.loop.advance(std::chrono::seconds(4));
  EXPECT_EQ(answered, kMany);
}

AE_TEST("api/nothing waits any more for whoever has gone") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"asks","id":"j"})");
  const auto seen = fixture.get({"api", "jobs", id, "events"}).body["events"].size();
  const auto gone = std::make_shared<bool>(false);
  bool answered = false;
  ApiRequest request;
  request.path = {"api", "jobs", id, "events"};
  request.query = {{"after", std::to_string(seen)}, {"wait", "5m"}};
  request.disconnected = gone;
  fixture.api->handle(request, [&](const ApiResponse&) { answered = true; });
  fixture.loop.advance(std::chrono::seconds(10));
  EXPECT_FALSE(answered);
  *gone = true;
  fixture.loop.advance(std::chrono::seconds(1));
  EXPECT_TRUE(answered);
}

AE_TEST("api/who asks for events is told whether the job has ended, whatever is left out") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"asks","id":"j"})");
  const auto read_events = [&](QueryPairs query) {
    return fixture.get({"api", "jobs", id, "events"}, std::move(query)).body;
  };
  EXPECT_EQ(read_events({})["ended"], Value(false));
  fixture.post({"api", "jobs", id, "cancel"}, "{}");
  ASSERT_TRUE(fixture.loop.run_until([&] { return fixture.status(id) == "cancelled"; }));
  EXPECT_EQ(read_events({})["ended"], Value(true));
  const Value hidden = read_events({{"type", "progress"}, {"wait", "60s"}});
  EXPECT_EQ(hidden["ended"], Value(true));
  EXPECT_EQ(hidden["events"].size(), 0u);
}

AE_TEST("api/who follows a silent job is answered with nothing when the time is up") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"asks","id":"j"})");
  const auto seen = fixture.get({"api", "jobs", id, "events"}).body["events"].size();
  std::optional<ApiResponse> received;
  ApiRequest request;
  request.path = {"api", "jobs", id, "events"};
  request.query = {{"after", std::to_string(seen)}, {"wait", "3s"}};
  fixture.api->handle(request, [&](ApiResponse answer) { received = std::move(answer); });
  fixture.loop.advance(std::chrono::seconds(2));
  EXPECT_FALSE(received);
  fixture.loop.advance(std::chrono::seconds(2));
  ASSERT_TRUE(received);
  EXPECT_EQ(received->status, 200);
  EXPECT_EQ(received->body["events"].size(), 0u);
}

AE_TEST("api/a signal is delivered once, and says so again") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"asks"})");
  EXPECT_EQ(fixture.status(id), "waiting");
  const Path path{"api", "jobs", id, "signal"};
  expect_problem(fixture.post(path, R"({"correlation_key":"other","payload":1})"), 400,
                 "wait_mismatch");
  expect_problem(fixture.post(path, R"({"payload":1})"), 400, "wait_mismatch");
  expect_problem(fixture.post(path, R"({"correlation_key":"go","wait_type":"timer"})"), 400,
                 "wait_mismatch");
  expect_problem(fixture.post(path, R"({"correlation_key":"go","buffer":1})"), 400,
                 "input_invalid");
  const auto delivered = fixture.post(path, R"({"correlation_key":"go","payload":{"yes":1}})");
  EXPECT_EQ(delivered.status, 200);
  EXPECT_EQ(delivered.body["delivered"], Value(true));
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.status(id), "completed");
  const auto again = fixture.post(path, R"({"correlation_key":"go","payload":{"yes":1}})");
  EXPECT_EQ(again.status, 200);
  EXPECT_EQ(again.body["duplicate"], Value(true));
  EXPECT_EQ(again.body["applied"], Value(true));
  const auto other = fixture.post(path, R"({"correlation_key":"go","payload":2})");
  EXPECT_EQ(other.body["applied"], Value(false));
  const auto events = fixture.get({"api", "jobs", id, "events"}, {{"type", "wait_completed"}}).body;
  EXPECT_EQ(events["events"].items()[0]["payload"].text("by"), "ada");
}

AE_TEST("api/a cancelled job is ended, and cannot be cancelled again") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"asks"})");
  EXPECT_EQ(fixture.post({"api", "jobs", id, "cancel"}, R"({"reason":"no"})").status, 202);
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.status(id), "cancelled");
  expect_problem(fixture.post({"api", "jobs", id, "cancel"}, ""), 409, "job_terminal");
  expect_problem(fixture.post({"api", "jobs", id, "cancel"}, R"({"compensate":false})"), 409,
                 "job_terminal");
  expect_problem(fixture.post({"api", "jobs", id, "cancel"}, R"({"compensate":"no"})"), 400,
                 "input_invalid");
}

AE_TEST("api/a call in doubt is shown, resolved once, and not before it is settled") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"doubts"})");
  EXPECT_EQ(fixture.status(id), "parked");
  const Value job = fixture.get({"api", "jobs", id}).body;
  ASSERT_EQ(job["in_doubt"].size(), 1u) << canonical(job);
  const std::string key(job["in_doubt"].items()[0].text("idempotency_key"));
  const Path path{"api", "jobs", id, "resolve"};
  const auto resolve = [&](const std::string& of, const std::string& rest) {
    return fixture.post(path, R"({"idempotency_key":")" + of + "\"," + rest + "}");
  };
  expect_problem(resolve(std::string(64, '0'), R"("resolution":"happened")"), 409, "not_in_doubt");
  expect_problem(resolve(key, R"("resolution":"perhaps")"), 400, "input_invalid");
  expect_problem(resolve(key, R"("resolution":"accept")"), 409, "not_in_doubt");
  expect_problem(resolve(key, R"("resolution":"not_happened")"), 409, "not_settled");
  expect_problem(resolve(key, R"("resolution":"happened","try":2)"), 409, "not_in_doubt");
  expect_problem(resolve(key, R"("resolution":"happened","try":0)"), 400, "input_invalid");
  const auto done = resolve(key, R"("resolution":"happened","result":9,"note":"looked","try":1)");
  EXPECT_EQ(done.status, 200) << canonical(done.body);
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.status(id), "completed");
  EXPECT_EQ(fixture.get({"api", "jobs", id}).body["result"], Value(9));
}

AE_TEST("api/who answers again is told who did before, and when: the same is no error") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"doubts"})");
  const Value job = fixture.get({"api", "jobs", id}).body;
  const std::string key(job["in_doubt"].items()[0].text("idempotency_key"));
  const auto resolve = [&](const std::string& rest) {
    return fixture.post({"api", "jobs", id, "resolve"},
                        R"({"idempotency_key":")" + key + "\"," + rest + "}");
  };
  const Value who = Value::object({{"at", to_text(fixture.loop.now())}, {"by", "ada"}});
  ASSERT_EQ(resolve(R"("resolution":"happened","result":9)").status, 200);
  for (const char* same : {R"("resolution":"happened","result":9)",
                           R"("resolution":"happened","result":9,"try":1,"note":"again")"}) {
    const auto again = resolve(same);
    EXPECT_EQ(again.status, 200) << canonical(again.body);
    EXPECT_EQ(again.body["duplicate"], Value(true));
    EXPECT_EQ(again.body["applied"], Value(true));
    EXPECT_EQ(again.body["answered"], who);
    EXPECT_EQ(again.body["result"], Value(9));
    fixture.loop.run_ready();  // the second time the job has ended
  }
  ASSERT_EQ(fixture.status(id), "completed");
  for (const char* other : {R"("resolution":"happened","result":8)", R"("resolution":"happened")",
                            R"("resolution":"fail")", R"("resolution":"not_happened")"}) {
    const auto refused = resolve(other);
    expect_problem(refused, 409, "not_in_doubt");
    const std::string detail(refused.body.text("detail"));
    EXPECT_NE(detail.find("happened by ada at " + to_text(fixture.loop.now())), detail.npos)
        << detail;
  }
  expect_problem(resolve(R"("resolution":"happened","result":9,"try":2)"), 409, "job_terminal");

  const auto waiting = fixture.make(R"({"agent":"asks"})");
  const Path signal{"api", "jobs", waiting, "signal"};
  EXPECT_EQ(fixture.post(signal, R"({"correlation_key":"go","payload":1})").status, 200);
  EXPECT_EQ(fixture.post(signal, R"({"correlation_key":"go","payload":1})").body["answered"], who);
  EXPECT_EQ(fixture.post(signal, R"({"correlation_key":"go","payload":2})").body["answered"], who);

  const auto thrifty = fixture.make(R"({"agent":"thrifty"})");
  fixture.loop.run_ready();
  const Path budget{"api", "jobs", thrifty, "budget"};
  EXPECT_EQ(fixture.post(budget, R"({"tool_calls":2})").body["raised"], Value(true));
  fixture.loop.run_ready();
  ASSERT_EQ(fixture.status(thrifty), "completed");
  const auto raised = fixture.post(budget, R"({"tool_calls":2})");
  EXPECT_EQ(raised.status, 200) << canonical(raised.body);
  EXPECT_EQ(raised.body["raised"], Value(false));
  EXPECT_EQ(raised.body["duplicate"], Value(true));
  EXPECT_EQ(raised.body["answered"], who);
}

AE_TEST("api/what became of a call is noted after the end, once, and the job stays as it ended") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"doubts"})");
  const Value doubt = fixture.get({"api", "jobs", id}).body["in_doubt"].items()[0];
  const std::string key(doubt.text("idempotency_key"));
  const Path path{"api", "jobs", id, "resolve"};
  const auto resolve = [&](const std::string& rest) {
    return fixture.post(path, R"({"idempotency_key":")" + key + "\"," + rest + "}");
  };
  EXPECT_EQ(resolve(R"("resolution":"fail")").status, 200);
  fixture.loop.run_ready();
  ASSERT_EQ(fixture.status(id), "failed");
  fixture.loop.advance(std::chrono::hours(1));
  const Value before = fixture.get({"api", "jobs", id}).body;
  ASSERT_EQ(before["in_doubt"].size(), 1u) << canonical(before);
  EXPECT_TRUE(before["in_doubt"].items()[0]["noted"].is_null());

  const std::string happened = R"("resolution":"happened","result":{"id":7},"note":"looked")";
  const auto noted = resolve(happened);
  EXPECT_EQ(noted.status, 200) << canonical(noted.body);
  EXPECT_EQ(noted.body["noted"], Value(true));
  EXPECT_EQ(noted.body.find("duplicate"), nullptr);
  const auto again = resolve(happened);
  EXPECT_EQ(again.status, 200) << canonical(again.body);
  EXPECT_EQ(again.body["duplicate"], Value(true));
  EXPECT_EQ(again.body["applied"], Value(true));
  EXPECT_EQ(again.body["noted"], Value(true));
  EXPECT_EQ(again.body["answered"].text("by"), "ada");
  const auto other = resolve(R"("resolution":"not_happened")");
  expect_problem(other, 409, "not_in_doubt");
  EXPECT_NE(other.body.text("detail").find("happened by ada at "), std::string::npos)
      << other.body.text("detail");

  const Value after = fixture.get({"api", "jobs", id}).body;
  EXPECT_EQ(after["status"], "failed");
  EXPECT_EQ(after["error"], before["error"]);
  EXPECT_EQ(after["in_doubt"].items()[0]["noted"].text("resolution"), "happened");
  const auto events = fixture.get({"api", "jobs", id, "events"}, {{"type", "outcome_noted"}}).body;
  ASSERT_EQ(events["events"].size(), 1u);
  EXPECT_EQ(canonical(events["events"].items()[0]["payload"]["result"]), R"({"id":7})");
}

AE_TEST("api/what a call is said to have given must be what its tool gives") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"strict"})");
  ASSERT_EQ(fixture.status(id), "parked");
  const Value job = fixture.get({"api", "jobs", id}).body;
  const std::string key(job["in_doubt"].items()[0].text("idempotency_key"));
  const auto resolve = [&](const std::string& rest) {
    return fixture.post(
        {"api", "jobs", id, "resolve"},
        R"({"idempotency_key":")" + key + R"(","resolution":"happened")" + rest + "}");
  };
  const std::size_t before = fixture.get({"api", "jobs", id, "events"}).body["events"].size();
  expect_problem(resolve(R"(,"result":{"no":1})"), 400, "input_invalid");
  expect_problem(resolve(R"(,"result":7)"), 400, "input_invalid");
  expect_problem(resolve(""), 400, "input_invalid");
  EXPECT_EQ(fixture.get({"api", "jobs", id, "events"}).body["events"].size(), before);
  EXPECT_EQ(resolve(R"(,"result":{"id":1})").status, 200);
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.status(id), "completed");
}

AE_TEST("api/a call that is said to have happened and gave nothing is read again") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"doubts"})");
  const Value job = fixture.get({"api", "jobs", id}).body;
  const std::string key(job["in_doubt"].items()[0].text("idempotency_key"));
  const ApiResponse response =
      fixture.post({"api", "jobs", id, "resolve"},
                   R"({"idempotency_key":")" + key + R"(","resolution":"happened"})");
  EXPECT_EQ(response.status, 200);
  ASSERT_NE(response.body.find("result"), nullptr) << canonical(response.body);
  EXPECT_TRUE(response.body["result"].is_null()) << "what is recorded for it is said";
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.status(id), "completed");
  EXPECT_EQ(fixture.get({"api", "jobs", id, "verify"}).body["ok"], Value(true));
}

// Each reading is later than the previous one by more than a time slice.
class FastClock final : public async::SteadyClock {
 public:
  Duration since_start() override { return now_ += 2 * async::kTimeSlice; }

 private:
  Duration now_{};
};

AE_TEST("api/a log is folded, replayed and verified in portions, and other tasks run in between") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"maps","input":{"list":[1,2,3,4,5,6,7,8,9,10]}})");
  ASSERT_EQ(fixture.status(id), "completed");
  const std::size_t events = fixture.get({"api", "jobs", id, "events"}).body["events"].size();
  ASSERT_GT(events, 50u);
  FastClock fast_clock;
  runtime::RuntimeOptions options;
  options.may_claim = false;
  runtime::Runtime reader(runtime::World{.loop = fixture.loop,
                                         .steady = fast_clock,
                                         .random = fixture.random,
                                         .store = fixture.store,
                                         .tool_registry = fixture.tool_registry},
                          options, nullptr);
  Api api(fixture.loop, fast_clock, fixture.store, reader, ApiOptions{.agents = &fixture.file});
  for (const char* what : {"", "trace", "transcript", "replay", "verify"}) {
    ApiRequest request;
    request.path = {"api", "jobs", id};
    if (*what != 0) request.path.emplace_back(what);
    std::optional<ApiResponse> answer;
    api.handle(std::move(request), [&](ApiResponse given) { answer = std::move(given); });
    std::size_t turns = 0;
    std::function<void()> other = [&] {
      ++turns;
      if (!answer) fixture.loop.post([&] { other(); });
    };
    fixture.loop.post([&] { other(); });
    ASSERT_TRUE(fixture.loop.run_until([&] { return answer.has_value(); }));
    EXPECT_EQ(answer->status, 200) << what;
    EXPECT_GE(turns, events) << what;
    fixture.loop.run_ready();
    const ApiResponse whole =
        *what != 0 ? fixture.get({"api", "jobs", id, what}) : fixture.get({"api", "jobs", id});
    EXPECT_EQ(canonical(answer->body), canonical(whole.body)) << what;
  }
}

AE_TEST("api/who says that a call in doubt did not happen may say when they looked") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"doubts"})");
  const Value job = fixture.get({"api", "jobs", id}).body;
  const std::string key(job["in_doubt"].items()[0].text("idempotency_key"));
  const Instant before = fixture.loop.now();
  fixture.loop.advance(std::chrono::minutes(10));
  const auto resolve_step = [&](std::string_view looked_at) {
    return fixture.post({"api", "jobs", id, "resolve"},
                        R"({"resolution":"not_happened","idempotency_key":")" + key +
                            R"(","looked_at":)" + std::string(looked_at) + "}");
  };
  expect_problem(resolve_step("7"), 400, "input_invalid");
  expect_problem(resolve_step(R"("yesterday")"), 400, "input_invalid");
  expect_problem(resolve_step("\"" + to_text(before) + "\""), 409, "not_settled");
  EXPECT_EQ(fixture.status(id), "parked");
  const auto ahead = fixture.loop.now() + std::chrono::minutes(3);
  EXPECT_EQ(resolve_step("\"" + to_text(ahead) + "\"").status, 200) << "a clock ahead means now";
}

AE_TEST("api/what people are asked is listed over all jobs, in pages, and answered by id") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"asks","id":"j0"})");
  const auto call = fixture.make(R"({"agent":"buys","id":"j1","input":{"n":250}})");
  fixture.make(R"({"agent":"buys","id":"j2","input":{"n":1}})");
  const auto no = fixture.make(R"({"agent":"buys","id":"j3","input":{"n":500}})");
  EXPECT_EQ(fixture.status("j2"), "completed") << "a small one needs nobody";
  const Value all = fixture.get({"api", "approvals"}).body;
  ASSERT_EQ(all["approvals"].size(), 2u) << canonical(all);
  EXPECT_TRUE(all["next_cursor"].is_null());
  for (const Value& approval : all["approvals"].items()) {
    EXPECT_EQ(approval["kind"], "call");
    EXPECT_EQ(approval["tool"], "buy");
    EXPECT_EQ(approval["arguments_hash"].as_string().size(), 64u);
  }
  std::vector<std::string> ids;
  QueryPairs query{{"limit", "1"}};
  for (int page = 0; page < 10; ++page) {
    const Value one = fixture.get({"api", "approvals"}, query).body;
    for (const Value& approval : one["approvals"].items()) ids.emplace_back(approval.text("id"));
    if (one["next_cursor"].is_null()) break;
    query = {{"limit", "1"}, {"cursor", std::string(one.text("next_cursor"))}};
  }
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_TRUE(ids[0].starts_with("j3.") && ids[1].starts_with("j1.")) << ids[0];
  expect_problem(fixture.get({"api", "approvals"}, {{"cursor", "x"}}), 400, "input_invalid");

  const auto response =
      fixture.post({"api", "approvals", ids[1]}, R"({"decision":"approve","note":"ok"})");
  EXPECT_EQ(response.status, 200) << canonical(response.body);
  EXPECT_EQ(response.body["delivered"], Value(true));
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.status(call), "completed");
  const auto again = fixture.post({"api", "approvals", ids[1]}, R"({"decision":"reject"})");
  EXPECT_EQ(again.status, 200);
  EXPECT_EQ(again.body["outcome"], "approved");
  EXPECT_EQ(again.body["applied"], Value(false));
  fixture.post({"api", "approvals", ids[0]}, R"({"decision":"reject"})");
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.get({"api", "jobs", no}).body["error"]["code"], "rejected");
  EXPECT_EQ(fixture.get({"api", "approvals"}).body["approvals"].size(), 0u);

  // The error tells what is missing: the job, or the request in an existing job.
  const auto detail = [&](const std::string& id) {
    return std::string(
        fixture.post({"api", "approvals", id}, R"({"decision":"approve"})").body.text("detail"));
  };
  EXPECT_EQ(detail("nobody.ffffffffffffffff").find("there is no job nobody"), 0u);
  EXPECT_EQ(detail(call + ".ffffffffffffffff").find("there is no job"), std::string::npos);
  EXPECT_EQ(detail(no + ".ffffffffffffffff").find("there is no job"), std::string::npos);
  for (const char* id : {"nobody", "j1.0123456789abcdef", "j1.", "nobody.0123456789abcdef"}) {
    expect_problem(fixture.post({"api", "approvals", id}, R"({"decision":"approve"})"), 404,
                   "not_found");
  }
  expect_problem(fixture.post({"api", "approvals", ids[0]}, R"({"decision":"perhaps"})"), 400,
                 "input_invalid");
}

AE_TEST("api/a call is approved with other arguments, and who saw the earlier ones is told so") {
  ApiFixture fixture;
  const auto job = fixture.make(R"({"agent":"buys","id":"j1","input":{"n":250}})");
  const Value approval = fixture.get({"api", "approvals"}).body["approvals"].items()[0];
  EXPECT_EQ(approval["editable"], Value(true));
  EXPECT_NE(approval.find("sends"), nullptr);
  EXPECT_NE(approval.find("reason"), nullptr);
  EXPECT_NE(approval.find("labels"), nullptr);
  const std::string id(approval.text("id"));
  const auto answer = [&](const char* body) {
    return fixture.post({"api", "approvals", id}, body);
  };
  expect_problem(answer(R"({"decision":"approve","arguments":[1]})"), 400, "input_invalid");
  expect_problem(answer(R"({"decision":"reject","arguments":{"n":1}})"), 400, "input_invalid");
  const std::string signal = R"({"correlation_key":")" +
                             std::string(approval.text("correlation_key")) +
                             R"(","payload":{"decision":"approve","arguments":{"n":1}}})";
  expect_problem(fixture.post({"api", "jobs", job, "signal"}, signal), 400, "input_invalid");
  const auto response = answer(R"({"decision":"approve","arguments":{"n":120},"note":"less"})");
  EXPECT_EQ(response.status, 200) << canonical(response.body);
  EXPECT_EQ(response.body["outcome"], "edited");
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.status(job), "completed");
  EXPECT_EQ(canonical(fixture.get({"api", "jobs", job}).body["result"]), R"({"n":120})");
  expect_problem(answer(R"({"decision":"approve"})"), 409, "approval_edited");
  const auto late = answer(R"({"decision":"reject"})");
  expect_problem(late, 409, "approval_edited");
  EXPECT_NE(late.body.text("detail").find("edited by ada at "), std::string::npos)
      << late.body.text("detail");
  const auto again = answer(R"({"decision":"approve","arguments":{"n":120},"note":"less"})");
  EXPECT_EQ(again.status, 200);
  EXPECT_EQ(again.body["duplicate"], Value(true));
}

AE_TEST("api/an approval of a call whose tool has changed since says that it is not used") {
  ApiFixture fixture;
  const auto job = fixture.make(R"({"agent":"buys","input":{"n":250}})");
  const std::string first(
      fixture.get({"api", "approvals"}).body["approvals"].items()[0].text("id"));
  fixture.tool_registry.find("buy")->version = "ffffffffffffffff";
  const auto response = fixture.post({"api", "approvals", first}, R"({"decision":"approve"})");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body["delivered"], Value(true));
  EXPECT_EQ(response.body["applied"], Value(false)) << canonical(response.body);
  EXPECT_NE(response.body.text("reason").find("\"buy\" has changed"), std::string_view::npos)
      << canonical(response.body);
  fixture.loop.run_ready();
  ASSERT_EQ(fixture.status(job), "waiting");
  const Value list = fixture.get({"api", "approvals"}).body["approvals"];
  ASSERT_EQ(list.size(), 1u);
  const std::string second(list.items()[0].text("id"));
  EXPECT_NE(second, first);
  const auto good = fixture.post({"api", "approvals", second}, R"({"decision":"approve"})");
  EXPECT_EQ(good.body.find("applied"), nullptr) << canonical(good.body);
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.status(job), "completed");
  // A rejection is accepted whatever the current version of the tool.
  fixture.make(R"({"agent":"buys","input":{"n":300}})");
  const std::string third(
      fixture.get({"api", "approvals"}).body["approvals"].items()[0].text("id"));
  fixture.tool_registry.find("buy")->version = "0123456789abcdef";
  const auto no = fixture.post({"api", "approvals", third}, R"({"decision":"reject"})");
  EXPECT_EQ(no.body["outcome"], "rejected");
  EXPECT_EQ(no.body.find("applied"), nullptr);
}

AE_TEST_SLOW("api/lists of requests read only the logs of jobs that may have one") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"buys","id":"asked","input":{"n":250}})");
  fixture.make(R"({"agent":"doubts","id":"doubted"})");
  for (std::size_t i = 0; i < kLogsMax; ++i) {
    fixture.make("{\"agent\":\"asks\",\"id\":\"j" + std::to_string(i) + "\"}");
  }
  const auto pages = [&](const Path& path, QueryPairs query, std::string_view list) {
    std::vector<std::size_t> sizes;
    for (;;) {
      const Value page = fixture.get(path, query).body;
      sizes.push_back(page[list].size());
      if (page["next_cursor"].is_null()) return sizes;
      std::erase_if(query, [](const auto& pair) { return pair.first == "cursor"; });
      query.emplace_back("cursor", page.text("next_cursor"));
    }
  };
  const std::vector<std::size_t> one_page{1};
  EXPECT_EQ(pages({"api", "approvals"}, {}, "approvals"), one_page);
  EXPECT_EQ(pages({"api", "jobs"}, {{"in_doubt", "true"}}, "jobs"), one_page);
  EXPECT_EQ(pages({"api", "requests"}, {}, "requests"), std::vector<std::size_t>{2});
  EXPECT_EQ(pages({"api", "jobs"}, {{"stuck", "true"}}, "jobs"), std::vector<std::size_t>{1})
      << "rows that tell it themselves cost no log";
}

AE_TEST("api/requests of all kinds have one shape") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"buys","id":"asked","input":{"n":250}})");
  fixture.make(R"({"agent":"doubts","id":"doubted"})");
  const auto requests = [&](QueryPairs query) {
    return fixture.get({"api", "requests"}, std::move(query)).body["requests"];
  };
  const Value all = requests({});
  ASSERT_EQ(all.size(), 2u) << canonical(all);
  const Value& unknown = all.items()[0];
  const Value& call = all.items()[1];
  EXPECT_EQ(unknown.text("kind"), "unknown_outcome");
  EXPECT_EQ(unknown.text("job_id"), "doubted");
  EXPECT_EQ(unknown["commands"].size(), 3u) << "happened, not_happened, fail";
  EXPECT_EQ(unknown["detail"]["idempotency_key"].as_string().substr(0, 16),
            unknown.text("id").substr(std::string_view("doubted.").size()));
  EXPECT_EQ(call.text("kind"), "call");
  EXPECT_EQ(call.text("agent"), "buys");
  EXPECT_EQ(call["detail"]["arguments"]["n"], Value(250));
  std::vector<std::string> names[2];
  for (const int i : {0, 1}) {
    for (const auto& [name, value] : all.items()[static_cast<std::size_t>(i)].members())
      names[i].push_back(name);
  }
  EXPECT_EQ(names[0], names[1]);
  EXPECT_EQ(requests({{"kind", "call"}}).size(), 1u);
  EXPECT_EQ(requests({{"job", "doubted"}}).size(), 1u);
  EXPECT_EQ(requests({{"job", "doubted"}, {"kind", "budget"}}).size(), 0u);
  expect_problem(fixture.get({"api", "requests"}, {{"kind", "other"}}), 400, "input_invalid");

  EXPECT_EQ(
      fixture.post({"api", "approvals", std::string(call.text("id"))}, R"({"decision":"approve"})")
          .status,
      200);
  EXPECT_EQ(requests({{"kind", "call"}}).size(), 0u) << "it is answered";
}

AE_TEST("api/a resolution is never among the approvals") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"doubts"})");
  EXPECT_EQ(fixture.get({"api", "approvals"}).body["approvals"].size(), 0u);
}

AE_TEST("api/messages and early answers are kept, and said to be") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"hears"})");
  const auto early = fixture.post({"api", "jobs", id, "signal"},
                                  R"({"correlation_key":"ok","payload":{"decision":"approve"},)"
                                  R"("buffer":true,"message_id":"s1"})");
  EXPECT_EQ(early.status, 202);
  EXPECT_EQ(early.body["buffered"], Value(true));
  const Path path{"api", "jobs", id, "message"};
  expect_problem(fixture.post(path, R"({"payload":1})"), 400, "input_invalid");
  const auto sent = fixture.post(path, R"({"channel":"news","payload":{"rain":true}})");
  EXPECT_EQ(sent.status, 202);
  EXPECT_EQ(sent.body["accepted"], Value(true));
  fixture.loop.run_ready();
  fixture.loop.run_ready();
  const Value job = fixture.get({"api", "jobs", id}).body;
  EXPECT_EQ(job["status"], "completed") << canonical(job);
  EXPECT_EQ(canonical(job["result"]), R"({"h":{"decision":"approve"},"m":{"rain":true}})");
  expect_problem(fixture.post(path, R"({"channel":"news","payload":1})"), 409, "job_terminal");
}

AE_TEST("api/a message that was sent before is told so, and whether this one counts") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"hears"})");
  const Path path{"api", "jobs", id, "message"};
  const std::string_view rain = R"({"channel":"news","message_id":"m1","payload":{"rain":true}})";
  const auto first = fixture.post(path, rain);
  EXPECT_EQ(first.status, 202);
  EXPECT_EQ(first.body.find("duplicate"), nullptr);
  for (const bool taken_in : {false, true}) {
    if (taken_in) fixture.loop.run_ready();
    const auto again = fixture.post(path, rain);
    EXPECT_EQ(again.status, 200) << canonical(again.body);
    EXPECT_EQ(again.body["duplicate"], Value(true));
    EXPECT_EQ(again.body["applied"], Value(true));
    const auto other =
        fixture.post(path, R"({"channel":"news","message_id":"m1","payload":"sun"})");
    EXPECT_EQ(other.status, 200);
    EXPECT_EQ(other.body["duplicate"], Value(true));
    EXPECT_EQ(other.body["applied"], Value(false));
    EXPECT_EQ(canonical(other.body["payload"]), R"({"rain":true})");
  }
  const auto events = fixture.get({"api", "jobs", id, "events"}, {{"type", "agent_message"}}).body;
  EXPECT_EQ(events["events"].size(), 1u);
}

AE_TEST("api/an early answer that is none is refused where the plan says what the wait is") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"hears"})");
  const std::size_t before = fixture.get({"api", "jobs", id, "events"}).body["events"].size();
  expect_problem(fixture.post({"api", "jobs", id, "signal"},
                              R"({"correlation_key":"ok","payload":{"note":"hm"},"buffer":true})"),
                 400, "input_invalid");
  EXPECT_EQ(fixture.get({"api", "jobs", id, "events"}).body["events"].size(), before);
}

AE_TEST("api/a job is paused and resumed; resume ends no other rest") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"asks"})");
  expect_problem(fixture.post({"api", "jobs", id, "resume"}, ""), 409, "not_paused");
  EXPECT_EQ(fixture.post({"api", "jobs", id, "pause"}, R"({"reason":"look"})").status, 202);
  const Value job = fixture.get({"api", "jobs", id}).body;
  EXPECT_EQ(job["status"], "parked");
  EXPECT_EQ(job["parked"]["reason"], "look");
  EXPECT_EQ(job["parked"]["until"], "resume");
  EXPECT_EQ(fixture.post({"api", "jobs", id, "resume"}, "").status, 202);
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.status(id), "waiting");
  const auto doubt = fixture.make(R"({"agent":"doubts"})");
  const auto refused = fixture.post({"api", "jobs", doubt, "resume"}, "");
  expect_problem(refused, 409, "not_paused");
  EXPECT_NE(canonical(refused.body).find("resolve"), std::string::npos);
}

AE_TEST("api/a job that has used up its budget is parked, and goes on when it is raised") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"thrifty"})");
  fixture.loop.run_ready();
  Value job = fixture.get({"api", "jobs", id}).body;
  EXPECT_EQ(job["status"], "parked") << canonical(job);
  EXPECT_EQ(job["parked"]["reason"], "budget_exceeded");
  EXPECT_EQ(job["parked"]["command"], Value("aetheris budget " + id + " --tool-calls 2"));
  EXPECT_EQ(job["budget"]["limits"]["tool_calls"], Value(1));
  EXPECT_EQ(job["budget"]["spent"]["tool_calls"], Value(1));
  expect_problem(fixture.post({"api", "jobs", id, "resume"}, ""), 409, "not_paused");
  const Path raise{"api", "jobs", id, "budget"};
  for (const char* wrong : {R"({})", R"({"tool_calls":0})", R"({"tokens":5})", R"({"soft":5})",
                            R"({"tool_calls":"2"})", R"({"cost":"x"})"}) {
    expect_problem(fixture.post(raise, wrong), 400, "input_invalid");
  }
  EXPECT_EQ(fixture.post(raise, R"({"tool_calls":1})").body["raised"], Value(false));
  EXPECT_EQ(fixture.post(raise, R"({"tool_calls":2,"note":"go on"})").status, 200);
  fixture.loop.run_ready();
  job = fixture.get({"api", "jobs", id}).body;
  EXPECT_EQ(job["status"], "completed") << canonical(job);
  expect_problem(fixture.post(raise, R"({"tool_calls":9})"), 409, "job_terminal");
  const Value trace = fixture.get({"api", "jobs", id, "trace"}).body;
  ASSERT_EQ(trace["budget"].size(), 2u);
  EXPECT_EQ(trace["budget"].items()[1].text("state"), "raised");
  EXPECT_EQ(trace["budget"].items()[1].text("reason"), "go on");
}

AE_TEST("api/a request lowers its agent's budget and never raises it; a key stands for it, too") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"thrifty","budget":{"tool_calls":0,"wall":"30m"}})");
  fixture.loop.run_ready();
  const Value job = fixture.get({"api", "jobs", id}).body;
  EXPECT_EQ(job["status"], "parked");
  EXPECT_EQ(job["budget"]["limits"]["tool_calls"], Value(0));
  EXPECT_EQ(job["budget"]["limits"]["wall"], Value("30m"));
  for (const char* wrong :
       {R"({"tool_calls":2})", R"({"wall":"2h"})", R"({})", R"([])", R"({"soft":50})"}) {
    expect_problem(
        fixture.post({"api", "jobs"}, R"({"agent":"thrifty","budget":)" + std::string(wrong) + "}"),
        400, "input_invalid");
  }
  const auto made = fixture.post({"api", "jobs"},
                                 R"({"agent":"asks","budget":{"tokens":5},"idempotency_key":"k"})");
  EXPECT_EQ(made.status, 201);
  EXPECT_EQ(
      fixture
          .post({"api", "jobs"}, R"({"agent":"asks","budget":{"tokens":5},"idempotency_key":"k"})")
          .status,
      200);
  expect_problem(fixture.post({"api", "jobs"},
                              R"({"agent":"asks","budget":{"tokens":6},"idempotency_key":"k"})"),
                 409, "idempotency_conflict");
}

AE_TEST("api/a fork is a new job; what it would do again is listed until somebody agrees") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"buys","id":"j","input":{"n":1}})");
  ASSERT_EQ(fixture.status("j"), "completed");
  const Path path{"api", "jobs", "j", "fork"};
  const auto refused = fixture.post(path, R"({"at_seq":2})");
  expect_problem(refused, 409, "effects_repeated");
  ASSERT_EQ(refused.body["effects"].size(), 1u);
  const Value& effect = refused.body["effects"].items()[0];
  EXPECT_EQ(effect["node_id"], Value("buy"));
  EXPECT_EQ(effect["state"], Value("committed"));
  const std::string key(effect.text("idempotency_key"));
  const auto made = fixture.post(
      path, R"({"at_seq":2,"id":"f","input":{"n":2},"repeat_effects":[")" + key + R"("]})");
  EXPECT_EQ(made.status, 201) << canonical(made.body);
  EXPECT_EQ(made.location, "/api/jobs/f");
  EXPECT_EQ(made.body["forked_from"]["job_id"], Value("j"));
  EXPECT_EQ(fixture.post(path, R"({"at_seq":2,"id":"f","input":{"n":2}})").status, 200);
  expect_problem(fixture.post(path, R"({"at_seq":3,"id":"f"})"), 409, "already_exists");
  fixture.loop.advance(std::chrono::seconds(2));
  EXPECT_EQ(fixture.get({"api", "jobs", "f"}).body["result"], Value::object({{"n", 2}}));
  EXPECT_EQ(fixture.get({"api", "jobs", "f", "verify"}).body["ok"], Value(true));
}

AE_TEST("api/a fork that cannot be made changes nothing") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"buys","id":"j","input":{"n":1}})");
  const Path path{"api", "jobs", "j", "fork"};
  expect_problem(fixture.post(path, "{}"), 400, "input_invalid");
  expect_problem(fixture.post(path, R"({"at_seq":0})"), 400, "input_invalid");
  expect_problem(fixture.post(path, R"({"at_seq":999})"), 400, "input_invalid");
  expect_problem(fixture.post(path, R"({"at_seq":2,"overrides":{}})"), 400, "unsupported");
  expect_problem(fixture.post(path, R"({"at_seq":2,"repeat_effects":"all"})"), 400,
                 "input_invalid");
  expect_problem(fixture.post({"api", "jobs", "nobody", "fork"}, R"({"at_seq":2})"), 404,
                 "not_found");
  expect_problem(fixture.post({"api", "jobs", "j", "retry"}, "{}"), 400, "input_invalid");
  fixture.make(R"({"agent":"echo","id":"e","input":{"n":1}})");
  expect_problem(
      fixture.post({"api", "jobs", "e", "fork"}, R"({"at_seq":2,"input":{"n":"no number"}})"), 400,
      "input_invalid");
  EXPECT_EQ(fixture.get({"api", "jobs"}).body["jobs"].size(), 2u);
}

AE_TEST("api/another plan is taken by a job that waits, and the one it has changes nothing") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"asks","id":"j"})");
  ASSERT_EQ(fixture.status("j"), "waiting");
  const Path path{"api", "jobs", "j", "plan"};
  const auto same = fixture.post(path, "{}");
  EXPECT_EQ(same.status, 202) << canonical(same.body);
  EXPECT_EQ(same.body["unchanged"], Value(true));
  const Value graph = fixture.file.agents.find("asks")->second.task_graph.with("output", "fixed");
  const auto response = fixture.post(path, canonical(Value::object({{"task_graph", graph}})));
  EXPECT_EQ(response.status, 202) << canonical(response.body);
  EXPECT_EQ(response.body["plan"], Value(1));
  EXPECT_EQ(response.body["carried"].size(), 1u);
  fixture.loop.advance(std::chrono::seconds(2));
  EXPECT_EQ(fixture.status("j"), "waiting");
  fixture.post({"api", "jobs", "j", "signal"}, R"({"correlation_key":"go","payload":1})");
  fixture.loop.advance(std::chrono::seconds(2));
  EXPECT_EQ(fixture.get({"api", "jobs", "j"}).body["result"], Value("fixed"));
  expect_problem(fixture.post(path, "{}"), 409, "job_terminal");
  expect_problem(fixture.post(path, R"({"task_graph":{"nodes":1}})"), 400, "plan_invalid");
  expect_problem(fixture.post({"api", "jobs", "nobody", "plan"}, "{}"), 404, "not_found");
}

AE_TEST("api/values of an ended job are dropped, by name, and told of in the audit log") {
  ApiFixture fixture;
  const std::string id =
      fixture.make(R"({"agent":"echo","input":{"n":4711,"who":"Ada Lovelace"}})");
  const auto refused = [&](std::string_view body, int status, std::string_view code) {
    expect_problem(fixture.post({"api", "jobs", id, "redact"}, body), status, code);
  };
  refused(R"({"seq":1,"field":"input"})", 400, "input_invalid");  // no reason
  refused(R"({"reason":"x"})", 400, "input_invalid");
  refused(R"({"reason":"x","seq":0})", 400, "input_invalid");
  refused(R"({"reason":"x","seq":99})", 400, "input_invalid");
  refused(R"({"reason":"x","field":"input"})", 400, "input_invalid");
  refused(R"({"reason":"x","seq":1,"field":7})", 400, "input_invalid");
  refused(R"({"reason":"x","seq":1,"field":"output"})", 400, "input_invalid");
  refused(R"({"reason":"x","seq":2})", 400, "input_invalid");  // a plan cannot be redacted
  refused(R"({"reason":"x","values":[1]})", 400, "input_invalid");
  refused(R"({"reason":"x","values":[{"seq":1},{"seq":99}]})", 400, "input_invalid");
  refused(R"({"reason":"x","all":true,"seq":1})", 400, "input_invalid");
  expect_problem(fixture.post({"api", "jobs", "nobody", "redact"}, R"({"reason":"x","seq":1})"),
                 404, "not_found");
  EXPECT_EQ(fixture.get({"api", "jobs", id}).body["input"]["n"], Value(4711))
      << "nothing was dropped";
  EXPECT_EQ(fixture.get({"api", "audit"}).body["entries"].size(), 0u);

  const ApiResponse done =
      fixture.post({"api", "jobs", id, "redact"}, R"({"reason":"x","seq":1,"field":"input"})");
  EXPECT_EQ(done.status, 200);
  // The job's blind is erased with its first value.
  EXPECT_EQ(canonical(done.body["redacted"]),
            R"([{"field":"blind","seq":1},{"field":"input","seq":1}])");
  EXPECT_EQ(canonical(done.body["gone"]), "[]");
  EXPECT_GT(done.body["kept"].size(), 0u);
  EXPECT_NE(fixture.get({"api", "jobs", id}).body["input"].find("$redacted"), nullptr);
  const Value proof = fixture.get({"api", "jobs", id, "verify"}).body;
  EXPECT_EQ(proof["ok"], Value(true));
  EXPECT_EQ(proof["redacted"], done.body["redacted"]);
  const ApiResponse all =
      fixture.post({"api", "jobs", id, "redact"}, R"({"reason":"y","all":true})");
  EXPECT_EQ(all.status, 200) << canonical(all.body);
  EXPECT_GT(all.body["redacted"].size(), 1u);
  EXPECT_EQ(fixture.get({"api", "jobs", id, "verify"}).body["ok"], Value(true));
  EXPECT_EQ(canonical(fixture.get({"api", "jobs", id, "events"}).body).find("Lovelace"),
            std::string::npos);

  const Value log = fixture.get({"api", "audit"}).body;
  ASSERT_EQ(log["entries"].size(), 2u);
  EXPECT_EQ(log["entries"].items()[0].text("by"), "ada");
  EXPECT_EQ(log["entries"].items()[0]["detail"].text("reason"), "x");
  EXPECT_EQ(log["entries"].items()[1].text("prev_hash"), log["entries"].items()[0].text("hash"));
  EXPECT_EQ(fixture.get({"api", "audit"}, {{"limit", "1"}}).body["next"], Value(1));
  EXPECT_EQ(fixture.get({"api", "audit", "verify"}).body["ok"], Value(true));
  expect_problem(fixture.get({"api", "audit"}, {{"from", "1"}}), 400, "input_invalid");
}

AE_TEST("api/a value that a job goes on with stays, and of the list of a map its length") {
  ApiFixture fixture;
  const std::string waits = fixture.make(R"({"agent":"asks"})");
  expect_problem(fixture.post({"api", "jobs", waits, "redact"}, R"({"reason":"x","all":true})"),
                 409, "not_settled");
  const std::string ends = fixture.make(R"({"agent":"maps","input":{"list":[1,2]}})");
  std::string list;
  const Value log = fixture.get({"api", "jobs", ends, "events"}).body;
  for (const Value& event : log["events"].items()) {
    if (event["payload"].text("kind") == "branch") list = std::to_string(event["seq"].as_int());
  }
  ASSERT_FALSE(list.empty());
  const ApiResponse gone =
      fixture.post({"api", "jobs", ends, "redact"}, R"({"reason":"x","seq":)" + list + "}");
  EXPECT_EQ(gone.status, 200) << canonical(gone.body);
  EXPECT_EQ(fixture.get({"api", "jobs", ends, "verify"}).body["ok"], Value(true));
  const ApiResponse page = fixture.get({"api", "jobs", ends, "events"});
  for (const Value& event : page.body["events"].items()) {
    if (event["payload"].text("kind") != "branch") continue;
    EXPECT_EQ(canonical(event["payload"]["payload"]["left"]), R"({"items":2})");
  }
}

AE_TEST("api/the past can be asked for") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"echo","id":"j"})");
  const auto early = fixture.get({"api", "jobs", "j", "replay"}, {{"at", "2"}}).body;
  const auto late = fixture.get({"api", "jobs", "j", "replay"}).body;
  EXPECT_EQ(early.text("status"), "queued");
  EXPECT_EQ(late.text("status"), "completed");
  expect_problem(fixture.get({"api", "jobs", "j", "replay"}, {{"at", "0"}}), 400, "input_invalid");
  expect_problem(fixture.get({"api", "jobs", "j", "replay"}, {{"at", "99"}}), 400, "input_invalid");
}

}  // namespace
}  // namespace ae::api
