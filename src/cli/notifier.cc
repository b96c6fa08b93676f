#include "cli/notifier.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <utility>

#include "cli/shared.h"
#include "json/json.h"

extern char** environ;  // NOLINT: as POSIX declares it

namespace ae::cli {
namespace {

constexpr auto kProgramTimeout = std::chrono::seconds(10);  // time limit of a program
constexpr auto kReapEvery = std::chrono::milliseconds(5);
constexpr std::size_t kItemsMax = 1000;  // queued questions
constexpr std::size_t kNotifiedMax = 100'000;

// Starts a child with `in` as stdin and our stderr as its stdout: our stdout is reserved for our
// output.
int spawn(const std::string& program, int in, pid_t& pid) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, in, 0);
  posix_spawn_file_actions_adddup2(&actions, 2, 1);
  sigset_t ignored;  // ignored by us, not by the child
  sigemptyset(&ignored);
  sigaddset(&ignored, SIGPIPE);
  sigaddset(&ignored, SIGXFSZ);
  posix_spawnattr_setsigdefault(&attributes, &ignored);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  std::string name = program;
  char* argv[] = {name.data(), nullptr};
  const int error = ::posix_spawnp(&pid, program.c_str(), &actions, &attributes, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return error;
}

}  // namespace

Notifier::Notifier(std::string program, std::string store_flag, std::size_t descriptors)
    : program_(std::move(program)), store_flag_(std::move(store_flag)), descriptors_(descriptors) {
  if (!program_.empty()) thread_ = std::thread([this] { run(); });
}

Notifier::~Notifier() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Notifier::notify_open_questions(const JobId& job, const std::vector<Event>& events) {
  if (program_.empty()) return;
  OpenQuestions open(job);
  for (const Event& event : events) open.apply(event);
  for (const Question& question : open.list()) {
    if (notified_.size() >= kNotifiedMax) notified_.clear();
    if (notified_.insert(question.id).second) {
      add({canonical(to_value(question, store_flag_)) + "\n", nullptr});
    }
  }
}

void Notifier::start(const Question& question, Done done) {
  add({canonical(to_value(question, store_flag_)) + "\n", std::move(done)});
}

void Notifier::add(Item item) {
  {
    const std::lock_guard lock(mutex_);
    if (items_.size() >= kItemsMax && !item.done) {
      failures_.push_back(fmt::format("too many pending requests: {} is not sent", item.text));
      return;
    }
    items_.push_back(std::move(item));
  }
  wake_.notify_one();
}

void Notifier::drop() {
  const std::lock_guard lock(mutex_);
  items_.clear();
}

std::vector<std::string> Notifier::failures() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failures_, {});
}

void Notifier::finish() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return !thread_.joinable() || (items_.empty() && !busy_); });
}

void Notifier::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || !items_.empty(); });
    if (items_.empty()) return;
    const Item item = std::move(items_.front());
    items_.pop_front();
    busy_ = true;
    lock.unlock();
    const std::string failure = start_program(item.text);
    if (item.done) item.done(failure);
    lock.lock();
    busy_ = false;
    if (!failure.empty() && !item.done) {
      failures_.push_back(fmt::format("--notify {}: {}", program_, failure));
    }
    idle_.notify_all();
  }
}

std::string Notifier::start_program(const std::string& item) const {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return std::strerror(errno);
  pid_t pid = 0;
  const int error = spawn(program_, ends[0], pid);
  ::close(ends[0]);
  if (rlimit limit{};
      error == 0 && descriptors_ != 0 && ::prlimit(pid, RLIMIT_NOFILE, nullptr, &limit) == 0) {
    limit.rlim_cur = std::min<rlim_t>(descriptors_, limit.rlim_max);
    ::prlimit(pid, RLIMIT_NOFILE, &limit, nullptr);
  }
  if (error != 0) {
    ::close(ends[1]);
    return fmt::format("cannot be started: {}", std::strerror(error));
  }
  // An item fits into a pipe; a program that does not read it counts as notified.
  [[maybe_unused]] const ssize_t written = ::write(ends[1], item.data(), item.size());
  ::close(ends[1]);
  const auto until = std::chrono::steady_clock::now() + kProgramTimeout;
  int status = 0;
  for (;;) {
    const pid_t ended = ::waitpid(pid, &status, WNOHANG);
    if (ended == pid) break;
    if (ended < 0 && errno != EINTR) return std::strerror(errno);
    if (std::chrono::steady_clock::now() > until) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, &status, 0);
      return "took longer than 10 seconds, and was ended";
    }
    std::this_thread::sleep_for(kReapEvery);
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return WIFEXITED(status) ? fmt::format("ended with {}", WEXITSTATUS(status))
                           : fmt::format("was ended by signal {}", WTERMSIG(status));
}

}  // namespace ae::cli
