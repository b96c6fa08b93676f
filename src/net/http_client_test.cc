// HttpClient against correct and faulty servers; no request is ever sent twice.
#include "net/http_client.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>

#include "net/asio_loop.h"
#include "net/system.h"
#include "testing/raw_http_server.h"
#include "testing/test.h"

namespace ae::net {
namespace {

using namespace std::chrono_literals;
using testing::raw_response;
using testing::RawHttpServer;
using Conversation = RawHttpServer::Conversation;

// A loop and a client; `send` waits for the result.
struct SyncClient {
  AsioLoop loop;
  HttpClient client{loop};

  HttpResult send(HttpCall call) {
    HttpResult seen;
    client.start(std::move(call), [&](HttpResult answer) {
      seen = std::move(answer);
      loop.stop();
    });
    loop.run();
    return seen;
  }
};

HttpCall post_to(const RawHttpServer& server, std::string body = "{}") {
  HttpCall call;
  call.method = "POST";
  call.url = server.url("/charges");
  call.body = std::move(body);
  call.total_timeout = 5s;
  return call;
}

HttpCall get_from(const RawHttpServer& server) {
  HttpCall call;
  call.url = server.url("/orders/7?a=b");
  call.new_connection = false;
  call.total_timeout = 5s;
  return call;
}

AE_TEST("client/a complete response has status, ordered headers, body and elapsed time") {
  RawHttpServer server(RawHttpServer::always(
      "HTTP/1.1 201 Created\r\nX-One: 1\r\nx-two:  b c \r\nContent-Length: 4\r\n\r\nab\xff\n"));
  SyncClient sync_client;
  const HttpResult a = sync_client.send(post_to(server, "the body"));
  EXPECT_EQ(a.phase, HttpPhase::complete) << a.error;
  EXPECT_EQ(a.status, 201);
  EXPECT_EQ(a.body, "ab\xff\n");
  ASSERT_EQ(a.headers.size(), 3u);
  EXPECT_EQ(a.headers[0].name, "X-One");
  EXPECT_EQ(a.headers[1].value, "b c");
  EXPECT_EQ(find_header(a.headers, "content-LENGTH"), "4");
  EXPECT_GT(a.elapsed, 0us);
  ASSERT_EQ(server.arrivals(), 1);
  EXPECT_EQ(server.requests()[0].body, "the body");
}

AE_TEST("client/the request is sent exactly as given") {
  RawHttpServer server(RawHttpServer::always(raw_response(200)));
  SyncClient sync_client;
  HttpCall call = post_to(server, std::string("a\0b", 3));
  call.method = "PATCH";
  call.url = server.url("/a/../%2e%2E//b?x=%20#");
  call.headers = {{"X-Empty", ""}, {"Content-Type", "text/plain"}};
  EXPECT_EQ(sync_client.send(call).phase, HttpPhase::complete);
  ASSERT_EQ(server.arrivals(), 1);
  const testing::RawRequest request = server.requests()[0];
  EXPECT_EQ(request.head,
            fmt::format("PATCH /a/../%2e%2E//b?x=%20 HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n"
                        "User-Agent: aetheris\r\nAccept: */*\r\nX-Empty:\r\n"
                        "Content-Type: text/plain\r\nContent-Length: 3\r\n\r\n",
                        server.port()));
  EXPECT_EQ(request.body, std::string("a\0b", 3));
}

AE_TEST("client/HEAD has no body, an empty POST sends its length, a large body sends no Expect") {
  RawHttpServer server([](Conversation& c) {
    while (auto request = c.read_request()) {
      const bool head = request->head.starts_with("HEAD");
      c.send(head ? "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" : raw_response(200, "{}"));
    }
  });
  SyncClient sync_client;
  HttpCall call = post_to(server, "");
  EXPECT_EQ(sync_client.send(call).phase, HttpPhase::complete);
  call.method = "HEAD";
  EXPECT_EQ(sync_client.send(call).phase, HttpPhase::complete);
  call.method = "DELETE";
  EXPECT_EQ(sync_client.send(call).phase, HttpPhase::complete);
  call.method = "PUT";
  call.body = std::string(3 << 20, 'x');
  EXPECT_EQ(sync_client.send(call).phase, HttpPhase::complete);
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 4u);
  EXPECT_EQ(requests[0].header("Content-Length"), "0");
  EXPECT_EQ(requests[0].header("Content-Type"), "");
  EXPECT_EQ(requests[1].header("Content-Length"), "");
  EXPECT_TRUE(requests[2].head.starts_with("DELETE /charges "));
  EXPECT_EQ(requests[3].header("Expect"), "");
  EXPECT_EQ(requests[3].body.size(), 3u << 20);
}

AE_TEST("client/an invalid request opens no connection") {
  RawHttpServer server(RawHttpServer::always(raw_response(200)));
  SyncClient sync_client;
  const auto expect_invalid = [&](auto change) {
    HttpCall call = post_to(server);
    change(call);
    const HttpResult a = sync_client.send(call);
    EXPECT_EQ(a.phase, HttpPhase::invalid) << call.url;
    EXPECT_FALSE(a.error.empty());
  };
  expect_invalid([](HttpCall& c) { c.url = "ftp://127.0.0.1/"; });
  expect_invalid([](HttpCall& c) { c.url = "file:///etc/passwd"; });
  expect_invalid([](HttpCall& c) { c.url += " x"; });
  expect_invalid([](HttpCall& c) { c.url += "\r\nX: y"; });
  expect_invalid([](HttpCall& c) { c.url += "\xc3\xa4"; });
  expect_invalid(
      [&](HttpCall& c) { c.url = fmt::format("http://me:pw@127.0.0.1:{}/", server.port()); });
  expect_invalid([&](HttpCall& c) { c.url = "http://127.0.0.1:999999/"; });
  expect_invalid([](HttpCall& c) { c.method = "PO ST"; });
  expect_invalid([](HttpCall& c) { c.method = "CONNECT"; });
  expect_invalid([](HttpCall& c) { c.method = ""; });
  expect_invalid([](HttpCall& c) { c.method = "GET"; });
  expect_invalid([](HttpCall& c) { c.headers = {{"X", "a\nY: b"}}; });
  expect_invalid([](HttpCall& c) { c.headers = {{"X", std::string("a\0", 2)}}; });
  expect_invalid([](HttpCall& c) { c.headers = {{"X y", "a"}}; });
  expect_invalid([](HttpCall& c) { c.headers = {{"X:", "a"}}; });
  EXPECT_EQ(server.connections(), 0);
}

AE_TEST("client/an unknown host or a refused connection fails without sending") {
  SyncClient sync_client;
  HttpCall call;
  call.url = "http://nobody.invalid/";
  HttpResult a = sync_client.send(call);
  EXPECT_EQ(a.phase, HttpPhase::resolve_failed) << a.error;
  EXPECT_FALSE(a.sent());
  int port;
  {
    RawHttpServer gone([](Conversation&) {});
    port = gone.port();
  }
  call.url = fmt::format("http://127.0.0.1:{}/", port);
  a = sync_client.send(call);
  EXPECT_EQ(a.phase, HttpPhase::connect_failed) << a.error;
  EXPECT_FALSE(a.timed_out);
}

// While it exists, this process cannot open descriptors, even if another thread closes some.
struct NoDescriptors {
  rlimit before{};
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before);
    const rlimit none{STDERR_FILENO + 1, before.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before); }
};

