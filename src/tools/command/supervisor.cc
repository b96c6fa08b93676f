// Supervisor: runs and monitors one program.
//
//   wait_go ──go──▶ starting ──exec──▶ running ──▶ ending ──▶ report, exit
//      │ late, kill, runtime gone │ exec failed        exit · timeout · stop · kill · runtime gone
//      └──────────────────────────┴──────────────────────────▶ ending
#include "tools/command/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/command/proc.h"
#include "tools/command/wire.h"

namespace ae::tools {
namespace {

constexpr Duration kStuckTimeout = std::chrono::seconds(5);  // of SIGKILLs without effect
constexpr int kKillIntervalMs = 10;
constexpr int kStopPollMs =
    1000;  // poll's clock stops during suspend, so deadlines are checked this often

// Sent by the new process before it becomes the program; the pipe closes on exec.
struct StartProgress {
  Stage stage = Stage::none;  // none: in its own session, waiting for go
  int error = 0;
};

class Supervisor {
 public:
  int run();

 private:
  enum class Phase { wait_go, starting, running, ending };

  bool prepare();
  bool fork_program();
  bool report_start_failure();
  [[noreturn]] void become_program();
  void poll_once();
  int poll_timeout_ms() const;
  void read_command();
  void read_progress();
  void check_deadlines();
  void begin_shutdown();
  void stop();
  void kill_now(KillReason why);
  bool has_ended() const;
  void end();
  bool kill_all(std::optional<int>& status);
  void report(Report r);

  Order order_;
  pid_t child_ = -1;
  int start_pipe_[2] = {-1, -1};  // one byte: go
  int progress_[2] = {-1, -1};    // StartProgress, from the child
  int signals_ = -1;
  Phase phase_ = Phase::wait_go;
  Phase phase_before_end_ = Phase::wait_go;
  KillReason killed_ = KillReason::no;
  bool is_runtime_gone_ = false;
  std::optional<Report> start_failure_;    // reported if the program never started
  std::optional<Duration> next_deadline_;  // of the next action: SIGTERM, then SIGKILL
};

int Supervisor::run() {
  if (!prepare()) return 2;
  if (!fork_program()) return 2;
  while (phase_ != Phase::ending) poll_once();
  end();
  return 0;
}

bool Supervisor::prepare() {
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  sigset_t child;
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  signals_ = ::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
  const rlimit no_core{0, 0};
  if (signals_ < 0 || ::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0 ||
      ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      // Our memory holds secrets of the call for the program; no other program may read it.
      ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0 || ::setrlimit(RLIMIT_CORE, &no_core) != 0 ||
      ::fcntl(kControlFd, F_SETFD, FD_CLOEXEC) != 0) {
    return false;
  }
  std::string bytes;
  char buffer[16384];
  ssize_t n = 0;
  while ((n = ::read(kOrderFd, buffer, sizeof buffer)) > 0) {
    bytes.append(buffer, static_cast<std::size_t>(n));
  }
  ::close(kOrderFd);
  return n == 0 && decode(bytes, order_);
}

bool Supervisor::fork_program() {
  if (::pipe2(start_pipe_, O_CLOEXEC) != 0 || ::pipe2(progress_, O_CLOEXEC) != 0)
    return report_start_failure();
  child_ = ::fork();
  if (child_ < 0) return report_start_failure();
  if (child_ == 0) become_program();
  ::close(start_pipe_[0]);
  ::close(progress_[1]);
  // The streams must reach their end when the program and its children are gone, so close our
  // copies.
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd <= 2; ++fd) ::dup2(null, fd);
  ::close(null);
  ::close(kReportsFd);
  if (::chdir("/") != 0) return false;

