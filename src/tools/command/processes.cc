// The thread that monitors supervisors and reads the output of their programs.
#include "tools/command/processes.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "tools/command/leftovers.h"
#include "tools/command/proc.h"
#include "tools/command/supervisor.h"
#include "tools/tool.h"

namespace ae::tools {
namespace {

constexpr Duration kSupervisorTimeout =
    std::chrono::seconds(8);  // more than a supervisor needs to give up
constexpr int kPollMs =
    1000;  // poll's clock stops during suspend, so deadlines are checked this often
constexpr Duration kOrphanReapDelay = std::chrono::seconds(1);
constexpr std::size_t kReadMax = 256u << 10;  // bytes of one stream per round
constexpr int kBackpressurePollMs = 10;       // until the next check whether output was delivered

// CLOCK_MONOTONIC stops during suspend, as the program does, so a suspended machine is not a missed
// heartbeat.
Duration monotonic_now() {
  return std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch());
}

// A file descriptor that is closed on destruction.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Fd& operator=(Fd&& o) noexcept {
    std::swap(fd_, o.fd_);
    return *this;
  }
  ~Fd() { close(); }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Moves a descriptor above the numbers that a supervisor's files get, so that dup2 overwrites none
// of them.
Fd move_above_stdio(Fd fd) {
  return fd.ok() && fd.get() < 10 ? Fd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 10)) : std::move(fd);
}

// A sealed memory file with `bytes`, positioned at its beginning.
Fd make_sealed_file(const char* name, std::string_view bytes) {
  Fd fd = move_above_stdio(Fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  while (fd.ok() && !bytes.empty()) {
    const ssize_t n = ::write(fd.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Fd();
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  if (fd.ok() && (::lseek(fd.get(), 0, SEEK_SET) != 0 ||
                  ::fcntl(fd.get(), F_ADD_SEALS,
                          F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0)) {
    return Fd();
  }
  return fd;
}

struct FdPair {
  Fd parent_end, child_end;
  bool ok() const { return parent_end.ok() && child_end.ok(); }
};

FdPair open_read_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return {};
  FdPair pair{Fd(fds[0]), move_above_stdio(Fd(fds[1]))};
  if (::fcntl(fds[0], F_SETFL, O_NONBLOCK) != 0) return {};
  return pair;
}

FdPair open_write_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return {};
  FdPair pair{Fd(fds[1]), move_above_stdio(Fd(fds[0]))};
  if (::fcntl(fds[1], F_SETFL, O_NONBLOCK) != 0) return {};
  return pair;
}

FdPair socket_pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) return {};
  return {Fd(fds[0]), move_above_stdio(Fd(fds[1]))};
}

// The captured stdout.
class OutputCapture {
 public:
  explicit OutputCapture(std::size_t keep) : keep_(keep) {}
  void add(std::string_view bytes) {
    size_ += bytes.size();
    if (!hash_ && size_ <= keep_) {
      kept_ += bytes;
      return;
    }
    if (!hash_) {
      hash_ = std::make_unique<Sha256>();
      hash_->add(kept_);
      kept_ += bytes.substr(0, keep_ - kept_.size());
    }
    hash_->add(bytes);
  }
  void move_into(ProcessExit& ended) {
    ended.output = std::move(kept_);
    ended.output_size = size_;
    if (hash_) ended.output_hash = hash_->finish();
  }

 private:
  std::size_t keep_, size_ = 0;
  std::string kept_;
  std::unique_ptr<Sha256> hash_;  // only once the limit is exceeded
};

// The end of stderr.
class OutputTail {
 public:
  void add(std::string_view bytes) {
    text_ += bytes;
    if (text_.size() > 4 * kStderrTailMax) trim();
  }
  void move_into(ProcessExit& ended) {
    trim();
    ended.errors = std::move(text_);
    ended.is_errors_truncated = truncated_;
  }

 private:
  void trim() {
    if (text_.size() <= kStderrTailMax) return;
    text_.erase(0, text_.size() - kStderrTailMax);
    truncated_ = true;
  }
  std::string text_;
  bool truncated_ = false;
};

// The lines of the progress channel: the latest complete one. Lines that are too long are ignored.
class ReportLines {
 public:
  void add(std::string_view bytes) {
    while (!bytes.empty()) {
      const std::size_t end = std::min(bytes.find('\n'), bytes.size());
      const bool fits = partial_.size() + end <= kProgressMax;
      if (fits) partial_ += bytes.substr(0, end);
      too_long_ = too_long_ || !fits;
      if (end == bytes.size()) return;
      bytes.remove_prefix(end + 1);
      if (!too_long_ && !partial_.empty()) newest_ = std::exchange(partial_, {});
      partial_.clear();
      too_long_ = false;
    }
  }
  std::optional<std::string> take() { return std::exchange(newest_, std::nullopt); }