AE_TEST("client/without file descriptors a call is not sent and can be retried") {
  RawHttpServer server(RawHttpServer::always(raw_response(200, "{}")));
  SyncClient sync_client;
  HttpCall named = post_to(server);
  named.url = "http://nobody.invalid/";
  {  // first use opens files in the sanitizer, also when a server thread ends
    RawHttpServer first(RawHttpServer::always(raw_response(200, "{}")));
    EXPECT_EQ(sync_client.send(post_to(first)).phase, HttpPhase::complete);
    EXPECT_EQ(sync_client.send(named).phase, HttpPhase::resolve_failed);
  }
  HttpResult a, b;
  {  // only the calls
    const NoDescriptors none;
    a = sync_client.send(post_to(server));
    b = sync_client.send(named);
  }
  EXPECT_EQ(a.phase, HttpPhase::not_sent) << a.error;
  EXPECT_NE(a.error.find("Too many open files"), std::string::npos) << a.error;
  EXPECT_FALSE(a.sent());
  EXPECT_EQ(b.phase, HttpPhase::not_sent);
  EXPECT_EQ(sync_client.send(post_to(server)).phase, HttpPhase::complete);
}

AE_TEST("client/a TLS handshake with a plaintext server fails before the request") {
  RawHttpServer server([](Conversation& c) {
    c.send("220 hello\r\n");
    c.hang();
  });
  SyncClient sync_client;
  HttpCall call = post_to(server);
  call.url = fmt::format("https://127.0.0.1:{}/", server.port());
  const HttpResult a = sync_client.send(call);
  EXPECT_EQ(a.phase, HttpPhase::tls_failed) << a.error;
}

