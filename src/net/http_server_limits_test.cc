// Limits of HttpServer: timeouts, connections, and the total size of bodies and responses.
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "net/http_server_fixture_test.h"
#include "testing/test.h"

namespace ae::net::http_server_test {
namespace {

AE_TEST("http server/slow requests get 408, idle connections are closed without a response") {
  ServerFixture fixture(echo, {.head_timeout = 40ms, .body_timeout = 40ms, .idle_timeout = 40ms});
  RawClient slow_head(fixture.port), slow_body(fixture.port), idle(fixture.port),
      idle_after(fixture.port);
  idle_after.send(get("/x"));
  slow_body.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab");
  slow_head.send("GET / HT");
  std::thread trickle([&] {
    for (int i = 0; i < 8 && slow_head.send("x"); ++i) std::this_thread::sleep_for(10ms);
  });
  const std::string head = slow_head.read_all();
  trickle.join();
  EXPECT_TRUE(head.starts_with("HTTP/1.1 408 ")) << head;
  EXPECT_TRUE(slow_body.read_all().starts_with("HTTP/1.1 408 "));
  EXPECT_EQ(idle.read_all(), "");
  EXPECT_TRUE(idle_after.read_all().ends_with("GET x"));
  EXPECT_TRUE(is_serving(fixture));
}

AE_TEST("http server/a response that the client does not read times out") {
  ServerFixture fixture(
      [](HttpRequest, Responder responder) {
        HttpResponse response;
        response.body.assign(64 << 20, 'x');
        std::move(responder).answer(std::move(response));
      },
      {.write_timeout = 50ms});
  RawClient client(fixture.port);
  client.send(get("/"));
  client.read_until("\r\n\r\n");
  for (int i = 0; i < 1000; ++i) {
    std::size_t left = 1;
    fixture.on_loop([&] { left = fixture.server->connections(); });
    if (left == 0) return;
    std::this_thread::sleep_for(2ms);
  }
  FAIL() << "the connection was not closed";
}

AE_TEST("http server/clients over the limit get 503, and the operator is warned once a minute") {
  std::vector<Responder> kept;
  std::vector<std::string> warnings;
  ServerFixture fixture(
      [&](HttpRequest request, Responder responder) {
        if (request.path == std::vector<std::string>{"alive"}) {
          return echo(std::move(request), std::move(responder));
        }
        kept.push_back(std::move(responder));
      },
      {.connections_max = 2,
       .on_full = [&](const std::string& what) { warnings.push_back(what); }});
  RawClient one(fixture.port), two(fixture.port);
  one.send(get("/1"));
  two.send(get("/2"));
  for (std::size_t busy = 0; busy < 2;) fixture.on_loop([&] { busy = kept.size(); });
  for (int i = 0; i < 3; ++i) {
    RawClient three(fixture.port);
    const std::string answer = three.read_all();
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n")) << answer;
    EXPECT_NE(answer.find("application/problem+json"), answer.npos) << answer;
    EXPECT_NE(answer.find("\"code\":\"unavailable\""), answer.npos) << answer;
    EXPECT_NE(answer.find("Retry-After: 1\r\n"), answer.npos) << answer;
  }
  fixture.on_loop([&] {
    ASSERT_EQ(warnings.size(), 1u) << "once a minute";
    EXPECT_NE(warnings[0].find("all 2 connections are in use"), warnings[0].npos) << warnings[0];
    kept.clear();
  });
  one.reset();
  for (int i = 0; i < 1000; ++i) {
    RawClient again(fixture.port);
    again.send(get("/alive"));
    if (again.read_response().ends_with("GET alive")) return;
  }
  FAIL() << "no connection became free";
}

AE_TEST("http server/the is_tool check runs once per connection, at its first request") {
  int tool_checks = 0;
  HttpServer::Options options;
  options.is_tool = [&](int fd, bool tcp) {
    EXPECT_GE(fd, 0);
    EXPECT_TRUE(tcp);
    return ++tool_checks == 2;
  };
  ServerFixture fixture(
      [](HttpRequest request, Responder responder) {
        HttpResponse response;
        response.body = request.from_tool ? "tool" : "other";
        std::move(responder).answer(std::move(response));
      },
      std::move(options));
  RawClient silent(fixture.port), first(fixture.port), second(fixture.port);
  for (const char* path : {"/1", "/2"}) {
    first.send(get(path));
    EXPECT_TRUE(first.read_response().ends_with("other")) << path;
  }
  for (const char* path : {"/3", "/4"}) {
    second.send(get(path));
    EXPECT_TRUE(second.read_response().ends_with("tool")) << path;
  }
  fixture.on_loop([&] { EXPECT_EQ(tool_checks, 2); });
}

AE_TEST("http server/at the limit the longest idle connection is closed, never one in use") {
  std::vector<Responder> kept;
  ServerFixture fixture(
      [&](HttpRequest request, Responder responder) {
        if (request.path == std::vector<std::string>{"wait"}) {
          return kept.push_back(std::move(responder));
        }
        echo(std::move(request), std::move(responder));
      },
      {.connections_max = 3});
  const auto connections = [&] {
    std::size_t now = 0;
    fixture.on_loop([&] { now = fixture.server->connections(); });
    return now;
  };
  RawClient served(fixture.port);
  served.send(get("/wait"));
  for (std::size_t busy = 0; busy < 1;) fixture.on_loop([&] { busy = kept.size(); });
  RawClient silent(fixture.port);
  while (connections() < 2) {
  }
  RawClient begun(fixture.port);
  begun.send("GET /begun HTTP/1.1\r\n");
  while (connections() < 3) {
  }
  RawClient healthy(fixture.port);
  healthy.send(get("/healthy"));
  EXPECT_TRUE(healthy.read_response().ends_with("GET healthy"));
  EXPECT_EQ(silent.read_all(), "");
  // Now `healthy` is the silent one.
  RawClient next(fixture.port);
  next.send(get("/next"));
  EXPECT_TRUE(next.read_response().ends_with("GET next"));
  EXPECT_EQ(healthy.read_all(), "");
  begun.send("Host: localhost\r\n\r\n");
  EXPECT_TRUE(begun.read_response().ends_with("GET begun"));
  fixture.on_loop([&] { std::move(kept[0]).answer({.body = "{}"}); });
  EXPECT_TRUE(served.read_response().ends_with("{}"));
}

AE_TEST_SLOW("http server/at the limit, slow requests make room for new clients") {
  ServerFixture fixture(echo, {.connections_max = 2});
  RawClient one(fixture.port), two(fixture.port);
  one.send("GET /1 HTTP/1.1\r\n");
  two.send("POST /2 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n1");
  for (int i = 0; i < 1000; ++i) {
    RawClient again(fixture.port);
    again.send(get("/alive"));
    if (again.read_response().ends_with("GET alive")) return;
    std::this_thread::sleep_for(5ms);
  }
  FAIL() << "a slow request holds its connection";
}

AE_TEST("http server/bodies over the total limit are rejected, small ones are accepted") {
  HttpServer::Options options;
  options.bodies_max = 100'000;
  ServerFixture fixture(echo, std::move(options));
  const std::string head = "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n";
  // The later one is rejected; the kernel decides which that is.
  RawClient first(fixture.port), second(fixture.port);
  first.send(head + std::string(90'000, 'x'));
  second.send(head + std::string(90'000, 'x'));
  const bool first_is_rejected = first.wait_readable(second) == &first;
  const std::string response = (first_is_rejected ? first : second).read_until("\r\n\r\n");
  EXPECT_TRUE(response.starts_with("HTTP/1.1 503 ")) << response;
  EXPECT_NE(response.find("Retry-After: 1\r\n"), std::string::npos);
  EXPECT_TRUE(is_serving(fixture));
  RawClient small(fixture.port);
  small.send("POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
  EXPECT_TRUE(small.read_response().ends_with("POST p body abc"));
}

AE_TEST("http server/streams count toward the total response limit, one over it is closed") {
  HttpServer::Options options;
  options.responses_max = 20u << 20;
  options.slow_after = 1h;
  std::vector<HttpStream> kept;
  ServerFixture fixture(
      [&](HttpRequest, Responder responder) {
        HttpStream stream = std::move(responder).begin({});
        stream.write(std::string(16u << 20, 'x'));
        kept.push_back(std::move(stream));
      },
      std::move(options));
  RawClient unread(fixture.port);
  unread.send(get("/a"));
  unread.read_until("\r\n\r\n");
  RawClient other(fixture.port);
  other.send(get("/b"));
  // Building the piece may take longer than this test's clients wait.
  for (std::size_t begun = 0; begun < 2;) fixture.on_loop([&] { begun = kept.size(); });
  EXPECT_LT(other.read_all().size(), 1000u);
  fixture.on_loop([&] {
    ASSERT_EQ(kept.size(), 2u);
    EXPECT_FALSE(kept[0].closed());
    EXPECT_TRUE(kept[1].closed());
    kept.clear();
  });
}

AE_TEST("http server/responses over the total limit get 503 until clients have read") {
  HttpServer::Options options;
  options.responses_max = 20u << 20;
  options.slow_after = 200ms;
  ServerFixture fixture(
      [](HttpRequest, Responder responder) {
        HttpResponse response;
        response.content_type = "text/plain";
        response.body = std::string(16u << 20, 'x');
        std::move(responder).answer(std::move(response));
      },
      std::move(options));
  RawClient unread(fixture.port);
  unread.send(get("/a"));
  EXPECT_TRUE(unread.read_until("\r\n\r\n").starts_with("HTTP/1.1 200 "));
  RawClient other(fixture.port);
  other.send(get("/b"));
  const std::string response = other.read_until("\r\n\r\n");
  EXPECT_TRUE(response.starts_with("HTTP/1.1 503 ")) << response.substr(0, 200);
  EXPECT_NE(response.find("Retry-After: 1\r\n"), std::string::npos);
  // Eventually a client that does not read is disconnected to make room.
  bool answered = false;
  for (int i = 0; i < 100 && !answered; ++i) {
    RawClient again(fixture.port);
    again.send(get("/c"));
    answered = again.read_until("\r\n\r\n").starts_with("HTTP/1.1 200 ");
    if (!answered) std::this_thread::sleep_for(50ms);
  }
  EXPECT_TRUE(answered);
}

}  // namespace
}  // namespace ae::net::http_server_test
