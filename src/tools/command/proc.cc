// Reading /proc, and walking from processes to their ancestors.
#include "tools/command/proc.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "async/boot_clock.h"
#include "base/error.h"
#include "tools/command/supervisor.h"

extern "C" {
#include <sys/pidfd.h>  // the header of glibc 2.36 lacks the extern "C"
}

namespace ae::tools {
namespace {

constexpr std::size_t kProcFileMax = 1u << 20;
constexpr std::size_t kCommandLineMax = 512;  // bytes of a supervisor's command line
// The name of an Aetheris process, which adopts the orphans of its supervisors.
constexpr char kRuntimeNameText[] = "aetheris";
constexpr std::string_view kRuntimeName = kRuntimeNameText;

std::string read_file(const std::string& path, std::size_t most = kProcFileMax) {
  std::string text;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  char buffer[4096];
  while (text.size() < most) {
    const ssize_t n = ::read(fd, buffer, std::min(sizeof buffer, most - text.size()));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(buffer, static_cast<std::size_t>(n));
  }
  ::close(fd);
  return text;
}

template <class Number>
bool number_from(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

}  // namespace

std::optional<ProcessEntry> process_entry(pid_t pid) {
  const std::string text = read_file(fmt::format("/proc/{}/stat", pid));
  // "pid (name) state ppid pgrp …": the name may contain anything, so parse from its last
  // parenthesis.
  const std::size_t name_begin = text.find('('), name_end = text.rfind(')');
  if (name_begin == std::string::npos || name_end < name_begin) return std::nullopt;
  std::string_view rest = std::string_view(text).substr(name_end + 1);
  std::vector<std::string_view> fields;  // fields[0] is the state, field 3 of proc(5)
  while (fields.size() < 20) {
    const std::size_t begin = rest.find_first_not_of(' ');
    if (begin == std::string_view::npos) return std::nullopt;
    const std::size_t end = std::min(rest.find(' ', begin), rest.size());
    fields.push_back(rest.substr(begin, end - begin));
    rest.remove_prefix(end);
  }
  ProcessEntry entry;
  entry.pid = pid;
  entry.name = text.substr(name_begin + 1, name_end - name_begin - 1);
  if (!number_from(fields[1], entry.parent) || !number_from(fields[2], entry.group) ||
      !number_from(fields[3], entry.session) || !number_from(fields[17], entry.threads) ||
      !number_from(fields[19], entry.start)) {
    return std::nullopt;
  }
  // The state of the main thread: it stays a zombie while other threads run.
  entry.ended = (fields[0] == "Z" || fields[0] == "X") && entry.threads <= 1;
  return entry;
}

std::vector<ProcessEntry> all_processes() {
  std::vector<ProcessEntry> entries;
  DIR* folder = ::opendir("/proc");
  if (folder == nullptr) return entries;
  while (const dirent* item = ::readdir(folder)) {
    pid_t pid = 0;
    if (!number_from(std::string_view(item->d_name), pid)) continue;
    if (auto entry = process_entry(pid)) entries.push_back(*entry);
  }
  ::closedir(folder);
  return entries;
}

std::vector<ProcessEntry> running_descendants(pid_t ancestor) {
  return running_descendants(ancestor, all_processes());
}

std::vector<ProcessEntry> running_descendants(pid_t ancestor,
                                              const std::vector<ProcessEntry>& processes) {
  std::multimap<pid_t, ProcessEntry> by_parent;
  for (const ProcessEntry& entry : processes) by_parent.emplace(entry.parent, entry);
  std::vector<ProcessEntry> found;
  std::vector<pid_t> pending{ancestor};
  while (!pending.empty()) {
    const pid_t parent = pending.back();
    pending.pop_back();
    for (auto [it, end] = by_parent.equal_range(parent); it != end; ++it) {
      pending.push_back(it->first == it->second.pid ? 0 : it->second.pid);
      if (!it->second.ended) found.push_back(it->second);
    }
    by_parent.erase(parent);  // visit each once, even if /proc is inconsistent
  }
  return found;
}

namespace {

constexpr int kAncestorsMax = 10'000;
constexpr int kWalkAttempts = 3;  // a parent may end during a walk
constexpr Duration kOrphansTimeout = std::chrono::seconds(2);
constexpr int kOrphansRoundMs = 5;

// Walks from processes to their ancestors.
class AncestorWalk {
 public:
  // `snapshot`: nullptr, or the process list to use instead of /proc.
  explicit AncestorWalk(const std::vector<ProcessEntry>* snapshot)
      : reads_proc_(snapshot == nullptr) {
    if (snapshot != nullptr) {
      for (const ProcessEntry& entry : *snapshot) known_.emplace(entry.pid, entry);
    }
    auto above = find(self_);
    while (above && above->parent != 0 && ancestors_.insert(above->parent).second) {
      above = find(above->parent);
    }
  }

