// Processes::Listener: the thread that monitors supervisors and reads the output of their programs.
// Only for this module's .cc files.
//
// process_launch.cc starts a program, process_listener.cc polls the descriptors of all programs,
// process_end.cc kills programs and reports how they ended.
// Threads: post_task from one thread; everything else runs on the listener's own thread.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tools/command/fd.h"
#include "tools/command/processes.h"
#include "tools/command/supervised_program.h"
#include "tools/command/wire.h"

namespace ae::tools {

constexpr Duration kSupervisorTimeout =
    std::chrono::seconds(8);                  // more than a supervisor needs to give up
constexpr std::size_t kReadMax = 256u << 10;  // bytes of one stream per round

// CLOCK_MONOTONIC stops during suspend, as the program does, so a suspended machine is not a missed
// heartbeat.
inline Duration monotonic_now() {
  return std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch());
}

class Processes::Listener {
 public:
  // `supervisor`, `descriptors`: as for Processes. Borrows the loop.
  Listener(async::Loop& loop, std::string supervisor, std::size_t descriptors);
  // Kills the running programs and waits for them.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Runs `task` on the listener's thread, which starts with the first task.
  void post_task(std::move_only_function<void(Listener&)> task);

  // As the methods of Processes; called by tasks.
  void start(Id id, LaunchSpec launch, async::Done<ProcessGroup> ready, ReportCallback on_report,
             async::Done<ProcessExit> ended);
  void go(Id id);
  void write(Id id, std::string bytes);
  void kill(Id id);
  void stop(Id id);

 private:
  // 0, or an errno.
  int spawn(const LaunchSpec& launch, SupervisedProgram& child);

  void run_loop();
  void run_tasks();
  int poll_timeout_ms() const;
  void check_deadlines(SupervisedProgram& child);
  bool has_missed_heartbeat(SupervisedProgram& child);
  template <class Sink>
  void read_available(Fd& fd, Sink& sink);
  void read_output(SupervisedProgram& child);
  void read_reports(SupervisedProgram& child);
  void deliver_report(SupervisedProgram& child);
  void read_control(SupervisedProgram& child);
  void write(SupervisedProgram& child);

  void kill(SupervisedProgram& child, KillReason why = KillReason::ordered);
  void on_status_report(SupervisedProgram& child, const Report& report);
  void on_supervisor_lost(SupervisedProgram& child);
  void report_exit(SupervisedProgram& child, ProcessExit ended);
  void kill_orphans_of(const SupervisedProgram& child);
  void reap_orphans();

  async::Loop& loop_;
  const std::string supervisor_;
  const std::string descriptors_;  // as text; "": as ours
  Fd wake_;
  std::mutex mutex_;
  std::vector<std::move_only_function<void(Listener&)>> tasks_;  // guarded by mutex_

  // Owned by the thread.
  bool stopping_ = false;
  bool adopts_orphans_ = false;
  std::map<pid_t, Duration> dead_orphans_;  // zombie children that are not supervisors
  std::map<Id, SupervisedProgram> children_;
  std::array<char, 64u << 10> buffer_{};
  std::thread thread_;
};

// Reads what is available; closes at the end of the stream. Bounded, so that one busy stream does
// not starve the others.
template <class Sink>
void Processes::Listener::read_available(Fd& fd, Sink& sink) {
  for (std::size_t taken = 0; fd.ok() && taken < kReadMax;) {
    const ssize_t n = ::read(fd.get(), buffer_.data(), buffer_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) return fd.close();
    sink.add(std::string_view(buffer_.data(), static_cast<std::size_t>(n)));
    taken += static_cast<std::size_t>(n);
  }
}

}  // namespace ae::tools
