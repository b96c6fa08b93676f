#include "http_drive.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>

#include "figures.h"

namespace ae::bench {
namespace {

using SteadyTime = std::chrono::steady_clock;

struct Connection {
  int socket = -1;
  SteadyTime::time_point started_at;
  std::string answer;
};

std::string numbered(std::string_view text, long number) {
  std::string filled(text);
  for (std::size_t at = 0; (at = filled.find("{n}", at)) != filled.npos;) {
    filled.replace(at, 3, std::to_string(number));
  }
  return filled;
}

int connected(std::string_view address) {
  const std::size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(std::atoi(address.data() + colon + 1)));
  ::inet_pton(AF_INET, std::string(address.substr(0, colon)).c_str(), &to.sin_addr);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int at_once = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof at_once);
  return ::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0 ? fd : -1;
}

// The length of the whole response; 0 = its header is incomplete.
std::size_t size_of(const std::string& answer) {
  const std::size_t end = answer.find("\r\n\r\n");
  if (end == answer.npos) return 0;
  std::string header = answer.substr(0, end);
  std::ranges::transform(header, header.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::size_t at = header.find("\r\ncontent-length:");
  return end + 4 + (at == header.npos ? 0 : std::strtoul(header.c_str() + at + 17, nullptr, 10));
}

class Drive {
 public:
  explicit Drive(const std::vector<std::string_view>& args)
      : address_(args[0]), path_(args[1]), body_(args[2]) {
    long numbers[4];
    for (std::size_t i = 0; i < 4; ++i) {
      const std::string_view arg = args[i + 3];
      if (std::from_chars(arg.data(), arg.data() + arg.size(), numbers[i]).ec != std::errc()) {
        std::exit(2);
      }
    }
    connections_.resize(static_cast<std::size_t>(numbers[0]));
    requests_ = numbers[1], first_ = numbers[2], rate_ = numbers[3];
  }

  int run() {
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    for (Connection& connection : connections_) {
      connection.socket = connected(address_);
      epoll_event event{.events = EPOLLIN, .data = {.ptr = &connection}};
      if (connection.socket < 0 ||
          ::epoll_ctl(epoll_, EPOLL_CTL_ADD, connection.socket, &event) != 0) {
        std::perror("connect");
        return 1;
      }
      idle_.push_back(&connection);
    }
    start_ = SteadyTime::now();
    const auto all = static_cast<std::size_t>(requests_);
    while (ms_.size() < all && !broken_) {
      send_due();
      epoll_event events[64];
      const int count = ::epoll_wait(epoll_, events, 64, rate_ > 0 ? 1 : 1000);
      for (int i = 0; i < count; ++i) read_response(*static_cast<Connection*>(events[i].data.ptr));
    }
    const std::chrono::duration<double> took = SteadyTime::now() - start_;
    print_row("drive", {{"requests", static_cast<double>(ms_.size())},
                        {"seconds", took.count()},
                        {"per_second", static_cast<double>(ms_.size()) / took.count()},
                        {"p50_ms", percentile(ms_, 0.5)},
                        {"p99_ms", percentile(ms_, 0.99)},
                        {"worst_ms", percentile(ms_, 1)},
                        {"refused", static_cast<double>(refused_)}});
    return refused_ > 0 || broken_ ? 1 : 0;
  }

 private:
  void send_due() {
    while (!idle_.empty() && sent_requests_ < requests_) {
      const auto now = SteadyTime::now();
      auto due = now;
      if (rate_ > 0) {
        due = start_ + std::chrono::microseconds(sent_requests_ * 1'000'000 / rate_);
        if (due > now) return;
      }
      Connection& connection = *idle_.front();
      idle_.pop_front();
      const std::string body = numbered(body_, first_ + sent_requests_);
      const std::string request =
          "POST " + numbered(path_, first_ + sent_requests_) +
          " HTTP/1.1\r\nHost: " + std::string(address_) +
          "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
          "\r\n\r\n" + body;
      ++sent_requests_;
      connection.started_at = due;
      connection.answer.clear();
      const auto sent = ::send(connection.socket, request.data(), request.size(), MSG_NOSIGNAL);
      if (sent != static_cast<ssize_t>(request.size())) broken("send");
    }
  }
  void read_response(Connection& connection) {
    char bytes[16384];
    const auto count = ::recv(connection.socket, bytes, sizeof bytes, 0);
    if (count <= 0) return broken("the server closed a connection");
    connection.answer.append(bytes, static_cast<std::size_t>(count));
    const std::size_t size = size_of(connection.answer);
    if (size == 0 || connection.answer.size() < size) return;
    ms_.push_back(
        std::chrono::duration<double, std::milli>(SteadyTime::now() - connection.started_at)
            .count());
    if (connection.answer.size() < 10 || connection.answer[9] != '2') {
      if (refused_++ == 0) std::fprintf(stderr, "%s\n", connection.answer.c_str());
    }
    idle_.push_back(&connection);
  }
  void broken(const char* kind) {
    broken_ = true;
    std::perror(kind);
  }

  std::string_view address_, path_, body_;
  long requests_ = 0, first_ = 0, rate_ = 0, sent_requests_ = 0, refused_ = 0;
  int epoll_ = -1;
  bool broken_ = false;
  std::vector<Connection> connections_;
  std::deque<Connection*> idle_;
  std::vector<double> ms_;
  SteadyTime::time_point start_;
};

}  // namespace

int drive(const std::vector<std::string_view>& args) {
  if (args.size() != 7 || args[0].rfind(':') == std::string_view::npos) return 2;
  return Drive(args).run();
}

}  // namespace ae::bench
