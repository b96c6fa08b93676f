#include "cli/code_children.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <optional>

#include "app/code_process.h"
#include "app/source_files.h"
#include "base/counted.h"
#include "cli/served_agents.h"
#include "cli/text.h"

namespace ae::cli {
namespace {

constexpr Duration kRestartFirst = std::chrono::milliseconds(100),
                   kRestartMost = std::chrono::seconds(5);
constexpr Duration kDrain = std::chrono::seconds(30);  // for calls of a worker that was replaced
constexpr Duration kEditPollEvery = std::chrono::milliseconds(250);
constexpr int kPollShare = 10;           // a poll may take this part of the time
constexpr std::size_t kLinesKept = 200;  // of a worker that has not been accepted
constexpr std::size_t kNamesShown = 8;   // tools of a worker
constexpr std::string_view kRefused = "was not accepted";

// The process id in "HOST:PID:…", the name of a worker of this host; 0 if there is none.
pid_t pid_in(std::string_view worker) {
  char host[256] = {};
  const std::size_t from = worker.find(':');
  if (from == worker.npos || ::gethostname(host, sizeof host - 1) != 0 ||
      worker.substr(0, from) != host) {
    return 0;
  }
  const std::string_view rest = worker.substr(from + 1);
  pid_t pid = 0;
  const auto read = std::from_chars(rest.data(), rest.data() + rest.size(), pid);
  return read.ec == std::errc() ? pid : 0;
}

pid_t process_of(const routines::Definitions& offered) {
  return offered.process != 0 ? static_cast<pid_t>(offered.process) : pid_in(offered.worker);
}

std::string offer_text(const routines::Definitions& offered) {
  std::string text;
  for (const auto& agent : offered.agents) {
    text += fmt::format("{}agent {}", text.empty() ? "" : ", ", agent.name);
    if (!agent.version.empty()) text += fmt::format(" version {}", agent.version);
  }
  std::string tools;
  for (std::size_t i = 0; i < offered.tools.size() && i < kNamesShown; ++i) {
    tools += fmt::format("{}{}", i == 0 ? "" : ", ", offered.tools[i].name);
  }
  if (offered.tools.size() > kNamesShown) tools += ", …";
  if (tools.empty()) return text;
  return fmt::format("{}{}{} {}", text, text.empty() ? "" : "; ",
                     noun_of(offered.tools.size(), "tool"), tools);
}

}  // namespace

struct CodeChildren::Child {
  std::unique_ptr<app::CodeProcess> process;
  std::string worker;  // its name; "" = the server has not accepted it
  pid_t pid = 0;       // of the worker
  bool is_refused = false;
  bool is_dropped = false;  // before it was accepted, by an edit
  std::chrono::steady_clock::time_point accepted_at{};
  std::vector<std::string> lines;  // its output until it was accepted
};

struct CodeChildren::Unit {
  app::CodeCommand command;
  std::string folder;  // "" = not watched
  Hash seen, used;     // stamps of its files: at the last poll; that the newest worker runs
  std::unique_ptr<Child> current, next;
  std::vector<std::unique_ptr<Child>> draining;
  int failures = 0;  // in a row
  // The output of the last one that was not accepted, and why it was refused.
  std::optional<std::vector<std::string>> last_failure;
  std::vector<std::string> last_faults;
  std::optional<async::TimerId> timer;  // of the next start
};

CodeChildren::CodeChildren(app::Instance& instance, Options options, Callbacks callbacks)
    : instance_(instance), options_(std::move(options)), callbacks_(std::move(callbacks)) {
  for (const app::CodeCommand& command : options_.commands) {
    auto unit = std::make_unique<Unit>(Unit{.command = command});
    if (options_.is_watching && !command.file.empty()) {
      unit->folder = std::filesystem::path(command.file).parent_path().string();
      if (unit->folder.empty()) unit->folder = ".";
      unit->seen = unit->used = app::source_stamp(unit->folder, command.file);
    }
    units_.push_back(std::move(unit));
  }
}

CodeChildren::~CodeChildren() {
  for (const auto& unit : units_) {
    if (unit->timer) instance_.loop().cancel(*unit->timer);
  }
}

void CodeChildren::begin() {
  for (const auto& unit : units_) start(*unit);
  if (options_.is_watching) schedule_poll();
}

std::string CodeChildren::output_line(const Unit& unit, const std::string& line) const {
  const std::string text = safe(line, true);
  return units_.size() > 1 ? fmt::format("{} | {}", unit.command.name, text) : text;
}

// Beside a worker that serves, the new one is the next; else it takes the place of the current one.
void CodeChildren::start(Unit& unit) {
  if (unit.timer) instance_.loop().cancel(*std::exchange(unit.timer, {}));
  auto child = std::make_unique<Child>();
  Child* const raw = child.get();
  const bool is_next = unit.current && !unit.current->worker.empty();
  auto environment = options_.environment;
  environment.emplace_back("AETHERIS_SUPERVISED", "1");
  for (const auto& one : unit.command.environment) environment.push_back(one);
  auto started = app::CodeProcess::start(
      instance_.loop(), {.words = unit.command.words, .environment = std::move(environment)},
      {.on_line = [this, &unit, raw](const std::string& line) { on_line(unit, *raw, line); },
       .on_exit = [this, &unit, raw](const std::string& how) { on_exit(unit, raw, how); }});
  if (!started) return on_end_of_serving(unit, started.error().message, false, {});
  child->process = *std::move(started);
  (is_next ? unit.next : unit.current) = std::move(child);
}

// The output of a worker that did not start is printed once, not at every start.
void CodeChildren::on_line(Unit& unit, Child& child, const std::string& line) {
  if (child.is_dropped) return;
  const bool is_held = child.worker.empty() && unit.last_failure;
  if (child.worker.empty() && child.lines.size() < kLinesKept) child.lines.push_back(line);
  if (!is_held) callbacks_.print(output_line(unit, line));
}

void CodeChildren::on_exit(Unit& unit, Child* child, const std::string& how) {
  if (!child->worker.empty()) instance_.end_worker(child->worker);
  const auto ended = [&](const std::unique_ptr<Child>& one) { return one.get() == child; };
  if (std::erase_if(unit.draining, ended) > 0) return;
  if (ended(unit.next)) {
    const std::unique_ptr<Child> over = std::move(unit.next);
    if (is_stopping_ || over->is_refused) return;
    callbacks_.print(fmt::format("{} {} before it was ready; the running version stays in use",
                                 unit.command.name, how));
    return;
  }
  const std::unique_ptr<Child> over = std::move(unit.current);
  const bool was_accepted = !over->worker.empty();
  if (was_accepted && std::chrono::steady_clock::now() - over->accepted_at > 2 * kRestartMost) {
    unit.failures = 0;
  }
  if (unit.next && !is_stopping_) {  // it takes the place of this one
    unit.current = std::move(unit.next);
    return;
  }
  if (is_stopping_) return;
  if (!over->is_refused) return on_end_of_serving(unit, how, was_accepted, over->lines);
  if (options_.restarts) on_end_of_serving(unit, std::string(kRefused), was_accepted, over->lines);
}

void CodeChildren::on_end_of_serving(Unit& unit, const std::string& how, bool was_accepted,
                                     const std::vector<std::string>& lines) {
  std::string output;
  for (const std::string& line : lines) output += line + "\n";
  const std::string hint = was_accepted ? "" : app::start_hint(unit.command, output);
  const std::string_view when = was_accepted || how == kRefused ? "" : " before it was ready";
  const std::string what =
      fmt::format("{} {}{}{}", unit.command.name, how, when, hint.empty() ? "" : ": " + hint);
  if (!options_.restarts) return callbacks_.on_failed({Code::unavailable, what});
  const Duration delay =
      std::min(kRestartFirst * (1 << std::min(unit.failures++, 10)), kRestartMost);
  const bool is_repeated = !was_accepted && unit.last_failure == lines;
  if (!is_repeated) {
    if (!was_accepted && unit.last_failure) {  // its output was held
      for (const std::string& line : lines) callbacks_.print(output_line(unit, line));
    }
    callbacks_.print(fmt::format("{}; starting it again{}", what,
                                 was_accepted          ? ""
                                 : unit.folder.empty() ? " until it works"
                                                       : " until it works, and at every edit"));
  }
  unit.last_failure = was_accepted ? std::nullopt : std::optional(lines);
  unit.timer = instance_.loop().after(delay, [this, &unit] {
    unit.timer.reset();
    start(unit);
  });
}

// By the process that made the connection, which must be one that we started. Of a TCP connection
// it is not known: then the name of the worker states it.
std::pair<CodeChildren::Unit*, CodeChildren::Child*> CodeChildren::find(
    const routines::Definitions& offered) {
  const pid_t pid = process_of(offered);
  for (const auto& unit : units_) {
    std::vector<Child*> all{unit->next.get(), unit->current.get()};
    for (const auto& child : unit->draining) all.push_back(child.get());
    for (Child* const child : all) {
      if (child != nullptr && pid != 0 && child->process->has_process(pid)) {
        return {unit.get(), child};
      }
    }
  }
  return {};
}

void CodeChildren::on_worker(const routines::Definitions& offered,
                             const std::vector<agents::Diagnostic>& faults) {
  const auto [unit, child] = find(offered);
  const std::string name = unit != nullptr ? unit->command.name : offered.worker;
  std::vector<std::string> lines = fault_lines(faults, name);
  if (unit == nullptr || lines != unit->last_faults) {
    for (const std::string& line : lines) callbacks_.print(line);
  }
  if (unit != nullptr) unit->last_faults = std::move(lines);
  if (unit == nullptr) {
    if (faults.empty()) not_printed_.push_back(fmt::format("{}: {}", name, offer_text(offered)));
    return;
  }
  if (!faults.empty()) return refuse(*unit, child);
  const bool is_known = child->worker == offered.worker;  // it has connected again
  child->worker = offered.worker;
  child->pid = process_of(offered);
  if (unit->next.get() != child && unit->current.get() != child) return;  // it is replaced
  child->lines.clear();
  unit->last_failure.reset();
  if (is_known) return;
  child->accepted_at = std::chrono::steady_clock::now();
  const bool replaces = unit->next.get() == child;
  if (replaces) {
    std::unique_ptr<Child> old = std::exchange(unit->current, std::move(unit->next));
    if (old) {
      old->process->stop(kDrain, old->pid);
      // It is in the middle of a call of the instance.
      instance_.loop().post([this, alive = alive_.watch(), worker = old->worker] {
        if (alive) instance_.drain_worker(worker);
      });
      unit->draining.push_back(std::move(old));
    }
  }
  not_printed_.push_back(
      fmt::format("{}{}: {}", name, replaces ? " reloaded" : "", offer_text(offered)));
}

void CodeChildren::refuse(Unit& unit, Child* child) {
  child->is_refused = true;
  if (unit.next.get() == child) {
    callbacks_.print(fmt::format("{}: the running version stays in use", unit.command.name));
  } else if (!options_.restarts) {
    callbacks_.on_failed({Code::plan_invalid, fmt::format("{} {}", unit.command.name, kRefused)});
  }
  child->process->stop(std::chrono::seconds(1), child->pid);
}

// Kills it without waiting for its end.
void CodeChildren::drop(Unit& unit, std::unique_ptr<Child>& child) {
  if (!child) return;
  child->is_dropped = true;
  child->process->stop(Duration(0));
  unit.draining.push_back(std::move(child));
}

bool CodeChildren::are_accepted() const {
  return std::ranges::all_of(units_, [](const auto& unit) {
    return unit->current != nullptr && !unit->current->worker.empty();
  });
}

void CodeChildren::on_in_use() {
  for (const std::string& line : std::exchange(not_printed_, {})) callbacks_.print(line);
}

void CodeChildren::stop(Duration grace) {
  is_stopping_ = true;
  std::size_t left = 0;
  for (const auto& unit : units_) {
    if (unit->timer) instance_.loop().cancel(*std::exchange(unit->timer, {}));
    for (Child* const child : {unit->next.get(), unit->current.get()}) {
      if (child != nullptr) child->process->stop(grace, child->pid);
    }
    for (const auto& child : unit->draining) child->process->stop(grace, child->pid);
  }
  const auto count = [&] {
    left = 0;
    for (const auto& unit : units_) {
      left += unit->draining.size() + (unit->next ? 1 : 0) + (unit->current ? 1 : 0);
    }
    return left;
  };
  const auto until = std::chrono::steady_clock::now() + grace;
  while (count() > 0 && std::chrono::steady_clock::now() < until) {
    instance_.loop().after(std::chrono::milliseconds(10), [this] { instance_.loop().stop(); });
    instance_.loop().run();
  }
}

// ---------------------------------------------------------------- edits

void CodeChildren::schedule_poll() {
  const auto began = std::chrono::steady_clock::now();
  poll();
  const auto took = std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now() - began);
  instance_.loop().after(std::max(kEditPollEvery, took * kPollShare),
                         [this, alive = alive_.watch()] {
                           if (alive && !is_stopping_) schedule_poll();
                         });
}

// Edits in progress are not used: all files must be unchanged since the last poll.
void CodeChildren::poll() {
  for (const auto& unit : units_) {
    if (unit->folder.empty()) continue;
    const Hash stamp = app::source_stamp(unit->folder, unit->command.file);
    const bool is_quiet = stamp == unit->seen;
    unit->seen = stamp;
    if (!is_quiet || stamp == unit->used) continue;
    unit->used = stamp;
    unit->failures = 0;
    unit->last_failure.reset();
    unit->last_faults.clear();
    drop(*unit, unit->next);
    if (unit->current && unit->current->worker.empty()) drop(*unit, unit->current);
    start(*unit);
  }
}

}  // namespace ae::cli