AE_TEST("client/a TLS handshake with a silent server ends by the connect timeout") {
  RawHttpServer server([](Conversation& c) { c.hang(); });
  SyncClient sync_client;
  HttpCall call = post_to(server);
  call.url = fmt::format("https://127.0.0.1:{}/", server.port());
  call.connect_timeout = 50ms;
  const HttpResult a = sync_client.send(call);
  EXPECT_EQ(a.phase, HttpPhase::connect_failed) << a.error;
  EXPECT_TRUE(a.timed_out);
}

AE_TEST("client/a close or reset after the request is sent without a response") {
  for (const bool new_connection : {true, false}) {
    for (const bool rst : {false, true}) {
      RawHttpServer server([rst](Conversation& c) {
        c.read_request();
        if (rst) c.reset();
      });
      SyncClient sync_client;
      HttpCall call = post_to(server);
      call.new_connection = new_connection;
      const HttpResult a = sync_client.send(call);
      EXPECT_EQ(a.phase, HttpPhase::no_response) << a.error;
      EXPECT_FALSE(a.timed_out);
      EXPECT_EQ(server.arrivals(), 1);
    }
  }
}

AE_TEST("client/a connection closed after accept gives no_response") {
  RawHttpServer server([](Conversation&) {});
  SyncClient sync_client;
  const HttpResult a = sync_client.send(post_to(server));
  EXPECT_EQ(a.phase, HttpPhase::no_response) << a.error;
}

// A classic pooling bug: the server reads the second request on a reused
// connection, applies it and closes.
AE_TEST("client/a request on a reused connection that closes is never resent") {
  for (const bool new_connection : {true, false}) {
    RawHttpServer server([](Conversation& c) {
      if (c.read_request()) c.send(raw_response(200, "{}"));
      c.read_request();  // applies it, then closes
    });
    SyncClient sync_client;
    HttpCall call = post_to(server);
    call.new_connection = new_connection;
    EXPECT_EQ(sync_client.send(call).phase, HttpPhase::complete);
    const HttpResult a = sync_client.send(call);
    EXPECT_EQ(a.phase, new_connection ? HttpPhase::complete : HttpPhase::no_response) << a.error;
    EXPECT_EQ(server.arrivals(), 2);
  }
}

AE_TEST("client/a closed idle connection is not reused") {
  RawHttpServer server([](Conversation& c) {
    if (c.read_request()) c.send(raw_response(200, "{}"));
  });
  SyncClient sync_client;
  EXPECT_EQ(sync_client.send(get_from(server)).phase, HttpPhase::complete);
  // The close has arrived once a second connection has been served and closed.
  HttpCall other = get_from(server);
  other.new_connection = true;
  EXPECT_EQ(sync_client.send(other).phase, HttpPhase::complete);
  EXPECT_EQ(sync_client.send(get_from(server)).phase, HttpPhase::complete);
  EXPECT_EQ(server.arrivals(), 3);
}

AE_TEST("client/calls reuse a connection unless new_connection is set") {
  RawHttpServer server(RawHttpServer::always(raw_response(200, "{}")));
  SyncClient sync_client;
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(sync_client.send(get_from(server)).phase, HttpPhase::complete);
  EXPECT_EQ(server.connections(), 1);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(sync_client.send(post_to(server)).phase, HttpPhase::complete);
  EXPECT_EQ(server.connections(), 4);
  EXPECT_EQ(server.arrivals(), 6);
}