 private:
  std::string partial_;
  bool too_long_ = false;
  std::optional<std::string> newest_;
};

// The latest report on its way to the loop. Shared with the task that delivers it.
struct PendingReport {
  std::mutex mutex;
  std::optional<std::string> line;  // guarded by mutex; empty: no task is posted
};

// Stdin and stdout of an interactive program.
struct StdioChannel {
  std::function<void(std::string)> on_output;
  Fd input;
  std::string input_buffer;  // unwritten input starts at `written`
  std::size_t written = 0;
  // Bytes posted to the loop. Shared with the tasks that deliver them.
  std::shared_ptr<std::atomic<std::size_t>> undelivered =
      std::make_shared<std::atomic<std::size_t>>(0);
  async::Loop* loop = nullptr;

  bool is_backpressured() const { return on_output && *undelivered > kUndeliveredMax; }
  void add(std::string_view bytes) {
    *undelivered += bytes.size();
    loop->post(
        [on_output = on_output, undelivered = undelivered, text = std::string(bytes)]() mutable {
          *undelivered -= text.size();
          on_output(std::move(text));
        });
  }
};

struct Child {
  pid_t supervisor = -1;
  Fd control, output, errors, reports;
  StdioChannel channel;
  ReportLines lines;
  ReportCallback on_report;
  std::shared_ptr<PendingReport> pending_report = std::make_shared<PendingReport>();
  Duration heartbeat{};
  Duration last_report_at{};  // monotonic: the last report or start
  OutputCapture stdout_capture{0};
  OutputTail stderr_tail;
  async::Done<ProcessGroup> ready;
  async::Done<ProcessExit> ended;  // empty: reported; only the supervisor remains to be reaped
  std::optional<ProcessGroup> group;
  std::string mark;
  bool go_sent = false;
  KillReason kill_reason = KillReason::no;
  Duration time_max{};
  Duration started_at{};
  std::optional<Duration> supervisor_deadline;  // when to stop waiting for the supervisor
};

}  // namespace

class Processes::Listener {
 public:
  Listener(async::Loop& loop, std::string supervisor, std::size_t descriptors)
      : loop_(loop),
        supervisor_(std::move(supervisor)),
        descriptors_(descriptors == 0 ? "" : std::to_string(descriptors)),
        wake_(::eventfd(0, EFD_CLOEXEC)) {
    AE_CHECK(wake_.ok());
  }
  ~Listener() {
    if (!thread_.joinable()) return;
    post_task([](Listener& l) {
      l.stopping_ = true;
      for (auto& [id, child] : l.children_) {
        l.kill(child);
        child.supervisor_deadline = boot_now() + kSupervisorTimeout;
      }
    });
    thread_.join();
  }

