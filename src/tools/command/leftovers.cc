// Finding and killing processes that an earlier process left behind.
#include "tools/command/leftovers.h"

#include <fmt/core.h>
#include <sys/random.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "tools/command/proc.h"

namespace ae::tools {
namespace {

constexpr Duration kKillTimeout = std::chrono::seconds(5);
constexpr std::chrono::milliseconds kKillInterval{10};

bool is_note(const Value& note) {
  return note["pgid"].is_integer() && note["pgid"].as_int() > 1 &&
         note["pgid"].as_int() <= 0x7fffffff && note["start"].is_integer() &&
         note["boot_id"].is_string();
}

// Whether this environment contains exactly this assignment.
bool contains(std::string_view environment, const std::string& assignment) {
  const std::string needle = assignment + '\0';
  for (std::size_t at = 0; (at = environment.find(needle, at)) != std::string_view::npos; ++at) {
    if (at == 0 || environment[at - 1] == '\0') return true;
  }
  return false;
}

std::vector<ProcessEntry> find_leftovers(const Value& note) {
  std::vector<ProcessEntry> found;
  const auto group = static_cast<pid_t>(note["pgid"].as_int());
  const auto leader = process_entry(group);
  const bool is_ours =
      leader && leader->start == static_cast<std::uint64_t>(note["start"].as_int());
  const std::string mark = fmt::format("{}={}", kMarkVariable, note.text("mark"));
  const pid_t self = ::getpid();
  for (const ProcessEntry& process : all_processes()) {
    if (process.ended || process.pid == self || process.pid == 1) continue;
    const bool ours = (is_ours && process.group == group) ||
                      (!note.text("mark").empty() && contains(environment_of(process.pid), mark));
    if (ours) found.push_back(process);
  }
  return found;
}

}  // namespace

Value make_in_flight_note(pid_t group, std::uint64_t start, std::string_view mark) {
  return Value::object({{"pgid", static_cast<std::int64_t>(group)},
                        {"start", start},
                        {"boot_id", boot_id()},
                        {"mark", mark}});
}

std::string make_process_mark() {
  char bytes[16];
  AE_CHECK(::getrandom(bytes, sizeof bytes, 0) == sizeof bytes);
  return to_hex(std::string_view(bytes, sizeof bytes));
}

bool kill_leftovers_once(const Value& note) {
  if (!is_note(note) || note.text("boot_id") != boot_id()) return true;
  const std::vector<ProcessEntry> found = find_leftovers(note);
  for (const ProcessEntry& process : found) kill_process(process);
  return found.empty();
}

Status kill_leftovers(const Value& note) {
  if (!is_note(note)) {
    return fail(Code::input_invalid, "this is not a record of a command's process group");
  }
  const Duration deadline = boot_now() + kKillTimeout;
  while (!kill_leftovers_once(note)) {
    if (boot_now() >= deadline) {
      return fail(Code::unavailable,
                  "the processes of an earlier call (process group {}) are still "
                  "running after SIGKILL; check what blocks them",
                  note["pgid"].as_int());
    }
    std::this_thread::sleep_for(kKillInterval);
  }
  return {};
}

}  // namespace ae::tools
