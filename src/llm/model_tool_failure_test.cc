// Failures of ModelTool: invalid responses, error statuses, cut off connections, abandoned calls.
#include <fmt/core.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "llm/model_tool_fixture_test.h"

namespace ae::llm::model_tool_test {
namespace {

AE_TEST("model tool/an invalid answer is a success with a small record of the reason") {
  ModelFixture fixture;
  const auto reason = [&](const std::string& answer) {
    const Outcome outcome = fixture.call_once(answer);
    EXPECT_EQ(outcome.kind, OutcomeKind::success);
    EXPECT_TRUE(outcome.result.is_null());
    EXPECT_TRUE(outcome.invalid) << answer.substr(0, 200);
    const Value record = outcome.invalid.value_or(Value());
    EXPECT_EQ(record["invalid"], Value(true));
    EXPECT_LT(canonical(record).size(), 2000u);
    return std::string(record.text("reason"));
  };
  EXPECT_EQ(reason(raw_response(200, "{}")), "the answer has no choices");
  EXPECT_EQ(reason(raw_response(200, "{}", "text/plain")), "the answer has no choices");
  EXPECT_EQ(reason(raw_response(200, R"({"choices":[]})")), "the answer has no choices");
  EXPECT_EQ(reason(raw_response(200, R"({"choices":[{"delta":{}}]})")),
            "the answer has no message");
  EXPECT_NE(reason(raw_response(200, R"({"choices":[{"message":{"content":7}}]})")).find("content"),
            std::string::npos);
  EXPECT_NE(reason(raw_response(200, std::string(5 << 20, ' ') + kAnswer)).find("larger"),
            std::string::npos);
}

AE_TEST("model tool/a response that is not JSON is retryable, as a 502") {
  const struct {
    const char* name;
    std::string answer;
    const char* message;
  } cases[] = {
      {"a page with a title",
       raw_response(200, "<html><head><TITLE> Sign in, sk-canary-123 </TITLE></head></html>",
                    "text/html; charset=utf-8"),
       "the server at HOST is not a model provider: it sent text/html (Sign in, [secret KEY]): "
       "check `base_url`"},
      {"a page without a title", raw_response(200, "<p>Hello", "text/html"),
       "the server at HOST is not a model provider: it sent text/html (<p>Hello): "
       "check `base_url`"},
      {"a text", raw_response(200, "hello", "text/plain"),
       "the server at HOST is not a model provider: it sent text/plain (hello): check `base_url`"},
      {"bytes", raw_response(200, "\xff\x01", "application/octet-stream"),
       "the server at HOST is not a model provider: it sent application/octet-stream (\\xff\\x01): "
       "check `base_url`"},
      {"nothing", raw_response(200, ""),
       "the server at HOST is not a model provider: it sent nothing: check `base_url`"},
      {"a truncated response", raw_response(200, R"({"choices":[)"),
       "the answer is invalid JSON: the text ends where a value is expected at byte 12"},
  };
  for (const bool stream : {true, false}) {
    for (const auto& c : cases) {
      ModelFixture fixture;
      RawHttpServer server(RawHttpServer::always(c.answer));
      const Value settings = ModelFixture::settings(server).with("stream", stream);
      const Outcome outcome = fixture.call(settings, make_call(make_request()));
      EXPECT_EQ(outcome.kind, OutcomeKind::unknown) << c.name;
      EXPECT_EQ(outcome.error_code, "http_502") << c.name;
      EXPECT_TRUE(outcome.retryable && !outcome.definite) << c.name;
      EXPECT_TRUE(outcome.result.is_null() && !outcome.invalid) << c.name;
      EXPECT_EQ(with_host(c.message, server), outcome.error_message) << c.name;
    }
  }
}

AE_TEST("model tool/each error status is classified and reported with a message and a hint") {
  const struct {
    int status;
    OutcomeKind kind;
    bool definite, retryable;
    const char* hint = ".";
  } cases[] = {{302, OutcomeKind::unknown, false, false, "; check `base_url` (HOST): it redirects"},
               {400, OutcomeKind::failure, true, false},
               {401, OutcomeKind::failure, true, false, "; its key is secret:KEY"},
               {403, OutcomeKind::failure, true, false, "; its key is secret:KEY"},
               {404, OutcomeKind::failure, true, false, "; check `base_url` (HOST) and `model`"},
               {429, OutcomeKind::failure, true, true},
               {500, OutcomeKind::unknown, false, true},
               {503, OutcomeKind::unknown, false, true},
               {529, OutcomeKind::unknown, false, true}};
  ModelFixture fixture;
  for (const auto& c : cases) {
    RawHttpServer server(RawHttpServer::always(raw_response(
        c.status,
        R"({"error": {"type": "invalid_request_error", "message": "Not so, says sk-canary-123."}})",
        "application/json", "Retry-After: 7\r\n")));
    const Outcome outcome = fixture.call(ModelFixture::settings(server), make_call(make_request()));
    EXPECT_EQ(outcome.kind, c.kind) << c.status;
    EXPECT_EQ(outcome.definite, c.definite) << c.status;
    EXPECT_EQ(outcome.retryable, c.retryable) << c.status;
    EXPECT_EQ(outcome.error_code, fmt::format("http_{}", c.status));
    EXPECT_EQ(outcome.error_message,
              fmt::format("the server answered {}: Not so, says [secret KEY]{}", c.status,
                          with_host(c.hint, server)));
    EXPECT_EQ(outcome.retry_after, Duration(7s));
  }
}

AE_TEST("model tool/a missing key or an unreachable server is reported with what to check") {
  ModelFixture fixture;
  RawHttpServer server(RawHttpServer::always(raw_response(401, "{}")));
  const Value settings = Value::object({{"base_url", server.url("/v1")}});
  EXPECT_EQ(fixture.call(settings, make_call(make_request())).error_message,
            "the server answered 401: {}; the model has no `api_key`");
  for (int i = 0; i < 2; ++i) {
    const Outcome outcome = fixture.call(Value::object({{"base_url", "http://127.0.0.1:1/v1"}}),
                                         make_call(make_request()));
    EXPECT_EQ(outcome.error_code, "connect");
    EXPECT_EQ(outcome.error_message,
              "Failed to connect to 127.0.0.1 port 1: Couldn't connect to server; "
              "check `base_url` (127.0.0.1:1)");
  }
}

AE_TEST("model tool/a cut off response or a timeout is unknown and retryable") {
  const struct {
    const char* name;
    RawHttpServer::Script script;
    OutcomeKind kind;
    const char* code;
  } cases[] = {
      {"cut off",
       [](Conversation& c) {
         c.read_request();
         c.send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n");
         c.send(std::string(kAnswer).substr(0, 60));
       },
       OutcomeKind::unknown, "reset"},
      {"reset",
       [](Conversation& c) {
         c.read_request();
         c.reset();
       },
       OutcomeKind::unknown, "reset"},
      {"hang",
       [](Conversation& c) {
         c.read_request();
         c.hang();
       },
       OutcomeKind::timeout, "timeout"},
  };
  ModelFixture fixture;
  for (const auto& c : cases) {
    RawHttpServer server(c.script);
    Call call = make_call(make_request());
    call.timeout = 100ms;
    const Outcome outcome = fixture.call(ModelFixture::settings(server), std::move(call));
    EXPECT_EQ(outcome.kind, c.kind) << c.name;
    EXPECT_EQ(outcome.error_code, c.code) << c.name;
    EXPECT_FALSE(outcome.definite) << c.name;
    EXPECT_TRUE(outcome.retryable) << c.name;
    EXPECT_EQ(server.arrivals(), 1) << c.name;
  }
}

AE_TEST("model tool/an abandoned call completes once, also if its tool is destroyed") {
  RawHttpServer server([](Conversation& c) {
    c.read_request();
    c.hang();
  });
  ModelFixture fixture;
  auto tool = fixture.model(ModelFixture::settings(server));
  std::move_only_function<void()> poll_arrivals = [&] {
    if (server.arrivals() == 0) {
      fixture.loop.after(1ms, [&] { poll_arrivals(); });
    } else {
      tool->abandon(InvocationId("fedcba9876543210"), 1);
      tool.reset();
    }
  };
  poll_arrivals();
  const Outcome outcome = fixture.perform(*tool, make_call(make_request()));
  EXPECT_EQ(outcome.kind, OutcomeKind::unknown);
  EXPECT_EQ(outcome.error_code, "abandoned");
}

AE_TEST("model tool/an abandoned call closes its connection") {
  std::atomic<bool> closed = false;
  RawHttpServer server([&](Conversation& c) {
    c.read_request();
    c.hang();  // until the client disconnects
    closed = true;
  });
  ModelFixture fixture;
  auto tool = fixture.model(ModelFixture::settings(server));
  std::move_only_function<void()> poll_arrivals = [&] {
    if (server.arrivals() == 0) {
      fixture.loop.after(1ms, [&] { poll_arrivals(); });
      return;
    }
    EXPECT_FALSE(closed);
    tool->abandon(InvocationId("fedcba9876543210"), 1);
  };
  poll_arrivals();
  EXPECT_EQ(fixture.perform(*tool, make_call(make_request())).error_code, "abandoned");
  for (int i = 0; i < 5000 && !closed; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(closed);
}

}  // namespace
}  // namespace ae::llm::model_tool_test
