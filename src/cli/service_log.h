// ServiceLog: what a service says on stderr while it runs, for people or for programs (--log).
//
// One line for each event of note. As JSON: {"ts", "level", "event", "worker", "job"?, "code"?, "message"?, …}; as text the
// same in words. Never an argument, a result or an input of a job: its log has those. A storm of lines is cut: at most
// kBurst at once and kPerSecond from then on. A line is also left out when stderr takes none at the moment, so that a
// slow reader does not stop the service. What is left out is counted, and the count is a line of its own. So is the count of
// warnings, errors and failed jobs of one kind above kEach in a minute; it is written with the next event after that minute.
// Threads: one.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "cli/terminal.h"
#include "json/value.h"

namespace ae::cli {

// How many lines may be said: a bucket that fills by the clock it is told.
class LineLimit {
 public:
  static constexpr std::uint64_t kBurst = 400, kPerSecond = 100;

  // May a line be said now? `since_start` never goes back.
  bool allows(std::chrono::nanoseconds since_start);
  void count_dropped() { ++dropped_; }
  // Lines that were left out since this was asked last.
  std::uint64_t take_dropped() { return std::exchange(dropped_, 0); }

 private:
  std::uint64_t left_ = kBurst, dropped_ = 0;
  std::chrono::nanoseconds filled_at_{};
};

// Of one kind of faults, so many lines are written in a minute. The others are counted.
class RepeatLimit {
 public:
  static constexpr std::uint64_t kEach = 20;
  static constexpr std::size_t kKindsMax = 256;  // others are not limited
  static constexpr std::chrono::minutes kWindow{1};

  // May a line of this kind be written now? `since_start` never goes back.
  bool allows(const std::string& kind, std::chrono::nanoseconds since_start);
  // The kinds with more lines than kEach, and how many more; then a new window begins. Nothing before the end of the window.
  std::vector<std::pair<std::string, std::uint64_t>> take_dropped(
      std::chrono::nanoseconds since_start);

 private:
  std::map<std::string, std::uint64_t> lines_;  // of this window, by kind
  std::chrono::nanoseconds began_{};
};

class ServiceLog {
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
  ServiceLog(Terminal& terminal, Options options)
      : terminal_(terminal), options_(std::move(options)) {}

  void add(const Line& line);
  // The same of what the user at the terminal must see, in every format: plain prints "event; message".
  void announce(const Line& line);
  // The last summaries, before the process ends.
  void finish() { summarize(std::chrono::nanoseconds::max()); }

 private:
  void write(const Line& line);
  void summarize(std::chrono::nanoseconds since_start);

  Terminal& terminal_;
  const Options options_;
  LineLimit limit_;
  RepeatLimit repeats_;
};

// "text", "json" or "" (plain), as --log has it.
ServiceLog::Format service_log_format(std::string_view word);

}  // namespace ae::cli
