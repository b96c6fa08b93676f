// Fixture for HttpServer: a server on a loop with its own thread, and a client on a bare socket.
#pragma once

#include <fmt/core.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "net/asio_loop.h"
#include "net/http_server.h"
#include "testing/test.h"

namespace ae::net::http_server_test {

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
  explicit RawClient(const std::string& unix_path)
      : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    unix_path.copy(address.sun_path, sizeof address.sun_path - 1);
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
  std::string read_exactly(std::size_t size) {
    while (seen_.size() < size && read_more()) {
    }
    const std::string taken = seen_.substr(0, size);
    seen_.erase(0, taken.size());
    return taken;
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

inline void echo(HttpRequest request, Responder responder) {
  HttpResponse response;
  response.content_type = "text/plain";
  response.body = request.method;
  for (const std::string& segment : request.path) response.body += " " + segment;
  for (const auto& [key, value] : request.query) response.body += fmt::format(" {}={}", key, value);
  if (!request.body.empty()) response.body += " body " + request.body;
  std::move(responder).answer(std::move(response));
}

inline std::string get(std::string_view target, std::string_view headers = {}) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", target, headers);
}

inline bool is_serving(ServerFixture& fixture) {
  RawClient client(fixture.port);
  client.send(get("/alive"));
  return client.read_response().ends_with("\r\n\r\nGET alive");
}

}  // namespace ae::net::http_server_test
