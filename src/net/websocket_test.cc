// WebSocket: the upgrade, texts in both directions, the ends of a connection, slow clients.
#include "net/websocket.h"

#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "net/http_server_fixture_test.h"
#include "net/websocket_client_test.h"
#include "testing/test.h"

namespace ae::net::http_server_test {
namespace {

// A server whose route /api/worker is a WebSocket that answers each text with it.
struct EchoServer {
  explicit EchoServer(WebSocket::Limits limits = {}, HttpServer::Options options = {})
      : fixture(
            [this, limits](HttpRequest request, Responder responder) {
              if (request.path.back() != "worker") {
                return echo(std::move(request), std::move(responder));
              }
              socket = WebSocket::accept(
                  request, std::move(responder), kSubprotocol,
                  {.on_text =
                       [this](std::string text) {
                         texts.push_back(text);
                         if (text == "drop") return socket.reset();
                         if (text == "close") return socket->close(1008, "enough");
                         socket->send(text);
                       },
                   .on_drained = [this] { drained++; },
                   .on_closed =
                       [this](std::uint16_t code, std::string reason) {
                         closed = {code, std::move(reason)};
                         socket.reset();
                         is_closed.set_value();
                       },
                   .on_stop = [this] { socket->close(1001, "the server stops"); }},
                  limits);
            },
            std::move(options)) {}
  ~EchoServer() {
    fixture.on_loop([this] { socket.reset(); });
  }
  // The code with which the connection ended.
  unsigned wait_closed() {
    EXPECT_EQ(is_closed.get_future().wait_for(5s), std::future_status::ready);
    return closed.first;
  }

