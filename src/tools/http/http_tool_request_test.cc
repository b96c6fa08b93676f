// Requests of HttpTool: URL, headers, body, secrets, and invalid definitions.
#include <fmt/core.h>

#include <string>
#include <utility>

#include "tools/http/http_tool_fixture_test.h"

namespace ae::tools::http_test {
namespace {

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
  call.trace = [] {
    return TraceHeaders{"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                        "congo=t61rcWkgMzE"};
  };
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
  EXPECT_EQ(message("a b"),
            fmt::format("GET {} answered 404: no", shown_target(server, "/trips/a%20b")));
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
                          "application/json", fmt::format("X-Echo: {}\r\n", seen)));
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

// ---- definitions

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

}  // namespace
}  // namespace ae::tools::http_test
