#include "testing/raw_http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

namespace ae::testing {

std::optional<RawRequest> RawHttpServer::Conversation::read_request() {
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

bool RawHttpServer::Conversation::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

void RawHttpServer::Conversation::reset() {
  const linger now{1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

void RawHttpServer::Conversation::hang() {
  while (read_more()) unread_.clear();
}

bool RawHttpServer::Conversation::wait(std::chrono::milliseconds time) {
  pollfd disconnected{fd_, POLLRDHUP, 0};
  return poll(&disconnected, 1, static_cast<int>(time.count())) == 0;
}

bool RawHttpServer::Conversation::read_more() {
  char bytes[4096];
  const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
  if (n > 0) unread_.append(bytes, static_cast<std::size_t>(n));
  return n > 0;
}

RawHttpServer::RawHttpServer(Script script) : script_(std::move(script)) {
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

RawHttpServer::~RawHttpServer() {
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

RawHttpServer::Script RawHttpServer::always(std::string bytes) {
  return [bytes = std::move(bytes)](Conversation& c) {
    while (c.read_request() && c.send(bytes)) {
    }
  };
}

void RawHttpServer::accept_all() {
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

void RawHttpServer::note(const RawRequest& request) {
  const std::lock_guard lock(mutex_);
  requests_.push_back(request);
}

}  // namespace ae::testing
