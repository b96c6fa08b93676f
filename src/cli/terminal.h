// Terminal: the output of a command. Data to stdout, the rest to stderr; colour only on a terminal.
//
// Threads: one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "api/api.h"
#include "base/error.h"
#include "cli/text.h"
#include "json/value.h"

namespace ae::cli {

class Terminal {
 public:
  explicit Terminal(bool json);

  bool json() const { return json_; }
  bool shows_progress() const { return err_tty_ && !json_; }
  const Paint& out() const { return out_; }
  const Paint& err() const { return err_; }
  bool err_is_terminal() const { return err_tty_; }
  std::size_t width() const { return width_; }  // of stdout; 0 if it is not a terminal

  // Writes to stdout unchanged. Text from jobs must be safe().
  void print(std::string_view text);
  void print_json(const Value& value);  // one line
  // Prints partial output of `stream_name` as it arrives: `head` precedes it on a new line, and
  // again after other output. To stdout or stderr.
  struct StreamPart {
    std::string_view stream_name, head, text;
  };
  void print_stream(const StreamPart& part, bool to_stdout);
  // Writes to stderr, with a newline.
  void note(std::string_view text);
  void warn(std::string_view text);
  // Prints the error, as text or JSON, and returns its exit code.
  int fail_with(const Error& error);
  int fail_with(const Error& error, const Value& body);
  // False: a write to stdout failed.
  bool flush();
  // Flushes at the end: `code`, or another code if a write to stdout failed.
  int finish(int code);

 private:
  bool json_;
  bool err_tty_;
  Paint out_, err_;
  std::size_t width_ = 0;
  void end_stream();

  std::string stream_source_;  // `stream_name` of the open stream; "" = none
  bool stream_to_stdout_ = false, line_open_ = false;
  int stdout_error_ = 0;  // errno of the first failed write
};

// Exit codes (API.md §3).
enum Exit : int {
  kDone = 0,
  kFailed = 1,
  kUsage = 2,
  kNotFound = 3,
  kBlocked = 4,
  kConflict = 5,
  kUnverified = 6,
  kUnavailable = 7,
  kBug = 70,
};
int exit_code(Code code);
// For a finished or blocked job; queued and running are kDone.
int exit_code_of_status(std::string_view job_status);

}  // namespace ae::cli
