#include "cli/service_log.h"

#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/time.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::cli {
namespace {

constexpr std::string_view kLevels[] = {"debug", "info", "warn", "error"};
constexpr std::size_t kMessageMax = 2000;  // bytes

std::string now_text() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return to_text(Instant{std::chrono::duration_cast<std::chrono::microseconds>(now).count()});
}

// A write to a full pipe would block.
bool is_stderr_writable() {
  pollfd at{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&at, 1, 0) != 0;
}

// The kind of a warning or error: equal for lines that differ in their job only. "" = not limited.
std::string kind_of(const ServiceLog::Line& line) {
  if (line.level < ServiceLog::Level::warn && line.event != "job_failed") return "";
  if (!line.code.empty()) return fmt::format("{} ({})", line.event, line.code);
  if (line.message.empty()) return std::string(line.event);
  return fmt::format("{}: {}", line.event, cut(line.message, kMessageMax));
}

// "a\nb" → "a; b": one line per event.
std::string one_line(std::string_view words) {
  std::string line;
  for (const char c : words) {
    if (c == '\n') {
      line += "; ";
    } else {
      line += c;
    }
  }
  return line;
}

}  // namespace

bool LineLimit::allows(std::chrono::nanoseconds since_start) {
  constexpr std::chrono::nanoseconds kEach =
      std::chrono::nanoseconds(std::chrono::seconds(1)) / kPerSecond;
  const auto more = (since_start - filled_at_) / kEach;
  if (more > 0) {
    filled_at_ += more * kEach;
    left_ = std::min(kBurst, left_ + static_cast<std::uint64_t>(more));
  }
  if (left_ == 0) {
    ++dropped_;
    return false;
  }
  --left_;
  return true;
}

bool RepeatLimit::allows(const std::string& kind, std::chrono::nanoseconds since_start) {
  if (lines_.empty()) began_ = since_start;
  if (lines_.size() >= kKindsMax && !lines_.contains(kind)) return true;
  return ++lines_[kind] <= kEach;
}

std::vector<std::pair<std::string, std::uint64_t>> RepeatLimit::take_dropped(
    std::chrono::nanoseconds since_start) {
  std::vector<std::pair<std::string, std::uint64_t>> count_dropped;
  if (lines_.empty() || since_start - began_ < kWindow) return count_dropped;
  for (const auto& [kind, lines] : std::exchange(lines_, {})) {
    if (lines > kEach) count_dropped.emplace_back(kind, lines - kEach);
  }
  return count_dropped;
}

ServiceLog::Format service_log_format(std::string_view word) {
  return word == "json"   ? ServiceLog::Format::json
         : word == "text" ? ServiceLog::Format::text
                          : ServiceLog::Format::plain;
}

void ServiceLog::summarize(std::chrono::nanoseconds since_start) {
  for (const auto& [kind, count] : repeats_.take_dropped(since_start)) {
    write({.level = Level::warn,
           .event = "log_lines_left_out",
           .message = fmt::format("{} more lines of one kind were dropped: {}", count, safe(kind)),
           .more = {{"count", count}, {field::kind, kind}}});
  }
}

void ServiceLog::add(const Line& line) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  summarize(now);
  const bool of_job = !line.job.empty();
  Level least = options_.quiet ? Level::warn : options_.verbose ? Level::debug : Level::info;
  if (options_.format == Format::plain && !options_.quiet) {
    const bool shown = of_job && line.event != "job_created";
    least = shown || options_.verbose ? Level::info : Level::warn;
  }
  if (line.level < least) return;
  if (const std::string kind = kind_of(line); !kind.empty() && !repeats_.allows(kind, now)) return;
  if (!limit_.allows(now)) return;
  if (line.level < Level::warn && !is_stderr_writable()) return limit_.count_dropped();
  if (const std::uint64_t count_dropped = limit_.take_dropped(); count_dropped > 0) {
    write({.level = Level::warn,
           .event = "log_lines_left_out",
           .message = fmt::format("{} log lines were dropped: too many at once", count_dropped),
           .more = {{"count", count_dropped}}});
  }
  write(line);
}

void ServiceLog::announce(const Line& line) {
  if (options_.format != Format::plain) return write(line);
  terminal_.note(line.words.empty() ? fmt::format("{}; {}", line.event, line.message)
                                    : safe(line.words, true));
}

void ServiceLog::write(const Line& line) {
  const std::string_view level = kLevels[static_cast<std::size_t>(line.level)];
  const std::string message = cut(line.message, kMessageMax);
  if (options_.format == Format::json) {
    std::vector<Member> members{{"event", std::string(line.event)},
                                {"level", std::string(level)},
                                {"ts", now_text()},
                                {"worker", options_.worker}};
    if (!line.job.empty()) members.emplace_back("job", line.job.text);
    if (!line.code.empty()) members.emplace_back(field::code, line.code);
    if (!message.empty()) members.emplace_back("message", message);
    for (const Member& member : line.more) members.push_back(member);
    return terminal_.note(canonical(Value::object(std::move(members))));
  }
  if (options_.format == Format::plain && line.level >= Level::warn) {
    return terminal_.warn(line.job.empty() ? message
                                           : fmt::format("job {}: {}", line.job.text, message));
  }
  std::string text = now_text() + " ";
  if (options_.format == Format::text) text += fmt::format("{} ", level);
  const std::string job = line.job.empty() ? "" : fmt::format("job {} ", safe(line.job.text));
  if (!line.words.empty()) {
    return terminal_.note(fmt::format("{}{}{}", text, job, safe(one_line(line.words))));
  }
  const bool of_job = !line.job.empty() && line.event.starts_with("job_");
  text += fmt::format("{}{}", job, line.event.substr(of_job ? 4 : 0));
  if (!line.code.empty()) text += fmt::format(" ({})", safe(line.code));
  if (!message.empty()) text += fmt::format(": {}", safe(message));
  for (const auto& [name, value] : line.more) {
    text +=
        fmt::format(" {}={}", name, value.is_string() ? safe(value.as_string()) : canonical(value));
  }
  terminal_.note(text);
}

}  // namespace ae::cli
