#include "net/http_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "net/asio_loop_internal.h"
#include "net/http_connection_internal.h"
#include "net/http_server_internal.h"
#include "net/system.h"
#include "net/unix_path.h"

namespace ae::net {
namespace {

constexpr int kAcceptsPerWake = 64;
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);  // when descriptors are exhausted
constexpr std::int64_t kSlowUs = 1'000'000;                        // slower requests may be evicted
constexpr std::int64_t kWarnIntervalUs = 60'000'000;               // between two warnings
constexpr std::size_t kRejectedMax = 16;  // connections beyond connections_max that get a 503
// Memory is returned to the system after a peak of this size.
constexpr std::size_t kTrimBytes = 8u << 20, kTrimConnections = 64;

class OwnedFd {
 public:
  explicit OwnedFd(int fd) : fd_(fd) {}
  ~OwnedFd() {
    if (fd_ >= 0) close(fd_);
  }
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

int new_socket(int family) { return socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

std::unexpected<Error> cannot_listen(const std::string& where, int error) {
  return fail(error == EADDRINUSE ? Code::held : Code::unavailable,
              fmt::format("cannot listen on {}: {}", where, std::strerror(error)));
}

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  sockaddr* generic() { return reinterpret_cast<sockaddr*>(&storage); }
  // The port that bind, accept or getsockname filled in. REQUIRES: an Internet address.
  std::uint16_t port() const {
    if (storage.ss_family == AF_INET6) {
      return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
    }
    return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  }
};

bool read_address(std::string text, std::uint16_t port, Address& address) {
  if (text == "localhost") text = "127.0.0.1";
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    address.size = sizeof *v4;
    return true;
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    address.size = sizeof *v6;
    return true;
  }
  return false;
}

std::string peer_of(int fd) {
  Address address;
  address.size = sizeof address.storage;
  if (getpeername(fd, address.generic(), &address.size) != 0) return "gone";
  char text[INET6_ADDRSTRLEN] = {};
  if (address.storage.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
    return fmt::format("{}:{}", text, address.port());
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
  inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
  return fmt::format("[{}]:{}", text, address.port());
}

// True if a process listens on the socket's path.
bool has_listener(const sockaddr_un& address) {
  const OwnedFd probe(new_socket(AF_UNIX));
  const int rc = connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  return rc == 0 || errno == EAGAIN || errno == EINPROGRESS;
}

struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

std::optional<FileIdentity> identity_of(const std::string& path) {
  struct stat status{};
  if (lstat(path.c_str(), &status) != 0) return std::nullopt;
  return FileIdentity{status.st_dev, status.st_ino};
}

}  // namespace

struct HttpServer::Impl::Listener {
  Listener(boost::asio::io_context& io, int fd) : descriptor(io, fd) {}
  boost::asio::posix::stream_descriptor descriptor;
  bool open = true;
  bool tcp = false;
  std::string path;  // of a Unix socket
  std::optional<FileIdentity> identity;
};

HttpServer::Impl::Impl(AsioLoop& the_loop, Handler the_handler, Options the_options)
    : loop(the_loop),
      handler(std::move(the_handler)),
      options(std::move(the_options)),
      connections_max(
          std::max<std::size_t>(1, std::min(options.connections_max, descriptors_max() / 2))) {}

HttpServer::Impl::~Impl() {
  close_listeners();
  stopping = true;
  stopped = nullptr;
  while (!connections.empty()) (*connections.begin())->close_now();
  if (sweep) loop.cancel(*sweep);
  if (grace_end) loop.cancel(*grace_end);
}

// ---- listening

void HttpServer::Impl::listen_on(int fd, bool tcp, std::string path) {
  auto listener = std::make_shared<Listener>(loop.impl().io, fd);
  listener->tcp = tcp;
  listener->path = std::move(path);
  if (!tcp) listener->identity = identity_of(listener->path);
  listeners.push_back(listener);
  wait_for_clients(listener);
}

void HttpServer::Impl::wait_for_clients(const std::shared_ptr<Listener>& listener) {
  listener->descriptor.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                                  [this, listener](const boost::system::error_code& error) {
                                    if (!error && listener->open) accept_clients(listener);
                                  });
}