  std::unique_ptr<WebSocket> socket;
  std::vector<std::string> texts;
  int drained = 0;
  std::pair<std::uint16_t, std::string> closed;
  std::promise<void> is_closed;
  ServerFixture fixture;
};

AE_TEST("websocket/an upgrade is answered as RFC 6455 has it, then texts go in both directions") {
  EchoServer server;
  RawClient client(server.fixture.port);
  client.send(upgrade_request() + client_frame("early"));
  EXPECT_EQ(client.read_until("\r\n\r\n"),
            "HTTP/1.1 101 Switching Protocols\r\nX-Content-Type-Options: nosniff\r\n"
            "Upgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"
            "Sec-WebSocket-Protocol: aetheris.worker.1\r\n\r\n");
  EXPECT_EQ(client.read_exactly(7),
            "\x81\x05"
            "early");
  for (const char c : client_frame("slow")) client.send(std::string(1, c));
  EXPECT_EQ(client.read_exactly(6), "\x81\x04slow");
  client.send(client_frame("p", 0x89) + client_frame("p", 0x8a) + client_frame("x"));
  EXPECT_EQ(client.read_exactly(6), "\x8a\x01p\x81\x01x");
  const std::string large(3'000'000, 'x');
  client.send(client_frame(large));
  EXPECT_EQ(client.read_exactly(large.size() + 10).substr(10), large);
  client.send(client_frame(close_payload(1000, "done"), 0x88));
  EXPECT_EQ(client.read_all(), std::string("\x88\x06\x03\xe8"
                                           "done",
                                           8));
  EXPECT_EQ(server.wait_closed(), 1000u);
  EXPECT_EQ(server.closed.second, "done");
  EXPECT_TRUE(is_serving(server.fixture));
}

AE_TEST("websocket/a request that is no valid upgrade is answered with an error") {
  EchoServer server;
  const struct {
    const char* status;
    std::string request;
  } cases[] = {
      {" 426 ", get("/api/worker")},
      {" 426 ", upgrade_request("Connection")},
      {" 426 ", upgrade_request("Sec-WebSocket-Version")},
      {" 426 ", upgrade_request("Sec-WebSocket-Version", "Sec-WebSocket-Version: 8\r\n")},
      {" 400 ", upgrade_request("Sec-WebSocket-Key")},
      {" 400 ", upgrade_request("Sec-WebSocket-Key", "Sec-WebSocket-Key: dGhlIHNh\r\n")},
      {" 400 ", upgrade_request("", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n")},
      {" 400 ", upgrade_request("Sec-WebSocket-Protocol")},
      {" 501 ", upgrade_request("Upgrade", "Upgrade: h2c\r\n")},
      {" 426 ", upgrade_request("Upgrade")},
  };
  for (const auto& [status, request] : cases) {
    RawClient client(server.fixture.port);
    client.send(request);
    const std::string response = client.read_response();
    EXPECT_TRUE(response.starts_with(std::string("HTTP/1.1") + status)) << request << response;
    EXPECT_NE(response.find("\"code\":\""), response.npos);
  }
  RawClient with_body(server.fixture.port);
  with_body.send(upgrade_request("", "Content-Length: 3\r\n") + "abc");
  EXPECT_TRUE(with_body.read_response().starts_with("HTTP/1.1 400 "));
  RawClient old(server.fixture.port);
  std::string request = upgrade_request();
  request.replace(request.find("HTTP/1.1"), 8, "HTTP/1.0");
  old.send(request);
  EXPECT_TRUE(old.read_response().starts_with("HTTP/1.1 400 "));
  server.fixture.on_loop([&] { EXPECT_EQ(server.socket, nullptr); });
}

AE_TEST("websocket/a client that breaks the protocol gets the code, and its connection ends") {
  const struct {
    unsigned code;
    std::string bytes;
  } cases[] = {
      {1002, client_frame("x", 0xc1)}, {1003, client_frame("x", 0x82)},
      {1007, client_frame("\xff")},    {1009, client_frame(std::string(2000, 'x'))},
      {1008, client_frame("close")},
  };
  for (const auto& [code, bytes] : cases) {
    EchoServer server({.message_max = 1000});
    RawClient client(server.fixture.port);
    client.send(upgrade_request() + bytes + client_frame("after"));
    EXPECT_EQ(close_code_in(client.read_all()), code);
    server.fixture.on_loop([&] {
      EXPECT_TRUE(server.texts.empty() || server.texts.back() == "close");
      EXPECT_EQ(server.closed.first, code == 1008 ? 0 : code);
    });
    EXPECT_TRUE(is_serving(server.fixture));
  }
}

AE_TEST("websocket/a callback may destroy it, and a lost connection is reported once") {
  EchoServer server;
  RawClient client(server.fixture.port);
  client.send(upgrade_request() + client_frame("drop") + client_frame("after"));
  client.read_all();
  server.fixture.on_loop([&] { EXPECT_EQ(server.texts, std::vector<std::string>{"drop"}); });
  {
    RawClient lost(server.fixture.port);
    lost.send(upgrade_request());
    lost.read_until("\r\n\r\n");
    lost.reset();
  }
  EXPECT_EQ(server.wait_closed(), websocket_code::kLost);
}

AE_TEST("websocket/a server that stops closes with 1001") {
  EchoServer server;
  RawClient client(server.fixture.port);
  client.send(upgrade_request());
  client.read_until("\r\n\r\n");
  std::promise<void> stopped;
  server.fixture.on_loop([&] { server.fixture.server->stop(5s, [&] { stopped.set_value(); }); });
  EXPECT_EQ(close_code_in(client.read_all()), 1001u);
  EXPECT_EQ(stopped.get_future().wait_for(5s), std::future_status::ready);
}

AE_TEST("websocket/what a slow client has not read waits, up to a limit") {
  EchoServer server({.unsent_max = 40u << 20});
  RawClient client(server.fixture.port);
  client.send(upgrade_request());
  client.read_until("\r\n\r\n");
  const std::string text(10u << 20, 'x');
  server.fixture.on_loop([&] {
    EXPECT_TRUE(server.socket->send(text));
    EXPECT_TRUE(server.socket->send(text));
    EXPECT_GT(server.socket->unsent(), 10u << 20);
  });
  client.read_bytes(2 * (text.size() + 10));
  for (int i = 0; i < 1000 && server.drained == 0; ++i) {
    std::this_thread::sleep_for(1ms);
    server.fixture.on_loop([] {});
  }
  server.fixture.on_loop([&] {
    EXPECT_EQ(server.drained, 1);
    EXPECT_EQ(server.socket->unsent(), 0u);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(server.socket->send(text));
    while (server.socket->send(text)) {
    }
    EXPECT_FALSE(server.socket->is_open());
    EXPECT_EQ(server.socket->unsent(), 0u);
  });
  client.read_all();
  EXPECT_TRUE(is_serving(server.fixture));
}

AE_TEST("websocket/pings of a client that does not read do not pile up") {
  EchoServer server;
  RawClient client(server.fixture.port);
  client.send(upgrade_request());
  client.read_until("\r\n\r\n");
  server.fixture.on_loop([&] { server.socket->send(std::string(20u << 20, 'x')); });
  std::size_t before = 0;
  server.fixture.on_loop([&] { before = server.socket->unsent(); });
  std::string pings;
  for (int i = 0; i < 10'000; ++i) pings += client_frame(std::string(100, 'p'), 0x89);
  client.send(pings);
  server.fixture.on_loop([&] { EXPECT_LE(server.socket->unsent(), before); });
}

AE_TEST("websocket/it works on a Unix socket") {
  EchoServer server;
  const std::string path = fmt::format("/tmp/aetheris_websocket_{}.sock", getpid());
  server.fixture.on_loop([&] { EXPECT_TRUE(server.fixture.server->listen_unix(path)); });
  RawClient client(path);
  client.send(upgrade_request() + client_frame("x"));
  client.read_until("\r\n\r\n");
  EXPECT_EQ(client.read_exactly(3), "\x81\x01x");
}

}  // namespace
}  // namespace ae::net::http_server_test
