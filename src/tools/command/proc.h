// Reading /proc: running processes, their start times, groups and parents.
//
// A process id alone is ambiguous, because ids are reused. With the start time and the boot id it
// identifies one process permanently. Threads: any.
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
  std::size_t threads = 0;  // with the main thread, even after that has ended
  bool ended = false;       // a zombie without a running thread
  std::string name;         // of the main thread: by default the program's, cut to 15 bytes
};

// nullopt: no such process.
std::optional<ProcessEntry> process_entry(pid_t pid);
std::vector<ProcessEntry> all_processes();
// The descendants of `ancestor` that are still running.
std::vector<ProcessEntry> running_descendants(pid_t ancestor);
std::vector<ProcessEntry> running_descendants(pid_t ancestor,
                                              const std::vector<ProcessEntry>& processes);
// Whether `pid` is a program of a tool, or a descendant of one, of this or another Aetheris
// process. Such a process has a supervisor above it, or was left to the Aetheris process that
// started the supervisor: both adopt orphans (adopt_orphans). It is never in our session, because
// its supervisor has left that. Supervisors above this process do not count: below them we cannot
// be told apart from their programs. `gone`: it ended during the check, so there is no answer.
enum class Origin : std::uint8_t { elsewhere, tool, gone };
Origin origin_of(pid_t pid);
// The processes of this list (of all_processes()) that belong to tools and are still running.
std::vector<ProcessEntry> filter_tool_processes(const std::vector<ProcessEntry>& processes);
// Names this process so that other Aetheris processes recognize it, whatever its file is called.
// REQUIRES: this is the main thread.
void name_process();
// Makes this process the parent of orphans of its supervisors, and names it if it may.
void adopt_orphans();
// Kills the orphans of a killed supervisor and their descendants, except the supervisors in
// `except` and processes started before `since`. False: a process is still running after SIGKILL.
bool kill_orphans(const std::vector<pid_t>& except, std::uint64_t since);

// The initial environment of a process: NAME=value, each terminated by NUL; empty if it cannot be
// read.
std::string environment_of(pid_t pid);
// The id of the current boot; empty if /proc does not contain it.
std::string boot_id();

// Sends SIGKILL to exactly this process; no effect if its pid has been reused.
void kill_process(const ProcessEntry& process);

// CLOCK_BOOTTIME: includes suspend, the same in all processes of a boot.
Duration boot_now();

}  // namespace ae::tools
