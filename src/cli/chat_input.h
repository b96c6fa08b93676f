// ChatInput: lines of stdin, Ctrl-C, and another descriptor, whichever comes first.
//
// While it exists, Ctrl-C does not end the process. Threads: one; one at a time in a process.
#pragma once

#include <csignal>
#include <optional>
#include <string>

namespace ae::cli {

class ChatInput {
 public:
  enum class Ready { line, end, interrupt, other };

  ChatInput();
  ~ChatInput();
  ChatInput(const ChatInput&) = delete;
  ChatInput& operator=(const ChatInput&) = delete;

  // `reads`: also waits for a line. `other`: a descriptor, or -1.
  Ready wait(bool reads, int other);
  // The line, after Ready::line.
  std::string take_line();
  // Drops what was typed before now; of a terminal only.
  void drop_typed();

 private:
  bool has_line() const { return buffer_.find('\n') != std::string::npos || is_long(); }
  bool is_long() const;

  std::string buffer_;
  bool at_end_ = false;
  struct sigaction before_{};
};

}  // namespace ae::cli
