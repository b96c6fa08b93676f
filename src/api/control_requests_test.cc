// Tests of control requests: signal, message, cancel, pause, resume, budget and redact.
#include "api/api_fixture_test.h"

#include <fmt/core.h>

#include "json/json.h"
#include "testing/test.h"

namespace ae::api {
namespace {

AE_TEST("api/a signal is delivered once; a repeat is reported as a duplicate") {
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

AE_TEST("api/messages and early answers are buffered and acknowledged") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"listens"})");
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

AE_TEST("api/a repeated message is reported as a duplicate, not applied if its payload differs") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"listens"})");
  const Path path{"api", "jobs", id, "message"};
  const std::string_view rain = R"({"channel":"news","message_id":"m1","payload":{"rain":true}})";
  const auto first = fixture.post(path, rain);
  EXPECT_EQ(first.status, 202);
  EXPECT_EQ(first.body.find("duplicate"), nullptr);
  for (const bool is_applied : {false, true}) {
    if (is_applied) fixture.loop.run_ready();
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

AE_TEST("api/an early answer that is invalid for the wait in the plan is refused") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"listens"})");
  const std::size_t before = fixture.get({"api", "jobs", id, "events"}).body["events"].size();
  expect_problem(fixture.post({"api", "jobs", id, "signal"},
                              R"({"correlation_key":"ok","payload":{"note":"hm"},"buffer":true})"),
                 400, "input_invalid");
  EXPECT_EQ(fixture.get({"api", "jobs", id, "events"}).body["events"].size(), before);
}

AE_TEST("api/a cancelled job has ended and cannot be cancelled again") {
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

AE_TEST("api/a job is paused and resumed; resume ends no other kind of park") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"asks"})");
  expect_problem(fixture.post({"api", "jobs", id, "resume"}, ""), 409, "not_paused");
  EXPECT_EQ(fixture.post({"api", "jobs", id, "pause"}, R"({"reason":"check"})").status, 202);
  const Value job = fixture.get({"api", "jobs", id}).body;
  EXPECT_EQ(job["status"], "parked");
  EXPECT_EQ(job["parked"]["reason"], "check");
  EXPECT_EQ(job["parked"]["until"], "resume");
  EXPECT_EQ(fixture.post({"api", "jobs", id, "resume"}, "").status, 202);
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.status(id), "waiting");
  const auto doubt = fixture.make(R"({"agent":"doubts"})");
  const auto refused = fixture.post({"api", "jobs", doubt, "resume"}, "");
  expect_problem(refused, 409, "not_paused");
  EXPECT_NE(canonical(refused.body).find("resolve"), std::string::npos);
}

AE_TEST("api/a job that exhausts its budget is parked until the budget is raised") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"thrifty"})");
  fixture.loop.run_ready();
  Value job = fixture.get({"api", "jobs", id}).body;
  EXPECT_EQ(job["status"], "parked") << canonical(job);
  EXPECT_EQ(job["parked"]["reason"], "budget_exceeded");
  EXPECT_EQ(job["parked"]["command"], Value(fmt::format("aetheris budget {} --tool-calls 2", id)));
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

AE_TEST("api/redaction erases named values of an ended job and writes an audit entry") {
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
  expect_problem(fixture.post({"api", "jobs", "missing", "redact"}, R"({"reason":"x","seq":1})"),
                 404, "not_found");
  EXPECT_EQ(fixture.get({"api", "jobs", id}).body["input"]["n"], Value(4711))
      << "nothing was erased";
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

AE_TEST("api/redaction needs an ended job, and keeps the length of a map's list") {
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
  const ApiResponse erased = fixture.post({"api", "jobs", ends, "redact"},
                                          fmt::format(R"({{"reason":"x","seq":{}}})", list));
  EXPECT_EQ(erased.status, 200) << canonical(erased.body);
  EXPECT_EQ(fixture.get({"api", "jobs", ends, "verify"}).body["ok"], Value(true));
  const ApiResponse page = fixture.get({"api", "jobs", ends, "events"});
  for (const Value& event : page.body["events"].items()) {
    if (event["payload"].text("kind") != "branch") continue;
    EXPECT_EQ(canonical(event["payload"]["payload"]["left"]), R"({"items":2})");
  }
}

}  // namespace
}  // namespace ae::api
