// Tests of resolutions of unknown outcomes, and of repeated answers.
#include "api/api_fixture_test.h"

#include <fmt/core.h>

#include "json/json.h"
#include "testing/test.h"

namespace ae::api {
namespace {

AE_TEST(
    "api/an unknown outcome is listed and resolved; not_happened is refused before it settles") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"doubts"})");
  EXPECT_EQ(fixture.status(id), "parked");
  const Value job = fixture.get({"api", "jobs", id}).body;
  ASSERT_EQ(job["in_doubt"].size(), 1u) << canonical(job);
  const std::string key(job["in_doubt"].items()[0].text("idempotency_key"));
  const Path path{"api", "jobs", id, "resolve"};
  const auto resolve = [&](const std::string& of, const std::string& rest) {
    return fixture.post(path, fmt::format(R"({{"idempotency_key":"{}",{}}})", of, rest));
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

AE_TEST("api/not_happened accepts the time of the check, not before the outcome is settled") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"doubts"})");
  const Value job = fixture.get({"api", "jobs", id}).body;
  const std::string key(job["in_doubt"].items()[0].text("idempotency_key"));
  const Instant before = fixture.loop.now();
  fixture.loop.advance(std::chrono::minutes(10));
  const auto resolve_step = [&](std::string_view checked_at, std::string_view name = "checked_at") {
    return fixture.post(
        {"api", "jobs", id, "resolve"},
        fmt::format(R"({{"resolution":"not_happened","idempotency_key":"{}","{}":{}}})", key, name,
                    checked_at));
  };
  expect_problem(resolve_step("7"), 400, "input_invalid");
  expect_problem(resolve_step(R"("yesterday")"), 400, "input_invalid");
  const std::string early = fmt::format(R"("{}")", to_text(before));
  expect_problem(resolve_step(early), 409, "not_settled");
  expect_problem(resolve_step(early, "looked_at"), 409, "not_settled");
  expect_problem(resolve_step(fmt::format(R"({0},"looked_at":{0})", early)), 400, "input_invalid");
  EXPECT_EQ(fixture.status(id), "parked");
  const auto ahead = fixture.loop.now() + std::chrono::minutes(3);
  EXPECT_EQ(resolve_step(fmt::format(R"("{}")", to_text(ahead))).status, 200)
      << "a time in the future counts as now";
}

AE_TEST("api/the result in a resolution must match the result schema of the tool") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"strict"})");
  ASSERT_EQ(fixture.status(id), "parked");
  const Value job = fixture.get({"api", "jobs", id}).body;
  const std::string key(job["in_doubt"].items()[0].text("idempotency_key"));
  const auto resolve = [&](const std::string& rest) {
    return fixture.post(
        {"api", "jobs", id, "resolve"},
        fmt::format(R"({{"idempotency_key":"{}","resolution":"happened"{}}})", key, rest));
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

AE_TEST("api/happened without a result records null, and the log verifies") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"doubts"})");
  const Value job = fixture.get({"api", "jobs", id}).body;
  const std::string key(job["in_doubt"].items()[0].text("idempotency_key"));
  const ApiResponse response =
      fixture.post({"api", "jobs", id, "resolve"},
                   fmt::format(R"({{"idempotency_key":"{}","resolution":"happened"}})", key));
  EXPECT_EQ(response.status, 200);
  ASSERT_NE(response.body.find("result"), nullptr) << canonical(response.body);
  EXPECT_TRUE(response.body["result"].is_null()) << "the response has the recorded result";
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.status(id), "completed");
  EXPECT_EQ(fixture.get({"api", "jobs", id, "verify"}).body["ok"], Value(true));
}

AE_TEST("api/an outcome noted after the end of a job is recorded once and changes no status") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"doubts"})");
  const Value doubt = fixture.get({"api", "jobs", id}).body["in_doubt"].items()[0];
  const std::string key(doubt.text("idempotency_key"));
  const Path path{"api", "jobs", id, "resolve"};
  const auto resolve = [&](const std::string& rest) {
    return fixture.post(path, fmt::format(R"({{"idempotency_key":"{}",{}}})", key, rest));
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

AE_TEST("api/a repeated answer reports who answered first and when; an equal one is no error") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"doubts"})");
  const Value job = fixture.get({"api", "jobs", id}).body;
  const std::string key(job["in_doubt"].items()[0].text("idempotency_key"));
  const auto resolve = [&](const std::string& rest) {
    return fixture.post({"api", "jobs", id, "resolve"},
                        fmt::format(R"({{"idempotency_key":"{}",{}}})", key, rest));
  };
  const Value first_answer = Value::object({{"at", to_text(fixture.loop.now())}, {"by", "ada"}});
  ASSERT_EQ(resolve(R"("resolution":"happened","result":9)").status, 200);
  for (const char* same : {R"("resolution":"happened","result":9)",
                           R"("resolution":"happened","result":9,"try":1,"note":"again")"}) {
    const auto again = resolve(same);
    EXPECT_EQ(again.status, 200) << canonical(again.body);
    EXPECT_EQ(again.body["duplicate"], Value(true));
    EXPECT_EQ(again.body["applied"], Value(true));
    EXPECT_EQ(again.body["answered"], first_answer);
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
  EXPECT_EQ(fixture.post(signal, R"({"correlation_key":"go","payload":1})").body["answered"],
            first_answer);
  EXPECT_EQ(fixture.post(signal, R"({"correlation_key":"go","payload":2})").body["answered"],
            first_answer);

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
  EXPECT_EQ(raised.body["answered"], first_answer);
}

}  // namespace
}  // namespace ae::api
