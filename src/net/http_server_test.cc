// HttpServer: requests, responses, framing errors and rejected requests, over real sockets.
#include "net/http_server.h"

#include <fmt/core.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "json/json.h"
#include "net/http_server_fixture_test.h"
#include "testing/test.h"

namespace ae::net::http_server_test {
namespace {

AE_TEST("http server/requests on one connection are answered in order, also if pipelined") {
  ServerFixture fixture(echo);
  RawClient client(fixture.port);
  client.send(get("/a/b%2Fc?x=1"));
  EXPECT_EQ(client.read_response(),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n"
            "X-Content-Type-Options: nosniff\r\n\r\nGET a b/c x=1");
  client.send("POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" + get("/2") +
              get("/3"));
  EXPECT_TRUE(client.read_response().ends_with("POST p body abc"));
  EXPECT_TRUE(client.read_response().ends_with("GET 2"));
  EXPECT_TRUE(client.read_response().ends_with("GET 3"));
  std::string many;
  for (int i = 0; i < 1000; ++i) many += get(fmt::format("/{}", i));
  std::thread sender([&] { client.send(many); });
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(client.read_response().ends_with(fmt::format("GET {}", i)));
  }
  sender.join();
}

AE_TEST("http server/chunked bodies and 100-continue are supported, HEAD gets no body") {
  ServerFixture fixture(echo);
  RawClient client(fixture.port);
  client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n");
  client.send("1\r\nc\r\n0\r\n\r\n");
  EXPECT_TRUE(client.read_response().ends_with("POST body abc"));
  client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("xy");
  EXPECT_TRUE(client.read_response().ends_with("POST body xy"));
  client.send("HEAD /abc HTTP/1.1\r\nHost: a\r\n\r\n" + get("/x"));
  EXPECT_TRUE(client.read_until("\r\n\r\n").find("Content-Length: 8\r\n") != std::string::npos);
  EXPECT_TRUE(client.read_response().ends_with("GET x"));
}

AE_TEST("http server/Connection: close and HTTP/1.0 close the connection after the response") {
  ServerFixture fixture(echo);
  for (const std::string& request :
       {get("/x", "Connection: close\r\n"), std::string("GET /x HTTP/1.0\r\n\r\n")}) {
    RawClient client(fixture.port);
    client.send(request);
    const std::string seen = client.read_all();
    EXPECT_NE(seen.find("\r\nConnection: close\r\n"), std::string::npos);
    EXPECT_TRUE(seen.ends_with("\r\n\r\nGET x"));
  }
}

AE_TEST("http server/a client that half-closes after its requests receives all responses") {
  ServerFixture fixture(echo);
  RawClient client(fixture.port);
  client.send(get("/1") + get("/2"));
  client.half_close();
  const std::string seen = client.read_all();
  EXPECT_NE(seen.find("GET 1"), std::string::npos);
  EXPECT_TRUE(seen.ends_with("GET 2"));
}

// Framing errors: each is answered with its status as problem+json, the connection is closed, other
// clients are served.
AE_TEST("http server/a framing error is answered with its status and closes only its connection") {
  ServerFixture fixture(echo);
  const auto post = [](std::string_view headers) {
    return fmt::format("POST /x HTTP/1.1\r\nHost: a\r\n{}\r\n", headers);
  };
  const std::pair<int, std::string> cases[] = {
      {431, "GET / HTTP/1.1\r\nX: " + std::string(20'000, 'x')},
      {414, "GET /" + std::string(20'000, 'x')},
      {400, "GET / HTTP/1.1\nHost: a\n\n"},
      {400, post("X: a\r\n folded\r\n")},
      {400, post("Content-Length: 3\r\nContent-Length: 4\r\n") + "abc" + get("/smuggled")},
      {400, post("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n" +
                get("/smuggled")},
      {400, post("Transfer-Encoding: chunked\r\n") + "-2\r\n" + get("/smuggled")},
      {413, post("Content-Length: 999999999\r\n") + std::string(100'000, 'x')},
      {413, post("Expect: 100-continue\r\nContent-Length: 999999999\r\n")},
      {417, post("Expect: wonders\r\n")},
      {405, "CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n"},
      {505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
      {400, std::string("\x16\x03\x01\x00\xa5\x01", 6)},
      {400, get("/%00")},
      {400, get("/../etc/passwd")},
  };
  for (const auto& [status, bytes] : cases) {
    for (const bool after_a_good_one : {false, true}) {
      RawClient client(fixture.port);
      if (after_a_good_one) {
        client.send(get("/good"));
        client.read_response();
      }
      client.send(bytes);
      const std::string seen = client.read_all();
      EXPECT_TRUE(seen.starts_with(fmt::format("HTTP/1.1 {} ", status)))
          << bytes.substr(0, 99) << seen;
      EXPECT_NE(seen.find("Content-Type: application/problem+json\r\n"), std::string::npos);
      EXPECT_NE(seen.find("Connection: close\r\n"), std::string::npos);
      EXPECT_EQ(seen.find("Content-Length"), seen.rfind("Content-Length")) << "two responses";
      const auto body = parse_json(seen.substr(seen.find("\r\n\r\n") + 4));
      ASSERT_TRUE(body) << seen;
      EXPECT_EQ((*body)["status"], Value(status));
      EXPECT_TRUE((*body)["code"].is_string());
      EXPECT_TRUE((*body)["detail"].is_string());
    }
  }
  EXPECT_TRUE(is_serving(fixture));
  RawClient cut_short(fixture.port);
  cut_short.send(post("Content-Length: 3\r\n") + "a");
  cut_short.half_close();
  EXPECT_TRUE(cut_short.read_all().starts_with("HTTP/1.1 400 "));
}

AE_TEST("http server/a response may be sent later, also after the client has disconnected") {
  std::vector<Responder> waiting;
  int gone = 0;
  ServerFixture fixture([&](HttpRequest request, Responder responder) {
    if (request.path.size() == 1 && request.path[0] == "alive") {
      return echo(std::move(request), std::move(responder));
    }
    responder.on_closed([&] { ++gone; });
    waiting.push_back(std::move(responder));
  });
  RawClient patient(fixture.port);
  patient.send(get("/wait"));
  {
    RawClient leaving(fixture.port);
    leaving.send(get("/wait"));
    EXPECT_TRUE(is_serving(fixture));
  }
  for (int i = 0; i < 500; ++i) {
    int seen = 0;
    fixture.on_loop([&] { seen = gone; });
    if (seen == 1) break;
    std::this_thread::sleep_for(1ms);
  }
  fixture.on_loop([&] {
    EXPECT_EQ(gone, 1);
    for (Responder& responder : waiting) {
      HttpResponse response;
      response.status = 202;
      response.headers = {{"Location", "/api/jobs/1\r\nX-Evil: 1"}};
      response.body = "{}";
      std::move(responder).answer(std::move(response));
    }
    waiting.clear();
  });
  EXPECT_EQ(patient.read_response(),
            "HTTP/1.1 202 Accepted\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
            "X-Content-Type-Options: nosniff\r\n"
            "Location: /api/jobs/1  X-Evil: 1\r\n\r\n{}");
  fixture.on_loop([&] { EXPECT_EQ(gone, 1); });
}

AE_TEST("http server/a dropped responder answers 500") {
  ServerFixture fixture([](HttpRequest, Responder) {});
  RawClient client(fixture.port);
  client.send(get("/x"));
  const std::string seen = client.read_response();
  EXPECT_TRUE(seen.starts_with("HTTP/1.1 500 "));
  EXPECT_NE(seen.find("unknown_outcome"), std::string::npos);
}

AE_TEST("http server/a Host that is not in the list is rejected over TCP") {
  ServerFixture fixture(echo, {.hosts = {"localhost", "127.0.0.1", "[::1]"}});
  for (const char* host : {"localhost", "LOCALHOST:7070", "127.0.0.1:80", "[::1]:1"}) {
    RawClient client(fixture.port);
    client.send(fmt::format("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", host));
    EXPECT_TRUE(client.read_response().starts_with("HTTP/1.1 200 ")) << host;
  }
  for (const char* host :
       {"evil.example", "localhost.evil.example:7070", "127.0.0.1.evil", "[::2]"}) {
    RawClient client(fixture.port);
    client.send(fmt::format("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", host));
    EXPECT_TRUE(client.read_response().starts_with("HTTP/1.1 400 ")) << host;
  }
}

AE_TEST("http server/a request rejected by its headers is answered without reading its body") {
  HttpServer::Options options;
  options.on_headers = [](HttpRequest head, Responder responder) {
    if (head.header("x-may")) return std::move(responder).read_body(std::move(head), echo);
    std::move(responder).answer(problem(401, "unauthorized", "no"));
  };
  ServerFixture fixture(nullptr, std::move(options));
  const std::string head =
      "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\nExpect: 100-continue\r\n\r\n";
  RawClient stranger(fixture.port);
  stranger.send(head);
  EXPECT_TRUE(stranger.read_until("\r\n\r\n").starts_with("HTTP/1.1 401 "));
  RawClient pushing(fixture.port);
  pushing.send("POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n\r\n");
  pushing.send(std::string(4'000'000, 'x'));
  EXPECT_TRUE(pushing.read_all().starts_with("HTTP/1.1 401 "));
  RawClient known(fixture.port);
  for (int i = 0; i < 2; ++i) {
    known.send(
        "POST /p HTTP/1.1\r\nHost: a\r\nX-May: 1\r\nContent-Length: 3\r\n"
        "Expect: 100-continue\r\n\r\n");
    EXPECT_EQ(known.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    known.send("abc");
    EXPECT_TRUE(known.read_response().ends_with("POST p body abc"));
  }
}

}  // namespace
}  // namespace ae::net::http_server_test