  StartProgress progress;
  const auto entry = ::read(progress_[0], &progress, sizeof progress) == sizeof progress
                         ? process_entry(child_)
                         : std::nullopt;
  if (!entry || entry->group != child_) return false;
  report({.kind = ReportKind::ready, .value = child_, .start = entry->start});
  return true;
}

bool Supervisor::report_start_failure() {
  report({.kind = ReportKind::not_started, .value = errno});
  return false;
}

void Supervisor::become_program() {
  const auto exit_with_failure = [this](Stage stage) {
    const StartProgress progress{stage, errno};
    static_cast<void>(!::write(progress_[1], &progress, sizeof progress));
    ::_exit(127);
  };
  const pid_t parent = ::getppid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // if the supervisor is killed, the program dies too
  if (::setsid() < 0 || ::getppid() != parent) ::_exit(127);
  // Replaces our control socket, which is close-on-exec.
  if (::dup2(kReportsFd, kProgramReportsFd) < 0) ::_exit(127);
  ::close(kReportsFd);
  ::close(start_pipe_[1]);
  std::vector<char*> argv, environment;
  for (std::string& text : order_.argv) argv.push_back(text.data());
  for (std::string& text : order_.environment) environment.push_back(text.data());
  argv.push_back(nullptr);
  environment.push_back(nullptr);

  const StartProgress start_marker;
  char go = 0;
  if (::write(progress_[1], &start_marker, sizeof start_marker) != sizeof start_marker)
    ::_exit(127);
  if (::read(start_pipe_[0], &go, 1) != 1) ::_exit(127);
  if (!order_.folder.empty() && ::chdir(order_.folder.c_str()) != 0)
    exit_with_failure(Stage::folder);
  if (const int error = enter_sandbox(order_.sandbox, order_.program); error != 0) {
    errno = error;
    exit_with_failure(Stage::sandbox);
  }
  // A change of credentials may have cleared it.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(order_.program.c_str(), argv.data(), environment.data());
  exit_with_failure(Stage::exec);
  ::_exit(127);
}

int Supervisor::poll_timeout_ms() const {
  if (!next_deadline_) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(*next_deadline_ - boot_now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, kStopPollMs));
}

void Supervisor::poll_once() {
  pollfd fds[3] = {{kControlFd, POLLIN, 0},
                   {signals_, POLLIN, 0},
                   {phase_ == Phase::starting ? progress_[0] : -1, POLLIN, 0}};
  if (::poll(fds, 3, poll_timeout_ms()) < 0) return;
  if (fds[2].revents != 0) read_progress();
  if (fds[0].revents != 0) read_command();
  if (fds[1].revents != 0) {
    signalfd_siginfo info;
    while (::read(signals_, &info, sizeof info) > 0) {
    }
    if (has_ended()) {
      // Killed from outside before go: it never became the program.
      if (phase_ == Phase::wait_go && !start_failure_) {
        start_failure_ =
            Report{.kind = ReportKind::not_started, .value = ESRCH, .stage = Stage::exec};
      }
      begin_shutdown();
    }
    // Reap adopted orphans that ended. The program itself is reaped by end().
    siginfo_t exited{};
    while (phase_ != Phase::ending &&
           ::waitid(P_ALL, 0, &exited, WEXITED | WNOHANG | WNOWAIT) == 0 && exited.si_pid > 0) {
      if (exited.si_pid == child_) break;
      ::waitid(P_PID, static_cast<id_t>(exited.si_pid), &exited, WEXITED | WNOHANG);
      exited = {};
    }
  }
  if (phase_ != Phase::ending) check_deadlines();
}

void Supervisor::read_command() {
  char byte = 0;
  const ssize_t n = ::recv(kControlFd, &byte, 1, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) is_runtime_gone_ = true;
  if (n <= 0 || byte == static_cast<char>(Command::kill)) return kill_now(KillReason::ordered);
  if (byte == static_cast<char>(Command::stop)) return stop();
  if (byte != static_cast<char>(Command::go) || phase_ != Phase::wait_go) return;
  const Duration now = boot_now();
  if (now >= order_.send_by) {
    start_failure_ = Report{.kind = ReportKind::late};
    return kill_now(KillReason::no);
  }
  phase_ = Phase::starting;
  next_deadline_ = now + order_.timeout;
  const char go = 1;
  static_cast<void>(!::write(start_pipe_[1], &go, 1));  // if the child is gone, SIGCHLD reports it
}

void Supervisor::read_progress() {
  if (progress_[0] < 0) return;
  StartProgress progress;
  ssize_t n = 0;
  do {
    n = ::read(progress_[0], &progress, sizeof progress);
  } while (n < 0 && errno == EINTR);
  if (n == sizeof progress) {
    start_failure_ =
        Report{.kind = ReportKind::not_started, .value = progress.error, .stage = progress.stage};
  }
  ::close(progress_[0]);
  progress_[0] = -1;
  if (phase_ == Phase::starting) phase_ = Phase::running;
}

