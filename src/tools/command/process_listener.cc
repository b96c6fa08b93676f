// Processes::Listener: its thread, and the reading and writing of the descriptors of programs.
#include "tools/command/process_listener.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include "tools/command/proc.h"

namespace ae::tools {
namespace {

constexpr int kPollMs =
    1000;  // poll's clock stops during suspend, so deadlines are checked this often
constexpr int kBackpressurePollMs = 10;  // until the next check whether output was delivered

}  // namespace

Processes::Listener::Listener(async::Loop& loop, std::string supervisor, std::size_t descriptors)
    : loop_(loop),
      supervisor_(std::move(supervisor)),
      descriptors_(descriptors == 0 ? "" : std::to_string(descriptors)),
      wake_(::eventfd(0, EFD_CLOEXEC)) {
  AE_CHECK(wake_.ok());
}

Processes::Listener::~Listener() {
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

void Processes::Listener::post_task(std::move_only_function<void(Listener&)> task) {
  if (!thread_.joinable()) thread_ = std::thread([this] { run_loop(); });
  {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  const std::uint64_t one = 1;
  static_cast<void>(!::write(wake_.get(), &one, sizeof one));
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
      SupervisedProgram& child = it->second;
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
void Processes::Listener::write(SupervisedProgram& child) {
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

void Processes::Listener::read_output(SupervisedProgram& child) {
  if (!child.channel.on_output) return read_available(child.output, child.stdout_capture);
  read_available(child.output, child.channel);
  if (!child.output.ok()) kill(child);
}

void Processes::Listener::read_reports(SupervisedProgram& child) {
  read_available(child.reports, child.lines);
  child.last_report_at = monotonic_now();
  deliver_report(child);
}

void Processes::Listener::deliver_report(SupervisedProgram& child) {
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
bool Processes::Listener::has_missed_heartbeat(SupervisedProgram& child) {
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

void Processes::Listener::check_deadlines(SupervisedProgram& child) {
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

void Processes::Listener::read_control(SupervisedProgram& child) {
  Report report;
  const ssize_t n = ::recv(child.control.get(), &report, sizeof report, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n == sizeof report) return on_status_report(child, report);
  on_supervisor_lost(child);
}

}  // namespace ae::tools
