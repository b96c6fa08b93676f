// HttpTool: the requests that it sends, and the outcome of every kind of response.
#include "tools/http/http_tool.h"

#include <sys/resource.h>

#include <chrono>
#include <functional>
#include <string>

#include "json/json.h"
#include "net/asio_loop.h"
#include "testing/permit.h"
#include "testing/raw_http_server.h"
#include "testing/test.h"
#include "tools/http/classify_response.h"

namespace ae::tools {
namespace {

using namespace std::chrono_literals;
using testing::raw_response;
using testing::RawHttpServer;
using Conversation = RawHttpServer::Conversation;

class TestSecrets final : public SecretSource {
 public:
  Result<Secret> get(std::string_view name) override {
    ++lookups;
    if (name == "TOKEN") return Secret("s3cr3t-canary");
    if (name == "BROKEN") return Secret("s3cr3t-canary\r\nX-Evil: 1");
    return fail(Code::secret_missing, "the secret " + std::string(name) + " is missing");
  }
  int lookups = 0;
};

Call make_call(Value args = Value::object({})) {
  Call call;
  call.job = JobId("job-1");
  call.tool = "charge";
  call.args = std::move(args);
  call.key = IdempotencyKey(std::string(64, 'a'));
  call.external_key = ExternalKey("aetheris:job-1:0123456789abcdef:0");
  call.invocation = InvocationId("fedcba9876543210");
  call.try_no = 2;
  call.timeout = 5s;
  call.send_within = 5s;
  return call;
}

// A loop, a client and secrets; `call` performs one call of one definition.
struct HttpToolFixture {
  net::AsioLoop loop;
  net::HttpClient client{loop};
  TestSecrets secrets;

