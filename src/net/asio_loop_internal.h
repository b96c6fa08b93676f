// AsioLoop::Impl: the parts of AsioLoop, for the .cc files of this module only.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "net/asio_loop.h"

namespace ae::net {

struct AsioLoop::Impl {
  Impl();
  ~Impl();

  void post(async::Task task);
  void drain();
  async::TimerId after(Duration delay, async::Task task);
  void cancel(async::TimerId timer);
  void arm();
  void wait_for_timers();
  void fire_timers();
  void wait_for_signal();
  void wait_for_hangup();

  boost::asio::io_context io{1};
  std::atomic<bool> stopped = false;

  std::mutex posted_mutex;
  std::vector<async::Task> posted;  // under posted_mutex
  bool awake = false;               // under posted_mutex: a drain is scheduled or runs
  std::vector<async::Task> draining;
  std::size_t drained = 0;  // how many of `draining` have run

  using TimerKey = std::pair<std::int64_t, async::TimerId>;  // due (boot time, µs), id
  std::map<TimerKey, async::Task> timers;
  std::unordered_map<async::TimerId, std::int64_t> due_of;
  async::TimerId last_timer = 0;
  std::optional<std::int64_t> armed_at;  // when the timerfd fires
  boost::asio::posix::stream_descriptor timer_fd;

  std::optional<boost::asio::signal_set> signals, hangups;
  async::Task hangup_handler;
  std::move_only_function<void(int)> signal_handler;
};

}  // namespace ae::net
