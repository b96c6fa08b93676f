// Reading /proc: who lives, since when, in which group, and whose child it is.
//
// A process id alone names nobody: it is used again. With its start time and the boot id it names one process for
// ever. Threads: any.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"

namespace ae::tools {

struct ProcessEntry {
  pid_t pid = 0, parent = 0, group = 0, session = 0;
  std::uint64_t start = 0;  // clock ticks since boot
  std::size_t threads = 0;  // with the main thread, also when that one has ended
  bool ended = false;       // a zombie: no thread of it runs any more
  std::string name;  // of the main thread: the program's, cut to 15 bytes, unless it was changed
};

// nullopt: there is no such process.
std::optional<ProcessEntry> process_entry(pid_t pid);
std::vector<ProcessEntry> all_processes();
// Everybody who descends from `ancestor` and still runs.
std::vector<ProcessEntry> running_descendants(pid_t ancestor);
std::vector<ProcessEntry> running_descendants(pid_t ancestor,
                                              const std::vector<ProcessEntry>& processes);
// Is `pid` the program of a tool, of this or another Aetheris process, or below one? Then a supervisor is above it,
// or it was left to the Aetheris process that started its supervisor: both adopt orphans (adopt_orphans). Such a
// program is never in our session, because its supervisor left it. Supervisors above ourselves do not count: below
// them we are not apart from their programs. `gone`: it ended while we looked, so there is no answer.
enum class Origin : std::uint8_t { elsewhere, tool, gone };
Origin origin_of(pid_t pid);
// Those of all_processes() that are tools and still run.
std::vector<ProcessEntry> filter_tool_processes(const std::vector<ProcessEntry>& processes);
// From now on this process is the parent of what its supervisors leave behind, and other Aetheris processes see that
// by its name.
void adopt_orphans();
// Ends what was left to us by a supervisor that was killed, and everything below it, except the supervisors in `except`;
// `since`: nothing that began before is touched. False: something still lives after SIGKILL.
bool kill_orphans(const std::vector<pid_t>& except, std::uint64_t since);

// The environment it began with, NAME=value, each ended by NUL; empty when it cannot be read.
std::string environment_of(pid_t pid);
// This boot of this machine; empty when /proc does not say.
std::string boot_id();

// SIGKILL for exactly this process: nothing when its pid means another one by now.
void kill_process(const ProcessEntry& process);

// CLOCK_BOOTTIME: counts suspend, the same in every process of this boot.
Duration boot_now();

}  // namespace ae::tools
