// Tests of forks, retries and changes of the plan.
#include "api/api_fixture_test.h"

#include "json/json.h"
#include "testing/test.h"

namespace ae::api {
namespace {

AE_TEST("api/a fork is a new job; repeated effects are listed until the client allows them") {
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

AE_TEST("api/an invalid fork is refused and creates no job") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"buys","id":"j","input":{"n":1}})");
  const Path path{"api", "jobs", "j", "fork"};
  expect_problem(fixture.post(path, "{}"), 400, "input_invalid");
  expect_problem(fixture.post(path, R"({"at_seq":0})"), 400, "input_invalid");
  expect_problem(fixture.post(path, R"({"at_seq":999})"), 400, "input_invalid");
  expect_problem(fixture.post(path, R"({"at_seq":2,"overrides":{}})"), 400, "unsupported");
  expect_problem(fixture.post(path, R"({"at_seq":2,"repeat_effects":"all"})"), 400,
                 "input_invalid");
  expect_problem(fixture.post(path, R"({"at_seq":2,"repeat_effects":true})", {{"wait", "6m"}}), 400,
                 "input_invalid");
  expect_problem(fixture.post({"api", "jobs", "missing", "fork"}, R"({"at_seq":2})"), 404,
                 "not_found");
  expect_problem(fixture.post({"api", "jobs", "j", "retry"}, "{}"), 400, "input_invalid");
  fixture.make(R"({"agent":"echo","id":"e","input":{"n":1}})");
  expect_problem(
      fixture.post({"api", "jobs", "e", "fork"}, R"({"at_seq":2,"input":{"n":"no number"}})"), 400,
      "input_invalid");
  EXPECT_EQ(fixture.get({"api", "jobs"}).body["jobs"].size(), 2u);
}

AE_TEST("pages/the forks of a job are listed; a dry run creates none") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"buys","id":"origin","input":{"n":1}})");
  ASSERT_EQ(fixture.status("origin"), "completed");
  const Path path{"api", "jobs", "origin", "forks"};
  const Value preview =
      fixture.post({"api", "jobs", "origin", "fork"}, R"({"at_seq":2,"dry_run":true})").body;
  EXPECT_EQ(preview["at_seq"], Value(2));
  EXPECT_EQ(canonical(preview["runs"]), R"(["buy"])");
  ASSERT_EQ(preview["repeats"].size(), 1u) << canonical(preview);
  EXPECT_EQ(preview["repeats"].items()[0].text("node_id"), "buy");
  EXPECT_EQ(fixture.get(path).body["jobs"].size(), 0u);
  expect_problem(fixture.post({"api", "jobs", "origin", "retry"}, R"({"dry_run":true})"), 400,
                 "input_invalid");
  expect_problem(fixture.post({"api", "jobs", "origin", "fork"}, R"({"at_seq":2,"dry_run":1})"),
                 400, "input_invalid");
  const ApiResponse made = fixture.post({"api", "jobs", "origin", "fork"},
                                        R"({"at_seq":2,"id":"one","repeat_effects":true})");
  ASSERT_EQ(made.status, 201) << canonical(made.body);
  const Value forks = fixture.get(path).body;
  ASSERT_EQ(forks["jobs"].size(), 1u);
  EXPECT_EQ(forks["jobs"].items()[0].text("id"), "one");
  EXPECT_EQ(forks["jobs"].items()[0].text("forked_from"), "origin");
  EXPECT_EQ(fixture.get({"api", "jobs"}, {{"forked_from", "origin"}}).body["jobs"].size(), 1u);
  EXPECT_EQ(fixture.get({"api", "jobs"}, {{"forked_from", "one"}}).body["jobs"].size(), 0u);
}

AE_TEST("api/a waiting job accepts another plan; its current plan changes nothing") {
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
  expect_problem(fixture.post({"api", "jobs", "missing", "plan"}, "{}"), 404, "not_found");
}

AE_TEST(
    "api/retry and plan with another version of a tool are refused before anything is written") {
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

AE_TEST("api/a process that runs no jobs accepts a retry with any tool version") {
  ApiFixture fixture;
  const std::string failed = fixture.make(R"({"agent": "maps", "input": {"list": 1}})");
  fixture.tool_registry.find("echo")->version = "ffffffffffffffff";
  fixture.api.emplace(fixture.loop, fixture.steady, fixture.store, *fixture.runtime,
                      fixture.api_options(false));
  const std::string body =
      canonical(Value::object({{"task_graph", fixture.file.agents.at("maps").task_graph}}));
  EXPECT_EQ(fixture.post({"api", "jobs", failed, "retry"}, body).status, 201);
}

}  // namespace
}  // namespace ae::api
