// RawHttpServer: a server on bare sockets, for testing clients against servers that misbehave.
//
// Every connection runs `script` on its own thread. The script reads requests, sends arbitrary
// bytes, closes, resets or hangs. Requests that arrived completely are counted; tests of "exactly
// once" use that number.
// Threads: everything from any thread; the destructor ends all connections and waits for them.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
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
    const std::size_t at = head.find("\r\n" + std::string(name) + ": ");
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
  return "HTTP/1.1 " + std::to_string(status) + " Whatever\r\nContent-Type: " + std::string(type) +
         "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + std::string(more_headers) +
         "\r\n" + std::string(body);
}

class RawHttpServer {
 public:
  class Conversation {
   public:
    // The next request, counted as arrived; nullopt if the client has disconnected.
    std::optional<RawRequest> read_request() {
      RawRequest request;
      std::size_t end;
      while ((end = unread_.find("\r\n\r\n")) == std::string::npos) {
        if (!read_more()) return std::nullopt;
      }
      request.head = unread_.substr(0, end + 4);
      unread_.erase(0, end + 4);
      const std::string length = request.header("Content-Length");
      const std::size_t size =
          length.empty() ? 0 : static_cast<std::size_t>(std::strtoull(length.c_str(), nullptr, 10));
      while (unread_.size() < size) {
        if (!read_more()) return std::nullopt;
      }
      request.body = unread_.substr(0, size);
      unread_.erase(0, size);
      server_.note(request);
      return request;
    }

    // False if the client has disconnected.
    bool send(std::string_view bytes) {
      while (!bytes.empty()) {
        const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (n <= 0) return false;
        bytes.remove_prefix(static_cast<std::size_t>(n));
      }
      return true;
    }

    // Makes the connection end with RST.
    void reset() {
      const linger now{1, 0};
      setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    }

    // Sends nothing more until the client disconnects or the server ends.
    void hang() {
      while (read_more()) unread_.clear();
    }

    // A pause between bytes; false if the connection ends.
    bool wait(std::chrono::milliseconds time) {
      pollfd disconnected{fd_, POLLRDHUP, 0};
      return poll(&disconnected, 1, static_cast<int>(time.count())) == 0;
    }

   private:
    friend class RawHttpServer;
    Conversation(RawHttpServer& server, int fd) : server_(server), fd_(fd) {}
    bool read_more() {
      char bytes[4096];
      const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
      if (n > 0) unread_.append(bytes, static_cast<std::size_t>(n));
      return n > 0;
    }

    RawHttpServer& server_;
    int fd_;
    std::string unread_;
  };

  using Script = std::function<void(Conversation&)>;

  explicit RawHttpServer(Script script) : script_(std::move(script)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (listener_ < 0 || bind(listener_, generic, size) != 0 || listen(listener_, 64) != 0 ||
        getsockname(listener_, generic, &size) != 0) {
      std::abort();
    }
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }

  ~RawHttpServer() {
    ending_ = true;
    shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    close(listener_);
    {
      const std::lock_guard lock(mutex_);
      for (const int fd : open_) shutdown(fd, SHUT_RDWR);
    }
    for (std::thread& thread : threads_) thread.join();
  }
  RawHttpServer(const RawHttpServer&) = delete;
  RawHttpServer& operator=(const RawHttpServer&) = delete;

  // Sends the same response to each request of every connection.
  static Script always(std::string bytes) {
    return [bytes = std::move(bytes)](Conversation& c) {
      while (c.read_request() && c.send(bytes)) {
      }
    };
  }

  int port() const { return port_; }
  std::string url(std::string_view path = "/") const {
    return "http://127.0.0.1:" + std::to_string(port_) + std::string(path);
  }
  int connections() const { return connections_; }
  int arrivals() const { return static_cast<int>(requests().size()); }
  std::vector<RawRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void accept_all() {
    for (;;) {
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) {
        if (ending_) return;
        continue;
      }
      ++connections_;
      const std::lock_guard lock(mutex_);
      open_.push_back(fd);
      threads_.emplace_back([this, fd] {
        Conversation conversation(*this, fd);
        script_(conversation);
        const std::lock_guard at_end(mutex_);
        open_.remove(fd);
        close(fd);
      });
    }
  }

  void note(const RawRequest& request) {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
  }

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
