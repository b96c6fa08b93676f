// RawHttpServer: a server on bare sockets, for testing clients against servers that misbehave.
//
// Every connection runs `script` on its own thread. The script reads requests, sends arbitrary
// bytes, closes, resets or hangs. Requests that arrived completely are counted; tests of "exactly
// once" use that number.
// Threads: everything from any thread; the destructor ends all connections and waits for them.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace ae::testing {

struct RawRequest {
  std::string head;  // request line and headers, as received, with the blank line
  std::string body;

  // The value of a header, spelled as it was sent; "" if absent.
  std::string header(std::string_view name) const {
    const std::size_t at = head.find(fmt::format("\r\n{}: ", name));
    if (at == std::string::npos) return {};
    const std::size_t begin = at + 2 + name.size() + 2;
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }
  std::string target() const {
    const std::size_t begin = head.find(' ') + 1;
    return head.substr(begin, head.find(' ', begin) - begin);
  }
};

// A well-formed response with its Content-Length.
inline std::string raw_response(int status, std::string_view body = {},
                                std::string_view type = "application/json",
                                std::string_view more_headers = {}) {
  return fmt::format("HTTP/1.1 {} Whatever\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}\r\n{}",
                     status, type, body.size(), more_headers, body);
}

class RawHttpServer {
 public:
  class Conversation {
   public:
    // The next request, counted as arrived; nullopt if the client has disconnected.
    std::optional<RawRequest> read_request();
    // False if the client has disconnected.
    bool send(std::string_view bytes);
    // Makes the connection end with RST.
    void reset();
    // Sends nothing more until the client disconnects or the server ends.
    void hang();
    // A pause between bytes; false if the connection ends.
    bool wait(std::chrono::milliseconds time);

   private:
    friend class RawHttpServer;
    Conversation(RawHttpServer& server, int fd) : server_(server), fd_(fd) {}
    bool read_more();

    RawHttpServer& server_;
    int fd_;
    std::string unread_;
  };

  using Script = std::function<void(Conversation&)>;

  explicit RawHttpServer(Script script);
  ~RawHttpServer();
  RawHttpServer(const RawHttpServer&) = delete;
  RawHttpServer& operator=(const RawHttpServer&) = delete;

  // Sends the same response to each request of every connection.
  static Script always(std::string bytes);

  int port() const { return port_; }
  std::string url(std::string_view path = "/") const {
    return fmt::format("http://127.0.0.1:{}{}", port_, path);
  }
  int connections() const { return connections_; }
  int arrivals() const { return static_cast<int>(requests().size()); }
  std::vector<RawRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void accept_all();
  void note(const RawRequest& request);

  Script script_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> ending_ = false;
  std::atomic<int> connections_ = 0;
  std::thread acceptor_;
  mutable std::mutex mutex_;
  std::list<int> open_;               // under mutex_
  std::vector<RawRequest> requests_;  // under mutex_
  std::list<std::thread> threads_;    // used by the acceptor; joined after it
};

}  // namespace ae::testing
