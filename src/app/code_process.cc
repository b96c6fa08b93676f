#include "app/code_process.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>

#include "app/fd.h"
#include "app/guard.h"
#include "tools/command/proc.h"

extern "C" {
#include <sys/pidfd.h>  // glibc 2.36 does not declare its functions as C
}

extern char** environ;  // NOLINT: as POSIX declares it

namespace ae::app {
namespace {

constexpr std::size_t kLineMax = 64u << 10;   // longer lines are cut into several
constexpr std::size_t kPostedMax = 1u << 20;  // bytes of lines that the loop has not used
constexpr std::size_t kLineCost = 256;        // of a line, beside its bytes
constexpr int kDepthMax = 100;                // of processes below a guard
constexpr int kReadsAfterEnd = 64;            // 1 MiB: more than a pipe holds

// Ours, with `changes`.
std::vector<std::string> environment_with(
    const std::vector<std::pair<std::string, std::string>>& changes) {
  std::vector<std::string> all;
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string_view text = *one;
    const std::string_view name = text.substr(0, text.find('='));
    const bool is_changed =
        std::ranges::any_of(changes, [&](const auto& change) { return change.first == name; });
    if (!is_changed) all.emplace_back(text);
  }
  for (const auto& [name, value] : changes) {
    if (!value.empty()) all.push_back(fmt::format("{}={}", name, value));
  }
  return all;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// The guard exits as the worker did.
std::string exit_text(int status) {
  if (WIFSIGNALED(status)) return fmt::format("was killed by signal {}", WTERMSIG(status));
  const int code = WEXITSTATUS(status);
  return code > 128 ? fmt::format("was killed by signal {}", code - 128)
                    : fmt::format("exited with code {}", code);
}

// Is `ancestor` above this process?
bool is_below(pid_t pid, pid_t ancestor) {
  for (int depth = 0; pid > 1 && depth < kDepthMax; ++depth) {
    const auto found = tools::process_entry(pid);
    if (!found) return false;
    if (found->parent == ancestor) return true;
    pid = found->parent;
  }
  return false;
}

}  // namespace

// Used by the thread that reads, and by tasks that may run after the process was destroyed.
struct CodeProcess::Shared {
  async::Loop& loop;
  Callbacks callbacks;
  pid_t group = -1;
  int output = -1, guard = -1;
  std::thread reader;
  bool is_open = true;  // of the loop's thread: callbacks may run
  std::optional<async::TimerId> kill_timer;
  std::mutex mutex;
  std::condition_variable has_room;
  bool is_closed = false;  // guarded by mutex: the opposite of is_open, for the reader
  bool has_ended = false;  // guarded by mutex: the group's id may be used again
  std::size_t posted = 0;  // guarded by mutex: bytes of lines that the loop has not used

