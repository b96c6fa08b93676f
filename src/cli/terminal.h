// Terminal: where a command's words go. Data to stdout, the rest to stderr; colour only where somebody looks.
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
  std::size_t width() const { return width_; }  // of stdout; 0 when it is no terminal

  // stdout, as it is. `text` of jobs must be safe().
  void print(std::string_view text);
  void print_json(const Value& value);  // one line
  // What `who` says, piece by piece, as it is: `head` stands before it on a new line, again after anything else was
  // printed. To stdout, or to stderr.
  struct StreamPart {
    std::string_view who, head, text;
  };
  void print_stream(const StreamPart& part, bool to_stdout);
  // stderr, with a newline.
  void note(std::string_view text);
  void warn(std::string_view text);
  // Says what went wrong, in both forms, and gives the exit code.
  int fail_with(const Error& error);
  int fail_with(const Error& error, const Value& body);
  // False: stdout took not everything.
  bool flush();
  // The last words: `code`, or what it is when stdout took not everything.
  int finish(int code);

 private:
  bool json_;
  bool err_tty_;
  Paint out_, err_;
  std::size_t width_ = 0;
  void end_stream();

  std::string stream_source_;  // who; "" = nobody
  bool stream_to_stdout_ = false, line_open_ = false;
  int stdout_error_ = 0;  // the first error of stdout, as errno has it
};

// API.md §3.
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
// Of a finished or blocked job; queued and running are kDone.
int exit_code_of_status(std::string_view job_status);

}  // namespace ae::cli
