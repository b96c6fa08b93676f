// HttpServer against correct and faulty clients, over real sockets.
#include "net/http_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>

#include "json/json.h"
#include "net/asio_loop.h"
#include "net/http_client.h"
#include "testing/test.h"

namespace ae::net {
namespace {

using namespace std::chrono_literals;

// A loop on its own thread, and a server on it.
struct ServerFixture {
  explicit ServerFixture(HttpServer::Handler handler, HttpServer::Options options = {})
      : server(std::make_unique<HttpServer>(loop, std::move(handler), std::move(options))) {
    auto listening = server->listen_tcp("127.0.0.1", 0);
    EXPECT_TRUE(listening);
    port = listening.value_or(0);
    thread = std::thread([this] { loop.run(); });
  }
  ~ServerFixture() {
    on_loop([this] { server.reset(); });
    loop.stop();
    thread.join();
  }
  // Runs `task` on the loop and waits.
  void on_loop(std::function<void()> task) {
    std::promise<void> done;
    loop.post([&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  }

  AsioLoop loop;
  std::unique_ptr<HttpServer> server;
  std::uint16_t port = 0;
  std::thread thread;
};

// A client on a bare socket.
class RawClient {
 public:
  explicit RawClient(std::uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~RawClient() { close(fd_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  void half_close() { shutdown(fd_, SHUT_WR); }
  void reset() {
    const linger now{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(std::exchange(fd_, -1));
  }

  // Reads until the connection ends; five seconds at most.
  std::string read_all() {
    while (read_more()) {
    }
    return std::exchange(seen_, {});
  }
  // Reads up to and including `text`.
  std::string read_until(std::string_view text) {
    std::size_t at;
    while ((at = seen_.find(text)) == std::string::npos) {
      if (!read_more()) return std::exchange(seen_, {});
    }
    const std::string taken = seen_.substr(0, at + text.size());
    seen_.erase(0, taken.size());
    return taken;
  }
  // Reads at least `size` bytes and discards them.
  void read_bytes(std::size_t size) {
    std::size_t have = seen_.size();
    while (have < size && read_more()) have += std::exchange(seen_, {}).size();
  }
  // One response with a Content-Length.
  std::string read_response() {
    std::string head = read_until("\r\n\r\n");
    const std::size_t at = head.find("Content-Length: ");
    const std::size_t size = at == std::string::npos ? 0 : std::stoul(head.substr(at + 16));
    while (seen_.size() < size && read_more()) {
    }
    head += seen_.substr(0, size);
    seen_.erase(0, size);
    return head;
  }

  // Which of the two becomes readable within five seconds.
  const RawClient* wait_readable(const RawClient& other) const {
    pollfd ready[2] = {{fd_, POLLIN, 0}, {other.fd_, POLLIN, 0}};
    if (poll(ready, 2, 5000) < 1) return nullptr;
    return ready[0].revents != 0 ? this : &other;
  }

 private:
  bool read_more() {
    pollfd ready{fd_, POLLIN, 0};
    if (poll(&ready, 1, 5000) != 1) return false;
    char bytes[65536];
    const ssize_t n = recv(fd_, bytes, sizeof bytes, 0);
    if (n > 0) seen_.append(bytes, static_cast<std::size_t>(n));
    return n > 0;
  }
  int fd_;
  std::string seen_;
};

void echo(HttpRequest request, Responder responder) {
  HttpResponse response;
  response.content_type = "text/plain";
  response.body = request.method;
  for (const std::string& segment : request.path) response.body += " " + segment;
  for (const auto& [key, value] : request.query) response.body += " " + key + "=" + value;
  if (!request.body.empty()) response.body += " body " + request.body;
  std::move(responder).answer(std::move(response));
}

std::string get(std::string_view target, std::string_view headers = {}) {
  return "GET " + std::string(target) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(headers) +
         "\r\n";
}

bool is_serving(ServerFixture& fixture) {
  RawClient client(fixture.port);
  client.send(get("/alive"));
  return client.read_response().ends_with("\r\n\r\nGET alive");
}

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
  for (int i = 0; i < 1000; ++i) many += get("/" + std::to_string(i));
  std::thread sender([&] { client.send(many); });
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(client.read_response().ends_with("GET " + std::to_string(i)));
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
  const auto post = [](std::string headers) {
    return "POST /x HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n";
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
      EXPECT_TRUE(seen.starts_with("HTTP/1.1 " + std::to_string(status) + " "))
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

AE_TEST("http server/a stream is sent in chunks, and the connection stays usable") {
  HttpStream kept;
  ServerFixture fixture([&](HttpRequest request, Responder responder) {
    if (request.path[0] != "stream") return echo(std::move(request), std::move(responder));
    HttpResponse head;
    head.content_type = "text/event-stream";
    kept = std::move(responder).begin(std::move(head));
    EXPECT_TRUE(kept.write("data: 1\n\n"));
  });
  RawClient client(fixture.port);
  client.send(get("/stream"));
  EXPECT_EQ(client.read_until("data: 1\n\n\r\n"),
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
            "X-Content-Type-Options: nosniff\r\n\r\n"
            "9\r\ndata: 1\n\n\r\n");
  fixture.on_loop([&] { kept.write("data: 2\n\n"); });
  EXPECT_EQ(client.read_until("2\n\n\r\n"), "9\r\ndata: 2\n\n\r\n");
  fixture.on_loop([&] {
    kept.write("");
    kept.end();
    EXPECT_TRUE(kept.closed());
    kept.write("late");
  });
  EXPECT_EQ(client.read_until("0\r\n\r\n"), "0\r\n\r\n");
  client.send(get("/next"));
  EXPECT_TRUE(client.read_response().ends_with("GET next"));
  RawClient old(fixture.port);
  old.send("GET /stream HTTP/1.0\r\n\r\n");
  old.read_until("data: 1\n\n");
  fixture.on_loop([&] {
    kept.write("x");
    kept.end();
  });
  EXPECT_EQ(old.read_all(), "x");
}

AE_TEST("http server/a dropped stream is closed without its last chunk") {
  HttpStream kept;
  ServerFixture fixture(
      [&](HttpRequest, Responder responder) { kept = std::move(responder).begin({}); });
  RawClient client(fixture.port);
  client.send(get("/"));
  client.read_until("\r\n\r\n");
  fixture.on_loop([&] { kept = HttpStream(); });
  EXPECT_EQ(client.read_all(), "");
}

AE_TEST("http server/a stream reports that its client disconnected") {
  HttpStream kept;
  std::promise<void> closed;
  ServerFixture fixture([&](HttpRequest, Responder responder) {
    kept = std::move(responder).begin({});
    kept.on_closed([&] { closed.set_value(); });
  });
  RawClient client(fixture.port);
  client.send(get("/"));
  client.read_until("\r\n\r\n");
  client.reset();
  EXPECT_EQ(closed.get_future().wait_for(5s), std::future_status::ready);
  fixture.on_loop([&] {
    EXPECT_TRUE(kept.closed());
    EXPECT_TRUE(kept.write("x"));
    kept = HttpStream();
  });
}

AE_TEST(
    "http server/a slow reader causes backpressure, a client that never reads is disconnected") {
  HttpStream kept;
  int drained = 0;
  bool closed = false;
  ServerFixture fixture(
      [&](HttpRequest, Responder responder) {
        kept = std::move(responder).begin({});
        kept.on_drained([&] { ++drained; });
        kept.on_closed([&] { closed = true; });
      },
      {.stream_max = 400'000, .stream_high = 100'000});
  const std::string piece(50'000, 'x');
  std::size_t written = 0;
  const auto fill = [&] {
    for (int i = 0; i < 10'000; ++i) {
      written += piece.size();
      if (!kept.write(piece)) return;
    }
    FAIL() << "write() never returned false";
  };
  RawClient client(fixture.port);
  client.send(get("/"));
  client.read_until("\r\n\r\n");
  fixture.on_loop(fill);
  client.read_bytes(written);
  for (int i = 0; i < 1000; ++i) {
    int now = 0;
    fixture.on_loop([&] { now = drained; });
    if (now == 1) break;
    std::this_thread::sleep_for(1ms);
  }
  fixture.on_loop([&] {
    EXPECT_EQ(drained, 1);
    fill();
    for (int i = 0; i < 20; ++i) kept.write(piece);  // ignores the return value
    EXPECT_TRUE(kept.closed());
  });
  fixture.on_loop([&] { EXPECT_TRUE(closed); });
  fixture.on_loop([&] { kept = HttpStream(); });
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

AE_TEST("http server/a Host that is not in the list is rejected over TCP") {
  ServerFixture fixture(echo, {.hosts = {"localhost", "127.0.0.1", "[::1]"}});
  for (const char* host : {"localhost", "LOCALHOST:7070", "127.0.0.1:80", "[::1]:1"}) {
    RawClient client(fixture.port);
    client.send("GET / HTTP/1.1\r\nHost: " + std::string(host) + "\r\n\r\n");
    EXPECT_TRUE(client.read_response().starts_with("HTTP/1.1 200 ")) << host;
  }
  for (const char* host :
       {"evil.example", "localhost.evil.example:7070", "127.0.0.1.evil", "[::2]"}) {
    RawClient client(fixture.port);
    client.send("GET / HTTP/1.1\r\nHost: " + std::string(host) + "\r\n\r\n");
    EXPECT_TRUE(client.read_response().starts_with("HTTP/1.1 400 ")) << host;
  }
}

AE_TEST("http server/stop() finishes responses, ends streams and idle connections, then reports") {
  std::vector<Responder> waiting;
  HttpStream kept;
  bool stream_closed = false;
  ServerFixture fixture([&](HttpRequest request, Responder responder) {
    if (request.path[0] == "stream") {
      kept = std::move(responder).begin({});
      kept.on_closed([&] { stream_closed = true; });
    } else {
      waiting.push_back(std::move(responder));
    }
  });
  RawClient idle(fixture.port), waits(fixture.port), streams(fixture.port);
  waits.send(get("/wait"));
  streams.send(get("/stream"));
  streams.read_until("\r\n\r\n");
  for (std::size_t open = 0; open < 1;) fixture.on_loop([&] { open = waiting.size(); });
  std::promise<void> stopped;
  fixture.on_loop([&] { fixture.server->stop(5s, [&] { stopped.set_value(); }); });
  EXPECT_EQ(idle.read_all(), "");
  EXPECT_EQ(streams.read_all(), "0\r\n\r\n");
  fixture.on_loop([&] {
    EXPECT_TRUE(stream_closed);
    std::move(waiting[0]).answer({.body = "1"});
    waiting.clear();
  });
  EXPECT_TRUE(waits.read_all().ends_with("\r\n\r\n1"));
  streams.reset();
  waits.reset();
  EXPECT_EQ(stopped.get_future().wait_for(5s), std::future_status::ready);
  fixture.on_loop([&] { kept = HttpStream(); });
}

AE_TEST("http server/stop() disconnects remaining clients after the grace period") {
  std::vector<Responder> waiting;
  ServerFixture fixture(
      [&](HttpRequest, Responder responder) { waiting.push_back(std::move(responder)); });
  RawClient client(fixture.port);
  client.send(get("/wait"));
  for (std::size_t open = 0; open < 1;) fixture.on_loop([&] { open = waiting.size(); });
  std::promise<void> stopped;
  fixture.on_loop([&] { fixture.server->stop(10ms, [&] { stopped.set_value(); }); });
  EXPECT_EQ(stopped.get_future().wait_for(5s), std::future_status::ready);
  EXPECT_EQ(client.read_all(), "");
  fixture.on_loop([&] { waiting.clear(); });
}

// ---- listening

struct Folder {
  Folder() : path(::testing::TempDir() + "ae_server_test.XXXXXX") {
    EXPECT_NE(mkdtemp(path.data()), nullptr);
  }
  ~Folder() { rmdir(path.c_str()); }
  std::string path;
};

AE_TEST("http server/a Unix socket has mode 0600, serves clients and is removed at the end") {
  const Folder folder;
  const std::string path = folder.path + "/aetheris.sock";
  {
    ServerFixture fixture(echo);
    fixture.on_loop([&] { EXPECT_TRUE(fixture.server->listen_unix(path)); });
    struct stat status{};
    ASSERT_EQ(stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    AsioLoop loop;
    HttpClient client(loop);
    HttpCall call;
    call.url = "http://localhost/api/jobs/1";
    call.unix_socket = path;
    client.start(call, [&](HttpResult answer) {
      EXPECT_EQ(answer.body, "GET api jobs 1") << answer.error;
      loop.stop();
    });
    loop.run();
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

AE_TEST("http server/a live socket or another file is never replaced, a stale socket is") {
  const Folder folder;
  const std::string path = folder.path + "/s.sock";
  AsioLoop loop;
  {
    HttpServer first(loop, echo), second(loop, echo);
    EXPECT_TRUE(first.listen_unix(path));
    const Status refused = second.listen_unix(path);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::held);
  }
  // A socket file left by a killed process.
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s", path.c_str());
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  close(fd);
  {
    HttpServer server(loop, echo);
    EXPECT_TRUE(server.listen_unix(path));
    // Another file replaces the socket: the server must not remove it.
    ASSERT_EQ(unlink(path.c_str()), 0);
    close(open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    HttpServer other(loop, echo);
    const Status refused = other.listen_unix(path);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::held);
  }
  EXPECT_EQ(unlink(path.c_str()), 0);
  HttpServer server(loop, echo);
  EXPECT_FALSE(server.listen_unix(folder.path + "/no/such/folder/s.sock"));
}

AE_TEST("http server/listen_tcp reports the port, a port in use and an invalid address") {
  AsioLoop loop;
  HttpServer server(loop, echo), other(loop, echo);
  const auto port = server.listen_tcp("localhost", 0);
  ASSERT_TRUE(port);
  EXPECT_NE(*port, 0);
  const auto taken = other.listen_tcp("127.0.0.1", *port);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, Code::held);
  const auto name = other.listen_tcp("example.com", 0);
  ASSERT_FALSE(name);
  EXPECT_EQ(name.error().code, Code::input_invalid);
  EXPECT_FALSE(other.listen_tcp("192.0.2.1", 0));
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

AE_TEST("http server/bodies over the total limit are rejected, small ones are accepted") {
  HttpServer::Options options;
  options.bodies_max = 100'000;
  ServerFixture fixture(echo, std::move(options));
  const std::string head = "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n";
  // The later one is refused; the kernel decides which that is.
  RawClient first(fixture.port), second(fixture.port);
  first.send(head + std::string(90'000, 'x'));
  second.send(head + std::string(90'000, 'x'));
  const bool first_is_refused = first.wait_readable(second) == &first;
  const std::string refused = (first_is_refused ? first : second).read_until("\r\n\r\n");
  EXPECT_TRUE(refused.starts_with("HTTP/1.1 503 ")) << refused;
  EXPECT_NE(refused.find("Retry-After: 1\r\n"), std::string::npos);
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
  const std::string refused = other.read_until("\r\n\r\n");
  EXPECT_TRUE(refused.starts_with("HTTP/1.1 503 ")) << refused.substr(0, 200);
  EXPECT_NE(refused.find("Retry-After: 1\r\n"), std::string::npos);
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
}  // namespace ae::net
