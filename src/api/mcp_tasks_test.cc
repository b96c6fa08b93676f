// Tests of MCP calls that take long: waits, progress, elicitation, and tasks.
#include "api/mcp_server_fixture_test.h"

#include <fmt/core.h>

#include <memory>
#include <utility>

#include "api/mcp.h"
#include "json/json.h"
#include "mcp/protocol/message.h"
#include "testing/test.h"

namespace ae::api {
namespace {

constexpr std::string_view kWithTasks = R"({"extensions":{"io.modelcontextprotocol/tasks":{}}})";
constexpr std::string_view kWithBoth =
    R"({"elicitation":{"form":{}},"extensions":{"io.modelcontextprotocol/tasks":{}}})";

AE_TEST("mcp/a call waits for a timer; if its client disconnects, the job continues") {
  McpServerFixture fixture;
  const auto short_wait = fixture.start(kLegacy, "tools/call", R"("name":"sleeps","arguments":{})");
  EXPECT_FALSE(short_wait->answer) << "a timer needs no answer";
  fixture.loop.advance(std::chrono::seconds(12));
  ASSERT_TRUE(short_wait->answer);
  EXPECT_EQ(text_of(short_wait->answer->body["result"]), "done");
  const auto disconnected =
      fixture.start(kLegacy, "tools/call", R"("name":"sleeps","arguments":{})");
  disconnected->disconnect.request_stop();
  fixture.loop.advance(std::chrono::seconds(3));
  ASSERT_TRUE(disconnected->answer) << "the call ends when its client disconnects";
  const std::string job = job_in(disconnected->answer->body["result"]);
  EXPECT_NE(text_of(disconnected->answer->body["result"]).find("continues in the background"),
            std::string::npos);
  const auto sent = fixture.start(
      kLegacy, "tools/call",
      fmt::format(R"("name":"aetheris_job","arguments":{{"wait_seconds":45,"job_id":"{}"}})", job));
  fixture.loop.advance(std::chrono::seconds(12));
  ASSERT_TRUE(sent->answer);
  EXPECT_EQ(text_of(sent->answer->body["result"]), "done") << "the job continued";
}

AE_TEST("mcp/a call that waits releases the quota of its body and still returns a result") {
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
    auto quota = std::make_shared<int>();
    const std::weak_ptr<int> weak = quota;
    fixture.quota = std::move(quota);
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
                    fmt::format(R"("progressToken":"{}")", std::string(1025, 'p')));
  ASSERT_TRUE(over_long->answer);
  EXPECT_EQ(over_long->answer->body["error"]["code"], Value(mcp::kInvalidParams));
}

AE_TEST("mcp/progress is sent to clients that request it and never decreases") {
  McpServerFixture fixture;
  const auto sent = fixture.start(kModern, "tools/call", R"("name":"sleeps","arguments":{})", "{}",
                                  Role::admin, R"("progressToken":"p")");
  fixture.loop.advance(std::chrono::seconds(40));
  ASSERT_TRUE(sent->answer);
  double last = -1;
  std::size_t reports = 0;
  for (const Value& notification : sent->notifications) {
    if (notification.is_null()) continue;
    ++reports;
    EXPECT_EQ(notification.text("method"), "notifications/progress");
    EXPECT_EQ(notification["params"]["progressToken"], Value("p"));
    EXPECT_GT(notification["params"]["progress"].as_number(), last);
    last = notification["params"]["progress"].as_number();
    EXPECT_EQ(notification["params"]["total"], Value(2));
  }
  EXPECT_GE(reports, 2u);
  EXPECT_TRUE(fixture.start(kModern, "tools/call", R"("name":"echo","arguments":{})")
                  ->notifications.empty());
}

AE_TEST("mcp/a client with elicitation gets the question and repeats the call with the answer") {
  McpServerFixture fixture;
  const Value input_required = fixture.call(kModern, "buys", R"({"n": 7})", kWithElicitation);
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
  EXPECT_EQ(fixture.error(kModern, "tools/call", again(R"({"action":"yes"})"), kWithElicitation),
            mcp::kInvalidParams);
  EXPECT_EQ(
      fixture.error(kModern, "tools/call",
                    again(R"({"action":"accept","content":{"decision":"x"}})"), kWithElicitation),
      mcp::kInvalidParams);
  EXPECT_EQ(fixture.result(kModern, "tools/call", again(R"({"action":"cancel"})"), kWithElicitation)
                .text("resultType"),
            "input_required")
      << "no decision was made";
  const Value done = fixture.result(
      kModern, "tools/call", again(R"({"action":"accept","content":{"decision":"approve"}})"),
      kWithElicitation);
  EXPECT_EQ(done["structuredContent"]["n"], Value(7)) << canonical(done);
  EXPECT_EQ(fixture.jobs(), 1u) << "it is the same job";
  EXPECT_EQ(fixture.error(kModern, "tools/call",
                          R"("name":"echo","arguments":{},"requestState":)" +
                              canonical(input_required["requestState"]),
                          kWithElicitation),
            mcp::kInvalidParams)
      << "the request state belongs to another agent";
}

AE_TEST("mcp/a question has the key of its wait, and each round its own request state") {
  McpServerFixture fixture;
  const auto again = [&](const Value& input_required, const std::string& answers) {
    return R"("name":"interview","arguments":{},"requestState":)" +
           canonical(input_required["requestState"]) + R"(,"inputResponses":{)" + answers + "}";
  };
  const auto wrong = [&](const Value& input_required, const std::string& answers) {
    return fixture.error(kModern, "tools/call", again(input_required, answers), kWithElicitation);
  };
  const Value first = fixture.call(kModern, "interview", "{}", kWithElicitation);
  ASSERT_NE(first["inputRequests"].find("user_name"), nullptr) << canonical(first);
  for (const char* content : {R"({})", R"({"payload":1})", R"(5)", R"(null)"}) {
    EXPECT_EQ(
        wrong(first, fmt::format(R"("user_name":{{"action":"accept","content":{}}})", content)),
        mcp::kInvalidParams)
        << content;
  }
  // Answers to unknown questions are ignored. Without a form the members are the data.
  const Value second =
      fixture.result(kModern, "tools/call",
                     again(first, R"("color":{"action":"accept","content":{"payload":"red"}},)"
                                  R"("user_name":{"action":"accept","content":{"name":"Ada"}})"),
                     kWithElicitation);
  ASSERT_NE(second["inputRequests"].find("color"), nullptr) << canonical(second);
  EXPECT_EQ(second["inputRequests"].size(), 1u);
  EXPECT_NE(second["requestState"], first["requestState"]);
  const Value done =
      fixture.result(kModern, "tools/call",
                     again(second, R"("color":{"action":"accept","content":{"payload":"blue"}})"),
                     kWithElicitation);
  EXPECT_EQ(done["structuredContent"], Value("Ada likes blue")) << canonical(done);
  EXPECT_EQ(fixture.jobs(), 1u);
  const std::string state(first.text("requestState"));
  for (const std::string& other :
       {state + "-TAMPERED", state + ".", state.substr(0, 36), "." + state,
        std::string("missing.1"), std::string(".1"), std::string()}) {
    EXPECT_EQ(fixture.error(kModern, "tools/call",
                            R"("name":"interview","requestState":)" + canonical(Value(other)),
                            kWithElicitation),
              mcp::kInvalidParams)
        << other;
  }
}

AE_TEST("mcp/with tasks a quick call returns its result and a slow one a task") {
  McpServerFixture fixture;
  const Value quick = fixture.call(kModern, "echo", R"({"n":1})", kWithTasks);
  EXPECT_EQ(quick.text("resultType"), "complete") << canonical(quick);
  EXPECT_EQ(quick.find("taskId"), nullptr);
  EXPECT_EQ(fixture.call(kModern, "fails", "{}", kWithTasks)["isError"], Value(true));
  const auto slow =
      fixture.start(kModern, "tools/call", R"("name":"sleeps","arguments":{})", kWithTasks);
  EXPECT_FALSE(slow->answer) << "the call may end in time";
  fixture.loop.advance(kMcpTaskAfter);
  ASSERT_TRUE(slow->answer);
  const Value task = slow->answer->body["result"];
  EXPECT_EQ(task.text("resultType"), "task") << canonical(task);
  const std::string of = fmt::format(R"("taskId":"{}")", task.text("taskId"));
  fixture.loop.advance(std::chrono::seconds(11));
  EXPECT_EQ(fixture.result(kModern, "tasks/get", of, kWithTasks)["result"]["structuredContent"],
            Value("done"));
}

AE_TEST("mcp/with tasks a call whose job waits returns a task, whose result is read later") {
  McpServerFixture fixture;
  const Value task = fixture.call(kModern, "asks", "{}", kWithTasks);
  EXPECT_EQ(task.text("resultType"), "task");
  EXPECT_EQ(task.text("status"), "working");
  EXPECT_TRUE(task["ttlMs"].is_null());
  EXPECT_TRUE(task["pollIntervalMs"].is_integer());
  const std::string id(task.text("taskId"));
  const std::string of = fmt::format(R"("taskId":"{}")", id);
  EXPECT_EQ(fixture.result(kModern, "tasks/get", of, kWithTasks).text("status"), "working");
  fixture.call(kModern, "aetheris_signal",
               fmt::format(R"({{"job_id":"{}","key":"go","payload":5}})", id));
  const Value done = fixture.result(kModern, "tasks/get", of, kWithTasks);
  EXPECT_EQ(done.text("status"), "completed");
  EXPECT_EQ(done["result"]["structuredContent"], Value(5));
  EXPECT_EQ(done.text("resultType"), "complete");
  const std::string failed = job_in(fixture.call(kModern, "fails", "{}"));
  const Value seen =
      fixture.result(kModern, "tasks/get", fmt::format(R"("taskId":"{}")", failed), kWithTasks);
  EXPECT_EQ(seen.text("status"), "completed") << "an error of a tool is a result";
  EXPECT_EQ(seen["result"]["isError"], Value(true));
  // A client without tasks gets the missing capability; other ids are rejected.
  for (const char* method : {"tasks/get", "tasks/update", "tasks/cancel"}) {
    const Value body = fixture.request(kModern, method, of + R"(,"inputResponses":{})");
    EXPECT_EQ(body["error"]["code"], Value(mcp::kMissingCapability));
    EXPECT_TRUE(
        body["error"]["data"]["requiredCapabilities"]["extensions"][mcp::kTasks].is_object());
    for (const char* other : {R"("taskId":"missing")", R"("taskId":1)", R"("taskId":"../a")", ""}) {
      EXPECT_EQ(fixture.error(kModern, method, other, kWithTasks), mcp::kInvalidParams) << other;
    }
  }
}

AE_TEST("mcp/a task requests input, accepts each answer once, and is cancelled") {
  McpServerFixture fixture;
  const std::string id(fixture.call(kModern, "buys", R"({"n": 2})", kWithBoth).text("taskId"));
  const std::string of = fmt::format(R"("taskId":"{}")", id);
  const Value input_required = fixture.result(kModern, "tasks/get", of, kWithBoth);
  ASSERT_EQ(input_required.text("status"), "input_required") << canonical(input_required);
  EXPECT_EQ(fixture.result(kModern, "tasks/get", of, kWithTasks).text("status"), "working")
      << "a client without elicitation gets no question";
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
  const std::string of_wants = fmt::format(R"("taskId":"{}")", wants);
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
  const std::string of_more = fmt::format(R"("taskId":"{}")", more);
  fixture.result(kModern, "tasks/cancel", of_more, kWithTasks);
  EXPECT_EQ(fixture.result(kModern, "tasks/get", of_more, kWithTasks).text("status"), "cancelled");
  fixture.result(kModern, "tasks/cancel", of_more, kWithTasks);
}

AE_TEST("mcp/in 2025-11-25 a call returns a task only if it requests one") {
  McpServerFixture fixture;
  const Value made =
      fixture.result(kLegacy, "tools/call", R"("name":"asks","arguments":{},"task":{"ttl":60000})");
  ASSERT_TRUE(made["task"].is_object()) << canonical(made);
  EXPECT_TRUE(made["task"].find("ttl")->is_null());
  const std::string id(made["task"].text("taskId"));
  const std::string of = fmt::format(R"("taskId":"{}")", id);
  EXPECT_EQ(fixture.result(kLegacy, "tasks/get", of).text("status"), "working");
  EXPECT_EQ(fixture.result(kLegacy, "tasks/list")["tasks"].size(), 1u) << "the job that waits";
  EXPECT_EQ(fixture.error(kLegacy, "tasks/result", of), 409) << "it waits for a signal";
  EXPECT_EQ(fixture.result(kLegacy, "tasks/cancel", of).text("status"), "cancelled");
  EXPECT_EQ(fixture.error(kLegacy, "tasks/cancel", of), mcp::kInvalidParams);
  const Value result = fixture.result(kLegacy, "tasks/result", of);
  EXPECT_EQ(result["_meta"][mcp::kRelatedTask].text("taskId"), id);
  EXPECT_EQ(fixture.error(kLegacy, "tools/call",
                          R"("name":"aetheris_job","arguments":{"job_id":"a"},"task":{})"),
            mcp::kMethodNotFound);
}

}  // namespace
}  // namespace ae::api
