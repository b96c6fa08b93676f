// Tests of the registry of agents: registration, reload of an edited file, and failures of the
// store.
#include "api/api_fixture_test.h"

#include <fmt/core.h>

#include <algorithm>

#include "json/json.h"
#include "testing/test.h"

namespace ae::api {
namespace {

std::string replaced(std::string text, std::string_view before, std::string_view after) {
  const std::size_t at = text.find(before);
  AE_CHECK(at != text.npos, before);
  return text.replace(at, before.size(), after);
}

std::string changes_text(const Result<std::vector<AgentChange>>& changes) {
  if (!changes) return std::string(code_name(changes.error().code));
  std::string text;
  for (const AgentChange& one : *changes) {
    text += fmt::format("{} {}-{} ", one.name, one.from, one.to);
  }
  return text;
}

// Two changed agents and a new one.
std::string edited_agents() {
  std::string text = replaced(std::string(kApiAgents), "${ .steps.say.said }", "${ .steps.say }");
  text = replaced(text, "key: \"go\" } }\n    output: \"${ .steps.w }\"", "key: \"gone\" } }");
  return text + "  later: { plan: [ { id: d, tool: echo, args: { x: 1 } } ] }\n";
}

AE_TEST("registry/a server registers its agents at startup; a restart without changes adds none") {
  ApiFixture fixture;
  fixture.serve();
  const std::size_t agents = fixture.file.agents.size();
  ASSERT_EQ(fixture.get({"api", "audit"}).body["entries"].size(), agents);
  const ApiResponse echo = fixture.get({"api", "agents", "echo"});
  EXPECT_EQ(echo.body["version"], Value(1));
  EXPECT_EQ(echo.body.text("by"), "serve");
  EXPECT_EQ(echo.body["source"].text("output"), "${ .steps.say.said }");
  EXPECT_EQ(fixture.get({"api", "agents", "echo"}).etag, echo.etag);
  fixture.serve();
  EXPECT_EQ(fixture.get({"api", "audit"}).body["entries"].size(), agents) << "nothing has changed";
}

AE_TEST("registry/PUT of a changed agent adds a version; PUT of an equal definition does not") {
  ApiFixture fixture;
  fixture.serve();
  const std::string source = R"({"plan": [{"id": "e", "tool": "echo", "args": {"v": 1}}],
                                 "output": "${ .steps.e.v }"})";
  const std::string before = fixture.get({"api", "agents"}).etag;
  const ApiResponse made = fixture.put("new", source);
  EXPECT_NE(fixture.get({"api", "agents"}).etag, before);
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
  const ApiResponse created =
      fixture.post({"api", "agents", "new", "message"}, R"({"message": 1})");
  EXPECT_EQ(created.status, 202);
  // Older versions are still readable.
  const ApiResponse shown = fixture.get({"api", "agents", "new"}, {{"version", "1"}});
  EXPECT_EQ(shown.body.text("plan_hash"), made.body.text("plan_hash"));
  EXPECT_EQ(canonical(shown.body["source"]), canonical(*parse_json(source)));
  expect_problem(fixture.get({"api", "agents", "new"}, {{"version", "3"}}), 404, "not_found");
  expect_problem(fixture.get({"api", "agents", "new"}, {{"version", "0"}}), 404, "not_found");
  expect_problem(fixture.get({"api", "agents", "new"}, {{"version", "x"}}), 400, "input_invalid");
}

AE_TEST("registry/PUT of an invalid agent reports all its errors and registers nothing") {
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

AE_TEST("registry/an agent with a missing tool is shown as not runnable and creates no job") {
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

AE_TEST("registry/an agent registered by another process runs here") {
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

AE_TEST("reload/edited agents are registered and used by new jobs; older jobs keep their plan") {
  ApiFixture fixture;
  fixture.serve();
  ASSERT_EQ(fixture.put("theirs", R"({"plan": [{"id": "e", "tool": "echo"}]})").status, 201);
  const std::string before = fixture.make(R"({"agent": "asks"})");
  EXPECT_EQ(changes_text(fixture.reload(std::string(kApiAgents))), "") << "nothing was edited";
  EXPECT_EQ(changes_text(fixture.reload(edited_agents())), "asks 1-2 echo 1-2 later 0-1 ");
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

AE_TEST("reload/removing a tool disables the agents that need it; restoring it enables them") {
  ApiFixture fixture;
  fixture.serve();
  ASSERT_EQ(fixture.put("theirs", R"({"plan": [{"id": "d", "tool": "doubt"}]})").status, 201);
  std::string without(kApiAgents);
  const std::size_t at = without.find("  doubt:");
  without.erase(at, without.find('\n', at) + 1 - at);
  without = replaced(without, "doubts: { plan: [ { id: d, tool: doubt } ]",
                     "doubts: { plan: [ { id: d, tool: strict } ]");
  EXPECT_EQ(changes_text(fixture.reload(without)), "doubts 1-2 ");
  expect_problem(fixture.post({"api", "jobs"}, R"({"agent": "theirs"})"), 409, "needs_version");
  EXPECT_EQ(changes_text(fixture.reload(std::string(kApiAgents))), "doubts 2-3 ");
  EXPECT_EQ(fixture.post({"api", "jobs"}, R"({"agent": "theirs"})").status, 201);
}

AE_TEST("reload/after a store failure the old versions stay in use until a reload succeeds") {
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
        SCOPED_TRACE(fmt::format("{} {} {}", to_text(method), to_text(fault), nth));
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
        EXPECT_EQ(changes_text(fixture.reload(edited_agents())), "asks 1-2 echo 1-2 later 0-1 ");
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

AE_TEST("reload/an agent registered by a failed reload is offered once a client registers it") {
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

AE_TEST("reload/a reverted edit is also reverted in the registry after a partly failed reload") {
  bool fails = false;
  int records = 0;
  ApiFixture fixture(true, [&](const store::Call& call) {
    const bool now = fails && call.method == store::Method::append_audit_entry && ++records == 2;
    return now ? store::Fault::fail_before : store::Fault::none;
  });
  fixture.serve();
  fails = true;
  EXPECT_EQ(changes_text(fixture.reload(edited_agents())), "unavailable");
  EXPECT_EQ(changes_text(fixture.reload(std::string(kApiAgents))), "asks 1-3 ");
  EXPECT_EQ(fixture.get({"api", "agents", "asks"}).body["source"].text("output"), "${ .steps.w }");
  EXPECT_EQ(fixture.get({"api", "agents", "later"}).status, 404);
}

}  // namespace
}  // namespace ae::api
