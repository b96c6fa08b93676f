#include "cli/notifier.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <utility>

#include "cli/commands.h"
#include "core/json.h"
#include "core/outcome.h"

extern char** environ;  // NOLINT: as POSIX declares it

namespace ae::cli {
namespace {

constexpr auto kPatience = std::chrono::seconds(10);  // of one program
constexpr auto kLookAgain = std::chrono::milliseconds(5);
constexpr std::size_t kItemsMax = 1000;  // that wait to be told
constexpr std::size_t kToldMax = 100'000;

// A child with `in` as its stdin and our stderr as its stdout: what we print is ours.
int spawn(const std::string& program, int in, pid_t& pid) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, in, 0);
  posix_spawn_file_actions_adddup2(&actions, 2, 1);
  sigset_t ignored;  // by us, not by it
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

void Notifier::look_at(const JobId& job, const std::vector<Event>& events) {
  if (program_.empty()) return;
  std::map<std::string, std::string, std::less<>> asked;  // requests to approve a call, by step
  for (const Event& event : events) {
    const Value& p = event.payload;
    const std::string step(p.text("step_id"));
    if (event.type == EventType::decision_recorded && p.text("state") == "requested") {
      if (p.text("kind") == "approval") asked[step] = p.text("decision_id");
      if (p.text("kind") == "confirmation") {
        tell(job, "confirmation", step, p.text("node_id"),
             "aetheris resolve " + job.text + " " + step + " accept");
      }
    }
    if (event.type != EventType::wait_opened || p.text("wait_type") != "human") continue;
    const std::string key(p.text("correlation_key"));
    if (key.starts_with("resolve/")) {
      tell(
          job, "in_doubt", key, p.text("node_id"),
          "aetheris resolve " + job.text + " " + key.substr(8, 12) + " happened|not_happened|fail");
    } else if (p.text("reason") == to_text(OutcomeKind::input_required)) {  // a tool asks
      tell(job, "question", key, p.text("node_id"),
           "aetheris signal " + job.text + " '" + key +
               R"(' '{"action": "accept", "content": {}}')");
    } else {
      const bool of_call = key.starts_with("approval/");
      tell(job, of_call ? "approval" : "wait", key, p.text("node_id"),
           "aetheris approve " + job.text + "." + (of_call ? asked[step] : step));
    }
  }
}

void Notifier::tell(const JobId& job, std::string_view kind, std::string_view key,
                    std::string_view node, std::string command) {
  if (told_.size() >= kToldMax) told_.clear();
  if (!told_.emplace(job, std::string(kind) + " " + std::string(key)).second) return;
  const Value item = Value::object({{"command", command + store_flag_},
                                    {"job", job.text},
                                    {"key", key},
                                    {"kind", kind},
                                    {"node_id", node}});
  {
    const std::lock_guard lock(mutex_);
    if (items_.size() >= kItemsMax) {
      failures_.push_back("too much waits for people at once: " + canonical(item) + " is not told");
      return;
    }
    items_.push_back(canonical(item) + "\n");
  }
  wake_.notify_one();
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
    const std::string item = std::move(items_.front());
    items_.pop_front();
    busy_ = true;
    lock.unlock();
    std::string failure = start(item);
    lock.lock();
    busy_ = false;
    if (!failure.empty()) failures_.push_back("--notify " + program_ + ": " + failure);
    idle_.notify_all();
  }
}

std::string Notifier::start(const std::string& item) const {
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
    return std::string("cannot be started: ") + std::strerror(error);
  }
  // An item is smaller than a pipe; whoever does not read it has been told all the same.
  [[maybe_unused]] const ssize_t written = ::write(ends[1], item.data(), item.size());
  ::close(ends[1]);
  const auto until = std::chrono::steady_clock::now() + kPatience;
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
    std::this_thread::sleep_for(kLookAgain);
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return WIFEXITED(status) ? "ended with " + std::to_string(WEXITSTATUS(status))
                           : "was ended by signal " + std::to_string(WTERMSIG(status));
}

}  // namespace ae::cli
