// ServiceLog: the log of a service on stderr, for users or programs (--log).
//
// One line per event. As JSON: {"ts", "level", "event", "worker", "job"?, "code"?, "message"?, …};
// as text the same in words. Lines contain no arguments, results or inputs of jobs. Lines are
// rate-limited: a burst of kBurst, then kPerSecond. A line is also dropped when stderr would block,
// so that a slow reader does not stop the service. Dropped lines are counted, and the count is
// logged. The same holds for warnings, errors and failed jobs of one kind above kEach in a minute;
// their count is logged with the next event after that minute.
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

// Limits log lines: a token bucket; the caller passes the time.
class LineLimit {
 public:
  static constexpr std::uint64_t kBurst = 400, kPerSecond = 100;

  // May a line be written now? `since_start` must not decrease.
  bool allows(std::chrono::nanoseconds since_start);
  void count_dropped() { ++dropped_; }
  // Lines dropped since the last call.
  std::uint64_t take_dropped() { return std::exchange(dropped_, 0); }

 private:
  std::uint64_t left_ = kBurst, dropped_ = 0;
  std::chrono::nanoseconds filled_at_{};
};

// Limits lines of one kind per minute. The others are counted.
class RepeatLimit {
 public:
  static constexpr std::uint64_t kEach = 20;
  static constexpr std::size_t kKindsMax = 256;  // others are not limited
  static constexpr std::chrono::minutes kWindow{1};

  // May a line of this kind be written now? `since_start` must not decrease.
  bool allows(const std::string& kind, std::chrono::nanoseconds since_start);
  // The kinds with more than kEach lines, and the excess of each; starts a new window. Empty before
  // the end of the window.
  std::vector<std::pair<std::string, std::uint64_t>> take_dropped(
      std::chrono::nanoseconds since_start);

 private:
  std::map<std::string, std::uint64_t> lines_;  // of this window, by kind
  std::chrono::nanoseconds began_{};
};

class ServiceLog {
 public:
  enum class Format { plain, text, json };  // plain: without levels; only jobs, warnings and errors
  enum class Level { debug, info, warn, error };
  struct Line {
    Level level = Level::info;
    std::string_view event;  // job_completed, store_unavailable, …
    JobId job = {};
    std::string code = {}, message = {};
    std::vector<Member> more = {};
    // Printed by the text formats after the job, in place of event, code, message and more:
    // "started: agent trip"; "" = print those.
    std::string words = {};
  };

  struct Options {
    Format format = Format::plain;
    bool verbose = false;  // also debug; with plain, also info
    bool quiet = false;    // warnings and errors only
    std::string worker;
  };
  ServiceLog(Terminal& terminal, Options options)
      : terminal_(terminal), options_(std::move(options)) {}

  void add(const Line& line);
  // Adds a line that the user at the terminal must see, in every format: plain prints "event;
  // message".
  void announce(const Line& line);
  // Writes the last summaries, before the process ends.
  void finish() { summarize(std::chrono::nanoseconds::max()); }

 private:
  void write(const Line& line);
  void summarize(std::chrono::nanoseconds since_start);

  Terminal& terminal_;
  const Options options_;
  LineLimit limit_;
  RepeatLimit repeats_;
};

// "text", "json" or "" (plain), as in --log.
ServiceLog::Format service_log_format(std::string_view word);

}  // namespace ae::cli
