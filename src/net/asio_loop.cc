#include "net/asio_loop.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

#include "core/error.h"
#include "net/asio_loop_internal.h"
#include "net/system.h"

namespace ae::net {
namespace {

constexpr int kRoundsPerTurn = 16;

std::int64_t boot_us() { return BootClock().since_start().count(); }

}  // namespace

AsioLoop::Impl::Impl() : timer_fd(io) {
  const int fd = timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK | TFD_CLOEXEC);
  AE_CHECK(fd >= 0, std::strerror(errno));
  timer_fd.assign(fd);
  wait_for_timers();
}

AsioLoop::Impl::~Impl() {
  // A dropped task may own what posts or forgets while it goes; the queues are still whole then.
  std::vector<async::Task> left;
  {
    const std::lock_guard lock(posted_mutex);
    awake = true;  // nothing runs any more
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

// Runs what was posted, and for some rounds what these tasks post themselves; then the sockets have their turn, which
// costs a system call.
void AsioLoop::Impl::drain() {
  for (int round = 0; round < kRoundsPerTurn; ++round) {
    {
      const std::lock_guard lock(posted_mutex);
      if (draining.empty() && posted.empty()) {
        awake = false;
        return;
      }
      if (draining.empty()) {
        draining.swap(posted);
      } else {  // what a stop has left goes first
        for (auto& task : posted) draining.push_back(std::move(task));
        posted.clear();
      }
    }
    std::size_t done = 0;
    while (done < draining.size() && !stopped.load(std::memory_order_relaxed)) {
      auto task = std::move(draining[done++]);
      task();
    }
    draining.erase(draining.begin(), draining.begin() + static_cast<std::ptrdiff_t>(done));
    if (!draining.empty()) break;
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

void AsioLoop::Impl::forget(async::TimerId timer) {
  const auto found = due_of.find(timer);
  if (found == due_of.end()) return;
  // The timerfd stays as it is: a wake for nothing is cheaper than a system call for every timer that is forgotten.
  auto node = timers.extract(TimerKey{found->second, timer});
  due_of.erase(found);
}  // the task is destroyed last, with the maps whole

void AsioLoop::Impl::arm() {
  if (timers.empty()) return;
  const std::int64_t due = timers.begin()->first.first;
  if (armed && *armed <= due) return;
  armed = due;
  itimerspec spec{};
  // An absolute time of zero would disarm.
  const std::int64_t at = std::max<std::int64_t>(due, 1);
  spec.it_value.tv_sec = static_cast<time_t>(at / 1'000'000);
  spec.it_value.tv_nsec = static_cast<long>(at % 1'000'000 * 1000);
  const int rc = timerfd_settime(timer_fd.native_handle(), TFD_TIMER_ABSTIME, &spec, nullptr);
  AE_CHECK(rc == 0, std::strerror(errno));
}

void AsioLoop::Impl::wait_for_timers() {
  timer_fd.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      [this](const boost::system::error_code& error) {
                        if (error) return;
                        std::uint64_t expirations = 0;
                        if (read(timer_fd.native_handle(), &expirations, sizeof expirations) > 0) {
                          armed.reset();
                        }
                        fire_timers();
                        wait_for_timers();
                      });
}

// Fires what is due now; a timer made by one of these, even with no delay, waits for the next round.
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
    signal_seen(signal);
    wait_for_signal();
  });
}

void AsioLoop::Impl::wait_for_hangup() {
  hangups->async_wait([this](const boost::system::error_code& error, int) {
    if (error) return;
    hangup_seen();
    wait_for_hangup();
  });
}

AsioLoop::AsioLoop() : impl_(std::make_unique<Impl>()) {}
AsioLoop::~AsioLoop() = default;

void AsioLoop::run() noexcept {
  // The timerfd's wait keeps the context busy, so only stop ends this.
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
void AsioLoop::forget(async::TimerId timer) { impl_->forget(timer); }

void AsioLoop::on_signals(std::move_only_function<void(int)> seen) {
  const bool waiting = impl_->signals.has_value();
  impl_->signal_seen = std::move(seen);
  if (waiting) return;
  impl_->signals.emplace(impl_->io, SIGINT, SIGTERM);
  impl_->wait_for_signal();
}

void AsioLoop::on_hangup(async::Task seen) {
  const bool waiting = impl_->hangups.has_value();
  impl_->hangup_seen = std::move(seen);
  if (waiting) return;
  impl_->hangups.emplace(impl_->io, SIGHUP);
  impl_->wait_for_hangup();
}

}  // namespace ae::net
