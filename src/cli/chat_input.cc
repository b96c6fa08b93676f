#include "cli/chat_input.h"

#include <fcntl.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace ae::cli {
namespace {

constexpr std::size_t kLineMax = 1 << 20;  // bytes; a longer line is sent in parts

int interrupt_pipe[2] = {-1, -1};

}  // namespace

ChatInput::ChatInput() {
  AE_CHECK(::pipe2(interrupt_pipe, O_CLOEXEC | O_NONBLOCK) == 0, "no pipe");
  struct sigaction action{};
  action.sa_handler = [](int) {
    [[maybe_unused]] const ssize_t written = ::write(interrupt_pipe[1], "", 1);
  };
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &before_);
}

ChatInput::~ChatInput() {
  ::sigaction(SIGINT, &before_, nullptr);
  ::close(interrupt_pipe[0]);
  ::close(interrupt_pipe[1]);
}

bool ChatInput::is_long() const { return buffer_.size() >= kLineMax; }

ChatInput::Ready ChatInput::wait(bool reads, int other) {
  while (true) {
    if (reads && has_line()) return Ready::line;
    if (reads && at_end_) return buffer_.empty() ? Ready::end : Ready::line;
    pollfd ready[] = {{.fd = interrupt_pipe[0], .events = POLLIN, .revents = 0},
                      {.fd = other, .events = POLLIN, .revents = 0},
                      {.fd = reads ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0}};
    if (::poll(ready, 3, -1) < 0) {
      AE_CHECK(errno == EINTR, "poll failed");
      continue;
    }
    char bytes[4096];
    if (ready[0].revents != 0) {
      while (::read(interrupt_pipe[0], bytes, 1) > 0) {
        return Ready::interrupt;
      }
    }
    if (ready[1].revents != 0) return Ready::other;
    if (ready[2].revents == 0) continue;
    const ssize_t size = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (size > 0) buffer_.append(bytes, static_cast<std::size_t>(size));
    if (size == 0 || (size < 0 && errno != EINTR && errno != EAGAIN)) at_end_ = true;
  }
}

std::string ChatInput::take_line() {
  const std::size_t end = buffer_.find('\n');
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end == std::string::npos ? end : end + 1);
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

void ChatInput::drop_typed() {
  if (::isatty(STDIN_FILENO) != 1) return;
  ::tcflush(STDIN_FILENO, TCIFLUSH);
  buffer_.clear();
}

}  // namespace ae::cli