  // `worker`: 0 = the group.
  void signal(int number, pid_t worker) {
    const std::scoped_lock lock(mutex);
    if (has_ended) return;
    const bool is_its = worker > 0 && is_below(worker, group);
    ::kill(is_its ? worker : -group, number);
  }
  // Of the reader: waits until the loop has used earlier lines.
  void post_line(const std::shared_ptr<Shared>& self, std::string line) {
    const std::size_t cost = line.size() + kLineCost;
    {
      std::unique_lock lock(mutex);
      has_room.wait(lock, [&] { return is_closed || posted < kPostedMax; });
      if (is_closed) return;
      posted += cost;
    }
    loop.post([self, cost, line = std::move(line)]() mutable {
      {
        const std::scoped_lock lock(self->mutex);
        self->posted -= cost;
      }
      self->has_room.notify_one();
      if (self->is_open) self->callbacks.on_line(std::move(line));
    });
  }
  void close() {
    is_open = false;
    {
      const std::scoped_lock lock(mutex);
      is_closed = true;
    }
    has_room.notify_one();
  }
  // The guard ignores signals but this one, and its end kills the worker (PR_SET_PDEATHSIG).
  void close_guard() {
    if (guard >= 0) ::close(guard);
    guard = -1;
  }
};

namespace {

// Reads lines until the end of the stream, or until this process has ended; `post` is called with
// each.
void read_lines(int fd, pid_t process, const std::function<void(std::string)>& post) {
  const Fd ended(::pidfd_open(process, 0));
  std::string line;
  char buffer[16384];
  int left = kReadsAfterEnd;
  for (;;) {
    pollfd fds[2] = {{fd, POLLIN, 0}, {ended.get(), POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0) continue;  // EINTR
    if (fds[1].revents != 0) {
      // What it had written fits into the pipe; another process may still write.
      if (fds[0].revents == 0 || left == 0) break;
      --left;
    }
    const ssize_t size = ::read(fd, buffer, sizeof buffer);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) break;
    for (const char c : std::string_view(buffer, static_cast<std::size_t>(size))) {
      if (c != '\n' && line.size() < kLineMax) {
        line += c;
        continue;
      }
      post(std::exchange(line, {}));
      if (c != '\n') line += c;
    }
  }
  if (!line.empty()) post(std::move(line));
}

}  // namespace

Result<std::unique_ptr<CodeProcess>> CodeProcess::start(async::Loop& loop, const Launch& launch,
                                                        Callbacks callbacks) {
  int output[2], guard[2];
  if (::pipe2(output, O_CLOEXEC) != 0) return fail(Code::unavailable, "{}", std::strerror(errno));
  if (::pipe2(guard, O_CLOEXEC) != 0) {
    const int error = errno;
    ::close(output[0]);
    ::close(output[1]);
    return fail(Code::unavailable, "{}", std::strerror(error));
  }
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&files, output[1], 1);
  ::posix_spawn_file_actions_adddup2(&files, output[1], 2);
  ::posix_spawn_file_actions_adddup2(&files, guard[0], kGuardFd);
  ::posix_spawn_file_actions_addclosefrom_np(&files, kGuardFd + 1);
  sigset_t all, none;
  ::sigfillset(&all);
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(
      &attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  std::vector<std::string> words{"aetheris", std::string(kGuardArgument)};
  words.insert(words.end(), launch.words.begin(), launch.words.end());
  std::vector<std::string> environment = environment_with(launch.environment);
  auto shared = std::make_shared<Shared>(loop, std::move(callbacks));
  const int error = ::posix_spawn(&shared->group, "/proc/self/exe", &files, &attributes,
                                  pointers_to(words).data(), pointers_to(environment).data());
  ::posix_spawn_file_actions_destroy(&files);
  ::posix_spawnattr_destroy(&attributes);
  ::close(output[1]);
  ::close(guard[0]);
  if (error != 0) {
    ::close(output[0]);
    ::close(guard[1]);
    return fail(Code::unavailable, "{} cannot be started: {}", launch.words.front(),
                std::strerror(error));
  }
  shared->output = output[0];
  shared->guard = guard[1];
  shared->reader = std::thread([shared] {
    read_lines(shared->output, shared->group,
               [&](std::string line) { shared->post_line(shared, std::move(line)); });
    ::close(shared->output);
    siginfo_t info{};
    while (::waitid(P_PID, static_cast<id_t>(shared->group), &info, WEXITED | WNOWAIT) != 0 &&
           errno == EINTR) {
    }
    int status = 0;
    {
      const std::scoped_lock lock(shared->mutex);
      shared->has_ended = true;
      ::kill(-shared->group, SIGKILL);  // what a guard that was killed has left
      ::waitpid(shared->group, &status, 0);
    }
    shared->loop.post([shared, status] {
      if (!shared->is_open) return;
      if (shared->kill_timer) shared->loop.cancel(*std::exchange(shared->kill_timer, {}));
      shared->callbacks.on_exit(exit_text(status));
    });
  });
  return std::unique_ptr<CodeProcess>(new CodeProcess(std::move(shared)));
}

CodeProcess::~CodeProcess() {
  shared_->close();
  if (shared_->kill_timer) shared_->loop.cancel(*shared_->kill_timer);
  shared_->close_guard();
  shared_->reader.join();
}

void CodeProcess::stop(Duration grace, pid_t worker) {
  shared_->signal(SIGTERM, worker);
  if (shared_->kill_timer) return;
  shared_->kill_timer = shared_->loop.after(grace, [shared = shared_] {
    shared->kill_timer.reset();
    if (shared->is_open) shared->close_guard();
  });
}

bool CodeProcess::has_process(pid_t pid) const { return is_below(pid, shared_->group); }

}  // namespace ae::app