  // Runs `task` on the listener's thread, which starts with the first task.
  void post_task(std::move_only_function<void(Listener&)> task) {
    if (!thread_.joinable()) thread_ = std::thread([this] { run_loop(); });
    {
      const std::scoped_lock lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    const std::uint64_t one = 1;
    static_cast<void>(!::write(wake_.get(), &one, sizeof one));
  }

  void start(Id id, LaunchSpec launch, async::Done<ProcessGroup> ready, ReportCallback on_report,
             async::Done<ProcessExit> ended);
  void go(Id id);
  void kill(Id id);
  void stop(Id id);
  void write(Id id, std::string bytes);

 private:
  void write(Child& child);
  void read_output(Child& child);
  void read_reports(Child& child);
  void deliver_report(Child& child);
  bool has_missed_heartbeat(Child& child);
  int poll_timeout_ms() const;
  int spawn(const LaunchSpec& launch, Child& child);
  void kill(Child& child, KillReason why = KillReason::ordered);
  void run_loop();
  void run_tasks();
  void read_control(Child& child);
  void on_status_report(Child& child, const Report& report);
  void on_supervisor_lost(Child& child);
  void check_deadlines(Child& child);
  void report_exit(Child& child, ProcessExit ended);
  template <class Sink>
  void read_available(Fd& fd, Sink& sink);

  async::Loop& loop_;
  const std::string supervisor_;
  const std::string descriptors_;  // as text; "": as ours
  Fd wake_;
  std::mutex mutex_;
  std::vector<std::move_only_function<void(Listener&)>> tasks_;  // guarded by mutex_

  void reap_orphans();
  void kill_orphans_of(const Child& child);

  // Owned by the thread.
  bool stopping_ = false;
  bool adopts_orphans_ = false;
  std::map<pid_t, Duration> dead_orphans_;  // zombie children that are not supervisors
  std::map<Id, Child> children_;
  std::array<char, 64u << 10> buffer_{};
  std::thread thread_;
};

void Processes::Listener::start(Id id, LaunchSpec launch, async::Done<ProcessGroup> ready,
                                ReportCallback on_report, async::Done<ProcessExit> ended) {
  Child child;
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

// 0, or an errno.
int Processes::Listener::spawn(const LaunchSpec& launch, Child& child) {
  FdPair control = socket_pair(), output = open_read_pipe(), errors = open_read_pipe(),
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
  Child& child = found->second;
  if (!child.ended || child.kill_reason != KillReason::no) return;
  child.started_at = boot_now();
  child.last_report_at = monotonic_now();
  child.supervisor_deadline = child.started_at + child.time_max + kSupervisorTimeout;
  const char byte = static_cast<char>(Command::go);
  // If this fails, the supervisor is gone and has started nothing.
  child.go_sent = ::send(child.control.get(), &byte, 1, MSG_NOSIGNAL) == 1;
}

void Processes::Listener::write(Id id, std::string bytes) {
  const auto found = children_.find(id);
  if (found == children_.end() || !found->second.channel.input.ok()) return;
  StdioChannel& channel = found->second.channel;
  if (channel.input_buffer.size() - channel.written + bytes.size() > kInputBufferMax)
    return kill(found->second);
  channel.input_buffer += bytes;
  write(found->second);
}

// Writes as much as the pipe takes. A write error is ignored: the program is about to end, and its
// exit is reported.
void Processes::Listener::write(Child& child) {
  StdioChannel& channel = child.channel;
  while (channel.input.ok() && channel.written < channel.input_buffer.size()) {
    const ssize_t n = ::write(channel.input.get(), channel.input_buffer.data() + channel.written,
                              channel.input_buffer.size() - channel.written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) return channel.input.close();
    channel.written += static_cast<std::size_t>(n);
  }
  if (channel.written == channel.input_buffer.size() || channel.written > (1u << 20)) {
    channel.input_buffer.erase(0, std::exchange(channel.written, 0));
  }
}

void Processes::Listener::read_output(Child& child) {
  if (!child.channel.on_output) return read_available(child.output, child.stdout_capture);
  read_available(child.output, child.channel);
  if (!child.output.ok()) kill(child);
}

void Processes::Listener::kill(Id id) {
  if (const auto found = children_.find(id); found != children_.end()) kill(found->second);
}

// A later kill is still possible: `kill_reason` stays unchanged. REQUIRES: a grace below
// kSupervisorTimeout.
void Processes::Listener::stop(Id id) {
  const auto found = children_.find(id);
  if (found == children_.end()) return;
  Child& child = found->second;
  if (!child.go_sent) return kill(child);
  child.supervisor_deadline = boot_now() + kSupervisorTimeout;
  const char byte = static_cast<char>(Command::stop);
  ::send(child.control.get(), &byte, 1, MSG_NOSIGNAL);
}

void Processes::Listener::kill(Child& child, KillReason why) {
  if (!child.ended || child.kill_reason != KillReason::no) return;
  child.kill_reason = why;
  child.supervisor_deadline = boot_now() + kSupervisorTimeout;
  const char byte = static_cast<char>(Command::kill);
  ::send(child.control.get(), &byte, 1, MSG_NOSIGNAL);
}

void Processes::Listener::run_loop() {
  // A write to a program that has ended fails with EPIPE instead of a signal.
  sigset_t broken_pipe;
  ::sigemptyset(&broken_pipe);
  ::sigaddset(&broken_pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  std::vector<pollfd> fds;
  while (!stopping_ || !children_.empty()) {
    fds.assign(1, {wake_.get(), POLLIN, 0});
    for (auto& [id, child] : children_) {
      for (const Fd* fd : {&child.control, &child.output, &child.errors, &child.reports}) {
        const bool is_paused = fd == &child.output && child.channel.is_backpressured();
        fds.push_back({is_paused ? -1 : fd->get(), POLLIN, 0});
      }
      fds.push_back(
          {child.channel.input_buffer.empty() ? -1 : child.channel.input.get(), POLLOUT, 0});
    }
    if (::poll(fds.data(), fds.size(), poll_timeout_ms()) < 0) continue;
    std::size_t at = 1;
    for (auto it = children_.begin(); it != children_.end();) {
      Child& child = it->second;
      const bool has_control = fds[at].revents != 0;
      if (fds[at + 1].revents != 0) read_output(child);
      if (fds[at + 2].revents != 0) read_available(child.errors, child.stderr_tail);
      if (fds[at + 3].revents != 0) read_reports(child);
      if (fds[at + 4].revents != 0) write(child);
      at += 5;
      if (has_control) read_control(child);
      check_deadlines(child);
      it = child.control.ok() ? std::next(it) : children_.erase(it);
    }
    if (fds[0].revents != 0) run_tasks();
  }
}

void Processes::Listener::run_tasks() {
  std::uint64_t count = 0;
  static_cast<void>(!::read(wake_.get(), &count, sizeof count));
  std::vector<std::move_only_function<void(Listener&)>> tasks;
  {
    const std::scoped_lock lock(mutex_);
    tasks.swap(tasks_);
  }
  for (auto& task : tasks) task(*this);
}

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

void Processes::Listener::read_reports(Child& child) {
  read_available(child.reports, child.lines);
  child.last_report_at = monotonic_now();
  deliver_report(child);
}

void Processes::Listener::deliver_report(Child& child) {
  auto line = child.lines.take();
  if (!line || !child.ended || !child.go_sent) return;
  {
    const std::scoped_lock lock(child.pending_report->mutex);
    const bool on_the_way = child.pending_report->line.has_value();
    child.pending_report->line = std::move(*line);
    if (on_the_way) return;
  }
  loop_.post([on_report = child.on_report, pending_report = child.pending_report] {
    std::optional<std::string> newest;
    {
      const std::scoped_lock lock(pending_report->mutex);
      newest.swap(pending_report->line);
    }
    if (newest) on_report(*std::move(newest));
  });
}

// Checks the channel first: this process may have been too slow to read it.
bool Processes::Listener::has_missed_heartbeat(Child& child) {
  if (child.heartbeat.count() == 0 || !child.go_sent || !child.ended ||
      child.kill_reason != KillReason::no ||
      monotonic_now() - child.last_report_at < child.heartbeat) {
    return false;
  }
  pollfd poll_fd{child.reports.get(), POLLIN, 0};
  if (::poll(&poll_fd, 1, 0) == 1 && (poll_fd.revents & POLLIN) != 0) {
    read_reports(child);
    return false;
  }
  return true;
}

// Until the next deadline.
int Processes::Listener::poll_timeout_ms() const {
  if (children_.empty()) return -1;
  std::int64_t wait = kPollMs;
  for (const auto& [id, child] : children_) {
    if (child.channel.is_backpressured()) wait = std::min<std::int64_t>(wait, kBackpressurePollMs);
    if (child.heartbeat.count() == 0 || !child.go_sent || child.kill_reason != KillReason::no)
      continue;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        child.last_report_at + child.heartbeat - monotonic_now());
    wait = std::clamp<std::int64_t>(left.count(), 0, wait);
  }
  return static_cast<int>(wait);
}

void Processes::Listener::read_control(Child& child) {
  Report report;
  const ssize_t n = ::recv(child.control.get(), &report, sizeof report, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n == sizeof report) return on_status_report(child, report);
  on_supervisor_lost(child);
}

void Processes::Listener::on_status_report(Child& child, const Report& report) {
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
void Processes::Listener::on_supervisor_lost(Child& child) {
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
void Processes::Listener::kill_orphans_of(const Child& child) {
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

void Processes::Listener::check_deadlines(Child& child) {
  if (child.control.ok() && has_missed_heartbeat(child)) kill(child, KillReason::silent);
  if (!child.supervisor_deadline || !child.control.ok() || boot_now() < *child.supervisor_deadline)
    return;
  if (!child.ended) {
    // Stuck after SIGKILL. The supervisor keeps trying, even without us.
    child.supervisor_deadline.reset();
    if (stopping_) child.control.close();
    return;
  }
  if (child.kill_reason == KillReason::no) child.kill_reason = KillReason::timeout;
  on_supervisor_lost(child);
}

void Processes::Listener::report_exit(Child& child, ProcessExit ended) {
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

Processes::Processes(async::Loop& loop, std::string supervisor, std::size_t descriptors,
                     std::vector<std::string> denied_paths)
    : denied_paths_(std::move(denied_paths)),
      listener_(std::make_unique<Listener>(loop, std::move(supervisor), descriptors)) {}

Processes::~Processes() = default;

Processes::Id Processes::start(LaunchSpec launch, async::Done<ProcessGroup> ready,
                               ReportCallback on_report, async::Done<ProcessExit> ended) {
  const Id id = next_++;
  listener_->post_task([id, launch = std::move(launch), ready = std::move(ready),
                        on_report = std::move(on_report),
                        ended = std::move(ended)](Listener& l) mutable {
    l.start(id, std::move(launch), std::move(ready), std::move(on_report), std::move(ended));
  });
  return id;
}

void Processes::go(Id id) {
  listener_->post_task([id](Listener& l) { l.go(id); });
}

void Processes::write(Id id, std::string bytes) {
  listener_->post_task(
      [id, bytes = std::move(bytes)](Listener& l) mutable { l.write(id, std::move(bytes)); });
}

void Processes::kill(Id id) {
  listener_->post_task([id](Listener& l) { l.kill(id); });
}

void Processes::stop(Id id) {
  listener_->post_task([id](Listener& l) { l.stop(id); });
}

}  // namespace ae::tools
