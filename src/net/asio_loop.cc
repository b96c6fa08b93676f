#include "net/asio_loop.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

#include "base/error.h"
#include "net/asio_loop_internal.h"
#include "net/system.h"

namespace ae::net {
namespace {

constexpr int kRoundsPerTurn = 16;
constexpr std::int64_t kTurnUsMax = 50'000;  // then sockets are served, even if tasks remain
// If the loop has not taken a second signal after this time, the process ends.
constexpr unsigned kForcedExitSeconds = 1;

std::int64_t boot_us() { return BootClock().since_start().count(); }

// Signals seen by the handler, and those taken by the loop. A busy loop must not
// prevent termination: a signal that arrives while the previous one is pending ends
// the process in the handler.
std::atomic<int> signals_arrived = 0;
std::atomic<int> signals_handled = 0;
std::atomic<int> last_signal = 0;
struct sigaction asio_actions[NSIG] = {};

void on_alarm(int) { _exit(128 + last_signal.load()); }

void on_signal(int signal) {
  const int saved = errno;
  last_signal = signal;
  const int arrived = ++signals_arrived;
  if (arrived - signals_handled.load() > 1) _exit(128 + signal);
  if (arrived > 1) alarm(kForcedExitSeconds);
  asio_actions[signal].sa_handler(signal);
  errno = saved;
}

// Installs on_signal in front of asio's handler.
void count_signal(int signal) {
  struct sigaction action{};
  AE_CHECK(sigaction(signal, nullptr, &asio_actions[signal]) == 0, std::strerror(errno));
  action = asio_actions[signal];
  action.sa_handler = on_signal;
  AE_CHECK(sigaction(signal, &action, nullptr) == 0, std::strerror(errno));
}

}  // namespace

AsioLoop::Impl::Impl() : timer_fd(io) {
  const int fd = timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK | TFD_CLOEXEC);
  AE_CHECK(fd >= 0, std::strerror(errno));
  timer_fd.assign(fd);
  wait_for_timers();
}

AsioLoop::Impl::~Impl() {
  // A dropped task may own an object that posts or cancels in its destructor; the
  // queues must be valid then.
  std::vector<async::Task> left;
  {
    const std::lock_guard lock(posted_mutex);
    awake = true;  // nothing runs after this
    left.swap(posted);
  }
  left.clear();
  draining.clear();
  auto unfired = std::move(timers);
  timers.clear();
  due_of.clear();
}

void AsioLoop::Impl::post(async::Task task) {
  {
    const std::lock_guard lock(posted_mutex);
    posted.push_back(std::move(task));
    if (awake) return;
    awake = true;
  }
  boost::asio::post(io, [this] { drain(); });
}

// Runs posted tasks, and for some rounds the tasks that those post. Then sockets are served, which
// costs a system call.
void AsioLoop::Impl::drain() {
  const std::int64_t began = boot_us();
  const auto turn_is_over = [began] { return boot_us() - began >= kTurnUsMax; };
  bool over = false;
  for (int round = 0; round < kRoundsPerTurn && !over; ++round) {
    {
      const std::lock_guard lock(posted_mutex);
      if (draining.empty() && posted.empty()) {
        awake = false;
        return;
      }
      if (draining.empty()) {
        draining.swap(posted);
      } else {  // tasks left over by stop go first
        for (auto& task : posted) draining.push_back(std::move(task));
        posted.clear();
      }
    }
    while (drained < draining.size() && !over && !stopped.load(std::memory_order_relaxed)) {
      auto task = std::move(draining[drained++]);
      task();
      over = turn_is_over();
    }
    const bool complete = drained == draining.size();
    if (complete || drained > draining.size() / 2) {  // else moving the rest would cost more
      draining.erase(draining.begin(), draining.begin() + static_cast<std::ptrdiff_t>(drained));
      drained = 0;
    }
    if (!complete) break;
  }
  boost::asio::post(io, [this] { drain(); });
}

async::TimerId AsioLoop::Impl::after(Duration delay, async::Task task) {
  const async::TimerId id = ++last_timer;
  const std::int64_t now = boot_us();
  const std::int64_t wait = std::max<std::int64_t>(delay.count(), 0);
  const std::int64_t due = wait > INT64_MAX - now ? INT64_MAX : now + wait;
  timers.emplace(TimerKey{due, id}, std::move(task));
  due_of.emplace(id, due);
  arm();
  return id;
}

