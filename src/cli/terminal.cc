#include "cli/terminal.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "api/command_line.h"
#include "api/problem.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::cli {
namespace {

bool wants_colour() {
  const char* no = std::getenv("NO_COLOR");
  if (no != nullptr && *no != '\0') return false;
  const char* term = std::getenv("TERM");
  return term == nullptr || std::string_view(term) != "dumb";
}

std::size_t columns() {
  if (const char* set = std::getenv("COLUMNS"); set != nullptr) {
    if (const long n = std::strtol(set, nullptr, 10); n >= 20 && n <= 1000) {
      return static_cast<std::size_t>(n);
    }
  }
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20) return size.ws_col;
  return 80;
}

}  // namespace

Terminal::Terminal(bool json)
    : json_(json),
      err_tty_(::isatty(STDERR_FILENO) == 1),
      out_(::isatty(STDOUT_FILENO) == 1 && wants_colour() && !json),
      err_(err_tty_ && wants_colour()) {
  if (::isatty(STDOUT_FILENO) == 1) width_ = columns();
}

void Terminal::print_stream(const StreamPart& part, bool to_stdout) {
  if (part.text.empty()) return;
  if (stream_source_ != part.stream_name || stream_to_stdout_ != to_stdout) {
    end_stream();
    stream_source_ = part.stream_name;
    stream_to_stdout_ = to_stdout;
    std::fwrite(part.head.data(), 1, part.head.size(), to_stdout ? stdout : stderr);
  }
  const std::size_t written =
      std::fwrite(part.text.data(), 1, part.text.size(), to_stdout ? stdout : stderr);
  if (to_stdout && written != part.text.size() && stdout_error_ == 0) stdout_error_ = errno;
  line_open_ = !part.text.ends_with('\n');
}

void Terminal::end_stream() {
  if (stream_source_.empty()) return;
  if (line_open_) std::fputc('\n', stream_to_stdout_ ? stdout : stderr);
  line_open_ = false;
  stream_source_.clear();
}

void Terminal::print(std::string_view text) {
  if (!text.empty()) end_stream();
  const std::size_t written = std::fwrite(text.data(), 1, text.size(), stdout);
  if (written != text.size() && stdout_error_ == 0) stdout_error_ = errno;
}

void Terminal::print_json(const Value& value) {
  print(safe_json(canonical(value)));
  print("\n");
}

void Terminal::note(std::string_view text) {
  end_stream();
  flush();
  const std::string line = fmt::format("{}\n", text);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void Terminal::warn(std::string_view text) { note(err_(Tint::warn, "warning: ") + safe(text)); }

int Terminal::fail_with(const Error& error) { return fail_with(error, api::problem(error)); }

int Terminal::fail_with(const Error& error, const Value& body) {
  if (json_) print_json(api::problem_with_command(body));
  note(fmt::format("{}{} {}", err_(Tint::bad, "error: "),
                   safe(api::message_with_command(error), true),
                   err_(Tint::dim, fmt::format("[{}]", code_name(error.code)))));
  return exit_code(error.code);
}

bool Terminal::flush() {
  if (std::fflush(stdout) != 0 && stdout_error_ == 0) stdout_error_ = errno;
  return stdout_error_ == 0;
}

int Terminal::finish(int code) {
  if (flush()) return code;
  // The reader has closed the pipe: exit silently, as is usual in a pipeline.
  if (stdout_error_ == EPIPE) return code == kDone ? 128 + SIGPIPE : code;
  note(fmt::format("{}cannot write to stdout: {}; the command's changes are kept {}",
                   err_(Tint::bad, "error: "), std::strerror(stdout_error_),
                   err_(Tint::dim, "[unavailable]")));
  return code == kDone ? kUnavailable : code;
}

int exit_code(Code code) {
  if (code == Code::log_corrupt) return kUnverified;
  switch (api::http_status(code)) {
    case 400:
    case 401:
    case 403:
    case 405:
    case 413:
    case 415:
      return kUsage;
    case 404:
      return kNotFound;
    case 409:
      return kConflict;
    case 429:
    case 503:
    case 504:
      return kUnavailable;
    default:
      return kFailed;
  }
}

int exit_code_of_status(std::string_view status) {
  if (status == "failed" || status == "cancelled") return kFailed;
  if (status == "waiting" || status == "parked") return kBlocked;
  return kDone;
}

}  // namespace ae::cli
