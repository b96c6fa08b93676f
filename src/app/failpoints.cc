#include "app/failpoints.h"

#include <fmt/core.h>
#include <unistd.h>

#include <charconv>
#include <optional>
#include <thread>

namespace ae::app {
namespace {

constexpr int kKilled = 137;

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || at != text.data() + text.size() || value > 1'000'000'000) return {};
  return value;
}

std::unexpected<Error> refuse(std::string_view part) {
  return fail(Code::usage,
              "AETHERIS_FAILPOINTS: cannot read \"{}\"; it is "
              "NAME=exit|error|error_after|pause:MS[@N], several with ;",
              part.substr(0, 80));
}

}  // namespace

Result<Failpoints::Rule> Failpoints::parse_rule(std::string_view text) {
  Rule rule;
  std::string_view action = text;
  if (const std::size_t at = action.find('@'); at != action.npos) {
    const auto n = number(action.substr(at + 1));
    if (!n || *n == 0) return refuse(text);
    rule.at = *n;
    action = action.substr(0, at);
  }
  if (action == "exit") {
    rule.action = Action::exit;
  } else if (action == "error") {
    rule.action = Action::error;
  } else if (action == "error_after") {
    rule.action = Action::error_after;
  } else if (action.starts_with("pause:")) {
    const auto ms = number(action.substr(6));
    if (!ms) return refuse(text);
    rule.action = Action::pause;
    rule.pause = std::chrono::milliseconds(*ms);
  } else {
    return refuse(text);
  }
  return rule;
}

Result<std::unique_ptr<Failpoints>> Failpoints::parse(std::string_view text,
                                                      std::string_view trace) {
  const bool traces = !trace.empty() && trace != "0";
  if (text.empty() && !traces) return nullptr;
  auto points = std::make_unique<Failpoints>();
  points->trace_ = traces;
  while (!text.empty()) {
    const std::size_t end = text.find(';');
    const std::string_view part = text.substr(0, end);
    text = end == text.npos ? std::string_view() : text.substr(end + 1);
    if (part.empty()) continue;
    const std::size_t equals = part.find('=');
    if (equals == 0 || equals == part.npos) return refuse(part);
    const std::string_view name = part.substr(0, equals);
    if (name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_.") != name.npos) return refuse(part);
    auto rule = parse_rule(part.substr(equals + 1));
    if (!rule) return std::unexpected(rule.error());
    points->rules_[std::string(name)].push_back(*rule);
  }
  return points;
}

async::FailpointAction Failpoints::hit(std::string_view name) {
  std::uint64_t n = 0;
  {
    const std::lock_guard lock(mutex_);
    auto it = hits_.find(name);
    if (it == hits_.end()) it = hits_.emplace(std::string(name), 0).first;
    n = ++it->second;
  }
  if (trace_) {
    const std::string line = fmt::format("failpoint {}@{}\n", name, n);
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  }
  const auto rules = rules_.find(name);
  if (rules == rules_.end()) return async::FailpointAction::proceed;
  for (const Rule& rule : rules->second) {
    if (rule.at != 0 && rule.at != n) continue;
    switch (rule.action) {
      case Action::exit:
        ::_exit(kKilled);
      case Action::pause:
        std::this_thread::sleep_for(rule.pause);
        break;
      case Action::error:
        return async::FailpointAction::error;
      case Action::error_after:
        return async::FailpointAction::error_after;
    }
  }
  return async::FailpointAction::proceed;
}

}  // namespace ae::app