  Result<std::unique_ptr<HttpTool>> make(const Value& definition, bool is_read_only = false) {
    return HttpTool::make(definition, {loop, client, secrets, is_read_only});
  }
  Outcome call(const Value& definition, Call call, bool is_read_only = false) {
    auto tool = make(definition, is_read_only);
    if (!tool) {
      ADD_FAILURE() << tool.error().message;
      return {};
    }
    return perform(**tool, std::move(call));
  }
  Outcome perform(HttpTool& tool, Call call) {
    Outcome seen;
    bool returned = false;
    auto permit = testing::PermitForTests::make(call.invocation, call.try_no);
    tool.perform(std::move(permit), std::move(call), [&](Outcome outcome) {
      EXPECT_TRUE(returned);
      seen = std::move(outcome);
      loop.stop();
    });
    returned = true;
    loop.run();
    return seen;
  }
};

Value post_tool(const RawHttpServer& server) {
  return Value::object({{"method", "POST"}, {"url", server.url("/charges")}});
}

// As shown in messages.
std::string shown_target(const RawHttpServer& server, const std::string& path) {
  return "127.0.0.1:" + std::to_string(server.port()) + path;
}

// ---- requests

AE_TEST("http tool/a POST sends arguments as canonical JSON with the keys of the call") {
  RawHttpServer server(RawHttpServer::always(raw_response(200, R"({"id":"ch_1"})")));
  HttpToolFixture fixture;
  const Outcome outcome =
      fixture.call(post_tool(server), make_call(Value::object({{"b", 1}, {"a", "ä"}})));
  EXPECT_EQ(outcome.kind, OutcomeKind::success) << outcome.error_message;
  EXPECT_EQ(canonical(outcome.result), R"({"id":"ch_1"})");
  EXPECT_EQ(outcome.external_id, "ch_1");
  EXPECT_GT(outcome.elapsed, 0us);
  ASSERT_EQ(server.arrivals(), 1);
  const auto request = server.requests()[0];
  EXPECT_TRUE(request.head.starts_with("POST /charges HTTP/1.1\r\n"));
  EXPECT_EQ(request.body, R"({"a":"ä","b":1})");
  EXPECT_EQ(request.header("Content-Type"), "application/json");
  EXPECT_EQ(request.header("Idempotency-Key"), "aetheris:job-1:0123456789abcdef:0");
  EXPECT_EQ(request.header("X-Aetheris-Execution-Key"), std::string(64, 'a'));
  EXPECT_EQ(request.header("X-Aetheris-Invocation-Id"), "fedcba9876543210");
  EXPECT_EQ(request.header("X-Aetheris-Try"), "2");
}

AE_TEST("http tool/a call sends its trace context, and a definition cannot override it") {
  RawHttpServer server(RawHttpServer::always(raw_response(200)));
  HttpToolFixture fixture;
  Call call = make_call(Value::object({{"a", 1}}));
  call.traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  call.tracestate = "congo=t61rcWkgMzE";
  fixture.call(post_tool(server), std::move(call));
  fixture.call(post_tool(server), make_call(Value::object({{"a", 1}})));
  ASSERT_EQ(server.arrivals(), 2);
  EXPECT_EQ(server.requests()[0].header("traceparent"),
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
  EXPECT_EQ(server.requests()[0].header("tracestate"), "congo=t61rcWkgMzE");
  EXPECT_EQ(server.requests()[0].body, server.requests()[1].body) << "not a part of the request";
  EXPECT_EQ(server.requests()[1].header("traceparent"), "");
  for (const char* name : {"traceparent", "TraceState"}) {
    const Value tool = post_tool(server).with("headers", Value::object({{name, "x"}}));
    EXPECT_FALSE(fixture.make(tool)) << name;
  }
}

AE_TEST("http tool/preview() shows the request as it would be sent, with secrets by name") {
  HttpToolFixture fixture;
  RawHttpServer server(RawHttpServer::always(raw_response(200, "{}")));
  const Value tool = post_tool(server)
                         .with("url", server.url("/charges/${ .args.id }"))
                         .with("headers", Value::object({{"Authorization", "Bearer secret:TOKEN"}}))
                         .with("body", Value::object({{"sum", "${ .args.sum }"}}));
  const Value args = Value::object({{"id", "a/b"}, {"sum", 5}});
  auto made = fixture.make(tool);
  ASSERT_TRUE(made);
  const auto shown = (*made)->preview(make_call(args));
  ASSERT_TRUE(shown) << shown.error().message;
  EXPECT_EQ(shown->text("method"), "POST");
  EXPECT_EQ(shown->text("url"), server.url("/charges/a%2Fb"));
  EXPECT_EQ(shown->text("body"), R"({"sum":5})");
  EXPECT_EQ((*shown)["headers"].text("Authorization"), "Bearer secret:TOKEN");
  EXPECT_EQ((*shown)["headers"].find("Idempotency-Key"), nullptr);
  EXPECT_EQ(fixture.secrets.lookups, 0);
  EXPECT_EQ(fixture.perform(**made, make_call(args)).kind, OutcomeKind::success);
  const auto sent = server.requests()[0];
  EXPECT_TRUE(sent.head.starts_with("POST /charges/a%2Fb HTTP/1.1\r\n")) << sent.head;
  EXPECT_EQ(sent.body, shown->text("body"));
  EXPECT_EQ(sent.header("Content-Type"), (*shown)["headers"].text("Content-Type"));
  const auto none = (*made)->preview(make_call(Value::object({{"sum", 5}})));
  EXPECT_FALSE(none.has_value()) << "an invalid call has no preview";
}

AE_TEST("http tool/a GET sends arguments in the URL only") {
  RawHttpServer server(RawHttpServer::always(raw_response(200, "[]")));
  HttpToolFixture fixture;
  const Value tool =
      Value::object({{"url", server.url("/orders/${ .args.id }/lines?q=${ .args.q }")}});
  fixture.call(tool, make_call(Value::object({{"id", "a/b?c#d"}, {"q", "x&y=ü z"}})), true);
  ASSERT_EQ(server.arrivals(), 1);
  EXPECT_EQ(server.requests()[0].target(), "/orders/a%2Fb%3Fc%23d/lines?q=x%26y%3D%C3%BC%20z");
  EXPECT_EQ(server.requests()[0].body, "");
  EXPECT_EQ(server.requests()[0].header("Content-Type"), "");
}

AE_TEST("http tool/numbers and objects in a URL are written as JSON, null is an error") {
  RawHttpServer server(RawHttpServer::always(raw_response(200)));
  HttpToolFixture fixture;
  const Value tool =
      Value::object({{"url", server.url("/v${ .args.a }-${ .args.b }?c=${ .call.try }")}});
  fixture.call(tool, make_call(Value::object({{"a", 1.5}, {"b", Value::array({true})}})));
  ASSERT_EQ(server.arrivals(), 1);
  EXPECT_EQ(server.requests()[0].target(), "/v1.5-%5Btrue%5D?c=2");
  const Outcome outcome = fixture.call(tool, make_call());
  EXPECT_EQ(outcome.error_code, "request_invalid");
  EXPECT_EQ(outcome.error_message, "http.url: .args.a is null");
  EXPECT_TRUE(outcome.definite);
  EXPECT_EQ(server.arrivals(), 1);
}

AE_TEST("http tool/an invalid request reports the field and the expression") {
  RawHttpServer server(RawHttpServer::always(raw_response(200)));
  HttpToolFixture fixture;
  const auto message = [&](const char* key, Value value) {
    const Outcome outcome =
        fixture.call(post_tool(server).with(key, std::move(value)), make_call());
    EXPECT_EQ(outcome.error_code, "request_invalid");
    return outcome.error_message;
  };
  EXPECT_EQ(message("url", server.url("/x?q=${ .args.q }")), "http.url: .args.q is null");
  EXPECT_EQ(message("headers", Value::object({{"X-Id", "n ${ .args.id }"}})),
            "http.headers.X-Id: .args.id is null");
  EXPECT_EQ(message("body", Value::object({{"a", Value::array({"n ${ .args.n }"})}})),
            "http.body.a[0]: .args.n is null");
  EXPECT_TRUE(message("url", server.url("/${ .args.q + 1 | .x }"))
                  .starts_with("http.url: .args.q + 1 | .x: "));
  EXPECT_TRUE(message("body", Value::object({{"a", "${ .args.n + 1 | .x }"}}))
                  .starts_with("http.body.a: .args.n + 1 | .x: "));
}

AE_TEST("http tool/a failed call reports method, host and path, but no query or secret") {
  RawHttpServer server(RawHttpServer::always(raw_response(404, "no", "text/plain")));
  HttpToolFixture fixture;
  const Value tool =
      Value::object({{"url", server.url("/trips/${ .args.id }?token=${ .args.token }")},
                     {"headers", Value::object({{"X-Key", "secret:TOKEN"}})}});
  const auto message = [&](const char* id) {
    return fixture.call(tool, make_call(Value::object({{"id", id}, {"token", "query"}})), true)
        .error_message;
  };
  EXPECT_EQ(message("a b"), "GET " + shown_target(server, "/trips/a%20b") + " answered 404: no");
  const std::string secret = message("s3cr3t-canary");
  EXPECT_EQ(secret.find("s3cr3t"), secret.npos) << secret;
  EXPECT_EQ(secret.find("query"), secret.npos) << secret;
  const std::string longest = message(std::string(5'000, 'x').c_str());
  EXPECT_LT(longest.size(), 200u) << longest;
  EXPECT_NE(longest.find("… answered 404"), longest.npos) << longest;
}

AE_TEST("http tool/an argument cannot escape its path segment") {
  RawHttpServer server(RawHttpServer::always(raw_response(200)));
  HttpToolFixture fixture;
  const Value tool = Value::object(
      {{"method", "DELETE"}, {"url", server.url("/orders/${ .args.id }/${ .args.name }.txt")}});
  for (const char* id : {"", ".", ".."}) {
    const Outcome outcome =
        fixture.call(tool, make_call(Value::object({{"id", id}, {"name", "x"}})));
    EXPECT_EQ(outcome.kind, OutcomeKind::failure);
    EXPECT_EQ(outcome.error_code, "request_invalid") << id;
    EXPECT_TRUE(outcome.definite);
    EXPECT_FALSE(outcome.retryable);
  }
  EXPECT_EQ(server.connections(), 0);
  fixture.call(tool, make_call(Value::object({{"id", "..%2f.."}, {"name", ""}})));
  ASSERT_EQ(server.arrivals(), 1);
  EXPECT_EQ(server.requests()[0].target(), "/orders/..%252f../.txt");
}

AE_TEST("http tool/a body template replaces the arguments, a non-JSON string is sent as it is") {
  RawHttpServer server(RawHttpServer::always(raw_response(200)));
  HttpToolFixture fixture;
  const Value args = Value::object({{"amount", 7}});
  Value tool = post_tool(server).with(
      "body", Value::object({{"n", "${ .args.amount * 2 }"}, {"k", "${ .call.key }"}}));
  fixture.call(tool, make_call(args));
  tool =
      post_tool(server)
          .with("body", "amount=${ .args.amount }")
          .with("headers", Value::object({{"content-type", "application/x-www-form-urlencoded"}}));
  fixture.call(tool, make_call(args));
  tool = post_tool(server).with("body", "amount=${ .args.amount }");
  fixture.call(tool, make_call(args));
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0].body, R"({"k":")" + std::string(64, 'a') + R"(","n":14})");
  EXPECT_EQ(requests[1].body, "amount=7");
  EXPECT_EQ(requests[1].header("content-type"), "application/x-www-form-urlencoded");
  EXPECT_EQ(requests[1].header("Content-Type"), "");
  EXPECT_EQ(requests[2].body, R"("amount=7")");
}

AE_TEST("http tool/header values are templates, and control characters in arguments are rejected") {
  RawHttpServer server(RawHttpServer::always(raw_response(200)));
  HttpToolFixture fixture;
  const Value tool = post_tool(server).with(
      "headers", Value::object({{"X-User", "u ${ .args.user }"}, {"X-Empty", ""}}));
  fixture.call(tool, make_call(Value::object({{"user", "ä b"}})));
  ASSERT_EQ(server.arrivals(), 1);
  EXPECT_EQ(server.requests()[0].header("X-User"), "u ä b");
  for (const char* evil : {"a\r\nX-Evil: 1", "a\nb", "a\rb", "\x01"}) {
    const Outcome outcome = fixture.call(tool, make_call(Value::object({{"user", evil}})));
    EXPECT_EQ(outcome.error_code, "request_invalid");
    EXPECT_TRUE(outcome.definite);
  }
  const Outcome nul =
      fixture.call(tool, make_call(Value::object({{"user", std::string("a\0b", 3)}})));
  EXPECT_EQ(nul.error_code, "request_invalid");
  EXPECT_EQ(server.arrivals(), 1);
}

AE_TEST("http tool/a secret is sent in the header and recorded nowhere") {
  RawHttpServer server([](Conversation& c) {
    while (auto request = c.read_request()) {
      // Echoes the secret: plain, and in base64.
      const std::string seen = request->header("Authorization");
      c.send(raw_response(request->target() == "/ok" ? 200 : 403,
                          R"({"id":")" + seen + R"(","s3cr3t-canary":"czNjcjN0LWNhbmFyeQ=="})",
                          "application/json", "X-Echo: " + seen + "\r\n"));
    }
  });
  HttpToolFixture fixture;
  Value tool =
      Value::object({{"method", "POST"},
                     {"url", server.url("/${ .args.to }")},
                     {"headers", Value::object({{"Authorization", "Bearer secret:TOKEN"}})},
                     {"result", "full"}});
  const Outcome ok = fixture.call(tool, make_call(Value::object({{"to", "ok"}})));
  const Outcome no = fixture.call(tool, make_call(Value::object({{"to", "no"}})));
  tool = tool.with("output_max", 20);
  const Outcome large = fixture.call(tool, make_call(Value::object({{"to", "ok"}})));
  ASSERT_EQ(server.arrivals(), 3);
  EXPECT_EQ(server.requests()[0].header("Authorization"), "Bearer s3cr3t-canary");
  EXPECT_EQ(ok.kind, OutcomeKind::success);
  EXPECT_EQ(no.error_code, "http_403");
  ASSERT_TRUE(large.invalid);
  const std::string everything =
      canonical(ok.result) + ok.external_id + no.error_message + canonical(*large.invalid);
  EXPECT_EQ(everything.find("s3cr3t"), std::string::npos) << everything;
  EXPECT_EQ(everything.find("czNjcjN0"), std::string::npos) << everything;
  EXPECT_NE(everything.find("[secret TOKEN]"), std::string::npos) << everything;
}

AE_TEST("http tool/secrets are resolved per call, a missing or invalid one sends nothing") {
  RawHttpServer server(RawHttpServer::always(raw_response(200)));
  HttpToolFixture fixture;
  const auto with = [&](const char* value) {
    return post_tool(server).with("headers", Value::object({{"X-Key", value}}));
  };
  EXPECT_TRUE(fixture.make(with("secret:TOKEN")));
  EXPECT_EQ(fixture.secrets.lookups, 0);
  Outcome outcome = fixture.call(with("secret:MISSING"), make_call());
  EXPECT_EQ(outcome.kind, OutcomeKind::failure);
  EXPECT_TRUE(outcome.definite);
  EXPECT_EQ(outcome.error_code, "secret_missing");
  EXPECT_NE(outcome.error_message.find("MISSING"), std::string::npos);
  outcome = fixture.call(with("secret:BROKEN"), make_call());
  EXPECT_EQ(outcome.error_code, "request_invalid");
  EXPECT_EQ(outcome.error_message.find("s3cr3t"), std::string::npos) << outcome.error_message;
  EXPECT_EQ(server.connections(), 0);
}

AE_TEST("http tool/a secret reference in an argument is not resolved") {
  RawHttpServer server(RawHttpServer::always(raw_response(200)));
  HttpToolFixture fixture;
  const Value tool = post_tool(server).with(
      "headers", Value::object({{"X-A", "${ .args.a }"}, {"X-B", "not_secret:TOKEN"}}));
  fixture.call(tool, make_call(Value::object({{"a", "secret:TOKEN"}})));
  ASSERT_EQ(server.arrivals(), 1);
  EXPECT_EQ(server.requests()[0].header("X-A"), "secret:TOKEN");
  EXPECT_EQ(server.requests()[0].header("X-B"), "not_secret:TOKEN");
  EXPECT_EQ(fixture.secrets.lookups, 0);
}

// ---- the definition

AE_TEST("http tool/invalid definitions are rejected") {
  HttpToolFixture fixture;
  const Value good = Value::object({{"url", "http://a.example/x"}});
  EXPECT_TRUE(fixture.make(good));
  for (const char* url : {"",
                          "a.example/x",
                          "ftp://a.example/",
                          "HTTP://a.example/",
                          "http://",
                          "http:///x",
                          "http://me@a.example/",
                          "http://me:pw@a.example/",
                          "http://${ .args.host }/x",
                          "${ .args.url }",
                          "http://a.example${ .args.path }",
                          "http://a.example:${ .args.port }/",
                          "http://a${ .args.x }.example/",
                          "http://a.example:0/",
                          "http://a.example:99999/",
                          "http://a.example:8x/",
                          "http://a b/",
                          "http://a.example/ x",
                          "http://a.example/{id}",
                          "http://a.example/#x",
                          "http://a.example/\xc3\xa4",
                          "http://[::1/",
                          "http://[]/",
                          "http://a.example/${ .input.x }",
                          "http://a.example/${ .steps.x }",
                          "http://a.example/${ .args.x",
                          "http://a.example/?key=secret:TOKEN"}) {
    EXPECT_FALSE(fixture.make(good.with("url", url))) << url;
  }
  for (const char* url : {"http://a.example", "https://a.example:8443", "http://[::1]:80/x",
                          "http://127.0.0.1?x=${ .args.x }", "http://a.example/%20//../x"}) {
    EXPECT_TRUE(fixture.make(good.with("url", url))) << url;
  }
  const auto expect_rejected = [&](std::string_view key, Value value) {
    const auto tool = fixture.make(good.with("method", "POST").with(key, value));
    EXPECT_FALSE(tool) << key << canonical(value);
  };
  const auto header = [](const char* name, Value value) { return Value::object({{name, value}}); };
  expect_rejected("method", "post");
  expect_rejected("method", "CONNECT");
  expect_rejected("method", "TRACE");
  expect_rejected("headers", "x");
  expect_rejected("headers", header("X Y", "a"));
  expect_rejected("headers", header("X", 1));
  expect_rejected("headers", header("idempotency-key", "a"));
  expect_rejected("headers", header("Host", "a"));
  expect_rejected("headers", header("Content-length", "1"));
  expect_rejected("headers", header("X", "${ .input.a }"));
  expect_rejected("headers", header("X", "secret:${ .args.name }"));
  expect_rejected("headers", header("X", "secret:TO${ .args.name }"));
  expect_rejected("headers", header("X", "${ .args.name }secret:TOKEN"));
  expect_rejected("headers", Value::object({{"X-A", "1"}, {"x-a", "2"}}));
  expect_rejected("body", Value::array({"secret:TOKEN"}));
  expect_rejected("body", "${ .steps.a }");
  expect_rejected("result", "all");
  expect_rejected("numbers", true);
  expect_rejected("output_max", 0);
  expect_rejected("output_max", "17MiB");
  expect_rejected("output_max", "1 MB");
  expect_rejected("definite_failures", 402);
  expect_rejected("definite_failures", Value::array({200}));
  expect_rejected("definite_failures", Value::array({"402"}));
  EXPECT_FALSE(fixture.make(good.with("body", "x"))) << "a GET with a body";
  EXPECT_FALSE(fixture.make(Value("x")));
  const auto unknown = fixture.make(good.with("retries", 3));
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, Code::unsupported);
}

// ---- responses

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
      EXPECT_EQ(outcome.error_code, "http_" + std::to_string(c.status));
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
       {"http://127.0.0.1:" + std::to_string(port) + "/", std::string("http://nobody.invalid/x")}) {
    const Outcome outcome = call(url);
    EXPECT_EQ(outcome.kind, OutcomeKind::failure);
    EXPECT_EQ(outcome.error_code, "connect");
    EXPECT_TRUE(outcome.definite);
    EXPECT_TRUE(outcome.retryable);
  }
  RawHttpServer plain([](Conversation& c) { c.send("hello\r\n"); });
  const Outcome outcome = call("https://127.0.0.1:" + std::to_string(plain.port()) + "/");
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
  EXPECT_TRUE(outcome.error_message.starts_with("POST " + shown_target(server, "/charges") +
                                                " answered 422: no\\n\\x1b]0;x\\x07yyy"))
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
    return at == message.npos
               ? message
               : message.substr(0, at) + "HOST/charges" + message.substr(at + target.size());
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
}  // namespace ae::tools
