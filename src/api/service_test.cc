// Tests of the service routes: agents, tools, workers, metrics, and the list of stalled jobs.
#include "api/api_fixture_test.h"

#include <fmt/core.h>

#include "json/json.h"
#include "testing/test.h"

namespace ae::api {
namespace {

AE_TEST("service/agents, tools and workers are listed; ready fails once shutdown has begun") {
  ApiFixture fixture;
  EXPECT_EQ(fixture.get({"api", "ready"}).body.text("status"), "ready");
  const ApiResponse agents = fixture.get({"api", "agents"});
  ASSERT_EQ(agents.body["agents"].size(), fixture.file.agents.size());
  EXPECT_EQ(agents.body["agents"].items()[0].text("plan_hash").size(), 64u);
  EXPECT_EQ(fixture.get({"api", "agents", "echo"}).body["input_schema"].text("type"), "object");
  expect_problem(fixture.get({"api", "agents", "missing"}), 404, "not_found");
  EXPECT_EQ(fixture.get({"api", "tools"}).body["tools"].size(), fixture.file.tools.size());
  const ApiResponse workers = fixture.get({"api", "workers"});
  ASSERT_EQ(workers.body["workers"].size(), 1u);
  EXPECT_EQ(workers.body["workers"].items()[0].text("worker"), "worker");
  fixture.api->begin_shutdown();
  expect_problem(fixture.get({"api", "ready"}), 503, "unavailable");
  EXPECT_EQ(fixture.get({"api", "health"}).status, 200) << "health does not depend on shutdown";
}

AE_TEST("service/a message to an agent creates a job with the message as input") {
  ApiFixture fixture;
  expect_problem(fixture.post({"api", "agents", "asks", "message"}, "{}"), 400, "input_invalid");
  expect_problem(fixture.post({"api", "agents", "missing", "message"}, R"({"message": 1})"), 404,
                 "not_found");
  const ApiResponse created =
      fixture.post({"api", "agents", "asks", "message"}, R"({"message": "hello"})");
  ASSERT_EQ(created.status, 202) << canonical(created.body);
  const std::string job(created.body.text("job_id"));
  EXPECT_EQ(created.location, "/api/jobs/" + job);
  EXPECT_EQ(canonical(fixture.get({"api", "jobs", job}).body["input"]), R"({"message":"hello"})");
}

AE_TEST("service/metrics count jobs and tool calls") {
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
        "aetheris_run_resume_total 0\n", "aetheris_confirmation_replay_warn_total 0\n",
        "aetheris_job_reload_total 0\n"}) {
    EXPECT_NE(metrics.text.find(line), std::string::npos) << line << "\n" << metrics.text;
  }
}

AE_TEST("service/metrics count failures, unknown outcomes and how long jobs were parked") {
  ApiFixture fixture;
  const std::string job = fixture.make(R"({"agent": "doubts"})");
  fixture.loop.advance(std::chrono::minutes(10));
  const Value body = fixture.get({"api", "jobs", job}).body;
  const std::string key(body["in_doubt"].items()[0].text("idempotency_key"));
  fixture.post({"api", "jobs", job, "resolve"},
               fmt::format(R"({{"idempotency_key":"{}","resolution":"fail"}})", key));
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

AE_TEST("service/stalled jobs are listed in pages with their reason and commands") {
  ApiFixture fixture;
  const auto listed = [&](QueryPairs query) {
    const ApiResponse response = fixture.get({"api", "jobs"}, std::move(query));
    EXPECT_EQ(response.status, 200) << canonical(response.body);
    return response.body["jobs"];
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
  const Value first = listed({{"stalled", "true"}});
  ASSERT_EQ(first.size(), 1u) << canonical(first);
  EXPECT_EQ(first.items()[0].text("id"), paused);
  EXPECT_EQ(first.items()[0]["stalled"].text("reason"), "parked");
  EXPECT_EQ(first.items()[0]["stalled"].text("until"), "resume");
  EXPECT_EQ(canonical(first.items()[0]["stalled"]["commands"]),
            fmt::format(R"(["aetheris resume {}"])", paused));
  // The one without a suitable worker, after a while.
  const Value later = listed({{"stalled", "true"}, {"older_than", "0s"}});
  ASSERT_EQ(later.size(), 2u) << canonical(later);
  EXPECT_EQ(later.items()[1].text("id"), needs);
  EXPECT_EQ(canonical(later.items()[1]["stalled"]["missing"]), R"(["gpu"])");
  EXPECT_EQ(canonical(later.items()[1]["stalled"]["commands"]),
            R"(["aetheris serve FILE --capability gpu"])");
  fixture.loop.advance(std::chrono::minutes(6));
  EXPECT_EQ(listed({{"stalled", "true"}}).size(), 2u);
  EXPECT_EQ(canonical(listed({{"stuck", "true"}})), canonical(listed({{"stalled", "true"}})))
      << "the alias";
  // One per page.
  const ApiResponse page = fixture.get({"api", "jobs"}, {{"stalled", "true"}, {"limit", "1"}});
  ASSERT_EQ(page.body["jobs"].size(), 1u);
  const Value rest = listed(
      {{"stalled", "true"}, {"limit", "9"}, {"cursor", page.body["next_cursor"].as_string()}});
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest.items()[0].text("id"), needs);
  EXPECT_EQ(listed({{"in_doubt", "true"}}).size(), 0u);
  for (const QueryPairs& bad : {QueryPairs{{"stalled", "yes"}},
                                {{"stalled", "true"}, {"stuck", "true"}},
                                {{"stalled", "true"}, {"cursor", "x"}},
                                {{"stalled", "true"}, {"older_than", "soon"}},
                                {{"stalled", "true"}, {"status", "parked"}},
                                {{"stalled", "true"}, {"in_doubt", "true"}},
                                {{"in_doubt", "true"}, {"older_than", "0s"}},
                                {{"older_than", "0s"}},
                                {{"in_doubt", "1"}}}) {
    expect_problem(fixture.get({"api", "jobs"}, bad), 400, "input_invalid");
  }
  const std::string text = fixture.get({"metrics"}).text;
  for (const char* line :
       {"aetheris_stalled_job_count 2\n", "aetheris_stuck_job_count 2\n",
        "aetheris_job_state{state=\"parked\"} 1\n", "aetheris_job_state{state=\"waiting\"} 1\n",
        "aetheris_queue_backlog{queue=\"default\"} 1\n", "aetheris_store_up 1\n",
        "aetheris_lease_acquire_total{ok=\"true\"} ", "aetheris_lease_conflict_total 0\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

}  // namespace
}  // namespace ae::api