AE_TEST("client/an incomplete response is cut off, with the status if it was received") {
  const struct {
    const char* bytes;
    int status;
  } cases[] = {
      {"HTTP/1.1 200 OK\r\nContent-Le", 0},
      {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", 200},
      {"HTTP/1.1 402 No\r\nContent-Length: 10\r\n\r\n", 402},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", 200},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", 200},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\nab\r\n0\r\n\r\n", 200},
      {"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nabc", 200},
      {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 9\r\n\r\nabc", 200},
      {"HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\nabc", 200},
      {"HTTP/1.1 200 OK\r\nContent-Length: 0x3\r\n\r\nabc", 200},
      {"HTTP/1.1 103 Hints\r\n\r\n", 0},
      {"no http at all\r\n\r\n", 0},
  };
  for (const auto& c : cases) {
    RawHttpServer server([&](Conversation& talk) {
      talk.read_request();
      talk.send(c.bytes);
    });
    SyncClient sync_client;
    const HttpResult a = sync_client.send(post_to(server));
    EXPECT_TRUE(a.phase == HttpPhase::cut_off || a.phase == HttpPhase::no_response)
        << c.bytes << a.error;
    if (c.status != 0) {
      EXPECT_EQ(a.status, c.status) << c.bytes;
    }
    EXPECT_FALSE(a.error.empty());
    EXPECT_EQ(server.arrivals(), 1) << c.bytes;
  }
}

AE_TEST("client/a response ends at its length, or without one at the close") {
  RawHttpServer longer(RawHttpServer::always(
      "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabHTTP/1.1 500 X\r\n\r\n"));
  SyncClient sync_client;
  HttpResult a = sync_client.send(post_to(longer));
  EXPECT_EQ(a.phase, HttpPhase::complete);
  EXPECT_EQ(a.status, 200);
  EXPECT_EQ(a.body, "ab");
  RawHttpServer closing([](Conversation& c) {
    c.read_request();
    c.send("HTTP/1.0 200 OK\r\n\r\nabc");
  });
  a = sync_client.send(post_to(closing));
  EXPECT_EQ(a.phase, HttpPhase::complete);
  EXPECT_EQ(a.body, "abc");
}

AE_TEST("client/redirects are returned, never followed") {
  RawHttpServer target(RawHttpServer::always(raw_response(200)));
  RawHttpServer server(RawHttpServer::always(
      raw_response(307, "", "text/plain", fmt::format("Location: {}\r\n", target.url()))));
  SyncClient sync_client;
  const HttpResult a = sync_client.send(post_to(server));
  EXPECT_EQ(a.phase, HttpPhase::complete);
  EXPECT_EQ(a.status, 307);
  EXPECT_EQ(target.connections(), 0);
  EXPECT_EQ(server.arrivals(), 1);
}

AE_TEST("client/a hanging or trickling server ends by the total timeout") {
  for (const bool trickle : {false, true}) {
    RawHttpServer server([trickle](Conversation& c) {
      c.read_request();
      if (!trickle) c.hang();
      c.send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
      while (c.wait(5ms) && c.send("x")) {
      }
    });
    SyncClient sync_client;
    HttpCall call = post_to(server);
    call.total_timeout = 60ms;
    const HttpResult a = sync_client.send(call);
    EXPECT_TRUE(a.timed_out);
    EXPECT_EQ(a.phase, trickle ? HttpPhase::cut_off : HttpPhase::no_response);
    EXPECT_GE(a.elapsed, 60ms);
    EXPECT_LT(a.elapsed, 3s);
    EXPECT_EQ(server.arrivals(), 1);
  }
}

AE_TEST("client/informational responses are skipped, a flood of them is cut off") {
  RawHttpServer some([](Conversation& c) {
    c.read_request();
    c.send("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nX: early\r\n\r\n" +
           raw_response(200, "{}"));
  });
  SyncClient sync_client;
  HttpResult a = sync_client.send(post_to(some));
  EXPECT_EQ(a.phase, HttpPhase::complete);
  EXPECT_EQ(a.status, 200);
  EXPECT_FALSE(find_header(a.headers, "X"));
  RawHttpServer flood([](Conversation& c) {
    c.read_request();
    while (c.send("HTTP/1.1 103 Early\r\nX: early\r\n\r\n")) {
    }
  });
  a = sync_client.send(post_to(flood));
  EXPECT_EQ(a.phase, HttpPhase::cut_off) << a.error;
  EXPECT_EQ(a.status, 0);
  EXPECT_EQ(flood.arrivals(), 1);
  RawHttpServer headers([](Conversation& c) {
    c.read_request();
    c.send("HTTP/1.1 200 OK\r\n");
    while (c.send(fmt::format("X-Some: {}\r\n", std::string(1000, 'x')))) {
    }
  });
  a = sync_client.send(post_to(headers));
  EXPECT_EQ(a.phase, HttpPhase::cut_off) << a.error;
}

AE_TEST("client/a too large header of any size fails with the limit in the message") {
  for (const std::size_t size : {70'000U, 200'000U, 5'000'000U}) {
    RawHttpServer server([size](Conversation& c) {
      c.read_request();
      c.send(fmt::format("HTTP/1.1 200 OK\r\nX-Some: {}\r\n\r\n", std::string(size, 'x')));
    });
    SyncClient sync_client;
    const HttpResult a = sync_client.send(post_to(server));
    EXPECT_EQ(a.phase, HttpPhase::cut_off) << size;
    EXPECT_EQ(a.error, "the answer's headers are larger than 65536 bytes") << size;
  }
}

AE_TEST(
    "client/a response over the limit is read up to the limit plus one byte, in bounded memory") {
  RawHttpServer server([](Conversation& c) {
    c.read_request();
    const std::string piece(1 << 16, 'x');
    c.send("HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n");
    for (int i = 0; i < 1 << 14 && c.send(piece); ++i) {
    }
  });
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  SyncClient sync_client;
  HttpCall call = post_to(server);
  call.response_max = 100'000;
  const HttpResult a = sync_client.send(call);
  getrusage(RUSAGE_SELF, &after);
  EXPECT_EQ(a.phase, HttpPhase::cut_off);
  EXPECT_TRUE(a.too_large);
  EXPECT_EQ(a.status, 200);
  EXPECT_EQ(a.body, std::string(100'001, 'x'));
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 << 10) << "KiB more than before";
  EXPECT_EQ(server.arrivals(), 1);
}

// The result of an event stream, and the bytes passed to on_event_bytes.
std::pair<HttpResult, std::string> read_event_stream(const RawHttpServer& server, bool keeps,
                                                     std::size_t response_max) {
  SyncClient sync_client;
  std::string received;
  HttpCall call = post_to(server);
  call.response_max = response_max;
  call.keep_event_body = keeps;
  call.on_event_bytes = [&](const HttpHeaders&, const std::string& bytes) { received += bytes; };
  HttpResult answer = sync_client.send(std::move(call));
  return {std::move(answer), std::move(received)};
}

AE_TEST("client/an event stream is passed to the callback, and kept only with keep_event_body") {
  const std::string events = "data: 1\n\ndata: 2\n\n";
  RawHttpServer stream(RawHttpServer::always(
      raw_response(200, events, "text/event-stream", "Connection: close\r\n")));
  for (const bool keeps : {true, false}) {
    const auto [whole, received] = read_event_stream(stream, keeps, events.size());
    EXPECT_EQ(whole.phase, HttpPhase::complete);
    EXPECT_EQ(whole.body, keeps ? events : "");
    EXPECT_EQ(received, events);
    const auto [cut, begun] = read_event_stream(stream, keeps, 10);
    EXPECT_TRUE(cut.too_large) << "the limit applies also to a discarded body";
    EXPECT_EQ(begun, events.substr(0, 11));
  }
  RawHttpServer other(RawHttpServer::always(raw_response(500, "no", "text/event-stream")));
  const auto [failed, nothing] = read_event_stream(other, false, 100);
  EXPECT_EQ(failed.body, "no") << "not a stream";
  EXPECT_EQ(nothing, "");
}

AE_TEST("client/a response of exactly the limit is complete") {
  RawHttpServer server(RawHttpServer::always(raw_response(200, std::string(1000, 'x'))));
  SyncClient sync_client;
  HttpCall call = post_to(server);
  call.response_max = 1000;
  EXPECT_EQ(sync_client.send(call).phase, HttpPhase::complete);
  call.response_max = 999;
  EXPECT_TRUE(sync_client.send(call).too_large);
}

AE_TEST("client/compressed bodies are not decoded and cookies are not stored") {
  RawHttpServer server(RawHttpServer::always(
      raw_response(200, "\x1f\x8b???", "x/y", "Content-Encoding: gzip\r\nSet-Cookie: a=b\r\n")));
  SyncClient sync_client;
  EXPECT_EQ(sync_client.send(get_from(server)).body, "\x1f\x8b???");
  EXPECT_EQ(sync_client.send(get_from(server)).phase, HttpPhase::complete);
  for (const auto& request : server.requests()) {
    EXPECT_EQ(request.header("Cookie"), "");
    EXPECT_EQ(request.header("Accept-Encoding"), "");
  }
}

AE_TEST("client/the proxy of the environment is ignored, a configured proxy is used") {
  RawHttpServer proxy(RawHttpServer::always(raw_response(200, "proxy")));
  RawHttpServer server(RawHttpServer::always(raw_response(200, "server")));
  setenv("http_proxy", proxy.url("").c_str(), 1);
  setenv("ALL_PROXY", proxy.url("").c_str(), 1);
  {
    SyncClient sync_client;
    EXPECT_EQ(sync_client.send(get_from(server)).body, "server");
  }
  unsetenv("http_proxy");
  unsetenv("ALL_PROXY");
  AsioLoop loop;
  HttpClient client(loop, {.proxy = proxy.url("")});
  std::string body;
  client.start(get_from(server), [&](HttpResult a) {
    body = a.body;
    loop.stop();
  });
  loop.run();
  EXPECT_EQ(body, "proxy");
}

AE_TEST("client/Retry-After is parsed as seconds or as a date") {
  SyncClient sync_client;
  RawHttpServer seconds(RawHttpServer::always(raw_response(429, "", "x/y", "Retry-After: 7\r\n")));
  EXPECT_EQ(sync_client.send(get_from(seconds)).retry_after, Duration(7s));
  RawHttpServer date(RawHttpServer::always(
      raw_response(503, "", "x/y", "Retry-After: Fri, 01 Jan 2100 00:00:00 GMT\r\n")));
  const auto after = sync_client.send(get_from(date)).retry_after;
  ASSERT_TRUE(after);
  EXPECT_GT(*after, 1h);
  RawHttpServer nonsense(RawHttpServer::always(raw_response(503, "", "x/y", "Retry-After: x\r\n")));
  EXPECT_FALSE(sync_client.send(get_from(nonsense)).retry_after);
}

AE_TEST("client/a call that cannot be sent within send_within is not sent") {
  RawHttpServer server([](Conversation& c) { c.hang(); });
  SyncClient sync_client;
  HttpCall call = post_to(server);
  call.send_within = -1ms;
  HttpResult a = sync_client.send(call);
  EXPECT_EQ(a.phase, HttpPhase::not_sent);
  EXPECT_EQ(server.arrivals(), 0);
  // The TLS handshake stalls, so the request is never sent.
  call.url = fmt::format("https://127.0.0.1:{}/", server.port());
  call.send_within = 40ms;
  a = sync_client.send(call);
  EXPECT_EQ(a.phase, HttpPhase::not_sent);
  EXPECT_FALSE(a.timed_out);
}

AE_TEST("client/a cancelled call reports whether it was sent, and completes once") {
  RawHttpServer server([](Conversation& c) {
    c.read_request();
    c.hang();
  });
  SyncClient sync_client;
  HttpResult a;
  int answers = 0;
  const auto done = [&](HttpResult answer) {
    a = std::move(answer);
    ++answers;
    sync_client.loop.stop();
  };
  HttpCall unsent = post_to(server);
  unsent.url = fmt::format("https://127.0.0.1:{}/", server.port());
  HttpClient::Id id = sync_client.client.start(unsent, done);
  sync_client.client.cancel(id);
  sync_client.client.cancel(id);
  sync_client.loop.run();
  EXPECT_EQ(a.phase, HttpPhase::not_sent);
  EXPECT_TRUE(a.cancelled);

  id = sync_client.client.start(post_to(server), done);
  std::move_only_function<void()> poll_arrivals = [&] {
    if (server.arrivals() == 0) {
      sync_client.loop.after(1ms, [&] { poll_arrivals(); });
    } else {
      sync_client.client.cancel(id);
    }
  };
  poll_arrivals();
  sync_client.loop.run();
  EXPECT_EQ(a.phase, HttpPhase::no_response);
  EXPECT_TRUE(a.cancelled);
  EXPECT_TRUE(a.sent());
  sync_client.client.cancel(id);
  sync_client.client.cancel(4711);
  sync_client.loop.after(5ms, [&] { sync_client.loop.stop(); });
  sync_client.loop.run();
  EXPECT_EQ(answers, 2);
}

AE_TEST("client/destroying the client completes calls in flight as cancelled") {
  RawHttpServer server([](Conversation& c) { c.hang(); });
  AsioLoop loop;
  int answers = 0;
  {
    HttpClient client(loop);
    for (int i = 0; i < 3; ++i) {
      client.start(post_to(server), [&](HttpResult a) {
        EXPECT_TRUE(a.cancelled);
        if (++answers == 3) loop.stop();
      });
    }
  }
  loop.run();
  EXPECT_EQ(answers, 3);
}

AE_TEST("client/calls over calls_max are not sent, calls over connections_max wait") {
  RawHttpServer server(RawHttpServer::always(raw_response(200, "{}")));
  AsioLoop loop;
  HttpClient client(loop, {.calls_max = 20, .connections_max = 2});
  int complete = 0, not_sent = 0;
  for (int i = 0; i < 50; ++i) {
    client.start(post_to(server), [&](HttpResult a) {
      if (a.phase == HttpPhase::complete) ++complete;
      if (a.phase == HttpPhase::not_sent) ++not_sent;
      if (complete + not_sent == 50) loop.stop();
    });
  }
  loop.run();
  EXPECT_GE(complete, 20);
  EXPECT_EQ(server.arrivals(), complete);
}

AE_TEST("client/concurrent calls each arrive once and complete once") {
  RawHttpServer server([](Conversation& c) {
    while (auto request = c.read_request()) c.send(raw_response(200, request->body));
  });
  AsioLoop loop;
  HttpClient client(loop);
  int left = 200;
  for (int i = 0; i < 200; ++i) {
    HttpCall call = post_to(server, std::to_string(i));
    call.new_connection = i % 2 == 0;
    client.start(call, [&, i](HttpResult a) {
      EXPECT_EQ(a.body, std::to_string(i)) << a.error;
      if (--left == 0) loop.stop();
    });
  }
  loop.run();
  EXPECT_EQ(server.arrivals(), 200);
}

AE_TEST("client/a Unix socket is reached, also by a path longer than sun_path") {
  for (const std::size_t depth : {1u, 30u}) {
    std::string folder = fmt::format("{}ae_client_test.{}", ::testing::TempDir(), getpid());
    std::vector<std::string> folders;
    for (std::size_t i = 0; i < depth; ++i) {
      folders.push_back(folder);
      ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
      folder += "/folder";
    }
    const std::string path = folders.back() + "/s.sock";
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    ASSERT_EQ(chdir(folders.back().c_str()), 0);
    std::snprintf(address.sun_path, sizeof address.sun_path, "s.sock");
    ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(chdir("/"), 0);
    ASSERT_EQ(listen(fd, 1), 0);
    std::thread server([fd] {
      const int client = accept(fd, nullptr, nullptr);
      char bytes[1000];
      EXPECT_GT(recv(client, bytes, sizeof bytes, 0), 0);
      const std::string answer = raw_response(200, "\"unix\"");
      EXPECT_EQ(send(client, answer.data(), answer.size(), 0), static_cast<ssize_t>(answer.size()));
      close(client);
    });
    SyncClient sync_client;
    HttpCall call;
    call.url = "http://localhost/api/jobs";
    call.unix_socket = path;
    EXPECT_EQ(sync_client.send(call).body, "\"unix\"");
    server.join();
    close(fd);
    unlink(path.c_str());
    for (auto f = folders.rbegin(); f != folders.rend(); ++f) rmdir(f->c_str());
    HttpResult a = sync_client.send(call);
    EXPECT_EQ(a.phase, HttpPhase::connect_failed) << a.error;
  }
}

}  // namespace
}  // namespace ae::net
