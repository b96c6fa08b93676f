#include "cli/journal.h"

#include <algorithm>
#include <chrono>

#include "core/json.h"
#include "core/time.h"

namespace ae::cli {
namespace {

constexpr std::string_view kLevels[] = {"debug", "info", "warn", "error"};
constexpr std::size_t kMessageMax = 2000;  // bytes

std::string now_text() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return to_text(Instant{std::chrono::duration_cast<std::chrono::microseconds>(now).count()});
}

}  // namespace

bool LineLimit::takes(std::chrono::nanoseconds since_start) {
  constexpr std::chrono::nanoseconds kEach =
      std::chrono::nanoseconds(std::chrono::seconds(1)) / kPerSecond;
  const auto more = (since_start - filled_at_) / kEach;
  if (more > 0) {
    filled_at_ += more * kEach;
    left_ = std::min(kBurst, left_ + static_cast<std::uint64_t>(more));
  }
  if (left_ == 0) {
    ++left_out_;
    return false;
  }
  --left_;
  return true;
}

Journal::Format journal_format(std::string_view word) {
  return word == "json"   ? Journal::Format::json
         : word == "text" ? Journal::Format::text
                          : Journal::Format::quiet;
}

Journal::Journal(Terminal& terminal, Format format, bool verbose, std::string worker)
    : terminal_(terminal), format_(format), verbose_(verbose), worker_(std::move(worker)) {}

void Journal::say(const Line& line) {
  if (format_ == Format::quiet) {
    if (line.level < (verbose_ ? Level::info : Level::warn)) return;
  } else if (line.level == Level::debug && !verbose_) {
    return;
  }
  if (!limit_.takes(std::chrono::steady_clock::now().time_since_epoch())) return;
  if (const std::uint64_t left_out = limit_.take_left_out(); left_out > 0) {
    write({.level = Level::warn,
           .event = "log_lines_left_out",
           .message = std::to_string(left_out) + " lines were dropped: too many at once",
           .more = {{"count", left_out}}});
  }
  write(line);
}

void Journal::tell(const Line& line) {
  if (format_ != Format::quiet) return write(line);
  terminal_.note(std::string(line.event) + "; " + line.message);
}

void Journal::write(const Line& line) {
  const std::string_view level = kLevels[static_cast<std::size_t>(line.level)];
  const std::string message = cut(line.message, kMessageMax);
  if (format_ == Format::json) {
    std::vector<Member> members{{"event", std::string(line.event)},
                                {"level", std::string(level)},
                                {"ts", now_text()},
                                {"worker", worker_}};
    if (!line.job.empty()) members.emplace_back("job", line.job.text);
    if (!line.code.empty()) members.emplace_back("code", line.code);
    if (!message.empty()) members.emplace_back("message", message);
    for (const Member& member : line.more) members.push_back(member);
    return terminal_.note(canonical(Value::object(std::move(members))));
  }
  if (format_ == Format::quiet && line.level >= Level::warn) {
    return terminal_.warn(line.job.empty() ? message : "job " + line.job.text + ": " + message);
  }
  std::string text = now_text() + " ";
  if (format_ == Format::text) text += std::string(level) + " ";
  if (line.job.empty()) {
    text += line.event;
  } else {
    const bool of_job = line.event.starts_with("job_");
    text += "job " + safe(line.job.text) + " " + std::string(line.event.substr(of_job ? 4 : 0));
  }
  if (!line.code.empty()) text += " (" + safe(line.code) + ")";
  if (!message.empty()) text += ": " + safe(message);
  for (const auto& [name, value] : line.more) {
    text += " " + name + "=" + (value.is_string() ? safe(value.as_string()) : canonical(value));
  }
  terminal_.note(text);
}

}  // namespace ae::cli
