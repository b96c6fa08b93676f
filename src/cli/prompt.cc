// The approval prompt of `run` on a terminal.
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>

#include "cli/shared.h"

namespace ae::cli {
namespace {

constexpr std::size_t kLineMax = 256;  // bytes of a line; the rest is ignored

volatile std::sig_atomic_t interrupted = 0;

// Ctrl-C ends the read, not the process.
class Interruptible {
 public:
  Interruptible() {
    interrupted = 0;
    struct sigaction action{};
    action.sa_handler = [](int) { interrupted = 1; };
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGINT, &action, &before_);
  }
  ~Interruptible() { ::sigaction(SIGINT, &before_, nullptr); }
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  struct sigaction before_{};
};

}  // namespace

bool can_prompt(const Terminal& terminal) {
  // A background process that reads from its terminal would be stopped.
  return terminal.shows_progress() && ::isatty(STDIN_FILENO) == 1 &&
         ::tcgetpgrp(STDIN_FILENO) == ::getpgrp();
}

PromptAnswer prompt_approval(const Value& approval, Terminal& terminal) {
  std::string text = approval_text(approval);
  while (text.ends_with('\n')) text.pop_back();
  terminal.note(text);
  const Interruptible signals;
  // Drops input that was typed before the call was shown.
  ::tcflush(STDIN_FILENO, TCIFLUSH);
  std::fputs("approve now? [y/N] ", stderr);
  std::string line;
  char c = 0;
  while (true) {
    const ssize_t size = interrupted ? -1 : ::read(STDIN_FILENO, &c, 1);
    if (size < 0 && errno == EINTR && !interrupted) continue;
    if (size <= 0) {
      std::fputc('\n', stderr);
      return interrupted ? PromptAnswer::interrupted : PromptAnswer::no;
    }
    if (c == '\n') break;
    if (line.size() < kLineMax) line += c;
  }
  const bool yes = line == "y" || line == "Y" || line == "yes";
  return yes ? PromptAnswer::yes : PromptAnswer::no;
}

}  // namespace ae::cli
