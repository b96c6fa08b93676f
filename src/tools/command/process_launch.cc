// Processes::Listener: starts a supervisor, and lets its program run.
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tools/command/proc.h"
#include "tools/command/process_listener.h"
#include "tools/command/supervisor.h"

namespace ae::tools {

void Processes::Listener::start(Id id, LaunchSpec launch, async::Done<ProcessGroup> ready,
                                ReportCallback on_report, async::Done<ProcessExit> ended) {
  SupervisedProgram child;
  child.on_report = std::move(on_report);
  child.heartbeat = launch.heartbeat;
  child.ended = std::move(ended);
  child.ready = std::move(ready);
  child.mark = launch.mark;
  child.stdout_capture = OutputCapture(launch.output_max);
  child.time_max = launch.time_max;
  child.channel.on_output = std::move(launch.on_output);
  child.channel.loop = &loop_;
  if (!std::exchange(adopts_orphans_, true)) adopt_orphans();
  reap_orphans();
  const int error = stopping_                           ? ECANCELED
                    : children_.size() >= kProcessesMax ? EAGAIN
                                                        : spawn(launch, child);
  ::explicit_bzero(launch.order.data(), launch.order.size());
  if (error != 0) {
    return report_exit(child, {.kind = ProcessExit::Kind::not_started, .value = error});
  }
  children_.emplace(id, std::move(child));
}

int Processes::Listener::spawn(const LaunchSpec& launch, SupervisedProgram& child) {
  FdPair control = open_socket_pair(), output = open_read_pipe(), errors = open_read_pipe(),
         reports = open_read_pipe();
  FdPair channel = child.channel.on_output ? open_write_pipe() : FdPair();
  const Fd input = child.channel.on_output ? std::move(channel.child_end)
                                           : make_sealed_file("aetheris-stdin", launch.input);
  const Fd order = make_sealed_file("aetheris-order", launch.order);
  if (!control.ok() || !output.ok() || !errors.ok() || !reports.ok() || !input.ok() ||
      !order.ok()) {
    return errno != 0 ? errno : EIO;
  }

  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawnattr_init(&attributes);
  const int child_fds[] = {
      input.get(), output.child_end.get(), errors.child_end.get(), control.child_end.get(),
      order.get(), reports.child_end.get()};
  constexpr int kFiles = 6;
  for (int fd = 0; fd < kFiles; ++fd) ::posix_spawn_file_actions_adddup2(&files, child_fds[fd], fd);
  ::posix_spawn_file_actions_addclosefrom_np(&files, kFiles);
  sigset_t all, none;
  ::sigfillset(&all);
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
  std::string name = "aetheris", argument(kSuperviseArgument), about = launch.invocation.text;
  std::string descriptors = descriptors_;
  char* argv[] = {name.data(), argument.data(), about.data(),
                  descriptors.empty() ? nullptr : descriptors.data(), nullptr};
  char* environment[] = {nullptr};
  const int error =
      ::posix_spawn(&child.supervisor, supervisor_.c_str(), &files, &attributes, argv, environment);
  ::posix_spawn_file_actions_destroy(&files);
  ::posix_spawnattr_destroy(&attributes);
  if (error == 0) {
    child.control = std::move(control.parent_end);
    child.output = std::move(output.parent_end);
    child.errors = std::move(errors.parent_end);
    child.reports = std::move(reports.parent_end);
    child.channel.input = std::move(channel.parent_end);
  }
  return error;
}

void Processes::Listener::go(Id id) {
  const auto found = children_.find(id);
  if (found == children_.end()) return;
  SupervisedProgram& child = found->second;
  if (!child.ended || child.kill_reason != KillReason::no) return;
  child.started_at = boot_now();
  child.last_report_at = monotonic_now();
  child.supervisor_deadline = child.started_at + child.time_max + kSupervisorTimeout;
  const char byte = static_cast<char>(Command::go);
  // If this fails, the supervisor is gone and has started nothing.
  child.go_sent = ::send(child.control.get(), &byte, 1, MSG_NOSIGNAL) == 1;
}

}  // namespace ae::tools
