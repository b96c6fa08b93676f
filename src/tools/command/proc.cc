// Reading /proc.
#include "tools/command/proc.h"

#include <dirent.h>
#include <fcntl.h>
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
#include <string_view>

#include "async/boot_clock.h"
#include "core/error.h"

extern "C" {
#include <sys/pidfd.h>  // glibc 2.36 forgot to say so itself
}

namespace ae::tools {
namespace {

constexpr std::size_t kProcFileMax = 1u << 20;

std::string read_file(const std::string& path) {
  std::string text;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  char buffer[4096];
  while (text.size() < kProcFileMax) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
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
  const std::string text = read_file("/proc/" + std::to_string(pid) + "/stat");
  // "pid (name) state ppid pgrp …": the name may hold anything, so count from its last parenthesis.
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
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
  if (!number_from(fields[1], entry.parent) || !number_from(fields[2], entry.group) ||
      !number_from(fields[3], entry.session) || !number_from(fields[17], entry.threads) ||
      !number_from(fields[19], entry.start)) {
    return std::nullopt;
  }
  // The state is that of the main thread. It stays a zombie while other threads run.
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
  std::multimap<pid_t, ProcessEntry> by_parent;
  for (const ProcessEntry& entry : all_processes()) by_parent.emplace(entry.parent, entry);
  std::vector<ProcessEntry> found;
  std::vector<pid_t> pending{ancestor};
  while (!pending.empty()) {
    const pid_t parent = pending.back();
    pending.pop_back();
    for (auto [it, end] = by_parent.equal_range(parent); it != end; ++it) {
      pending.push_back(it->first == it->second.pid ? 0 : it->second.pid);
      if (!it->second.ended) found.push_back(it->second);
    }
    by_parent.erase(parent);  // each once, whatever a changing /proc says
  }
  return found;
}

namespace {

constexpr int kAncestorsMax = 10'000;
constexpr int kLooks = 3;  // a parent may end between two steps of a walk
constexpr Duration kOrphansPatience = std::chrono::seconds(2);
constexpr int kOrphansRoundMs = 5;

std::optional<Origin> walk_up(pid_t pid) {
  const pid_t self = ::getpid(), session = ::getsid(0);
  if (pid == self) return Origin::elsewhere;
  for (int steps = 0; steps < kAncestorsMax; ++steps) {
    const auto entry = process_entry(pid);
    if (!entry) return std::nullopt;
    if (entry->session == session || entry->parent == 0) return Origin::elsewhere;
    if (entry->parent == self) return Origin::ours;
    if (entry->parent == 1 || entry->parent == pid) return Origin::elsewhere;
    pid = entry->parent;
  }
  return std::nullopt;
}

}  // namespace

Origin origin_of(pid_t pid) {
  for (int look = 0; look < kLooks; ++look) {
    if (const auto found = walk_up(pid)) return *found;
  }
  return Origin::gone;
}

void adopt_orphans() { AE_CHECK(::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0); }

bool end_orphans(const std::vector<pid_t>& known, std::uint64_t since) {
  const pid_t self = ::getpid(), session = ::getsid(0);
  const Duration patience_ends = boot_now() + kOrphansPatience;
  for (;;) {
    bool found = false;
    for (const ProcessEntry& child : all_processes()) {
      // What is in our session was not started by a tool: a program that the operator wants to be told by.
      if (child.parent != self || child.session == session || child.start < since ||
          std::ranges::find(known, child.pid) != known.end()) {
        continue;
      }
      found = true;
      for (const ProcessEntry& below : running_descendants(child.pid)) kill_process(below);
      kill_process(child);
      ::waitpid(child.pid, nullptr, WNOHANG);
    }
    if (!found) return true;
    if (boot_now() >= patience_ends) return false;
    ::poll(nullptr, 0, kOrphansRoundMs);
  }
}

std::string environment_of(pid_t pid) {
  return read_file("/proc/" + std::to_string(pid) + "/environ");
}

std::string boot_id() {
  std::string id = read_file("/proc/sys/kernel/random/boot_id");
  while (id.ends_with('\n')) id.pop_back();
  return id;
}

void kill_process(const ProcessEntry& process) {
  const int fd = ::pidfd_open(process.pid, 0);
  if (fd < 0) return;
  // The handle holds one process; now that nobody can take its place, see that it is the one meant.
  const auto now = process_entry(process.pid);
  if (now && now->start == process.start) ::pidfd_send_signal(fd, SIGKILL, nullptr, 0);
  ::close(fd);
}

Duration boot_now() { return async::BootClock().since_start(); }

}  // namespace ae::tools