  // nullopt: an ancestor ended during the walk.
  std::optional<Origin> from(pid_t pid) {
    if (pid == self_) return Origin::elsewhere;
    auto entry = find(pid);
    for (int steps = 0; entry && steps < kAncestorsMax; ++steps) {
      if (entry->session == session_ || entry->parent == 0 || ancestors_.contains(entry->pid)) {
        return Origin::elsewhere;
      }
      if (entry->parent == self_ || is_supervisor(*entry)) return Origin::tool;
      auto parent = find(entry->parent);
      if (!parent && entry->parent == 1) return Origin::elsewhere;  // pid 1 may be hidden
      // A parent that is younger than its child has reused the pid of a parent that ended.
      if (!parent || parent->start > entry->start) return std::nullopt;
      // The children of an Aetheris process outside its session are supervisors and their orphans.
      if (parent->name == kRuntimeName && parent->session != entry->session) return Origin::tool;
      if (parent->pid == 1 || parent->pid == entry->pid) return Origin::elsewhere;
      entry = std::move(parent);
    }
    return std::nullopt;
  }

 private:
  std::optional<ProcessEntry> find(pid_t pid) const {
    if (reads_proc_) return process_entry(pid);
    const auto found = known_.find(pid);
    return found == known_.end() ? std::nullopt : std::optional(found->second);
  }

  // The supervisors of all Aetheris processes have the same argument, and each has its own session.
  bool is_supervisor(const ProcessEntry& process) {
    if (process.pid != process.session) return false;
    const auto [found, is_new] = supervisors_.try_emplace(process.pid, false);
    if (is_new) {
      const std::string command_line =
          read_file(fmt::format("/proc/{}/cmdline", process.pid), kCommandLineMax);
      const std::size_t first_end = command_line.find('\0');
      found->second = first_end != std::string::npos &&
                      std::string_view(command_line.c_str() + first_end + 1) == kSuperviseArgument;
    }
    return found->second;
  }

  const pid_t self_ = ::getpid(), session_ = ::getsid(0);
  const bool reads_proc_;
  std::unordered_map<pid_t, ProcessEntry> known_;
  std::set<pid_t> ancestors_;                    // our ancestors
  std::unordered_map<pid_t, bool> supervisors_;  // cached results, by session leader
};

}  // namespace

Origin origin_of(pid_t pid) {
  for (int attempt = 0; attempt < kWalkAttempts; ++attempt) {
    if (const auto found = AncestorWalk(nullptr).from(pid)) return *found;
  }
  return Origin::gone;
}

std::vector<ProcessEntry> filter_tool_processes(const std::vector<ProcessEntry>& processes) {
  AncestorWalk walk(&processes);
  std::vector<ProcessEntry> tools;
  for (const ProcessEntry& process : processes) {
    if (process.ended) continue;
    const auto origin = walk.from(process.pid);
    if ((origin ? *origin : origin_of(process.pid)) == Origin::tool) tools.push_back(process);
  }
  return tools;
}

void name_process() { ::prctl(PR_SET_NAME, kRuntimeNameText, 0, 0, 0); }

void adopt_orphans() {
  AE_CHECK(::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0);
  // Renames the main thread, whichever thread this is: comm of a renamed program differs from its
  // file name.
  const int name = ::open("/proc/self/comm", O_WRONLY | O_CLOEXEC);
  if (name < 0) return;
  static_cast<void>(!::write(name, kRuntimeName.data(), kRuntimeName.size()));
  ::close(name);
}

bool kill_orphans(const std::vector<pid_t>& except, std::uint64_t since) {
  const pid_t self = ::getpid(), session = ::getsid(0);
  const Duration deadline = boot_now() + kOrphansTimeout;
  for (;;) {
    bool found = false;
    for (const ProcessEntry& child : all_processes()) {
      // A process in our session was not started by a tool: it is a program that notifies the
      // operator.
      if (child.parent != self || child.session == session || child.start < since ||
          std::ranges::find(except, child.pid) != except.end()) {
        continue;
      }
      found = true;
      for (const ProcessEntry& below : running_descendants(child.pid)) kill_process(below);
      kill_process(child);
      ::waitpid(child.pid, nullptr, WNOHANG);
    }
    if (!found) return true;
    if (boot_now() >= deadline) return false;
    ::poll(nullptr, 0, kOrphansRoundMs);
  }
}

std::string environment_of(pid_t pid) { return read_file(fmt::format("/proc/{}/environ", pid)); }

std::string boot_id() {
  std::string id = read_file("/proc/sys/kernel/random/boot_id");
  while (id.ends_with('\n')) id.pop_back();
  return id;
}

void kill_process(const ProcessEntry& process) {
  const int fd = ::pidfd_open(process.pid, 0);
  if (fd < 0) return;
  // The pidfd refers to one process. Now that its pid cannot be reused, check that it is the right
  // one.
  const auto now = process_entry(process.pid);
  if (now && now->start == process.start) ::pidfd_send_signal(fd, SIGKILL, nullptr, 0);
  ::close(fd);
}

Duration boot_now() { return async::BootClock().since_start(); }

}  // namespace ae::tools
