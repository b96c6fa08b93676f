// Journal: what a service says on stderr while it runs, for people or for programs (--log).
//
// One line for each event of note. As JSON: {"ts", "level", "event", "worker", "job"?, "code"?, "message"?, …}; as text the
// same in words. Never an argument, a result or an input of a job: its log has those. A storm of lines is cut: at most
// kBurst at once and kPerSecond from then on. A line is also left out when stderr takes none at the moment, so that a
// slow reader does not stop the service. What is left out is counted, and the count is a line of its own.
// Threads: one.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/terminal.h"
#include "core/ids.h"
#include "core/value.h"

namespace ae::cli {

// How many lines may be said: a bucket that fills by the clock it is told.
class LineLimit {
 public:
  static constexpr std::uint64_t kBurst = 400, kPerSecond = 100;

  // May a line be said now? `since_start` never goes back.
  bool takes(std::chrono::nanoseconds since_start);
  void left_out() { ++left_out_; }
  // Lines that were left out since this was asked last.
  std::uint64_t take_left_out() { return std::exchange(left_out_, 0); }

 private:
  std::uint64_t left_ = kBurst, left_out_ = 0;
  std::chrono::nanoseconds filled_at_{};
};

class Journal {
 public:
  enum class Format {
    plain,
    text,
    json
  };  // plain: without a level; only jobs, warnings and errors
  enum class Level { debug, info, warn, error };
  struct Line {
    Level level = Level::info;
    std::string_view event;  // job_completed, store_unavailable, …
    JobId job = {};
    std::string code = {}, message = {};
    std::vector<Member> more = {};
    // What text formats print behind the job instead of event, code, message and more: "started: agent trip"; "" = those.
    std::string words = {};
  };

  struct Options {
    Format format = Format::plain;
    bool verbose = false;  // also debug; of plain, all of info
    bool quiet = false;    // warnings and errors only
    std::string worker;
  };
  Journal(Terminal& terminal, Options options)
      : terminal_(terminal), options_(std::move(options)) {}

  void say(const Line& line);
  // The same of what the user at the terminal must see, in every format: plain prints "event; message".
  void tell(const Line& line);

 private:
  void write(const Line& line);

  Terminal& terminal_;
  const Options options_;
  LineLimit limit_;
};

// "text", "json" or "" (plain), as --log has it.
Journal::Format journal_format(std::string_view word);

}  // namespace ae::cli
