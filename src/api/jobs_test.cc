// Tests of the creation and the list of jobs.
#include "api/api_fixture_test.h"

#include <fmt/core.h>

#include "json/json.h"
#include "testing/test.h"

namespace ae::api {
namespace {

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

AE_TEST("api/POST jobs with ?wait returns when the job has ended or is blocked") {
  ApiFixture fixture;
  const auto made = fixture.post({"api", "jobs"}, R"({"agent":"echo"})", {{"wait", "30s"}});
  EXPECT_EQ(made.status, 201);
  EXPECT_EQ(made.body.text("status"), "completed");
  const auto blocked = fixture.post({"api", "jobs"}, R"({"agent":"asks"})", {{"wait", "30s"}});
  EXPECT_EQ(blocked.body.text("status"), "waiting");
}

AE_TEST("api/POST jobs with ?wait reads the log once, after any number of commits") {
  int reads = 0;
  ApiFixture fixture(true, [&](const store::Call& call) {
    const bool is_log = call.method == store::Method::load && call.from_seq != store::kNoCommits;
    reads += is_log ? 1 : 0;
    return store::Fault::none;
  });
  const auto made = fixture.post(
      {"api", "jobs"}, R"({"agent":"maps","input":{"list":[1,2,3,4,5,6,7,8]}})", {{"wait", "30s"}});
  EXPECT_EQ(made.body.text("status"), "completed") << canonical(made.body);
  EXPECT_EQ(reads, 1);
}

AE_TEST("api/a job stays queued in a process that runs no jobs") {
  ApiFixture fixture(false);
  const auto id = fixture.make(R"({"agent":"echo"})");
  EXPECT_EQ(fixture.status(id), "queued");
}

AE_TEST("api/the same idempotency key returns the same job; another input is a conflict") {
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

AE_TEST("api/an idempotency key covers every field of a request, with defaults filled in") {
  ApiFixture fixture;
  const Path jobs{"api", "jobs"};
  const auto plain = fixture.post(jobs, R"({"agent":"asks","idempotency_key":"plain"})");
  ASSERT_EQ(plain.status, 201);
  for (const char* same : {R"("priority":0)", R"("queue":"default")", R"("queue":null)",
                           R"("required_capabilities":[])"}) {
    const std::string body =
        fmt::format(R"({{"agent":"asks","idempotency_key":"plain",{}}})", same);
    const auto again = fixture.post(jobs, body);
    EXPECT_EQ(again.status, 200) << same;
    EXPECT_EQ(again.body["id"], plain.body["id"]);
  }
  for (const char* other :
       {R"("priority":3)", R"("queue":"q")", R"("required_capabilities":["a"])"}) {
    const std::string body =
        fmt::format(R"({{"agent":"asks","idempotency_key":"plain",{}}})", other);
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

AE_TEST("api/the deadline of a job is the earlier of its request's and its agent's") {
  ApiFixture fixture;
  const Instant now = fixture.loop.now();
  const auto deadline = [&](std::string_view agent, std::string_view requested) {
    const auto made = fixture.post(
        {"api", "jobs"}, fmt::format(R"({{"agent":"{}","deadline":"{}"}})", agent, requested));
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

AE_TEST("api/a job whose deadline has passed runs no step, and its key returns it again") {
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

AE_TEST("api/a repeated relative deadline is the same request; another deadline is a conflict") {
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

AE_TEST("api/the same id and input return the same job; another input is a conflict") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"echo","input":{"n":1},"id":"j"})");
  EXPECT_EQ(fixture.post({"api", "jobs"}, R"({"agent":"echo","input":{"n":1},"id":"j"})").status,
            200);
  expect_problem(fixture.post({"api", "jobs"}, R"({"agent":"echo","input":{"n":2},"id":"j"})"), 409,
                 "already_exists");
  expect_problem(fixture.post({"api", "jobs"}, R"({"agent":"asks","input":{"n":1},"id":"j"})"), 409,
                 "already_exists");
}

AE_TEST("api/a request may lower its agent's budget, not raise it; a key covers the budget") {
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
        fixture.post({"api", "jobs"}, fmt::format(R"({{"agent":"thrifty","budget":{}}})", wrong)),
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

AE_TEST("api/an invalid job is refused before anything is written") {
  ApiFixture fixture;
  const auto refused = [&](std::string_view body, int status, std::string_view code) {
    expect_problem(fixture.post({"api", "jobs"}, body), status, code);
  };
  refused("", 400, "input_invalid");
  refused("[]", 400, "input_invalid");
  refused("{", 400, "input_invalid");
  refused(R"({"agent":"missing"})", 404, "not_found");
  refused(R"({"agent":7})", 400, "input_invalid");
  refused(R"({"agent":"echo","input":{"n":"x"}})", 400, "input_invalid");
  refused(R"({"agent":"echo","inputs":{}})", 400, "input_invalid");
  refused(R"({"agent":"echo","queue":"q q"})", 400, "input_invalid");
  refused(R"({"agent":"echo","queue":""})", 400, "input_invalid");
  refused(R"({"agent":"echo","queue":7})", 400, "input_invalid");
  refused(R"({"agent":"echo","deadline":"2001-01-31T09:30:00Z"})", 400, "input_invalid");
  for (const char* bad :
       {"7", "\"soon\"", "\"0s\"", "\"-1s\"", "\"99999999d\"", "\"2025-01-31 09:30\"", "{}"}) {
    refused(fmt::format(R"({{"agent":"echo","deadline":{}}})", bad), 400, "input_invalid");
  }
  refused(R"({"agent":"echo","labels":{"a":1}})", 400, "input_invalid");
  refused(R"({"agent":"echo","id":"a b"})", 400, "input_invalid");
  refused(R"({"agent":"echo","plan_hash":"00"})", 409, "needs_version");
  refused(fmt::format(R"({{"agent":"echo","idempotency_key":"{}"}})", std::string(257, 'k')), 400,
          "input_invalid");
  for (const char* key : {"", " ", "\\t\\n", "a\\u0000b"}) {
    refused(fmt::format(R"({{"agent":"echo","idempotency_key":"{}"}})", key), 400, "input_invalid");
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

AE_TEST("api/a created job that cannot be read is unknown_outcome, never unavailable") {
  for (const char* wait : {"0s", "30s"}) {
    ApiFixture fixture(true, store::inject_at(store::Method::load, 1, store::Fault::fail_before));
    const ApiResponse response =
        fixture.post({"api", "jobs"}, R"({"agent":"asks","id":"j"})", {{"wait", wait}});
    expect_problem(response, 504, "unknown_outcome");
    EXPECT_EQ(fixture.get({"api", "jobs", "j"}).body.text("status"), "waiting");
    const std::string metrics = fixture.get({"metrics"}).text;
    EXPECT_NE(metrics.find("aetheris_requests_waiting 0\n"), metrics.npos)
        << "no request is left waiting";
  }
}

AE_TEST("api/jobs are listed newest first, in pages") {
  ApiFixture fixture;
  for (int i = 0; i < 5; ++i) {
    fixture.make(fmt::format(R"({{"agent":"echo","labels":{{"i":"{}"}},"id":"j{}"}})", i % 2, i));
    fixture.loop.advance(std::chrono::milliseconds(5));
  }
  const auto ids = [](const ApiResponse& page) {
    std::string text;
    for (const Value& job : page.body["jobs"].items()) text += fmt::format("{} ", job.text("id"));
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

AE_TEST_SLOW("api/a page of a text search examines at most 10,000 jobs; the next page continues") {
  ApiFixture fixture(false);
  for (std::size_t i = 0; i < kSearchMax + 10; ++i) {
    const std::string id = i == 5 ? "wanted" : fmt::format("j{}", i);
    fixture.post({"api", "jobs"}, fmt::format(R"({{"agent":"asks","id":"{}"}})", id));
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

AE_TEST("pages/a list of jobs shows waits, parks, progress and usage, and has filters") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"asks","id":"waits"})");
  fixture.make(R"({"agent":"echo","id":"done"})");
  fixture.make(R"({"agent":"doubts","id":"parks"})");
  const auto row = [&](const QueryPairs& query) {
    const Value page = fixture.get({"api", "jobs"}, query).body;
    EXPECT_EQ(page["jobs"].size(), 1u) << canonical(page);
    return page["jobs"].size() == 1 ? page["jobs"].items()[0] : Value();
  };
  const Value waits = row({{"agent", "asks"}});
  EXPECT_EQ(waits["waiting"]["wait_type"], Value("signal"));
  EXPECT_EQ(waits["waiting"]["node_id"], Value("w"));
  EXPECT_TRUE(waits["ended_at"].is_null());
  const Value done = row({{"agent", "echo"}});
  EXPECT_EQ(done["progress"]["done"], Value(1));
  EXPECT_EQ(done["usage"]["tool_calls"], Value(1));
  EXPECT_TRUE(done["ended_at"].is_string());
  EXPECT_TRUE(done["waiting"].is_null());
  const Value parks = row({{"agent", "doubts"}});
  EXPECT_TRUE(parks["parked"]["reason"].is_string()) << canonical(parks);
  EXPECT_EQ(parks["unknown_outcomes"], Value(1));
  fixture.post({"api", "jobs", "waits", "cancel"}, "{}");
  ASSERT_EQ(fixture.status("waits"), "cancelled");
  const Value ended =
      fixture.get({"api", "jobs"}, {{"status", "cancelled"}, {"status", "completed"}}).body;
  EXPECT_EQ(ended["jobs"].size(), 2u);
  fixture.loop.advance(std::chrono::hours(2));
  EXPECT_EQ(fixture.get({"api", "jobs"}, {{"since", "1h"}}).body["jobs"].size(), 0u);
  EXPECT_EQ(fixture.get({"api", "jobs"}, {{"until", "1h"}}).body["jobs"].size(), 3u);
  EXPECT_EQ(fixture.get({"api", "jobs"}, {{"queue", "default"}}).body["jobs"].size(), 3u);
  EXPECT_EQ(fixture.get({"api", "jobs"}, {{"queue", "other"}}).body["jobs"].size(), 0u);
  expect_problem(fixture.get({"api", "jobs"}, {{"since", "then"}}), 400, "input_invalid");
}

// The ids of a page, and its cursor or a full stop.
std::string ids_of(const Value& page) {
  std::string text;
  for (const Value& job : page["jobs"].items()) text += std::string(job.text("id")) + " ";
  return text + (page["next_cursor"].is_null() ? "." : page["next_cursor"].as_string());
}

AE_TEST("pages/jobs are listed in the order of their last change or of their end") {
  ApiFixture fixture;
  for (const char* id : {"a", "b", "c"}) {
    fixture.make(R"({"agent":"asks","id":")" + std::string(id) + R"("})");
    fixture.loop.advance(std::chrono::seconds(1));
  }
  const auto list = [&](const QueryPairs& query) {
    return fixture.get({"api", "jobs"}, query).body;
  };
  fixture.post({"api", "jobs", "b", "cancel"}, "{}");
  fixture.loop.advance(std::chrono::seconds(1));
  fixture.post({"api", "jobs", "a", "cancel"}, "{}");
  ASSERT_EQ(fixture.status("a"), "cancelled");
  EXPECT_EQ(ids_of(list({{"sort", "created"}})), "c b a .");
  EXPECT_EQ(ids_of(list({{"sort", "changed"}})), "a b c .");
  EXPECT_EQ(ids_of(list({{"sort", "ended"}})), "a b .");
  EXPECT_EQ(ids_of(list({{"sort", "ended"}, {"status", "completed"}, {"status", "waiting"}})), ".");
  EXPECT_EQ(ids_of(list({{"sort", "changed"}, {"q", "c"}})), "c .");
  const Value first = list({{"sort", "changed"}, {"limit", "2"}});
  EXPECT_EQ(first["more"], Value(true));
  const std::string cursor = first["next_cursor"].as_string();
  EXPECT_TRUE(cursor.starts_with("b@2@")) << cursor;
  const Value second = list({{"sort", "changed"}, {"cursor", cursor}});
  EXPECT_EQ(ids_of(second), "c .");
  EXPECT_EQ(second["more"], Value(false));
  for (const Value& job : list({{"sort", "ended"}})["jobs"].items()) {
    EXPECT_EQ(job["changed_at"], job["ended_at"]) << canonical(job);
  }
  for (const QueryPairs& query :
       {QueryPairs{{"sort", "size"}}, QueryPairs{{"sort", "ended"}, {"status", "waiting"}},
        QueryPairs{{"sort", "changed"}, {"cursor", "b"}},
        QueryPairs{{"sort", "changed"}, {"cursor", "b@2"}},
        QueryPairs{{"sort", "changed"}, {"cursor", "b@2@x"}},
        QueryPairs{{"sort", "created"}, {"cursor", cursor}},
        QueryPairs{{"sort", "changed"}, {"stalled", "true"}}}) {
    expect_problem(fixture.get({"api", "jobs"}, query), 400, "input_invalid");
  }
}

AE_TEST("pages/jobs are counted by status and open request; the counts are kept for a second") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"asks","id":"waits","labels":{"shop":"north"}})");
  fixture.make(R"({"agent":"echo","id":"done"})");
  fixture.make(R"({"agent":"doubts","id":"parks"})");
  fixture.make(R"({"agent":"buys","id":"asks","input":{"n":250}})");
  const auto counts = [&](const QueryPairs& query) {
    const ApiResponse response = fixture.get({"api", "job-counts"}, query);
    EXPECT_EQ(response.status, 200) << canonical(response.body);
    return response.body;
  };
  const Value all = counts({});
  EXPECT_EQ(
      canonical(all["statuses"]),
      R"({"cancelled":0,"completed":1,"failed":0,"parked":1,"queued":0,"running":0,"waiting":2})");
  EXPECT_EQ(canonical(all["open_requests"]),
            R"({"budget":0,"call":1,"confirmation":0,"question":0,"unknown_outcome":1,"wait":0})");
  EXPECT_EQ(all["in_doubt"], Value(1));
  EXPECT_EQ(all["stalled"], Value(1));
  EXPECT_EQ(all["capped"], Value(false));
  EXPECT_EQ(all["lower_bounds"].size(), 0u);
  EXPECT_EQ(counts({{"label", "shop:north"}})["statuses"]["waiting"], Value(1));
  EXPECT_EQ(counts({{"agent", "buys"}})["stalled"], Value(0));
  EXPECT_EQ(counts({{"queue", "other"}})["in_doubt"], Value(0));
  fixture.make(R"({"agent":"asks","id":"more"})");
  EXPECT_EQ(counts({}), all);
  fixture.loop.advance(std::chrono::seconds(1));
  EXPECT_EQ(counts({})["statuses"]["waiting"], Value(3));
  EXPECT_EQ(counts({{"since", "500ms"}})["statuses"]["waiting"], Value(0));
  for (const QueryPairs& query :
       {QueryPairs{{"since", "then"}}, QueryPairs{{"label", "north"}},
        QueryPairs{{"status", "failed"}}, QueryPairs{{"agent", "a"}, {"agent", "b"}}}) {
    expect_problem(fixture.get({"api", "job-counts"}, query), 400, "input_invalid");
  }
}

AE_TEST("pages/queued jobs that no worker claims are counted as stalled") {
  ApiFixture fixture(false);
  fixture.post({"api", "jobs"}, R"({"agent":"asks","id":"old","queue":"slow"})");
  fixture.loop.advance(std::chrono::minutes(10));
  fixture.post({"api", "jobs"}, R"({"agent":"asks","id":"new"})");
  const Value counts = fixture.get({"api", "job-counts"}).body;
  EXPECT_EQ(counts["statuses"]["queued"], Value(2));
  EXPECT_EQ(counts["stalled"], Value(1)) << canonical(counts);
  EXPECT_EQ(fixture.get({"api", "job-counts"}, {{"queue", "default"}}).body["stalled"], Value(0));
}

AE_TEST("pages/jobs are listed by kind and cost, with the version of their agent") {
  ApiFixture fixture;
  fixture.serve();
  fixture.make(R"({"agent":"echo","id":"done"})");
  const Value page = fixture.get({"api", "jobs"}, {{"kind", "plan"}, {"cost_min", "0"}}).body;
  ASSERT_EQ(page["jobs"].size(), 1u) << canonical(page);
  const Value& job = page["jobs"].items()[0];
  EXPECT_EQ(job["agent_version"], Value(1));
  EXPECT_EQ(job["plan_hash"], fixture.get({"api", "agents", "echo"}).body["plan_hash"]);
  EXPECT_TRUE(job["started_at"].is_string()) << canonical(job);
  EXPECT_TRUE(job["progress"]["turns"].is_null());
  EXPECT_EQ(ids_of(fixture.get({"api", "jobs"}, {{"kind", "loop"}}).body), ".");
  EXPECT_EQ(ids_of(fixture.get({"api", "jobs"}, {{"cost_min", "0.000001"}}).body), ".");
  for (const QueryPairs& query :
       {QueryPairs{{"kind", "job"}}, QueryPairs{{"cost_min", "-1"}},
        QueryPairs{{"cost_min", "0.0000001"}}, QueryPairs{{"cost_min", "cheap"}},
        QueryPairs{{"kind", "plan"}, {"in_doubt", "true"}}}) {
    expect_problem(fixture.get({"api", "jobs"}, query), 400, "input_invalid");
  }
}

}  // namespace
}  // namespace ae::api