void HttpServer::Impl::accept_clients(const std::shared_ptr<Listener>& listener) {
  for (int i = 0; i < kAcceptsPerWake; ++i) {
    const int fd = accept4(listener->descriptor.native_handle(), nullptr, nullptr,
                           SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      add_client(fd, listener->tcp);
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) break;
    const int error = errno;
    const bool has_capacity = evict_idle();
    warn_full(error);
    if (has_capacity) continue;
    // No descriptors or memory left: retrying at once would only spin.
    loop.after(kAcceptPause, [this, weak = std::weak_ptr(listener)] {
      const auto still = weak.lock();
      if (still && still->open) wait_for_clients(still);
    });
    return;
  }
  wait_for_clients(listener);
}

void HttpServer::Impl::add_client(int fd, bool tcp) {
  const bool full = connections.size() >= connections_max && !evict_idle();
  if (full) ++rejected;
  if (full || evicted > 0) warn_full(0);
  if (full && connections.size() >= connections_max + kRejectedMax) {
    close(fd);
    return;
  }
  int family = AF_UNIX;
  std::string peer = "unix";
  if (tcp) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    peer = peer_of(fd);
    family = peer.starts_with('[') ? AF_INET6 : AF_INET;
  }
  Socket socket(loop.impl().io);
  boost::system::error_code error;
  socket.assign(boost::asio::generic::stream_protocol(family, 0), fd, error);
  if (error) {
    close(fd);
    return;
  }
  auto connection = std::make_shared<HttpConnection>(*this, std::move(socket), peer, tcp);
  connections.insert(connection);
  connections_peak = std::max(connections_peak, connections.size());
  full ? connection->reject_overload() : connection->start();
  schedule_sweep();
}

// Evicts the connection that has been silent the longest.
bool HttpServer::Impl::evict_idle() {
  const std::int64_t now = BootClock().since_start().count();
  std::shared_ptr<HttpConnection> longest;
  std::optional<HttpConnection::Idleness> silent;
  for (const auto& connection : connections) {
    const auto idleness = connection->idleness();
    if (!idleness || (idleness->has_begun && now - idleness->since < kSlowUs)) continue;
    if (silent && *silent <= *idleness) continue;
    silent = idleness;
    longest = connection;
  }
  if (!longest) return false;
  ++evicted;
  longest->close_now();
  return true;
}

// `error`: why accept failed; 0 = the connection limit was reached.
void HttpServer::Impl::warn_full(int error) {
  const std::int64_t now = BootClock().since_start().count();
  if (!options.on_full || now < next_warning_at) return;
  next_warning_at = now + kWarnIntervalUs;
  const std::string reason =
      error != 0 ? fmt::format("no more connections can be accepted ({})", std::strerror(error))
                 : fmt::format("all {} connections are in use", connections_max);
  options.on_full(fmt::format("{}: {} idle connections were closed, {} clients were rejected",
                              reason, std::exchange(evicted, 0), std::exchange(rejected, 0)));
}

void HttpServer::Impl::close_listeners() {
  for (const auto& listener : std::exchange(listeners, {})) {
    listener->open = false;
    boost::system::error_code ignored;
    listener->descriptor.close(ignored);
    // Only if the file is still ours.
    if (listener->identity && identity_of(listener->path) == listener->identity) {
      unlink(listener->path.c_str());
    }
  }
}

// ---- connections

// One timer checks all deadlines, a few times per shortest timeout; it does not
// run without connections.
void HttpServer::Impl::schedule_sweep() {
  if (sweep || connections.empty()) return;
  const Duration shortest = std::min(
      {options.head_timeout, options.body_timeout, options.idle_timeout, options.write_timeout});
  const Duration pause =
      std::clamp<Duration>(shortest / 4, std::chrono::milliseconds(5), std::chrono::seconds(1));
  sweep = loop.after(pause, [this] {
    sweep.reset();
    const std::int64_t now = BootClock().since_start().count();
    const std::vector<std::shared_ptr<HttpConnection>> all(connections.begin(), connections.end());
    for (const auto& connection : all) connection->check_deadlines(now);
    trim_memory();
    schedule_sweep();
  });
}

// Without this the allocator would keep the memory of a peak.
void HttpServer::Impl::trim_memory() {
  connections_peak = std::max(connections_peak, connections.size());
  const bool fewer =
      connections_peak > kTrimConnections && connections.size() < connections_peak / 2;
  const bool smaller = (body_bytes_peak > kTrimBytes && *body_bytes < body_bytes_peak / 2) ||
                       (out_peak > kTrimBytes && out_bytes < out_peak / 2);
  if (!fewer && !smaller) return;
  connections_peak = connections.size();
  body_bytes_peak = *body_bytes;
  bytes_freed = 0;
  out_peak = out_bytes;
  trim_heap();
}

