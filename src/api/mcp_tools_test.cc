// Tests of MCP tools: agents as tools, idempotency, errors, answers to questions, and roles.
#include "api/mcp_server_fixture_test.h"

#include <fmt/core.h>

#include "base/utf8.h"
#include "json/json.h"
#include "mcp/protocol/message.h"
#include "testing/test.h"

namespace ae::api {
namespace {

AE_TEST("mcp/agents and built-in tools are listed in a stable order") {
  McpServerFixture fixture;
  for (const Revision revision : kAllRevisions) {
    const Value listed = fixture.result(revision, "tools/list");
    std::string names;
    for (const Value& tool : listed["tools"].items()) {
      names += fmt::format("{} ", tool.text("name"));
      EXPECT_EQ(tool["inputSchema"].text("type"), "object") << tool.text("name");
      EXPECT_FALSE(tool.text("description").empty());
      EXPECT_EQ(tool["annotations"].is_object(), revision >= Revision::r2025_03_26);
    }
    EXPECT_EQ(
        names,
        "aetheris_answer aetheris_cancel aetheris_job aetheris_requests aetheris_signal asks buys "
        "echo fails interview number sleeps wants without ")
        << "an agent with the name of a built-in tool is not listed";
    EXPECT_EQ(listed["ttlMs"].is_integer(), mcp::is_modern(revision));
  }
  const Value tools = fixture.result(kLegacy, "tools/list")["tools"];
  EXPECT_EQ(tools.items()[7].text("description"), "Returns its input");
  EXPECT_EQ(tools.items()[7]["annotations"]["readOnlyHint"], Value(false));
  EXPECT_EQ(tools.items()[7]["execution"].text("taskSupport"), "optional");
  EXPECT_EQ(tools.items()[10]["inputSchema"]["properties"]["input"].text("type"), "integer");
  EXPECT_EQ(fixture.result(kLegacy, "tools/list", R"("cursor":"after:fails")")["tools"].size(), 5u);
  for (const char* cursor : {"\"x\"", "1", "[]"}) {
    EXPECT_EQ(fixture.error(kLegacy, "tools/list", R"("cursor":)" + std::string(cursor)),
              mcp::kInvalidParams);
  }
}

AE_TEST("mcp/a call creates a job and returns its result") {
  McpServerFixture fixture;
  for (const Revision revision : kAllRevisions) {
    const Value result = fixture.call(revision, "echo", R"({"n": 3})");
    EXPECT_EQ(result["isError"], Value(false));
    EXPECT_EQ(text_of(result), "{\n  \"n\": 3\n}");
    const bool structured = revision >= Revision::r2025_06_18;
    EXPECT_EQ(result["structuredContent"]["n"], structured ? Value(3) : Value());
    EXPECT_FALSE(job_in(result).empty());
  }
  EXPECT_EQ(fixture.jobs(), std::size(kAllRevisions));
  EXPECT_EQ(fixture.call(kModern, "number", R"({"input": 4})")["structuredContent"], Value(5));
  EXPECT_EQ(fixture.call(kLegacy, "number", R"({"input": 4})")["structuredContent"],
            Value::object({{"result", 5}}))
      << "legacy revisions accept objects only";
}

AE_TEST("mcp/the same key returns the same job; another input is an error of the tool") {
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

AE_TEST("mcp/an invalid call is a protocol error; invalid arguments are an error of the tool") {
  McpServerFixture fixture;
  for (const Revision revision : {kLegacy, kModern}) {
    for (const char* params :
         {R"("name":"missing")", R"("name":"aetheris_nothing")", R"("name":"aetheris_jobs")",
          R"("name":1)", R"("arguments":{})", R"("name":"echo","arguments":[1])", R"("name":"")",
          R"("name":"echo","requestState":1)"}) {
      EXPECT_EQ(fixture.error(revision, "tools/call", params), mcp::kInvalidParams) << params;
    }
    EXPECT_EQ(fixture.call(revision, "echo", R"({"n": "x"})")["structuredContent"].text("code"),
              "input_invalid");
    EXPECT_EQ(fixture.call(revision, "number", R"({"n": 1})")["isError"], Value(true));
    EXPECT_EQ(fixture.result(revision, "tools/call", R"("name":"aetheris_job")")["isError"],
              Value(true));
    const Value strange = fixture.request(
        revision, "tools/call", fmt::format("\"name\":\"{}\xC3\xA9\"", std::string(79, 'x')));
    EXPECT_TRUE(is_utf8(strange["error"].text("message")));
    for (const char* arguments :
         {"{}", R"({"job_id": 1})", R"({"job_id": "../x"})", R"({"job_id": "a", "more": 1})",
          R"({"job_id": "missing"})", R"({"job_id": "missing", "wait_seconds": 46})"}) {
      EXPECT_EQ(fixture.call(revision, "aetheris_job", arguments)["isError"], Value(true))
          << arguments;
    }
  }
  EXPECT_EQ(fixture.jobs(), 0u);
}

AE_TEST("mcp/a failed job is an error of the tool, with its code") {
  McpServerFixture fixture;
  const Value result = fixture.call(kModern, "fails", "{}");
  EXPECT_EQ(result["isError"], Value(true));
  EXPECT_EQ(result["structuredContent"].text("status"), "failed");
  EXPECT_NE(text_of(result).find("no_money"), std::string::npos);
  const Value view =
      fixture.call(kModern, "aetheris_job", fmt::format(R"({{"job_id":"{}"}})", job_in(result)));
  EXPECT_EQ(view["isError"], Value(false)) << "reading a failed job is not an error";
}

AE_TEST("mcp/a call whose job waits returns at once, with the wait and what answers it") {
  McpServerFixture fixture;
  const Value waits = fixture.call(kLegacy, "asks", "{}");
  const std::string job = job_in(waits);
  EXPECT_EQ(waits["isError"], Value(false));
  EXPECT_EQ(waits["structuredContent"].text("status"), "waiting");
  EXPECT_NE(
      text_of(waits).find(fmt::format(R"(aetheris_signal {{"job_id": "{}", "key": "go")", job)),
      std::string::npos)
      << text_of(waits);
  const std::string signal = R"({"job_id":")" + job + R"(","key":"go","payload":{"a":1}})";
  EXPECT_EQ(fixture.call(kLegacy, "aetheris_signal", signal)["isError"], Value(false));
  const Value done =
      fixture.call(kLegacy, "aetheris_job", fmt::format(R"({{"job_id":"{}"}})", job));
  EXPECT_EQ(done["structuredContent"], Value::object({{"a", 1}}));
  const Value late =
      fixture.call(kLegacy, "aetheris_cancel", fmt::format(R"({{"job_id":"{}"}})", job));
  EXPECT_EQ(late["structuredContent"].text("code"), "job_terminal");
}

AE_TEST("mcp/a job that waits lists an abandoned call after its wait") {
  McpServerFixture fixture;
  const std::string text(text_of(fixture.call(kLegacy, "without", "{}")));
  const std::size_t signal = text.find("\n- "),
                    call = text.find("\nIt does not wait for the call of tool \"lost\"");
  ASSERT_NE(call, std::string::npos) << text;
  EXPECT_LT(signal, call) << text;
  EXPECT_EQ(text.find("finds out whether"), std::string::npos) << text;
}

AE_TEST("mcp/aetheris_answer answers the open question of a job") {
  McpServerFixture fixture;
  const std::string job = job_in(fixture.call(kLegacy, "buys", R"({"n": 5})"));
  const std::string of = fmt::format(R"({{"job_id":"{}")", job);
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
  EXPECT_EQ(again["isError"], Value(false)) << "an equal answer is a duplicate";
  EXPECT_EQ(again["structuredContent"]["duplicate"], Value(true)) << canonical(again);
  EXPECT_TRUE(again["structuredContent"]["answered"].is_object());
  const Value other = fixture.call(kLegacy, "aetheris_answer", of + R"(,"decision":"reject"})");
  EXPECT_EQ(other["isError"], Value(true)) << "a different answer is refused";
  EXPECT_EQ(other["structuredContent"]["outcome"], Value("approved"));
  const std::string wants = job_in(fixture.call(kLegacy, "wants", "{}"));
  const std::string data = R"({"job_id":")" + wants + R"(","payload":{"size":"XL"}})";
  EXPECT_EQ(fixture.call(kLegacy, "aetheris_answer", data)["isError"], Value(false));
  EXPECT_EQ(fixture.call(kLegacy, "aetheris_job",
                         fmt::format(R"({{"job_id":"{}"}})", wants))["structuredContent"],
            Value::object({{"size", "XL"}}));
  EXPECT_EQ(fixture.call(kLegacy, "aetheris_answer", data)["isError"], Value(false));
  EXPECT_EQ(fixture.call(kLegacy, "aetheris_answer",
                         R"({"job_id":")" + wants + R"(","payload":{"size":"S"}})")["isError"],
            Value(true));
}

AE_TEST("mcp/aetheris_requests lists the open requests of all jobs, or of one") {
  McpServerFixture fixture;
  const auto list = [&](std::string_view arguments) {
    return fixture.call(kLegacy, "aetheris_requests", arguments);
  };
  EXPECT_EQ(text_of(list("{}")), "There are no open requests.\n");
  const std::string job = job_in(fixture.call(kLegacy, "buys", R"({"n": 5})"));
  const std::string other = job_in(fixture.call(kLegacy, "wants", "{}"));
  fixture.call(kLegacy, "asks", "{}");
  const Value all = list("{}");
  EXPECT_EQ(all["structuredContent"]["requests"].size(), 2u) << canonical(all);
  for (const std::string& id : {job, other}) {
    EXPECT_NE(text_of(all).find(fmt::format(R"(aetheris_answer {{"job_id": "{}")", id)),
              std::string::npos)
        << text_of(all);
  }
  const Value one = list(fmt::format(R"({{"job_id":"{}"}})", other));
  EXPECT_EQ(one["structuredContent"]["requests"].size(), 1u) << canonical(one);
  EXPECT_EQ(list(R"({"kind":"call"})")["structuredContent"]["requests"].size(), 1u);
  for (const char* wrong : {R"({"kind":"other"})", R"({"kind":1})", R"({"job_id":"a/b"})"}) {
    EXPECT_EQ(list(wrong)["isError"], Value(true)) << wrong;
  }
}

AE_TEST("mcp/a repeated answer by id is a duplicate; a different one is an error") {
  McpServerFixture fixture;
  const std::string job = job_in(fixture.call(kLegacy, "buys", R"({"n": 5})"));
  const std::string other = job_in(fixture.call(kLegacy, "buys", R"({"n": 6})"));
  const Value seen =
      fixture.call(kLegacy, "aetheris_job", fmt::format(R"({{"job_id":"{}"}})", job));
  const std::string id(seen["structuredContent"]["waits"].items()[0].text("approval_id"));
  ASSERT_FALSE(id.empty()) << canonical(seen);
  const auto answer = [&](const std::string& of, const std::string& decision) {
    return fixture.call(
        kLegacy, "aetheris_answer",
        fmt::format(R"({{"job_id":"{}","approval_id":"{}","decision":"{}"}})", of, id, decision));
  };
  EXPECT_EQ(answer(other, "approve")["isError"], Value(true)) << "of another job";
  EXPECT_EQ(answer(job, "reject")["isError"], Value(false));
  const Value again = answer(job, "reject");
  EXPECT_EQ(again["isError"], Value(false)) << canonical(again);
  EXPECT_EQ(again["structuredContent"]["duplicate"], Value(true));
  EXPECT_EQ(answer(job, "approve")["isError"], Value(true));
}

AE_TEST("mcp/roles are those of the routes: a viewer calls no tool, an operator answers nothing") {
  McpServerFixture fixture;
  const std::string echo = R"("name":"echo","arguments":{})";
  EXPECT_EQ(fixture.result(kModern, "tools/list", "", "{}", Role::viewer)["tools"].size(), 14u);
  const auto refused = fixture.start(kModern, "tools/call", echo, "{}", Role::viewer);
  EXPECT_EQ(refused->answer->body["error"]["code"], Value(403));
  EXPECT_EQ(refused->answer->body["error"]["data"].text("code"), "forbidden");
  EXPECT_EQ(refused->answer->status, 403);
  EXPECT_EQ(fixture.error(kLegacy, "tools/call", echo, "{}", Role::approver), 403);
  EXPECT_EQ(fixture.error(kLegacy, "resources/list", "", "{}", Role::worker), 403);
  EXPECT_EQ(fixture.jobs(), 0u);
  const std::string job =
      job_in(fixture.call(kModern, "buys", R"({"n": 1})", kWithElicitation, Role::operator_));
  ASSERT_FALSE(job.empty()) << "a client that may not decide gets no question";
  const std::string yes = fmt::format(
      R"("name":"aetheris_answer","arguments":{{"decision":"approve","job_id":"{}"}})", job);
  EXPECT_EQ(fixture.error(kModern, "tools/call", yes, "{}", Role::operator_), 403);
  EXPECT_EQ(fixture.error(kModern, "tools/call", yes, "{}", Role::viewer), 403);
  EXPECT_EQ(fixture.result(kModern, "tools/call", yes, "{}", Role::approver)["isError"],
            Value(false));
}

}  // namespace
}  // namespace ae::api
