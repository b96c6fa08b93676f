// Processes::Listener: kills programs and reports how they ended, also when their supervisor died.
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <utility>
#include <vector>

#include "tools/command/leftovers.h"
#include "tools/command/proc.h"
#include "tools/command/process_listener.h"

namespace ae::tools {
namespace {

constexpr Duration kOrphanReapDelay = std::chrono::seconds(1);

}  // namespace

void Processes::Listener::kill(Id id) {
  if (const auto found = children_.find(id); found != children_.end()) kill(found->second);
}

// A later kill is still possible: `kill_reason` stays unchanged. REQUIRES: a grace below
// kSupervisorTimeout.
void Processes::Listener::stop(Id id) {
  const auto found = children_.find(id);
  if (found == children_.end()) return;
  SupervisedProgram& child = found->second;
  if (!child.go_sent) return kill(child);
  child.supervisor_deadline = boot_now() + kSupervisorTimeout;
  const char byte = static_cast<char>(Command::stop);
  ::send(child.control.get(), &byte, 1, MSG_NOSIGNAL);
}

void Processes::Listener::kill(SupervisedProgram& child, KillReason why) {
  if (!child.ended || child.kill_reason != KillReason::no) return;
  child.kill_reason = why;
  child.supervisor_deadline = boot_now() + kSupervisorTimeout;
  const char byte = static_cast<char>(Command::kill);
  ::send(child.control.get(), &byte, 1, MSG_NOSIGNAL);
}

void Processes::Listener::on_status_report(SupervisedProgram& child, const Report& report) {
  if (!child.ended) return;
  if (report.kind == ReportKind::ready) {
    child.group = ProcessGroup{report.value, report.start};
    if (child.kill_reason == KillReason::no) {
      loop_.post(
          [ready = std::move(child.ready), group = *child.group]() mutable { ready(group); });
    }
    return;
  }
  ProcessExit ended{.value = report.value,
                    .stage = report.stage,
                    .kill_reason = report.kill_reason,
                    .stuck = report.stuck != 0};
  if (child.kill_reason == KillReason::silent && report.kill_reason == KillReason::ordered) {
    ended.kill_reason = KillReason::silent;
  }
  switch (report.kind) {
    case ReportKind::late:
      ended.kind = ProcessExit::Kind::late;
      break;
    case ReportKind::not_started:
      ended.kind = ProcessExit::Kind::not_started;
      break;
    case ReportKind::exited:
      ended.kind = ProcessExit::Kind::exited;
      break;
    default:
      ended.kind = ProcessExit::Kind::signalled;
      break;
  }
  report_exit(child, std::move(ended));
}

// The connection to the supervisor was closed. Expected after its final report; before that, it was
// killed.
void Processes::Listener::on_supervisor_lost(SupervisedProgram& child) {
  child.control.close();
  ::kill(child.supervisor, SIGKILL);  // not reaped yet, so the pid is valid; it may be stopped
  while (::waitpid(child.supervisor, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (!child.ended) return;
  if (child.group) {
    kill_leftovers_once(make_in_flight_note(child.group->group, child.group->start, child.mark));
    kill_orphans_of(child);
  }
  if (!child.go_sent) {
    return report_exit(child, {.kind = ProcessExit::Kind::not_started, .value = ECHILD});
  }
  report_exit(child, {.kind = ProcessExit::Kind::lost, .kill_reason = child.kill_reason});
}

// We have adopted the supervisor's orphans, also those without its group and its mark.
void Processes::Listener::kill_orphans_of(const SupervisedProgram& child) {
  std::vector<pid_t> supervisors;
  supervisors.reserve(children_.size());
  for (const auto& [id, other] : children_) supervisors.push_back(other.supervisor);
  kill_orphans(supervisors, child.group->start);
}

// As the parent of orphans (of tools, and of programs that notify the operator) we must reap them.
// A zombie that is still there after a second is not waited for by the code that started it.
void Processes::Listener::reap_orphans() {
  siginfo_t one{};
  if (::waitid(P_ALL, 0, &one, WEXITED | WNOHANG | WNOWAIT) != 0 || one.si_pid == 0) {
    return dead_orphans_.clear();
  }
  std::map<pid_t, Duration> still;
  for (const ProcessEntry& child : all_processes()) {
    if (child.parent != ::getpid() || !child.ended) continue;
    const bool is_ours = std::ranges::any_of(
        children_, [&](const auto& other) { return other.second.supervisor == child.pid; });
    if (is_ours) continue;
    const auto seen = dead_orphans_.find(child.pid);
    const Duration since = seen == dead_orphans_.end() ? boot_now() : seen->second;
    if (boot_now() - since < kOrphanReapDelay) {
      still.emplace(child.pid, since);
    } else {
      ::waitpid(child.pid, nullptr, WNOHANG);
    }
  }
  dead_orphans_ = std::move(still);
}

void Processes::Listener::report_exit(SupervisedProgram& child, ProcessExit ended) {
  // No process writes any more: the pipes hold the rest of the output.
  for (int round = 0; child.output.ok() && round < 16; ++round) {
    if (child.channel.on_output)
      read_available(child.output, child.channel);
    else
      read_available(child.output, child.stdout_capture);
  }
  child.channel.input.close();
  for (int round = 0; child.errors.ok() && round < 16; ++round)
    read_available(child.errors, child.stderr_tail);
  for (int round = 0; child.reports.ok() && round < 16; ++round)
    read_available(child.reports, child.lines);
  deliver_report(child);
  child.output.close();
  child.errors.close();
  child.reports.close();
  child.stdout_capture.move_into(ended);
  child.stderr_tail.move_into(ended);
  if (child.go_sent) ended.elapsed = boot_now() - child.started_at;
  loop_.post([done = std::exchange(child.ended, nullptr), e = std::move(ended)]() mutable {
    done(std::move(e));
  });
}

}  // namespace ae::tools