void Supervisor::check_deadlines() {
  if (!next_deadline_ || boot_now() < *next_deadline_) return;
  // If the program has already exited, this is no timeout, even if the check is late.
  if (has_ended()) {
    begin_shutdown();
  } else if (killed_ == KillReason::no) {
    killed_ = KillReason::timeout;
    ::kill(-child_, SIGTERM);
    next_deadline_ = boot_now() + order_.grace;
  } else {
    begin_shutdown();
  }
}

void Supervisor::stop() {
  if (phase_ == Phase::wait_go) return kill_now(KillReason::ordered);
  if (phase_ == Phase::ending || has_ended() || killed_ != KillReason::no) return;
  killed_ = KillReason::ordered;
  ::kill(-child_, SIGTERM);
  next_deadline_ = boot_now() + order_.grace;
}

void Supervisor::kill_now(KillReason why) {
  if (!has_ended() && killed_ == KillReason::no) killed_ = why;
  if (phase_ == Phase::wait_go && !start_failure_) {
    start_failure_ =
        Report{.kind = ReportKind::not_started, .value = ECANCELED, .stage = Stage::none};
  }
  begin_shutdown();
}

void Supervisor::begin_shutdown() {
  if (phase_ != Phase::ending) phase_before_end_ = std::exchange(phase_, Phase::ending);
}

// Does not reap: as long as the group leader is not reaped, its id cannot be reused.
bool Supervisor::has_ended() const {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == child_;
}

void Supervisor::end() {
  ::kill(-child_, SIGKILL);
  std::optional<int> status;
  const bool gone = kill_all(status);
  if (phase_before_end_ == Phase::starting && status) read_progress();  // did exec succeed?
  Report r{.kind = ReportKind::signalled, .value = SIGKILL};
  if (status) {
    r = WIFEXITED(*status) ? Report{.kind = ReportKind::exited, .value = WEXITSTATUS(*status)}
                           : Report{.kind = ReportKind::signalled, .value = WTERMSIG(*status)};
  } else if (killed_ == KillReason::no) {
    killed_ = KillReason::ordered;
  }
  if (start_failure_) r = *start_failure_;
  r.kill_reason = killed_;
  r.stuck = gone ? 0 : 1;
  report(r);
  while (!gone && !kill_all(status)) {
  }
}

// Kills and reaps until there are no children, so no descendant of the program is running. False:
// it took longer than kStuckTimeout. Sets `status` to the program's exit status.
bool Supervisor::kill_all(std::optional<int>& status) {
  const Duration deadline = boot_now() + kStuckTimeout;
  for (;;) {
    int one = 0;
    const pid_t pid = ::waitpid(-1, &one, WNOHANG);
    if (pid < 0 && errno == ECHILD) return true;
    if (pid == child_) status = one;
    if (pid > 0) continue;
    if (boot_now() >= deadline) return false;
    for (const ProcessEntry& process : running_descendants(::getpid())) kill_process(process);
    pollfd ended{signals_, POLLIN, 0};
    ::poll(&ended, 1, kKillIntervalMs);
    signalfd_siginfo info;
    while (::read(signals_, &info, sizeof info) > 0) {
    }
  }
}

void Supervisor::report(Report r) {
  if (is_runtime_gone_) return;
  static_cast<void>(!::send(kControlFd, &r, sizeof r, MSG_NOSIGNAL));
}

}  // namespace

bool is_supervisor(int argc, char** argv) {
  return argc >= 2 && std::string_view(argv[1]) == kSuperviseArgument;
}

namespace {

// The runtime has raised this limit for itself; programs get the original value.
void limit_descriptors(const char* text) {
  rlimit limit{};
  rlim_t wanted = 0;
  const char* const end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, wanted);
  if (error != std::errc() || stop != end || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int supervise_main(int argc, char** argv) {
  int type = 0;
  socklen_t size = sizeof type;
  if (::getsockopt(kControlFd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_SEQPACKET) {
    std::fputs("aetheris: this is started by the runtime itself, not by hand\n", stderr);
    return 2;
  }
  if (argc > 3) limit_descriptors(argv[3]);
  const int code = Supervisor().run();
  ::_exit(code);
}

}  // namespace ae::tools
