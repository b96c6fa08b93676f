// Outcomes of HttpTool: results, status codes, faulty servers, and calls that are not sent.
#include <fmt/core.h>
#include <sys/resource.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "base/hash.h"
#include "tools/http/classify_response.h"
#include "tools/http/http_tool_fixture_test.h"

namespace ae::tools::http_test {
namespace {

AE_TEST("http tool/a result is JSON by content type, null if empty, else a string") {
  HttpToolFixture fixture;
  const auto result = [&](std::string body, const char* type) {
    RawHttpServer server(RawHttpServer::always(raw_response(200, body, type)));
    const Outcome outcome = fixture.call(post_tool(server), make_call());
    EXPECT_EQ(outcome.kind, OutcomeKind::success);
    EXPECT_FALSE(outcome.invalid) << body;
    EXPECT_EQ(server.arrivals(), 1);
    return canonical(outcome.result);
  };
  EXPECT_EQ(result(R"( {"b":1,"a":[null]} )", "application/json"), R"({"a":[null],"b":1})");
  EXPECT_EQ(result("1", "Application/JSON; charset=utf-8"), "1");
  EXPECT_EQ(result("1", "application/problem+json"), "1");
  EXPECT_EQ(result("", "application/json"), "null");
  EXPECT_EQ(result("", "text/plain"), "null");
  EXPECT_EQ(result("1", "text/plain"), R"("1")");
  EXPECT_EQ(result("{}", "application/jsonp"), R"("{}")");
  EXPECT_EQ(result("\xc3\xa4\n", "text/plain"), "\"\xc3\xa4\\n\"");
}

AE_TEST("http tool/result full has status, headers and body, with big integers as strings") {
  RawHttpServer server(RawHttpServer::always(raw_response(
      201, "9007199254740993", "application/json", "X-A: 1\r\nx-a: 2\r\nX-B: \xff\r\n")));
  HttpToolFixture fixture;
  const Value tool = post_tool(server).with("result", "full").with("numbers", "string");
  const Outcome outcome = fixture.call(tool, make_call());
  EXPECT_EQ(outcome.result["status"], Value(201));
  EXPECT_EQ(outcome.result["headers"]["x-a"], Value("1, 2"));
  EXPECT_EQ(outcome.result["headers"]["x-b"], Value("\\xff"));
  EXPECT_EQ(outcome.result["body"], Value("9007199254740993"));
}

AE_TEST("http tool/a 2xx with an invalid body is a success with a small escaped record") {
  HttpToolFixture fixture;
  const auto invalid = [&](std::string answer, Value tool_change = Value::object({})) {
    RawHttpServer server(RawHttpServer::always(std::move(answer)));
    Value tool = post_tool(server);
    for (const auto& [key, value] : tool_change.members()) tool = tool.with(key, value);
    const Outcome outcome = fixture.call(tool, make_call());
    EXPECT_EQ(outcome.kind, OutcomeKind::success);
    EXPECT_EQ(server.arrivals(), 1);
    EXPECT_TRUE(outcome.invalid);
    return outcome.invalid.value_or(Value());
  };
  Value record = invalid(raw_response(200, "{\"a\":1,\x1b[31m", "application/json"));
  EXPECT_EQ(record["invalid"], Value(true));
  EXPECT_EQ(record["size"], Value(12));
  EXPECT_EQ(record["head"], Value("{\"a\":1,\\x1b[31m"));
  EXPECT_EQ(record["sha256"], Value(to_hex(sha256("{\"a\":1,\x1b[31m"))));
  EXPECT_NE(record.text("reason").find("JSON"), std::string::npos);
  EXPECT_EQ(invalid(raw_response(200, "9007199254740993"))["head"], Value("9007199254740993"));
  EXPECT_EQ(invalid(raw_response(200, "a\xff", "text/plain"))["head"], Value("a\\xff"));
  invalid(raw_response(200, std::string(100, '[') + std::string(100, ']')));
  invalid(raw_response(200, R"({"a":1,"a":2})"));
  invalid(raw_response(200, "{}", "application/json", "Content-Encoding: gzip\r\n"));
  record = invalid(raw_response(200, std::string(1000, 'x'), "text/plain"),
                   Value::object({{"output_max", 999}}));
  EXPECT_EQ(record["size"], Value(1000));
  EXPECT_EQ(record["head"], Value(std::string(256, 'x')));
  EXPECT_NE(record.text("reason").find("999"), std::string::npos);
}

AE_TEST("http tool/a response of 1 GiB is a success with invalid output, in bounded memory") {
  RawHttpServer server([](Conversation& c) {
    c.read_request();
    const std::string piece(1 << 16, 'x');
    c.send("HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n");
    for (int i = 0; i < 1 << 14 && c.send(piece); ++i) {
    }
  });
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  HttpToolFixture fixture;
  const Outcome outcome = fixture.call(post_tool(server), make_call());
  getrusage(RUSAGE_SELF, &after);
  EXPECT_EQ(outcome.kind, OutcomeKind::success);
  ASSERT_TRUE(outcome.invalid);
  EXPECT_EQ((*outcome.invalid)["size"], Value((1 << 20) + 1));
  EXPECT_EQ((*outcome.invalid)["sha256"], Value(to_hex(sha256(std::string((1 << 20) + 1, 'x')))));
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 << 10) << "KiB more than before";
  EXPECT_EQ(server.arrivals(), 1);
}

AE_TEST("http tool/every status is classified as in SPEC 6, and the request is sent once") {
  const struct {
    int status;
    OutcomeKind kind;
    bool definite, retryable;
  } cases[] = {
      {200, OutcomeKind::success, false, false}, {204, OutcomeKind::success, false, false},
      {300, OutcomeKind::unknown, false, false}, {302, OutcomeKind::unknown, false, false},
      {307, OutcomeKind::unknown, false, false}, {400, OutcomeKind::failure, true, false},
      {401, OutcomeKind::failure, true, false},  {402, OutcomeKind::failure, true, false},
      {404, OutcomeKind::failure, true, false},  {408, OutcomeKind::unknown, false, true},
      {409, OutcomeKind::unknown, false, true},  {417, OutcomeKind::failure, true, false},
      {425, OutcomeKind::unknown, false, true},  {429, OutcomeKind::failure, true, true},
      {499, OutcomeKind::failure, true, false},  {500, OutcomeKind::unknown, false, true},
      {503, OutcomeKind::unknown, false, true},  {599, OutcomeKind::unknown, false, true},
      {504, OutcomeKind::failure, true, true},   {304, OutcomeKind::failure, true, false},
  };
  HttpToolFixture fixture;
  for (const auto& c : cases) {
    RawHttpServer server(RawHttpServer::always(
        raw_response(c.status, c.status == 204 || c.status == 304 ? "" : "\"no\"",
                     "application/json", "Retry-After: 3\r\nLocation: http://127.0.0.1:1/\r\n")));
    const Value tool = post_tool(server).with("definite_failures", Value::array({504, 304}));
    const Outcome outcome = fixture.call(tool, make_call());
    EXPECT_EQ(outcome.kind, c.kind) << c.status;
    EXPECT_EQ(outcome.definite, c.definite) << c.status;
    EXPECT_EQ(outcome.retryable, c.retryable) << c.status;
    const bool open = c.status == 409 || c.status == 425 || c.status == 503;
    EXPECT_EQ(outcome.settled, outcome.kind == OutcomeKind::unknown && !open) << c.status;
    EXPECT_EQ(outcome.retry_after, Duration(3s));
    if (c.kind != OutcomeKind::success) {
      EXPECT_EQ(outcome.error_code, fmt::format("http_{}", c.status));
      EXPECT_NE(outcome.error_message.find(std::to_string(c.status)), std::string::npos);
    }
    EXPECT_EQ(server.arrivals(), 1) << c.status;
  }
}

AE_TEST("http tool/a response settles the call only if it is complete and not from a gateway") {
  const auto classify = [](int status, net::HttpPhase phase) {
    net::HttpResult answer;
    answer.status = status;
    answer.phase = phase;
    return classify_response(answer, {}, {});
  };
  EXPECT_TRUE(classify(500, net::HttpPhase::complete).settled);
  EXPECT_EQ(classify(500, net::HttpPhase::complete).kind, OutcomeKind::unknown);
  EXPECT_FALSE(classify(500, net::HttpPhase::cut_off).settled);
  for (const int status : {502, 503, 504, 520, 524, 530, 409, 425}) {
    EXPECT_FALSE(classify(status, net::HttpPhase::complete).settled) << status;
  }
}

AE_TEST(
    "http tool/an error after the send gives an unknown outcome, and the request is sent once") {
  const struct {
    const char* name;
    RawHttpServer::Script script;
    OutcomeKind kind;
    const char* code;
  } cases[] = {
      {"close after the request", [](Conversation& c) { c.read_request(); }, OutcomeKind::unknown,
       "reset"},
      {"reset after the request",
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
      {"trickle",
       [](Conversation& c) {
         c.read_request();
         c.send("HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n");
         while (c.wait(3ms) && c.send("x")) {
         }
       },
       OutcomeKind::timeout, "timeout"},
      {"truncated",
       [](Conversation& c) {
         c.read_request();
         c.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}");
       },
       OutcomeKind::unknown, "reset"},
      {"a cut off failure",
       [](Conversation& c) {
         c.read_request();
         c.send("HTTP/1.1 402 No\r\nContent-Length: 10\r\n\r\n{}");
       },
       OutcomeKind::unknown, "reset"},
      {"1xx flood",
       [](Conversation& c) {
         c.read_request();
         while (c.send("HTTP/1.1 102 Processing\r\n\r\n")) {
         }
       },
       OutcomeKind::unknown, "reset"},
      {"1xx only",
       [](Conversation& c) {
         c.read_request();
         c.send("HTTP/1.1 100 Continue\r\n\r\n");
       },
       OutcomeKind::unknown, "reset"},
      {"nonsense", [](Conversation& c) { c.read_request(), c.send("hello\r\n\r\n"); },
       OutcomeKind::unknown, "reset"},
  };
  HttpToolFixture fixture;
  for (const auto& c : cases) {
    for (const bool is_read_only : {false, true}) {
      RawHttpServer server(c.script);
      Call call = make_call();
      call.timeout = 100ms;
      const Outcome outcome = fixture.call(post_tool(server), std::move(call), is_read_only);
      EXPECT_EQ(outcome.kind, c.kind) << c.name;
      EXPECT_EQ(outcome.error_code, c.code) << c.name;
      EXPECT_FALSE(outcome.definite);
      EXPECT_TRUE(outcome.retryable);
      EXPECT_FALSE(outcome.error_message.empty());
      EXPECT_EQ(server.arrivals(), 1) << c.name;
    }
  }
}

AE_TEST("http tool/a request on a reused connection that closes is never resent") {
  for (const bool is_read_only : {false, true}) {
    RawHttpServer server([](Conversation& c) {
      if (c.read_request()) c.send(raw_response(200, "{}"));
      c.read_request();
    });
    HttpToolFixture fixture;
    auto tool = fixture.make(post_tool(server), is_read_only);
    ASSERT_TRUE(tool);
    EXPECT_EQ(fixture.perform(**tool, make_call()).kind, OutcomeKind::success);
    const Outcome second = fixture.perform(**tool, make_call());
    EXPECT_EQ(second.kind, is_read_only ? OutcomeKind::unknown : OutcomeKind::success);
    EXPECT_EQ(server.arrivals(), 2);
  }
}

AE_TEST("http tool/an unreachable server is a definite failure") {
  int port;
  {
    RawHttpServer gone([](Conversation&) {});
    port = gone.port();
  }
  HttpToolFixture fixture;
  const auto call = [&](std::string url) {
    return fixture.call(Value::object({{"method", "POST"}, {"url", std::move(url)}}), make_call());
  };
  for (const std::string& url :
       {fmt::format("http://127.0.0.1:{}/", port), std::string("http://nobody.invalid/x")}) {
    const Outcome outcome = call(url);
    EXPECT_EQ(outcome.kind, OutcomeKind::failure);
    EXPECT_EQ(outcome.error_code, "connect");
    EXPECT_TRUE(outcome.definite);
    EXPECT_TRUE(outcome.retryable);
  }
  RawHttpServer plain([](Conversation& c) { c.send("hello\r\n"); });
  const Outcome outcome = call(fmt::format("https://127.0.0.1:{}/", plain.port()));
  EXPECT_EQ(outcome.error_code, "tls");
  EXPECT_TRUE(outcome.definite);
  EXPECT_TRUE(outcome.retryable);
}

AE_TEST("http tool/a call after send_within is not sent") {
  RawHttpServer server(RawHttpServer::always(raw_response(200)));
  HttpToolFixture fixture;
  for (const Duration within : {Duration(0), Duration(-1s)}) {
    Call call = make_call();
    call.send_within = within;
    const Outcome outcome = fixture.call(post_tool(server), std::move(call));
    EXPECT_EQ(outcome.kind, OutcomeKind::failure);
    EXPECT_EQ(outcome.error_code, "not_sent");
    EXPECT_TRUE(outcome.definite);
  }
  EXPECT_EQ(server.arrivals(), 0);
}

AE_TEST("http tool/an abandoned call is unknown if it was sent, and completes once") {
  RawHttpServer server([](Conversation& c) {
    c.read_request();
    c.hang();
  });
  HttpToolFixture fixture;
  auto tool = fixture.make(post_tool(server));
  ASSERT_TRUE(tool);
  (*tool)->abandon(InvocationId("fedcba9876543210"), 2);  // no such call yet
  std::move_only_function<void()> poll_arrivals = [&] {
    if (server.arrivals() == 0) {
      fixture.loop.after(1ms, [&] { poll_arrivals(); });
    } else {
      (*tool)->abandon(InvocationId("fedcba9876543210"), 1);  // a different try
      (*tool)->abandon(InvocationId("fedcba9876543210"), 2);
      (*tool)->abandon(InvocationId("fedcba9876543210"), 2);
    }
  };
  poll_arrivals();
  Outcome outcome = fixture.perform(**tool, make_call());
  EXPECT_EQ(outcome.kind, OutcomeKind::unknown);
  EXPECT_EQ(outcome.error_code, "abandoned");
  // Abandoned at once: not sent, or unknown if the send was faster.
  fixture.loop.post([&] { (*tool)->abandon(InvocationId("fedcba9876543210"), 2); });
  outcome = fixture.perform(**tool, make_call());
  EXPECT_TRUE(outcome.error_code == "not_sent" || outcome.error_code == "abandoned");
}

AE_TEST("http tool/an error shows the response body, truncated and escaped") {
  RawHttpServer server(
      RawHttpServer::always(raw_response(422, "no\n\x1b]0;x\x07" + std::string(5000, 'y'), "a/b")));
  HttpToolFixture fixture;
  const Outcome outcome = fixture.call(post_tool(server), make_call());
  EXPECT_TRUE(outcome.error_message.starts_with(fmt::format(
      "POST {} answered 422: no\\n\\x1b]0;x\\x07yyy", shown_target(server, "/charges"))))
      << outcome.error_message;
  EXPECT_LT(outcome.error_message.size(), 400u);
}

AE_TEST("http tool/an error shows the message field of a JSON response") {
  const auto message_of = [](std::string body, const char* type = "application/problem+json") {
    RawHttpServer server(RawHttpServer::always(raw_response(422, std::move(body), type)));
    HttpToolFixture fixture;
    const std::string message = fixture.call(post_tool(server), make_call()).error_message;
    const std::string target = shown_target(server, "/charges");
    const std::size_t at = message.find(target);
    return at == message.npos ? message
                              : fmt::format("{}HOST/charges{}", message.substr(0, at),
                                            message.substr(at + target.size()));
  };
  const std::string before = "POST HOST/charges answered 422: ";
  EXPECT_EQ(message_of(R"({"error":{"code":7,"message":"too\nmuch"}})"), before + "too\\nmuch");
  EXPECT_EQ(message_of(R"({"error":{"message":""}})"), before + R"({"error":{"message":""}})");
  EXPECT_EQ(message_of("{\"error\":\"no\"}\r\n"), before + R"({"error":"no"})");
  EXPECT_EQ(message_of(" \n"), before.substr(0, before.size() - 2));
  EXPECT_EQ(message_of(R"({"error":{"message":"x)"), before + R"({"error":{"message":"x)");
  EXPECT_EQ(message_of(R"({"error":{"message":"x"}})", "text/plain"),
            before + R"({"error":{"message":"x"}})");
}

}  // namespace
}  // namespace ae::tools::http_test