void AsioLoop::Impl::cancel(async::TimerId timer) {
  const auto found = due_of.find(timer);
  if (found == due_of.end()) return;
  // The timerfd stays armed: a spurious wakeup is cheaper than a system call
  // for every cancelled timer.
  auto node = timers.extract(TimerKey{found->second, timer});
  due_of.erase(found);
}  // the task is destroyed last, when the maps are consistent

void AsioLoop::Impl::arm() {
  if (timers.empty()) return;
  const std::int64_t due = timers.begin()->first.first;
  if (armed_at && *armed_at <= due) return;
  armed_at = due;
  itimerspec spec{};
  // Relative, so that an adjusted clock cannot produce a value that the kernel
  // rejects. Zero would disarm.
  const std::int64_t wait = std::max<std::int64_t>(due - boot_us(), 1);
  spec.it_value.tv_sec = static_cast<time_t>(wait / 1'000'000);
  spec.it_value.tv_nsec = static_cast<long>(wait % 1'000'000 * 1000);
  const int rc = timerfd_settime(timer_fd.native_handle(), 0, &spec, nullptr);
  AE_CHECK(rc == 0, std::strerror(errno));
}

void AsioLoop::Impl::wait_for_timers() {
  timer_fd.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      [this](const boost::system::error_code& error) {
                        if (error) return;
                        std::uint64_t expirations = 0;
                        if (read(timer_fd.native_handle(), &expirations, sizeof expirations) > 0) {
                          armed_at.reset();
                        }
                        fire_timers();
                        wait_for_timers();
                      });
}

// Fires timers that are due; timers created meanwhile wait for the next round, even with no delay.
void AsioLoop::Impl::fire_timers() {
  const std::int64_t now = boot_us();
  const async::TimerId newest = last_timer;
  auto next = timers.begin();
  while (next != timers.end() && next->first.first <= now &&
         !stopped.load(std::memory_order_relaxed)) {
    if (next->first.second > newest) {
      ++next;
      continue;
    }
    auto node = timers.extract(next);
    due_of.erase(node.key().second);
    node.mapped()();
    next = timers.begin();
  }
  arm();
}

void AsioLoop::Impl::wait_for_signal() {
  signals->async_wait([this](const boost::system::error_code& error, int signal) {
    if (error) return;
    ++signals_handled;
    alarm(0);
    signal_handler(signal);
    wait_for_signal();
  });
}

void AsioLoop::Impl::wait_for_hangup() {
  hangups->async_wait([this](const boost::system::error_code& error, int) {
    if (error) return;
    hangup_handler();
    wait_for_hangup();
  });
}

AsioLoop::AsioLoop() : impl_(std::make_unique<Impl>()) {}
AsioLoop::~AsioLoop() = default;

void AsioLoop::run() noexcept {
  // The pending wait on the timerfd keeps the context busy, so only stop ends this.
  while (!impl_->stopped.load(std::memory_order_relaxed)) {
    impl_->io.run();
    if (!impl_->stopped.load(std::memory_order_relaxed)) impl_->io.restart();
  }
  impl_->stopped = false;
  impl_->io.restart();
}

void AsioLoop::stop() noexcept {
  impl_->stopped = true;
  impl_->io.stop();
}

void AsioLoop::post(async::Task task) { impl_->post(std::move(task)); }
async::TimerId AsioLoop::after(Duration delay, async::Task task) {
  return impl_->after(delay, std::move(task));
}
void AsioLoop::cancel(async::TimerId timer) { impl_->cancel(timer); }

void AsioLoop::on_signals(std::move_only_function<void(int)> handler) {
  const bool waiting = impl_->signals.has_value();
  impl_->signal_handler = std::move(handler);
  if (waiting) return;
  impl_->signals.emplace(impl_->io, SIGINT, SIGTERM);
  struct sigaction at_alarm{};
  at_alarm.sa_handler = on_alarm;
  AE_CHECK(sigaction(SIGALRM, &at_alarm, nullptr) == 0, std::strerror(errno));
  count_signal(SIGINT);
  count_signal(SIGTERM);
  impl_->wait_for_signal();
}

void AsioLoop::on_hangup(async::Task handler) {
  const bool waiting = impl_->hangups.has_value();
  impl_->hangup_handler = std::move(handler);
  if (waiting) return;
  impl_->hangups.emplace(impl_->io, SIGHUP);
  impl_->wait_for_hangup();
}

}  // namespace ae::net
