#include "app/guard.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "tools/command/proc.h"

namespace ae::app {
namespace {

constexpr int kNotStarted = 127;
constexpr int kKillEveryMs = 10;

[[noreturn]] void become_worker(char** words, pid_t guard) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != guard) ::_exit(kNotStarted);
  ::close(kGuardFd);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execvp(words[0], words);
  std::fprintf(stderr, "%s: %s\n", words[0], std::strerror(errno));
  ::_exit(kNotStarted);
}

// As a subreaper the guard adopts what the worker left behind. What SIGKILL does not end, because
// it hangs in the kernel or belongs to another user, is left to the starter.
void kill_descendants() {
  for (Duration waited{}; waited < kGuardEnd; waited += std::chrono::milliseconds(kKillEveryMs)) {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD) return;
    for (const auto& process : tools::running_descendants(::getpid())) tools::kill_process(process);
    ::poll(nullptr, 0, kKillEveryMs);
  }
}

}  // namespace

bool is_guard(int argc, char** argv) {
  return argc >= 3 && std::string_view(argv[1]) == kGuardArgument;
}

int guard_main(int argc, char** argv) {
  if (argc < 3 || ::fcntl(kGuardFd, F_GETFD) < 0) {
    std::fputs("aetheris: this is started by `dev` and `run`, not by hand\n", stderr);
    return 2;
  }
  // A signal to the group is for the worker; the guard ends after it.
  sigset_t all, child;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  const int signals = ::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0 || ::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return kNotStarted;
  const pid_t self = ::getpid(), worker = ::fork();
  if (worker < 0) return kNotStarted;
  if (worker == 0) become_worker(argv + 2, self);
  // Its output ends when the worker and its descendants have ended.
  if (const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC); null >= 0) {
    for (int fd = 0; fd <= 2; ++fd) ::dup2(null, fd);
  }
  int status = 0;
  for (;;) {
    pollfd fds[2] = {{kGuardFd, POLLIN, 0}, {signals, POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0) continue;
    signalfd_siginfo info;
    while (::read(signals, &info, sizeof info) > 0) {
    }
    bool has_ended = fds[0].revents != 0;  // the starter is gone
    if (has_ended) status = SIGKILL;
    int one = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &one, WNOHANG)) > 0;) {
      if (pid != worker) continue;
      has_ended = true;
      status = one;
    }
    if (has_ended) break;
  }
  kill_descendants();
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace ae::app
