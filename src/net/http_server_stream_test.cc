// HttpStream: chunks, disconnected clients and backpressure.
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "net/http_server_fixture_test.h"
#include "testing/test.h"

namespace ae::net::http_server_test {
namespace {

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

}  // namespace
}  // namespace ae::net::http_server_test