// True if `size` more bytes fit. Disconnects slow readers to make room.
bool HttpServer::Impl::has_capacity(std::size_t size, const HttpConnection* of) {
  if ((of ? of->buffered_bytes() : 0) + size <= options.small_response_max) return true;
  if (out_bytes + size <= options.responses_max) return true;
  const std::int64_t now = BootClock().since_start().count();
  const std::vector<std::shared_ptr<HttpConnection>> all(connections.begin(), connections.end());
  std::size_t large = 0;
  for (const auto& connection : all) {
    if (connection.get() == of || connection->buffered_bytes() <= options.small_response_max)
      continue;
    if (connection->is_slow_reader(now)) {
      connection->close_now();
    } else {
      ++large;
    }
  }
  return large == 0 || out_bytes + size <= options.responses_max;
}

// Limits the freed memory that the allocator keeps: of dropped bodies, and of
// temporaries of large responses.
void HttpServer::Impl::on_freed(std::size_t size) {
  if ((bytes_freed += size) < kTrimBytes) return;
  bytes_freed = 0;
  trim_heap();
}

void HttpServer::Impl::remove(const std::shared_ptr<HttpConnection>& connection) {
  connections.erase(connection);
  finish_stop();
}

void HttpServer::Impl::finish_stop() {
  if (!stopping || !connections.empty() || !stopped) return;
  loop.post(std::exchange(stopped, nullptr));
}

void HttpServer::Impl::stop(Duration grace, async::Task done) {
  stopping = true;
  stopped = std::move(done);
  close_listeners();
  const std::vector<std::shared_ptr<HttpConnection>> all(connections.begin(), connections.end());
  for (const auto& connection : all) connection->stop();
  if (connections.empty()) return finish_stop();
  grace_end = loop.after(grace, [this] {
    grace_end.reset();
    while (!connections.empty()) (*connections.begin())->close_now();
  });
}

// ---- HttpServer

HttpServer::HttpServer(AsioLoop& loop, Handler handler, Options options)
    : impl_(std::make_unique<Impl>(loop, std::move(handler), std::move(options))) {}
HttpServer::~HttpServer() = default;

Status HttpServer::listen_unix(const std::string& given, unsigned mode) {
  std::error_code error;
  const std::string path = std::filesystem::absolute(given, error).string();
  const UnixPath short_path(path);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (short_path.usable().size() >= sizeof address.sun_path) {
    return cannot_listen(path, ENAMETOOLONG);
  }
  std::memcpy(address.sun_path, short_path.usable().data(), short_path.usable().size());

  OwnedFd fd(new_socket(AF_UNIX));
  if (fd.get() < 0) return cannot_listen(path, errno);
  // Linux creates the file with the mode of the socket, so it is never accessible to others.
  fchmod(fd.get(), mode);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  int rc = bind(fd.get(), generic, sizeof address);
  if (rc != 0 && errno == EADDRINUSE) {
    struct stat status{};
    const bool is_socket = lstat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode);
    if (!is_socket || has_listener(address)) return cannot_listen(path, EADDRINUSE);
    unlink(path.c_str());
    rc = bind(fd.get(), generic, sizeof address);
  }
  if (rc != 0) return cannot_listen(path, errno);
  if (chmod(path.c_str(), mode) != 0 || listen(fd.get(), SOMAXCONN) != 0) {
    const int why = errno;
    unlink(path.c_str());
    return cannot_listen(path, why);
  }
  impl_->listen_on(fd.release(), false, path);
  return {};
}

Result<std::uint16_t> HttpServer::listen_tcp(const std::string& address_text, std::uint16_t port) {
  const std::string where = fmt::format("{}:{}", address_text, port);
  Address address;
  if (!read_address(address_text, port, address)) {
    return fail(Code::input_invalid,
                "{} is not an address to listen on: give an IP "
                "address, such as 127.0.0.1, or localhost",
                address_text);
  }
  OwnedFd fd(new_socket(address.storage.ss_family));
  if (fd.get() < 0) return cannot_listen(where, errno);
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd.get(), address.generic(), address.size) != 0 || listen(fd.get(), SOMAXCONN) != 0 ||
      getsockname(fd.get(), address.generic(), &address.size) != 0) {
    return cannot_listen(where, errno);
  }
  impl_->listen_on(fd.release(), true, {});
  return address.port();
}

void HttpServer::stop(Duration grace, async::Task done) { impl_->stop(grace, std::move(done)); }
bool HttpServer::has_capacity() const {
  return impl_->has_capacity(impl_->options.small_response_max + 1);
}
std::size_t HttpServer::connections() const { return impl_->connections.size(); }

}  // namespace ae::net
